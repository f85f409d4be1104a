"""Hypothesis strategies that reach what matters: few tokens, extreme scales, duplicates, lines, clusters, lost rank.

Numbers are dyadic with few digits, so that translations are exact and a failing example shrinks to one that can be
read. Scales run from 2⁻²⁰ to 2²⁰, about 1e-6 to 1e6.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ..activation import ACTIVATIONS, Activation
from ..attention import AttentionEnergy
from ..feedforward import FeedForwardEnergy
from ..numerics import FloatArray
from ..rho import PENALTIES, Rho

_ENTRIES = st.integers(-48, 48).map(lambda i: i / 16)
_SCALES = st.sampled_from([0, 0, 0, 0, -3, 3, -10, 10, -20, 20]).map(lambda e: 2.0**e)
_KINDS = ("generic", "generic", "duplicates", "near duplicates", "collinear", "clusters")


@dataclass(frozen=True, eq=False)
class Case:
    """The input of one check; ``str`` writes it so that it can be pasted into Python."""

    def __str__(self) -> str:
        return ", ".join(f"{field.name} = {written(getattr(self, field.name))}" for field in fields(self))


def written(value: Any) -> str:
    """A value of a case as Python text: nested lists for arrays, names for penalties and activations."""
    if isinstance(value, np.ndarray):
        return np.array2string(
            value, separator=", ", max_line_width=10**6, threshold=10**6, formatter={"float_kind": repr_float}
        ).replace("\n", "")
    return repr(value.name) if isinstance(value, Rho | Activation) else repr(value)


def repr_float(x: Any) -> str:
    """The shortest text that reads back as x."""
    return repr(float(x)).removesuffix(".0")


def matrices(rows: int, columns: int) -> st.SearchStrategy[FloatArray]:
    """(rows, columns) arrays of dyadic numbers in [−3, 3]."""
    return hnp.arrays(np.float64, (rows, columns), elements=_ENTRIES, fill=st.nothing())


@st.composite
def tokens(
    draw: st.DrawFn,
    n: st.SearchStrategy[int] | None = None,
    d: st.SearchStrategy[int] | None = None,
    scales: st.SearchStrategy[float] = _SCALES,
) -> FloatArray:
    """Tokens (n, d), 0 ≤ n ≤ 8 and 1 ≤ d ≤ 5 unless given."""
    rows, columns = draw(n if n is not None else st.integers(0, 8)), draw(d if d is not None else st.integers(1, 5))
    Y, kind = draw(matrices(rows, columns)), draw(st.sampled_from(_KINDS))
    if kind != "generic" and rows > 1:
        if kind == "collinear":
            Y = Y[:1] + np.arange(rows)[:, None] * Y[1:2]
        else:
            parent = np.array(draw(st.lists(st.integers(0, 1), min_size=rows, max_size=rows)))
            spread = {"duplicates": 0.0, "near duplicates": 2.0**-26, "clusters": 2.0**-6}[kind]
            Y = (16.0 if kind == "clusters" else 1.0) * Y[parent] + spread * Y
    return Y * draw(scales)


@st.composite
def maps(draw: st.DrawFn, d: int) -> FloatArray | None:
    """W (d, k), 1 ≤ k ≤ 5, of any rank; None is the identity."""
    kind, k = draw(st.sampled_from(("identity", "generic", "rank one", "zero"))), draw(st.integers(1, 5))
    if kind == "identity":
        return None
    if kind == "zero":
        return np.zeros((d, k))
    return draw(matrices(d, k)) if kind == "generic" else draw(matrices(d, 1)) @ draw(matrices(1, k))


@st.composite
def pair_weights(draw: st.DrawFn, n: int, positive_semidefinite: bool = False) -> FloatArray | None:
    """m (n, n): None, or symmetric with entries 0, 1, 2, …, and a positive diagonal unless a row is all zero."""
    if draw(st.booleans()):
        return None
    small = st.integers(0, 2).map(float)
    V = draw(hnp.arrays(np.float64, (n, n), elements=small, fill=st.nothing()))
    if positive_semidefinite:
        return np.asarray(V @ V.T)
    alive = np.array(draw(st.lists(st.sampled_from([1.0, 1.0, 1.0, 0.0]), min_size=n, max_size=n)))
    return np.asarray((V + V.T + np.eye(n)) * alive[:, None] * alive)


def penalties(**traits: bool) -> st.SearchStrategy[Rho]:
    """The shipped penalties with these traits: ``penalties(bernstein=True)``."""
    return st.sampled_from([rho for rho in PENALTIES.values() if all(getattr(rho, t) is v for t, v in traits.items())])


def activations(**traits: bool) -> st.SearchStrategy[Activation]:
    """The shipped activations with these traits: ``activations(convex=True)``."""
    return st.sampled_from([a for a in ACTIVATIONS.values() if all(getattr(a, t) is v for t, v in traits.items())])


@dataclass(frozen=True, eq=False)
class AttentionCase(Case):
    """Tokens and an attention energy; ``V`` (n, d) and ``fraction`` in (0, 1] are there for the check to use."""

    Y: FloatArray
    W: FloatArray | None
    m: FloatArray | None
    rho: Rho
    V: FloatArray
    fraction: float

    @property
    def energy(self) -> AttentionEnergy:
        return AttentionEnergy(self.W, self.rho, self.m)


@st.composite
def attention_cases(
    draw: st.DrawFn,
    n: st.SearchStrategy[int] | None = None,
    rho: st.SearchStrategy[Rho] | None = None,
    positive_semidefinite: bool = False,
) -> AttentionCase:
    """Tokens, W, pair weights and a concave, non-decreasing penalty."""
    Y = draw(tokens(n))
    return AttentionCase(
        Y,
        draw(maps(Y.shape[1])),
        draw(pair_weights(len(Y), positive_semidefinite)),
        draw(penalties(concave=True) if rho is None else rho),
        draw(matrices(*Y.shape)),
        draw(st.integers(1, 16)) / 16,
    )


@dataclass(frozen=True, eq=False)
class FeedForwardCase(Case):
    """Tokens in the domain of φ and a feed-forward energy; ``V`` and ``fraction`` are there for the check to use."""

    Y: FloatArray
    Wf: FloatArray
    B: FloatArray
    activation: Activation
    V: FloatArray
    fraction: float

    @property
    def energy(self) -> FeedForwardEnergy:
        return FeedForwardEnergy(self.Wf, self.B, self.activation)


@st.composite
def feedforward_cases(draw: st.DrawFn, activation: st.SearchStrategy[Activation] | None = None) -> FeedForwardCase:
    """Tokens of finite energy, an asymmetric W_f of any definiteness, B and an activation."""
    sigma = draw(activations() if activation is None else activation)
    # φ of a huge argument is rounding alone: tanh and the sigmoid saturate, so the scales are milder here
    scales = st.sampled_from([1.0, 1.0, 1.0, 2.0**-10, 2.0**6])
    Y = draw(tokens(scales=scales))
    n, d = Y.shape
    B = draw(matrices(n, d)) * draw(scales)
    Y = np.asarray(sigma.prox(Y, 1.0))
    return FeedForwardCase(Y, draw(matrices(d, d)), B, sigma, draw(matrices(n, d)), draw(st.integers(1, 16)) / 16)
