"""What implementations do instead: the known deviations, and which of them, alone or in pairs, explains an output.

A model predicts a function's output with some deviations switched on. The search tries none, one, two, and one
together with a number that is fitted (a step size, a temperature), and answers with the first prediction that equals
every observed output to rounding. Nothing here looks inside the function.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.special import erf

from ..activation import get_activation
from ..attention import AttentionEnergy
from ..feedforward import FeedForwardEnergy
from ..numerics import FloatArray
from ..rho import PENALTIES, Rho
from ..transformer import UnfoldedTransformer

_GRID = np.concatenate([-np.geomspace(0.02, 4, 8)[::-1], np.geomspace(0.02, 50, 18)])  # where a fit starts from


@dataclass(frozen=True)
class Inputs:
    """One set of inputs: tokens and what the kind under test needs of W, m, W_f and B."""

    note: str
    Y: FloatArray
    W: FloatArray
    Wf: FloatArray
    B: FloatArray
    m: FloatArray | None = None


@dataclass(frozen=True)
class Observation:
    """What a function made of the inputs, and how far rounding may take it: in its own dtype and in lower ones."""

    inputs: Inputs
    output: FloatArray
    tolerance: FloatArray
    low_precision: Mapping[str, FloatArray] = field(default_factory=dict)


@dataclass(frozen=True)
class Deviation:
    """A switch, its position, and the sentence that a reader gets. ``{x}`` in it is a fitted number."""

    switch: str
    position: str
    says: str
    claim: str
    fitted: bool = False


@dataclass(frozen=True)
class Explanation:
    """Deviations that reproduce the outputs, with the largest difference left."""

    deviations: tuple[Deviation, ...]
    formula: str
    error: float
    fitted: float | None = None
    precision: str | None = None

    def sentence(self, subject: str, reference: str, claim: str) -> str:
        """What a colleague would say; ``reference`` is the formula without any deviation."""
        close = f"{subject} equals {self.formula} to {self.error:.1g}"
        if self.formula == reference and not self.precision:
            close = f"{subject} is {reference} but for this, to {self.error:.1g}"
        reasons = [d.says.format(x=_number(self.fitted)) for d in self.deviations]
        claims = list(dict.fromkeys(d.claim for d in self.deviations))
        if self.precision:
            reasons.append(f"something inside runs in {self.precision}: the difference has the size of its rounding")
        return f"{close}: {'; and '.join(reasons)} ({', '.join(claims) or claim})"


Positions = Mapping[str, str]


# ------------------------------------------------------------------------------------------------ attention

# exp(c u_i·u_j − b ½ ‖u_j‖²): (c, b), the formula and what it means; (1, 1) is softmax_β
_LOGITS: dict[str, tuple[float, float, str, str]] = {
    "no beta": (1, 0, "softmax({})", "the reweighting β_j = exp(−½‖u_j‖²) is missing"),
    "beta twice": (1, 2, "softmax_β²({})", "β_j is exp(−‖u_j‖²): its ½ is missing"),
    "beta root": (1, 0.5, "softmax_√β({})", "β_j is exp(−¼‖u_j‖²): it has another ½"),
    "beta inverted": (1, -1, "softmax_1/β({})", "β_j has the wrong sign, exp(+½‖u_j‖²)"),
    "logits negated": (-1, 1, "softmax_β(−{})", "the sign of the logits is flipped"),
}
_KERNELS: dict[str, tuple[str, str]] = {
    "sign": ("D⁻¹Γ(−z)", "the sign is flipped: dissimilar tokens attend to each other"),
    "no half": ("D⁻¹Γ(2z)", "the ½ of z = ½‖u_i − u_j‖² is missing"),
    "distance": ("D⁻¹Γ(‖u_i − u_j‖)", "the distance is not squared, and the ½ is missing"),
    "half distance": ("D⁻¹Γ(½‖u_i − u_j‖)", "the distance is not squared"),
    "root": ("D⁻¹Γ(√z)", "the distance is not squared: √z stands for z"),
    "cosine": ("softmax(cos(u_i, u_j))", "the tokens are normalised before their products: cosine similarity"),
    "cosine distance": ("softmax_β(UUᵀ), ‖u_i‖ = 1", "the projected tokens u_i are normalised to length 1"),
    "shifted": (
        "D⁻¹Γ(½‖u_i − u_j + ε‖²)",
        "ε = 1e-6 is added to the entries of u_i − u_j, as PyTorch's pairwise_distance does",
    ),
    "uniform": ("mean", "every token attends to every other alike: uniform attention"),
    "hard": ("argmax(UUᵀ)", "each token takes the value of the largest u_i·u_j: hard attention"),
}
_SCALES: dict[str, tuple[Callable[[int, int], float], str]] = {
    "1/sqrt(d)": (lambda d, k: d**-0.5, "/√d"),
    "1/sqrt(k)": (lambda d, k: k**-0.5, "/√k"),
    "1/d": (lambda d, k: 1 / d, "/d"),
    "1/k": (lambda d, k: 1 / k, "/k"),
    "1/sqrt(k + 1)": (lambda d, k: (k + 1) ** -0.5, "/√(k + 1)"),
    "sqrt(d)": (lambda d, k: d**0.5, "·√d"),
    "sqrt(k)": (lambda d, k: k**0.5, "·√k"),
}


def _attention_deviations(rho: Rho, masked: bool) -> list[Deviation]:
    step = "attention.step"

    def of(switch: str, claim: str, *rows: tuple[str, str], fitted: bool = False) -> list[Deviation]:
        return [Deviation(switch, position, says, claim, fitted) for position, says in rows]

    exponential = rho.name == "exp"
    table = of("kernel", step, *((name, row[3]) for name, row in _LOGITS.items()))
    if not exponential:
        table = [Deviation("kernel", "no beta", "plain softmax stands for ρ'(z)", step)]
    for where in ("logits", "distances") if exponential else ("distances",):
        what = "UUᵀ" if where == "logits" else "z"
        table += of("scale", step, *((f"{where} {n}", f"{what} is scaled by {n}") for n in _SCALES))
    table += of("kernel", step, *((name, row[1]) for name, row in _KERNELS.items()))
    table += of(
        "kernel",
        step,
        *((f"rho {p}", f"the penalty is ρ = {PENALTIES[p].formula}") for p in PENALTIES if p != rho.name),
    )
    table += of(
        "map",
        step,
        ("transposed", "the map is transposed: WᵀW stands for WWᵀ, as U = YWᵀ"),
        ("identity", "the map W is not applied"),
        ("twice", "the map is applied twice, U = YWWᵀ"),
    )
    table += of(
        "mask",
        step,
        ("no self", "a token leaves itself out: the diagonal of the attention is missing"),
        ("causal", "a causal mask is applied: tokens attend to j ≤ i only"),
        ("strictly causal", "a strictly causal mask is applied: tokens attend to j < i only"),
        ("anticausal", "an inverted causal mask is applied: tokens attend to j ≥ i only"),
        ("only self", "nothing moves: each token attends to itself only, as where a mask is inverted"),
        ("self twice", "a token counts itself twice"),
        ("window", "a window mask is applied: tokens attend to |i − j| ≤ 1 only"),
    )
    if masked:
        table += of(
            "weights",
            step,
            ("ignored", "the pair weights m are ignored"),
            ("inverted", "the mask is inverted: 1 − m stands for m"),
            ("added", "the pair weights are added to the logits, exp(m − z) for m exp(−z)"),
            ("squared", "the pair weights are applied twice"),
            ("binary", "the pair weights are taken as a mask, m > 0"),
        )
    table += of(
        "normalise",
        step,
        ("columns", "the softmax runs over the wrong axis: columns sum to one, not rows"),
        ("transposed", "the attention is transposed: A' = AᵀY, as normalised over the wrong axis"),
        ("all", "the softmax runs over all pairs at once, not over each row"),
        ("pairs", "the weights are divided by their sum over all pairs, not over each row"),
        ("twice", "the rows of the attention are normalised, and then its columns"),
        ("none", "the weights are not normalised: D⁻¹ is missing"),
        ("symmetric", "the weights are normalised by D^(−½) on both sides"),
    )
    table += of(
        "values",
        step,
        ("U", "the values are projected: AYW stands for AY"),
        ("US", "the values are projected: AYWWᵀ stands for AY"),
        ("Uᵀ", "the values are projected: AYWᵀ stands for AY"),
        ("centred", "the values are centred: the mean token is subtracted"),
        ("normalised", "the values are layer-normalised"),
    )
    table += of(
        "update",
        step,
        ("gradient", "the step is a plain gradient step Y − ∇E: neither D⁻¹ nor S⁻¹ preconditions it"),
        ("Laplacian", "D⁻¹ is missing: Y − LY"),
        ("metric", "S is left in: Y − D⁻¹LYS"),
        ("residual", "the residual is added: Y + AY"),
        ("half", "the residual is averaged in: ½(Y + AY), which is α = ½"),
        ("uphill", "the sign of the step is flipped: Y + D⁻¹LY goes uphill"),
        ("twice", "the step is twice as long (α = 2), as where each pair is counted twice"),
        ("difference", "only the difference is returned: AY − Y, without the token itself"),
        ("iterated", "the step is taken twice"),
    )
    table += of(
        "before",
        step,
        ("normalised", "the tokens are layer-normalised first"),
        ("root mean square", "the tokens are divided by their root mean square first"),
        ("centred", "the tokens are centred first, and the centroid is lost"),
    )
    table += of("after", step, ("centred", "the result is centred"), ("normalised", "the result is layer-normalised"))
    table += of("heads", step, ("two", "the columns of U are split into two heads whose results are averaged"))
    table += of("update", step, ("alpha", "the step size is α = {x}, not 1"), fitted=True)
    table += of("update", step, ("gain", "the result is scaled by {x}"), fitted=True)
    table += of("update", step, ("shift", "{x} is added to every entry"), fitted=True)
    table += of("update", step, ("skip", "the residual is added with a factor: Y + {x} AY"), fitted=True)
    if exponential:
        table += of("scale", step, ("logits fit", "UUᵀ is scaled by {x}"), fitted=True)
    table += of("scale", step, ("distances fit", "z is scaled by {x}"), fitted=True)
    table += of("floor", step, ("fit", "{x} is added to the denominators d_i"), fitted=True)
    return table


def _layer_norm(Y: FloatArray) -> FloatArray:
    centred = Y - Y.mean(axis=-1, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5))


def _attention(inputs: Inputs, Y: FloatArray, rho: Rho, on: Positions, x: float) -> FloatArray | None:
    """The attention step of Y with the deviations ``on``; None where they are not defined."""
    W = inputs.W
    (d, k), n, square = W.shape, Y.shape[0], W.shape[0] == W.shape[1]
    before = on.get("before")
    if before == "normalised":
        Y = _layer_norm(Y)
    elif before == "root mean square":
        Y = Y / np.sqrt((Y**2).mean(axis=-1, keepdims=True) + 1e-6)
    elif before == "centred":
        Y = Y - Y.mean(axis=0)
    how, values = on.get("map"), on.get("values")
    if not square and (how == "transposed" or values in ("U", "Uᵀ")):
        return None
    U = {"transposed": Y @ W.T if square else Y, "identity": Y, "twice": Y @ W @ W.T}.get(how or "", Y @ W)
    if on.get("heads") == "two":
        halves = [_average(inputs, half, (d, k), rho, on, x) for half in np.array_split(U, 2, axis=1)]
        A = (halves[0] + halves[1]) / 2
    else:
        A = _average(inputs, U, (d, k), rho, on, x)
    V = Y
    if values in ("U", "US", "Uᵀ"):
        V = Y @ {"U": W, "US": W @ W.T, "Uᵀ": W.T}[values]
    elif values is not None:
        V = Y - Y.mean(axis=0) if values == "centred" else _layer_norm(Y)
    moved = A @ V
    update = on.get("update")
    if update in ("gradient", "Laplacian", "metric"):
        L = (np.diag(A.sum(axis=1)) - A) if update != "metric" else np.eye(n) - A
        moved = Y - L @ V @ (np.eye(d) if update == "Laplacian" else W @ W.T)
    elif update == "iterated":
        again = _attention(inputs, moved, rho, {key: at for key, at in on.items() if key != "update"}, x)
        if again is None:
            return None
        moved = again
    else:
        mix = {
            "residual": (1, 1),
            "half": (0.5, 0.5),
            "uphill": (2, -1),
            "twice": (-1, 2),
            "difference": (-1, 1),
            "alpha": (1 - x, x),
            "gain": (0, x),
            "skip": (1, x),
        }
        a, b = mix.get(update or "", (0, 1))
        moved = b * moved + (a * Y if a else 0.0) + (x if update == "shift" else 0.0)
    after = on.get("after")
    if after == "centred":
        moved = moved - moved.mean(axis=0)
    return _layer_norm(moved) if after == "normalised" else np.asarray(moved)


def _average(inputs: Inputs, U: FloatArray, shape: tuple[int, int], rho: Rho, on: Positions, x: float) -> FloatArray:
    """The weights (n, n) that average the tokens, from U or one head of it; ``shape`` is that of W."""
    n = len(U)
    kernel, scale, normalise = on.get("kernel", ""), on.get("scale", ""), on.get("normalise")
    where, _, name = scale.partition(" ")
    c = 1.0 if not scale else x if name == "fit" else _SCALES[name][0](*shape)
    if kernel == "cosine distance":
        U = U / np.linalg.norm(U, axis=1, keepdims=True)
    z = 0.5 * ((U[:, None] - U[None] + (1e-6 if kernel == "shifted" else 0.0)) ** 2).sum(axis=2)
    if where == "distances":
        z = c * z
    length = (U**2).sum(axis=1)
    logits = U @ U.T * (c if scale else 1.0)
    if (
        kernel in _LOGITS
        or (where == "logits" and not kernel)
        or (rho.name == "exp" and normalise in ("columns", "all"))
    ):
        sign, b = _LOGITS[kernel][:2] if kernel in _LOGITS else (1.0, 1.0)
        if where == "distances":
            b = b * c
        Gamma = np.exp(sign * logits - b * length / 2)
    elif kernel == "cosine":
        Gamma = np.exp(logits / np.sqrt(np.outer(length, length)))
    elif kernel == "hard":
        Gamma = 1.0 * (logits == logits.max(axis=1, keepdims=True))
    elif kernel == "uniform":
        Gamma = np.ones((n, n))
    elif kernel == "sign":
        slope = np.asarray(rho.derivative(z), dtype=np.float64)
        Gamma = 1 / np.where(slope == 0, np.inf, slope)
    else:
        if kernel in ("distance", "half distance", "root"):
            z = np.sqrt(z) * {"distance": np.sqrt(2), "half distance": np.sqrt(0.5), "root": 1.0}[kernel]
        elif kernel == "no half":
            z = 2 * z
        penalty = PENALTIES[kernel[4:]] if kernel.startswith("rho ") else rho
        Gamma = np.asarray(np.broadcast_to(penalty.derivative(z), z.shape), dtype=np.float64)
    if inputs.m is not None:
        weights = on.get("weights")
        m = inputs.m
        changed = {
            "ignored": 1 + 0 * m,
            "inverted": 1 - m,
            "squared": m**2,
            "binary": 1.0 * (m > 0),
            "added": np.exp(m),
        }
        Gamma = Gamma * changed.get(weights or "", m)
    row, column = np.indices((n, n))
    mask: dict[str, Any] = {
        "no self": row != column,
        "causal": column <= row,
        "strictly causal": column < row,
        "anticausal": column >= row,
        "only self": row == column,
        "self twice": 1 + (row == column),
        "window": np.abs(row - column) <= 1,
    }
    Gamma = Gamma * mask.get(on.get("mask", ""), 1.0)
    if normalise == "none" or on.get("update") in ("gradient", "Laplacian"):
        return np.asarray(Gamma)
    if normalise in ("columns", "transposed"):
        return np.asarray(Gamma / _positive(Gamma.sum(axis=0)))
    if normalise in ("all", "pairs"):
        return np.asarray(Gamma / Gamma.sum())
    degree = _positive(Gamma.sum(axis=1) + (x if "floor" in on else 0.0))
    if normalise == "symmetric":
        return np.asarray(Gamma / np.sqrt(np.outer(degree, degree)))
    A = Gamma / degree[:, None]
    if normalise == "twice":
        return np.asarray(A / _positive(A.sum(axis=0)))
    return np.asarray(A + np.diag(A.sum(axis=1) == 0))


def _positive(degree: FloatArray) -> FloatArray:
    return np.where(degree == 0, 1.0, degree)


def _attention_formula(rho: Rho, on: Positions) -> str:
    kernel, scale, update = on.get("kernel", ""), on.get("scale", ""), on.get("update", "")
    where, _, name = scale.partition(" ")
    suffix = "" if not scale else "·c" if name == "fit" else _SCALES[name][1]
    if kernel in _LOGITS:
        A = _LOGITS[kernel][2].format(f"UUᵀ{suffix}")
    elif kernel in _KERNELS:
        A = _KERNELS[kernel][0]
    elif kernel.startswith("rho ") or rho.name != "exp" or where == "distances":
        A = f"D⁻¹ρ'(z{suffix})"
    else:
        A = f"softmax_β(UUᵀ{suffix})"
    values = {"U": "YW", "US": "YWWᵀ", "Uᵀ": "YWᵀ"}.get(on.get("values", ""), "Y")
    AY = f"{A}{values}" if A != "mean" else "the mean of the tokens"
    text = {
        "gradient": "Y − LYS",
        "Laplacian": "Y − LY",
        "metric": "Y − D⁻¹LYS",
        "residual": f"Y + {AY}",
        "half": f"½(Y + {AY})",
        "uphill": f"2Y − {AY}",
        "twice": f"2{AY} − Y",
        "difference": f"{AY} − Y",
        "alpha": f"(1 − α)Y + α {AY}",
        "gain": f"c {AY}",
        "skip": f"Y + c {AY}",
        "shift": f"{AY} + c",
    }.get(update, AY)
    over = {
        "no self": "j ≠ i",
        "causal": "j ≤ i",
        "strictly causal": "j < i",
        "anticausal": "j ≥ i",
        "only self": "j = i",
        "window": "|i − j| ≤ 1",
        "inverted": "1 − m",
        "binary": "m > 0",
        "squared": "m²",
    }
    where_u = {"transposed": "U = YWᵀ", "identity": "U = Y", "twice": "U = YWWᵀ"}
    text += "".join(f" over {over[on[switch]]}" for switch in ("mask", "weights") if on.get(switch) in over)
    return text + (f" with {where_u[on['map']]}" if "map" in on else "")


# ------------------------------------------------------------------------------------------------ feed-forward

_FUNCTIONS: dict[str, tuple[str, Callable[[FloatArray], Any]]] = {
    "gelu": ("GELU", lambda v: 0.5 * v * (1 + erf(v / np.sqrt(2)))),
    "tanh gelu": (
        "GELU in its tanh form",
        lambda v: 0.5 * v * (1 + np.tanh(np.sqrt(2 / np.pi) * (v + 0.044715 * v**3))),
    ),
    "leaky 0.01": ("leaky ReLU with slope 0.01", lambda v: np.where(v > 0, v, 0.01 * v)),
    "silu": ("SiLU", lambda v: v / (1 + np.exp(-v))),
    "abs": ("the absolute value", np.abs),
    "relu6": ("ReLU6", lambda v: np.clip(v, 0, 6)),
    "clip": ("the clip to [0, 1]", lambda v: np.clip(v, 0, 1)),
    "min": ("min(·, 0)", lambda v: np.minimum(v, 0)),
    "square": ("the squared ReLU", lambda v: np.maximum(v, 0) ** 2),
    **{
        name: (name.replace("_", " "), functools.partial(lambda prox, v: prox(v, 1.0), get_activation(name).prox))
        for name in ("soft_threshold", "leaky_relu", "tanh", "sigmoid", "softplus", "elu")
    },
}


def _feedforward_deviations() -> list[Deviation]:
    step = "ffn.step"
    rows: list[tuple[str, str, str, str]] = [
        ("weights", "Wf", "W_f is not symmetrised: YW_f stands for ½Y(W_f + W_fᵀ)", step),
        ("weights", "Wfᵀ", "W_f is not symmetrised: YW_fᵀ stands for ½Y(W_f + W_fᵀ)", step),
        ("weights", "twice", "the ½ of ½(W_f + W_fᵀ) is missing", step),
        ("weights", "half", "W_fˢ is halved once more", step),
        ("weights", "none", "W_f is not applied", step),
        ("weights", "antisymmetric", "the antisymmetric part ½(W_f − W_fᵀ) stands for the symmetric one", step),
        ("weights", "diagonal", "only the diagonal of W_f is applied", step),
        ("weights", "upper", "only the upper triangle of W_f is applied", step),
        ("weights", "squared", "W_fW_fᵀ stands for ½(W_f + W_fᵀ)", step),
        ("weights", "1/sqrt(d)", "YW_fˢ is scaled by 1/sqrt(d)", step),
        ("sign", "plus", "the sign of W_f is flipped: B + YW_fˢ stands for B − YW_fˢ", step),
        ("bias", "none", "the bias B is missing", step),
        ("bias", "minus", "the sign of the bias is flipped", step),
        ("bias", "outside", "the bias is added after the activation, not before", step),
        ("bias", "half", "the bias is halved", step),
        ("bias", "first", "the bias of the first token is used for all", step),
        ("bias", "mean", "the mean of the bias over the tokens is used for all", step),
        ("bias", "unscaled", "the bias is not scaled by the step size α", step),
        ("bias", "twice", "the bias is added twice", step),
        ("identity", "missing", "the gradient lacks ½‖Y − B‖²: H is W_fˢ, not I + W_fˢ", "ffn.gradient"),
        ("position", "missing", "the ReLU is missing", step),
        ("position", "before", "the ReLU comes before the linear map, not after", step),
        ("position", "both", "a second ReLU comes before the linear map", step),
        ("position", "gradient", "the ReLU acts on the gradient: Y − ReLU(YH − B)", step),
        ("position", "only gradient", "the gradient YH − B is returned in place of the step", step),
        ("position", "product", "the ReLU acts on YW_fˢ only: B − ReLU(YW_fˢ)", step),
        ("update", "residual", "the residual is added: Y + ReLU(…)", step),
        ("update", "half", "the residual is averaged in: ½(Y + ReLU(…))", step),
        ("update", "double", "the step is taken twice", step),
        ("after", "normalised", "the result is layer-normalised", step),
        ("before", "normalised", "the tokens are layer-normalised first", step),
    ]
    rows += [
        ("activation", name, f"the activation is {what}, not ReLU", step) for name, (what, _) in _FUNCTIONS.items()
    ]
    table = [Deviation(*row) for row in rows]
    table.append(Deviation("alpha", "fit", "the step size is α = {x}, not 1", step, fitted=True))
    table.append(Deviation("weights", "fit", "YW_fˢ is scaled by {x}", step, fitted=True))
    table.append(Deviation("activation", "threshold", "the ReLU has a threshold, max(v − {x}, 0)", step, fitted=True))
    table.append(Deviation("update", "gain", "the result is scaled by {x}", step, fitted=True))
    table.append(Deviation("update", "mix", "the result is averaged with Y: Y + {x} (Y⁺ − Y)", step, fitted=True))
    return table


def _feedforward(inputs: Inputs, Y: FloatArray, on: Positions, x: float) -> FloatArray | None:
    """The feed-forward step of Y with the deviations ``on``."""
    Wf, B = inputs.Wf, inputs.B
    Ws = (Wf + Wf.T) / 2
    weights = {
        "Wf": Wf,
        "Wfᵀ": Wf.T,
        "twice": 2 * Ws,
        "half": Ws / 2,
        "none": 0 * Ws,
        "antisymmetric": (Wf - Wf.T) / 2,
        "diagonal": np.diag(np.diag(Wf)),
        "upper": np.triu(Wf),
        "squared": Wf @ Wf.T,
        "1/sqrt(d)": Ws / np.sqrt(len(Ws)),
        "fit": x * Ws,
    }
    Ws = weights.get(on.get("weights", ""), Ws)
    if on.get("sign") == "plus":
        Ws = -Ws
    biases = {"none": 0 * B, "minus": -B, "twice": 2 * B, "outside": 0 * B, "half": B / 2}
    biases |= {"first": 0 * B + B[0], "mean": 0 * B + B.mean(axis=0)}
    bias = biases.get(on.get("bias", ""), B)
    alpha = x if on.get("alpha") == "fit" else 1.0
    position = on.get("position")
    sigma: Callable[[FloatArray], Any] = _relu
    if "activation" in on:
        sigma = (lambda v: _relu(v - x)) if on["activation"] == "threshold" else _FUNCTIONS[on["activation"]][1]
    if on.get("before") == "normalised":
        Y = _layer_norm(Y)
    start = sigma(Y) if position in ("before", "both") else Y
    scaled = 1.0 if on.get("bias") == "unscaled" else alpha
    if position == "gradient":
        moved = Y - alpha * sigma(Y + Y @ Ws - bias)
    elif position == "only gradient":
        moved = sigma(Y + Y @ Ws - bias)
    elif position == "product":
        moved = (1 - alpha) * Y + alpha * (bias - sigma(Y @ Ws))
    else:
        kept = 1.0 if on.get("identity") == "missing" else 1 - alpha
        v = (kept * start if kept else 0.0) - alpha * (start @ Ws) + scaled * bias
        moved = v if position in ("missing", "before") else sigma(v)
    if on.get("bias") == "outside":
        moved = moved + B
    update = on.get("update")
    if update == "double":
        again = _feedforward(inputs, np.asarray(moved), {key: at for key, at in on.items() if key != "update"}, x)
        assert again is not None
        moved = again
    elif update:
        a, b = {"residual": (1.0, 1.0), "half": (0.5, 0.5), "mix": (1 - x, x), "gain": (0.0, x)}[update]
        moved = a * Y + b * moved
    return _layer_norm(np.asarray(moved)) if on.get("after") == "normalised" else np.asarray(moved)


def _relu(v: FloatArray) -> FloatArray:
    return np.maximum(v, 0.0)


def _feedforward_formula(on: Positions) -> str:
    position = on.get("position")
    Y = "ReLU(Y)" if position in ("before", "both") else "Y"
    W = {
        "Wf": "W_f",
        "Wfᵀ": "W_fᵀ",
        "twice": "(W_f + W_fᵀ)",
        "half": "½W_fˢ",
        "antisymmetric": "½(W_f − W_fᵀ)",
        "diagonal": "diag(W_f)",
        "upper": "triu(W_f)",
        "squared": "W_fW_fᵀ",
        "1/sqrt(d)": "W_fˢ/√d",
        "fit": "W_fˢ·c",
    }.get(on.get("weights", ""), "W_fˢ")
    sign = "+" if on.get("sign") == "plus" else "−"
    alpha = "α" if "alpha" in on else ""
    B = {
        "none": "",
        "minus": f"−{alpha}B",
        "twice": f"2{alpha}B",
        "outside": "",
        "unscaled": "B",
        "half": f"½{alpha}B",
    }.get(on.get("bias", ""), f"{alpha}B")
    kept = Y if on.get("identity") == "missing" else f"(1 − α){Y}" if alpha else ""
    linear = "" if on.get("weights") == "none" else f"{sign} {alpha}{Y}{W}"
    v = " ".join(filter(None, [kept, f"+ {B}" if kept and B and not B.startswith("−") else B, linear]))
    if position == "gradient":
        text = "Y − ReLU(Y + YW_fˢ − B)"
    elif position == "only gradient":
        text = "ReLU(Y + YW_fˢ − B)"
    elif position == "product":
        text = "B − ReLU(YW_fˢ)"
    elif position in ("missing", "before"):
        text = v
    else:
        name = _FUNCTIONS.get(on.get("activation", ""), ("ReLU",))[0]
        text = f"{name}({v})"
    if on.get("bias") == "outside":
        text += " + B"
    return {"residual": f"Y + {text}", "half": f"½(Y + {text})"}.get(on.get("update", ""), text)


# ------------------------------------------------------------------------------------------------ models


@dataclass(frozen=True)
class Model:
    """Predictions of one kind of function ("attention", "feedforward", "layer") under deviations."""

    kind: str
    rho: Rho
    masked: bool = False
    cache: dict[Any, tuple[Inputs, FloatArray | None]] = field(default_factory=dict, repr=False)

    def deviations(self) -> list[Deviation]:
        """Every known deviation, the likeliest first; in a layer the switches carry their half's name."""
        if self.kind == "attention":
            return _attention_deviations(self.rho, self.masked)
        if self.kind == "feedforward":
            return _feedforward_deviations()
        halves = [("attention", _attention_deviations(self.rho, False)), ("feedforward", _feedforward_deviations())]
        structure = [
            ("swapped", "the feed-forward step comes before the attention step", "ffn.step"),
            ("attention only", "the feed-forward step is missing", "ffn.step"),
            ("feedforward only", "the attention step is missing", "attention.step"),
            ("parallel", "both steps start from Y and their moves are added: Y⁺ = AY + ffn(Y) − Y", "ffn.step"),
            ("sum", "both steps start from Y and their results are added: Y⁺ = AY + ffn(Y)", "ffn.step"),
            ("residual", "the residual is added around the layer", "ffn.step"),
            ("twice", "two layers are applied, not one", "ffn.step"),
            (
                "joint",
                "the joint step is taken, not the alternation: both gradients at Y, divided by M_i",
                "joint.step",
            ),
            ("exchanged", "W and W_f are exchanged", "ffn.step"),
            ("bias between", "the bias is added to the tokens between the halves", "ffn.step"),
        ]
        return [Deviation("structure", position, says, claim) for position, says, claim in structure] + [
            Deviation(f"{half} {d.switch}", d.position, f"in the {_HALF[half]} half {d.says}", d.claim, d.fitted)
            for half, table in halves
            for d in table
        ]

    def predict(self, inputs: Inputs, on: Positions, x: float = 1.0) -> FloatArray | None:
        """The output (n, d) under the deviations ``on``, x being the fitted number; None where not defined."""
        with np.errstate(all="ignore"):
            if self.kind == "attention":
                return _attention(inputs, inputs.Y, self.rho, on, x)
            if self.kind == "feedforward":
                return _feedforward(inputs, inputs.Y, on, x)
            return self._layer(inputs, inputs.Y, on, x)

    def _layer(self, inputs: Inputs, Y: FloatArray, on: Positions, x: float) -> FloatArray | None:
        half = {
            name: {key.partition(" ")[2]: at for key, at in on.items() if key.startswith(f"{name} ")} for name in _HALF
        }

        def attention(tokens: FloatArray) -> FloatArray | None:
            key = (id(inputs), tokens is inputs.Y, tuple(sorted(half["attention"].items())), x)
            if tokens is not inputs.Y:
                return _attention(inputs, tokens, self.rho, half["attention"], x)
            if key not in self.cache:  # the inputs are kept too, so that their id stays theirs
                self.cache[key] = inputs, _attention(inputs, tokens, self.rho, half["attention"], x)
            return self.cache[key][1]

        def feedforward(tokens: FloatArray | None) -> FloatArray | None:
            return None if tokens is None else _feedforward(inputs, tokens, half["feedforward"], x)

        structure = on.get("structure")
        if structure == "feedforward only":
            return feedforward(Y)
        if structure == "swapped":
            first = feedforward(Y)
            return None if first is None else attention(first)
        if structure == "joint":
            energy, ffn = AttentionEnergy(inputs.W, self.rho), FeedForwardEnergy(inputs.Wf, inputs.B)
            return np.asarray(UnfoldedTransformer(energy, ffn, schedule="joint").layer(Y))
        if structure == "exchanged":
            if inputs.W.shape != inputs.Wf.shape:
                return None
            return Model("layer", self.rho).predict(replace(inputs, W=inputs.Wf, Wf=inputs.W), {})
        averaged = attention(Y)
        if structure == "bias between" and averaged is not None:
            return _feedforward(replace(inputs, B=0 * inputs.B), averaged + inputs.B, half["feedforward"], x)
        if structure == "attention only" or averaged is None:
            return averaged
        if structure in ("parallel", "sum"):
            other = feedforward(Y)
            assert other is not None
            return averaged + other - (Y if structure == "parallel" else 0.0)
        result = feedforward(averaged)
        if structure == "residual" and result is not None:
            return Y + result
        if structure == "twice" and result is not None:
            return self._layer(inputs, result, {key: at for key, at in on.items() if key != "structure"}, x)
        return result

    def formula(self, on: Positions) -> str:
        """The prediction as text."""
        if self.kind == "attention":
            return _attention_formula(self.rho, on)
        if self.kind == "feedforward":
            return _feedforward_formula(on)
        half = {
            name: {key.partition(" ")[2]: at for key, at in on.items() if key.startswith(f"{name} ")} for name in _HALF
        }
        A, F = _attention_formula(self.rho, half["attention"]), _feedforward_formula(half["feedforward"])
        return {
            "swapped": f"the attention step {A} of Y' = {F}",
            "attention only": A,
            "feedforward only": F,
            "parallel": f"{A} + {F} − Y",
            "sum": f"{A} + {F}",
            "residual": "Y plus the layer",
            "twice": "two layers",
            "joint": "the joint step",
            "exchanged": "the layer with W and W_f exchanged",
            "bias between": "ReLU(−(Y₁ + B)W_fˢ) with Y₁ = AY",
        }.get(on.get("structure", ""), f"{F.replace('Y', 'Y₁')} with Y₁ = {A}")


_HALF = {"attention": "attention", "feedforward": "feed-forward"}


# ------------------------------------------------------------------------------------------------ the search


def explain(model: Model, observations: Sequence[Observation]) -> Explanation | None:
    """The simplest deviations that reproduce every observation to rounding, or None.

    In this order: none or one; a fitted number alone; none, in a lower precision; two; textbook attention and one; one,
    in float32; one and a number.
    """
    table = model.deviations()
    single = [(d,) for d in table if not d.fitted]
    pairs = [(a, b) for (a,), (b,) in itertools.combinations(single, 2) if a.switch != b.switch]
    lower = list(observations[0].low_precision)
    stages = itertools.chain(
        (_try(model, observations, deviations) for deviations in [(), *single]),
        _fits(model, observations, [()]),
        (_try(model, observations, (), precision=precision) for precision in lower),
        (_try(model, observations, deviations) for deviations in pairs),
        (_try(model, observations, deviations) for deviations in _textbook(single)),
        (_try(model, observations, deviations, precision=lower[0]) for deviations in single if lower),
        _fits(model, observations, single),
    )
    return next((found for found in stages if found is not None), None)


def _textbook(single: Sequence[tuple[Deviation]]) -> Iterator[tuple[Deviation, ...]]:
    """Textbook attention, softmax(UUᵀ/√k): two deviations that come together, and one more."""
    for half in ("", "attention "):
        by_name = {(d.switch, d.position): d for (d,) in single}
        plain = by_name.get((f"{half}kernel", "no beta"))
        for scale in ("logits 1/sqrt(k)", "logits 1/sqrt(d)"):
            scaled = by_name.get((f"{half}scale", scale))
            if plain is not None and scaled is not None:
                taken = (plain.switch, scaled.switch)
                yield from ((plain, scaled, d) for (d,) in single if d.switch not in taken)


def _fits(
    model: Model, observations: Sequence[Observation], others: Sequence[tuple[Deviation, ...]]
) -> Iterator[Explanation | None]:
    fitted = [d for d in model.deviations() if d.fitted]
    for number, other in itertools.product(fitted, others):
        if all(d.switch != number.switch for d in other):
            x = _fit(model, observations[0], (*other, number))
            if x is not None:
                yield _try(model, observations, (*other, number), x)


def _try(
    model: Model,
    observations: Sequence[Observation],
    deviations: tuple[Deviation, ...],
    x: float | None = None,
    precision: str | None = None,
) -> Explanation | None:
    on = {d.switch: d.position for d in deviations}
    worst = 0.0
    for seen in observations:
        predicted = model.predict(seen.inputs, on, 1.0 if x is None else x)
        if predicted is None or predicted.shape != seen.output.shape:
            return None
        error = np.abs(predicted - seen.output)
        tolerance = seen.low_precision[precision] if precision else seen.tolerance
        # a deviation may make numbers larger, and its rounding with them
        larger = max(1.0, float(np.abs(predicted).max() / max(np.abs(seen.inputs.Y).max(), 1e-300)))
        if not (error <= (16 if x is not None else 4) * larger * tolerance).all():
            return None
        worst = max(worst, float(error.max()))
    return Explanation(deviations, model.formula(on), worst, x, precision)


def _fit(model: Model, seen: Observation, deviations: tuple[Deviation, ...]) -> float | None:
    """The number that fits one observation best: Gauss–Newton from the best point of a grid."""
    on = {d.switch: d.position for d in deviations}

    def misfit(x: float) -> FloatArray | None:
        predicted = model.predict(seen.inputs, on, x)
        return None if predicted is None else (predicted - seen.output).ravel()

    residuals = [(float(x), misfit(x)) for x in _GRID]
    sizes = [(float(np.abs(r).max()), x) for x, r in residuals if r is not None and np.isfinite(r).all()]
    if not sizes:
        return None
    x = min(sizes)[1]
    for _ in range(12):
        h = 1e-6 * max(abs(x), 1e-3)
        r, ahead, behind = misfit(x), misfit(x + h), misfit(x - h)
        if r is None or ahead is None or behind is None:
            return None
        slope = (ahead - behind) / (2 * h)
        curvature = float(slope @ slope)
        if not (np.isfinite(curvature) and curvature > 0):
            return None
        change = float(r @ slope) / curvature
        if not np.isfinite(change):
            return None
        x -= float(np.clip(change, -max(abs(x), 0.1), max(abs(x), 0.1)))
        if abs(change) <= 1e-15 * abs(x):
            break
    return x


def _number(x: float | None) -> str:
    if x is None:
        return ""
    return f"{x:.6g}" if abs(x - 1) > 1e-5 or x == 1 else f"1 {'+' if x > 1 else '−'} {abs(x - 1):.2g}"
