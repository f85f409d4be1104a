"""Correct implementations of the attention step, the ReLU feed-forward step and the layer, each written on its own.

Nothing here imports refimpl: every function is written from the equations alone, so that agreement means something.
With U = Y W and z_ij = ½ |u_i − u_j|²,

    attention(Y, W) = D⁻¹ Γ Y,  Γ_ij = exp(−z_ij),  D = diag(Γ 1)
    feedforward(Y, Wf, B) = max(B − Y (Wf + Wfᵀ) / 2, 0)
    layer(Y, W, Wf, B) = feedforward(attention(Y, W), Wf, B)

Y is (n, d), or (b, n, d) where batched; W is (d, k), Wf (d, d), B (n, d). torch and jax are imported where
they are used.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import softmax


class Implementation(NamedTuple):
    name: str
    fn: Callable[..., Any]
    framework: str = "numpy"  # of the arrays that fn takes and returns: "numpy", "torch" or "jax"
    dtype: str = "float64"  # in which fn computes and returns
    batched: bool = False


# ------------------------------------------------------------------------------------------------ attention, NumPy


def logits_form(Y, W):
    U = Y @ W
    logits = U @ U.T - 0.5 * np.sum(U**2, axis=1)  # key j carries −½ |u_j|²
    E = np.exp(logits - logits.max(axis=1, keepdims=True))
    return (E / E.sum(axis=1, keepdims=True)) @ Y


def attention_of(rho_prime):
    """The step for any penalty, by its slope ``rho_prime(z)`` at differences taken one by one."""

    def fn(Y, W):
        U = Y @ W
        delta = U[:, None, :] - U[None, :, :]  # (n, n, k)
        Gamma = rho_prime(0.5 * np.sum(delta * delta, axis=-1))  # (n, n)
        return np.matmul(Gamma, Y) / np.sum(Gamma, axis=-1)[:, None]

    return fn


def einsum_form(Y, W):
    delta = np.einsum("ijd,dk->ijk", Y[:, None] - Y[None], W)
    Gamma = np.exp(-0.5 * np.einsum("ijk,ijk->ij", delta, delta))
    return np.einsum("i,ij,jd->id", 1 / np.einsum("ij->i", Gamma), Gamma, Y)


def gram_form(Y, W):
    G = Y @ (W @ W.T) @ Y.T  # y_i S y_jᵀ
    squares = np.diag(G)
    Gamma = np.exp(G - 0.5 * (squares[:, None] + squares[None, :]))
    return np.linalg.solve(np.diag(Gamma.sum(axis=1)), Gamma @ Y)


def scipy_softmax(Y, W):
    U = Y @ W
    return softmax(U @ U.T - 0.5 * np.square(U).sum(axis=1), axis=1) @ Y


def scipy_cdist(Y, W):
    U = Y @ W
    return softmax(-0.5 * cdist(U, U, "sqeuclidean"), axis=-1) @ Y


def loops(Y, W):
    n, d = Y.shape
    out = np.zeros((n, d))
    for i in range(n):
        total = 0.0
        for j in range(n):
            z = 0.0
            for column in W.T:
                z += 0.5 * float((Y[i] - Y[j]) @ column) ** 2
            total += np.exp(-z)
            out[i] += np.exp(-z) * Y[j]
        out[i] /= total
    return out


def channels_first(Y, W):
    X = np.ascontiguousarray(Y.T)  # (d, n)
    U = W.T @ X  # (k, n)
    logits = U.T @ U - 0.5 * (U * U).sum(axis=0)[:, None]  # keys down, queries across
    E = np.exp(logits - logits.max(axis=0))
    return (X @ (E / E.sum(axis=0))).T


def centred_form(Y, W):
    Gamma = np.exp(-1e-8 - 0.5 * cdist((Y - Y.mean(axis=0)) @ W, (Y - Y.mean(axis=0)) @ W) ** 2)  # e^(−1e-8) cancels
    return Gamma @ Y / Gamma.sum(axis=1, keepdims=True)


def descent(Y, W):
    U = Y @ W
    Gamma = np.exp(-0.5 * ((U[:, None] - U) ** 2).sum(axis=2))
    D = np.diag(Gamma.sum(axis=1))
    return Y - np.linalg.inv(D) @ (D - Gamma) @ Y


def online_softmax(Y, W, block=2):
    U = Y @ W
    n, d = Y.shape
    top, total, mean = np.full((n, 1), -np.inf), np.zeros((n, 1)), np.zeros((n, d))
    for start in range(0, n, block):
        keys, values = U[start : start + block], Y[start : start + block]
        logits = U @ keys.T - 0.5 * (keys**2).sum(axis=1)  # (n, block)
        new = np.maximum(top, logits.max(axis=1, keepdims=True))
        E, kept = np.exp(logits - new), np.exp(top - new)  # what was summed so far is brought to the new maximum
        top, total, mean = new, kept * total + E.sum(axis=1, keepdims=True), kept * mean + E @ values
    return mean / total


def attention_float32(Y, W):
    return logits_form(np.asarray(Y, np.float32), np.asarray(W, np.float32))


def attention_batched(Y, W):
    U = Y @ W  # (..., n, k)
    logits = U @ np.swapaxes(U, -1, -2) - 0.5 * (U**2).sum(axis=-1)[..., None, :]
    return softmax(logits, axis=-1) @ Y


def attention_batched_float32(Y, W):
    return attention_batched(np.asarray(Y, np.float32), np.asarray(W, np.float32))


def channels_last(Y, W):
    images = Y[:, :, None, :]  # (b, h, w, c), images one pixel wide
    b, h, w, c = images.shape
    U = np.tensordot(images, W, axes=1)  # (b, h, w, k)
    delta = U[:, :, :, None, None, :] - U[:, None, None, :, :, :]
    Gamma = np.exp(-0.5 * np.square(delta).sum(axis=-1))  # (b, h, w, h, w)
    mean = np.einsum("bhwxy,bxyc->bhwc", Gamma, images) / Gamma.sum(axis=(3, 4))[..., None]
    return mean.reshape(b, h * w, c)


def one_by_one(Y, W):
    return np.stack([gram_form(tokens, W) for tokens in Y])


# ------------------------------------------------------------------------------------------------ attention, PyTorch


def torch_logits(Y, W):
    import torch

    U = Y @ W
    return torch.softmax(U @ U.mT - 0.5 * U.square().sum(dim=-1)[..., None, :], dim=-1) @ Y


def torch_sdpa(Y, W):
    import torch

    U = Y @ W  # (..., n, k); one feature more carries β: [u_i, 1] · [u_j, −½ |u_j|²]
    squares = U.square().sum(dim=-1, keepdim=True)
    queries, keys = torch.cat([U, torch.ones_like(squares)], dim=-1), torch.cat([U, -0.5 * squares], dim=-1)
    return torch.nn.functional.scaled_dot_product_attention(queries, keys, Y, scale=1.0)


def torch_cdist(Y, W):
    import torch

    U = Y @ W
    # distances by matrix products would lose half of the digits of small ones
    distance = torch.cdist(U, U, compute_mode="donot_use_mm_for_euclid_dist")
    return torch.softmax(-0.5 * distance**2, dim=-1) @ Y


def torch_autograd(Y, W):
    """Both derivatives by autograd: Γ = ∂/∂z Σ −exp(−z), and L Y = ∇ of ¼ Σ_ij Γ_ij |y_i − y_j|² at fixed Γ.

    The gradient of the pair energy itself is L Y W Wᵀ, from which L Y can't be had where W Wᵀ is singular (k < d).
    """
    import torch

    U = Y @ W
    z = 0.5 * (U[:, None] - U).square().sum(dim=-1)
    Gamma = torch.func.grad(lambda z: -torch.exp(-z).sum())(z)
    quadratic = torch.func.grad(lambda V: 0.25 * (Gamma * (V[:, None] - V).square().sum(dim=-1)).sum())
    return Y - quadratic(Y) / Gamma.sum(dim=1, keepdim=True)


def torch_energy(Y, W):
    """The energy by autograd, in coordinates V of Y: Σ_{i<j} ρ(z_ij + ½ |v_i − v_j|² − ½ |y_i − y_j|²) at V = Y.

    At V = Y the argument is z_ij, and the gradient with respect to V is L Y, whatever the rank of W.
    """
    import torch

    def energy(V):
        moved = 0.5 * ((V[:, None] - V).square() - (Y[:, None] - Y).square()).sum(dim=-1)
        return -0.5 * torch.exp(-z - moved).sum()

    U = Y @ W
    z = 0.5 * (U[:, None] - U).square().sum(dim=-1)
    return Y - torch.func.grad(energy)(Y) / torch.exp(-z).sum(dim=1, keepdim=True)


@functools.cache
def torch_modules():
    import torch

    class Attention(torch.nn.Module):
        def __init__(self, W):
            super().__init__()
            self.W = torch.nn.Parameter(torch.zeros_like(W))

        def forward(self, Y):
            U = Y @ self.W
            Gamma = (U @ U.T - 0.5 * (U * U).sum(1) - 0.5 * (U * U).sum(1)[:, None]).exp()
            return torch.nn.functional.normalize(Gamma, p=1.0, dim=1) @ Y

    class FeedForward(torch.nn.Module):
        def __init__(self, Wf, B):
            super().__init__()
            self.Wf = torch.nn.Parameter(torch.zeros_like(Wf))
            self.B = torch.nn.Parameter(torch.zeros_like(B))
            self.relu = torch.nn.ReLU()

        def forward(self, Y):
            return self.relu(self.B - 0.5 * (Y @ self.Wf + Y @ self.Wf.T))

    return Attention, FeedForward


def torch_module(Y, W):
    import torch

    return torch.func.functional_call(torch_modules()[0](W), {"W": W}, (Y,))


def torch_float32(Y, W):
    return torch_sdpa(Y.float(), W.float())


# ------------------------------------------------------------------------------------------------ attention, JAX


@functools.cache
def jax_functions():
    """The compiled functions, made once: a fresh ``jit`` at every call would compile at every call."""
    import jax
    import jax.numpy as jnp

    def attend(Y, W):
        U = Y @ W
        return jax.nn.softmax(U @ U.T - 0.5 * jnp.sum(U**2, axis=1), axis=1) @ Y

    def token(y, Y, W):  # one token y against all
        Gamma = jnp.exp(-0.5 * jnp.sum(((y - Y) @ W) ** 2, axis=1))
        return Gamma @ Y / Gamma.sum()

    def energy(V, Y, W):  # see torch_energy
        z = 0.5 * jnp.sum(((Y[:, None] - Y) @ W) ** 2, axis=-1)
        moved = 0.5 * jnp.sum((V[:, None] - V) ** 2 - (Y[:, None] - Y) ** 2, axis=-1)
        return -0.5 * jnp.exp(-z - moved).sum()

    def descend(Y, W):
        U = Y @ W
        D = jnp.exp(-0.5 * jnp.sum((U[:, None] - U) ** 2, axis=-1)).sum(axis=1, keepdims=True)
        return Y - jax.grad(energy)(Y, Y, W) / D

    def feed(Y, Wf, B):
        return jax.nn.relu(B - Y @ (0.5 * (Wf + Wf.T)))

    return {
        "logits": jax.jit(attend),
        "tokens": jax.vmap(token, in_axes=(0, None, None)),
        "batch": jax.jit(jax.vmap(attend, in_axes=(0, None))),
        "descent": jax.jit(descend),
        "feedforward": jax.jit(feed),
        "layer": jax.jit(lambda Y, W, Wf, B: feed(attend(Y, W), Wf, B)),
    }


def jax_logits(Y, W):
    return jax_functions()["logits"](Y, W)


def jax_tokens(Y, W):
    return jax_functions()["tokens"](Y, Y, W)


def jax_batch(Y, W):
    return jax_functions()["batch"](Y, W)


def jax_grad(Y, W):
    return jax_functions()["descent"](Y, W)


def jax_float32(Y, W):
    return jax_logits(Y.astype("float32"), W.astype("float32"))


# ------------------------------------------------------------------------------------------------ feed-forward


def relu_form(Y, Wf, B):
    return np.maximum(B - Y @ (Wf + Wf.T) / 2, 0)


def proximal_gradient(Y, Wf, B):
    H = np.eye(len(Wf)) + (Wf + Wf.T) / 2
    moved = Y - (Y @ H - B)  # the gradient step on the smooth part, then the projection on Y ≥ 0
    return np.where(moved > 0, moved, 0)


def feedforward_einsum(Y, Wf, B):
    return (B - (np.einsum("...i,ij->...j", Y, Wf) + np.einsum("...j,ij->...i", Y, Wf)) / 2).clip(min=0)


def feedforward_loops(Y, Wf, B):
    out = np.zeros(Y.shape)
    for i, j in np.ndindex(Y.shape):
        out[i, j] = max(0.0, B[i, j] - sum(0.5 * (Wf[m, j] + Wf[j, m]) * Y[i, m] for m in range(Y.shape[1])))
    return out


def feedforward_float32(Y, Wf, B):
    return relu_form(*(np.asarray(array, np.float32) for array in (Y, Wf, B)))


def torch_linear(Y, Wf, B):
    import torch

    linear = torch.nn.functional.linear(Y, -0.5 * (Wf + Wf.T))
    return torch.relu(linear + B)


def torch_feedforward_module(Y, Wf, B):
    import torch

    return torch.func.functional_call(torch_modules()[1](Wf, B), {"Wf": Wf, "B": B}, (Y,))


def torch_proximal_autograd(Y, Wf, B):
    import torch

    def smooth(V):
        return 0.5 * torch.sum(V * (V @ Wf)) + 0.5 * (V - B).square().sum()

    return torch.relu(Y - torch.func.grad(smooth)(Y))


def torch_linear_float32(Y, Wf, B):
    return torch_linear(Y.float(), Wf.float(), B.float())


def jax_feedforward(Y, Wf, B):
    return jax_functions()["feedforward"](Y, Wf, B)


# ------------------------------------------------------------------------------------------------ layer


def composed(attention, feedforward):
    """The layer: first ``attention``, then ``feedforward``."""
    return lambda Y, W, Wf, B: feedforward(attention(Y, W), Wf, B)


def layer_float32(Y, W, Wf, B):
    return feedforward_float32(attention_float32(Y, W), Wf, B)


def jax_layer(Y, W, Wf, B):
    return jax_functions()["layer"](Y, W, Wf, B)


softmax_distances = attention_of(lambda z: np.exp(-z))

ATTENTION = [
    Implementation("numpy logits", logits_form),
    Implementation("numpy distances", softmax_distances),
    Implementation("numpy einsum", einsum_form),
    Implementation("numpy gram matrix", gram_form),
    Implementation("scipy softmax", scipy_softmax),
    Implementation("scipy cdist", scipy_cdist),
    Implementation("python loops", loops),
    Implementation("numpy channels first", channels_first),
    Implementation("numpy centred, distances shifted", centred_form),
    Implementation("numpy gradient step", descent),
    Implementation("numpy online softmax", online_softmax),
    Implementation("numpy float32", attention_float32, dtype="float32"),
    Implementation("numpy batched", attention_batched, batched=True),
    Implementation("numpy batched float32", attention_batched_float32, dtype="float32", batched=True),
    Implementation("numpy channels last", channels_last, batched=True),
    Implementation("numpy one by one", one_by_one, batched=True),
    Implementation("torch logits", torch_logits, "torch"),
    Implementation("torch sdpa", torch_sdpa, "torch"),
    Implementation("torch cdist", torch_cdist, "torch"),
    Implementation("torch autograd of the majorizer", torch_autograd, "torch"),
    Implementation("torch autograd of the energy", torch_energy, "torch"),
    Implementation("torch module", torch_module, "torch"),
    Implementation("torch float32", torch_float32, "torch", "float32"),
    Implementation("torch batched logits", torch_logits, "torch", batched=True),
    Implementation("torch batched sdpa", torch_sdpa, "torch", batched=True),
    Implementation("jax logits", jax_logits, "jax"),
    Implementation("jax vmap over tokens", jax_tokens, "jax"),
    Implementation("jax grad of the energy", jax_grad, "jax"),
    Implementation("jax float32", jax_float32, "jax", "float32"),
    Implementation("jax vmap over the batch", jax_batch, "jax", batched=True),
]

FEEDFORWARD = [
    Implementation("numpy relu", relu_form),
    Implementation("numpy proximal gradient", proximal_gradient),
    Implementation("numpy einsum", feedforward_einsum),
    Implementation("python loops", feedforward_loops),
    Implementation("numpy float32", feedforward_float32, dtype="float32"),
    Implementation("numpy batched", relu_form, batched=True),
    Implementation("numpy batched einsum", feedforward_einsum, batched=True),
    Implementation("torch linear", torch_linear, "torch"),
    Implementation("torch module", torch_feedforward_module, "torch"),
    Implementation("torch proximal autograd", torch_proximal_autograd, "torch"),
    Implementation("torch float32", torch_linear_float32, "torch", "float32"),
    Implementation("torch batched", torch_linear, "torch", batched=True),
    Implementation("jax relu", jax_feedforward, "jax"),
    Implementation("jax batched", jax_feedforward, "jax", batched=True),
]

LAYER = [
    Implementation("numpy logits, relu", composed(logits_form, relu_form)),
    Implementation("numpy distances, proximal gradient", composed(softmax_distances, proximal_gradient)),
    Implementation("python loops", composed(loops, feedforward_loops)),
    Implementation("numpy float32", layer_float32, dtype="float32"),
    Implementation("numpy batched", composed(attention_batched, feedforward_einsum), batched=True),
    Implementation("torch sdpa, linear", composed(torch_sdpa, torch_linear), "torch"),
    Implementation("torch modules", composed(torch_module, torch_feedforward_module), "torch"),
    Implementation("torch batched", composed(torch_sdpa, torch_linear), "torch", batched=True),
    Implementation("jax jit", jax_layer, "jax"),
    Implementation("jax batched", composed(jax_batch, jax_feedforward), "jax", batched=True),
]

TABLES = {"attention": ATTENTION, "feedforward": FEEDFORWARD, "layer": LAYER}
