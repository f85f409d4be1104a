"""Claims of section 5: arbitrary weights. Derived in ``derivations/07_asymmetric.md``."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields
from typing import Any

import mpmath
import numpy as np
from hypothesis import strategies as st
from scipy.sparse.csgraph import connected_components

from .. import asymmetric, definitions
from ..feedforward import SYMMETRY, FeedForwardEnergy
from ..numerics import EPS, FloatArray
from ..testing import strategies
from ..testing.exact import exact, matrix, rounded
from ..testing.rounding import TINY, U, feedforward_error
from ..testing.strategies import Case, FeedForwardCase, matrices
from ..transformer import UnfoldedTransformer
from .alternating import LayerCase, layers, moved_noise
from .feedforward import require_prox
from .ledger import Claim, require, require_close

NOTEBOOK = "07_asymmetric.md"


def argument_error(case: FeedForwardCase, alpha: float) -> FloatArray:
    """A bound on the rounding of Y − α (Y H − B), H = I + W_f: (d + 6) u of the sum of its terms' magnitudes."""
    Y, B = np.abs(case.Y), np.abs(case.B)
    return np.asarray((len(case.Wf) + 6) * U * (Y + alpha * (Y + Y @ np.abs(case.Wf) + B)))


def require_energy(energy: FeedForwardEnergy, P: FloatArray, case: FeedForwardCase) -> None:
    """The energy and its gradient in the metric P against the definitions, and these against each other."""
    with exact():
        Y, Wf, B, metric, V = (matrix(M) for M in (case.Y, case.Wf, case.B, P, case.V))
        G = definitions.metric_gradient(Y, Wf, B, metric) if Y else []
        ahead, behind = (
            definitions.metric_energy(
                [[y + s * v for y, v in zip(*rows, strict=True)] for rows in zip(Y, V, strict=True)],
                Wf, B, metric, lambda y: 0,
            )
            for s in (1, -1)
        )  # fmt: skip
        slope, along = (ahead - behind) / 2, definitions.frobenius(G, V)  # exact: the energy is quadratic
        expected = rounded(G, case.Y.shape)
        smooth = float(definitions.metric_energy(Y, Wf, B, metric, lambda y: 0))
    # the energy knows only the symmetric part of W_f P, and P is a metric of W_f up to SYMMETRY
    size = np.abs(case.Y).sum() * np.abs(case.V).sum() * (np.abs(case.Wf) @ np.abs(P)).max()
    require(abs(slope - along) <= SYMMETRY * size, "the gradient is not the energy's")
    error = 2 * argument_error(case, 1.0) @ np.abs(P) + TINY
    require_close(energy.gradient(case.Y), expected, error, "gradient")
    phi = float((np.diag(P) * np.asarray(case.activation.penalty(case.Y))).sum())
    require_close(energy.value(case.Y), smooth + phi, feedforward_error(energy, case.Y) + TINY, "energy")


def require_layer(energy: FeedForwardEnergy, case: FeedForwardCase, alpha: float) -> None:
    """Y⁺ = prox_{αφ}(Y − α (Y H − B)) with W_f itself in H; at α = 1 it is σ(B − Y W_f)."""
    with exact():
        Y, Wf, B = (matrix(M) for M in (case.Y, case.Wf, case.B))
        argument = rounded(
            definitions.metric_step(Y, Wf, B, lambda v, a: v, mpmath.mpf(alpha)) if Y else [], case.Y.shape
        )
        layer = rounded(definitions.subtract(B, definitions.matmul(Y, Wf)) if Y else [], case.Y.shape)
    for at, v in ((alpha, argument), (1.0, layer)):
        blur = argument_error(case, at) + U * np.abs(v)
        Y_new = energy.step(case.Y, at)
        if Y_new.size and case.activation.convex:
            # the penalty of feature a has the weight p_a in the metric, and so has ½ (y − v)²: p_a cancels
            require_prox(case.activation, Y_new, v, at, blur)
        expected = case.activation.prox(v, at)
        clear = case.activation.convex | (np.abs(np.abs(v) - 0.5 * np.sqrt(at)) > blur)  # the hard threshold jumps
        require_close(Y_new[clear], expected[clear], 4 * blur[clear] + 8 * EPS * np.abs(expected[clear]), "step")


def decrease_ratio(energy: FeedForwardEnergy, P: FloatArray, case: FeedForwardCase, alpha: float) -> float | None:
    """E(Y) − E(Y⁺) ≥ (1/α − ½ λ_max(H)) ‖Δ‖²_P for convex φ, half of 1/α − λ_max(H) for any; the ratio of the two."""
    Y, W, size = case.Y, np.abs(case.Wf), np.abs(P)
    Y_new = energy.step(Y, alpha)
    Delta = Y_new - Y
    squared = (Delta * (Delta @ P)).sum()
    if case.activation.convex:
        bound = (1 / alpha - 0.5 * energy.curvature) * squared
    else:
        bound = 0.5 * (1 / alpha - energy.curvature) * squared
    # as in ffn.sufficient_decrease, in the metric: Y⁺ is off by δ, and the slope of E there is that of its terms
    delta = 4 * argument_error(case, alpha) / min(1.0, alpha) + 8 * U * np.abs(Y_new)
    H = np.eye(len(W)) + W
    slope = (np.abs(Delta) @ (H + np.eye(len(W)) / alpha) + np.abs(Y_new @ case.Wf + Y_new - case.B)) @ size
    slope += energy.penalty_weights * (40 + np.abs(Y_new))
    slack = feedforward_error(energy, Y) + feedforward_error(energy, Y_new) + 4 * (slope * delta).sum()
    # λ_max(H) is off by κ(V) times the rounding of W_f (Bauer and Fike), and W_f P symmetric up to a residual
    d, condition = len(W), np.sqrt(np.linalg.cond(P))
    slack += (1e-13 / alpha + 64 * d * EPS * condition * (1 + np.linalg.norm(W))) * (
        np.abs(Delta) @ size * np.abs(Delta)
    ).sum()
    residual = np.abs(case.Wf @ P - P @ case.Wf.T) + d * EPS * (W @ size + size @ W.T)
    slack += ((np.abs(Y) + np.abs(Y_new)) @ residual * np.abs(Delta)).sum()
    fall = energy.value(Y) - energy.value(Y_new)
    require(fall >= -slack, lambda: f"α = {alpha}: E rises by {-fall}")
    require(fall >= bound - slack, lambda: f"α = {alpha}: E falls by {fall}, the bound is {bound}")
    return float((fall + slack) / bound) if bound > 1e6 * slack else None


# ------------------------------------------------------------------------------------------------ similarity


@dataclass(frozen=True, eq=False)
class SimilarCase(FeedForwardCase):
    """W_f = X Λ X⁻¹, exactly: X is an integer matrix of determinant 1, and Λ, ``eigenvalues`` (d,), is dyadic."""

    X: FloatArray
    eigenvalues: FloatArray


@st.composite
def similar_cases(draw: st.DrawFn) -> SimilarCase:
    case = draw(strategies.feedforward_cases(strategies.activations().filter(lambda a: a.name == "identity")))
    d = len(case.Wf)
    integers = st.integers(-1, 1).map(float)
    entries = np.array(draw(st.lists(integers, min_size=d * d, max_size=d * d))).reshape(d, d)
    lower, upper = np.tril(entries, -1) + np.eye(d), np.triu(entries, 1) + np.eye(d)
    X, inverse = lower @ upper, np.rint(np.linalg.inv(upper)) @ np.rint(np.linalg.inv(lower))
    eighths = st.integers(-16, 16).map(lambda i: i / 8)
    eigenvalues = np.array(draw(st.lists(eighths, min_size=d, max_size=d)))
    return SimilarCase(
        case.Y, X * eigenvalues @ inverse, case.B, case.activation, case.V, case.fraction, X, eigenvalues
    )


def check_similarity(case: SimilarCase) -> float | None:
    """The metric is Σ_λ Π_λ; in it the linear layer, W_f as it is, is a gradient step that lowers the energy."""
    P, d = asymmetric.metric(case.Wf), len(case.Wf)
    require((P == P.T).all() and np.linalg.eigvalsh(P)[0] > 0, "P is not symmetric positive definite")
    expected, unit = np.zeros((d, d)), case.X / np.linalg.norm(case.X, axis=0)
    for value in set(case.eigenvalues.tolist()):
        Q = np.linalg.qr(case.X[:, case.eigenvalues == value])[0]
        expected += Q @ Q.T
    # an eigenvector moves by κ(X) times the rounding of W_f over the gap of eigenvalues, at least ⅛
    error = 64 * d * EPS * (1 + np.linalg.norm(case.Wf)) * np.linalg.cond(unit) ** 2 * 8
    require_close(P, expected, error, "Σ Π")
    energy = FeedForwardEnergy(case.Wf, case.B, "identity", metric=P)
    require_energy(energy, P, case)
    largest = min(energy.max_alpha, 4.0)
    require_layer(energy, case, case.fraction * largest)
    decrease_ratio(energy, P, case, largest)
    return decrease_ratio(energy, P, case, case.fraction * largest)


def refusal(function: Any, Wf: Any) -> asymmetric.ConditionError:
    """The error of a function that has to refuse W_f."""
    try:
        function(Wf)
    except asymmetric.ConditionError as error:
        return error
    raise AssertionError(f"{function.__name__} accepts {Wf}")


def witness_similarity() -> str:
    rotation, shear = np.array([[0.0, 1.0], [-1.0, 0.0]]), np.array([[1.0, 1.0], [0.0, 1.0]])
    turned, sheared = refusal(asymmetric.metric, rotation), refusal(asymmetric.metric, shear)
    require((turned.condition, sheared.condition) == ("real eigenvalues", "a basis of eigenvectors"))
    y = np.array([1.0, 0.0])
    orbit = [y]
    for _ in range(4):
        orbit.append(-orbit[-1] @ rotation)
    require((orbit[4] == y).all() and (orbit[1] != y).any())
    return (
        f"a quarter turn has the eigenvalues ±{turned.gap:g}i and comes back after four layers, so no energy falls; "
        f"a Jordan block has one eigenvector, so V Vᵀ has the eigenvalue {sheared.gap:.0f}"
    )


# ------------------------------------------------------------------------------------------------ ReLU


@dataclass(frozen=True, eq=False)
class SymmetrisableCase(LayerCase):
    """A layer with W_f diag(p) symmetric for some p (d,), and with zeros in W_f."""

    p: FloatArray


@st.composite
def symmetrisable_cases(draw: st.DrawFn) -> SymmetrisableCase:
    case = draw(layers())
    ffn, d = case.feedforward, len(case.feedforward.Wf)
    p = 2.0 ** np.array(draw(st.lists(st.integers(-3, 3), min_size=d, max_size=d)))
    kept = np.array(draw(st.lists(st.sampled_from([1.0, 1.0, 0.0]), min_size=d * d, max_size=d * d))).reshape(d, d)
    kept = np.triu(kept) + np.triu(kept, 1).T
    values = {field.name: getattr(ffn, field.name) for field in fields(ffn)}
    values["Wf"] = kept * (ffn.Wf + ffn.Wf.T) / 2 / p
    return SymmetrisableCase(case.Y, case.attention, FeedForwardCase(**values), p)


def check_relu(case: SymmetrisableCase) -> float | None:
    """The diagonal metric is found; in it the layer, W_f as it is, lowers the energy, and so does the joint step."""
    ffn, Y = case.feedforward, case.Y
    p = asymmetric.diagonal_metric(ffn.Wf)
    require((p > 0).all() and p.shape == case.p.shape, "p is not positive")
    # a chain of at most d ratios, each with the rounding of two logarithms below 10
    off = 64 * len(p) * EPS
    require_close(ffn.Wf * p, (ffn.Wf * p).T, off * np.abs(ffn.Wf * p), "W_f diag(p)")
    for component in range(connected_components(ffn.Wf != 0)[0]):
        there = connected_components(ffn.Wf != 0)[1] == component
        require_close(np.log(p[there]).sum(), 0.0, off * 10, "the geometric mean")
        ratio = p[there] / case.p[there]
        require_close(ratio, np.full_like(ratio, ratio[:1].sum()), off * ratio, "p is unique up to a factor")
    energy = FeedForwardEnergy(ffn.Wf, ffn.B, ffn.activation, metric=p)
    require_energy(energy, np.diag(p), ffn)
    largest = min(energy.max_alpha, 4.0)
    require_layer(energy, ffn, case.feedforward.fraction * largest)
    decrease_ratio(energy, np.diag(p), ffn, largest)
    attention = case.attention.energy
    smallest = float((attention.half_curvature(Y) + energy.half_curvature(Y)).min(initial=np.inf))
    if smallest > 1e-6:  # else steps of 1/M_i without bound: rounding alone, nothing to learn
        model = UnfoldedTransformer(attention, energy, depth=1, schedule="joint")
        Y_new = model.layer(Y)
        noise = moved_noise(attention, energy, Y, Y_new) * (1 + 1 / smallest) * (1 + p.sum())
        rise = model.value(Y_new) - model.value(Y)
        require(rise <= noise, f"the joint step raises the energy by {rise}")
    return decrease_ratio(energy, np.diag(p), ffn, case.feedforward.fraction * largest)


# W_f, b, y: in every metric of W_f the ReLU layer raises the energy at y
OUTSIDE = {
    "pairs of equal sign": ([[0.5, 1.0], [0.0, 0.0]], [-2.0, 0.0], [0.0, 3.0]),
    "equal products along cycles": (
        [[-1.5, 1.0, 0.5], [2.0, -0.5, -0.5], [0.5, -2.0, -0.5]], [-2.0, 0.0, -1.0], [0.0, 1.0, 0.0]
    ),
}  # fmt: skip


def witness_relu() -> str:
    rises = []
    for condition, (Wf, b, y) in OUTSIDE.items():
        require(refusal(asymmetric.diagonal_metric, Wf).condition == condition)
        energy = FeedForwardEnergy(Wf, b, "identity", metric=asymmetric.metric(Wf))
        require(energy.max_alpha > 1)
        Y = np.array([y])
        rises.append(energy.value(np.maximum(energy.step(Y), 0)) - energy.value(Y))
    require(min(rises) > 0.05)
    return (
        "W_f = ((½, 1), (0, 0)) has a metric, no diagonal one: ReLU(b − y W_f) from y = (0, 3), b = (−2, 0) raises the "
        f"energy by {rises[0]:.4f}; a 3-cycle with the products −¼ and −2 raises it by {rises[1]:.4f}"
    )


# ------------------------------------------------------------------------------------------------ Lyapunov


@dataclass(frozen=True, eq=False)
class StableCase(Case):
    """Two matrices of tokens, weights of spectral radius below 1, weights with |W_f| of one, and a bias."""

    Y: FloatArray
    Z: FloatArray
    Wf: FloatArray
    Wf_abs: FloatArray
    B: FloatArray


@st.composite
def stable_cases(draw: st.DrawFn) -> StableCase:
    Y = draw(strategies.tokens(n=st.integers(1, 4), d=st.integers(1, 4), scales=st.sampled_from([1.0, 2.0**-10])))
    d, radius = Y.shape[1], draw(st.integers(1, 15)) / 16
    units = 2.0 ** np.array(draw(st.lists(st.integers(-2, 2), min_size=d, max_size=d)))
    W = draw(matrices(d, d)) * units / units[:, None]  # far from normal: ‖W_f‖ says little of the radius

    def scaled(spectrum: FloatArray) -> FloatArray:
        rho = float(np.abs(np.linalg.eigvals(spectrum)).max())
        return W if rho < 1 / 16 else W * (radius / rho)  # a nilpotent matrix is as good as any

    return StableCase(Y, draw(matrices(*Y.shape)), scaled(W), scaled(np.abs(W)), draw(matrices(*Y.shape)))


def check_lyapunov(case: StableCase) -> float | None:
    """The squared P-distance of two tokens falls along the linear layer, and with a diagonal P along the ReLU layer."""
    W, d = case.Wf, case.Y.shape[1]
    gap = case.Y - case.Z
    P = asymmetric.lyapunov(W)
    require((P == P.T).all(), "P is not symmetric")
    # scipy's solver is backward stable: its residual is d² roundings of the terms, of which P is the largest
    error = 64 * d**2 * EPS * (1 + np.linalg.norm(W)) ** 2 * np.linalg.norm(P)
    require_close(P - W @ P @ W.T, np.eye(d), error, "P − W_f P W_fᵀ")
    moved = (case.B - case.Y @ W) - (case.B - case.Z @ W)
    squared = (gap * gap).sum()
    rounding = 16 * (d + 4) * EPS * (np.abs(case.Y) + np.abs(case.Z) + np.abs(case.B)) @ (np.eye(d) + np.abs(W))
    slack = error * squared + 2 * (np.abs(moved) @ np.abs(P) * rounding).sum() + (rounding @ np.abs(P) * rounding).sum()
    slack += 16 * d * EPS * (np.abs(gap) @ np.abs(P) * np.abs(gap)).sum()
    require_close((gap @ P * gap).sum() - (moved @ P * moved).sum(), squared, slack, "the fall")

    W = case.Wf_abs
    p, l = asymmetric.diagonal_lyapunov(W), np.linalg.solve(np.eye(d) - np.abs(W).T, np.ones(d))
    moved = np.maximum(case.B - case.Y @ W, 0) - np.maximum(case.B - case.Z @ W, 0)
    fall, bound = (p * gap**2).sum() - (p * moved**2).sum(), (gap**2 / l).sum()
    rounding = 16 * (d + 4) * EPS * (np.abs(case.Y) + np.abs(case.Z) + np.abs(case.B)) @ (np.eye(d) + np.abs(W))
    slack = (p * (2 * np.abs(moved) + rounding) * rounding).sum() + 16 * d * EPS * (p * gap**2).sum()
    # r and l are right to κ(I − |W_f|) roundings
    slack += 16 * d * EPS * np.linalg.cond(np.eye(d) - np.abs(W)) * (p * gap**2).sum()
    require(fall >= bound - slack, lambda: f"Σ p y² falls by {fall}, the bound is {bound}")
    return float((fall + slack) / bound) if bound > 1e6 * slack else None


def witness_lyapunov() -> str:
    Wf = np.array([[-2.0, 2.0], [-2.0, 2.0]])
    P = asymmetric.lyapunov(Wf)
    y = np.array([1.0, 0.0])
    linear = [y, -y @ Wf, y @ Wf @ Wf]
    relu = [y]
    for _ in range(3):
        relu.append(np.maximum(-relu[-1] @ Wf, 0))
    along = [[float(v @ P @ v) for v in path] for path in (linear, relu)]
    require(
        along[0][0] > along[0][1] > along[0][2] == 0 and along[1] == sorted(along[1]) and along[1][3] > 9 * along[1][0]
    )
    require(refusal(asymmetric.diagonal_lyapunov, Wf).gap > 0)
    figures = [", ".join(f"{v:.0f}" for v in path) for path in along]
    return (
        "W_f = ((−2, 2), (−2, 2)) is nilpotent: from (1, 0) the linear layer takes y P yᵀ through "
        f"{figures[0]}, the ReLU layer, which doubles y, through {figures[1]}"
    )


# ------------------------------------------------------------------------------------------------ two sides


@dataclass(frozen=True, eq=False)
class TwoSidedCase(Case):
    """Tokens, a form M of the logits, and two directions."""

    Y: FloatArray
    M: FloatArray
    V: FloatArray
    T: FloatArray


@st.composite
def two_sided_cases(draw: st.DrawFn) -> TwoSidedCase:
    n, d = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    M = draw(matrices(d, d)) / 2
    if draw(st.booleans()):
        M = M + M.T
    return TwoSidedCase(draw(matrices(n, d)) / 2, M, draw(matrices(n, d)), draw(matrices(n, d)))


def check_two_sided(case: TwoSidedCase) -> None:
    """The gradient against a difference of the energy; half of it is the query side iff M is symmetric."""
    with exact():
        Y, M, V, T = (matrix(A) for A in (case.Y, case.M, case.V, case.T))
        h = mpmath.mpf(10) ** -22

        def along(function: Any, at: Any, direction: Any) -> Any:
            """A central difference, right to 1e-15 of the logits' exponentials."""
            ahead, behind = (
                function(
                    [[y + s * h * v for y, v in zip(*rows, strict=True)] for rows in zip(at, direction, strict=True)]
                )
                for s in (1, -1)
            )
            return (ahead - behind) / (2 * h)

        size = -definitions.two_sided_energy(Y, M, mpmath.exp) * (1 + sum(abs(v) for row in V for v in row))
        gradient = definitions.two_sided_gradient(Y, M, mpmath.exp)
        slope = along(lambda Z: definitions.two_sided_energy(Z, M, mpmath.exp), Y, V)
        error = abs(slope - definitions.frobenius(gradient, V))
        require(error <= mpmath.mpf(10) ** -15 * size, lambda: f"the gradient is off by {mpmath.nstr(error, 5)}")

        # ⟨V, DF T⟩ − ⟨T, DF V⟩ of the query side F at Y = 0, where a gradient has 0
        def side(direction: Any) -> Any:
            return lambda Z: definitions.frobenius(definitions.query_side(Z, M, mpmath.exp), direction)

        zero = [[mpmath.mpf(0)] * len(row) for row in Y]
        curl = along(side(V), zero, T) - along(side(T), zero, V)
        v, t = ([sum(column) for column in zip(*A, strict=True)] for A in (V, T))
        skew = definitions.subtract(M, definitions.transpose(M))
        expected = -definitions.matmul(definitions.matmul([v], skew), [[x] for x in t])[0][0]
        require(abs(curl - expected) <= mpmath.mpf(10) ** -15, "the curl of the query side is not −v (M − Mᵀ) tᵀ")
        if (case.M == case.M.T).all():
            query = definitions.query_side(Y, M, mpmath.exp)
            halves = rounded([[2 * q for q in row] for row in query], case.Y.shape)
            require_close(halves, rounded(gradient, case.Y.shape), 4 * EPS * np.abs(halves), "twice the query side")


def witness_two_sided() -> str:
    M = [[0, 1], [0, 0]]

    def work(start: tuple[int, int], end: tuple[int, int]) -> Any:
        """The line integral of the query side from one corner to another."""
        move = [b - a for a, b in zip(start, end, strict=True)]

        def power(t: Any) -> Any:
            y = [a + t * m for a, m in zip(start, move, strict=True)]
            return definitions.frobenius(definitions.query_side([y], M, mpmath.exp), [move])

        return mpmath.quad(power, [0, 1])

    corners = [(0, 0), (1, 0), (1, 1), (0, 1), (0, 0)]
    with exact():
        total = sum(work(*ends) for ends in itertools.pairwise(corners))
        require(abs(total - (mpmath.e - 1)) <= mpmath.mpf(10) ** -30)
        figure = mpmath.nstr(total, 6)
    return f"M = ((0, 1), (0, 0)), one token: round the unit square the query side does the work e − 1 = {figure}"


CLAIMS = (
    Claim(
        "asymmetric.similarity",
        "y ↦ b − y W_f is a gradient step in a metric P iff W_f = V Λ V⁻¹, Λ real; then W_f V C Vᵀ is symmetric",
        "P constant and positive definite; C positive definite, C Λ = Λ C; descent for α ≤ 2 / λ_max(I + W_f)",
        NOTEBOOK,
        "refimpl.asymmetric.metric",
        similar_cases,
        check_similarity,
        witness_similarity,
    ),
    Claim(
        "asymmetric.relu",
        "ReLU is a prox in the metric P iff P = diag(p); w_ab p_b = w_ba p_a iff signs and products along cycles agree",
        "p > 0; E(Y) finite, φ convex for α ≤ 2 / λ_max(I + W_f), half of that where it is not",
        NOTEBOOK,
        "refimpl.asymmetric.diagonal_metric",
        symmetrisable_cases,
        check_relu,
        witness_relu,
    ),
    Claim(
        "asymmetric.lyapunov",
        "P − W_f P W_fᵀ = I: ‖y − z‖²_P falls by ‖y − z‖² a linear layer; P = diag(r/l): by Σ (y−z)_a² / l_a with ReLU",
        "spectral radius of W_f below 1; of |W_f| for r = (I − |W_f|)⁻¹ 1, l = (I − |W_f|ᵀ)⁻¹ 1",
        NOTEBOOK,
        "refimpl.asymmetric.lyapunov",
        stable_cases,
        check_lyapunov,
        witness_lyapunov,
    ),
    Claim(
        "asymmetric.two_sided",
        "∇(−Σ exp(y_i M y_jᵀ)) = −(e Y Mᵀ + eᵀ Y M), query and key side; the query side alone is a gradient iff M = Mᵀ",
        "e_ij = exp(y_i M y_jᵀ), any M",
        NOTEBOOK,
        "refimpl.definitions.two_sided_gradient",
        two_sided_cases,
        check_two_sided,
        witness_two_sided,
    ),
)
