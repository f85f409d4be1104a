"""Training: the gradient by two routes, resume to the same bits, the constraint, what is reported."""

import dataclasses
import importlib.util
import json
import pickle

import numpy as np
import pytest

from refimpl import certificates, cli
from refimpl.curve import rounding_bound
from refimpl.experiments import train as training
from refimpl.experiments.train import Parameters, Setting, constrained, evaluate, loss_and_gradient, start, train

SMALL = Setting(layers=3, steps=20, rate=0.05, relu=True, seed=1)


def documents(count=6, d=4, seed=0):
    rng = np.random.default_rng(seed)
    labels = [i % 2 for i in range(count)]
    return [rng.standard_normal((3 + i % 3, d)) + 2.0 * label - 1 for i, label in enumerate(labels)], labels


def moved(parameters, direction, by):
    return Parameters(**{name: array + by * direction[name] for name, array in vars(parameters).items()})


# ------------------------------------------------------------------------------------------------ the gradient


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("rho", ["exp", "log2", "sqrt"])
def test_the_gradient_is_the_slope_of_the_loss(relu, rho):
    setting = dataclasses.replace(SMALL, relu=relu, rho=rho)
    rng = np.random.default_rng(3)
    parameters = start(4, 2, setting)
    Y = training.tokens(rng.standard_normal((5, 4)), relu)
    _, gradient = loss_and_gradient(parameters, Y, 1, setting)
    for name in training.PARAMETERS:
        direction = {key: rng.standard_normal(array.shape) * (key == name) for key, array in vars(parameters).items()}
        if name == "Wf":
            direction[name] = direction[name] + direction[name].T
        h = 1e-5
        ahead, behind = (loss_and_gradient(moved(parameters, direction, by), Y, 1, setting)[0] for by in (h, -h))
        slope = float((getattr(gradient, name) * direction[name]).sum())
        # h² times the third derivative, and the rounding of the loss over h
        assert (ahead - behind) / (2 * h) == pytest.approx(slope, abs=1e-8, rel=1e-7)


@pytest.mark.parametrize("relu", [True, False])
def test_the_gradient_is_that_of_torch(relu):
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    import torch

    setting = dataclasses.replace(SMALL, relu=relu)
    parameters = start(4, 2, setting)
    Y = training.tokens(np.random.default_rng(4).standard_normal((6, 4)), relu)
    loss, gradient = loss_and_gradient(parameters, Y, 0, setting)
    W, Wf, B, R, c = (torch.tensor(getattr(parameters, name), requires_grad=True) for name in training.PARAMETERS)
    tokens = torch.tensor(Y)
    for _ in range(setting.layers):
        U = tokens @ W
        tokens = torch.softmax(U @ U.T - 0.5 * (U * U).sum(dim=1), dim=1) @ tokens
        tokens = B - tokens @ (Wf + Wf.T) / 2
        tokens = torch.relu(tokens) if relu else tokens
    expected = torch.nn.functional.cross_entropy((tokens.mean(dim=0) @ R + c)[None], torch.tensor([0]))
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-12)
    for name, leaf in zip(training.PARAMETERS, (W, Wf, B, R, c), strict=True):
        assert np.allclose(getattr(gradient, name), leaf.grad.numpy(), rtol=1e-11, atol=1e-14)


# ------------------------------------------------------------------------------------------------ the constraint


def test_the_constraint_is_a_projection():
    rng = np.random.default_rng(0)
    for _ in range(20):
        M = rng.standard_normal((4, 4))
        P = constrained(M)
        assert np.allclose(P, P.T)
        assert np.abs(np.linalg.eigvalsh(P)).max() <= 0.95 + 1e-14
        assert np.allclose(constrained(P), P, atol=1e-14)
        # ⟨M − P, Q − P⟩ ≤ 0 for every Q of the set: P is the nearest
        Q = constrained(rng.standard_normal((4, 4)))
        assert ((M - P) * (Q - P)).sum() <= 1e-12
    inside = np.diag([0.5, -0.9])
    assert np.allclose(constrained(inside), inside, atol=1e-15)
    assert np.allclose(constrained(np.diag([3.0, -2.0])), np.diag([0.95, -0.95]))


# ------------------------------------------------------------------------------------------------ the run


def test_the_loss_falls_and_the_classes_are_told_apart():
    words, labels = documents(20)
    setting = Setting(layers=1, steps=400, rate=0.1, relu=False)
    parameters, losses = train(words, labels, setting)
    assert np.mean(losses[-40:]) < 0.5 * np.mean(losses[:40])
    assert evaluate(parameters, words, labels, setting).accuracy == 1.0


def test_an_interrupted_run_goes_on_to_the_same_bits(tmp_path):
    words, labels = documents()
    expected, losses = train(words, labels, SMALL)

    def interrupt(done, total, label):
        if done in (7, 12):
            raise KeyboardInterrupt

    path = tmp_path / "checkpoint.npz"
    for step in (7, 12):
        with pytest.raises(KeyboardInterrupt, match=f"{step} of 20 steps are in .*checkpoint.npz; the same command"):
            train(words, labels, SMALL, checkpoint=path, every=5, progress=interrupt)
        interrupt = lambda done, total, label: (_ for _ in ()).throw(KeyboardInterrupt) if done == 12 else None  # noqa: E731
    done = []
    resumed, again = train(words, labels, SMALL, checkpoint=path, progress=lambda *told: done.append(told[0]))
    assert done == list(range(13, 21))
    assert again == losses
    for name in training.PARAMETERS:
        assert np.array_equal(getattr(resumed, name), getattr(expected, name))
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint.npz"]


@pytest.mark.parametrize("inside", ["loss_and_gradient", "constrained", "write_checkpoint"])
def test_an_interrupt_within_a_step_keeps_whole_steps(tmp_path, monkeypatch, inside):
    words, labels = documents()
    expected, losses = train(words, labels, SMALL)
    original, calls = getattr(training, inside), []

    def interrupted(*given):
        calls.append(None)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*given)

    path = tmp_path / "checkpoint.npz"
    monkeypatch.setattr(training, inside, interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(words, labels, SMALL, checkpoint=path, every=2)
    resumed, again = train(words, labels, SMALL, checkpoint=path)
    assert again == losses
    for name in training.PARAMETERS:
        assert np.array_equal(getattr(resumed, name), getattr(expected, name))


@pytest.mark.parametrize("change", [{"layers": 2}, {"rate": 0.1}, {"rho": "log2"}, {"relu": False}, {"seed": 2}])
def test_a_checkpoint_of_another_run_is_refused(tmp_path, change, refused):
    words, labels = documents()
    path = tmp_path / "checkpoint.npz"
    train(words, labels, SMALL, checkpoint=path)
    (name,) = change
    with refused(ValueError, f"checkpoint: .* is of a run with {name} = "):
        train(words, labels, dataclasses.replace(SMALL, **change), checkpoint=path)
    for other in ((words[:5], labels[:5]), (words, labels[::-1]), ([2 * Y for Y in words], labels)):
        with refused(ValueError, "checkpoint: .* is of a run on other sentences, labels or word vectors"):
            train(*other, SMALL, checkpoint=path)


def test_more_steps_may_be_asked_of_a_run(tmp_path):
    words, labels = documents()
    path = tmp_path / "checkpoint.npz"
    train(words, labels, dataclasses.replace(SMALL, steps=6), checkpoint=path)
    longer, losses = train(words, labels, SMALL, checkpoint=path)
    expected, straight = train(words, labels, SMALL)
    assert losses == straight
    assert np.array_equal(longer.W, expected.W)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"nothing of the kind", pickle.dumps({"W": 1})])
def test_a_damaged_checkpoint_is_refused(tmp_path, content, refused):
    path = tmp_path / "checkpoint.npz"
    path.write_bytes(content)
    words, labels = documents()
    with refused(ValueError, "checkpoint: expected one that train wrote"):
        train(words, labels, SMALL, checkpoint=path)


def test_pickled_objects_are_never_loaded(tmp_path, refused):
    path = tmp_path / "checkpoint.npz"
    np.savez(path, setting=np.array([{"layers": 3}], dtype=object))
    words, labels = documents()
    with refused(ValueError, "checkpoint: expected one that train wrote"):
        train(words, labels, SMALL, checkpoint=path)


def test_divergence_names_the_step(refused):
    words, labels = documents()
    setting = Setting(layers=2, steps=50, rate=1e200, relu=False)
    with refused(ValueError, r"rate: expected one that converges, 1e\+200 does not: step \d+ overflows"):
        train(words, labels, setting)


def test_labels_and_documents_belong_together(refused):
    words, labels = documents()
    with refused(ValueError, r"labels: expected one for each of 6 sentence\(s\), got 5"):
        train(words, labels[:5], SMALL)


# ------------------------------------------------------------------------------------------------ the evaluation


def test_every_half_step_is_counted_once():
    words, labels = documents(8)
    report = evaluate(start(4, 2, SMALL), words, labels, SMALL)
    assert len(report.mean_energy) == SMALL.layers + 1
    for half in ("attention", "feedforward"):
        assert [sum(layer.values()) for layer in report.coverage[half]] == [8] * SMALL.layers
    assert set(report.holds) == {"attention_metric", "majorizer", "prox_mapping", "truncation"}
    assert 0 <= report.monotone_fraction <= 1


def test_a_rise_is_counted():
    """An attention step raises the sum where the bias pulls tokens apart that attention pulls together."""
    parameters = start(2, 2, Setting(relu=False))
    parameters = dataclasses.replace(parameters, W=np.eye(2) / 4, Wf=np.zeros((2, 2)), B=np.zeros(2))
    setting = Setting(layers=2, relu=False)
    words = [np.array([[0.0, 0.0], [0.1, 0.0], [5.0, 0.0]])]
    model = parameters.model(setting)
    Y, rises = words[0], []
    for _ in range(2):
        between = model.attention.step(Y)
        rises.append(bool(model.value(between) > model.value(Y)))
        Y = model.feedforward.step(between)
    report = evaluate(parameters, words, [0], setting)
    assert [layer["rose"] == 1 for layer in report.coverage["attention"]] == rises


def test_steps_within_rounding_are_level():
    """Tokens that coincide stay where they are in the attention half, whatever a certificate says of that."""
    parameters = start(4, 2, SMALL)
    layers = evaluate(parameters, [np.full((3, 4), 0.5)], [0], SMALL).coverage["attention"]
    assert [layer["level"] for layer in layers] == [1] * SMALL.layers


@pytest.mark.parametrize("relu", [True, False])
def test_the_certificate_along_the_step(relu):
    """It bounds the rise, holds on some steps and not on others, and wherever prox_mapping does."""
    setting, rng = dataclasses.replace(SMALL, relu=relu), np.random.default_rng(0)
    seen = {(name, held): 0 for name in ("majorizer", "prox_mapping") for held in (True, False)}
    for seed in range(100):
        model = start(4, 2, dataclasses.replace(setting, seed=seed)).model(setting)
        # tokens that attention sees as one, of which the feed-forward step makes several; or any tokens
        s = 10.0 ** rng.uniform(-2, 2) * np.array([[1.0, -1.0, 0.0, 0.0]]).T
        attention = type(model.attention)(s)
        model = dataclasses.replace(model, attention=attention)
        Y = training.tokens(rng.uniform(0.1, 3) * rng.standard_normal((9, 4)), relu)
        if seed % 2:
            Y[:, 1] = Y[:, 0]
        after = model.feedforward.step(Y)
        held = training._feedforward_certificates(attention, model.feedforward, Y, after)
        for name in ("majorizer", "prox_mapping"):
            seen[name, held[name]] += 1
        assert held["majorizer"] or not held["prox_mapping"]
        if held["majorizer"]:
            noise = sum(rounding_bound(attention, model.feedforward, point) for point in (Y, after))
            assert model.value(after) <= model.value(Y) + noise
    assert min(seen.values()) > 0


def test_nothing_is_certified_of_a_penalty_that_is_not_known_to_be_concave():
    words, labels = documents(4)
    setting = dataclasses.replace(SMALL, rho="z + z**2/10")
    report = evaluate(start(4, 2, setting), words, labels, setting)
    assert {sum(held) for held in report.holds.values()} == {0}


def test_a_guaranteed_rise_would_be_reported(monkeypatch):
    """A planted certificate that always holds, and a feed-forward step that goes the wrong way."""
    sure = certificates.Certificate(np.True_, 1.0, 1.0)
    monkeypatch.setattr(certificates, "prox_mapping", lambda *_, **__: sure)
    words, labels = documents(4)
    setting = dataclasses.replace(SMALL, relu=False)
    assert evaluate(start(4, 2, setting), words, labels, setting).coverage["feedforward"][0]["guaranteed"] == 4
    model = start(4, 2, setting).model(setting)
    step = type(model.feedforward).step
    monkeypatch.setattr(type(model.feedforward), "step", lambda self, Y, alpha=1.0: 3 * Y - 2 * step(self, Y, alpha))
    with pytest.raises(AssertionError, match="a guaranteed feedforward step rises by"):
        evaluate(start(4, 2, setting), words, labels, setting)


# ------------------------------------------------------------------------------------------------ the command


@pytest.fixture
def text(tmp_path):
    rows = ["sentence\tlabel", *["good fine film\t1", "bad poor film\t0", "a good one\t1", "a bad one\t0"] * 5]
    (tmp_path / "train.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    words = ["good", "fine", "film", "bad", "poor", "one"]
    vectors = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    np.savez(tmp_path / "words.npz", words=np.array(words), vectors=vectors)
    return tmp_path


def arguments(text, *more):
    return [
        "train",
        *("--sentences", str(text / "train.tsv"), "--embeddings", str(text / "words.npz")),
        *("--out", str(text / "run"), "--steps", "30", "--layers", "2"),
        *more,
    ]


def test_the_command_reports_before_and_after(text, capsys):
    assert cli.main(arguments(text, "--json")) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads((text / "run" / "report.json").read_text())
    assert (report["sentences"], report["held_out"], report["labels"]) == (16, 4, ["0", "1"])
    assert len(report["before"]["mean_energy"]) == 3
    assert (text / "run" / "checkpoint.npz").exists()
    assert cli.main(arguments(text)) == 0  # goes on from the end
    assert "accuracy: " in capsys.readouterr().out


def test_held_out_sentences_of_a_file(text, capsys):
    assert cli.main(arguments(text, "--test", str(text / "train.tsv"), "--samples", "3", "--no-relu", "--json")) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["sentences"], report["held_out"]) == (20, 3)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--rate", "0"], "expected a positive number, got '0'"),
        (["--rho", "sqrt(z)"], "rho: expected a finite slope at 0"),
        (["--test", "nowhere.tsv"], "nowhere.tsv does not exist"),
        (["--seed", "1", "--layers", "3"], "checkpoint: "),
    ],
)
def test_bad_input_is_one_line(text, capsys, more, says):
    if says == "checkpoint: ":
        assert cli.main(arguments(text)) == 0
        capsys.readouterr()
    assert cli.main(arguments(text, *more)) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


def test_a_column_of_labels_is_needed(text, capsys):
    (text / "train.tsv").write_text("sentence\na good film\n", encoding="utf-8")
    assert cli.main(arguments(text)) == 2
    assert "sentences: expected a column named label" in capsys.readouterr().err
