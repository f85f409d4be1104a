"""The operations that the vectors cover: which inputs each has, its definition, the shape of its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import mpmath

from .. import definitions
from .exact import Activation, Penalty

Values = Mapping[str, Any]
Shape = tuple[int, ...]


class Array(NamedTuple):
    """An array of exact numbers, row after row; shape () is one number."""

    shape: Shape
    flat: Sequence[Any]

    def nested(self) -> Any:
        """One number, a list or rows."""
        if len(self.shape) < 2:
            return list(self.flat) if self.shape else self.flat[0]
        n, d = self.shape
        return [list(self.flat[i * d : (i + 1) * d]) for i in range(n)]


class Operation(NamedTuple):
    """``run`` of the inputs at the working precision; ``shape`` of its result from theirs."""

    inputs: tuple[str, ...]
    run: Callable[[Values, Penalty, Activation], Any]
    shape: Callable[[Mapping[str, Shape]], Shape]


def spectral_norm(W: definitions.Matrix) -> Any:
    """s = ‖W Wᵀ‖₂."""
    return max(0, _largest(definitions.matmul(W, definitions.transpose(W))))


def curvature(Wf: definitions.Matrix) -> Any:
    """h = λ_max(H), H = I + ½ (Wf + Wfᵀ)."""
    return 1 + _largest(definitions.symmetric_part(Wf))


def _largest(S: definitions.Matrix) -> Any:
    return max(mpmath.eigsy(mpmath.matrix(S), eigvals_only=True))


def _layer(x: Values, rho: Penalty, activation: Activation) -> Any:
    moved = definitions.attention_step(x["Y"], x["W"], rho.derivative, x["m"], x["alpha"])
    return definitions.feedforward_step(moved, x["Wf"], x["B"], activation.prox, x["alpha"])


def _residual_gradient(x: Values, rho: Penalty, _: Activation) -> Any:
    attention = definitions.attention_gradient(x["Y"], x["W"], rho.derivative, x["m"])
    offset = definitions.subtract(x["Y"], x["X"])
    return [
        [g + x["lam"] * r for g, r in zip(row, other, strict=True)]
        for row, other in zip(attention, offset, strict=True)
    ]


def _number(_: Mapping[str, Shape]) -> Shape:
    return ()


def _tokens(shapes: Mapping[str, Shape]) -> Shape:
    return shapes["Y"]


def _pairs(shapes: Mapping[str, Shape]) -> Shape:
    return (shapes["Y"][0], shapes["Y"][0])


_ATTENTION, _FEEDFORWARD = ("Y", "W", "m"), ("Y", "Wf", "B")

OPERATIONS = {
    "attention.energy": Operation(
        _ATTENTION, lambda x, rho, _: definitions.attention_energy(x["Y"], x["W"], rho.value, x["m"]), _number
    ),
    "attention.gradient": Operation(
        _ATTENTION, lambda x, rho, _: definitions.attention_gradient(x["Y"], x["W"], rho.derivative, x["m"]), _tokens
    ),
    "attention.weights": Operation(
        _ATTENTION,
        lambda x, rho, _: definitions.attention_weights(definitions.kernel(x["Y"], x["W"], rho.derivative, x["m"])),
        _pairs,
    ),
    "attention.step": Operation(
        (*_ATTENTION, "alpha"),
        lambda x, rho, _: definitions.attention_step(x["Y"], x["W"], rho.derivative, x["m"], x["alpha"]),
        _tokens,
    ),
    "attention.majorizer": Operation(
        (*_ATTENTION, "Y_new"),
        lambda x, rho, _: definitions.attention_majorizer(
            x["Y_new"], x["Y"], x["W"], rho.value, rho.derivative, x["m"]
        ),
        _number,
    ),
    "residual.energy": Operation(
        (*_ATTENTION, "X", "lam"),
        lambda x, rho, _: (
            definitions.attention_energy(x["Y"], x["W"], rho.value, x["m"])
            + definitions.data_energy(x["Y"], x["X"], x["lam"])
        ),
        _number,
    ),
    "residual.gradient": Operation((*_ATTENTION, "X", "lam"), _residual_gradient, _tokens),
    "residual.step": Operation(
        (*_ATTENTION, "X", "lam"),
        lambda x, rho, _: definitions.residual_step(
            x["Y"], x["X"], x["W"], rho.derivative, x["m"], x["lam"], spectral_norm(x["W"])
        ),
        _tokens,
    ),
    "feedforward.energy": Operation(
        _FEEDFORWARD,
        lambda x, _, sigma: definitions.feedforward_energy(x["Y"], x["Wf"], x["B"], sigma.penalty),
        _number,
    ),
    "feedforward.gradient": Operation(
        _FEEDFORWARD, lambda x, *_: definitions.feedforward_gradient(x["Y"], x["Wf"], x["B"]), _tokens
    ),
    "feedforward.step": Operation(
        (*_FEEDFORWARD, "alpha"),
        lambda x, _, sigma: definitions.feedforward_step(x["Y"], x["Wf"], x["B"], sigma.prox, x["alpha"]),
        _tokens,
    ),
    "prox.operator": Operation(
        ("v", "alpha"), lambda x, _, sigma: [sigma.prox(v, x["alpha"]) for v in x["v"]], lambda shapes: shapes["v"]
    ),
    "prox.penalty": Operation(
        ("y",), lambda x, _, sigma: [sigma.penalty(y) for y in x["y"]], lambda shapes: shapes["y"]
    ),
    "layer.alternating": Operation((*_ATTENTION, "Wf", "B", "alpha"), _layer, _tokens),
    "layer.joint": Operation(
        (*_ATTENTION, "Wf", "B"),
        lambda x, rho, sigma: definitions.joint_step(
            x["Y"],
            x["W"],
            rho.derivative,
            x["m"],
            x["Wf"],
            x["B"],
            sigma.prox,
            spectral_norm(x["W"]),
            curvature(x["Wf"]),
        ),
        _tokens,
    ),
}


def flattened(value: Any) -> list[Any]:
    """The numbers of a result, row after row."""
    return [x for item in value for x in flattened(item)] if isinstance(value, list) else [value]
