"""A zoo of penalties and activations with known answers: no verdict may ever contradict the truth.

Each row has the true answer of every property: ``y`` or ``n``. A capital letter must be decided; a small one may come
out as unknown. Properties of a formula that is undefined somewhere on its domain have no truth: ``-``.
"""

import re
import time
from fractions import Fraction

import pytest

from refimpl import formula
from refimpl.classify import ActivationTraits, PenaltyTraits, classify_activation, classify_penalty

# formula: finite, non-decreasing, concave, Bernstein
BLUEPRINT = {
    "-exp(-z)": "YYYY",
    "log(z + 2)": "YYYY",
    "log(1 + z)": "YYYY",
    "sqrt(z + 1)": "YYYY",
    "z / (1 + z)": "YYYY",
    "z": "YYYY",
    "min(z, 1) - min(z, 1)**2 / 2": "YYYN",  # Epanechnikov
    "min(z, 1)": "YYYN",
    "1 - cos(z)": "YNNN",
    "exp(z) - 1": "YYNN",
    "-exp(-z**2)": "YYNN",
    "z**2": "YYNN",
    "-exp(-z) + z**2 / 10": "YYNN",
    "log(z - 1)": "N---",
    "1 / z": "N---",
    "sqrt(1 - z)": "N---",
    "sqrt(z)": "NYYY",  # infinite slope at 0
    "z * log(z)": "N---",
    "-z": "YNYN",
    "exp(-z)": "YNNN",
}
MORE = {
    # what rules prove
    "0": "YYYY",
    "pi * z + e": "YYYY",
    "2*log(1 + 3*z) - 5*exp(-z/2) + z/7": "YYYY",
    "log(1 + log(1 + z))": "YYYY",
    "sqrt(log(1 + z) + 1)": "YYYY",
    "1 - exp(-sqrt(1 + z))": "YYYY",
    "(1 + z)**0.3": "YYYY",
    "z / sqrt(1 + z)": "YYYY",
    "z / log(2 + z)": "YYYY",
    "1 - 2**(-z)": "YYYY",
    "-1 / (2 - exp(-z))": "YYYY",
    "-exp(-z) / (1 + z)": "YYYY",
    "-exp(exp(-z))": "YYYY",
    "sqrt((z + 1) * (z + 2))": "YYYy",
    "log(3 + z)/log(2)": "YYYY",
    "1 - 1/(1 + z)**(1/3)": "YYYY",
    # concave, not Bernstein
    "atan(z)": "YYYN",
    "tanh(z)": "YYYN",  # sech² is flat at 0
    "erf(z)": "YYYN",
    "sigmoid(z)": "YYYN",
    "-softplus(-z)": "YYYN",
    "min(log(1 + z), 1)": "YYYN",
    "min(z, 1 + log(1 + z)/4)": "YYYN",
    "where(z < 1, z - z**3/6 - z**2/4, 7/12)": "YYYN",
    "where(z < 1, z, 2*sqrt(z) - 1)": "YYYN",  # a Huber loss in z: its second derivative jumps
    "z - 1 + exp(-z) - z**2/(2*(1 + z)**2)": "Y---",
    # by exact signs
    "2*log(1 + z) - log(2 + z)": "YYYY",
    "log(1 + z) - log(2 + z)/2 + z/100": "YYYY",
    "z - log(1 + z)": "YYNN",
    "z * tanh(z)": "YYNN",
    "log(1 + z)**2": "YYNN",
    "log(cosh(z))": "YYNN",
    "(1 - exp(-z))**2": "YYNN",
    "z * exp(-z)": "YNNN",
    "z / (1 + z)**2": "YNNN",
    "sqrt(1 + z) + z*exp(-z)/10": "Yyyn",
    "2*z - exp(-z)*sin(z)": "Yynn",
    # by intervals
    "z + sin(z)/2": "YYNN",
    "log(1 + z) + sin(z)/(10*(1 + z)**3)": "Yyyn",
    # deceptive: kinks and jumps
    "where(z < 1, z, z - 5)": "YNNN",  # its derivative is 1 almost everywhere
    "where(z < 1, z, 2*z)": "YYNN",  # its second derivative is 0 almost everywhere
    "max(z, 2*z - 1)": "YYNN",
    "where(z < 1, z, where(z <= 1, 2 - z, z))": "YYYy",  # this is z: only at 1 the other branch, of slope −1
    "where(z <= 1, where(z >= 1, 5, z), z)": "YNNN",  # a single point out of place
    "where(z < 1, z*(z + 1), z**2 + z)": "YYNN",  # no breakpoint at all
    "abs(z - 1)": "YNNN",
    "max(log(1 + z), z/2)": "YYNN",
    "min(z, max(z - 3, 1))": "YYNN",
    "where(z < 2, log(1 + z), log(1 + z) + 1e-12)": "YYNN",
    "where(z < 2, log(1 + z), log(1 + z) - 1e-12)": "YNNN",
    # deceptive: far out, or in a tiny interval
    "z - z**2/1e6": "YNYN",
    "log(1 + z) - 1e-9*z": "YNYN",
    "sqrt(1 + z) - 1e-20*z": "YNYN",
    "1000*z - z**2*exp(-z)": "YYNN",
    "log(1 + z) + 1e-6/(1 + (z - 1000)**2)": "Yyyn",
    "log(1 + z) + 1e-3/(1 + 1e4*(z - 1)**2)": "YYNN",
    "log(1 + z) - min(max(z - 1000, 0), 1/1000)": "YNNN",
    # nearly Bernstein: a density of the Laplace transform that is just negative, or just not
    "log(1 + z) - log(2 + z) + log(3 + z)": "YYYY",  # exp(−t) − exp(−2t) + exp(−3t) > 0
    "log(1 + z) - 2*log(2 + z) + 2*log(3 + z) + z": "YYyy",
    "log(1 + z) - 3*log(2 + z)/2 + 5*log(3 + z)/9": "Y---",
    # not real, or not finite
    "log(z)": "N---",
    "1 / (z - 3)": "N---",
    "1 / (z**2 - 2)": "N---",
    "sqrt(z**2 - 2)": "N---",
    "sqrt(z**2 - z/1000)": "N---",
    "(1 - exp(-z)) / z": "N---",  # as written, 0/0 at z = 0
    "z**0.9": "NYYY",
    "log(1 + sqrt(z))": "NYYY",
    "1 - exp(-sqrt(z))": "NYYY",
    "erf(sqrt(z))": "Nyyy",
    "z**1.5": "YYNN",
    "where(z < 5, z, log(z - 6))": "N---",
    "where(z < 7, z, log(z - 6) + 7)": "YYYN",
    "exp(exp(exp(exp(z))))": "YYNN",
}
# formula: finite, non-decreasing, 1-Lipschitz
ACTIVATIONS = {
    # the blueprint's table and the list
    "x": "YYY",
    "max(x, 0)": "YYY",
    "relu(x - 1/2)": "YYY",
    "max(x - 1/2, 0) + min(x + 1/2, 0)": "YYY",  # soft threshold
    "where(x > 0, 1, -1) * max(abs(x) - 1/2, 0)": "YYY",  # the same
    "max(x, x/100)": "YYY",
    "where(x < 0, 0.1*x, x)": "YYY",
    "min(max(x, -1), 1)": "YYY",
    "tanh(x)": "YYY",
    "where(abs(x) < 1, 0, x)": "YYN",  # hard threshold
    "sigmoid(x)": "YYY",
    "softplus(x)": "YYY",
    "where(x < 0, exp(x) - 1, x)": "YYY",  # ELU
    "x * sigmoid(x)": "YNN",
    "x * (1 + erf(x/sqrt(2))) / 2": "YNN",
    "x * tanh(softplus(x))": "YNN",
    "sin(x)": "YNN",
    "abs(x)": "YNN",
    # more
    "3": "YYY",
    "-x": "YNN",
    "2*x": "YYN",
    "x**3": "YYN",
    "atan(x)": "YYY",
    "erf(x)": "YYN",
    "erf(x * sqrt(pi) / 2)": "YYY",
    "x / (1 + abs(x))": "YYY",
    "x / sqrt(1 + x**2)": "YYY",
    "x + sin(x)": "YYN",
    "x/2 + sin(x)/2": "YYY",
    "x * min(max(x + 3, 0), 6) / 6": "YNN",  # hard swish
    "min(max(x/6 + 1/2, 0), 1)": "YYY",
    "where(x < 0, 1.05*1.67*(exp(x) - 1), 1.05*x)": "YYN",  # SELU
    "max(x, 0)**2": "YYN",
    "where(x > 0, 1, 0)": "YYN",
    "where(x < 1, x, x + 1e-9)": "YYN",
    "where(x < 1, x, x - 1e-9)": "YNN",
    "where(x < 0, tanh(x), x)": "YYY",
    "x - tanh(x)": "YYY",
    "log(x + sqrt(x**2 + 1))": "yyy",
    "(x + sqrt(x**2 + 4)) / 2": "YYY",
    "1 - exp(-exp(x))": "YYy",
    "exp(x)": "YYN",
    "log(x)": "N--",
    "1/x": "N--",
    "x - x**3/1e12": "YNN",
    "where(x < 0, x/2, x/3)": "YYY",
    "max(tanh(x), 1/2)": "YYY",
    "max(x, exp(-x) - 5)": "YNN",
    "x*(1 + 1e-6*exp(-x**2))": "YYN",
}


def contradictions(traits: PenaltyTraits | ActivationTraits, names: tuple[str, ...], truth: str) -> list[str]:
    found = []
    for name, expected in zip(names, truth, strict=True):
        verdict = getattr(traits, name)
        if expected == "-":
            continue
        allowed = {"proved" if expected in "Yy" else "refuted"} | ({"unknown"} if expected.islower() else set())
        if verdict.verdict not in allowed:
            found.append(f"{name}: {verdict}")
        if (verdict.verdict == "refuted") != (verdict.witness is not None):
            found.append(f"{name}: a witness belongs to a refutation: {verdict}")
    return found


@pytest.mark.parametrize(("text", "truth"), (BLUEPRINT | MORE).items())
def test_penalty(text: str, truth: str) -> None:
    start = time.perf_counter()
    traits = classify_penalty(formula.parse(text))
    assert time.perf_counter() - start < 20  # several times what it takes
    assert not contradictions(traits, ("finite", "nondecreasing", "concave", "bernstein"), truth)


@pytest.mark.parametrize(("text", "truth"), ACTIVATIONS.items())
def test_activation(text: str, truth: str) -> None:
    traits = classify_activation(formula.parse(text, "x"))
    assert not contradictions(traits, ("finite", "nondecreasing", "lipschitz"), truth)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("log(z - 1)", "undefined at z = 0"),
        ("1 / z", "undefined at z = 0"),
        ("sqrt(1 - z)", "undefined at z = 2"),
        ("1 / (z**2 - 2)", "near 1.41421356237"),
        ("sqrt(z)", "infinite slope at z = 0"),
        ("z * log(z)", "infinite slope at z = 0"),
    ],
)
def test_invalid_penalties_say_where(text: str, words: str) -> None:
    assert words in str(classify_penalty(formula.parse(text)).finite.witness)


@pytest.mark.parametrize("text", [t for t, truth in ACTIVATIONS.items() if truth[1] == "N"])
def test_where_an_activation_falls_there_are_two_points(text: str) -> None:
    witness = str(classify_activation(formula.parse(text, "x")).nondecreasing.witness)
    match = re.fullmatch(r"σ\((\S+)\) = (\S+) > σ\((\S+)\) = (\S+)", witness)
    assert match, witness
    assert Fraction(match[1]) < Fraction(match[3])


@pytest.mark.parametrize(
    ("text", "slope"), [("log(z + 2)", 0.5), ("sqrt(z)", None), ("z**1.5", 0), ("tanh(3*z)", 3), ("max(z, 2*z - 1)", 1)]
)
def test_slope_at_zero(text: str, slope: float | None) -> None:
    assert classify_penalty(formula.parse(text)).slope_at_zero == pytest.approx(slope)
