"""Claims of section 1: attention as descent. Derived in ``derivations/01_attention.md``."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from .. import definitions
from ..attention import AttentionEnergy
from ..numerics import EPS, FloatArray
from ..rho import Rho, get_rho
from ..testing import strategies
from ..testing.exact import attention_input, exact, matrix, rounded
from ..testing.rounding import TINY, U, descent_slack, energy_error, pairs, spread, step_error, sum_error
from ..testing.strategies import AttentionCase
from .ledger import Claim, Violation, require, require_close

NOTEBOOK = "01_attention.md"


def away_from_kinks(case: AttentionCase) -> bool:
    """Whether every z is clear of 1, where the kernels with compact support have a kink or a jump."""
    Z = pairs(case.energy, case.Y)[0]
    return case.rho.name not in ("truncated", "epanechnikov") or bool((np.abs(Z - 1) > 1e-9).all())


# ------------------------------------------------------------------------------------------------ the equations


def check_gradient(case: AttentionCase) -> None:
    """∇E = L Y S: NumPy against the definition at 50 digits, and that against a difference quotient of the energy."""
    assume(away_from_kinks(case))
    with exact():
        Y, W, m, rho, rho_prime = attention_input(case)
        G = definitions.attention_gradient(Y, W, rho_prime, m)
        V, h = matrix(case.V), mpmath.mpf(10) ** -25 * (1 + mpmath.mpf(spread(case.Y)))
        ahead, behind = (
            definitions.attention_energy(
                [[y + s * h * v for y, v in zip(*rows, strict=True)] for rows in zip(Y, V, strict=True)], W, rho, m
            )
            for s in (1, -1)
        )
        slope, along = (ahead - behind) / (2 * h), definitions.frobenius(G, V)
        size = sum(abs(g * v) for row, other in zip(G, V, strict=True) for g, v in zip(row, other, strict=True))
        require(
            abs(slope - along) <= mpmath.mpf(10) ** -15 * (1 + size),
            lambda: f"the energy rises by {mpmath.nstr(slope, 12)} along V, the gradient says {mpmath.nstr(along, 12)}",
        )
        expected = rounded(G, case.Y.shape)
    # the diagonal of Γ cancels in L: the gradient is right relative to the rest, the definition to 1e-45 of the whole
    degree = pairs(case.energy, case.Y)[2].sum(axis=1) + 1e-33 * case.energy.kernel(case.Y).sum(axis=1)
    tolerance = 1e-12 * degree[:, None] * spread(case.Y) * case.energy.spectral_norm + TINY
    require_close(case.energy.gradient(case.Y), expected, tolerance, "gradient")


def check_step(case: AttentionCase) -> None:
    """Y⁺ = (1 − α) Y + α A Y: NumPy against the definition at 50 digits, and softmax_β for ρ = −e^(−z)."""
    assume(away_from_kinks(case))
    alpha = 2 * case.fraction
    with exact():
        Y, W, m, _, rho_prime = attention_input(case)
        expected = rounded(definitions.attention_step(Y, W, rho_prime, m, mpmath.mpf(alpha)), case.Y.shape)
        softmax = None
        if case.rho.name == "exp" and case.m is None and len(Y):
            softmax = rounded(definitions.softmax_attention(Y, W, mpmath.exp, _beta), case.Y.shape)
    tolerance = 1e-12 * (1 + alpha) * spread(case.Y) + EPS * np.abs(expected) + TINY
    require_close(case.energy.step(case.Y, alpha), expected, tolerance, "step")
    require_close(case.energy.weights(case.Y).sum(axis=1), np.ones(len(case.Y)), 1e-12, "row sums of A")
    if softmax is not None:
        tolerance = 1e-12 * spread(case.Y) + EPS * np.abs(softmax) + TINY
        require_close(case.energy.step(case.Y), softmax, tolerance, "softmax step")


def _beta(u: Any) -> Any:
    return mpmath.exp(-sum(x * x for x in u) / 2)


# ------------------------------------------------------------------------------------- concavity and the majorizer


def check_half_quadratic(case: tuple[Rho, float, float]) -> None:
    """ρ(z) ≤ γ z − ρ*(γ) at γ = ρ'(s), where it is the tangent at s: equality at s = z."""
    rho, z, s = case
    with exact():
        value, derivative = rho.literal("mpmath")
        exact_z, exact_s = mpmath.mpf(z), mpmath.mpf(s)
        tangent = value(exact_s) + derivative(exact_s) * (exact_z - exact_s)
        require(derivative(exact_s) >= 0, lambda: f"ρ'({s}) is negative")
        require(
            value(exact_z) <= tangent + mpmath.mpf(10) ** -40 * (1 + abs(tangent)),
            lambda: f"ρ({z}) lies above the tangent at {s}",
        )
        expected = float(value(exact_z)), float(derivative(exact_z))
    for function, reference in zip((rho.value, rho.derivative), expected, strict=True):
        computed = np.broadcast_to(function(np.array([z])), (1,))
        require_close(computed, [reference], 4 * EPS * (1 + z) * abs(reference) + TINY, f"{rho.name} at {z}")


def witness_half_quadratic() -> str:
    rho = get_rho("z**2")
    value, tangent = rho.value(np.array(2.0)), rho.value(np.array(1.0)) + rho.derivative(np.array(1.0)) * 1.0
    require(value > tangent)
    return f"ρ = z², not concave: ρ(2) = {value:g} lies above the tangent at 1, which is {tangent:g} there"


def check_majorizer(case: AttentionCase) -> None:
    """E(Y') ≤ Q(Y' | Y), with equality at Y' = Y."""
    attention, Y = case.energy, case.Y
    Y_new = Y + case.V * case.fraction * (1 + np.abs(Y).max(initial=0.0))
    slack = energy_error(attention, Y) + energy_error(attention, Y_new)
    Z_new, _, _ = pairs(attention, Y_new)
    Z, _, Gamma = pairs(attention, Y)
    size = np.where(Gamma == 0, 0.0, Gamma * (Z_new + Z)).sum()
    slack += (Y.shape[1] + 2 * len(Y) + 16) * U * size
    Q, E = attention.majorizer(Y_new, Y), attention.value(Y_new)
    require(Q + slack >= E, lambda: f"E(Y') = {E} lies {E - Q:.3g} above Q(Y' | Y) = {Q}")
    require_close(attention.majorizer(Y, Y), attention.value(Y), 0.0, "Q(Y | Y)")
    with exact():
        exact_Y, W, m, rho, rho_prime = attention_input(case)
        expected = definitions.attention_majorizer(matrix(Y_new), exact_Y, W, rho, rho_prime, m)
    if away_from_kinks(case):
        require_close(Q, float(expected), slack + 1e-12 * size + 1e-12 * abs(float(expected)), "Q")


def witness_majorizer() -> str:
    attention = AttentionEnergy(rho="z**2")
    E, Q = attention.value([[0.0], [2.0]]), attention.majorizer([[0.0], [2.0]], [[0.0], [1.0]])
    require(E > Q)
    return f"ρ = z², not concave: Y = (0, 1), Y' = (0, 2) has E(Y') = {E:g} above Q(Y' | Y) = {Q:g}"


# ------------------------------------------------------------------------------------------------ descent


def check_sufficient_decrease(case: AttentionCase) -> float | None:
    """E(Y) − E(Y⁺) ≥ ½ Tr S Δᵀ (D + Γ) Δ ≥ min_i m_ii ρ'(0) ‖Δ W‖²_F; the ratio is of the first to the last."""
    attention, Y = case.energy, case.Y
    Y_new = attention.step(Y)
    r = step_error(Y, Y_new)
    slack = descent_slack(attention, Y, Y_new, r)
    moved = Y_new - Y if case.W is None else (Y_new - Y) @ case.W
    diagonal = 1.0 if case.m is None else case.m.diagonal().min(initial=np.inf) if len(Y) else 1.0
    slope = diagonal * float(np.broadcast_to(case.rho.derivative(np.zeros(1)), (1,))[0])
    # the bounds are taken at the rounded step: Δ W is off by e = ‖W‖ r in each row
    e = np.sqrt(attention.spectral_norm) * r
    size = np.linalg.norm(moved, axis=1)
    blur = ((2 * size + e) * e).sum()
    degree = pairs(attention, Y)[2].sum(axis=1).max(initial=0.0) + slope
    weak, strong = slope * (size**2).sum(), attention.step_decrease(Y)
    fall = attention.value(Y) - attention.value(Y_new)
    slack_strong = slack + 4 * degree * blur + 64 * U * degree * (size**2).sum()
    require(fall >= strong - slack_strong, lambda: f"E falls by {fall}, the bound is {strong}")
    require(strong >= weak - slack_strong, lambda: f"½ Tr S Δᵀ(D+Γ)Δ = {strong} is below {weak}")
    return float((fall + 2 * slack_strong) / weak) if weak > 1e6 * slack_strong else None


def witness_sufficient_decrease() -> str:
    rho, Y = get_rho("1 - cos(z)"), [[0.2], [0.7], [-1.9]]
    attention = AttentionEnergy(rho=rho)
    before, after = attention.value(Y), attention.value(attention.step(Y))
    require(after > before)
    swap = AttentionEnergy(pair_weights=[[0, 1], [1, 0]])
    swapped, gradient = swap.step([[0.0], [1.0]]), swap.gradient([[0.0], [1.0]])
    require(np.array_equal(swapped, [[1.0], [0.0]]) and np.abs(gradient).max() > 0.1)
    return (
        f"ρ = 1 − cos z, not concave: Y = (0.2, 0.7, −1.9) rises from {before:.3f} to {after:.3f}. "
        "Without m_ii > 0 equality does not mean stationary: m = ((0, 1), (1, 0)) swaps Y = (0, 1) at equal energy, "
        f"‖∇E‖ = {np.linalg.norm(gradient):.3f}"
    )


def check_overrelaxation(case: AttentionCase) -> None:
    """E(Y⁺) ≤ E(Y) for 0 < α ≤ α_max = 2 / (1 − λ_min(A)), and α_max > 1."""
    attention, Y = case.energy, case.Y
    limit = float(attention.max_alpha(Y))
    alive = case.m is None or bool((case.m.diagonal() > 0)[case.m.any(axis=1)].all())
    require(not alive or limit > 1, lambda: f"α_max = {limit}")
    A = attention.weights(Y)
    if len(Y) and np.isfinite(limit):
        # a second route to λ_min(A): the general eigenvalue solver on A itself
        smallest = np.linalg.eigvals(A).real.min()
        require_close(2 / limit, 1 - smallest, 1e-6, "1 − λ_min(A)")
    alpha = case.fraction * min(limit, 64.0)
    Y_new = attention.step(Y, alpha)
    r = step_error(Y, Y_new, alpha)
    # α_max is off by n ε relative to λ: at the limit the first-order gain is 0, and the error counts in full
    moved = Y_new - Y if case.W is None else (Y_new - Y) @ case.W
    degree = pairs(attention, Y)[2].sum(axis=1)
    slack = descent_slack(attention, Y, Y_new, r) + 8 * len(Y) * EPS * (degree[:, None] * moved**2).sum()
    rise = attention.value(Y_new) - attention.value(Y)
    require(rise <= slack, lambda: f"α = {alpha} of α_max = {limit}: the energy rises by {rise}")


def witness_overrelaxation() -> str:
    attention = AttentionEnergy(pair_weights=[[0, 1], [1, 0]])
    Y = np.array([[0.0], [1.0]])
    limit, alpha = float(attention.max_alpha(Y)), 1.25
    rise = attention.value(attention.step(Y, alpha)) - attention.value(Y)
    require(abs(limit - 1) < 1e-12 and rise > 0.01)
    return (
        f"α_max > 1 needs m_ii > 0: m = ((0, 1), (1, 0)) has α_max = {limit:g}. Beyond it the energy can rise: "
        f"α = {alpha}, Y = (0, 1) raises it by {rise:.4f}"
    )


def check_bernstein(case: AttentionCase) -> float | None:
    """Γ ⪰ 0 for completely monotone ρ' and m ⪰ 0, so α_max ≥ 2; the ratio is α_max / 2.

    The tokens are tried at their own scale and at some where the largest z is near 1, where kernels differ most.
    """
    largest = float(pairs(case.energy, case.Y)[0].max(initial=0.0))
    scales = [1.0] + [float(np.sqrt(z / largest)) for z in (0.75, 1.5, 3.0, 6.0) if 0 < largest < np.inf]
    ratios = [_bernstein_ratio(case.energy, case.Y * scale) for scale in scales]
    return min((ratio for ratio in ratios if ratio is not None), default=None)


def _bernstein_ratio(attention: AttentionEnergy, Y: FloatArray) -> float | None:
    if len(Y) == 0:
        return None
    Gamma = attention.kernel(Y)
    size = np.abs(Gamma).sum(axis=1).max()
    smallest = np.linalg.eigvalsh(Gamma)[0]
    # an entry of Γ is right to (k + 8) u relative to ρ' + |ρ''| z, at most 2 m_ij ρ'(0); the solver adds n u ‖Γ‖
    entry = attention.kernel(np.zeros_like(Y)).sum(axis=1).max()
    slack = 8 * (len(Y) + 8) * U * (size + entry)
    require(smallest >= -slack, lambda: f"λ_min(Γ) = {smallest} at the scale of Y = {Y.tolist()}")
    limit = float(attention.max_alpha(Y))
    degree = Gamma.sum(axis=1)
    relative = slack / degree[degree > 0].min(initial=np.inf) if (degree > 0).any() else 0.0
    require(limit >= 2 - 4 * relative, lambda: f"α_max = {limit} at the scale of Y = {Y.tolist()}")
    return limit / 2 if np.isfinite(limit) and relative < 1e-9 else None


def witness_bernstein() -> str:
    attention = AttentionEnergy(rho="epanechnikov")
    Y = 11 / 16 * np.arange(5)[:, None]
    smallest = np.linalg.eigvalsh(attention.kernel(Y))[0]
    limit = float(attention.max_alpha(Y))
    require(smallest < -0.2 and limit < 1.9)
    return (
        "epanechnikov, concave but not Bernstein: five tokens on a line, 11/16 apart, have "
        f"λ_min(Γ) = {smallest:.4f} and α_max = {limit:.4f}"
    )


# ------------------------------------------------------------------------------------------------ invariants


def check_invariants(case: AttentionCase) -> None:
    """Permutation, translation, rotation; convex hull; weighted mean; single and equal tokens; the orthant."""
    attention, Y = case.energy, case.Y
    n, d = Y.shape
    assume(away_from_kinks(case))
    E, Y_new = attention.value(Y), attention.step(Y)
    error, bits = energy_error(attention, Y), step_error(Y, Y_new).max(initial=0.0)

    order = np.random.default_rng(n).permutation(n)
    m = None if case.m is None else case.m[np.ix_(order, order)]
    permuted = AttentionEnergy(case.W, case.rho, m)
    require_close(permuted.value(Y[order]), E, 2 * error, "energy of permuted tokens")
    require_close(permuted.step(Y[order]), Y_new[order], 2 * bits, "step of permuted tokens")

    shift = 1024.0 * case.V[:1] * 2.0 ** np.frexp(np.abs(Y).max(initial=1.0))[1]
    if n and np.array_equal((Y + shift) - shift, Y):  # exact: the tokens are dyadic
        require_close(attention.value(Y + shift), E, 2 * error, "energy of translated tokens")
        tolerance = 2 * bits + EPS * np.abs(Y_new + shift)
        require_close(attention.step(Y + shift), Y_new + shift, tolerance, "step of translated tokens")

    # a signed permutation of the coordinates is an exact rotation or reflection
    Q = np.eye(d)[np.random.default_rng(d).permutation(d)] * np.where(np.arange(d) % 2, -1.0, 1.0)
    W = np.eye(d) if case.W is None else case.W
    turned = AttentionEnergy(Q.T @ W, case.rho, case.m)
    require_close(turned.value(Y @ Q), E, 2 * error, "energy of rotated tokens")
    require_close(turned.step(Y @ Q), Y_new @ Q, 2 * bits, "step of rotated tokens")

    along = Y @ case.V[0] if n else np.zeros(0)
    after = Y_new @ case.V[0] if n else np.zeros(0)
    slack = (bits + 4 * d * U * np.abs(Y).max(initial=0.0)) * (1 + np.abs(case.V).sum())
    require((after <= along.max(initial=-np.inf) + slack).all(), "a token left the convex hull")
    require((Y_new >= Y.min(axis=0, initial=np.inf)).all(), "a coordinate left the tokens' range")
    require((attention.step(np.abs(Y)) >= 0).all(), "a non-negative token became negative")

    degree = attention.kernel(Y).sum(axis=1)
    drift = degree @ (Y_new - Y)
    require_close(drift, np.zeros(d), degree.sum() * 2 * bits + sum_error(degree[:, None] * Y), "1ᵀ D (Y⁺ − Y)")
    require_close(attention.step(Y[:1]) if case.m is None else Y[:1], Y[:1], 0.0, "a single token")
    equal = np.repeat(Y[:1], n, axis=0)
    require_close(attention.step(equal), equal, 0.0, "equal tokens")


def check_blurring_mean_shift(s: float) -> None:
    """With W = I, tokens from N(0, s²) contract to s² / (1 + s²) of themselves, so their deviation to s³ / (1 + s²).

    The tokens are the nodes of a Gauss–Hermite rule and m_ij = w_i w_j its weights, so the mean over tokens is the
    integral against the density, and w_i drops out of row i.
    """
    nodes, w = np.polynomial.hermite_e.hermegauss(48)
    w = w / w.sum()
    inside = np.abs(nodes) < 6
    Y = s * nodes[:, None]
    Y_new = AttentionEnergy(pair_weights=np.outer(w, w)).step(Y)
    expected = Y * s**2 / (1 + s**2)
    # the rule is exact to the 95th derivative of the kernel; at nodes below 6 s that leaves less than this
    require_close(Y_new[inside], expected[inside], 1e-9 * s, "contracted tokens")
    deviation = np.sqrt((w * Y_new[:, 0] ** 2).sum())
    require_close(deviation, s**3 / (1 + s**2), 1e-9 * s, "standard deviation")


# ------------------------------------------------------------------------------------------------ plain softmax


def check_unweighted(case: tuple[FloatArray, FloatArray | None]) -> None:
    """Where all ‖u_i‖ are equal, plain softmax(U Uᵀ) Y is the descent step."""
    Y, _ = case
    with exact():
        plain = definitions.softmax_attention(matrix(Y), definitions.identity(Y.shape[1]), mpmath.exp, lambda u: 1)
        expected = rounded(plain, Y.shape)
    require_close(AttentionEnergy().step(Y), expected, 1e-12 * spread(Y) + EPS * np.abs(expected), "plain softmax")


def equal_norms() -> st.SearchStrategy[tuple[FloatArray, None]]:
    """Tokens that differ by the signs and the order of their coordinates: their norms are equal exactly."""

    @st.composite
    def draw_tokens(draw: st.DrawFn) -> tuple[FloatArray, None]:
        n, d = draw(st.integers(1, 6)), draw(st.integers(1, 4))
        first = draw(strategies.matrices(1, d))[0]
        orders = [draw(st.permutations(range(d))) for _ in range(n)]
        signs = draw(strategies.matrices(n, d)) >= 0
        return np.array([first[order] for order in orders]) * np.where(signs, 1.0, -1.0), None

    return draw_tokens()


def witness_unweighted() -> str:
    with exact():
        Y, W = matrix(np.array([[-0.5], [0.0], [4.0]])), [[1]]
        rho = get_rho("exp").literal("mpmath")[0]
        plain = definitions.softmax_attention(Y, W, mpmath.exp, lambda u: 1)
        before, after = (definitions.attention_energy(T, W, rho, definitions.ones(3)) for T in (Y, plain))
        require(after > before, "plain softmax does not raise the energy")
        figures = mpmath.nstr(after - before, 12)
    step = AttentionEnergy().step([[-0.5], [0.0], [4.0]])
    if AttentionEnergy().value(step) > float(before):
        raise Violation("the reweighted step raises the energy")
    return f"plain softmax raises the energy of Y = (−½, 0, 4), W = 1 by {figures} (50-digit arithmetic)"


# ------------------------------------------------------------------------------------------------ the entries

CLAIMS = (
    Claim(
        "attention.gradient",
        "∇E_attn(Y) = L Y S with L = D − Γ, S = W Wᵀ",
        "ρ differentiable at every z_ij",
        NOTEBOOK,
        "refimpl.AttentionEnergy.gradient",
        strategies.attention_cases,
        check_gradient,
    ),
    Claim(
        "attention.half_quadratic",
        "ρ(z) = min over γ ≥ 0 of γ z − ρ*(γ), attained at γ = ρ'(z): the attention weights are the dual variables",
        "ρ concave and non-decreasing",
        NOTEBOOK,
        "refimpl.Rho.derivative",
        lambda: st.tuples(
            strategies.penalties(concave=True), *2 * (st.integers(0, 400).map(lambda i: (i / 16) ** 2 / 4),)
        ),
        check_half_quadratic,
        witness_half_quadratic,
    ),
    Claim(
        "attention.majorizer",
        "E(Y') ≤ Q(Y' | Y) = E(Y) + ½ Tr S (Y'ᵀ L Y' − Yᵀ L Y), equal at Y' = Y",
        "ρ concave",
        NOTEBOOK,
        "refimpl.AttentionEnergy.majorizer",
        strategies.attention_cases,
        check_majorizer,
        witness_majorizer,
    ),
    Claim(
        "attention.step",
        "Y⁺ = Y − α D⁻¹ L Y = (1 − α) Y + α A Y; for ρ = −e^(−z), A = softmax_β(U Uᵀ)",
        "α > 0",
        NOTEBOOK,
        "refimpl.AttentionEnergy.step",
        strategies.attention_cases,
        check_step,
    ),
    Claim(
        "attention.sufficient_decrease",
        "E(Y) − E(Y⁺) ≥ ½ Tr S Δᵀ (D + Γ) Δ ≥ min m_ii ρ'(0) ‖Δ W‖²; equality of the energies iff Y is stationary",
        "ρ concave and non-decreasing, α = 1; for the last part m_ii > 0 and ρ'(0) > 0",
        NOTEBOOK,
        "refimpl.AttentionEnergy.step",
        strategies.attention_cases,
        check_sufficient_decrease,
        witness_sufficient_decrease,
    ),
    Claim(
        "attention.overrelaxation",
        "E does not rise for 0 < α ≤ α_max = 2 / (1 − λ_min(A)), and α_max > 1",
        "ρ concave and non-decreasing; for α_max > 1, m_ii > 0 and ρ'(0) > 0",
        NOTEBOOK,
        "refimpl.AttentionEnergy.max_alpha",
        strategies.attention_cases,
        check_overrelaxation,
        witness_overrelaxation,
    ),
    Claim(
        "rho.bernstein",
        "Γ is positive semidefinite for every n and d, so α_max ≥ 2",
        "ρ' completely monotone, pair weights positive semidefinite",
        NOTEBOOK,
        "refimpl.AttentionEnergy.max_alpha",
        lambda: strategies.attention_cases(rho=strategies.penalties(bernstein=True), positive_semidefinite=True),
        check_bernstein,
        witness_bernstein,
    ),
    Claim(
        "attention.invariants",
        "permutation, translation and rotation equivariance; convex hull; 1ᵀ D (Y⁺ − Y) = 0; fixed points; the orthant",
        "ρ non-decreasing; for the hull 0 ≤ α ≤ 1",
        NOTEBOOK,
        "refimpl.AttentionEnergy.step",
        strategies.attention_cases,
        check_invariants,
    ),
    Claim(
        "attention.blurring_mean_shift",
        "the step is Gaussian blurring mean shift: tokens from N(0, s² I) contract to deviation s³ / (1 + s²)",
        "ρ = −e^(−z), W = I, many tokens",
        NOTEBOOK,
        "refimpl.AttentionEnergy.step",
        lambda: st.integers(1, 1024).map(lambda i: i / 1024),
        check_blurring_mean_shift,
    ),
    Claim(
        "attention.unweighted_refuted",
        "plain softmax(U Uᵀ) Y is not a descent step; where all ‖u_i‖ are equal it is the reweighted one",
        "ρ = −e^(−z)",
        NOTEBOOK,
        "refimpl.definitions.softmax_attention",
        equal_norms,
        check_unweighted,
        witness_unweighted,
    ),
)
