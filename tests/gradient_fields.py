"""The updates of the table in docs/gradient-field.md: each row's function, its tokens (n, d) and the verdict."""

from typing import Any, NamedTuple

import numpy as np

W = np.array([[1.0, 0.5, 0.0], [0.0, 1.0, -0.5], [0.25, 0.0, 1.0]])
V = np.array([[0.0, 1.0, 0.5], [1.0, -0.5, 0.0], [0.5, 0.0, 1.0]])
M = np.array([[0.5, 0.5, 0.0], [-0.25, 0.25, 0.5], [0.0, 0.25, 0.5]])
S = (M + M.T) / 2
GRAPH = np.array([[1.0, 2.0, 0.0, 1.0], [2.0, 1.0, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0], [1.0, 0.0, 3.0, 1.0]])


def softmax(logits):
    weights = np.exp(logits - logits.real.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def kernel(U):
    return np.exp(-((U[:, None] - U[None]) ** 2).sum(axis=2) / 2)


def laplacian(U):
    return np.diag(kernel(U).sum(axis=1)) - kernel(U)


def causal(Y):
    weights = np.tril(np.exp(Y @ Y.T - (Y @ Y.T).real.max(axis=1, keepdims=True)))
    return weights / weights.sum(axis=1, keepdims=True) @ Y


def relu(Y):
    return np.maximum(Y, 0)


def layer_norm(Y, gain=1.0):
    centred = Y - Y.mean(axis=1, keepdims=True)
    return gain * centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)


def linear(*rows):
    return lambda Y: Y @ np.array(rows, dtype=float)


class Row(NamedTuple):
    update: Any
    verdict: str
    tokens: int = 4
    dim: int = 3
    p: Any = None  # the metric, up to a factor


DIAGONAL = np.diag([1.0, 2.0, 3.0])

ROWS = {
    "softmax(YYᵀ) Y, plain attention": Row(lambda Y: softmax(Y @ Y.T) @ Y, "none"),
    "softmax_β(YYᵀ) Y, the step D⁻¹ΓY": Row(lambda Y: softmax(Y @ Y.T - (Y * Y).sum(axis=1) / 2) @ Y, "none"),
    "the same, 2 tokens": Row(lambda Y: softmax(Y @ Y.T - (Y * Y).sum(axis=1) / 2) @ Y, "euclidean", 2),
    "Y − LYS, the gradient of E_attn": Row(lambda Y: Y - laplacian(Y @ W) @ Y @ W @ W.T, "euclidean"),
    "Y − LY, W = diag(1, 2, 3)": Row(lambda Y: Y - laplacian(Y @ DIAGONAL) @ Y, "diagonal", p=[[1, 4, 9]]),
    "Y − LY, any other W": Row(lambda Y: Y - laplacian(Y @ W) @ Y, "constant"),
    "D⁻¹mY, fixed weights m": Row(
        lambda Y: GRAPH @ Y / GRAPH.sum(axis=1, keepdims=True), "diagonal", p=GRAPH.sum(axis=1, keepdims=True)
    ),
    "softmax(YMYᵀ) Y, one-sided": Row(lambda Y: softmax(Y @ M @ Y.T) @ Y, "none"),
    "Y + exp(YMYᵀ) YMᵀ, one-sided": Row(lambda Y: Y + np.exp(Y @ M @ Y.T) @ Y @ M.T, "none"),
    "the same, M symmetric": Row(lambda Y: Y + np.exp(Y @ S @ Y.T) @ Y @ S.T, "euclidean"),
    "Y + exp(YMYᵀ) YMᵀ + exp(YMᵀYᵀ) YM, two-sided": Row(
        lambda Y: Y + np.exp(Y @ M @ Y.T) @ Y @ M.T + np.exp(Y @ M.T @ Y.T) @ Y @ M, "euclidean"
    ),
    "causal attention": Row(causal, "none"),
    "softmax(YKᵀ) K, fixed keys": Row(lambda Y: softmax(Y @ W.T) @ W, "euclidean"),
    "softmax(YKᵀ) V, other values": Row(lambda Y: softmax(Y @ W.T) @ V, "none"),
    "YW, ((2, 1), (1, 3))": Row(linear([2, 1], [1, 3]), "euclidean", 2, 2),
    "YW, ((2, 4), (1, 3))": Row(linear([2, 4], [1, 3]), "diagonal", 2, 2, [[4, 1]]),
    "YW, ((1, 1), (0, 2)), real eigenvalues": Row(linear([1, 1], [0, 2]), "constant", 2, 2),
    "YW, ((1, 1), (0, 1)), a Jordan block": Row(linear([1, 1], [0, 1]), "none", 2, 2),
    "YW, ((0, 1), (−1, 0)), a rotation": Row(linear([0, 1], [-1, 0]), "none", 2, 2),
    "YW, ((0, 1, 2), (2, 0, 1), (1, 1/4, 0)), products 1 and 1": Row(
        linear([0, 1, 2], [2, 0, 1], [1, 0.25, 0]), "diagonal", 2, 3, [[2, 4, 1]]
    ),
    "YW, ((0, 1, 2), (1, 0, 1), (1, 1, 0)), products 1 and 2": Row(
        linear([0, 1, 2], [1, 0, 1], [1, 1, 0]), "constant", 2, 3
    ),
    "YW, ((0, 1, 0), (0, 0, 1), (1, 0, 0)), a cycle": Row(linear([0, 1, 0], [0, 0, 1], [1, 0, 0]), "none", 2, 3),
    "ReLU(Y)": Row(relu, "euclidean"),
    "ReLU(YS), S symmetric": Row(lambda Y: relu(Y @ S), "none"),
    "Y − ReLU(YW) Wᵀ, tied": Row(lambda Y: Y - relu(Y @ W) @ W.T, "euclidean"),
    "Y − ReLU(YW) V, not tied": Row(lambda Y: Y - relu(Y @ W) @ V, "none"),
    "layer norm": Row(layer_norm, "euclidean"),
    "layer norm, gains (1, 2, ½)": Row(lambda Y: layer_norm(Y, [1, 2, 0.5]), "diagonal", p=[[1, 0.5, 2]]),
    "layer norm, gains (1, −2, ½)": Row(lambda Y: layer_norm(Y, [1, -2, 0.5]), "none"),
}
