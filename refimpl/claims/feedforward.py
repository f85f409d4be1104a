"""Claims of section 3: the feed-forward layer as proximal descent. Derived in ``derivations/03_feedforward.md``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
from hypothesis import strategies as st

from .. import definitions
from ..activation import Activation, get_activation
from ..feedforward import FeedForwardEnergy
from ..numerics import EPS, FloatArray, Output
from ..testing import strategies
from ..testing.exact import exact, matrix, rounded
from ..testing.rounding import TINY, U, feedforward_error
from ..testing.strategies import FeedForwardCase
from .ledger import Claim, require, require_close

NOTEBOOK = "03_feedforward.md"


def argument_error(case: FeedForwardCase, alpha: float) -> FloatArray:
    """A bound on the rounding of Y − α (Y H − B), entry by entry: (d + 6) u of the sum of its terms' magnitudes."""
    Y, d = np.abs(case.Y), len(case.Wf)
    return np.asarray((d + 6) * U * (Y + alpha * (Y + Y @ (np.abs(case.Wf) + np.abs(case.Wf.T)) / 2 + np.abs(case.B))))


def check_gradient(case: FeedForwardCase) -> None:
    """∇ of the smooth part is Y H − B: against the definition, and that against a difference of the energy."""
    with exact():
        Y, Wf, B, V = (matrix(M) for M in (case.Y, case.Wf, case.B, case.V))
        G = definitions.feedforward_gradient(Y, Wf, B)
        ahead, behind = (
            definitions.feedforward_energy(
                [[y + s * v for y, v in zip(*rows, strict=True)] for rows in zip(Y, V, strict=True)], Wf, B, lambda y: 0
            )
            for s in (1, -1)
        )
        slope, along = (ahead - behind) / 2, definitions.frobenius(G, V)  # exact: the energy is quadratic
        require(abs(slope - along) <= mpmath.mpf(10) ** -35 * (1 + abs(slope)), "the gradient is not the energy's")
        expected = rounded(G, case.Y.shape)
        smooth = float(definitions.feedforward_energy(Y, Wf, B, lambda y: 0))
    require_close(case.energy.gradient(case.Y), expected, argument_error(case, 1.0) + TINY, "gradient")
    phi = float(np.asarray(case.activation.penalty(case.Y)).sum())
    require_close(case.energy.value(case.Y), smooth + phi, feedforward_error(case.energy, case.Y) + TINY, "energy")


def objective_noise(y: Any, v: Any, phi: Any, alpha: Any) -> Any:
    """A bound on the rounding of ½ (y − v)² + α φ(y): a few u of the terms, of which φ's are at most 2 (1 + y²)."""
    with np.errstate(invalid="ignore"):
        finite = np.where(np.isfinite(phi), np.abs(phi), 0.0)
    return 16 * U * ((np.abs(y) + np.abs(v)) ** 2 + alpha * (finite + 2 * (1 + np.minimum(y * y, v * v + 4))))


def require_prox(activation: Activation, p: Output, v: FloatArray, alpha: float, blur: Any = 0.0) -> None:
    """p minimises ½ (y − v)² + α φ(y) against a grid, close neighbours and the other candidates, for |v error| ≤ blur.

    For convex φ the objective is 1-strongly convex, so a competitor at distance h must be worse by ½ h²: that shows
    an error of p itself, to which the value at the minimum is blind.
    """
    p, v = np.asarray(p, dtype=np.float64).reshape(-1, 1), v.reshape(-1, 1)
    blur = np.broadcast_to(np.asarray(blur, dtype=np.float64).reshape(-1, 1) if np.ndim(blur) else blur, p.shape)
    h = 2.0 ** np.arange(-30, 3, 3) * (1 + np.abs(v))
    competitors = np.concatenate(
        [p - h, p + h, v, 0 * v, v * np.linspace(-1.5, 1.5, 25) + np.linspace(-2, 2, 25)], axis=1
    )
    phi, phi_p = np.asarray(activation.penalty(competitors)), np.asarray(activation.penalty(p))
    require(np.isfinite(phi_p).all(), "the prox leaves the domain of φ")
    value = 0.5 * (competitors - v) ** 2 + alpha * phi
    best = 0.5 * (p - v) ** 2 + alpha * phi_p
    distance = np.abs(competitors - p)
    noise = objective_noise(competitors, v, phi, alpha) + objective_noise(p, v, phi_p, alpha)
    noise = noise + distance * (blur + 8 * U * (np.abs(v) + np.abs(p)))
    # where φ is the same at p and on both sides of it, the objective is ½ (y − v)² alone, φ convex or not
    flat = np.zeros_like(distance, dtype=bool)
    flat[:, : 2 * h.shape[1]] = np.tile(
        (phi[:, : h.shape[1]] == phi_p) & (phi[:, h.shape[1] : 2 * h.shape[1]] == phi_p), 2
    )
    gain = np.where(activation.convex | flat, 0.5 * distance**2 * (1 - 1e-12), 0.0)
    wrong = ~(value >= best + gain - noise)
    require(
        not wrong.any(),
        lambda: (
            f"{activation.name}, α = {alpha}: at v = {v[wrong.any(axis=1)][0, 0]} the prox "
            f"{p[wrong.any(axis=1)][0, 0]} is beaten by {competitors[wrong][0]}"
        ),
    )


def check_step(case: FeedForwardCase) -> None:
    """Y⁺ = prox_{αφ}(Y − α (Y H − B)): the definition of the prox at the exact argument; ReLU(B − Y W_fˢ) at α = 1."""
    alpha = 2 * case.fraction
    Y_new = case.energy.step(case.Y, alpha)
    with exact():
        Y, Wf, B = (matrix(M) for M in (case.Y, case.Wf, case.B))
        argument = rounded(definitions.feedforward_step(Y, Wf, B, lambda v, a: v, mpmath.mpf(alpha)), case.Y.shape)
        relu = rounded(definitions.feedforward_step(Y, Wf, B, lambda v, a: max(v, mpmath.mpf(0)), 1), case.Y.shape)
        layer = [[max(b - x, 0) for b, x in zip(*rows, strict=True)] for rows in zip(B, _product(Y, Wf), strict=True)]
        require_close(relu, rounded(layer, case.Y.shape), TINY, "ReLU(B − Y W_fˢ)")
    blur = argument_error(case, alpha) + U * np.abs(argument)
    if Y_new.size and case.activation.convex:
        require_prox(case.activation, Y_new, argument, alpha, blur)
    as_relu = FeedForwardEnergy(case.Wf, case.B, "relu").step(case.Y)
    require_close(as_relu, relu, argument_error(case, 1.0) + TINY, "ReLU step")
    expected = case.activation.prox(argument, alpha)
    clear = case.activation.convex | (
        np.abs(np.abs(argument) - 0.5 * np.sqrt(alpha)) > blur
    )  # the hard threshold jumps
    require_close(Y_new[clear], expected[clear], 4 * blur[clear] + 8 * EPS * np.abs(expected[clear]), "step")


def _product(Y: Any, Wf: Any) -> Any:
    return definitions.matmul(Y, definitions.symmetric_part(Wf)) if Y else []


def check_sufficient_decrease(case: FeedForwardCase) -> float | None:
    """E(Y) − E(Y⁺) ≥ (1/α − ½ λ_max(H)) ‖Δ‖² for convex φ, ½ (1/α − λ_max(H)) ‖Δ‖² for any; the ratio of the two.

    At the largest step the bound is 0; it is tried on every example, and a shorter one for the ratio.
    """
    largest = min(case.energy.max_alpha, 4.0)
    _decrease_ratio(case, largest)
    return _decrease_ratio(case, case.fraction * largest)


def _decrease_ratio(case: FeedForwardCase, alpha: float) -> float | None:
    energy, Y = case.energy, case.Y
    Y_new = energy.step(Y, alpha)
    Delta = Y_new - Y
    squared = (Delta * Delta).sum()
    if case.activation.convex:
        bound = (1 / alpha - 0.5 * energy.curvature) * squared
    else:
        bound = 0.5 * (1 / alpha - energy.curvature) * squared
    # Y⁺ is off by at most δ in each entry; the slope of E there is at most (‖H‖ + 1/α) ‖Δ‖ + |φ'|, and |φ'| < 40 + |y|
    # wherever floats can tell y from the end of φ's domain
    delta = 4 * argument_error(case, alpha) / min(1.0, alpha) + 8 * U * np.abs(Y_new)
    H = 1 + np.abs(energy.Wf).sum()
    slope = (H + 1 / alpha) * np.sqrt(squared) + 40 + np.abs(Y_new)
    slack = feedforward_error(energy, Y) + feedforward_error(energy, Y_new) + 4 * (slope * delta).sum()
    slack += 1e-13 * (H + 1 / alpha) * squared
    fall = energy.value(Y) - energy.value(Y_new)
    require(fall >= -slack, lambda: f"α = {alpha}: E rises by {-fall}")
    require(fall >= bound - slack, lambda: f"α = {alpha}: E falls by {fall}, the bound is {bound}")
    return float((fall + slack) / bound) if bound > 1e6 * slack else None


def witness_sufficient_decrease() -> str:
    changes = []
    for weight in (0.95, 1.2):
        energy = FeedForwardEnergy([[weight]], 1.0, "identity")
        changes.append(energy.value(energy.step([[1.0]])) - energy.value([[1.0]]))
    require(changes[0] < 0 < changes[1])
    return (
        "½ λ y² + ½ (y − 1)², step α = 1 from y = 1: "
        f"λ = 0.95 changes the energy by {changes[0]:.4f}, λ = 1.2 (α > 2 / λ_max(H)) by {changes[1]:+.4f}"
    )


# ------------------------------------------------------------------------------------------ proximal operators

_ARGUMENTS = st.lists(st.integers(-160, 160).map(lambda i: i / 16), min_size=2, max_size=8).map(np.array)
_STEPS = st.sampled_from([1.0, 0.125, 0.3, 0.75, 1.7, 2.5, 8.0])


# σ⁻¹ of the smooth activations where it is smooth, so φ' = σ⁻¹ − id
_INVERSES: dict[str, Callable[[Any], Any]] = {
    "tanh": mpmath.atanh,
    "sigmoid": lambda y: mpmath.log(y / (1 - y)),
    "softplus": lambda y: mpmath.log(mpmath.expm1(y)),
    "elu": lambda y: mpmath.log1p(y) if y < 0 else y,
}
_ENDS = {"tanh": (-1, 1), "sigmoid": (0, 1), "softplus": (0, math.inf), "elu": (-1, math.inf)}


def require_stationary(name: str, p: FloatArray, v: FloatArray, alpha: float) -> None:
    """(1 − α) y + α σ⁻¹(y) = v, the optimality condition of prox_{αφ}, at 50 digits, and y is its last bits away."""
    inverse = _INVERSES[name]
    with exact():
        for y, at in zip(map(mpmath.mpf, p.tolist()), map(mpmath.mpf, v.tolist()), strict=True):
            low, high = _ENDS[name]
            if y == 0 or not low + 1e-4 < y < high - 1e-4:
                continue  # next to an end of the domain σ⁻¹ is too steep for floats to meet the condition
            slope = (1 - alpha) + alpha * mpmath.diff(inverse, y)
            error = ((1 - alpha) * y + alpha * inverse(y) - at) / slope
            allowed = 16 * U * (abs(y) + abs(at) / slope)
            require(abs(error) <= allowed, f"{name}: at v = {float(at)} off by {float(error):.3g}")


def check_prox(case: tuple[Activation, FloatArray, float]) -> None:
    """The definition of the prox; the subgradient inequality behind Moreau's identity; firm non-expansiveness."""
    activation, v, alpha = case
    p = np.asarray(activation.prox(v, alpha))
    require_prox(activation, p, v, alpha)
    if activation.name in _INVERSES:
        require_stationary(activation.name, p, v, alpha)
    if activation.convex:
        # v = p + α g with g ∈ ∂φ(p): φ(y) ≥ φ(p) + g (y − p), which is Moreau's v = prox_φ(v) + prox_φ*(v) at α = 1
        y = np.linspace(-12, 12, 97)[:, None] + p
        phi, phi_p = np.asarray(activation.penalty(y)), np.asarray(activation.penalty(p))
        supported = phi_p + (v - p) / alpha * (y - p)
        noise = (objective_noise(y, v, phi, alpha) + 8 * U * (np.abs(v) + 20) * np.abs(y - p)) / alpha
        require((phi >= supported - noise).all(), lambda: f"{activation.name}: (v − p) / α is no subgradient at p")
        firm = (p[:, None] - p) * (v[:, None] - v) - (p[:, None] - p) ** 2
        require((firm >= -64 * U * (1 + np.abs(v).max()) ** 2).all(), f"{activation.name}: not firmly non-expansive")


def witness_prox() -> str:
    hard = get_activation("hard_threshold")
    v = np.array([0.4, 0.6])
    p = hard.prox(v, 1.0)
    require((p[1] - p[0]) * (v[1] - v[0]) < (p[1] - p[0]) ** 2)
    return f"hard threshold, φ not convex: v = (0.4, 0.6) goes to {p.tolist()}, further apart: not firmly non-expansive"


def check_characterisation(case: tuple[Activation, FloatArray, float]) -> None:
    """σ is non-decreasing; it is 1-Lipschitz where φ is convex."""
    activation, v, _ = case
    v = np.sort(v)
    y = np.asarray(activation.prox(v, 1.0))
    rounding = 8 * U * (1 + np.abs(v).max())
    require((np.diff(y) >= -rounding).all(), lambda: f"{activation.name} decreases")
    if activation.convex:
        require((np.diff(y) <= np.diff(v) + rounding).all(), lambda: f"{activation.name} is not 1-Lipschitz")


def witness_characterisation() -> str:
    with exact():
        silu = [v / (1 + mpmath.exp(-v)) for v in map(mpmath.mpf, (-3, -1.25))]
        gelu = [v * (1 + mpmath.erf(v / mpmath.sqrt(2))) / 2 for v in map(mpmath.mpf, (-3, -0.75))]
        require(silu[0] > silu[1] and gelu[0] > gelu[1])
        figures = [mpmath.nstr(x, 4) for x in (*silu, *gelu)]
    hard = get_activation("hard_threshold").prox(np.array([0.49, 0.5]), 1.0)
    require(hard[1] - hard[0] > 0.01)
    return (
        f"not monotone, so the prox of nothing: SiLU(−3) = {figures[0]} > SiLU(−1.25) = {figures[1]}; "
        f"GELU(−3) = {figures[2]} > GELU(−0.75) = {figures[3]}. Monotone with a jump, so of no convex φ: hard threshold"
    )


CLAIMS = (
    Claim(
        "ffn.gradient",
        "the gradient of the smooth part is Y H − B with H = I + ½ (W_f + W_fᵀ)",
        "any W_f",
        NOTEBOOK,
        "refimpl.FeedForwardEnergy.gradient",
        strategies.feedforward_cases,
        check_gradient,
    ),
    Claim(
        "ffn.step",
        "Y⁺ = prox_{αφ}(Y − α (Y H − B)); for ReLU at α = 1 it is ReLU(B − Y W_fˢ)",
        "φ proper and prox-able, α > 0",
        NOTEBOOK,
        "refimpl.FeedForwardEnergy.step",
        strategies.feedforward_cases,
        check_step,
    ),
    Claim(
        "ffn.sufficient_decrease",
        "E(Y) − E(Y⁺) ≥ (1/α − ½ λ_max(H)) ‖Δ‖² for convex φ, ½ (1/α − λ_max(H)) ‖Δ‖² for any φ",
        "E(Y) finite; descent for 0 < α ≤ 2 / λ_max(H), half of that where φ is not convex",
        NOTEBOOK,
        "refimpl.FeedForwardEnergy.step",
        strategies.feedforward_cases,
        check_sufficient_decrease,
        witness_sufficient_decrease,
    ),
    Claim(
        "prox.definition",
        "prox_{αφ}(v) minimises ½ (y − v)² + α φ(y); Moreau's identity; firmly non-expansive iff φ is convex",
        "φ proper, closed and prox-able",
        NOTEBOOK,
        "refimpl.Activation.prox",
        lambda: st.tuples(strategies.activations(), _ARGUMENTS, _STEPS),
        check_prox,
        witness_prox,
    ),
    Claim(
        "prox.activation_characterisation",
        "σ is the prox of some function iff it is non-decreasing, of a convex one iff it is 1-Lipschitz as well",
        "σ a function of one number",
        NOTEBOOK,
        "refimpl.Activation",
        lambda: st.tuples(strategies.activations(), _ARGUMENTS, _STEPS),
        check_characterisation,
        witness_characterisation,
    ),
)
