"""What the attention of a penalty is like, in numbers and as a picture."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

import refimpl
from refimpl import rhoplot
from refimpl.claims import derive
from refimpl.kernel import cloud, describe, line
from refimpl.rho import PENALTIES

get = refimpl.get_rho


def as_functions(name: str) -> refimpl.Rho:
    rho = get(name)
    return refimpl.Rho(name, rho.value, rho.derivative)


def attended(slope, tokens) -> tuple[float, float]:
    """(effective tokens, share on z > 2), by loops over Python numbers."""
    counts, shares = [], []
    for u in tokens:
        distances = [math.dist(u, v) ** 2 / 2 for v in tokens]
        weights = [slope(z) for z in distances]
        row = [w / math.fsum(weights) for w in weights]
        counts.append(math.exp(-math.fsum(a * math.log(a) for a in row if a > 0)))
        shares.append(math.fsum(a for a, z in zip(row, distances, strict=True) if z > 2 + 1e-12))
    return math.fsum(counts) / len(counts), math.fsum(shares) / len(shares)


# ------------------------------------------------------------------------------------------------ the numbers


def test_tokens() -> None:
    assert line().shape == (33, 1)
    assert line()[:, 0].tolist() == [-4 + k / 4 for k in range(33)]
    tokens = cloud()
    assert tokens.shape == (64, 2)
    np.testing.assert_allclose(tokens.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(tokens.std(axis=0), 1, rtol=0.02)
    assert len(set(tokens[:, 0])) == len(set(tokens[:, 1])) == 64
    np.testing.assert_array_equal(tokens, cloud())


SLOPES = {
    "exp": lambda z: math.exp(-z),
    "log2": lambda z: 1 / (z + 2),
    "log1p": lambda z: 1 / (z + 1),
    "sqrt": lambda z: 0.5 / math.sqrt(z + 1),
    "geman_mcclure": lambda z: 1 / (z + 1) ** 2,
    "linear": lambda z: 1.0,
    "epanechnikov": lambda z: max(1 - z, 0.0),
    "truncated": lambda z: float(z < 1),
}


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("tokens", [line, cloud])
def test_attention(name: str, tokens) -> None:
    report = describe(get(name))
    for found, slope in ((report, SLOPES[name]), (report["softmax"], SLOPES["exp"])):
        count, share = attended(slope, tokens().tolist())
        row = found[tokens.__name__]
        assert row["effective_tokens"] == pytest.approx(count, rel=1e-12)
        assert row["dissimilar_share"] == pytest.approx(share, rel=1e-12, abs=1e-15)
        assert row["reason"] is None


@pytest.mark.parametrize(
    ("name", "half_width", "kind", "value"),
    [
        ("exp", math.log(2), "exponential", 1),
        ("log2", 2, "power", 1),
        ("log1p", 1, "power", 1),
        ("sqrt", 3, "power", 0.5),
        ("geman_mcclure", math.sqrt(2) - 1, "power", 2),
        ("linear", None, "constant", 1),
        ("epanechnikov", 0.5, "compact", 1),
        ("truncated", 1, "compact", 1),
        ("-exp(-3*z)", math.log(2) / 3, "exponential", 3),
        ("-exp(-z/1000)", 1000 * math.log(2), "exponential", 0.001),
        ("tanh(z)", math.acosh(math.sqrt(2)), "exponential", 2),
        ("1 - (1 + z)**-40", 2 ** (1 / 41) - 1, "power", 41),
        ("2*z + log(1 + z)", None, "constant", 2),
        ("where(z < 2, z - z**2/4, 1)", 1, "compact", 2),
        ("erf(z)", math.sqrt(math.log(2)), "faster than exponential", None),
        ("exp(z) - 1", None, "growing", None),
        ("z*log(z + 2)", None, "growing", None),
    ],
)
@pytest.mark.parametrize("known", ["formula", "functions"])
def test_half_width_and_tail(name: str, half_width: float | None, kind: str, value: float | None, known: str) -> None:
    report = describe(get(name) if known == "formula" else as_functions(name))
    assert report["half_width"] == (half_width and pytest.approx(half_width, rel=1e-12))
    assert report["tail"]["kind"] == kind
    assert report["tail"]["value"] == (value and pytest.approx(value, rel=1e-15 if known == "formula" else 1e-3))
    assert report["tail"]["method"].startswith("limits by SymPy" if known == "formula" else "sampled")


def test_tails_that_only_the_formula_shows() -> None:
    stretched = "-exp(-sqrt(z + 1))"
    assert describe(get(stretched))["tail"]["kind"] == "between power and exponential"
    assert describe(as_functions(stretched))["tail"]["kind"] == "unclear"
    slow = describe(get("log(1 + log(1 + z))"))["tail"]  # ρ' is z^(−1) / log z
    assert (slow["kind"], slow["value"]) == ("power", 1)


def test_kernel_values() -> None:
    report = describe(get("log(z + 2)"))
    assert report["z"] == [0.5, 1, 2, 4, 8]
    assert report["kernel"] == pytest.approx([2 / (z + 2) for z in report["z"]], rel=1e-15)
    assert report["softmax"]["kernel"] == pytest.approx([math.exp(-z) for z in report["z"]], rel=1e-15)
    assert report["slope_at_zero"] == 0.5
    assert "1.87 times as many (26.5, softmax 14.2)" in report["text"][2]


def test_scaling_rho_changes_nothing_but_the_slope() -> None:
    one, other = describe(get("log(1 + z)")), describe(get("1000 * log(1 + z) - 7"))
    assert other.pop("slope_at_zero") == pytest.approx(1000 * one.pop("slope_at_zero"))
    for key in ("half_width", "tail", "kernel"):
        assert other[key] == pytest.approx(one[key]) if key != "tail" else other[key] == one[key]
    assert other["line"]["effective_tokens"] == pytest.approx(one["line"]["effective_tokens"])


@pytest.mark.parametrize(
    ("name", "reason"),
    [("1 - cos(z)", "negative"), ("cos(z) - 1", "negative"), ("-z", "slope at 0"), ("sqrt(z)", "slope at 0")],
)
def test_no_attention_to_speak_of(name: str, reason: str) -> None:
    report = describe(get(name))
    assert report["kernel"] is report["half_width"] is None
    assert report["reason"].startswith("rho'(0) = ")
    for row in (report["line"], report["cloud"]):
        assert row["effective_tokens"] is row["dissimilar_share"] is None
        assert reason in row["reason"]
    json.dumps(report, allow_nan=False)


def test_no_attention_to_itself() -> None:
    report = describe(get("z**2"))
    assert report["kernel"] is None
    assert report["text"][0] == "kernel: rho'(0) = 0, so there is no rho'(z) / rho'(0)"
    assert report["line"]["dissimilar_share"] == pytest.approx(attended(lambda z: z, line().tolist())[1])


@pytest.mark.parametrize("name", [*PENALTIES, "1 - cos(z)", "exp(z) - 1", "z**2", "-exp(-z**2)", "log(z - 1)", "1/z"])
def test_json(name: str) -> None:
    report = describe(get(name))
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert len(report["text"]) == 4
    assert all("\n" not in text and text.isascii() for text in report["text"])


# a penalty whose derivative is not that of its formula
def test_planted_faults_show() -> None:
    exp = get("exp")
    steep = refimpl.Rho("steep", exp.value, lambda z: np.exp(-2 * z), formula=exp.formula)
    report = describe(steep)
    assert report["half_width"] == pytest.approx(math.log(2) / 2)
    assert report["line"]["effective_tokens"] < 0.75 * report["softmax"]["line"]["effective_tokens"]
    assert report["tail"]["kind"] == "unclear"
    assert report["tail"]["method"] == "the formula says exponential, rate 1, its functions exponential, rate 2"
    assert describe(refimpl.Rho("scaled", exp.value, lambda z: 7 * np.exp(-z)))["slope_at_zero"] == 7
    heavy = refimpl.Rho("heavy", exp.value, lambda z: np.where(z < 50, np.exp(-z), 1e-30), formula=exp.formula)
    assert describe(heavy)["tail"]["kind"] == "unclear"


# ------------------------------------------------------------------------------------------------ the picture


def test_measure() -> None:
    numbers = rhoplot.measure(get("log1p"))
    z = np.arange(161) / 20
    np.testing.assert_allclose(numbers["penalty"], np.log(1 + z), atol=1e-15)
    np.testing.assert_allclose(numbers["kernel"], 1 / (1 + z), rtol=1e-14)
    weights = [1 / (1 + (k / 4) ** 2 / 2) for k in range(-16, 17)]
    np.testing.assert_allclose(numbers["row"], np.array(weights) / sum(weights), rtol=1e-13)
    assert numbers["rises"] == []
    assert len(numbers["energy"]) == 31
    assert numbers["energy"][0] == 1
    y = [k / 4 for k in range(-16, 17)]
    energies = []
    for _ in range(2):
        energies.append(sum(math.log(1 + (u - v) ** 2 / 2) for i, u in enumerate(y) for v in y[:i]))
        rows = [[1 / (1 + (u - v) ** 2 / 2) for v in y] for u in y]
        y = [sum(w * v for w, v in zip(row, y, strict=True)) / sum(row) for row in rows]
    assert numbers["energy"][1] == pytest.approx(energies[1] / energies[0], rel=1e-12)


@pytest.mark.parametrize("name", PENALTIES)
def test_shipped_penalties_never_rise(name: str) -> None:
    numbers = rhoplot.measure(get(name))
    assert numbers["rises"] == []
    assert -1e-12 < min(numbers["energy"]) <= max(numbers["energy"]) == 1


def test_rises_are_found() -> None:
    for name in ("1 - cos(z)", "exp(z) - 1"):
        numbers = rhoplot.measure(get(name))
        assert numbers["rises"]
        for step in range(1, 31):
            gap = numbers["energy"][step] - numbers["energy"][step - 1]
            assert (step in numbers["rises"]) == (gap > 1e-9)
    # the picture shows what the functions do, not what the formula says: a step that points away from the others
    wrong = refimpl.Rho("wrong", get("exp").value, lambda z: np.cos(3 * z), formula="-exp(-z)")
    assert rhoplot.measure(wrong)["rises"]


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_plot(tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"picture{suffix}"
    penalties = [get("exp"), get("1 - cos(z)"), refimpl.Rho("a $ and a \\ " + "x" * 99, lambda z: z, np.ones_like)]
    report = rhoplot.plot(penalties, out)
    assert [path.name for path in tmp_path.iterdir()] == [out.name]
    assert out.stat().st_size > 5000
    assert report["plot"] == str(out)
    assert report["penalties"] == [rhoplot.measure(rho) for rho in penalties]
    assert report["tokens"] == line()[:, 0].tolist()
    json.dumps(report, allow_nan=False)


@pytest.mark.parametrize("names", [list(PENALTIES), ["0*z", "z**9", "exp(z**2/1000)", "sin(z) + z/1e9", "exp(z) - 1"]])
def test_plot_of_many(tmp_path: Path, names: list[str]) -> None:
    report = rhoplot.plot([get(name) for name in names], tmp_path / "picture.svg")
    assert [numbers["name"] for numbers in report["penalties"]] == names


def test_the_picture_tells_rises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib.figure

    drawn = []
    save = matplotlib.figure.Figure.savefig
    monkeypatch.setattr(
        matplotlib.figure.Figure, "savefig", lambda figure, *a, **k: (drawn.append(figure), save(figure, *a, **k))
    )
    report = rhoplot.plot([get("exp"), get("1 - cos(z)")], tmp_path / "picture.png")
    (figure,) = drawn
    rises = report["penalties"][1]["rises"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "exp",
        f"1 - cos(z) (rises at {len(rises)} of 30 steps)",
    ]
    assert all(axes.get_xlabel() and axes.get_ylabel() and axes.get_title() for axes in figure.axes)
    rings = [curve for curve in figure.axes[3].lines if curve.get_linestyle() == "None"]
    assert [curve.get_xdata().tolist() for curve in rings] == [rises]
    for axes in figure.axes:  # in grey: each line with its own dashes and marker
        lines = [(curve.get_marker(), curve._dash_pattern) for curve in axes.lines if curve not in rings]
        assert len({marker for marker, _ in lines}) == len({str(dash) for _, dash in lines}) == 2
    below = figure.legends[0].get_window_extent().y1
    assert all(below <= axes.get_window_extent().y0 for axes in figure.axes)


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib.figure

    def fail(self, path, **_):
        Path(path).write_text("half")
        raise OSError("disk full")

    out = tmp_path / "picture.png"
    out.write_text("old")
    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        rhoplot.plot([get("exp")], out)
    assert [path.name for path in tmp_path.iterdir()] == ["picture.png"]
    assert out.read_text() == "old"


def test_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused) -> None:
    out = tmp_path / "picture.png"
    for count in (0, 9):
        with refused(ValueError, f"plot: expected 1 to 8 penalties, got {count}"):
            rhoplot.plot([get("exp")] * count, out)
    with refused(ValueError, r"plot: expected a file that ends in \.png"):
        rhoplot.plot([get("exp")], tmp_path / "picture.jpg")
    with refused(ValueError, "plot: expected a file in an existing directory"):
        rhoplot.plot([get("exp")], tmp_path / "no" / "picture.png")
    with refused(ValueError, "rho: expected a finite slope at 0 that is not negative, 'sqrt"):
        rhoplot.plot([get("exp"), get("sqrt(z)")], out)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with refused(ValueError, r"plot: matplotlib is needed, run: pip install 'refimpl\[figures\]'"):
        rhoplot.plot([get("exp")], out)
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------------------------ the notebook


def test_notebook(capsys: pytest.CaptureFixture[str]) -> None:
    """It supports claims of other notebooks, so that ``refimpl verify`` does not run it."""
    discharged = derive.execute(derive.folder() / "05_penalties.md")
    assert set(discharged) == {"attention.half_quadratic", "attention.sufficient_decrease", "rho.bernstein"}
    assert "-exp(-z**2): from -6 to -5.70581" in capsys.readouterr().out
