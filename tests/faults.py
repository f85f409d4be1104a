"""Planted faults: what implementations of the attention step, the feed-forward step and the layer do instead.

The shapes and the right equations are in ``implementations``. ``expect`` says what deviates. Each fault is wrong in
value on ordinary tokens, or behaves as its name says; only "random dropout" is random, and none warns.
"""

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from implementations import (
    attention_batched,
    attention_of,
    channels_last,
    composed,
    jax_functions,
    logits_form,
    relu_form,
    softmax_distances,
    torch_linear,
    torch_logits,
    torch_sdpa,
)
from scipy.special import erf, expit, softmax

STOP = threading.Event()  # set it to end "sleeps for ever"


class Fault(NamedTuple):
    name: str
    fn: Callable[..., Any]
    expect: str
    framework: str = "numpy"
    batched: bool = False


# ------------------------------------------------------------------------------------------------ pieces


def square(U):
    return (U**2).sum(axis=-1)


def logits(U, beta=0.5):
    return U @ U.T - beta * square(U)


def z(U):
    return 0.5 * square(U[:, None] - U)


def distance(U):
    return np.sqrt(2 * z(U))


@np.errstate(invalid="ignore", divide="ignore")  # rows without weights give nan
def mean(Gamma, Y):
    return Gamma @ Y / Gamma.sum(axis=1, keepdims=True)


def attend(scores, Y, axis=1):
    return softmax(scores, axis=axis) @ Y


def kernel(Y, W):
    return np.exp(-z(Y @ W))


def laplacian(Y, W):
    Gamma = kernel(Y, W)
    return (np.diag(Gamma.sum(axis=1)) - Gamma) @ Y


def masked(keep, beta=0.5):
    """Attention to the pairs (i, j) with ``keep(i, j)`` only."""

    def fn(Y, W):
        i, j = np.indices((len(Y), len(Y)))
        scores = logits(Y @ W, beta)
        top = scores.max(axis=1, keepdims=True)
        return mean(np.where(keep(i, j), np.exp(scores - top), 0), Y)

    return fn


def alpha(size, attention=logits_form):
    return lambda Y, W: (1 - size) * Y + size * attention(Y, W)


def normalised(Y):
    return (Y - Y.mean(axis=-1, keepdims=True)) / np.sqrt(Y.var(axis=-1, keepdims=True) + 1e-5)


@np.errstate(invalid="ignore", divide="ignore")
def unit(U):
    return U / np.sqrt(square(U))[:, None]


def lower(fn, dtype):
    """``fn`` computed in a lower precision, its result cast back: the dtype looks right."""

    @np.errstate(over="ignore", invalid="ignore", divide="ignore")  # float16 ends at 65504
    def cast(*arrays):
        return fn(*(array.astype(dtype) for array in arrays)).astype(arrays[0].dtype)

    return cast


def then(change, fn=logits_form):
    """``fn`` with its result changed."""
    return lambda *arrays: change(fn(*arrays))


# ------------------------------------------------------------------------------------------------ attention


def sinkhorn(Y, W):
    A = softmax(logits(Y @ W), axis=1)
    return A / A.sum(axis=0) @ Y


def hard(Y, W):
    return Y[logits(Y @ W).argmax(axis=1)]


def two_heads(Y, W):
    return sum(logits_form(Y, half) for half in np.array_split(W, 2, axis=1)) / 2


@np.errstate(over="ignore", invalid="ignore")
def overflowing(Y, W):
    return mean(np.exp(logits(Y @ W)), Y)


@np.errstate(under="ignore")
def clipped_logits(Y, W):
    return mean(np.exp(np.clip(logits(Y @ W), -50, 50)), Y)


def eps_in_the_denominator(Y, W):
    Gamma = kernel(Y, W)
    return Gamma @ Y / (Gamma.sum(axis=1, keepdims=True) + 1e-6)


def eps_in_the_differences(Y, W):
    U = Y @ W
    return mean(np.exp(-0.5 * square(U[:, None] - U + 1e-6)), Y)


@np.errstate(invalid="ignore")
def nan_for_duplicates(Y, W):
    far = distance(Y @ W)
    divisor = far + np.eye(len(Y))
    Gamma = np.exp(-0.5 * far**2) * (far / divisor)  # 0 / 0 where two tokens are the same
    return mean(Gamma + np.eye(len(Y)), Y)


def first_token_kept(Y, W):
    out = logits_form(Y, W)
    out[:1] = Y[:1]
    return out


def nan_in_one_place(Y, W):
    out = logits_form(Y, W)
    out[-1, -1] = np.nan
    return out


def mutates_tokens(Y, W):
    out = logits_form(Y, W)
    Y -= Y.mean(axis=0)
    return out


def alternating():
    """Every second call takes half a step."""
    calls = iter(range(sys.maxsize))
    return lambda Y, W: alpha(0.5 if next(calls) % 2 else 1.0)(Y, W)


def dropout():
    rng = np.random.default_rng(0)

    def fn(Y, W):
        A = softmax(logits(Y @ W), axis=1)
        return (2 * rng.integers(0, 2, A.shape) * A) @ Y

    return fn


def raises(Y, W):
    raise RuntimeError("not implemented for this input")


def raises_for_one_token(Y, W):
    if len(Y) == 1:
        raise IndexError("too few tokens")
    return logits_form(Y, W)


def sleeps(Y, W):
    STOP.wait(60)
    return logits_form(Y, W)


def prints(Y, W):
    for i in range(1000):
        print("token", i)
    return logits_form(Y, W)


def batch_in_one(Y, W):
    return attention_batched(Y.reshape(1, -1, Y.shape[-1]), W).reshape(Y.shape)


def softmax_over_the_batch(Y, W):
    U = Y @ W
    return softmax(U @ np.swapaxes(U, 1, 2) - 0.5 * square(U)[:, None, :], axis=0) @ Y


def first_of_the_batch(Y, W):
    return softmax(logits(Y[0] @ W), axis=1) @ Y


def torch_no_beta(Y, W):
    import torch

    U = Y @ W
    return torch.nn.functional.scaled_dot_product_attention(U, U, Y, scale=1.0)


def torch_default_scale(Y, W):
    import torch

    U = Y @ W
    return torch.nn.functional.scaled_dot_product_attention(U, U, Y)


def torch_wrong_axis(Y, W):
    import torch

    U = Y @ W
    return torch.softmax(U @ U.T - 0.5 * U.square().sum(dim=1), dim=0) @ Y


def torch_detached_weights(Y, W):
    import torch

    U = (Y @ W).detach()
    return torch.softmax(U @ U.T - 0.5 * U.square().sum(dim=1), dim=1) @ Y


def torch_square_root(Y, W):
    import torch

    U = Y @ W
    far = (U[:, None] - U).square().sum(dim=-1).sqrt()  # infinite slope on the diagonal, times 0
    return torch.softmax(-0.5 * far**2, dim=1) @ Y


@functools.cache
def wrong_backward():
    import torch

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, Y, W):
            ctx.save_for_backward(Y, W)
            return torch_logits(Y, W)

        @staticmethod
        def backward(ctx, V):
            Y, W = (saved.detach().requires_grad_() for saved in ctx.saved_tensors)
            with torch.enable_grad():
                out = torch_logits(Y, W)
            dY, dW = torch.autograd.grad(out, (Y, W), V)
            return 2 * dY, dW

    return Attention


@functools.cache
def jax_faults():
    import jax
    import jax.numpy as jnp

    def scores(U):
        return U @ U.T - 0.5 * jnp.sum(U**2, axis=1)

    def wrong_axis(Y, W):
        return jax.nn.softmax(scores(Y @ W), axis=0) @ Y

    def no_beta(Y, W):
        return jax.nn.softmax(Y @ W @ W.T @ Y.T, axis=1) @ Y

    def stopped(Y, W):
        return jax.nn.softmax(scores(jax.lax.stop_gradient(Y @ W)), axis=1) @ Y

    def single(Y, W):
        return jax_functions()["logits"](Y.astype("float32"), W.astype("float32")).astype(Y.dtype)

    def stopped_weights(Y, Wf, B):
        Wf = jax.lax.stop_gradient(Wf)
        return jax.nn.relu(B - Y @ (Wf + Wf.T) / 2)

    def asymmetric(Y, Wf, B):
        return jax.nn.relu(B - Y @ Wf)

    made = (wrong_axis, no_beta, stopped, single, stopped_weights, asymmetric)
    return {fn.__name__: jax.jit(fn) for fn in made}


def in_jax(name):
    return lambda *arrays: jax_faults()[name](*arrays)


ATTENTION_FAULTS = [
    # the reweighting, the metric, the scale
    Fault("beta missing", lambda Y, W: attend(logits(Y @ W, 0), Y), "softmax(UUᵀ) without β"),
    Fault("beta without 1/2", lambda Y, W: attend(logits(Y @ W, 1), Y), "β = exp(−|u|²)"),
    Fault("beta inverted", lambda Y, W: attend(logits(Y @ W, -0.5), Y), "β = exp(+½|u|²)"),
    Fault("W transposed", lambda Y, W: logits_form(Y, W.T), "WᵀW for WWᵀ; raises where k ≠ d"),
    Fault("W missing", lambda Y, W: logits_form(Y, np.eye(len(W))), "U = Y"),
    Fault("scale 1/sqrt(d)", lambda Y, W: attend(logits(Y @ W) / len(W) ** 0.5, Y), "logits divided by √d"),
    Fault("scale 1/sqrt(k)", lambda Y, W: attend(logits(Y @ W) / W.shape[1] ** 0.5, Y), "logits divided by √k"),
    Fault("scale 1/d", lambda Y, W: attend(logits(Y @ W) / len(W), Y), "logits divided by d"),
    Fault("scale 0.3", lambda Y, W: attend(0.3 * logits(Y @ W), Y), "logits times 0.3"),
    Fault(
        "dot product scaled alone", lambda Y, W: attend(Y @ W @ W.T @ Y.T / 2 - square(Y @ W) / 2, Y), "½UUᵀ, β right"
    ),
    # the kernel
    Fault("half distance", lambda Y, W: mean(np.exp(-0.5 * distance(Y @ W)), Y), "exp(−½|u_i − u_j|), no square"),
    Fault("distance", lambda Y, W: mean(np.exp(-distance(Y @ W)), Y), "exp(−|u_i − u_j|), no square"),
    Fault("1/2 missing", lambda Y, W: mean(np.exp(-2 * z(Y @ W)), Y), "exp(−|u_i − u_j|²)"),
    Fault("sign flipped", lambda Y, W: attend(z(Y @ W), Y), "exp(+z)"),
    Fault("logits negated", lambda Y, W: attend(-logits(Y @ W), Y), "softmax(−logits)"),
    Fault("penalty log(z + 1)", attention_of(lambda z: 1 / (z + 1)), "ρ' = 1/(z + 1)"),
    Fault("penalty log(z + 2)", attention_of(lambda z: 1 / (z + 2)), "ρ' = 1/(z + 2)"),
    Fault("penalty z/(z + 1)", attention_of(lambda z: (z + 1) ** -2), "ρ' = 1/(z + 1)²"),
    Fault("penalty sqrt(z + 1)", attention_of(lambda z: 0.5 * (z + 1) ** -0.5), "ρ' = ½(z + 1)^(−½)"),
    Fault("uniform", lambda Y, W: np.broadcast_to(Y.mean(axis=0), Y.shape).copy(), "every weight 1/n"),
    Fault("hard", hard, "the value of the largest logit"),
    Fault("cosine", lambda Y, W: attend(unit(Y @ W) @ unit(Y @ W).T, Y), "cosine similarity as logits"),
    Fault("distances clipped", attention_of(lambda z: np.exp(-np.minimum(z, 2))), "z clipped at 2"),
    Fault("logits clipped", clipped_logits, "logits clipped to ±50: wrong for large norms"),
    Fault("two heads", two_heads, "halves of U attend apart, results averaged"),
    # the mask
    Fault("self left out", masked(lambda i, j: i != j), "the diagonal is missing; nan for one token"),
    Fault("causal", masked(lambda i, j: j <= i), "tokens attend to j ≤ i"),
    Fault("anticausal", masked(lambda i, j: j >= i), "tokens attend to j ≥ i"),
    Fault("strictly causal", masked(lambda i, j: j < i), "tokens attend to j < i; nan for the first"),
    Fault("window", masked(lambda i, j: abs(i - j) <= 1), "tokens attend to neighbours"),
    Fault("only itself", masked(lambda i, j: i == j), "the mask is inverted: nothing moves"),
    # the normalisation
    Fault("wrong axis", lambda Y, W: attend(logits(Y @ W), Y, axis=0), "softmax over the queries"),
    Fault("transposed", lambda Y, W: softmax(logits(Y @ W), axis=1).T @ Y, "AᵀY"),
    Fault("one softmax", lambda Y, W: attend(logits(Y @ W), Y, axis=None), "softmax over all pairs"),
    Fault("not normalised", lambda Y, W: kernel(Y, W) @ Y, "ΓY"),
    Fault("rows, then columns", sinkhorn, "normalised twice"),
    Fault("eps in the denominator", eps_in_the_denominator, "1e-6 added to the degrees"),
    Fault("eps in the differences", eps_in_the_differences, "1e-6 added to u_i − u_j"),
    # the values and the update
    Fault("values projected", lambda Y, W: logits_form(Y, W) @ W, "AYW; the shape is wrong where k ≠ d"),
    Fault("values projected back", lambda Y, W: logits_form(Y, W) @ W @ W.T, "AYWWᵀ"),
    Fault("residual added", lambda Y, W: Y + logits_form(Y, W), "Y + AY"),
    Fault("residual averaged", lambda Y, W: (Y + logits_form(Y, W)) / 2, "½(Y + AY)"),
    Fault("difference", lambda Y, W: logits_form(Y, W) - Y, "AY − Y"),
    Fault("alpha 0.1", alpha(0.1), "step size 0.1"),
    Fault("alpha 0.5", alpha(0.5), "step size 0.5"),
    Fault("alpha 1.7", alpha(1.7), "step size 1.7"),
    Fault("pairs counted twice", alpha(2), "the step is twice as long"),
    Fault("uphill", alpha(-1), "Y + D⁻¹LY"),
    Fault("gradient step", lambda Y, W: Y - laplacian(Y, W) @ W @ W.T, "Y − ∇E"),
    Fault("Laplacian step", lambda Y, W: Y - laplacian(Y, W), "Y − LY"),
    Fault("two steps", lambda Y, W: logits_form(logits_form(Y, W), W), "the step is taken twice"),
    Fault("layer norm before", lambda Y, W: logits_form(normalised(Y), W), "the tokens are layer-normalised first"),
    Fault("layer norm after", then(normalised), "the result is layer-normalised"),
    Fault("centred", then(lambda out: out - out.mean(axis=0)), "the mean token is subtracted"),
    Fault("shifted", then(lambda out: out + 1e-3), "0.001 is added"),
    Fault("first token kept", first_token_kept, "the first token stays"),
    # the precision
    Fault("float32 inside", lower(logits_form, np.float32), "computed in float32"),
    Fault("float16 inside", lower(softmax_distances, np.float16), "computed in float16"),
    Fault("overflows", overflowing, "nan for large norms: no maximum is subtracted"),
    Fault("nan for duplicates", nan_for_duplicates, "nan where two tokens are the same"),
    # behaviour
    Fault("float32 returned", then(lambda out: out.astype(np.float32)), "returns float32 for float64"),
    Fault("complex returned", then(lambda out: out.astype(complex)), "returns complex128"),
    Fault("integers returned", then(lambda out: np.rint(out).astype(int)), "returns integers"),
    Fault("list returned", then(np.ndarray.tolist), "returns a list"),
    Fault("None returned", then(lambda out: None), "returns None"),
    Fault("axis added", then(lambda out: out[None]), "the shape is (1, n, d)"),
    Fault("row missing", then(lambda out: out[1:]), "the shape is (n − 1, d)"),
    Fault("nan returned", nan_in_one_place, "the last number is nan"),
    Fault("raises", raises, "raises RuntimeError"),
    Fault("raises for one token", raises_for_one_token, "raises IndexError where n = 1"),
    Fault("sleeps for ever", sleeps, "does not return"),
    Fault("exits", lambda Y, W: sys.exit(3), "raises SystemExit"),
    Fault("prints", prints, "the value is right, a thousand lines are printed"),
    Fault("tokens changed", mutates_tokens, "Y is centred in place"),
    Fault("second call differs", alternating(), "every second call takes half a step"),
    Fault("random dropout", dropout(), "half of the weights are dropped at random"),
    # batches
    Fault("batch in one", batch_in_one, "all tokens of the batch attend to each other", batched=True),
    Fault("softmax over the batch", softmax_over_the_batch, "softmax over the batch axis", batched=True),
    Fault("first of the batch", first_of_the_batch, "the first sample's weights serve all", batched=True),
    Fault("batch reversed", lambda Y, W: channels_last(Y[::-1], W), "samples in the wrong order", batched=True),
    Fault("batch axis lost", lambda Y, W: attention_batched(Y, W)[0], "the shape is (n, d)", batched=True),
    # PyTorch and JAX
    Fault("torch beta missing", torch_no_beta, "softmax(UUᵀ) without β", "torch"),
    Fault("torch default sdpa", torch_default_scale, "β missing and logits divided by √k", "torch"),
    Fault("torch wrong axis", torch_wrong_axis, "softmax over the queries", "torch"),
    Fault("torch float32 inside", lambda Y, W: torch_sdpa(Y.float(), W.float()).to(Y), "computed in float32", "torch"),
    Fault("torch bfloat16 inside", lambda Y, W: torch_logits(Y.bfloat16(), W.bfloat16()).to(Y), "in bfloat16", "torch"),
    Fault("torch float32 returned", lambda Y, W: torch_sdpa(Y, W).float(), "returns float32 for float64", "torch"),
    Fault("torch other device", lambda Y, W: torch_sdpa(Y, W).to("meta"), "on a device without values", "torch"),
    Fault("torch array returned", lambda Y, W: torch_sdpa(Y, W).detach().numpy(), "returns a NumPy array", "torch"),
    Fault("torch detached", lambda Y, W: torch_sdpa(Y, W).detach(), "the gradient is missing", "torch"),
    Fault("torch detached weights", torch_detached_weights, "the gradient misses that of the weights", "torch"),
    Fault("torch W detached", lambda Y, W: torch_logits(Y, W.detach()), "the gradient of W is missing", "torch"),
    Fault("torch wrong backward", lambda Y, W: wrong_backward().apply(Y, W), "the gradient of Y is doubled", "torch"),
    Fault("torch square root", torch_square_root, "the gradient is nan", "torch"),
    Fault("jax wrong axis", in_jax("wrong_axis"), "softmax over the queries", "jax"),
    Fault("jax beta missing", in_jax("no_beta"), "softmax(UUᵀ) without β", "jax"),
    Fault("jax float32 inside", in_jax("single"), "computed in float32", "jax"),
    Fault("jax detached weights", in_jax("stopped"), "the gradient misses that of the weights", "jax"),
    # pairs
    Fault(
        "beta missing, scale 1/sqrt(d)",
        lambda Y, W: attend(logits(Y @ W, 0) / len(W) ** 0.5, Y),
        "softmax(UUᵀ/√d): β missing and a scale",
    ),
    Fault("beta missing, W transposed", lambda Y, W: attend(logits(Y @ W.T, 0), Y), "β missing and WᵀW for WWᵀ"),
    Fault(
        "1/2 missing, self left out",
        lambda Y, W: mean(np.exp(-2 * z(Y @ W)) * (1 - np.eye(len(Y))), Y),
        "exp(−|u_i − u_j|²) without the diagonal",
    ),
    Fault("W transposed, alpha 0.5", lambda Y, W: (Y + logits_form(Y, W.T)) / 2, "WᵀW and α = 0.5"),
    Fault("causal, beta missing", masked(lambda i, j: j <= i, 0), "a causal mask and no β"),
    Fault(
        "scale 1/sqrt(d), residual added",
        lambda Y, W: Y + attend(logits(Y @ W) / len(W) ** 0.5, Y),
        "logits divided by √d, and Y + AY",
    ),
    Fault("scale 0.3, W transposed", lambda Y, W: attend(0.3 * logits(Y @ W.T), Y), "logits times 0.3, and WᵀW"),
    Fault(
        "wrong axis, beta missing", lambda Y, W: attend(logits(Y @ W, 0), Y, axis=0), "softmax over the queries, no β"
    ),
    Fault("self left out, alpha 0.5", alpha(0.5, masked(lambda i, j: i != j)), "no diagonal, and α = 0.5"),
    Fault("penalty log(z + 1), alpha 0.5", alpha(0.5, attention_of(lambda z: 1 / (z + 1))), "ρ' = 1/(z + 1), α = 0.5"),
]


# ------------------------------------------------------------------------------------------------ feed-forward


def relu(Y):
    return np.maximum(Y, 0)


def gelu(Y):
    return Y * (1 + erf(Y / 2**0.5)) / 2


def leaky(Y):
    return np.where(Y > 0, Y, 0.01 * Y)


def sym(Wf):
    return (Wf + Wf.T) / 2


def before(Y, Wf, B):
    """The right step before its ReLU."""
    return B - Y @ sym(Wf)


def activated(sigma):
    return lambda Y, Wf, B: sigma(before(Y, Wf, B))


def stepped(size):
    return lambda Y, Wf, B: relu(Y - size * (Y @ (np.eye(len(Wf)) + sym(Wf)) - B))


def last_column_wrong(Y, Wf, B):
    out = relu_form(Y, Wf, B)
    out[..., -1] = before(Y, Wf, B)[..., -1]
    return out


def mutates_bias(Y, Wf, B):
    B -= Y @ sym(Wf)
    return relu(B)


def torch_straight_through(Y, Wf, B):
    import torch

    moved = B - 0.5 * Y @ (Wf + Wf.T)
    return moved + (torch.relu(moved) - moved).detach()


def torch_linear_form(Y, Wf, B):
    import torch

    return torch.relu(B + torch.nn.functional.linear(Y, -Wf))


FEEDFORWARD_FAULTS = [
    # the weights
    Fault("Wf not symmetrised", lambda Y, Wf, B: relu(B - Y @ Wf), "W_f for its symmetric part"),
    Fault("Wf transposed", lambda Y, Wf, B: relu(B - Y @ Wf.T), "W_fᵀ for the symmetric part"),
    Fault("1/2 missing", lambda Y, Wf, B: relu(B - Y @ (Wf + Wf.T)), "W_f + W_fᵀ"),
    Fault("antisymmetric part", lambda Y, Wf, B: relu(B - Y @ (Wf - Wf.T) / 2), "½(W_f − W_fᵀ)"),
    Fault("sign flipped", lambda Y, Wf, B: relu(B + Y @ sym(Wf)), "B + YW"),
    Fault("upper triangle", lambda Y, Wf, B: relu(B - Y @ np.triu(sym(Wf))), "half of the weights"),
    Fault("diagonal", lambda Y, Wf, B: relu(B - Y * np.diag(Wf)), "only the diagonal of W_f"),
    Fault("scale 1/sqrt(d)", lambda Y, Wf, B: relu(B - Y @ sym(Wf) / len(Wf) ** 0.5), "weights divided by √d"),
    Fault("Wf squared", lambda Y, Wf, B: relu(B - Y @ Wf @ Wf.T), "W_f W_fᵀ"),
    # the bias
    Fault("bias missing", lambda Y, Wf, B: relu(-Y @ sym(Wf)), "no B"),
    Fault("bias negated", lambda Y, Wf, B: relu(-B - Y @ sym(Wf)), "−B"),
    Fault("bias outside", lambda Y, Wf, B: relu(-Y @ sym(Wf)) + B, "B after the ReLU"),
    Fault("bias twice", lambda Y, Wf, B: relu(2 * B - Y @ sym(Wf)), "2B"),
    Fault("bias of the first token", lambda Y, Wf, B: relu(B[0] - Y @ sym(Wf)), "the first row of B for all"),
    Fault("bias reversed", lambda Y, Wf, B: relu(B[::-1] - Y @ sym(Wf)), "the rows of B in the wrong order"),
    # the step
    Fault("alpha 0.5", stepped(0.5), "step size 0.5"),
    Fault("alpha 1.5", stepped(1.5), "step size 1.5"),
    Fault(
        "alpha 0.5, bias unscaled",
        lambda Y, Wf, B: relu(Y - 0.5 * Y @ (np.eye(len(Wf)) + sym(Wf)) + B),
        "Y − αYH + B, α = 0.5",
    ),
    Fault("identity missing", lambda Y, Wf, B: relu(Y - (Y @ sym(Wf) - B)), "H without I: Y + B − YW"),
    Fault("residual added", lambda Y, Wf, B: Y + relu_form(Y, Wf, B), "Y + ReLU"),
    Fault("gradient", lambda Y, Wf, B: relu(Y @ (np.eye(len(Wf)) + sym(Wf)) - B), "ReLU of the gradient"),
    Fault("ReLU on the gradient", lambda Y, Wf, B: Y - relu(Y + Y @ sym(Wf) - B), "Y − ReLU(gradient)"),
    # the activation
    Fault("ReLU before", lambda Y, Wf, B: B - relu(Y) @ sym(Wf), "B − ReLU(Y)W"),
    Fault("ReLU missing", before, "no ReLU"),
    Fault("ReLU twice", lambda Y, Wf, B: relu_form(relu(Y), Wf, B), "ReLU before and after"),
    Fault("GELU", activated(gelu), "GELU for ReLU"),
    Fault("leaky ReLU", activated(leaky), "slope 0.01 below 0"),
    Fault("tanh", activated(np.tanh), "tanh for ReLU"),
    Fault("absolute value", activated(np.abs), "the absolute value for ReLU"),
    Fault("SiLU", activated(lambda Y: Y * expit(Y)), "SiLU for ReLU"),
    Fault("softplus", activated(lambda Y: np.logaddexp(0, Y)), "softplus for ReLU"),
    Fault("sigmoid", activated(expit), "the sigmoid for ReLU"),
    Fault("clipped to 1", activated(lambda Y: np.clip(Y, 0, 1)), "clipped to [0, 1]"),
    Fault("squared ReLU", activated(lambda Y: relu(Y) ** 2), "ReLU squared"),
    Fault("min for max", activated(lambda Y: np.minimum(Y, 0)), "min(·, 0)"),
    Fault("threshold 0.1", activated(lambda Y: relu(Y - 0.1)), "ReLU(y − 0.1)"),
    # places and precision
    Fault("last column wrong", last_column_wrong, "no ReLU in the last column"),
    Fault("divided by n", lambda Y, Wf, B: relu(B - Y @ sym(Wf) / len(Y)), "the weights divided by n"),
    Fault(
        "tokens averaged", lambda Y, Wf, B: relu(B - Y.mean(axis=0) @ sym(Wf)), "tokens mix: the mean token for each"
    ),
    Fault(
        "layer norm before", lambda Y, Wf, B: relu_form(normalised(Y), Wf, B), "the tokens are layer-normalised first"
    ),
    Fault("float32 inside", lower(relu_form, np.float32), "computed in float32"),
    Fault("float16 inside", lower(relu_form, np.float16), "computed in float16"),
    # behaviour
    Fault("bias changed", mutates_bias, "B is changed in place"),
    Fault("float32 returned", then(lambda out: out.astype(np.float32), relu_form), "returns float32 for float64"),
    Fault("transposed returned", then(lambda out: out.T, relu_form), "the shape is (d, n)"),
    Fault("flattened", then(np.ravel, relu_form), "the shape is (n d,)"),
    # PyTorch and JAX
    Fault("torch linear", torch_linear_form, "W_fᵀ for the symmetric part", "torch"),
    Fault("torch detached", lambda Y, Wf, B: torch_linear(Y, Wf, B).detach(), "the gradient is missing", "torch"),
    Fault("torch straight through", torch_straight_through, "the gradient ignores the ReLU", "torch"),
    Fault("jax asymmetric", in_jax("asymmetric"), "W_f for its symmetric part", "jax"),
    Fault("jax Wf detached", in_jax("stopped_weights"), "the gradient of W_f is missing", "jax"),
    # pairs
    Fault("Wf not symmetrised, ReLU missing", lambda Y, Wf, B: B - Y @ Wf, "W_f, and no ReLU"),
    Fault("Wf transposed, bias missing", lambda Y, Wf, B: relu(-Y @ Wf.T), "W_fᵀ, and no B"),
    Fault("sign flipped, GELU", lambda Y, Wf, B: gelu(B + Y @ sym(Wf)), "B + YW, and GELU"),
    Fault("sign flipped, bias negated", lambda Y, Wf, B: relu(-before(Y, Wf, B)), "ReLU(YW − B)"),
    Fault("Wf not symmetrised, residual added", lambda Y, Wf, B: Y + relu(B - Y @ Wf), "W_f, and Y + ReLU"),
    Fault("1/2 missing, leaky ReLU", lambda Y, Wf, B: leaky(B - Y @ (Wf + Wf.T)), "W_f + W_fᵀ, and slope 0.01 below 0"),
    Fault("identity missing, Wf not symmetrised", lambda Y, Wf, B: relu(Y + B - Y @ Wf), "H without I, and W_f"),
]


# ------------------------------------------------------------------------------------------------ layer

ATTENTION_BY_NAME = {fault.name: fault for fault in ATTENTION_FAULTS}
FEEDFORWARD_BY_NAME = {fault.name: fault for fault in FEEDFORWARD_FAULTS}


def half(attention=None, feedforward=None):
    """A fault of the layer made of one in its attention, one in its feed-forward step, or both."""
    parts = [ATTENTION_BY_NAME[attention]] if attention else []
    parts += [FEEDFORWARD_BY_NAME[feedforward]] if feedforward else []
    fn = composed(
        ATTENTION_BY_NAME[attention].fn if attention else logits_form,
        FEEDFORWARD_BY_NAME[feedforward].fn if feedforward else relu_form,
    )
    names = [f"attention: {attention}"] * bool(attention) + [f"feed-forward: {feedforward}"] * bool(feedforward)
    return Fault("; ".join(names), fn, "; ".join(part.expect for part in parts))


right_layer = composed(logits_form, relu_form)


def joint(Y, W, Wf, B):
    S, H = W @ W.T, np.eye(len(Wf)) + sym(Wf)
    M = np.linalg.norm(S, 2) * kernel(Y, W).sum(axis=1) + max(np.linalg.eigvalsh(H)[-1], 0) / 2
    return relu(Y - (laplacian(Y, W) @ S + Y @ H - B) / M[:, None])


def torch_no_beta_layer(Y, W, Wf, B):
    return torch_linear(torch_no_beta(Y, W), Wf, B)


LAYER_FAULTS = [
    *(
        half(attention=name)
        for name in (
            "beta missing",
            "W transposed",
            "scale 1/sqrt(d)",
            "self left out",
            "causal",
            "wrong axis",
            "1/2 missing",
            "residual added",
            "alpha 0.5",
            "layer norm before",
            "float32 inside",
            "raises",
        )
    ),
    *(
        half(feedforward=name)
        for name in (
            "Wf not symmetrised",
            "Wf transposed",
            "1/2 missing",
            "sign flipped",
            "bias missing",
            "bias outside",
            "ReLU missing",
            "GELU",
            "leaky ReLU",
            "residual added",
            "identity missing",
            "alpha 0.5",
            "bias changed",
        )
    ),
    half("beta missing", "Wf not symmetrised"),
    half("beta missing", "ReLU missing"),
    half("W transposed", "sign flipped"),
    half("scale 1/sqrt(d)", "GELU"),
    half("residual added", "residual added"),
    Fault("order swapped", lambda Y, W, Wf, B: logits_form(relu_form(Y, Wf, B), W), "the feed-forward step goes first"),
    Fault("attention only", lambda Y, W, Wf, B: logits_form(Y, W), "no feed-forward step"),
    Fault("feed-forward only", lambda Y, W, Wf, B: relu_form(Y, Wf, B), "no attention"),
    Fault("parallel", lambda Y, W, Wf, B: logits_form(Y, W) + relu_form(Y, Wf, B), "AY + ffn(Y)"),
    Fault("residual around", lambda Y, W, Wf, B: Y + right_layer(Y, W, Wf, B), "Y + layer(Y)"),
    Fault("two layers", lambda Y, W, Wf, B: right_layer(right_layer(Y, W, Wf, B), W, Wf, B), "two layers for one"),
    Fault("joint step", joint, "one step on both terms at once"),
    Fault("W and Wf exchanged", lambda Y, W, Wf, B: right_layer(Y, Wf, W, B), "W as W_f, W_f as W; raises where k ≠ d"),
    Fault("bias in between", lambda Y, W, Wf, B: relu(-(logits_form(Y, W) + B) @ sym(Wf)), "B before the weights"),
    Fault("torch beta missing", torch_no_beta_layer, "softmax(UUᵀ) without β", "torch"),
    Fault(
        "torch attention detached",
        lambda Y, W, Wf, B: torch_linear(torch_sdpa(Y, W).detach(), Wf, B),
        "the gradient stops at the feed-forward step",
        "torch",
    ),
]

TABLES = {"attention": ATTENTION_FAULTS, "feedforward": FEEDFORWARD_FAULTS, "layer": LAYER_FAULTS}
