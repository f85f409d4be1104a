"""``derived`` accepts what is identically true and nothing else; the notebooks run, and discharge what they should."""

import functools
import traceback
from pathlib import Path

import numpy as np
import pytest
import sympy as sp
from sympy import Rational

from refimpl.claims import DerivationError, all_claims, derive, derived

x, y = sp.symbols("x y", real=True)
p, q = sp.symbols("p q", positive=True)
c = sp.Symbol("c")
a = sp.Symbol("a", nonnegative=True)
rho, f, g = sp.symbols("rho f g", cls=sp.Function)
g2 = sp.Function("g")(x, y)
slope = sp.Subs(sp.Derivative(rho(c), c), c, x**2 / 2)  # ρ' at ½ x²
Y = sp.Matrix(2, 2, sp.symbols("y:4", real=True))
W = sp.Matrix(2, 2, sp.symbols("w:4", real=True))

TRUE = {
    "numbers": (Rational(1, 2) + Rational(1, 3), Rational(5, 6), 1),
    "Python integers": (2 + 2, 4, 1),
    "polynomial": ((x + y) ** 2, x**2 + 2 * x * y + y**2, 1),
    "fraction": (1 / (1 + x) + 1 / (1 - x), 2 / (1 - x**2), 1),
    "trigonometric": (sp.sin(x) ** 2 + sp.cos(x) ** 2, 1, 1),
    "exponential": (sp.exp(-((x - y) ** 2) / 2), sp.exp(-(x**2) / 2) * sp.exp(-(y**2) / 2) * sp.exp(x * y), 1),
    "root of a square, nonnegative": (sp.sqrt(a**2), a, 1),
    "root of a square, real": (sp.sqrt(x**2), sp.Abs(x), 1),
    "logarithm of a product, positive": (sp.log(p * q), sp.log(p) + sp.log(q), 1),
    "integral to be done": (sp.Integral(x**2, (x, 0, 1)), Rational(1, 3), 1),
    "derivative to be done": (sp.Derivative(sp.exp(x * y), x), y * sp.exp(x * y), 1),
    "matrices": ((Y * W).T, W.T * Y.T, 4),
    "matrix and rows": (sp.eye(2), [[1, 0], (0, 1)], 4),
    "array and rows": (np.array([[1, 2]]), [[1, 2]], 2),
    "ragged rows": ([[x + x], [y, [x * x]]], [[2 * x], [y, [x**2]]], 3),
    "chain rule": (sp.diff(rho(x**2 / 2), x), x * slope, 1),
    "chain rule twice": (
        sp.diff(rho(x**2 / 2), x, 2),
        slope + x**2 * sp.Subs(sp.Derivative(rho(c), (c, 2)), c, x**2 / 2),
        1,
    ),
    "product rule": (sp.diff(f(x) * g(x), x), f(x) * g(x).diff(x) + g(x) * f(x).diff(x), 1),
    "function of two numbers": (sp.diff(x * g2, x), g2 + x * sp.diff(g2, x), 1),
}

FALSE = {
    "numbers": (1, 2),
    "floating point": (0.1 + 0.2, 0.3),
    "off by 1e-12": (x * (1 + Rational(1, 10**12)), x),
    "off by 1e-40, which no evaluation sees": (x * (1 + Rational(1, 10**40)), x),
    "½ missing": (sp.diff(rho(x**2 / 2), x), 2 * x * slope),
    "sign": (sp.diff(sp.exp(-x), x), sp.exp(-x)),
    "at integers only": (sp.sin(sp.pi * x), 0),
    "at four points only": (x * (x - 1) * (x - 2) * (x + 1), 0),
    "inside the unit interval only": (sp.sqrt((2 - x) ** 2), 2 - x),
    "for positive numbers only: root": (sp.sqrt(x**2), x),
    "for positive numbers only: root of a product": (sp.sqrt(x * y), sp.sqrt(x) * sp.sqrt(y)),
    "for positive numbers only: logarithm": (sp.log(x * y), sp.log(x) + sp.log(y)),
    "for positive numbers only: power": ((x**2) ** Rational(3, 2), x**3),
    "for real numbers only": (sp.Abs(c) ** 2, c**2),
    "for small numbers only": (sp.log(sp.exp(c)), c),
    "except at 0": (sp.sign(x) ** 2, 1),
    "for one function only": (rho(x), x),
    "for the function of the numeric check only": (rho(x), sp.log(x + 2) + x / (x + 3)),
    "for even functions only": (rho(x), rho(-x)),
    "for linear functions only": (rho(x + y), rho(x) + rho(y)),
    "for the exponential only": (rho(x).diff(x), rho(x)),
    "for symmetric functions only": (g2, sp.Function("g")(y, x)),
    "for equal functions only": (f(x), g(x)),
    "argument of ρ'": (slope, sp.Derivative(rho(x), x)),
    "order of a matrix product": (Y * W, W * Y),
    "one entry of a matrix": (sp.eye(2), [[1, 0], [0, 1 + x]]),
    "transposed": (Y, Y.T),
    "infinite": (sp.oo, sp.oo),
    "undefined": (sp.nan, sp.nan),
    "divergent": (sp.Integral(1 / x**2, (x, -1, 1)), -2),
}

UNEQUAL_SHAPES = {
    "nothing": ([], []),
    "rows of nothing": ([[], []], [[], []]),
    "number and row": (1, [1]),
    "row and number": ([1], 1),
    "longer": ([1, 2], [1]),
    "shorter": ([1], [1, 2]),
    "row and column": ([[1, 1]], [[1], [1]]),
    "matrices": (sp.ones(2, 3), sp.ones(3, 2)),
    "one row missing": (sp.zeros(2, 2), [[0, 0]]),
    "deeper": ([[1]], [[[1]]]),
}


@pytest.fixture
def discharged(monkeypatch):
    """The register, empty for the length of a test."""
    monkeypatch.setattr(derive, "_discharged", derive.Counter())
    return derive._discharged


@pytest.mark.parametrize("name", TRUE)
def test_accepts(name, discharged):
    lhs, rhs, count = TRUE[name]
    derived("a.claim", lhs, rhs)
    assert discharged == {"a.claim": count}


@pytest.mark.parametrize(("lhs", "rhs"), [*FALSE.values(), *UNEQUAL_SHAPES.values()], ids=[*FALSE, *UNEQUAL_SHAPES])
def test_rejects(lhs, rhs, discharged):
    for sides in ((lhs, rhs), (rhs, lhs)):
        with pytest.raises(DerivationError, match=r"^a\.claim: "):
            derived("a.claim", *sides)
    assert not discharged


@pytest.mark.parametrize("value", ["x", "1", "__import__('os').abort()", None, object(), {"x": 1}])
def test_evaluates_no_text_and_nothing_else_that_is_no_expression(value, discharged):
    with pytest.raises((sp.SympifyError, TypeError)):
        derived("a.claim", value, value)
    assert not discharged


@pytest.mark.parametrize("assumption", ["positive", "nonnegative", "negative", "nonpositive", "real", "integer"])
def test_points_respect_the_assumptions(assumption, monkeypatch):
    """An identity of the symbols' domain is not refuted outside it."""
    s = sp.Symbol("s", **{assumption: True})
    outside = {"positive": s <= 0, "nonnegative": s < 0, "negative": s >= 0, "nonpositive": s > 0, "real": s < -(10**9)}
    if assumption == "integer":
        lhs, rhs = (-1) ** (s**2 + s), 1
    else:
        lhs, rhs = sp.Piecewise((s + 1, outside[assumption]), (s, True)), s
    monkeypatch.setattr(derive, "_simplifies_to_zero", lambda difference: True)
    derived("a.claim", lhs, rhs)


@pytest.mark.parametrize("name", ["off by 1e-12", "½ missing", "at integers only", "for one function only"])
def test_a_simplifier_that_is_wrong_is_not_enough(name, monkeypatch):
    monkeypatch.setattr(derive, "_simplifies_to_zero", lambda difference: True)
    with pytest.raises(DerivationError, match="lhs - rhs is"):
        derived("a.claim", *FALSE[name])


@pytest.mark.parametrize("name", [name for name in FALSE if name not in ("infinite", "undefined", "divergent")])
def test_numbers_that_agree_are_not_enough(name, monkeypatch):
    monkeypatch.setattr(derive, "_refute_numerically", lambda *args: None)
    with pytest.raises(DerivationError):
        derived("a.claim", *FALSE[name])


def test_one_false_entry_discharges_nothing(discharged):
    with pytest.raises(DerivationError):
        derived("a.claim", [1, 2, 3], [1, 2, 4])
    assert not discharged


# ------------------------------------------------------------------------------------------------ notebooks

CELL = "```{{code-cell}}{}\n{}```\n"


@pytest.mark.parametrize(
    ("text", "cells"),
    [
        ("", []),
        ("# Title\n\nProse with `code`, ``more `code` `` and $x$.\n", []),
        ("```python\nnot_a_cell()\n```\n", []),
        ("```{note}\nnot a cell\n```\n", []),
        ("Inline ```{code-cell} is``` no cell.\n", []),
        (CELL.format(" ipython3", "a = 1\n"), ["a = 1\n"]),
        (CELL.format("", "a = 1\n\n\nb = 2\n"), ["a = 1\n\n\nb = 2\n"]),
        (CELL.format(" ipython3", ""), [""]),
        (CELL.format(" ipython3", ":tags: [hide-input]\n:name: first\n\na = 1\n"), ["\na = 1\n"]),
        (CELL.format(" ipython3", "a = 1\n:not_an_option\n"), ["a = 1\n:not_an_option\n"]),
        (CELL.format(" ipython3", "a = '``` inside a line'\n"), ["a = '``` inside a line'\n"]),
        (CELL.format("", "a\n") + "\nProse ```x```.\n\n```python\nb\n```\n\n" + CELL.format("", "c\n"), ["a\n", "c\n"]),
        ("````markdown\n" + CELL.format(" ipython3", "shown, not run\n") + "````\n", []),
    ],
)
def test_code_cells(text, cells):
    assert derive.code_cells(text) == cells


@pytest.mark.parametrize(
    "text",
    [
        "```{code-cell} ipython3\n1 / 0\n",  # never closed
        "````{code-cell} ipython3\n1 / 0\n````\n",  # a longer fence
        "~~~{code-cell} ipython3\n1 / 0\n~~~\n",
        "  ```{code-cell} ipython3\n  1 / 0\n  ```\n",
        "```{code-cell}   \n1 / 0\n```   \n",
        "```{code-cell} ipython3\r\n1 / 0\r\n```\r\n",
    ],
)
def test_a_cell_is_run_or_refused_but_never_skipped(text, tmp_path):
    notebook = tmp_path / "notebook.md"
    notebook.write_bytes(text.encode())
    with pytest.raises((ZeroDivisionError, SyntaxError, ValueError)):
        derive.execute(notebook)


@pytest.fixture
def write(tmp_path):
    """``write(name, *cells)``: a notebook of these cells."""

    def notebook(name, *cells):
        path = tmp_path / name
        path.write_text("\nProse.\n\n".join(CELL.format(" ipython3", cell + "\n") for cell in cells), encoding="utf-8")
        return path

    return notebook


def test_execute_counts_identities(write):
    first = write(
        "first.md",
        "from refimpl.claims import derived",
        "derived('a.one', 1, 1)\nderived('a.two', [1, 2, 3], [1, 2, 3])",
        "derived('a.one', [[1, 2]], [[1, 2]])",
    )
    assert derive.execute(first) == {"a.one": 3, "a.two": 3}
    assert derive.execute(first) == {"a.one": 3, "a.two": 3}
    assert derive.execute(write("none.md", "x = 1")) == {}
    assert derive.execute(write("empty.md")) == {}


def test_cells_share_names_and_notebooks_do_not(write):
    derive.execute(write("first.md", "x = 1", "x += 1\nassert x == 2\nassert __name__ == 'first'"))
    with pytest.raises(NameError):
        derive.execute(write("second.md", "x"))


@pytest.mark.parametrize("cell", ["1 / 0", "raise SystemExit", "derived('a.one', 1, 2)"])
def test_a_notebook_that_raises_says_where_and_leaves_nothing(cell, write):
    start = "from refimpl.claims import derived\nderived('a.one', 1, 1)"
    with pytest.raises((ZeroDivisionError, SystemExit, DerivationError)) as caught:
        derive.execute(write("broken.md", start, cell))
    assert "broken.md, cell 2" in [frame.filename for frame in traceback.extract_tb(caught.tb)]
    assert derive.execute(write("sound.md", "from refimpl.claims import derived\nderived('a.two', 1, 1)")) == {
        "a.two": 1
    }


def test_folder(tmp_path, monkeypatch):
    # the installed copy or the checkout's: the same notebooks
    notebooks, here = derive.folder(), Path(__file__).parent.parent / "derivations"
    assert {p.name: p.read_bytes() for p in notebooks.glob("*.md")} == {
        p.name: p.read_bytes() for p in here.glob("*.md")
    }
    package = tmp_path / "refimpl"
    monkeypatch.setattr(derive, "__file__", str(package / "claims" / "derive.py"))
    with pytest.raises(FileNotFoundError, match="derivations"):
        derive.folder()
    for folder in (tmp_path / "derivations", package / "derivations"):  # a checkout, then an installed package
        folder.mkdir(parents=True)
        (folder / "01.md").touch()
        assert derive.folder() == folder


NOTEBOOKS = sorted(path.name for path in (Path(__file__).parent.parent / "derivations").glob("*.md"))
executed = functools.cache(lambda name: derive.execute(derive.folder() / name))


def test_every_claim_names_a_notebook_that_exists():
    assert NOTEBOOKS, "the glob finds no notebook"
    assert {claim.notebook for claim in all_claims().values()} <= set(NOTEBOOKS)


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_a_notebook_discharges_its_claims_and_no_others(notebook):
    claims = all_claims()
    named = {claim.id for claim in claims.values() if claim.notebook == notebook}
    identities = executed(notebook)
    assert all(identities.values())
    if named:
        assert set(identities) == named
    else:  # a notebook on something else may use what the others have derived
        assert set(identities) <= set(claims)
