"""Claims of section 4: the layer and its certificates. Derived in ``derivations/04_alternating.md``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import numpy as np
from hypothesis import strategies as st

from .. import certificates
from ..activation import ACTIVATIONS, Activation
from ..attention import AttentionEnergy
from ..certificates import Certificate
from ..feedforward import FeedForwardEnergy
from ..numerics import EPS, FloatArray, Output
from ..residual import ResidualAttentionEnergy
from ..testing import strategies
from ..testing.rounding import U, energy_error, feedforward_error, pairs, perturbation, step_error
from ..testing.strategies import AttentionCase, Case, FeedForwardCase
from ..transformer import Schedule, UnfoldedTransformer
from .ledger import Claim, require

NOTEBOOK = "04_alternating.md"

# ------------------------------------------------------------------------------------- two quadratics, as f and g


@dataclass(frozen=True, eq=False)
class QuadraticCase(Case):
    """f = ½ ‖(y − a) F‖², g = ½ ‖(y − b) G‖² + ⅛ ‖y − b‖², of a row y (1, p); α = 2 fraction / L_h."""

    F: FloatArray
    G: FloatArray
    a: FloatArray
    b: FloatArray
    y: FloatArray
    fraction: float

    @property
    def P(self) -> FloatArray:
        return self.F @ self.F.T

    @property
    def R(self) -> FloatArray:
        return np.asarray(self.G @ self.G.T + 0.25 * np.eye(len(self.G)))

    def h(self, y: FloatArray) -> float:
        f, g = y - self.a, y - self.b
        return float(0.5 * ((f @ self.P) * f + (g @ self.R) * g).sum())

    def noise(self, *points: FloatArray) -> float:
        """A bound on the rounding of h and of its step at these points: 16 (p + 4) u of the terms' magnitudes."""
        size = 0.0
        for y in points:
            f, g = np.abs(y) + np.abs(self.a), np.abs(y) + np.abs(self.b)
            size += float(((f @ np.abs(self.P)) * f + (g @ np.abs(self.R)) * g).sum())
        return 16 * (len(self.F) + 4) * U * size


@st.composite
def quadratics(draw: st.DrawFn) -> QuadraticCase:
    p = draw(st.integers(1, 4))
    F, G = draw(strategies.matrices(p, p)), draw(strategies.matrices(p, p))
    a, b, y = (draw(strategies.matrices(1, p)) for _ in range(3))
    if draw(st.booleans()):  # between the two minimisers, where f and g pull apart
        y = (a + b) / 2
    if draw(st.booleans()):  # one direction pulls far harder than the others, from the edge of y ≥ 0
        pulled = draw(st.integers(0, p - 1))
        a[0, pulled] *= 64
        y[0, pulled] = 0.0
    return QuadraticCase(F, G, a, b, y * draw(st.sampled_from([1.0, 4.0, 64.0])), draw(st.integers(1, 16)) / 16)


def guaranteed(certificate: Certificate, before: float, after: float, noise: float) -> float | None:
    """Where the certificate holds, h falls by at least its bound; the ratio of the two."""
    if not certificate.holds:
        return None
    fall, bound = before - after, float(certificate.decrease)
    require(fall >= -noise, lambda: f"certified, but h rises by {-fall}")
    require(fall >= bound - noise, lambda: f"certified to fall by {bound}, h falls by {fall}")
    return (fall + noise) / bound if bound > 1e6 * noise else None


def check_gradient_norm(case: QuadraticCase) -> float | None:
    L_h = float(np.linalg.eigvalsh(case.P + case.R)[-1]) * (1 + 8 * EPS)
    grad_f, grad_g = (case.y - case.a) @ case.P, (case.y - case.b) @ case.R
    alpha = 2 * case.fraction / L_h
    y_new = case.y - alpha * grad_g
    certificate = certificates.gradient_norm(grad_f, grad_g, L_h=L_h, alpha=alpha)
    return guaranteed(certificate, case.h(case.y), case.h(y_new), case.noise(case.y, y_new))


def check_apollonius(case: QuadraticCase) -> float | None:
    curvature = np.linalg.eigvalsh(case.P + case.R)
    L_f = max(float(np.linalg.eigvalsh(case.P)[-1]), 0.0) * (1 + 8 * EPS)
    y_h = np.linalg.solve(case.P + case.R, (case.a @ case.P + case.b @ case.R).T).T
    alpha = 2 * case.fraction / (curvature[-1] * (1 + 8 * EPS))
    y_new = case.y - alpha * (case.y - case.b) @ case.R
    certificate = certificates.apollonius(
        case.y,
        case.a,
        y_h,
        L_f=L_f,
        m_h=float(curvature[0]) * (1 - 1e-12),
        L_h=float(curvature[-1]) * (1 + 4 * EPS),
        alpha=alpha,
    )
    # y_h is off by the condition number of H times u
    blur = 64 * U * float(curvature[-1]) / float(curvature[0]) * (1 + np.abs(y_h).max()) * np.abs(case.y - y_h).max()
    noise = case.noise(case.y, y_new) + alpha * float(curvature[0]) ** 2 * blur
    return guaranteed(certificate, case.h(case.y), case.h(y_new), noise)


def _quadratic_witness(apollonius: bool) -> str:
    """f = ½ (y − 1)², g = 2 (y + 1)², α = 0.1: h is least at −0.6, and a step on g from there raises it."""
    y = np.array([[-0.6]])

    def h(y: FloatArray) -> float:
        return float(0.5 * (y[0, 0] - 1) ** 2 + 2 * (y[0, 0] + 1) ** 2)

    grad_f, grad_g = y - 1, 4 * (y + 1)
    if apollonius:
        certificate = certificates.apollonius(y, [[1.0]], [[-0.6]], L_f=1.0, m_h=5.0, L_h=5.0, alpha=0.1)
    else:
        certificate = certificates.gradient_norm(grad_f, grad_g, L_h=5.0, alpha=0.1)
    rise = h(y - 0.1 * grad_g) - h(y)
    require(rise > 0.01 and not certificate.holds)
    return (
        "outside: f = ½ (y − 1)², g = 2 (y + 1)², α = 0.1, y = −0.6, the minimiser of the sum: "
        f"the certificate fails by {-float(certificate.margin):.3g}, and the step raises h by {rise:.4f}"
    )


# ------------------------------------------------------------------------------------------------ the layer itself


@dataclass(frozen=True, eq=False)
class LayerCase(Case):
    """A point of finite energy, an attention energy and a feed-forward energy."""

    Y: FloatArray
    attention: AttentionCase
    feedforward: FeedForwardCase

    def __str__(self) -> str:
        return f"Y = {strategies.written(self.Y)}; attention: {self.attention}; feedforward: {self.feedforward}"


@st.composite
def layers(draw: st.DrawFn, activation: st.SearchStrategy[Activation] | None = None) -> LayerCase:
    feedforward = draw(strategies.feedforward_cases(activation))
    Y, n, d = feedforward.Y, *feedforward.Y.shape
    W, m = draw(strategies.maps(d)), draw(strategies.pair_weights(n))
    attention = AttentionCase(Y, W, m, draw(strategies.penalties(concave=True)), feedforward.V, feedforward.fraction)
    return LayerCase(Y, attention, feedforward)


def total_noise(attention: AttentionEnergy, feedforward: FeedForwardEnergy, *points: Output) -> float:
    return sum(energy_error(attention, Y) + feedforward_error(feedforward, Y) for Y in points)


def moved_noise(attention: AttentionEnergy, feedforward: FeedForwardEnergy, Y: FloatArray, Y_new: Output) -> float:
    """The noise of E_attn + E_ffn at Y and Y⁺, and of Y⁺ itself: 64 (n + d + 8) u of what it is computed from."""
    n, d = Y.shape
    scale = np.abs(Y).max(initial=0.0) + np.abs(Y_new).max(initial=0.0) + np.abs(feedforward.B).max(initial=0.0)
    scale *= 1 + np.abs(feedforward.Wf).sum()
    r = np.full(n, 64 * (n + d + 8) * U * scale)
    slope = np.abs(feedforward.gradient(Y_new)).sum() + 40 * n * d + (1 + np.abs(feedforward.Wf).sum()) * r.sum()
    return (
        total_noise(attention, feedforward, Y, Y_new)
        + perturbation(attention, Y_new, r)
        + float(slope * r.max(initial=0.0))
    )


def largest_curvature(attention: AttentionEnergy, Y: FloatArray) -> float:
    """‖S‖₂ λ_max(L(Y)): by the majorizer an upper curvature of E_attn at Y, which is all that the proofs use of L_h."""
    Gamma = attention.kernel(Y)
    L = np.diag(Gamma.sum(axis=1)) - Gamma
    return attention.spectral_norm * float(np.linalg.eigvalsh(L)[-1]) * (1 + 1e-12) if len(Y) else 0.0


def relu_step(case: QuadraticCase) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, dict[str, float]]:
    """(y, y⁺, ∇f, ∇g, {L_h, α}) of the step y⁺ = ReLU(y − α ∇g) from a point y ≥ 0 of two quadratics."""
    y = np.maximum(case.y, 0.0)
    L_h = float(np.linalg.eigvalsh(case.P + case.R)[-1]) * (1 + 8 * EPS)
    alpha = 2 * case.fraction / L_h
    grad_f, grad_g = (y - case.a) @ case.P, (y - case.b) @ case.R
    return y, np.maximum(y - alpha * grad_g, 0.0), grad_f, grad_g, {"L_h": L_h, "alpha": alpha}


def check_prox_mapping(case: LayerCase | QuadraticCase) -> float | None:
    """The feed-forward half step inside the layer, f = E_attn and g the smooth part of E_ffn, and on two quadratics."""
    if isinstance(case, QuadraticCase):
        y, y_next, grad_f, _, numbers = relu_step(case)
        certificate = certificates.prox_mapping(grad_f, (y - y_next) / numbers["alpha"], **numbers)
        return guaranteed(certificate, case.h(y), case.h(y_next), case.noise(y, y_next))
    attention, feedforward, Y = case.attention.energy, case.feedforward.energy, case.Y
    L_h = max(largest_curvature(attention, Y) + feedforward.curvature, 0.0)
    alpha = 2 * case.feedforward.fraction / max(L_h, 0.25)
    Y_new = feedforward.step(Y, alpha)
    certificate = certificates.prox_mapping(attention.gradient(Y), (Y - Y_new) / alpha, L_h=L_h, alpha=alpha)
    before, after = (attention.value(T) + feedforward.value(T) for T in (Y, Y_new))
    noise = moved_noise(attention, feedforward, Y, Y_new) * (1 + 1 / alpha)
    return guaranteed(certificate, before, after, noise)


def witness_prox_mapping() -> str:
    attention, feedforward = AttentionEnergy(), FeedForwardEnergy([[0.0]], [[0.0], [2.0]], "identity")
    Y = np.array([[0.25], [1.75]])
    Y_new = feedforward.step(Y, 0.25)
    L_h = largest_curvature(attention, Y) + feedforward.curvature
    certificate = certificates.prox_mapping(attention.gradient(Y), (Y - Y_new) / 0.25, L_h=L_h, alpha=0.25)
    before, after = (attention.value(T) + feedforward.value(T) for T in (Y, Y_new))
    require(after > before and not certificate.holds, f"{before} to {after}")
    return (
        f"outside: Y = (0.25, 1.75), W = 1, B = (0, 2), α = ¼, φ = 0: the certificate fails by "
        f"{-float(certificate.margin):.3f}, and the feed-forward step raises the sum by {after - before:.5f}"
    )


def check_truncation(case: LayerCase | QuadraticCase) -> float | None:
    """The ReLU half step inside the layer, f = E_attn and g the smooth part of E_ffn, and on two quadratics."""
    if isinstance(case, QuadraticCase):
        y, y_next, f, g, numbers = relu_step(case)
        certificate = certificates.truncation(y, f, g, **numbers)
        return guaranteed(certificate, case.h(y), case.h(y_next), case.noise(y, y_next))
    attention, feedforward, Y = case.attention.energy, case.feedforward.energy, case.Y
    L_h = max(largest_curvature(attention, Y) + feedforward.curvature, 0.0)
    alpha = case.feedforward.fraction / max(L_h, 0.25)
    grad_f, grad_g = attention.gradient(Y), feedforward.gradient(Y)
    Y_new = np.maximum(Y - alpha * grad_g, 0.0)
    certificate = certificates.truncation(Y, grad_f, grad_g, L_h=L_h, alpha=alpha)
    before, after = (attention.value(T) + feedforward.value(T) for T in (Y, Y_new))
    return guaranteed(certificate, before, after, moved_noise(attention, feedforward, Y, Y_new) * (1 + 1 / alpha))


def witness_truncation() -> str:
    y, alpha = np.array([[1.0]]), 0.5  # f = ½ (y − 2)², g = ½ y²: h is least at 1
    certificate = certificates.truncation(y, y - 2, y, L_h=2.0, alpha=alpha)

    def h(y: FloatArray) -> float:
        return float(0.5 * (y[0, 0] - 2) ** 2 + 0.5 * y[0, 0] ** 2)

    rise = h(np.maximum(y - alpha * y, 0)) - h(y)
    require(rise > 0.01 and not certificate.holds)
    return (
        f"outside: f = ½ (y − 2)², g = ½ y², α = ½, y = 1: the certificate fails by {-float(certificate.margin):.3g}, "
        f"and the truncated step raises h by {rise:.4f}"
    )


def check_attention_metric(case: LayerCase) -> float | None:
    """The attention half step inside the layer: f the smooth part of E_ffn."""
    attention, Y = case.attention.energy, case.Y
    feedforward = FeedForwardEnergy(case.feedforward.Wf, case.feedforward.B, "identity")
    alpha = 2 * case.feedforward.fraction
    Y_new = attention.step(Y, alpha)
    L_f = max(feedforward.curvature, 0.0) * (1 + 8 * EPS)
    certificate = certificates.attention_metric(attention, Y, feedforward.gradient(Y), L_f=L_f, alpha=alpha)
    before, after = (attention.value(T) + feedforward.value(T) for T in (Y, Y_new))
    r = step_error(Y, Y_new, alpha)
    degree = pairs(attention, Y)[2].sum(axis=1) + 2
    moved = np.linalg.norm(Y_new - Y, axis=1)
    noise = moved_noise(attention, feedforward, Y, Y_new)
    noise += 16 * attention.spectral_norm / alpha * float((degree * (moved + r) * (r + 8 * U * moved)).sum())
    return guaranteed(certificate, before, after, noise)


def witness_attention_metric() -> str:
    attention, feedforward = AttentionEnergy(), FeedForwardEnergy([[3.0]], [[0.0], [4.0]], "identity")
    Y = np.array([[0.0], [1.0]])  # the minimiser of E_ffn
    Y_new = attention.step(Y)
    certificate = certificates.attention_metric(attention, Y, feedforward.gradient(Y), L_f=feedforward.curvature)
    before, after = (attention.value(T) + feedforward.value(T) for T in (Y, Y_new))
    require(after > before and not certificate.holds)
    return (
        f"outside: Y = (0, 1), W = 1, W_f = 3, B = (0, 4): the certificate fails by {-float(certificate.margin):.3f}, "
        f"and the attention step raises the sum by {after - before:.4f}"
    )


def majorizer_noise(attention: AttentionEnergy, Y: FloatArray, Y_new: Output, curvature: float) -> float:
    """A bound on the rounding of the certificate: a few (n² + n + d + k) u of the magnitudes of its terms.

    The error of z_ij costs Γ_ij at most (2 + z_ij) times its own, for the shipped penalties.
    """
    n, d = Y.shape
    W = np.eye(d) if attention.W is None else np.abs(attention.W)
    Z, _, Gamma = pairs(attention, Y)
    Gamma = (3 + Z) * Gamma
    Delta = np.abs(Y_new - Y)
    M = np.abs(Y - Y.sum(axis=0) / max(n, 1)) + Delta
    attn = ((Gamma.sum(axis=1)[:, None] * M + Gamma @ M) @ W * (Delta @ W)).sum()
    return float(16 * (n * n + n + d + W.shape[1] + 8) * U * (attn + curvature * (Delta * Delta).sum()))


def feedforward_half(
    attention: AttentionEnergy, feedforward: FeedForwardEnergy, Y: FloatArray, fraction: float
) -> tuple[Certificate, float, float, float]:
    """``majorizer`` of the feed-forward step of α = 2 fraction / L_g, the sum before and after it, and their noise."""
    L_g = max(feedforward.curvature, 0.0) * (1 + 8 * EPS)
    alpha = 2 * fraction / max(L_g, 0.25)
    Y_new = feedforward.step(Y, alpha)
    of_phi = alpha if feedforward.activation.convex else 2 * alpha
    certificate = certificates.majorizer(attention, Y, Y_new, L_g=L_g, alpha=of_phi)
    before, after = (attention.value(T) + feedforward.value(T) for T in (Y, Y_new))
    noise = moved_noise(attention, feedforward, Y, Y_new) * (1 + 1 / alpha)
    return certificate, before, after, noise + majorizer_noise(attention, Y, Y_new, 1 / alpha + L_g)


def check_majorizer(case: LayerCase) -> float | None:
    """The feed-forward half step inside the layer; the bound is exact for ρ(z) = z, φ = 0 and H a multiple of I."""
    Wf, B, Y, fraction = case.feedforward.Wf, case.feedforward.B, case.Y, case.feedforward.fraction
    attention = AttentionEnergy(case.attention.W, "linear", case.attention.m)
    feedforward = FeedForwardEnergy(abs(Wf[0, 0]) * np.eye(len(Wf)), B, "identity")
    certificate, before, after, noise = feedforward_half(attention, feedforward, Y, fraction)
    fall, bound = before - after, float(certificate.decrease)
    require(abs(fall - bound) <= noise, lambda: f"h falls by {fall}, by {bound} exactly")
    return guaranteed(*feedforward_half(case.attention.energy, case.feedforward.energy, Y, fraction))


def witness_majorizer() -> str:
    attention, feedforward = AttentionEnergy(), FeedForwardEnergy([[0.0]], [[1.0], [-1.0]], "identity")
    Y = np.array([[0.5], [-0.5]])
    Y_new = feedforward.step(Y)
    certificate = certificates.majorizer(attention, Y, Y_new, L_g=feedforward.curvature)
    before, after = (attention.value(T) + feedforward.value(T) for T in (Y, Y_new))
    require(after > before and not certificate.holds, f"{before} to {after}")
    return (
        f"outside: Y = (½, −½), W = 1, B = (1, −1), φ = 0: the certificate fails by "
        f"{-float(certificate.margin):.3f}, and the feed-forward step raises the sum by {after - before:.4f}"
    )


# ------------------------------------------------------------------------------------------------ the joint step


def check_joint(case: LayerCase) -> None:
    """One proximal step on both terms at once never raises E_attn + E_ffn, nor E_λ + E_ffn."""
    attention, feedforward, Y = case.attention.energy, case.feedforward.energy, case.Y
    terms: list[tuple[AttentionEnergy | ResidualAttentionEnergy, float]] = [(attention, 0.0)]
    if len(Y):
        terms.append((ResidualAttentionEnergy(attention, case.feedforward.V, case.feedforward.fraction), 1.0))
    for term, data in terms:
        model = UnfoldedTransformer(term, feedforward, depth=1, schedule="joint")
        Y_new = model.layer(Y)
        smallest = float(term.half_curvature(Y).min(initial=np.inf)) + max(feedforward.curvature, 0.0) / 2
        if smallest < 1e-6 and len(Y):
            return  # steps of 1/M_i without bound: rounding alone, nothing to learn
        noise = moved_noise(attention, feedforward, Y, Y_new) * (1 + 1 / smallest)
        if data:
            R = np.abs(Y) + np.abs(Y_new) + np.abs(case.feedforward.V)
            noise += 64 * Y.size * U * float((R * R).sum())
        rise = model.value(Y_new) - model.value(Y)
        require(rise <= noise, f"the joint step raises the energy by {rise}")


def witness_joint() -> str:
    attention, feedforward = AttentionEnergy(), FeedForwardEnergy([[0.0]], [[0.0], [2.0]], "relu")
    Y = np.array([[0.1], [1.9]])
    changes, schedules = {}, get_args(Schedule)
    for schedule in schedules:
        model = UnfoldedTransformer(attention, feedforward, depth=40, schedule=schedule)
        changes[schedule] = np.diff(model.forward(Y).energy)
    require(changes["alternating"].max() > 1e-3 >= 0 >= changes["joint"].max() - 1e-15)
    return (
        "the sequential layer needs a certificate: Y = (0.1, 1.9), W = 1, W_f = 0, B = (0, 2) raises the energy by "
        f"{changes['alternating'].max():.4f} in one layer; the joint step never does"
    )


CLAIMS = (
    Claim(
        "alternating.gradient_norm",
        "‖∇f‖ ≤ ‖∇h‖ guarantees h(y⁺) ≤ h(y) for a gradient step on g",
        "h = f + g is L_h-smooth, α ≤ 1 / L_h",
        NOTEBOOK,
        "refimpl.certificates.gradient_norm",
        quadratics,
        check_gradient_norm,
        lambda: _quadratic_witness(apollonius=False),
    ),
    Claim(
        "alternating.apollonius",
        "‖y − y_f‖ ≤ C ‖y − y_h‖, C = m_h / L_f, guarantees h(y⁺) ≤ h(y): outside a neighbourhood of y_h for C > 1",
        "f convex and L_f-smooth, h m_h-strongly convex and L_h-smooth, α ≤ 1 / L_h",
        NOTEBOOK,
        "refimpl.certificates.apollonius",
        quadratics,
        check_apollonius,
        lambda: _quadratic_witness(apollonius=True),
    ),
    Claim(
        "alternating.prox_mapping",
        "‖∇f‖ ≤ (1 − ½ L_h α) ‖G‖, G = (y − y⁺) / α, guarantees (h + φ)(y⁺) ≤ (h + φ)(y)",
        "φ convex, h L_h-smooth (an upper bound at the current point is enough)",
        NOTEBOOK,
        "refimpl.certificates.prox_mapping",
        lambda: st.one_of(quadratics(), layers(strategies.activations(convex=True))),
        check_prox_mapping,
        witness_prox_mapping,
    ),
    Claim(
        "alternating.truncation",
        "‖∇h‖² + (1 − L_h α) ‖∇g‖² − ‖∇f‖² − 2 √κ ‖∇h‖ ‖∇g‖ ≥ 0 guarantees h(y⁺) ≤ h(y) for the ReLU step",
        "y ≥ 0, h L_h-smooth (an upper bound at the current point is enough)",
        NOTEBOOK,
        "refimpl.certificates.truncation",
        lambda: st.one_of(quadratics(), layers(st.just(ACTIVATIONS["relu"]))),
        check_truncation,
        witness_truncation,
    ),
    Claim(
        "alternating.attention_metric",
        "⟨∇f, Δ⟩ + ½ L_f ‖Δ‖² ≤ ½ Tr S Δᵀ (2 D / α − L) Δ guarantees that the attention step lowers E_attn + f",
        "ρ concave, f L_f-smooth",
        NOTEBOOK,
        "refimpl.certificates.attention_metric",
        layers,
        check_attention_metric,
        witness_attention_metric,
    ),
    Claim(
        "alternating.majorizer",
        "⟨∇f, Δ⟩ + ½ Tr S Δᵀ L Δ ≤ (1/α − ½ L_g) ‖Δ‖², f = E_attn, guarantees (h + φ)(Y⁺) ≤ (h + φ)(Y)",
        "ρ concave, φ convex (2 α for α where it is not), g L_g-smooth (an upper bound at the current point is enough)",
        NOTEBOOK,
        "refimpl.certificates.majorizer",
        layers,
        check_majorizer,
        witness_majorizer,
    ),
    Claim(
        "joint.step",
        "y_i⁺ = prox_{φ/M_i}(y_i − ∇_i / M_i), M_i = ‖S‖₂ d_i + ½ max(λ_max(H), 0), never raises E_attn + E_ffn",
        "ρ concave and non-decreasing, E(Y) finite, φ convex (M_i doubled where it is not)",
        NOTEBOOK,
        "refimpl.UnfoldedTransformer",
        layers,
        check_joint,
        witness_joint,
    ),
)
