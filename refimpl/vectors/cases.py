"""The list of cases: which input goes to which operation, and why.

Every input is a short binary fraction, exact in float64 (and, unless it is translated or out of range, in float32).
The numbers come from a generator of our own, so that no version of NumPy changes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ..rho import PENALTIES
from .exact import ACTIVATIONS
from .operations import Array

Inputs = dict[str, Array]


@dataclass(frozen=True)
class Case:
    """One case: the id, the operation, why it exists, what is special about it, the inputs, the functions used."""

    id: str
    operation: str
    note: str
    flags: tuple[str, ...]
    inputs: Inputs
    rho: str | None = None
    activation: str | None = None


def _draw(shape: tuple[int, ...], seed: int, scale: float = 1.0, offset: float = 0.0) -> Array:
    """Multiples of 1/16 in [−1, 1], scaled and shifted."""
    size, state, flat = _size(shape), 2654435761 * (seed + 1) % 2**32, []
    for _ in range(size):
        state = (1664525 * state + 1013904223) % 2**32  # Knuth's constants; the high bits are the good ones
        flat.append(offset + scale * ((state >> 16) % 33 - 16) / 16)
    return Array(shape, flat)


def _size(shape: tuple[int, ...]) -> int:
    return shape[0] * _size(shape[1:]) if shape else 1


def _rows(*rows: list[float]) -> Array:
    return Array((len(rows), len(rows[0])), [x for row in rows for x in row])


def _ones(n: int) -> Array:
    return Array((n, n), [1.0] * (n * n))


def _identity(d: int) -> Array:
    return Array((d, d), [float(i == j) for i in range(d) for j in range(d)])


def _number(x: float) -> Array:
    return Array((), [x])


def _map(Y: Array, scale: float = 1.0, offset: float = 0.0) -> Array:
    return Array(Y.shape, [offset + scale * y for y in Y.flat])


_ORDINARY: tuple[str, ...] = ("Ordinary",)


class Scene(NamedTuple):
    """Tokens, map and pair weights; ``rho`` where only some penalties make sense."""

    note: str
    flags: tuple[str, ...]
    Y: Array
    W: Array
    m: Array
    rho: tuple[str, ...] = tuple(PENALTIES)


_Y, _W = _draw((4, 3), 1, 1.5), _draw((3, 2), 2)
_MAP3 = _draw((3, 3), 3)
_CLUSTERS = _rows([0.0, 0.25, 1.0], [0.5, -0.25, 1.0], [1000.0, 0.5, 0.0], [1000.5, 0.75, 0.25])
_WEIGHTS = _rows([1.0, 2.0, 0.0, 0.5], [2.0, 0.25, 1.0, 3.0], [0.0, 1.0, 4.0, 0.75], [0.5, 3.0, 0.75, 0.0])

_SCENES = {
    "ordinary": Scene("Four tokens in general position; W is 3 x 2.", ("Ordinary",), _Y, _W, _ones(4)),
    "pair-weights": Scene(
        "Pair weights with zeros, also on the diagonal.", ("Ordinary", "PairWeights"), _Y, _W, _WEIGHTS
    ),
    "identity-map": Scene("W is the identity.", ("Ordinary",), _draw((3, 2), 4), _identity(2), _ones(3)),
    "square-map": Scene("W is square and not symmetric: S is W W^T, not W^T W.", ("Ordinary",), _Y, _MAP3, _ones(4)),
    "wide-map": Scene(
        "W is 2 x 4: more features than channels.", ("Ordinary",), _draw((3, 2), 5), _draw((2, 4), 6), _ones(3)
    ),
    "many-tokens": Scene("Six tokens, two channels.", ("Ordinary",), _draw((6, 2), 7, 1.25), _identity(2), _ones(6)),
    "tiny": Scene(
        "Tokens near 2^-60: penalties that vanish at zero keep their relative precision (log1p, not log).",
        ("Tiny",),
        _map(_Y, 2.0**-60),
        _W,
        _ones(4),
        ("log1p", "exp", "geman_mcclure", "linear", "epanechnikov", "truncated"),
    ),
    "underflow": Scene(
        "Tokens near 2^-540, whose squared distances underflow: the step is of the size of the tokens.",
        ("Tiny", "Underflow"),
        _map(_Y, 2.0**-540),
        _W,
        _ones(4),
        ("exp", "log2", "sqrt", "linear"),
    ),
    "huge": Scene(
        "Tokens near 2^40: distances of 10^24.", ("Huge",), _map(_Y, 2.0**40), _W, _ones(4), ("exp", "log2", "linear")
    ),
    "overflow": Scene(
        "Tokens near 2^600, whose squared distances overflow: each takes the limit, an attention weight of 0.",
        ("Huge", "Overflow"),
        _map(_Y, 2.0**600),
        _W,
        _ones(4),
        ("exp", "geman_mcclure", "linear", "truncated"),
    ),
    "translated": Scene(
        "Tokens shifted by 2^27: distances come from differences, not from the Gram matrix.",
        ("Translated",),
        _map(_Y, 1.0, 2.0**27),
        _W,
        _ones(4),
    ),
    "duplicate": Scene(
        "Two of the four tokens are the same.",
        ("Duplicate",),
        Array((4, 3), [*_Y.flat[:9], *_Y.flat[:3]]),
        _W,
        _ones(4),
    ),
    "collapsed": Scene(
        "All tokens are the same: the gradient is zero.",
        ("Duplicate", "Stationary"),
        Array((4, 2), [0.5, -1.25] * 4),
        _identity(2),
        _ones(4),
    ),
    "nearly-collapsed": Scene(
        "Tokens within 2^-20 of each other.", ("Cancellation",), _map(_Y, 2.0**-20, 1.0), _W, _ones(4), ("exp", "sqrt")
    ),
    "collinear": Scene(
        "All tokens on one line.",
        ("Collinear",),
        _rows([0.25, -0.5, 1.0], [0.5, -1.0, 2.0], [-0.125, 0.25, -0.5], [0.0, 0.0, 0.0]),
        _W,
        _ones(4),
    ),
    "rank-one-map": Scene(
        "W is 3 x 3 of rank 1.",
        ("RankDeficient",),
        _Y,
        _rows([0.5, -0.25, 1.0], [1.0, -0.5, 2.0], [-0.25, 0.125, -0.5]),
        _ones(4),
    ),
    "zero-map": Scene(
        "W is zero: every distance is 0 and attention is uniform.",
        ("RankDeficient",),
        _Y,
        Array((3, 1), [0.0] * 3),
        _ones(4),
    ),
    "empty": Scene("No token: results keep their shape.", ("Empty",), Array((0, 3), []), _W, Array((0, 0), [])),
    "single": Scene("One token: it stays where it is.", ("SingleToken",), _draw((1, 3), 8), _W, _ones(1)),
    "single-feature": Scene(
        "One channel.", ("Ordinary",), _rows([-0.5], [0.0], [1.25]), Array((1, 1), [0.75]), _ones(3)
    ),
    "isolated-token": Scene(
        "The second token has no weight, not even its own: it stays where it is.",
        ("PairWeights", "IsolatedToken"),
        _draw((3, 2), 9),
        _identity(2),
        _rows([1.0, 0.0, 0.5], [0.0, 0.0, 0.0], [0.5, 0.0, 2.0]),
    ),
    "padding": Scene(
        "The last token is padding: its pairs weigh nothing.",
        ("PairWeights",),
        _draw((4, 2), 10),
        _identity(2),
        _rows([1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]),
    ),
    "clusters": Scene(
        "Two clusters a thousand apart: weights between them vanish or are small.",
        ("Far",),
        _CLUSTERS,
        _identity(3),
        _ones(4),
    ),
    "row-underflow": Scene(
        "No weight on the diagonal and a token so far away that all of its kernel underflows: weights are still right.",
        ("PairWeights", "Far", "RowUnderflow"),
        _rows([0.0, 0.0], [0.5, -0.25], [64.0, 0.5]),
        _identity(2),
        _rows([0.0, 1.0, 2.0], [1.0, 0.0, 0.5], [2.0, 0.5, 0.0]),
        ("exp",),
    ),
}

_EVERY_PENALTY = ("ordinary", "pair-weights")  # the other scenes go to exp, and one step to another penalty in turn


def _case(
    operation: str, labels: tuple[str, ...], note: str, flags: tuple[str, ...], inputs: Inputs, **functions: str
) -> Case:
    return Case("/".join((operation, *labels)), operation, note, flags, inputs, **functions)


def _attention() -> Iterator[Case]:
    for number, (name, scene) in enumerate(_SCENES.items()):
        base = {"Y": scene.Y, "W": scene.W, "m": scene.m}
        turn = number % len(scene.rho)
        for index, rho in enumerate(scene.rho):
            for operation in ("energy", "gradient", "weights", "step"):
                if not (index == 0 or name in _EVERY_PENALTY or (index == turn and operation == "step")):
                    continue
                if operation == "gradient" and ("Overflow" in scene.flags or "RowUnderflow" in scene.flags):
                    continue  # it is lost to the range of the floats, and the limit is not its value
                inputs = base | ({"alpha": _number(1.0)} if operation == "step" else {})
                yield _case(f"attention.{operation}", (rho, name), scene.note, scene.flags, inputs, rho=rho)
    ordinary = _SCENES["ordinary"]
    base = {"Y": ordinary.Y, "W": ordinary.W, "m": ordinary.m}
    for rho, alpha, what in (("exp", 0.5, "half a step"), ("log2", 1.75, "over-relaxed"), ("sqrt", 0.0, "no step")):
        inputs = base | {"alpha": _number(alpha)}
        note = f"Step size {alpha}: {what}."
        yield _case("attention.step", (rho, f"alpha-{alpha}"), note, ("StepSize",), inputs, rho=rho)
    for rho in PENALTIES:
        inputs = base | {"Y_new": _draw((4, 3), 11, 1.5)}
        note = "The majorizer at a point other than the one that it touches."
        yield _case("attention.majorizer", (rho, "ordinary"), note, ("Ordinary",), inputs, rho=rho)


def _residual() -> Iterator[Case]:
    names = (
        *_EVERY_PENALTY,
        "square-map",
        "tiny",
        "translated",
        "duplicate",
        "rank-one-map",
        "zero-map",
        "empty",
        "single",
        "isolated-token",
    )
    for number, name in enumerate(names):
        scene = _SCENES[name]
        n, d = scene.Y.shape
        target = _draw((n, d), 12, *{"tiny": (2.0**-60,), "translated": (1.0, 2.0**27)}.get(name, ()))
        inputs = {"Y": scene.Y, "W": scene.W, "m": scene.m, "X": target, "lam": _number(0.75)}
        for rho in scene.rho if name == "ordinary" else [scene.rho[number % len(scene.rho)]]:
            for operation in ("energy", "gradient", "step"):
                yield _case(f"residual.{operation}", (rho, name), scene.note, scene.flags, inputs, rho=rho)


_B = _draw((3, 2), 13)
_WF = _rows([0.5, -0.75], [0.25, 0.375])


def _feedforward() -> Iterator[Case]:
    inside = _rows([0.25, 0.5], [0.0625, 0.875], [0.75, 0.375])  # of every domain
    for name in ACTIVATIONS:
        base = {"Y": inside, "Wf": _WF, "B": _B}
        note = "Tokens in the domain of the penalty; Wf is not symmetric."
        flags: tuple[str, ...] = ("Ordinary",)
        yield _case("feedforward.energy", (name, "ordinary"), note, flags, base, activation=name)
        for alpha in (1.0, 0.25):
            inputs = base | {"alpha": _number(alpha)}
            yield _case("feedforward.step", (name, f"alpha-{alpha}"), note, flags, inputs, activation=name)
    wide = _draw((4, 3), 14), _draw((3, 3), 15), _draw((4, 3), 16)
    scenes = {
        "three-channels": ("Four tokens, three channels, tokens of both signs.", ("Ordinary",), *wide),
        "bias-only": (
            "Wf is zero: one ReLU step goes to ReLU(B).",
            ("Ordinary",),
            wide[0],
            Array((3, 3), [0.0] * 9),
            wide[2],
        ),
        "antisymmetric": (
            "Wf is antisymmetric: only its symmetric part, zero, acts.",
            ("Antisymmetric",),
            _B,
            _rows([0.0, 2.0], [-2.0, 0.0]),
            _map(_B, 0.5),
        ),
        "tiny": ("Numbers near 2^-60.", ("Tiny",), _map(wide[0], 2.0**-60), wide[1], _map(wide[2], 2.0**-60)),
        "underflow": (
            "Tokens near 2^-540.",
            ("Tiny", "Underflow"),
            _map(wide[0], 2.0**-540),
            wide[1],
            _map(wide[2], 2.0**-540),
        ),
        "huge": ("Numbers near 2^300.", ("Huge",), _map(wide[0], 2.0**300), wide[1], _map(wide[2], 2.0**300)),
        "empty": ("No token.", ("Empty",), Array((0, 3), []), wide[1], Array((0, 3), [])),
        "single": ("One token.", ("SingleToken",), _draw((1, 3), 17), wide[1], _draw((1, 3), 18)),
    }
    for name, (note, flags, Y, Wf, B) in scenes.items():
        base = {"Y": Y, "Wf": Wf, "B": B}
        yield _case("feedforward.gradient", (name,), note, flags, base)
        inputs = base | {"alpha": _number(0.5)}
        yield _case("feedforward.step", ("relu", name), note, flags, inputs, activation="relu")
        if name != "underflow":
            yield _case("feedforward.energy", ("identity", name), note, flags, base, activation="identity")
    note = "A negative token: outside the domain of the penalty the energy is infinite."
    outside = {"Y": _B, "Wf": _WF, "B": _B}
    yield _case("feedforward.energy", ("relu", "outside"), note, ("Infinite",), outside, activation="relu")


def _prox() -> Iterator[Case]:
    # no number is near a jump of the hard threshold, at 0.5 sqrt(alpha)
    points = Array((10,), [-30.0, -3.0, -1.125, -0.75, -0.0625, 0.0, 0.125, 0.875, 2.5, 20.0])
    for name in ACTIVATIONS:
        for alpha in (1.0, 0.25):
            flags = ("Ordinary",) if alpha == 1 else ("Ordinary", "StepSize")
            what = "The activation itself." if alpha == 1 else "A step size scales the penalty, not the result."
            inputs = {"v": points, "alpha": _number(alpha)}
            yield _case("prox.operator", (name, f"alpha-{alpha}"), what, flags, inputs, activation=name)
        y = Array((7,), [-0.9375, -0.5, -0.25, 0.0, 0.3125, 0.625, 0.9375])
        yield _case(
            "prox.penalty", (name, "inside"), "In and around the domain.", ("Ordinary",), {"y": y}, activation=name
        )
        far = Array((4,), [-40.0, -1.5, 1.5, 40.0])
        note = "Far out: infinite outside the domain."
        yield _case("prox.penalty", (name, "outside"), note, ("Infinite",), {"y": far}, activation=name)


def _layer() -> Iterator[Case]:
    pairs = [(rho, "relu") for rho in PENALTIES] + [("exp", name) for name in ACTIVATIONS if name != "relu"]
    Y, W, m = _draw((3, 2), 19, 1.25), _draw((2, 2), 20), _ones(3)
    base = {"Y": Y, "W": W, "m": m, "Wf": _WF, "B": _B}
    for rho, activation in pairs:
        flags: tuple[str, ...] = ("Ordinary",)
        functions = {"rho": rho, "activation": activation}
        labels = (rho, activation, "ordinary")
        note = "The attention step, then the feed-forward step at its result."
        yield _case("layer.alternating", labels, note, flags, base | {"alpha": _number(1.0)}, **functions)
        if activation != "hard_threshold":  # the joint step of a penalty that is not convex is another one
            note = "One proximal step on the sum of both energies, M_i = s d_i + max(h, 0)/2."
            yield _case("layer.joint", labels, note, flags, base, **functions)
    scenes: dict[str, tuple[str, tuple[str, ...], Inputs]] = {
        "pair-weights": (
            "Pair weights.",
            ("PairWeights",),
            {"m": _rows([0.0, 2.0, 0.5], [2.0, 1.0, 0.25], [0.5, 0.25, 3.0])},
        ),
        "rank-one-map": ("W of rank 1.", ("RankDeficient",), {"W": _rows([0.5, -1.0], [0.25, -0.5])}),
        "concave": (
            "H is negative definite: h counts as 0.",
            ("NegativeCurvature",),
            {"Wf": _rows([-2.0, 0.25], [0.5, -3.0])},
        ),
        "single": ("One token.", ("SingleToken",), {"Y": _draw((1, 2), 21), "m": _ones(1), "B": _draw((1, 2), 22)}),
        "empty": ("No token.", ("Empty",), {"Y": Array((0, 2), []), "m": Array((0, 0), []), "B": Array((0, 2), [])}),
    }
    for name, (note, flags, change) in scenes.items():
        functions = {"rho": "log1p", "activation": "relu"}
        alpha = {"alpha": _number(0.5)}
        yield _case("layer.alternating", ("log1p", "relu", name), note, flags, base | change | alpha, **functions)
        yield _case("layer.joint", ("log1p", "relu", name), note, flags, base | change, **functions)


FAMILIES = {
    "attention": _attention,
    "residual": _residual,
    "feedforward": _feedforward,
    "prox": _prox,
    "layer": _layer,
}
