"""``refimpl rho check`` and ``refimpl activation check``: every row of the text's tables, and plain callables."""

import json
import sys

import numpy as np
import pytest

from refimpl import PENALTIES, AttentionEnergy, cli, get_rho
from refimpl.examine import examine_penalty
from refimpl.testing.search import confirm, search_descent

PROVED, REFUTED = "proved", "refuted"


@pytest.mark.parametrize("name", PENALTIES)
def test_every_shipped_penalty_is_guaranteed(name):
    report = examine_penalty(name, examples=50)
    assert report["verdict"] == "guaranteed"
    assert {report[key]["verdict"] for key in ("finite", "nondecreasing", "concave")} == {PROVED}
    assert report["bernstein"]["verdict"] == (PROVED if PENALTIES[name].bernstein else REFUTED)
    assert report["max_alpha"] == (2 if PENALTIES[name].bernstein else 1)
    assert report["descent"]["violations"] == report["weighted"]["violations"] == 0


@pytest.mark.parametrize(
    ("text", "verdict", "status", "concave"),
    [
        ("1 - cos(z)", "refuted", 1, REFUTED),
        ("exp(z) - 1", "refuted", 1, REFUTED),
        # the table of the text has "no rise in 20,000 draws" here; clusters of near duplicates show one
        ("-exp(-z**2)", "refuted", 1, REFUTED),
        ("z**2", "no violation found", 0, REFUTED),
        ("-exp(-z) + z**2/10", "no violation found", 0, REFUTED),
        ("log(z - 1)", "invalid", 2, None),
        ("1/z", "invalid", 2, None),
        ("sqrt(1 - z)", "invalid", 2, None),
        ("sqrt(z)", "invalid", 2, None),
        ("z*log(z)", "invalid", 2, None),
        ("-z", "invalid", 2, None),
        ("exp(-z)", "invalid", 2, None),
    ],
)
def test_the_table_of_penalties(text, verdict, status, concave, capsys):
    assert cli.main(["rho", "check", text, "--json", "--examples", "300"]) == status
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] == verdict
    if concave:
        assert report["concave"]["verdict"] == concave
        assert report["concave"]["witness"]
    if verdict == "invalid":
        assert report["reason"]
        assert report["descent"]["examples"] == 0


@pytest.mark.parametrize(
    "text", ["sqrt(z - 3)*sqrt(z - 3)", "0*log(z - 5) + z", "z/z", "exp(log(z))", "(z - 5)/(z - 5)*z", "sqrt(z - 3)**2"]
)
def test_what_sympy_cancels_is_still_asked_where_it_is_defined(text, capsys):
    assert cli.main(["rho", "check", text, "--json", "--examples", "10"]) == 2
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report["finite"]["verdict"] == REFUTED
    assert "undefined at z = " in report["finite"]["witness"]
    assert captured.err.startswith("refimpl: invalid: ")
    assert cli.main(["activation", "check", text.replace("z", "x"), "--json", "--examples", "10"]) == 2


@pytest.mark.parametrize("text", ["1 - cos(z)", "exp(z) - 1", "-exp(-z**2)"])
def test_a_counterexample_can_be_pasted(text, capsys):
    found = search_descent(get_rho(text), 100).counterexample
    namespace = {}
    exec(found.snippet(), namespace)
    before, after = map(float, capsys.readouterr().out.split())
    assert after > before
    assert before == pytest.approx(found.before, rel=1e-12)
    assert len(found.Y) <= 5


def test_the_cluster_that_a_far_token_pulls_apart():
    delta = 3.1622776601683795e-06
    Y = np.array([[0.0], [delta], [delta], [delta], [delta], [3.2]])
    before, after, how = confirm(get_rho("-exp(-z**2)"), Y, None, None, 1.0)
    assert how == "50-digit arithmetic"
    assert before == pytest.approx(-10, abs=1e-6)
    assert after == pytest.approx(-9.4412, abs=1e-3)


def test_a_square_rises_with_pair_weights_by_hand():
    m = [[1, 1, 0], [1, 1, 1], [0, 1, 1]]
    attention = AttentionEnergy(rho="z**2", pair_weights=m)
    Y = [[0.0], [0.0], [-1.0]]
    assert attention.value(Y) == 0.25
    assert attention.value(attention.step(Y)) == 0.5
    assert search_descent(get_rho("z**2"), 300, weighted=True).counterexample is not None


def test_nothing_is_confirmed_where_the_theorem_holds():
    rng = np.random.default_rng(0)
    for rho in PENALTIES.values():
        for _ in range(20):
            Y = np.round(rng.normal(size=(4, 2)), 2)
            assert confirm(rho, Y, None, None, 1.0) is None


def test_the_same_seed_gives_the_same_search():
    one, two = (search_descent(get_rho("-exp(-z) + z**2/10"), 200, seed=3, weighted=True).as_dict() for _ in range(2))
    assert one == two


def test_a_step_beyond_two_is_not_guaranteed():
    report = examine_penalty("exp", examples=200, alpha=3.0)
    assert report["verdict"] == "refuted"
    assert report["descent"]["counterexample"]["alpha"] == 3.0
    assert examine_penalty("exp", examples=50, alpha=2.0)["verdict"] == "guaranteed"


def test_parameters(capsys):
    assert cli.main(["rho", "check", "log(z + nu)", "--param", "nu=3", "--examples", "20", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["slope_at_zero"] == pytest.approx(1 / 3)
    assert get_rho("log(z + nu)", nu=3).value(np.array([0.0]))[0] == pytest.approx(np.log(3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rho", "check", "9**9**9"], "column 1"),
        (["rho", "check", "__import__('os').getpid()"], "column"),
        (["rho", "check", "log(z + nu)"], "'nu'"),
        (["rho", "check", "log(z)", "--param", "nu"], "NAME=VALUE"),
        (["rho", "check", "no.such.module:thing"], "MODULE:OBJECT"),
        (["rho", "check", "z", "--alpha", "-1"], "positive"),
        (["rho"], "a command is needed: rho check, rho list, rho plot"),
        (["activation", "check", "x +"], "column"),
    ],
)
def test_bad_input(arguments, message, capsys):
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error


GOOD = """
import numpy as np
class Good:
    name = "mine"
    def value(self, z): return np.log(z + 4)
    def derivative(self, z): return 1 / (z + 4)
class Wrong(Good):
    def derivative(self, z): return 2 / (z + 4)
class Convex(Good):
    def value(self, z): return np.exp(np.minimum(z, 100)) - 1
    def derivative(self, z): return np.exp(np.minimum(z, 100)) * (z < 100)
"""


def test_plain_callables(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(GOOD)
    monkeypatch.syspath_prepend(tmp_path)
    good = examine_penalty("mine:Good", examples=50)
    assert good["verdict"] == "no violation found"
    assert good["concave"]["verdict"] == "unknown"
    wrong = examine_penalty("mine:Wrong", examples=50)
    assert wrong["verdict"] == "invalid"
    assert "derivative" in wrong["finite"]["witness"]
    convex = examine_penalty("mine:Convex", examples=50)
    assert convex["concave"]["verdict"] == REFUTED
    assert convex["verdict"] in ("refuted", "invalid")
    del sys.modules["mine"]


@pytest.mark.parametrize(
    ("text", "verdict", "status"),
    [
        ("relu(x)", "guaranteed", 0),
        ("max(x, 0.1*x)", "guaranteed", 0),
        ("where(x < 0, exp(x) - 1, x)", "guaranteed", 0),
        ("softplus(x)", "guaranteed", 0),
        ("tanh(x)", "guaranteed", 0),
        ("sigmoid(x)", "guaranteed", 0),
        ("min(max(x, -1), 1)", "guaranteed", 0),
        ("max(x - 1, 0) - max(-x - 1, 0)", "guaranteed", 0),
        ("where(abs(x) < 1, 0, x)", "no violation found", 0),
        ("x*(1 + erf(x/sqrt(2)))/2", "refuted", 1),
        ("x*sigmoid(x)", "refuted", 1),
        ("x*tanh(softplus(x))", "refuted", 1),
        ("sin(x)", "refuted", 1),
        ("abs(x)", "refuted", 1),
        ("log(x)", "invalid", 2),
    ],
)
def test_the_table_of_activations(text, verdict, status, capsys):
    assert cli.main(["activation", "check", text, "--json", "--examples", "200"]) == status
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] == verdict
    if verdict == "refuted":
        assert report["prox_of_some_function"]["verdict"] == REFUTED
        assert report["prox_of_some_function"]["witness"]


@pytest.mark.parametrize(
    "arguments",
    [["rho", "list"], ["activation", "list"], ["rho", "check", "z**2"], ["activation", "check", "x*sigmoid(x)"]],
)
def test_reports_are_shown_as_text(arguments, capsys):
    cli.main(arguments)
    out = capsys.readouterr().out
    assert len(out.splitlines()) > 5
    assert "None" not in out
