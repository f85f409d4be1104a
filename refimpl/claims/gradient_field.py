"""The claim of section 5 about any update: a gradient step has a symmetric Jacobian in its metric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.sparse.csgraph import connected_components

from .. import definitions
from ..numerics import FloatArray
from ..testing import strategies
from ..testing.gradient_field import examine_field
from ..testing.strategies import Case
from .ledger import Claim, require, require_close

NOTEBOOK = "07_asymmetric.md"


@dataclass(frozen=True, eq=False)
class FieldCase(Case):
    """T(y) = y − P⁻¹ (S y + tanh(v · y) v + turn (y_b e_a − y_a e_b)), P = diag(p), a and b the first and last entries.

    Without ``turn`` it is a gradient step. Without ``analytic`` the imaginary part of v · y is lost on the way.
    """

    p: FloatArray
    S: FloatArray
    v: FloatArray
    turn: float
    analytic: bool

    def H(self) -> FloatArray:
        """The constant part of P (I − J), (N, N)."""
        H = self.S.copy()
        H[0, -1] += self.turn
        H[-1, 0] -= self.turn
        return H

    def update(self, Y: Any) -> Any:
        """T, of tokens (n, d)."""
        y = Y.reshape(-1)
        u = self.v @ y
        g = np.tanh(u if self.analytic else np.real(u))
        return (y - (self.H() @ y + g * self.v) / self.p.ravel()).reshape(Y.shape)

    def jacobian(self, Y: FloatArray) -> FloatArray:
        """J (N, N) at Y, as it is derived."""
        slope = 1 / np.cosh(float(self.v @ Y.ravel())) ** 2
        return np.asarray(np.eye(Y.size) - (self.H() + slope * np.outer(self.v, self.v)) / self.p.reshape(-1, 1))


@st.composite
def fields(draw: st.DrawFn) -> FieldCase:
    """Gradient steps in Euclidean and diagonal metrics of 2 to 6 numbers, and fields that turn."""
    n, d = draw(st.sampled_from([(1, 2), (2, 1), (2, 2), (1, 3), (3, 1), (3, 2)]))
    N = n * d
    weights = st.just(1.0) if draw(st.booleans()) else st.integers(-3, 3).map(lambda k: 2.0**k)
    p = draw(hnp.arrays(np.float64, (n, d), elements=weights, fill=st.nothing()))
    M, v = draw(strategies.matrices(N, N)), draw(strategies.matrices(1, N))[0] / 3
    # most entries 0: then there are groups of entries that do not act on each other
    S = np.where(np.abs(M + M.T) > draw(st.sampled_from([0.0, 2.0, 4.0])), M + M.T, 0.0)
    v = np.where(np.abs(v) > draw(st.sampled_from([0.25, 0.5, 1.0])), v, 0.0)
    # enough for the two entries to act on each other with opposite signs wherever they are
    turn = draw(st.sampled_from([0, 0, 1])) * float(1 + abs(S[0, -1]) + abs(v[0] * v[-1]))
    return FieldCase(p, S, v, turn, draw(st.booleans()))


def check_integrability(case: FieldCase) -> None:
    """A gradient step is recognised and its metric found; a field that turns is refused; the asymmetry is right."""
    n, d = case.p.shape
    report = examine_field(case.update, n, d)
    require(report.points is not None, report.diagnosis)
    assert report.points is not None
    assert report.error is not None
    # the differences' own error is h⁴ = 1e-11 and the roundings of 1e-16 over h
    require(report.error <= 1e-7, lambda: f"the asymmetry is known to {report.error} only")
    J = np.array([case.jacobian(Y) for Y in report.points])
    moved = np.linalg.norm(J - np.eye(n * d), axis=(1, 2))
    assume(moved.all())
    asymmetry = np.linalg.norm(J - J.transpose(0, 2, 1), axis=(1, 2)) / (2 * moved)
    assert report.where is not None
    at = int((report.points == report.where).all(axis=(1, 2)).argmax())
    require_close(report.asymmetry, asymmetry[at], report.error, "the asymmetry")
    require(asymmetry[at] >= asymmetry.max() - 1e-7, "there is more asymmetry at another point")
    if case.turn:
        # a metric that mixes the entries may undo the turn
        require(report.verdict in ("none", "constant"), lambda: f"it turns, and the verdict is {report.diagnosis}")
        return
    _, groups = connected_components(case.S + np.outer(case.v, case.v) != 0)
    expected = np.array(
        [p / case.p.ravel()[groups == group].min() for p, group in zip(case.p.flat, groups, strict=True)]
    )
    euclidean = (expected == 1).all()
    require(report.verdict == ("euclidean" if euclidean else "diagonal"), report.diagnosis)
    assert report.metric is not None
    # J is known to 1e-10 and the least that is not 0 is about 1e-3: relative errors of 1e-7, up to N − 1 of them
    require_close(report.metric.ravel(), expected, 1e-6 * expected, "the metric")
    require(report.in_metric is not None and report.in_metric <= 10 * report.error, "it is asymmetric in its metric")


def witness_integrability() -> str:
    def attention(Y: Any) -> Any:
        return np.array(definitions.softmax_attention(Y, definitions.identity(2), np.exp, lambda u: 1))

    report = examine_field(attention, 3, 2)
    require(report.verdict == "none", f"plain softmax attention: {report.diagnosis}")
    assert report.asymmetry is not None
    return f"softmax(Y Yᵀ) Y, 3 tokens in the plane, asymmetry {report.asymmetry:.6f}: {report.diagnosis}"


CLAIMS = (
    Claim(
        "gradient_field.integrability",
        "T(y) = y − P⁻¹ ∇E(y), P constant, iff P J(y) is symmetric at all y: a diagonal P is found, asymmetry measured",
        "T continuous on a convex domain, with a Jacobian J outside kinks",
        NOTEBOOK,
        "refimpl.testing.check_gradient_field",
        fields,
        check_integrability,
        witness_integrability,
    ),
)
