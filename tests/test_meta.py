"""Every check goes red on a planted fault: a check that nothing can fail shows nothing.

FAULTS names, for each claim, wrong implementations (or examples outside the claim's conditions) that its check must
find. A fault is planted where the code under attack looks the function up, and only for the length of one test.
"""

import ast
import functools
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from types import SimpleNamespace

import hypothesis
import numpy as np
import pytest
from hypothesis import assume
from hypothesis import strategies as st
from scipy.special import expit, ndtr

from refimpl import asymmetric, attention, certificates, definitions, numerics
from refimpl.activation import ACTIVATIONS
from refimpl.attention import AttentionEnergy, AttentionVjp
from refimpl.certificates import Certificate
from refimpl.claims import all_claims, derive, verify
from refimpl.claims import rounding as rounding_claims
from refimpl.claims.alternating import quadratics
from refimpl.claims.ledger import Claim, Finding, Violation, require, require_close, run
from refimpl.claims.verify import _execute, _row
from refimpl.feedforward import FeedForwardEnergy
from refimpl.residual import ResidualAttentionEnergy
from refimpl.rho import PENALTIES, get_rho
from refimpl.testing import gradient_field, rounding, strategies
from refimpl.transformer import UnfoldedTransformer

CLAIMS = all_claims()
EXAMPLES = 1000  # a check stops at the first that is red
SLIGHTLY = 1 + 1e-9

# ------------------------------------------------------------------------------------------------ ways to plant


def instead(owner, name, fault):
    """``owner.name`` replaced by ``fault``, which gets the right function and then the call's arguments."""

    def plant(patch, claim):
        right = getattr(owner, name)
        if isinstance(right, functools.cached_property):
            patch.setattr(owner, name, property(functools.partial(fault, right.func)))
        else:
            patch.setattr(owner, name, lambda *args, **kwargs: fault(right, *args, **kwargs))
        return claim

    return plant


def times(factor):
    """The right result times ``factor``."""
    return lambda right, *args, **kwargs: factor * right(*args, **kwargs)


def moved(factor):
    """The right displacement of the tokens times ``factor``."""
    return lambda right, self, Y, *args: Y + factor * (right(self, Y, *args) - Y)


def without_weights(right, self, *args):
    """The pair weights ignored."""
    return right(AttentionEnergy(self.W, self.rho), *args)


def together(*plants):
    return lambda patch, claim: [plant(patch, claim) for plant in plants][-1]


def penalty(name, formula=None, **changes):
    """A penalty with the given fields, under the name of a shipped one; no other is drawn."""

    def plant(patch, claim):
        wrong = replace(PENALTIES[name] if formula is None else get_rho(formula), **changes)
        patch.setitem(PENALTIES, name, wrong)
        patch.setattr(strategies, "PENALTIES", {name: wrong})
        return claim

    return plant


def activation(name, **changes):
    """The shipped activation ``name`` with the given fields, functions getting the right one first; alone drawn."""

    def plant(patch, claim):
        right = ACTIVATIONS[name]
        wrong = {key: functools.partial(f, getattr(right, key)) if callable(f) else f for key, f in changes.items()}
        patch.setattr(strategies, "ACTIVATIONS", {name: replace(right, **wrong)})
        return claim

    return plant


def gelu(v):
    return v * ndtr(v)


def silu(v):
    return v * expit(v)


def shipped(sigma):
    """An activation that is given φ = 0 and called convex; no other is drawn."""
    return activation("identity", prox=lambda right, v, alpha: sigma(v))


NOT_CONVEX = activation("hard_threshold", convex=True)


def maps(strategy):
    """Attention maps W drawn from ``strategy(d)`` alone."""
    return lambda patch, claim: patch.setattr(strategies, "maps", strategy) or claim


def examples(strategy):
    """The claim checked on other examples: outside its conditions, or where the fault shows."""
    return lambda patch, claim: replace(claim, cases=strategy)


# ------------------------------------------------------------------------------------------------ the faults

DISTANCE = tuple((module, "half_squared_distances") for module in (numerics, attention, rounding))


def laplacian(self, Y):
    Gamma = self.kernel(Y)
    return np.diag(Gamma.sum(axis=1)) - Gamma


def other_metric(right, self, Y):
    """Wᵀ W for W Wᵀ."""
    if self.W is None or self.W.shape[0] != self.W.shape[1]:
        return right(self, Y)
    return laplacian(self, Y) @ Y @ self.W.T @ self.W


def in_weights(fault):
    """``fault`` in A, where it is returned and where tokens are averaged by it."""

    def means(right, self, U, M, dtype=np.float64):
        return right(self, U, M, dtype)._replace(mean=self._weights(numerics.half_squared_distances(*U)) @ M)

    def weights(right, self, Z, *rows):
        return right(self, Z, *rows) if rows else fault(right, self, Z)

    return together(instead(AttentionEnergy, "_weights", weights), instead(AttentionEnergy, "_means", means))


def wrong_axis(right, self, Z):
    Gamma = self._kernel(Z, self.pair_weights)
    degree = Gamma.sum(axis=-2, keepdims=True)
    return Gamma / np.where(degree == 0, 1, degree)


def others_only(right, self, Z, m):
    """The kernel with the token itself left out."""
    return right(self, Z, m) * (1 - np.eye(Z.shape[-1]))


def mean_for_sum(right, self, Y):
    return right(self, Y) / max(len(Y) ** 2, 1)


def plain_softmax(right, self, Y, alpha=1.0):
    U = Y if self.W is None else Y @ self.W
    logits = U @ U.T
    A = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
    return (1 - alpha) * Y + alpha * A @ Y / A.sum(axis=1, keepdims=True)


def majorizer_at_the_new_point(right, self, Y_new, Y):
    change = self.kernel(Y_new) * (self._distances(Y_new) - self._distances(Y))
    return self.value(Y) + change.sum() / 2


def unweighted_tokens_vanish(right, self, Z, *rows):
    A = right(self, Z, *rows)
    return A if rows else A * (self._kernel(Z, self.pair_weights).sum(axis=-1, keepdims=True) > 0)


def own_diagonal(right, self, Y, alpha=1.0):
    """Each feature stepped by its own diagonal entry of S, which a rotation does not preserve."""
    S = np.ones(Y.shape[1]) if self.W is None else (self.W**2).sum(axis=1)
    return Y + (right(self, Y, alpha) - Y) * S / max(S.max(), 1e-300)


def spread_out(right, self, Y, alpha=1.0):
    """The step's tokens 1 % further from their centroid."""
    Y_new = right(self, Y, alpha)
    c = Y_new.mean(axis=0) if len(Y) else 0
    return c + 1.01 * (Y_new - c)


def residual_without(part):
    """The residual step with ``part`` left out of its denominator s d_i + λ."""

    def step(right, self, Y, alpha=1.0):
        M = self.attention.half_curvature(Y)[:, None]
        M = {"lam": M, "s": M / (self.attention.spectral_norm or 1) + self.lam}[part]
        return Y - alpha * self.gradient(Y) / np.where(M == 0, 1, M)

    return step


def relu_first(right, self, Y, alpha=1.0):
    Y = np.asarray(self.activation.prox(Y, alpha))
    return Y - alpha * self.gradient(Y)


def feedforward_step(gradient=lambda self, Y, alpha: self.gradient(Y), prox_alpha=lambda alpha: alpha):
    """The feed-forward step on another gradient, or with another step size of the prox."""
    return lambda right, self, Y, alpha=1.0: np.asarray(
        self.activation.prox(Y - alpha * gradient(self, Y, alpha), prox_alpha(alpha))
    )


def asymmetric_gradient(right, self, Y):
    return Y + Y @ self.Wf - self.B


def joint_layer(curvature=lambda M, self: M, prox_size=lambda M: 1 / M, sign=1):
    """The joint step with another M, another step size of the prox, or the feed-forward gradient's sign turned."""

    def layer(right, self, Y):
        M = (self.attention.half_curvature(Y) + self.feedforward.half_curvature(Y))[:, None]
        M = curvature(M, self) * (1 if self.feedforward.activation.convex else 2)
        M = np.maximum(M, 1e-12)
        gradient = self.attention.gradient(Y) + sign * self.feedforward.gradient(Y)
        return self.feedforward.activation.prox(Y - gradient / M, np.broadcast_to(prox_size(M), Y.shape))

    return layer


def attention_vjp(symmetrise=lambda Q: Q + Q.T, back=lambda A: A.T, mean=lambda A, Y, Y_new: A @ Y):
    """The attention step's vjp with another R, another way back through A Y, or another mean in G."""

    def vjp(right, self, Y, V, alpha=1.0):
        A, W = self.weights(Y), np.eye(Y.shape[1]) if self.W is None else self.W
        G = V @ Y.T - (V * mean(A, Y, self.step(Y, alpha))).sum(axis=1, keepdims=True)
        R = symmetrise(alpha * A * self._relative_slopes(self._distances(Y)) * G)
        U_bar = (np.diag(R.sum(axis=1)) - R) @ (Y @ W)
        return AttentionVjp((1 - alpha) * V + alpha * back(A) @ V + U_bar @ W.T, Y.T @ U_bar)

    return vjp


def scaled_part(part, factor):
    """One of the cotangents times ``factor``."""

    def vjp(right, self, *args):
        cotangents = right(self, *args)
        return cotangents._replace(**{part: factor * getattr(cotangents, part)})

    return vjp


def asymmetric_cotangent(right, self, Y, V, alpha=1.0):
    cotangents = right(self, Y, V, alpha)
    return cotangents._replace(Wf=-Y.T @ cotangents.B)


def definition_of_asymmetric_cotangent(right, Y, *args):
    Y_bar, _, B_bar = right(Y, *args)
    return Y_bar, [[-x for x in row] for row in definitions.matmul(definitions.transpose(Y), B_bar)], B_bar


def certify(name, fault):
    """Another certificate: ``fault`` gets the right one's function and its arguments."""
    return instead(certificates, name, fault)


def another_majorizer(quadratic):
    """The certificate with another quadratic form of Δ in the place of ½ Tr S Δᵀ L Δ, of (S, Γ, Δ)."""

    def fault(right, attention, Y, Y_new, *, L_g, alpha=1.0):
        Delta, Gamma = Y_new - Y, attention.kernel(Y)
        S = np.eye(Y.shape[1]) if attention.W is None else attention.W @ attention.W.T
        rise = (attention.gradient(Y) * Delta).sum() + quadratic(S, Gamma, Delta)
        margin = (1 / alpha - 0.5 * L_g) * (Delta * Delta).sum() - rise
        return Certificate(margin >= 0, margin, margin)

    return certify("majorizer", fault)


def trace(M, Gamma, Delta, sign=-1):
    """½ Tr M Δᵀ (D ± Γ) Δ."""
    return 0.5 * np.trace(M @ Delta.T @ (np.diag(Gamma.sum(axis=1)) + sign * Gamma) @ Delta)


def always(right, *args, **kwargs):
    return right(*args, **kwargs)._replace(holds=True)


def slightly_more(right, *args, **kwargs):
    certificate = right(*args, **kwargs)
    return certificate._replace(decrease=SLIGHTLY * certificate.decrease)


def never_mind_the_sign(right, *args, **kwargs):
    _, margin, decrease = right(*args, **kwargs)
    return Certificate(margin <= 0, -margin, -decrease)


def smoothness(**factors):
    """A certificate that takes some of its constants for others."""
    return lambda right, *args, **constants: right(
        *args, **{name: factors.get(name, 1) * constant for name, constant in constants.items()}
    )


def swapped(right, grad_f, grad_g, **constants):
    """f in the place of h, and h in the place of f: ∇f + ∇g and −∇g sum to ∇f."""
    return right(grad_f + grad_g, -grad_g, **constants)


def without_the_step_size(right, *args, **constants):
    """α ≤ 1 / L_h not asked for."""
    certificate = right(*args, **constants)
    return certificate._replace(holds=certificate.margin >= 0)


def uncentred(right, U):
    u = U.high if U.low is None else U.high + U.low
    return right(U)._replace(half=0.5 * (u * u).sum(axis=-1, keepdims=True), factors=((u, -u),))


def negative_distances(right, products, rows, columns):
    """The smaller of z and 0 not taken away."""
    Z = sum(P[rows] @ Q[columns].T for P, Q in products.factors)
    return Z if products.half is None else Z + products.half[rows] + products.half[columns].T


def split(bits=25, to_the_grid=np.rint, low_counts=True, half_rest=True):
    """The split product on another grid, with R of the high halves alone, or with a part of the rest left out."""

    def products(right, U):
        u, rest = numerics._two_sum(U.high, -U.high.mean(axis=-2, keepdims=True))
        low = 0.0 * u if U.low is None else U.low
        if low_counts:
            u, low = numerics._two_sum(u, low)
        rest, R2 = rest + low, (u * u).sum(axis=-1).max()
        grid = np.ldexp(1.0, np.frexp(np.sqrt(R2))[1] - bits)
        m = to_the_grid(u / grid) * grid
        r = (u - m) + rest
        h, one = ((m + 0.5 * r) * r).sum(axis=-1, keepdims=True), np.ones((len(u), 1))
        rest = np.hstack([m, r, h, one]), np.hstack([-r, -(m + r), one, h * half_rest])
        half = 0.5 * (m * m).sum(axis=-1, keepdims=True)
        return right(U)._replace(half=half, factors=((m, -m), rest))

    return products


def between():
    """Quadratics seen from the middle of their minimisers, where f and g pull against each other."""
    return quadratics().map(lambda case: replace(case, y=(case.a + case.b) / 2))


def in_metric(name, fault):
    """A function of ``refimpl.asymmetric`` with another result, or on other weights."""
    return instead(asymmetric, name, fault)


def eigenvectors_as_they_come(right, Wf):
    """V Vᵀ without a basis that is orthonormal in each eigenspace."""
    V = np.linalg.eig(Wf)[1].real
    return V @ V.T


def without_moduli(right, Wf):
    """r / l of W_f itself for that of |W_f|."""
    eye, one = np.eye(len(Wf)), np.ones(len(Wf))
    return np.linalg.solve(eye - Wf, one) / np.linalg.solve(eye - Wf.T, one)


SYMMETRIC_PART_ACTS = instead(FeedForwardEnergy, "_acting", lambda right, self: (self.Wf + self.Wf.T) / 2)
EUCLIDEAN = instead(FeedForwardEnergy, "_measured", lambda right, self, M: M)


def seen_as(J=lambda J: J, error=lambda error: error):
    """What was seen of an update, changed."""
    return lambda right, *args: (seen := right(*args))._replace(J=J(seen.J), error=error(seen.error))


def reciprocal(right, *args):
    fit = right(*args)
    return fit._replace(p=fit.p.max() / fit.p)


def trusting(right, subject, points, J, error):
    """A complex step that nothing is compared with."""
    return right(subject, points, J, error + 1e9)


STEEP = activation(  # slope 2: φ is concave on y < 0
    "leaky_relu",
    penalty=lambda right, y: -0.25 * np.minimum(y, 0.0) ** 2,
    prox=lambda right, v, alpha: np.where(v < 0, 2 * v / (2 - np.minimum(alpha, 1)), v),
)

FAULTS = {
    "attention.gradient": {
        "twice the gradient": instead(AttentionEnergy, "gradient", times(2)),
        "sign flipped": instead(AttentionEnergy, "gradient", times(-1)),
        "WᵀW for WWᵀ": together(
            maps(lambda d: strategies.matrices(d, d)), instead(AttentionEnergy, "gradient", other_metric)
        ),
        "pair weights ignored": instead(AttentionEnergy, "gradient", without_weights),
        "off by 1e-9": instead(AttentionEnergy, "gradient", times(SLIGHTLY)),
        "z off by 1e-9": instead(*DISTANCE[0], times(SLIGHTLY)),
        "½ missing in the distance": instead(definitions, "distance", times(2)),
        "twice, in the definition as well": together(
            instead(AttentionEnergy, "gradient", times(2)),
            instead(
                definitions, "attention_gradient", lambda right, *args: [[2 * g for g in row] for row in right(*args)]
            ),
        ),
        "every pair counted twice in the energy": instead(definitions, "attention_energy", times(2)),
        "mean for sum in the energy": instead(
            definitions, "attention_energy", lambda right, Y, *args: right(Y, *args) / max(len(Y) ** 2, 1)
        ),
        "ρ' of another ρ": penalty("log1p", derivative=PENALTIES["log2"].derivative),
    },
    "attention.half_quadratic": {
        "z² declared concave": penalty("exp", "z**2", concave=True),
        "1 − cos z declared concave": penalty("exp", "1 - cos(z)", concave=True),
        "−e^(−z) + z²/10 declared concave": penalty("exp", "-exp(-z) + z**2/10", concave=True),
        "−z, which decreases": penalty("linear", "-z", concave=True),
        "ρ' off by 1e-9": penalty("exp", derivative=lambda z: SLIGHTLY * np.exp(-z)),
        "ρ' for ρ": penalty("sqrt", value=PENALTIES["sqrt"].derivative),
    },
    "attention.majorizer": {
        "½ missing": instead(
            AttentionEnergy, "majorizer", lambda right, self, Y_new, Y: 2 * right(self, Y_new, Y) - self.value(Y)
        ),
        "half of it": instead(
            AttentionEnergy, "majorizer", lambda right, self, Y_new, Y: (right(self, Y_new, Y) + self.value(Y)) / 2
        ),
        "the weights taken at Y'": instead(AttentionEnergy, "majorizer", majorizer_at_the_new_point),
        "pair weights ignored": instead(AttentionEnergy, "majorizer", without_weights),
        "z² declared concave": penalty("exp", "z**2", concave=True),
        "every pair counted twice": instead(AttentionEnergy, "_energy", times(2)),
        "mean for sum": instead(AttentionEnergy, "value", mean_for_sum),
        "the energy off by 1e-9": instead(AttentionEnergy, "value", times(SLIGHTLY)),
        "½ missing in the distance": instead(*DISTANCE[0], times(2)),
    },
    "attention.step": {
        "softmax over the wrong axis": in_weights(wrong_axis),
        "plain softmax": instead(AttentionEnergy, "step", plain_softmax),
        "self left out": instead(AttentionEnergy, "_kernel", others_only),
        "½ missing in the distance": instead(*DISTANCE[0], times(2)),
        "distance not squared": instead(*DISTANCE[0], lambda right, *args: np.sqrt(2 * right(*args))),
        "α ignored": instead(AttentionEnergy, "step", lambda right, self, Y, alpha=1.0: right(self, Y)),
        "sign flipped": instead(AttentionEnergy, "step", moved(-1)),
        "pair weights ignored": instead(AttentionEnergy, "step", without_weights),
        "tokens without weight vanish": in_weights(unweighted_tokens_vanish),
        "off by 1e-9": instead(AttentionEnergy, "step", moved(SLIGHTLY)),
        "z off by 1e-9": instead(*DISTANCE[0], times(SLIGHTLY)),
        "no β in the softmax": together(
            penalty("exp"),
            instead(definitions, "softmax_attention", lambda right, Y, W, exp, beta: right(Y, W, exp, lambda u: 1)),
        ),
    },
    "attention.sufficient_decrease": {
        "sign flipped": instead(AttentionEnergy, "step", moved(-1)),
        "step too long": instead(AttentionEnergy, "step", moved(2.5)),
        "1 − cos z declared concave": penalty("exp", "1 - cos(z)", concave=True),
        "mean for sum in the energy": instead(AttentionEnergy, "value", mean_for_sum),
        "bound too generous": instead(AttentionEnergy, "step_decrease", times(1.1)),
        "bound without Γ": instead(AttentionEnergy, "step_decrease", lambda right, self, Y: 0.5 * right(self, Y)),
        "distance not squared": together(
            *(instead(*place, lambda right, *args: np.sqrt(2 * right(*args))) for place in DISTANCE)
        ),
    },
    "attention.overrelaxation": {
        "α_max doubled": instead(AttentionEnergy, "max_alpha", times(2)),
        "α_max = 2 always": instead(AttentionEnergy, "max_alpha", lambda right, self, Y: 2.0),
        "λ_max for λ_min": instead(AttentionEnergy, "max_alpha", lambda right, self, Y: np.inf),
        "z² declared concave": penalty("exp", "z**2", concave=True),
        "sign flipped": instead(AttentionEnergy, "step", moved(-1)),
        "α squared": instead(AttentionEnergy, "step", lambda right, self, Y, alpha=1.0: right(self, Y, alpha**2)),
    },
    "rho.bernstein": {
        "epanechnikov declared Bernstein": penalty("epanechnikov", bernstein=True),
        "truncated declared Bernstein": penalty("truncated", bernstein=True),
        "pair weights not positive semidefinite": examples(
            lambda: strategies.attention_cases(st.integers(2, 8), strategies.penalties(bernstein=True))
        ),
        "self left out": instead(AttentionEnergy, "_kernel", others_only),
        "z squared once more": instead(*DISTANCE[0], lambda right, *args: right(*args) ** 2),
        "α_max halved": instead(AttentionEnergy, "max_alpha", times(0.5)),
    },
    "attention.invariants": {
        "a term that depends on the origin": instead(
            AttentionEnergy, "step", lambda right, self, Y, alpha=1.0: right(self, Y, alpha) - 1e-9 * Y
        ),
        "an energy that depends on the origin": instead(
            AttentionEnergy, "value", lambda right, self, Y: right(self, Y) + 1e-9 * (Y * Y).sum()
        ),
        "1 % out of the hull": instead(AttentionEnergy, "step", spread_out),
        "step too long": instead(AttentionEnergy, "step", moved(2.5)),
        "features stepped apart": instead(AttentionEnergy, "step", own_diagonal),
        "causal": in_weights(
            lambda right, self, Z: np.tril(right(self, Z)) + np.diag(np.triu(right(self, Z), 1).sum(axis=1))
        ),
        "softmax over the wrong axis": in_weights(wrong_axis),
    },
    "attention.blurring_mean_shift": {
        "½ missing in the distance": instead(*DISTANCE[0], times(2)),
        "distance not squared": instead(*DISTANCE[0], lambda right, *args: np.sqrt(2 * right(*args))),
        "another kernel": penalty("exp", "log(1 + z)"),
        "pair weights ignored": instead(AttentionEnergy, "step", without_weights),
        "self left out": instead(AttentionEnergy, "_kernel", others_only),
        "off by 1e-7": instead(AttentionEnergy, "step", times(1 + 1e-7)),
    },
    "attention.unweighted_refuted": {
        "norms that differ": examples(lambda: st.tuples(strategies.tokens(), st.none())),
        "softmax over the wrong axis": in_weights(wrong_axis),
        "logits of another temperature": instead(
            definitions, "softmax_attention", lambda right, Y, W, exp, beta: right(Y, W, lambda x: exp(x / 2), beta)
        ),
        "off by 1e-9": instead(AttentionEnergy, "step", moved(SLIGHTLY)),
    },
    "residual.step": {
        "λ missing in the denominator": instead(ResidualAttentionEnergy, "step", residual_without("lam")),
        "‖S‖ missing in the denominator": instead(ResidualAttentionEnergy, "step", residual_without("s")),
        "pulled to 0": instead(
            ResidualAttentionEnergy, "gradient", lambda right, self, Y: self.attention.gradient(Y) + self.lam * Y
        ),
        "pushed away from X": instead(
            ResidualAttentionEnergy,
            "gradient",
            lambda right, self, Y: self.attention.gradient(Y) - self.lam * (Y - self.X),
        ),
        "pair weights ignored": instead(AttentionEnergy, "half_curvature", without_weights),
        "self left out": instead(AttentionEnergy, "_kernel", others_only),
        "step too long": instead(ResidualAttentionEnergy, "step", moved(2.5)),
        "off by 1e-9": instead(ResidualAttentionEnergy, "step", moved(SLIGHTLY)),
    },
    "residual.plain_step_refuted": {
        "three tokens": examples(
            lambda: st.tuples(strategies.tokens(st.just(3), st.just(1), st.just(4.0)), st.integers(1, 8).map(float))
        ),
        "sign flipped": instead(AttentionEnergy, "step", moved(-1)),
        "step too long": instead(AttentionEnergy, "step", moved(2.5)),
        "sign of the data term flipped": instead(ResidualAttentionEnergy, "data_value", times(-1)),
        "an X that is not 0": instead(
            ResidualAttentionEnergy, "_residual", lambda right, self, Y: Y - np.array([[1.0], [-1.0]])
        ),
    },
    "ffn.gradient": {
        "W_f not symmetrised": instead(FeedForwardEnergy, "gradient", asymmetric_gradient),
        "W_fᵀ for its symmetric part": instead(
            FeedForwardEnergy, "gradient", lambda right, self, Y: Y + Y @ self.Wf.T - self.B
        ),
        "identity missing": instead(FeedForwardEnergy, "gradient", lambda right, self, Y: right(self, Y) - Y),
        "sign of the bias": instead(FeedForwardEnergy, "gradient", lambda right, self, Y: right(self, Y) + 2 * self.B),
        "twice the gradient": instead(FeedForwardEnergy, "gradient", times(2)),
        "off by 1e-9": instead(FeedForwardEnergy, "gradient", times(SLIGHTLY)),
        "W_f not symmetrised, in the definition as well": together(
            instead(FeedForwardEnergy, "gradient", asymmetric_gradient),
            instead(definitions, "symmetric_part", lambda right, Wf: Wf),
        ),
        "½ missing in the energy": instead(definitions, "feedforward_energy", times(2)),
    },
    "ffn.step": {
        "bias not scaled by α": instead(
            FeedForwardEnergy,
            "step",
            feedforward_step(lambda self, Y, alpha: self.gradient(Y) + self.B - self.B / alpha),
        ),
        "prox ignoring α": instead(FeedForwardEnergy, "step", feedforward_step(prox_alpha=lambda alpha: 1.0)),
        "α ignored": instead(FeedForwardEnergy, "step", lambda right, self, Y, alpha=1.0: right(self, Y)),
        "ReLU before the linear map": instead(FeedForwardEnergy, "step", relu_first),
        "W_f not symmetrised": instead(
            FeedForwardEnergy, "step", feedforward_step(lambda self, Y, alpha: Y + Y @ self.Wf - self.B)
        ),
        "identity missing": instead(
            FeedForwardEnergy, "step", feedforward_step(lambda self, Y, alpha: self.gradient(Y) - Y)
        ),
        "off by 1e-9": instead(FeedForwardEnergy, "step", times(SLIGHTLY)),
        "off by 1e-9 before the prox": instead(
            FeedForwardEnergy, "step", feedforward_step(lambda self, Y, alpha: SLIGHTLY * self.gradient(Y))
        ),
        "soft threshold at τ/2": activation("soft_threshold", prox=lambda right, v, alpha: right(v, alpha / 2)),
    },
    "ffn.sufficient_decrease": {
        "curvature without the identity": instead(FeedForwardEnergy, "curvature", lambda right, self: right(self) - 1),
        "α_max doubled": instead(FeedForwardEnergy, "max_alpha", lambda right, self: 2 * right(self)),
        "hard threshold declared convex": NOT_CONVEX,
        "sign flipped": instead(FeedForwardEnergy, "step", moved(-1)),
        "prox ignoring α": instead(FeedForwardEnergy, "step", feedforward_step(prox_alpha=lambda alpha: 1.0)),
        "mean for sum in the energy": instead(
            FeedForwardEnergy, "value", lambda right, self, Y: right(self, Y) / max(np.size(Y), 1)
        ),
        "½ missing in ‖Y − B‖²": instead(
            FeedForwardEnergy, "value", lambda right, self, Y: right(self, Y) + 0.5 * ((Y - self.B) ** 2).sum()
        ),
        "φ left out of the energy": instead(
            FeedForwardEnergy, "value", lambda right, self, Y: right(self, Y) - np.sum(self.activation.penalty(Y))
        ),
    },
    "prox.definition": {
        "prox 17x + 3": shipped(lambda v: 17 * v + 3),
        "soft threshold at τ/2": activation("soft_threshold", prox=lambda right, v, alpha: right(v, alpha / 2)),
        "leaky ReLU of slope 2 declared convex": STEEP,
        "hard threshold declared convex": NOT_CONVEX,
        "hard threshold at τ α": activation("hard_threshold", prox=lambda right, v, alpha: right(v, alpha**2)),
        "φ of tanh with a sign wrong": activation("tanh", penalty=lambda right, y: right(y) + y**2),
        "φ of softplus negated": activation(
            "softplus", penalty=lambda right, y: np.where(y < 0, np.inf, -right(np.maximum(y, 0)))
        ),
        "φ of the sigmoid without −½ y²": activation("sigmoid", penalty=lambda right, y: right(y) + 0.5 * y**2),
        "GELU with φ = 0": shipped(gelu),
    }
    | {
        f"α ignored: {name}": activation(name, prox=lambda right, v, alpha: right(v, 1.0))
        for name in (
            "shifted_relu",
            "soft_threshold",
            "hard_threshold",
            "leaky_relu",
            "tanh",
            "sigmoid",
            "softplus",
            "elu",
        )
    }
    | {
        f"off by 1e-9: {name}": activation(name, prox=lambda right, v, alpha: (1 - 1e-9) * right(v, alpha))
        for name in ACTIVATIONS
    },
    "prox.activation_characterisation": {
        "GELU": shipped(gelu),
        "SiLU": shipped(silu),
        "prox 17x + 3": shipped(lambda v: 17 * v + 3),
        "slope 2 declared convex": STEEP,
        "hard threshold declared convex": NOT_CONVEX,
        "sign flipped": activation("tanh", prox=lambda right, v, alpha: -right(v, alpha)),
    },
    "alternating.gradient_norm": {
        "always true": certify("gradient_norm", always),
        "margin's sign": certify("gradient_norm", never_mind_the_sign),
        "L_h halved": certify("gradient_norm", smoothness(L_h=0.5)),
        "f and h swapped": certify("gradient_norm", swapped),
        "the step size not asked for": together(certify("gradient_norm", without_the_step_size), examples(between)),
    },
    "alternating.apollonius": {
        "always true": certify("apollonius", always),
        "margin's sign": certify("apollonius", never_mind_the_sign),
        "y_f and y_h swapped": certify(
            "apollonius", lambda right, y, y_f, y_h, **constants: right(y, y_h, y_f, **constants)
        ),
        "L_f halved": certify("apollonius", smoothness(L_f=0.5)),
        "m_h doubled": certify("apollonius", smoothness(m_h=2)),
        "the step size not asked for": certify("apollonius", without_the_step_size),
    },
    "alternating.prox_mapping": {
        "always true": certify("prox_mapping", always),
        "L_h halved": certify("prox_mapping", smoothness(L_h=0.5)),
        "G without 1/α": certify(
            "prox_mapping", lambda right, grad_f, G, alpha, **rest: right(grad_f, alpha * G, alpha=alpha, **rest)
        ),
        "hard threshold declared convex": NOT_CONVEX,
    },
    "alternating.truncation": {
        "always true": certify("truncation", always),
        "κ dropped": instead(certificates, "truncated_share", lambda right, y, xi: 0.0),
        "√κ for κ": instead(certificates, "truncated_share", lambda right, y, xi: right(y, xi) ** 2),
        "L_h halved": certify("truncation", smoothness(L_h=0.5)),
    },
    "alternating.attention_metric": {
        "always true": certify("attention_metric", always),
        "margin's sign": certify("attention_metric", never_mind_the_sign),
        "L_f dropped": certify("attention_metric", smoothness(L_f=0)),
        "α ignored": certify("attention_metric", lambda right, *args, alpha=1.0, **rest: right(*args, **rest)),
        "sign of ∇f": certify(
            "attention_metric", lambda right, term, Y, grad_f, **rest: right(term, Y, -grad_f, **rest)
        ),
        "decrease of the step doubled": instead(AttentionEnergy, "step_decrease", times(2)),
    },
    "alternating.majorizer": {
        "always true": certify("majorizer", always),
        "margin's sign": certify("majorizer", never_mind_the_sign),
        "α ignored": certify("majorizer", lambda right, *args, L_g, alpha: right(*args, L_g=L_g)),
        "λ_max(H) halved twice": certify("majorizer", smoothness(L_g=0.5)),
        "½ of λ_max(H) missing": certify("majorizer", smoothness(L_g=2)),
        "½ of the trace missing": another_majorizer(lambda *args: 2 * trace(*args)),
        "the trace dropped": another_majorizer(lambda *args: 0.0),
        "D for L": another_majorizer(lambda *args: trace(*args, sign=0)),
        "D + Γ for L": another_majorizer(lambda *args: trace(*args, sign=1)),
        "S forgotten": another_majorizer(lambda S, *args: trace(np.eye(len(S)), *args)),
        "L at Y⁺": certify(
            "majorizer", lambda right, term, Y, Y_new, **rest: right(term, Y_new, 2 * Y_new - Y, **rest)
        ),
        "sign of Δ": certify("majorizer", lambda right, term, Y, Y_new, **rest: right(term, Y, 2 * Y - Y_new, **rest)),
        "hard threshold declared convex": NOT_CONVEX,
        "off by 1e-9": certify("majorizer", slightly_more),
    },
    "joint.step": {
        "M halved": instead(UnfoldedTransformer, "layer", joint_layer(lambda M, self: M / 2)),
        "M without ‖S‖": instead(
            AttentionEnergy, "half_curvature", lambda right, self, Y: right(self, Y) / (self.spectral_norm or 1)
        ),
        "M without H": instead(FeedForwardEnergy, "half_curvature", times(0)),
        "M without λ": instead(
            ResidualAttentionEnergy, "half_curvature", lambda right, self, Y: self.attention.half_curvature(Y)
        ),
        "M not doubled where φ is not convex": together(maps(lambda d: st.just(np.zeros((d, 1)))), NOT_CONVEX),
        "curvature without the identity": instead(FeedForwardEnergy, "curvature", lambda right, self: right(self) - 1),
        "prox ignoring M": instead(UnfoldedTransformer, "layer", joint_layer(prox_size=np.ones_like)),
        "a gradient's sign": instead(UnfoldedTransformer, "layer", joint_layer(sign=-1)),
    },
    "asymmetric.similarity": {
        "the metric of W_fᵀ": in_metric("metric", lambda right, Wf: right(Wf.T)),
        "P⁻¹ for P": in_metric("metric", lambda right, Wf: np.linalg.inv(right(Wf))),
        "always the identity": in_metric("metric", lambda right, Wf: np.eye(len(Wf))),
        "twice P": in_metric("metric", times(2)),
        "off by 1e-9": in_metric("metric", times(SLIGHTLY)),
        "eigenspaces without an orthonormal basis": in_metric("metric", eigenvectors_as_they_come),
        "the symmetric part acts": SYMMETRIC_PART_ACTS,
        "P left out of the energy": EUCLIDEAN,
        "P left out of the gradient": instead(
            FeedForwardEnergy, "gradient", lambda right, self, Y: Y + Y @ self.Wf - self.B
        ),
        "P in the step": instead(
            FeedForwardEnergy, "step", lambda right, self, Y, alpha=1.0: Y - alpha * self.gradient(Y)
        ),
        "curvature without the identity": instead(FeedForwardEnergy, "curvature", lambda right, self: right(self) - 1),
        "α_max doubled": instead(FeedForwardEnergy, "max_alpha", lambda right, self: 2 * right(self)),
    },
    "asymmetric.relu": {
        "p inverted": in_metric("diagonal_metric", lambda right, Wf: 1 / right(Wf)),
        "√p for p": in_metric("diagonal_metric", lambda right, Wf: np.sqrt(right(Wf))),
        "always 1": in_metric("diagonal_metric", lambda right, Wf: np.ones(len(Wf))),
        "geometric mean 2": in_metric("diagonal_metric", times(2)),
        "p off by 1e-9": in_metric("diagonal_metric", lambda right, Wf: right(Wf) * (1 + 1e-9 * np.arange(len(Wf)))),
        "φ not weighted": instead(FeedForwardEnergy, "penalty_weights", lambda right, self: 1.0),
        "the symmetric part acts": SYMMETRIC_PART_ACTS,
        "P left out of the energy": EUCLIDEAN,
        "prox with p α for α": instead(
            FeedForwardEnergy,
            "step",
            lambda right, self, Y, alpha=1.0: np.asarray(
                self.activation.prox(Y - alpha * (Y + Y @ self.Wf - self.B), alpha * self.metric * np.ones_like(Y))
            ),
        ),
        "α_max doubled": instead(FeedForwardEnergy, "max_alpha", lambda right, self: 2 * right(self)),
        "hard threshold declared convex": NOT_CONVEX,
        "the joint step's M without P": instead(
            FeedForwardEnergy,
            "half_curvature",
            lambda right, self, Y: np.full(Y.shape[:-1], max(self.curvature, 0) / 2),
        ),
        "the joint step's prox without p": instead(UnfoldedTransformer, "layer", joint_layer()),
    },
    "asymmetric.lyapunov": {
        "the equation transposed": in_metric("lyapunov", lambda right, Wf: right(Wf.T)),
        "twice P": in_metric("lyapunov", times(2)),
        "always the identity": in_metric("lyapunov", lambda right, Wf: np.eye(len(Wf))),
        "l / r for r / l": in_metric("diagonal_lyapunov", lambda right, Wf: 1 / right(Wf)),
        "p halved": in_metric("diagonal_lyapunov", times(0.5)),
        "always 1": in_metric("diagonal_lyapunov", lambda right, Wf: np.ones(len(Wf))),
        "W_f for |W_f|": in_metric("diagonal_lyapunov", without_moduli),
    },
    "asymmetric.two_sided": {
        "the query side only": instead(
            definitions, "two_sided_gradient", lambda right, *args: definitions.query_side(*args)
        ),
        "twice the query side": instead(
            definitions,
            "two_sided_gradient",
            lambda right, *args: [[2 * x for x in row] for row in definitions.query_side(*args)],
        ),
        "e transposed": instead(definitions, "exponentials", lambda right, *args: definitions.transpose(right(*args))),
        "M transposed on the query side": instead(
            definitions, "query_side", lambda right, Y, M, exp: right(Y, definitions.transpose(M), exp)
        ),
        "every pair counted once in the energy": instead(
            definitions, "two_sided_energy", lambda right, *args: right(*args) / 2
        ),
        "off by 1e-9": instead(
            definitions,
            "two_sided_gradient",
            lambda right, *args: [[SLIGHTLY * x for x in row] for row in right(*args)],
        ),
    },
    "gradient_field.integrability": {
        "only the symmetric part": instead(
            gradient_field, "_look", seen_as(J=lambda J: (J + np.swapaxes(J, -1, -2)) / 2)
        ),
        "J of the first point for all": instead(
            gradient_field, "_look", seen_as(J=lambda J: np.broadcast_to(J[:1], J.shape))
        ),
        "rows and columns exchanged": instead(gradient_field, "_look", seen_as(J=lambda J: np.swapaxes(J, -1, -2))),
        "signs ignored": instead(gradient_field, "fit_diagonal", lambda right, J, *args: right(np.abs(J), *args)),
        "errors too large": instead(gradient_field, "_look", seen_as(error=lambda error: 1e12 * error)),
        "errors too small": instead(gradient_field, "_look", seen_as(error=lambda error: 1e-9 * error)),
        "1 / p for p": instead(gradient_field, "fit_diagonal", reciprocal),
        "p off by 1e-5": instead(
            gradient_field,
            "fit_diagonal",
            lambda right, *args: (fit := right(*args))._replace(p=fit.p * np.linspace(1, 1 + 1e-5, fit.p.size)),
        ),
        "a complex step that nothing is compared with": instead(gradient_field, "_complex_steps", trusting),
        "differences twice too large": instead(
            gradient_field, "_central_differences", lambda right, *args: (2 * (seen := right(*args))[0], *seen[1:])
        ),
        "asymmetry over ‖J‖": instead(
            gradient_field,
            "asymmetry_of",
            lambda right, J: (
                np.linalg.norm(J - np.swapaxes(J, 1, 2), axis=(1, 2)) / (2 * np.linalg.norm(J, axis=(1, 2)))
            ),
        ),
        "asymmetry off by 1e-9": instead(gradient_field, "asymmetry_of", times(SLIGHTLY)),
    },
    "backward.attention": {
        "R not symmetrised": instead(AttentionEnergy, "vjp", attention_vjp(symmetrise=lambda Q: 2 * Q)),
        "R halved": instead(AttentionEnergy, "vjp", attention_vjp(symmetrise=lambda Q: (Q + Q.T) / 2)),
        "A for Aᵀ": instead(AttentionEnergy, "vjp", attention_vjp(back=lambda A: A)),
        "Y⁺ for A Y": instead(AttentionEnergy, "vjp", attention_vjp(mean=lambda A, Y, Y_new: Y_new)),
        "y_j for y_j − (A Y)_i": instead(AttentionEnergy, "vjp", attention_vjp(mean=lambda A, Y, Y_new: 0 * Y)),
        "the weights taken as constants": instead(AttentionEnergy, "_curvatures", times(0)),
        "ρ'' off by 1e-9": instead(AttentionEnergy, "_curvatures", times(SLIGHTLY)),
        "ρ'' of another ρ": penalty("log1p", second_derivative=PENALTIES["log2"].second_derivative),
        "pair weights ignored": instead(AttentionEnergy, "vjp", without_weights),
        "α ignored": instead(AttentionEnergy, "vjp", lambda right, self, Y, V, alpha=1.0: right(self, Y, V)),
        "a factor of W in W̄": instead(AttentionEnergy, "vjp", scaled_part("W", SLIGHTLY)),
        "½ missing in the distance": instead(definitions, "distance", times(2)),
        "ρ'' doubled, in the definition as well": together(
            instead(AttentionEnergy, "_curvatures", times(2)),
            instead(
                definitions,
                "attention_vjp",
                lambda right, Y, W, first, second, *rest: right(Y, W, first, lambda z: 2 * second(z), *rest),
            ),
        ),
    },
    "backward.ffn": {
        "W_f not symmetrised": instead(FeedForwardEnergy, "_acting", lambda right, self: self.Wf),
        "W̄_f not symmetrised": instead(FeedForwardEnergy, "vjp", asymmetric_cotangent),
        "prox' at Y": instead(FeedForwardEnergy, "_moved", lambda right, self, Y, alpha: Y),
        "identity missing": instead(
            FeedForwardEnergy, "_moved", lambda right, self, Y, alpha: right(self, Y, alpha) + alpha * Y
        ),
        "α ignored": instead(FeedForwardEnergy, "vjp", lambda right, self, Y, V, alpha=1.0: right(self, Y, V)),
        "sign of W̄_f": instead(FeedForwardEnergy, "vjp", scaled_part("Wf", -1)),
        "B̄ off by 1e-9": instead(FeedForwardEnergy, "vjp", scaled_part("B", SLIGHTLY)),
        "W̄_f not symmetrised, in the definition as well": together(
            instead(FeedForwardEnergy, "vjp", asymmetric_cotangent),
            instead(definitions, "feedforward_vjp", definition_of_asymmetric_cotangent),
        ),
    }
    | {
        f"prox' ignoring α: {name}": activation(name, prox_derivative=lambda right, v, alpha: right(v, 1.0))
        for name in (
            "shifted_relu",
            "soft_threshold",
            "hard_threshold",
            "leaky_relu",
            "tanh",
            "sigmoid",
            "softplus",
            "elu",
        )
    }
    | {
        f"prox' off by 1e-9: {name}": activation(
            name, prox_derivative=lambda right, v, alpha: SLIGHTLY * right(v, alpha)
        )
        for name in ACTIVATIONS
    },
    "rounding.products": {
        "not centred": instead(numerics, "_products", uncentred),
        "the low half left out": instead(numerics, "_products", lambda right, U: right(U._replace(low=None))),
        "½ missing": instead(numerics, "_products", lambda right, U: right(U)._replace(half=2 * right(U).half)),
        "a panel left out": instead(
            numerics, "_products", lambda right, U: right(U)._replace(factors=right(U).factors[:1])
        ),
        "the norms left out of the joined product": instead(
            numerics, "_joined_products", lambda right, U: right(U)._replace(factors=numerics._products(U).factors)
        ),
        "δ halved": instead(numerics, "_products", lambda right, U: right(U)._replace(delta=right(U).delta / 2)),
        "one row's half left out": instead(
            numerics,
            "_gram",
            lambda right, p, *part: np.maximum(right(p, *part) - (0 if p.half is None else p.half.T), 0),
        ),
        "below zero": instead(numerics, "_gram", negative_distances),
        "single precision": instead(numerics, "_gram", lambda right, *args: right(*args).astype(np.float32)),
    },
    "rounding.split": {
        "a grid of 2⁻³⁰": instead(numerics, "_split_products", split(bits=30)),
        "a grid of 2⁻²⁴": instead(numerics, "_split_products", split(bits=24)),
        "not on a grid": instead(numerics, "_split_products", split(to_the_grid=lambda u: u)),
        "rounded down": instead(numerics, "_split_products", split(to_the_grid=np.floor)),
        "R of the high halves": instead(numerics, "_split_products", split(low_counts=False)),
        "half of the rest left out": instead(numerics, "_split_products", split(half_rest=False)),
        "the rest left out": instead(
            numerics, "_split_products", lambda right, U: right(U)._replace(factors=right(U).factors[:1])
        ),
        "the low half left out": instead(numerics, "_split_products", lambda right, U: right(U._replace(low=None))),
    },
    "rounding.weights": {
        "always harmless": instead(AttentionEnergy, "_harmless", lambda right, *args: True),
        "ε doubled": instead(
            AttentionEnergy, "_harmless", lambda right, self, f, delta, epsilon: right(self, f, delta, 2 * epsilon)
        ),
        "tested at 1": instead(
            AttentionEnergy,
            "_harmless",
            lambda right, self, functions, *args: right(self, [lambda z, f=f: f(1 + z) for f in functions], *args),
        ),
        "epanechnikov taken for Bernstein": penalty("epanechnikov", bernstein=True),
    },
}


def test_every_claim_has_faults():
    assert list(FAULTS) == list(CLAIMS)
    assert all(len(faults) >= 2 for faults in FAULTS.values())


@pytest.mark.parametrize("claim", CLAIMS)
def test_right_code_is_not_accused(claim):
    finding = run(CLAIMS[claim], 50, seed=0)  # tests/test_claims.py takes more
    assert (finding.violations, finding.error) == (0, None)


@pytest.mark.parametrize("alpha", [0.125, 1.0, 8.0])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_right_prox_is_not_accused_at_the_ends_of_its_domain(name, alpha):
    """Saturated activations, where a penalty's slope is infinite and floats end."""
    for size in (0.0625, 5.5625, 10.0):
        CLAIMS["prox.definition"].check((ACTIVATIONS[name], np.array([-size, 0.0, size]), alpha))


@pytest.fixture
def unshrunk(monkeypatch):
    """Violations as they are found: shrinking has its own test, and would take most of the time of these."""
    phase = hypothesis.Phase
    monkeypatch.setattr(
        hypothesis, "Phase", SimpleNamespace(generate=phase.generate, target=phase.target, shrink=phase.generate)
    )


@pytest.mark.usefixtures("unshrunk")
@pytest.mark.parametrize(
    ("claim", "fault"),
    [pytest.param(claim, fault, id=f"{claim}: {fault}") for claim, faults in FAULTS.items() for fault in faults],
)
def test_fault_is_found(claim, fault, monkeypatch):
    finding = run(FAULTS[claim][fault](monkeypatch, CLAIMS[claim]), EXAMPLES, seed=0)
    assert finding.violations == 1
    assert finding.witness
    assert finding.error


ENERGIES = {
    "attention": (AttentionEnergy, "_energy", ["attention.majorizer"]),
    "data": (ResidualAttentionEnergy, "data_value", ["residual.step", "joint.step"]),
    "feed-forward": (FeedForwardEnergy, "value", ["ffn.gradient", "ffn.step", "ffn.sufficient_decrease"]),
}


@pytest.mark.usefixtures("unshrunk")
@pytest.mark.parametrize("factor", [2, SLIGHTLY])
@pytest.mark.parametrize("energy", ENERGIES)
def test_an_energy_off_by_a_factor_is_found_by_some_claim(energy, factor, monkeypatch):
    """Descent alone is blind to it: twice an energy falls where the energy falls."""
    owner, method, claims = ENERGIES[energy]
    plant = instead(owner, method, times(factor))
    assert any(run(plant(monkeypatch, CLAIMS[claim]), EXAMPLES, seed=0).violations for claim in claims)


# ------------------------------------------------------------------------------------------------ witnesses


def harmless(name):
    """What the witness takes for the penalty ``name`` is the exponential one, of which every claim is true."""
    return lambda patch, claim: patch.setitem(PENALTIES, name, PENALTIES["exp"])


def still(right, self, Y, *args):
    return np.asarray(Y, dtype=float)


SOFT_FOR_HARD = lambda patch, claim: patch.setitem(ACTIVATIONS, "hard_threshold", ACTIVATIONS["soft_threshold"])  # noqa: E731

TAME = {
    "attention.half_quadratic": harmless("z**2"),
    "attention.majorizer": harmless("z**2"),
    "attention.sufficient_decrease": harmless("1 - cos(z)"),
    "attention.overrelaxation": instead(AttentionEnergy, "max_alpha", times(2)),
    "rho.bernstein": harmless("epanechnikov"),
    "attention.unweighted_refuted": instead(definitions, "softmax_attention", lambda right, Y, *args: Y),
    "residual.plain_step_refuted": instead(definitions, "attention_step", lambda right, Y, *args: Y),
    "ffn.sufficient_decrease": instead(FeedForwardEnergy, "step", still),
    "prox.definition": SOFT_FOR_HARD,
    "prox.activation_characterisation": SOFT_FOR_HARD,
    "alternating.gradient_norm": certify("gradient_norm", always),
    "alternating.apollonius": certify("apollonius", always),
    "alternating.prox_mapping": certify("prox_mapping", always),
    "alternating.truncation": certify("truncation", always),
    "alternating.attention_metric": certify("attention_metric", always),
    "alternating.majorizer": certify("majorizer", always),
    "joint.step": instead(UnfoldedTransformer, "layer", still),
    "asymmetric.similarity": in_metric("metric", lambda right, Wf: np.eye(len(Wf))),
    "asymmetric.relu": in_metric("diagonal_metric", lambda right, Wf: np.ones(len(Wf))),
    "asymmetric.lyapunov": in_metric("diagonal_lyapunov", lambda right, Wf: np.ones(len(Wf))),
    "asymmetric.two_sided": instead(
        definitions, "query_side", lambda right, Y, M, exp: right(Y, definitions.symmetric_part(M), exp)
    ),
    "gradient_field.integrability": instead(definitions, "softmax_attention", lambda right, Y, *args: Y),
    "rounding.products": instead(rounding_claims, "_half_squared", lambda right, *rows: 0),
    "rounding.weights": harmless("epanechnikov"),
}


def test_every_witness_is_tamed():
    assert list(TAME) == [claim.id for claim in CLAIMS.values() if claim.witness]


@pytest.mark.parametrize("claim", TAME)
def test_a_witness_that_shows_nothing_is_an_error(claim, monkeypatch):
    TAME[claim](monkeypatch, CLAIMS[claim])
    finding = run(replace(CLAIMS[claim], cases=st.none, check=lambda case: None), 1)
    assert finding.witness is None
    assert finding.error.startswith("the witness does not show what it should")


# ------------------------------------------------------------------------------------------------ the ledger itself


def claim_of(check, cases=lambda: st.integers(0, 10**6), witness=None):
    return Claim("a.claim", "a statement", "conditions", "01_a.md", "refimpl", cases, check, witness)


@pytest.mark.parametrize("passes", [True, 1, np.True_, 0.0 <= 0.0])
def test_require_accepts(passes):
    require(passes, "never said")


@pytest.mark.parametrize("fails", [False, 0, None, np.False_, np.nan <= 1, np.float64(np.nan) >= 0])
def test_require_rejects(fails):
    with pytest.raises(Violation, match=r"^what$"):
        require(fails, lambda: "what")


@pytest.mark.parametrize(
    ("actual", "expected", "tolerance"),
    [
        (1.0, 1.0, 0.0),
        ([1.0, 2.0], [1.5, 2.0], 0.5),
        ([[1.0], [2.0]], [[1.0], [3.0]], [[0.0], [1.0]]),
        ([np.inf, -np.inf], [np.inf, -np.inf], 0.0),
        (np.zeros((0, 3)), np.zeros((0, 3)), 0.0),
    ],
)
def test_require_close_accepts(actual, expected, tolerance):
    require_close(actual, expected, tolerance, "thing")


@pytest.mark.parametrize(
    ("actual", "expected", "tolerance"),
    [
        (1.0, np.nextafter(1.0, 2), 0.0),
        ([1.0, 2.0], [1.0, 2.5], 0.49),
        ([1.0, 2.0], [1.0, 3.0], [1.0, 0.0]),
        (np.nan, np.nan, np.inf),
        (np.nan, 1.0, 1.0),
        (1.0, np.nan, 1.0),
        (1.0, 2.0, np.nan),
        (np.inf, -np.inf, 1.0),
        (np.inf, 1.0, 1.0),
        ([np.inf, 1.0], [np.inf, 2.0], 0.5),
        (np.zeros((2, 1)), np.zeros(2), 1.0),
        (np.zeros(1), 0.0, 1.0),
        (np.zeros((0, 3)), np.zeros((0, 2)), 1.0),
    ],
)
def test_require_close_rejects(actual, expected, tolerance):
    with pytest.raises(Violation, match=r"^thing: "):
        require_close(actual, expected, tolerance, "thing")


def test_examples_are_counted_not_promised():
    seen = []
    finding = run(claim_of(seen.append, lambda: st.sampled_from(range(7))), 100)
    assert finding.examples == len(set(seen)) == 7
    assert run(claim_of(lambda case: None), 100).examples == 100


def test_discarded_examples_do_not_count():
    finding = run(claim_of(lambda case: assume(case == 3), lambda: st.integers(0, 9)), 100)
    assert finding.examples == 1


def test_measured_and_tightest():
    finding = run(claim_of(lambda i: None if i % 2 else 1 + i / 8, lambda: st.integers(0, 9)), 100)
    assert (finding.examples, finding.measured, finding.tightest) == (10, 5, 1.0)


def test_the_same_seed_finds_the_same(monkeypatch):
    claim = FAULTS["prox.definition"]["prox 17x + 3"](monkeypatch, CLAIMS["prox.definition"])
    assert asdict(run(claim, 100, seed=4)) == asdict(run(claim, 100, seed=4))
    seen = [[], [], []]
    for values, seed in zip(seen, (1, 1, 2), strict=True):
        run(claim_of(values.append), 50, seed=seed)
    assert seen[0] == seen[1] != seen[2]


@pytest.mark.parametrize("claim", ["attention.gradient", "attention.step", "attention.sufficient_decrease"])
def test_a_violation_is_shrunk(claim, monkeypatch):
    finding = run(FAULTS[claim]["sign flipped"](monkeypatch, CLAIMS[claim]), 100, seed=0)
    Y = np.array(ast.literal_eval(re.match(r"Y = (\[.*?\]), W = ", finding.witness)[1]))
    assert 2 <= len(Y) <= 3
    assert np.count_nonzero(Y) <= 2


def test_a_check_that_breaks_is_no_pass():
    """Whatever a check raises, its claim is not reported as checked."""
    try:
        finding = run(claim_of(lambda i: 1 / 0), 20)
    except ZeroDivisionError:
        return
    assert finding.violations or finding.error


# ------------------------------------------------------------------------------------------------ verify

CLAIM = CLAIMS["prox.activation_characterisation"]
GOOD = Finding(examples=20, witness="outside: a point")


@pytest.mark.parametrize(
    ("change", "identities", "failure", "message"),
    [
        ({}, {}, None, "03_feedforward.md does not discharge it"),
        ({}, {"prox.definition": 46}, None, "03_feedforward.md does not discharge it"),
        ({}, {CLAIM.id: 0}, None, "03_feedforward.md does not discharge it"),
        ({}, {CLAIM.id: 12}, "cell 3, line 1: ValueError: no", "cell 3, line 1: ValueError: no"),
        ({"examples": 0}, {CLAIM.id: 12}, None, "the check ran on no example"),
        ({"examples": 7, "violations": 1, "error": "E rises"}, {CLAIM.id: 12}, None, "E rises"),
        ({"error": "the witness does not show it"}, {CLAIM.id: 12}, None, "the witness does not show it"),
    ],
)
def test_a_claim_is_ok_only_if_derived_and_checked(change, identities, failure, message):
    assert _row(CLAIM, ({CLAIM.id: 12}, None), asdict(GOOD))["ok"]
    row = _row(CLAIM, (identities, failure), asdict(replace(GOOD, **change)))
    assert not row["ok"]
    assert row["error"] == message
    assert row["derivation"] == ("proved" if identities.get(CLAIM.id) and not failure else "missing")


def test_a_check_that_runs_on_nothing_is_not_ok():
    finding = run(claim_of(lambda case: assume(False)), 20)
    assert finding.examples == 0
    assert not _row(CLAIM, ({CLAIM.id: 12}, None), asdict(finding))["ok"]


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    """Writes the notebook that verify finds in the place of the right one."""
    monkeypatch.setattr(derive, "folder", lambda: tmp_path)
    # threads for processes: what is patched here reaches them
    monkeypatch.setattr(
        sys.modules["refimpl.claims.verify"], "ProcessPoolExecutor", lambda *setup, **settings: ThreadPoolExecutor(1)
    )

    def write(*cells):
        text = "".join(f"Prose.\n\n```{{code-cell}} ipython3\n{cell}\n```\n" for cell in cells)
        (tmp_path / CLAIM.notebook).write_text(text, encoding="utf-8")

    return write


IMPORT = "from refimpl.claims import derived"
DISCHARGE = f"derived({CLAIM.id!r}, 1, 1)"


def test_verify_of_a_derived_and_checked_claim_is_ok(notebook):
    notebook(IMPORT, DISCHARGE)
    assert verify([CLAIM.id], examples=5)["ok"]


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ([], "does not discharge it"),
        ([IMPORT], "does not discharge it"),
        ([IMPORT, "derived('prox.definition', 1, 1)"], "does not discharge it"),
        ([IMPORT, DISCHARGE, "1 / 0"], "03_feedforward.md, cell 3, line 1: ZeroDivisionError"),
        ([IMPORT, DISCHARGE, "x = 1\nassert x == 2"], "03_feedforward.md, cell 3, line 2: AssertionError"),
        ([IMPORT, DISCHARGE, f"derived({CLAIM.id!r}, 1, 2)"], "DerivationError"),
        ([IMPORT, DISCHARGE, "1 +"], "SyntaxError"),
        ([IMPORT, DISCHARGE, "raise SystemExit"], "SystemExit"),
    ],
)
def test_verify_of_a_claim_that_is_not_derived_is_not_ok(notebook, cells, message):
    notebook(*cells)
    report = verify([CLAIM.id], examples=5)
    assert not report["ok"]
    assert report["claims"][0]["derivation"] == "missing"
    assert message in report["claims"][0]["error"]


def test_verify_without_the_notebook_is_not_ok(notebook):
    report = verify([CLAIM.id], examples=5)
    assert not report["ok"]
    assert "03_feedforward.md: FileNotFoundError" in report["claims"][0]["error"]


def test_verify_of_a_claim_that_fails_is_not_ok(notebook, monkeypatch):
    notebook(IMPORT, DISCHARGE)
    FAULTS[CLAIM.id]["sign flipped"](monkeypatch, CLAIM)
    report = verify([CLAIM.id], examples=EXAMPLES)
    assert not report["ok"]
    assert report["claims"][0]["violations"] == 1
    assert "decreases" in report["claims"][0]["error"]


def test_execute_says_where_a_notebook_stopped(notebook):
    notebook(IMPORT, DISCHARGE, "raise ValueError('no')")
    assert _execute(CLAIM.notebook) == ({}, "03_feedforward.md, cell 3, line 1: ValueError: no")
