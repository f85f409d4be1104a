"""The energy of sentences, layer by layer."""

from __future__ import annotations

import sys
import tracemalloc
from pathlib import Path

import mpmath
import numpy as np
import pytest

import refimpl
from refimpl import cli, text
from refimpl.curve import EnergyCurve, check_plot, energy_curve, plot, random_terms, rounding_bound

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
SENTENCES = ["a b c", "b b", "c a d e a", "e unknown", "d"]


@pytest.fixture
def embeddings() -> dict[str, np.ndarray]:
    return dict(zip("abcde", np.random.default_rng(5).normal(0, 1, (5, 4)), strict=True))


def same(one: EnergyCurve, other: EnergyCurve) -> bool:
    return one.as_dict() == other.as_dict()


# ------------------------------------------------------------------------------------------------ the numbers


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("rho", ["exp", "log2", "truncated"])
def test_it_is_the_mean_over_the_model(embeddings: dict[str, np.ndarray], rho: str, relu: bool) -> None:
    curve = energy_curve(SENTENCES, embeddings, layers=3, rho=rho, relu=relu, seed=7)
    generator = np.random.default_rng(7)
    model = refimpl.UnfoldedTransformer(*random_terms(4, rho, relu, generator), depth=3)
    energies = []
    for sentence in SENTENCES:
        Y = np.array([embeddings[word] for word in sentence.split() if word in embeddings])
        energies.append(model.forward(Y.clip(0) if relu else Y).energy)
    np.testing.assert_allclose(curve.mean_energy, np.mean(energies, axis=0), rtol=1e-13)
    np.testing.assert_allclose(curve.quartiles, np.quantile(energies, [0.25, 0.5, 0.75], axis=0), rtol=1e-13)
    np.testing.assert_array_equal(curve.minimum, np.min(energies, axis=0))
    np.testing.assert_array_equal(curve.maximum, np.max(energies, axis=0))
    assert curve.mean_energy.shape == (4,)
    assert (curve.samples, curve.words, curve.unknown_words, curve.empty_sentences) == (5, 12, 1, [])
    assert curve.start == ("max(x, 0)" if relu else "x")


def test_weights() -> None:
    """Xavier normal W and B; W_f is positive semidefinite with no eigenvalue above 0.95."""
    attention, feedforward = random_terms(300, "exp", True, np.random.default_rng(0))
    assert attention.W is not None
    assert np.std(attention.W) == pytest.approx(np.sqrt(1 / 300), rel=0.02)
    assert np.std(feedforward.B) == pytest.approx(np.sqrt(2 / 301), rel=0.2)
    eigenvalues = np.linalg.eigvalsh(feedforward.Wf)
    assert eigenvalues[0] > -1e-12
    assert eigenvalues[-1] == pytest.approx(0.95)
    assert feedforward.max_alpha > 1
    # the eigenvalues below the bound are those of W_f W_fᵀ, which follow the law of Marchenko and Pastur on [0, 4]
    assert 0.5 < (eigenvalues < 0.94).mean() < 0.7


def test_the_seed_decides(embeddings: dict[str, np.ndarray]) -> None:
    assert same(energy_curve(SENTENCES, embeddings, seed=3), energy_curve(SENTENCES, embeddings, seed=3))
    assert not same(energy_curve(SENTENCES, embeddings, seed=3), energy_curve(SENTENCES, embeddings, seed=4))


def test_samples(embeddings: dict[str, np.ndarray]) -> None:
    everything = energy_curve(SENTENCES, embeddings, samples=None)
    assert same(energy_curve(SENTENCES, embeddings, samples=5), everything)
    assert same(energy_curve(SENTENCES, embeddings, samples=99), everything)
    # the weights do not depend on the subset: each sentence alone has the energies it has among the others
    alone = [energy_curve([sentence], embeddings).mean_energy for sentence in SENTENCES]
    two = energy_curve(SENTENCES, embeddings, samples=2)
    pairs = [(alone[i] + alone[j]) / 2 for i in range(5) for j in range(i)]
    assert sum(np.allclose(two.mean_energy, pair, rtol=1e-13) for pair in pairs) == 1


def test_empty_sentences_are_not_averaged(embeddings: dict[str, np.ndarray]) -> None:
    curve = energy_curve(["nothing here", "a b c", "", "b b"], embeddings)
    assert (curve.empty_sentences, curve.samples, curve.words, curve.unknown_words) == ([0, 2], 2, 5, 2)
    np.testing.assert_array_equal(curve.mean_energy, energy_curve(["a b c", "b b"], embeddings).mean_energy)


def test_sentences_are_cut_in_words(embeddings: dict[str, np.ndarray]) -> None:
    cut = energy_curve(["b x a c", "x a", "x y b"], embeddings, max_words=2)
    assert (cut.words, cut.unknown_words, cut.samples, cut.empty_sentences) == (2, 4, 2, [2])
    assert cut.max_words == cut.as_dict()["max_words"] == 2
    np.testing.assert_array_equal(cut.mean_energy, energy_curve(["b", "a"], embeddings).mean_energy)
    assert same(energy_curve(SENTENCES, embeddings, max_words=None), energy_curve(SENTENCES, embeddings))


def test_one_sentence_is_held_at_a_time(embeddings: dict[str, np.ndarray]) -> None:
    """Ten times the sentences take less memory more than a pointer for each further word."""
    sentence = " ".join(np.random.default_rng(0).choice(list("abcde"), 200))

    def peak(sentences: int) -> int:
        tracemalloc.start()
        try:
            energy_curve([sentence] * sentences, embeddings, layers=1)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(1)  # what is imported and cached on first use
    assert peak(100) - peak(10) < 90 * 200 * 8


def test_progress(embeddings: dict[str, np.ndarray]) -> None:
    calls: list[tuple[int, int, str]] = []
    energy_curve(SENTENCES, embeddings, samples=2, progress=lambda *call: calls.append(call))
    assert calls == [(1, 2, "sentences"), (2, 2, "sentences")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 0}, "^layers: .* at least 1, got 0"),
        ({"samples": 0}, "^samples: .* at least 1, got 0"),
        ({"max_words": 0}, "^max_words: .* at least 1, got 0"),
        ({"seed": -1}, "^seed: .* at least 0, got -1"),
        ({"rho": refimpl.Rho("root", np.sqrt, lambda z: np.divide(0.5, np.sqrt(z)))}, "^rho: expected a finite slope"),
    ],
)
def test_bad_options(embeddings: dict[str, np.ndarray], options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        energy_curve(SENTENCES, embeddings, **options)  # type: ignore[arg-type]


def test_nothing_to_average(embeddings: dict[str, np.ndarray]) -> None:
    for sentences in ([], [""], ["x y z"]):
        with pytest.raises(ValueError, match=r"^sentences: expected at least one word that has a vector"):
            energy_curve(sentences, embeddings)
    with pytest.raises(ValueError, match=r"^sentences: "):
        energy_curve(SENTENCES, {})


def test_energies_that_overflow(embeddings: dict[str, np.ndarray]) -> None:
    huge = {word: vector * 1e200 for word, vector in embeddings.items()}
    with pytest.raises(ValueError, match=r"finite energies, got .*inf.* for sentence 0"):
        energy_curve(SENTENCES, huge)


# ------------------------------------------------------------------------------------------------ rises


def raising(monkeypatch: pytest.MonkeyPatch, alpha: float) -> None:
    """Plant a fault: the feed-forward step is taken with another step size."""
    step = refimpl.FeedForwardEnergy.step
    monkeypatch.setattr(refimpl.FeedForwardEnergy, "step", lambda self, Y, _=1.0: step(self, Y, alpha))


@pytest.mark.parametrize("relu", [True, False])
def test_a_step_that_is_too_long_is_seen(
    embeddings: dict[str, np.ndarray], relu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert energy_curve(SENTENCES, embeddings, relu=relu).monotone_fraction == 1
    assert energy_curve(SENTENCES, embeddings, relu=relu).first_increase is None
    raising(monkeypatch, 3.0)
    curve = energy_curve(SENTENCES, embeddings, relu=relu)
    assert curve.monotone_fraction < 1
    assert curve.first_increase is not None
    assert curve.first_increase.amount > curve.first_increase.rounding > 0
    assert curve.as_dict()["first_increase"] == curve.first_increase.layer
    # it is the largest rise of the first layer that has one
    alone = np.array([energy_curve([sentence], embeddings, relu=relu).mean_energy for sentence in SENTENCES])
    rises = np.diff(alone, axis=1)
    layer = int(np.argmax((rises > 1e-9).any(axis=0)))
    assert curve.first_increase.layer == layer + 1
    assert curve.first_increase.sentence == np.argmax(rises[:, layer])
    assert curve.first_increase.amount == pytest.approx(rises[:, layer].max())
    assert curve.monotone_fraction == pytest.approx((rises <= 1e-9).all(axis=1).mean())


def test_an_unchanged_energy_is_no_rise(embeddings: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that only rename the tokens change the energy by rounding alone; a rise of 1e-9 is not rounding."""

    def planted(scale: float) -> None:
        def permuted(self: refimpl.UnfoldedTransformer, Y: np.ndarray) -> refimpl.Trajectory:
            generator = np.random.default_rng(0)
            layers = [Y * (1 + scale * at) for at in range(self.depth + 1)]
            tokens = np.stack([generator.permutation(layer) for layer in layers])
            energy = np.array([self.value(layer) for layer in tokens])
            return refimpl.Trajectory(tokens, energy, {})

        monkeypatch.setattr(refimpl.UnfoldedTransformer, "forward", permuted)

    sentences = [" ".join(np.random.default_rng(i).choice(list("abcde"), 40)) for i in range(10)]
    planted(0.0)
    curve = energy_curve(sentences, embeddings, layers=30, relu=False)
    assert curve.monotone_fraction == 1
    assert np.diff(curve.mean_energy).any()  # rounding did happen
    planted(1e-9)
    assert energy_curve(sentences, embeddings, layers=30, relu=False).monotone_fraction < 1


@pytest.mark.parametrize("rho", ["exp", "log2", "linear", "geman_mcclure"])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_the_rounding_bound_holds_and_is_not_idle(rho: str, scale: float) -> None:
    """Against 50 digits: the error is below the bound, and the bound is below 1e-12 of the terms."""
    generator = np.random.default_rng(1)
    attention, feedforward = random_terms(5, rho, False, generator)
    Y = scale * generator.normal(size=(7, 5))
    assert attention.W is not None
    value, _ = attention.rho.literal("mpmath")
    with mpmath.workdps(50):
        rows, W, Wf, B = (
            mpmath.matrix(array.tolist()) for array in (Y, attention.W, feedforward.Wf, feedforward.B[None])
        )
        U, V = rows * W, rows * Wf
        exact, terms = mpmath.mpf(0), mpmath.mpf(0)
        for i in range(7):
            for j in range(i):
                term = value(sum((U[i, a] - U[j, a]) ** 2 for a in range(5)) / 2)
                exact, terms = exact + term, terms + abs(term)
            for a in range(5):
                # only the symmetric part of W_f acts; it is symmetric up to rounding here
                for term in (rows[i, a] * V[i, a] / 2, (rows[i, a] - B[0, a]) ** 2 / 2):
                    exact, terms = exact + term, terms + abs(term)
        error = abs(mpmath.mpf(float(attention.value(Y) + feedforward.value(Y))) - exact)
    bound = rounding_bound(attention, feedforward, Y)
    assert error <= bound < 1e-12 * max(1.0, float(terms))


# ------------------------------------------------------------------------------------------------ real text


@pytest.mark.skipif(not DATA.is_dir(), reason="the data sets of ../shared/data are not here")
@pytest.mark.parametrize("relu", [True, False])
def test_real_sentences(relu: bool) -> None:
    sentences = text.read_sentences(DATA / "sst2_dev.tsv")
    embeddings = text.read_embeddings(DATA / "glove6B_50d_subset.npz", text.candidates(sentences))
    curve = energy_curve(sentences, embeddings, relu=relu, samples=40)
    assert curve.samples == 40
    assert curve.empty_sentences == []
    assert curve.monotone_fraction == 1
    assert (np.diff(curve.mean_energy) < 0).all()


# ------------------------------------------------------------------------------------------------ the plot


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".SVG", b"<?xml"), (".pdf", b"%PDF")])
def test_plot(embeddings: dict[str, np.ndarray], tmp_path: Path, suffix: str, start: bytes) -> None:
    pytest.importorskip("matplotlib")
    curve = energy_curve(SENTENCES, embeddings)
    plot(curve, tmp_path / f"curve{suffix}")
    assert (tmp_path / f"curve{suffix}").read_bytes().startswith(start)
    assert [path.name for path in tmp_path.iterdir()] == [f"curve{suffix}"]


def test_a_plot_that_fails_leaves_the_old_one(
    embeddings: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    def full(self: object, path: Path, **options: object) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(Figure, "savefig", full)
    (tmp_path / "curve.png").write_bytes(b"old")
    with pytest.raises(OSError, match="No space left"):
        plot(energy_curve(SENTENCES, embeddings), tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["curve.png"]


def test_plots_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "directory.png").mkdir()
    for path, message in (
        (tmp_path / "curve.jpg", r"ends in \.png, \.svg, \.pdf, got .*curve\.jpg"),
        (tmp_path / "curve", r"ends in \.png"),
        (tmp_path / "none" / "curve.png", "existing directory, .*none is not one"),
        (tmp_path / "directory.png", "can be written"),
    ):
        with pytest.raises(ValueError, match=f"^plot: .*{message}"):
            check_plot(path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"pip install 'refimpl\[figures\]'"):
        check_plot(tmp_path / "curve.png")


# ------------------------------------------------------------------------------------------------ many documents


@pytest.fixture
def corpus(tmp_path):
    rng = np.random.default_rng(0)
    words = [f"w{i}" for i in range(30)]
    lines = [" ".join(rng.choice(words, rng.integers(1, 12))) for _ in range(12)]
    (tmp_path / "lines.tsv").write_text("\n".join(["sentence", *lines]) + "\n")
    np.savez(tmp_path / "words.npz", words=np.array(words), vectors=rng.standard_normal((30, 5)))
    files = ["--sentences", str(tmp_path / "lines.tsv"), "--embeddings", str(tmp_path / "words.npz")]
    return ["curve", *files, "--layers", "3", "--json"]


def test_the_numbers_do_not_depend_on_the_jobs(corpus, capfd):
    pytest.importorskip("joblib")
    outputs = []
    for jobs in ("1", "2", "-1"):
        assert cli.main([*corpus, "--jobs", jobs]) == 0
        outputs.append(capfd.readouterr().out)
    assert outputs[0] == outputs[1] == outputs[2]


@pytest.mark.filterwarnings("ignore")  # of Dask's own shutdown
def test_a_dask_cluster_gives_the_same_numbers(corpus, capfd):
    pytest.importorskip("joblib")
    distributed = pytest.importorskip("dask.distributed", reason="dask is not installed")
    assert cli.main(corpus) == 0
    expected = capfd.readouterr().out
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        assert cli.main([*corpus, "--dask", cluster.scheduler_address]) == 0
    assert capfd.readouterr().out.splitlines()[-1] == expected.strip()


@pytest.mark.parametrize("jobs", ["0", "-2", "two"])
def test_jobs_are_a_count(corpus, capsys, jobs):
    assert cli.main([*corpus, "--jobs", jobs]) == 2
    assert "jobs" in capsys.readouterr().err


def test_a_rise_is_found_by_any_number_of_jobs():
    """A penalty whose step can rise: what a job finds comes back to the report."""
    pytest.importorskip("joblib")
    rng = np.random.default_rng(0)
    embeddings = {f"w{i}": 5 * rng.standard_normal(2) for i in range(40)}
    sentences = [" ".join(rng.choice(list(embeddings), 3)) for _ in range(20)]
    alone, two = (
        energy_curve(sentences, embeddings, layers=2, rho="1 - cos(z)", relu=False, jobs=jobs) for jobs in (1, 2)
    )
    assert alone.first_increase is not None
    assert alone.first_increase == two.first_increase
    assert alone.monotone_fraction == two.monotone_fraction < 1
