"""The layer: a sequence of two energy terms, or their sum, repeated with shared weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .attention import AttentionEnergy
from .feedforward import FeedForwardEnergy
from .numerics import FloatArray, Output, as_dtype, read_number, read_tokens
from .residual import ResidualAttentionEnergy

Schedule = Literal["alternating", "joint"]


@dataclass(frozen=True, eq=False)
class Trajectory:
    """What a forward pass went through, the input first.

    tokens : (depth + 1, ..., n, d).
    energy : (depth + 1, ...), the sum of the terms.
    terms : by name ("attention", "data" where there is a data term, "feedforward"), each (depth + 1, ...).
    """

    tokens: Output
    energy: FloatArray
    terms: dict[str, FloatArray]


class LayerVjp(NamedTuple):
    """Cotangents of a layer's inputs: Y (..., n, d), W (d, k), Wf (d, d) and B, a number or of B's shape."""

    Y: Output
    W: Output
    Wf: Output
    B: Any


@dataclass(frozen=True, eq=False)
class UnfoldedTransformer:
    """``depth`` layers, each a descent step on E = E_attn + E_ffn.

    Parameters
    ----------
    attention : :class:`refimpl.AttentionEnergy`, or :class:`refimpl.ResidualAttentionEnergy` for a data term as well.
    feedforward : :class:`refimpl.FeedForwardEnergy`.
    depth : number of layers, at least 0.
    schedule : "alternating" takes the attention step, then the feed-forward step: the Transformer layer. It lowers E
        where a certificate of :mod:`refimpl.certificates` holds. "joint" takes one proximal step on both terms at
        once, y_i⁺ = prox_{φ/M_i}(y_i − ∇_i / M_i) with M_i the sum of the terms' ``half_curvature`` (‖S‖₂ d_i +
        ½ max(λ_max(H), 0) without a data term), doubled where φ is not convex. It never raises a finite E. With a
        metric P of the feed-forward energy it is λ_max(H P), and the prox of feature a that of p_a φ / M_i.
    alpha : step size of both half steps; "joint" divides M_i by it, and descends for α ≤ 1.

    Source: Yang, Huang, Wipf (2022), section 4, for the alternation; the joint step is ours. Derivation:
    ``derivations/04_alternating.md``.
    """

    attention: AttentionEnergy | ResidualAttentionEnergy
    feedforward: FeedForwardEnergy
    depth: int = 12
    schedule: Schedule = "alternating"
    alpha: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.attention, AttentionEnergy | ResidualAttentionEnergy):
            raise TypeError(f"attention: expected an attention energy, got {type(self.attention).__name__}")
        if not isinstance(self.feedforward, FeedForwardEnergy):
            raise TypeError(f"feedforward: expected a FeedForwardEnergy, got {type(self.feedforward).__name__}")
        if isinstance(self.depth, bool) or not isinstance(self.depth, int | np.integer) or self.depth < 0:
            raise ValueError(f"depth: expected a whole number of at least 0, got {self.depth!r}")
        if self.schedule not in ("alternating", "joint"):
            raise ValueError(f"schedule: expected 'alternating' or 'joint', got {self.schedule!r}")
        read_number(self.alpha, "alpha", "(0, inf)")

    def layer(self, Y: ArrayLike) -> Output:
        """One layer's tokens, shape (..., n, d)."""
        if self.schedule == "alternating":
            return self.feedforward.step(self.attention.step(Y, self.alpha), self.alpha)
        tokens, dtype = read_tokens(Y, None)
        M = (self.attention.half_curvature(tokens) + self.feedforward.half_curvature(tokens))[..., None] / self.alpha
        if not self.feedforward.activation.convex:
            M = 2 * M
        still = (M == 0) | np.isinf(M)  # no curvature to divide by, or no step short enough: the row stays
        M = np.where(still, 1.0, M)
        gradient = self.attention.gradient(tokens) + self.feedforward.gradient(tokens)
        point = tokens - gradient / M
        size = np.broadcast_to(self.feedforward.penalty_weights / M, point.shape)
        moved = self.feedforward.activation.prox(point, size)
        return as_dtype(np.where(still, tokens, moved), dtype)

    def vjp(self, Y: ArrayLike, cotangent: ArrayLike) -> LayerVjp:
        """The cotangents of Y, W, W_f and B of one alternating ``layer``, for the cotangent of its result.

        The feed-forward step's ``vjp`` at the tokens between the steps, then the attention step's at Y.

        Raises ``ValueError`` for the joint schedule and with a data term, for which no vjp is written.
        """
        if self.schedule != "alternating":
            raise ValueError(f"schedule: expected 'alternating' for a vjp, got {self.schedule!r}")
        if not isinstance(self.attention, AttentionEnergy):
            raise ValueError(f"attention: expected an AttentionEnergy for a vjp, got {type(self.attention).__name__}")
        tokens, dtype = read_tokens(Y, None)
        # the tokens that the layer has there, in the precision that it has them in
        between = self.attention.step(Y, self.alpha).astype(np.float64)
        feedforward = self.feedforward.vjp(between, cotangent, self.alpha)
        attention = self.attention.vjp(tokens, feedforward.Y, self.alpha)
        parts = (attention.Y, attention.W, feedforward.Wf, feedforward.B)
        Y_bar, W_bar, Wf_bar, B_bar = (as_dtype(np.asarray(part, dtype=np.float64), dtype) for part in parts)
        return LayerVjp(Y_bar, W_bar, Wf_bar, B_bar[()])

    def terms(self, Y: ArrayLike) -> dict[str, Any]:
        """The energy of each term at Y, by name, each of shape (...)."""
        if isinstance(self.attention, ResidualAttentionEnergy):
            attention = {"attention": self.attention.attention.value(Y), "data": self.attention.data_value(Y)}
        else:
            attention = {"attention": self.attention.value(Y)}
        return attention | {"feedforward": self.feedforward.value(Y)}

    def value(self, Y: ArrayLike) -> Any:
        """E(Y), the sum of the terms, shape (...)."""
        return sum(self.terms(Y).values())

    def forward(self, Y: ArrayLike) -> Trajectory:
        """Run the layers from Y (..., n, d) and keep every layer's tokens and energies."""
        tokens, dtype = read_tokens(Y, None)
        batch = np.shape(self.value(tokens))  # pair weights, B or X may have leading axes that Y lacks
        layers: list[Output] = [np.broadcast_to(tokens, (*batch, *tokens.shape[-2:])).astype(dtype)]
        for _ in range(self.depth):
            layers.append(self.layer(layers[-1]))
        terms = [self.terms(layer) for layer in layers]
        by_name = {name: np.array([term[name] for term in terms]) for name in terms[0]}
        return Trajectory(np.stack(layers), np.sum(list(by_name.values()), axis=0), by_name)
