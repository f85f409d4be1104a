"""The definitions, literally: double loops over plain Python sequences.

This text is written once for every number type that has ``+ - * /``. Called with floats it is the slow, obvious
twin of the NumPy code; with ``mpmath`` numbers it gives 50 digits; with SymPy symbols it is what the notebooks in
``derivations/`` differentiate. There is no NumPy in it, and nothing is rearranged for speed or for rounding.

Matrices are sequences of rows. Shapes, with the symbols of the text:

====================  =====  ==============================================================
``Y``, row ``Y[i]``   n × d  tokens
``X``                 n × d  input tokens, the target of the residual connection
``W``                 d × k  attention map; u_i = y_i W and S = W Wᵀ
``m``                 n × n  pair weights, symmetric and non-negative
``Wf``                d × d  feed-forward weights; only ½ (Wf + Wfᵀ) acts
``B``                 n × d  bias (residual target) of the feed-forward energy
``P``                 d × d  metric in which Wf is symmetric: symmetric, positive definite, Wf P symmetric
``M``                 d × d  form of the logits y_i M y_jᵀ
``V``                 n × d  cotangent of a step's result: the derivative of a loss by its entries
====================  =====  ==============================================================

``rho`` is the penalty ρ, ``rho_prime`` and ``rho_second`` its derivatives, functions of one number. ``phi`` is the
penalty φ behind an activation, a function of one number, ``prox(v, alpha)`` the proximal operator of αφ and
``prox_prime(v, alpha)`` its derivative by v. Each unordered pair of tokens counts once.

Source: Y. Yang, Z. Huang, D. Wipf, *Transformers from an Optimization Perspective*, NeurIPS 2022.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

Number: TypeAlias = Any  # whatever has + - * /
Vector: TypeAlias = Sequence[Number]
Matrix: TypeAlias = Sequence[Sequence[Number]]
Function: TypeAlias = Callable[[Number], Number]
Prox: TypeAlias = Callable[[Number, Number], Number]

# ------------------------------------------------------------------------------------------------ matrices


def identity(d: int) -> list[list[int]]:
    """The d × d identity."""
    return [[1 if a == b else 0 for b in range(d)] for a in range(d)]


def ones(n: int) -> list[list[int]]:
    """The n × n matrix of ones: the default pair weights."""
    return [[1 for _ in range(n)] for _ in range(n)]


def transpose(M: Matrix) -> list[list[Number]]:
    """Mᵀ, for M with at least one row."""
    return [list(column) for column in zip(*M, strict=True)]


def matmul(M: Matrix, N: Matrix) -> list[list[Number]]:
    """The matrix product M N."""
    return [[sum(row[a] * N[a][c] for a in range(len(N))) for c in range(len(N[0]))] for row in M]


def symmetric_part(Wf: Matrix) -> list[list[Number]]:
    """Wfˢ = ½ (Wf + Wfᵀ)."""
    return [[(Wf[a][b] + Wf[b][a]) / 2 for b in range(len(Wf))] for a in range(len(Wf))]


def frobenius(M: Matrix, N: Matrix) -> Number:
    """The inner product ⟨M, N⟩ = Σ_ia M_ia N_ia."""
    return sum(x * y for row, other in zip(M, N, strict=True) for x, y in zip(row, other, strict=True))


def subtract(M: Matrix, N: Matrix) -> list[list[Number]]:
    """M − N."""
    return [[x - y for x, y in zip(row, other, strict=True)] for row, other in zip(M, N, strict=True)]


# ------------------------------------------------------------------------------------------------ attention


def distance(Y: Matrix, W: Matrix, i: int, j: int) -> Number:
    """z_ij = ½ ‖(y_i − y_j) W‖²."""
    d, k = len(W), len(W[0])
    difference = [sum((Y[i][a] - Y[j][a]) * W[a][c] for a in range(d)) for c in range(k)]
    return sum(x * x for x in difference) / 2


def attention_energy(Y: Matrix, W: Matrix, rho: Function, m: Matrix) -> Number:
    """E_attn(Y) = Σ_{i<j} m_ij ρ(z_ij)."""
    n = len(Y)
    return sum(m[i][j] * rho(distance(Y, W, i, j)) for j in range(n) for i in range(j))


def kernel(Y: Matrix, W: Matrix, rho_prime: Function, m: Matrix) -> list[list[Number]]:
    """Γ_ij = m_ij ρ'(z_ij), the unnormalised attention, diagonal included."""
    n = len(Y)
    return [[m[i][j] * rho_prime(distance(Y, W, i, j)) for j in range(n)] for i in range(n)]


def degrees(Gamma: Matrix) -> list[Number]:
    """d_i = Σ_j Γ_ij, the diagonal of D."""
    return [sum(row) for row in Gamma]


def laplacian(Gamma: Matrix) -> list[list[Number]]:
    """L = D − Γ."""
    n, d = len(Gamma), degrees(Gamma)
    return [[(d[i] if i == j else 0) - Gamma[i][j] for j in range(n)] for i in range(n)]


def attention_weights(Gamma: Matrix) -> list[list[Number]]:
    """A = D⁻¹ Γ. The row of a token without any weight is that of the identity."""
    n, d = len(Gamma), degrees(Gamma)
    return [[Gamma[i][j] / d[i] if d[i] != 0 else (1 if i == j else 0) for j in range(n)] for i in range(n)]


def attention_gradient(Y: Matrix, W: Matrix, rho_prime: Function, m: Matrix) -> list[list[Number]]:
    """∇E_attn(Y) = L Y S with S = W Wᵀ."""
    if len(Y) == 0:
        return []
    return matmul(matmul(laplacian(kernel(Y, W, rho_prime, m)), Y), matmul(W, transpose(W)))


def attention_majorizer(Y_new: Matrix, Y: Matrix, W: Matrix, rho: Function, rho_prime: Function, m: Matrix) -> Number:
    """Q(Y' | Y) = E_attn(Y) + ½ Tr S (Y'ᵀ L Y' − Yᵀ L Y), L taken at Y."""
    n, Gamma = len(Y), kernel(Y, W, rho_prime, m)
    change = sum(Gamma[i][j] * (distance(Y_new, W, i, j) - distance(Y, W, i, j)) for j in range(n) for i in range(j))
    return attention_energy(Y, W, rho, m) + change


def attention_step(Y: Matrix, W: Matrix, rho_prime: Function, m: Matrix, alpha: Number) -> list[list[Number]]:
    """Y⁺ = (1 − α) Y + α A Y."""
    if len(Y) == 0:
        return []
    AY = matmul(attention_weights(kernel(Y, W, rho_prime, m)), Y)
    return [
        [(1 - alpha) * y + alpha * ay for y, ay in zip(row, mean, strict=True)] for row, mean in zip(Y, AY, strict=True)
    ]


def attention_vjp(
    Y: Matrix, W: Matrix, rho_prime: Function, rho_second: Function, m: Matrix, alpha: Number, V: Matrix
) -> tuple[list[list[Number]], list[list[Number]]]:
    """(Ȳ, W̄), the derivatives of ⟨V, Y⁺⟩ by the entries of Y and of W, for Y⁺ = (1 − α) Y + α A Y and n ≥ 1.

    G_ij = v_i · (y_j − (A Y)_i), Q_ij = α m_ij ρ''(z_ij) G_ij / d_i, R = Q + Qᵀ: Ū = (diag(R 1) − R) U,
    Ȳ = (1 − α) V + α Aᵀ V + Ū Wᵀ and W̄ = Yᵀ Ū. A token without any weight has no Q_ij.
    """
    n, Gamma = len(Y), kernel(Y, W, rho_prime, m)
    A, degree = attention_weights(Gamma), degrees(Gamma)
    AY, AtV, U = matmul(A, Y), matmul(transpose(A), V), matmul(Y, W)
    G = [[sum(v * (y - x) for v, y, x in zip(V[i], Y[j], AY[i], strict=True)) for j in range(n)] for i in range(n)]
    Q = [
        [
            alpha * m[i][j] * rho_second(distance(Y, W, i, j)) * G[i][j] / degree[i] if degree[i] != 0 else 0
            for j in range(n)
        ]
        for i in range(n)
    ]
    U_bar = matmul(laplacian([[Q[i][j] + Q[j][i] for j in range(n)] for i in range(n)]), U)
    through_U = matmul(U_bar, transpose(W))
    Y_bar = [
        [(1 - alpha) * v + alpha * a + b for v, a, b in zip(V[i], AtV[i], through_U[i], strict=True)] for i in range(n)
    ]
    return Y_bar, matmul(transpose(Y), U_bar)


def softmax_attention(Y: Matrix, W: Matrix, exp: Function, beta: Function) -> list[list[Number]]:
    """softmax_β(U Uᵀ) Y with U = Y W: weights proportional to β_j exp(u_i · u_j).

    ``beta(u_j)`` is the reweighting: ``exp(−½ ‖u_j‖²)`` gives the descent step of ρ(z) = −e^(−z), and 1 gives plain
    softmax attention, which is no descent step of it.
    """
    U = matmul(Y, W)
    weights = [[beta(u_j) * exp(sum(x * y for x, y in zip(u_i, u_j, strict=True))) for u_j in U] for u_i in U]
    return matmul([[w / sum(row) for w in row] for row in weights], Y)


# ------------------------------------------------------------------------------------- the residual connection


def data_energy(Y: Matrix, X: Matrix, lam: Number) -> Number:
    """½ λ ‖Y − X‖²_F."""
    R = subtract(Y, X)
    return lam * frobenius(R, R) / 2


def residual_step(
    Y: Matrix, X: Matrix, W: Matrix, rho_prime: Function, m: Matrix, lam: Number, s: Number
) -> list[list[Number]]:
    """y_i⁺ = y_i − ((L Y S)_i + λ (y_i − x_i)) / (s d_i + λ), with s = ‖S‖₂."""
    g, d = attention_gradient(Y, W, rho_prime, m), degrees(kernel(Y, W, rho_prime, m))
    return [
        [
            y - (g_ia + lam * (y - x)) / (s * d[i] + lam) if s * d[i] + lam != 0 else y
            for y, x, g_ia in zip(Y[i], X[i], g[i], strict=True)
        ]
        for i in range(len(Y))
    ]


# ------------------------------------------------------------------------------------------------ feed-forward


def feedforward_energy(Y: Matrix, Wf: Matrix, B: Matrix, phi: Function) -> Number:
    """E_ffn(Y) = ½ Tr(Y Wf Yᵀ) + ½ ‖Y − B‖²_F + Σ φ(y_ia)."""
    R = subtract(Y, B)
    return frobenius(matmul(Y, Wf), Y) / 2 + frobenius(R, R) / 2 + sum(phi(y) for row in Y for y in row)


def feedforward_gradient(Y: Matrix, Wf: Matrix, B: Matrix) -> list[list[Number]]:
    """∇(smooth part) = Y H − B with H = I + Wfˢ."""
    Ws, d = symmetric_part(Wf), len(Wf)
    H = [[(1 if a == b else 0) + Ws[a][b] for b in range(d)] for a in range(d)]
    return subtract(matmul(Y, H), B)


def feedforward_step(Y: Matrix, Wf: Matrix, B: Matrix, prox: Prox, alpha: Number) -> list[list[Number]]:
    """Y⁺ = prox_{αφ}(Y − α (Y H − B))."""
    G = feedforward_gradient(Y, Wf, B)
    return [
        [prox(y - alpha * g, alpha) for y, g in zip(row, grow, strict=True)] for row, grow in zip(Y, G, strict=True)
    ]


def feedforward_vjp(
    Y: Matrix, Wf: Matrix, B: Matrix, prox_prime: Prox, alpha: Number, V: Matrix
) -> tuple[list[list[Number]], list[list[Number]], list[list[Number]]]:
    """(Ȳ, W̄f, B̄), the derivatives of ⟨V, Y⁺⟩ by the entries of Y, Wf and B, for the feed-forward step and n ≥ 1.

    P = V ∘ prox'_{αφ}(Y − α (Y H − B)): Ȳ = P − α P H, W̄f = −½ α (Yᵀ P + Pᵀ Y) and B̄ = α P.
    """
    slopes, zero = feedforward_step(Y, Wf, B, prox_prime, alpha), [[0 for _ in row] for row in Y]
    P = [[v * s for v, s in zip(row, other, strict=True)] for row, other in zip(V, slopes, strict=True)]
    PH, YtP, d = feedforward_gradient(P, Wf, zero), matmul(transpose(Y), P), len(Wf)
    Y_bar = [[p - alpha * g for p, g in zip(row, other, strict=True)] for row, other in zip(P, PH, strict=True)]
    Wf_bar = [[-alpha * (YtP[a][b] + YtP[b][a]) / 2 for b in range(d)] for a in range(d)]
    return Y_bar, Wf_bar, [[alpha * p for p in row] for row in P]


def metric_energy(Y: Matrix, Wf: Matrix, B: Matrix, P: Matrix, phi: Function) -> Number:
    """½ Tr(Y Wf P Yᵀ) + ½ Tr (Y − B) P (Y − B)ᵀ + Σ_a P_aa Σ_i φ(y_ia): E_ffn in the metric P."""
    R = subtract(Y, B)
    quadratic = frobenius(matmul(matmul(Y, Wf), P), Y) + frobenius(matmul(R, P), R)
    return quadratic / 2 + sum(P[a][a] * phi(row[a]) for row in Y for a in range(len(P)))


def metric_gradient(Y: Matrix, Wf: Matrix, B: Matrix, P: Matrix) -> list[list[Number]]:
    """∇(smooth part) = (Y H − B) P with H = I + Wf, for Wf P symmetric."""
    H = [[(1 if a == b else 0) + Wf[a][b] for b in range(len(Wf))] for a in range(len(Wf))]
    return matmul(subtract(matmul(Y, H), B), P)


def metric_step(Y: Matrix, Wf: Matrix, B: Matrix, prox: Prox, alpha: Number) -> list[list[Number]]:
    """Y⁺ = prox_{αφ}(Y − α (Y H − B)) with H = I + Wf: the gradient times P⁻¹ is that of the metric P."""
    G = metric_gradient(Y, Wf, B, identity(len(Wf)))
    return [
        [prox(y - alpha * g, alpha) for y, g in zip(row, grow, strict=True)] for row, grow in zip(Y, G, strict=True)
    ]


def prox_objective(y: Number, v: Number, phi: Function, alpha: Number) -> Number:
    """½ (y − v)² + α φ(y), of which prox_{αφ}(v) is a minimiser over y."""
    return (y - v) * (y - v) / 2 + alpha * phi(y)


# ------------------------------------------------------------------------------------------------ the layer


def joint_step(
    Y: Matrix, W: Matrix, rho_prime: Function, m: Matrix, Wf: Matrix, B: Matrix, prox: Prox, s: Number, h: Number
) -> list[list[Number]]:
    """y_i⁺ = prox_{φ/M_i}(y_i − ((L Y S)_i + (Y H − B)_i) / M_i), M_i = s d_i + ½ max(h, 0).

    s = ‖S‖₂ and h = λ_max(H). A row with M_i = 0 stays where it is.
    """
    g_attn, d = attention_gradient(Y, W, rho_prime, m), degrees(kernel(Y, W, rho_prime, m))
    g_ffn = feedforward_gradient(Y, Wf, B)
    M = [s * d_i + max(h, 0) / 2 for d_i in d]
    return [
        [
            prox(y - (a + f) / M[i], 1 / M[i]) if M[i] != 0 else y
            for y, a, f in zip(Y[i], g_attn[i], g_ffn[i], strict=True)
        ]
        for i in range(len(Y))
    ]


def truncated_share(y: Vector, xi: Vector) -> Number:
    """κ = Σ_{|ξ_i| > |y_i|} (ξ_i² − y_i²) / ‖ξ‖², the share of a step that ReLU can cut off; 0 when ξ = 0."""
    total = sum(x * x for x in xi)
    if total == 0:
        return 0
    return sum(x * x - v * v for v, x in zip(y, xi, strict=True) if abs(x) > abs(v)) / total


# ------------------------------------------------------------------------------------------------ two-sided logits


def exponentials(Y: Matrix, M: Matrix, exp: Function) -> list[list[Number]]:
    """e_ij = exp(y_i M y_jᵀ), the unnormalised attention of dot products, a row for each query."""
    return [[exp(logit) for logit in row] for row in matmul(matmul(Y, M), transpose(Y))]


def two_sided_energy(Y: Matrix, M: Matrix, exp: Function) -> Number:
    """−Σ_ij exp(y_i M y_jᵀ)."""
    return -sum(sum(row) for row in exponentials(Y, M, exp))


def query_side(Y: Matrix, M: Matrix, exp: Function) -> list[list[Number]]:
    """−e Y Mᵀ: the derivative of the energy by the tokens where they are queries."""
    return [[-x for x in row] for row in matmul(matmul(exponentials(Y, M, exp), Y), transpose(M))]


def two_sided_gradient(Y: Matrix, M: Matrix, exp: Function) -> list[list[Number]]:
    """−(e Y Mᵀ + eᵀ Y M): the query side, and the key side, which is the query side of Mᵀ."""
    keys = query_side(Y, transpose(M), exp)
    return [[q + k for q, k in zip(*rows, strict=True)] for rows in zip(query_side(Y, M, exp), keys, strict=True)]
