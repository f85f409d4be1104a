"""Figures 2 and 3: gradient steps on two terms in turn, which come near the minimiser of their sum and not to it.

h = f₁ + f₂, f₁ = ‖Y W₁‖² + ‖Y − B₁‖² and f₂ = ‖W₂ Y‖² + ‖Y − B₂‖². Odd half steps are Y − α ∇f₁(Y), even ones
Y − α ∇f₂(Y). Each is certified, or not, by ``alternating.gradient_norm`` with the other term as f and the one that is
stepped on as g.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import solve_sylvester

from ..certificates import apollonius, gradient_norm
from ..console import Progress
from ..feedforward import FeedForwardEnergy
from ..numerics import FloatArray
from . import canvas

N, D, HALF_STEPS, ALPHA = 500, 128, 200, 0.05


@dataclass(frozen=True, eq=False)
class Problem:
    """f₁ = 2 E_ffn(Y) and f₂ = 2 E_ffn(Yᵀ) up to constants, with W_f = W₁ W₁ᵀ (d, d) and W₂ᵀ W₂ (n, n), no penalty φ.

    start, minimiser : (n, d). minimisers : of f₁ and of f₂. The minimiser of h solves the Sylvester equation
    (W₂ᵀ W₂ + 2 I) Y + Y W₁ W₁ᵀ = B₁ + B₂.
    """

    first: FeedForwardEnergy
    second: FeedForwardEnergy
    start: FloatArray
    minimiser: FloatArray
    minimisers: tuple[FloatArray, FloatArray]

    def gradients(self, Y: FloatArray) -> tuple[FloatArray, FloatArray]:
        """∇f₁ and ∇f₂ at Y."""
        first, second = self.first.gradient(Y), self.second.gradient(Y.T).T
        return 2 * np.asarray(first, dtype=np.float64), 2 * np.asarray(second, dtype=np.float64)

    @functools.cached_property
    def spectra(self) -> tuple[tuple[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]:
        """Eigenvalues and eigenvectors of the Hessians of f₁, acting on rows, and of f₂, acting on columns."""
        return _spectrum(self.first), _spectrum(self.second)


def _spectrum(energy: FeedForwardEnergy) -> tuple[FloatArray, FloatArray]:
    """Eigenvalues, in increasing order, and eigenvectors of the Hessian of 2 E_ffn, 2 (I + W_f)."""
    values, vectors = np.linalg.eigh(2 * (np.eye(len(energy.Wf)) + energy.Wf))
    return np.asarray(values, dtype=np.float64), np.asarray(vectors, dtype=np.float64)


def problem(seed: int, n: int = N, d: int = D) -> Problem:
    """W₁ (d, d) and W₂ (n, n) have entries 0.1 N(0, 1), B₁ and B₂ N(0, 1), the start 10 N(0, 1), drawn in this order.

    The paper gives n, d, the W and α; the scale of B and of the start are ours.
    """
    generator = np.random.default_rng(seed)
    W1, W2 = 0.1 * generator.normal(size=(d, d)), 0.1 * generator.normal(size=(n, n))
    B1, B2 = generator.normal(size=(2, n, d))
    start = 10 * generator.normal(size=(n, d))
    P, R = W1 @ W1.T, W2.T @ W2
    minimiser = solve_sylvester(R + 2 * np.eye(n), P, B1 + B2)
    alone = np.linalg.solve(np.eye(d) + P, B1.T).T, np.linalg.solve(np.eye(n) + R, B2)
    first, second = FeedForwardEnergy(P, B1, "identity"), FeedForwardEnergy(R, B2.T, "identity")
    return Problem(first, second, start, minimiser, alone)


def limits(task: Problem, alpha: float) -> tuple[FloatArray, FloatArray, float]:
    """The two points (n, d) between which the alternation ends, after a step on f₁ and on f₂, and its contraction.

    In the eigenvectors of both Hessians the entries are apart. With curvatures a and c an entry goes to
    u = (1 − α a) v + 2 α b₁ and then to v = (1 − α c) u + 2 α b₂; the contraction, the largest
    |(1 − α a)(1 − α c)|, has to be below 1 for the iterates to get there.
    """
    (a, V), (c, U) = task.spectra
    on_first, on_second = 1 - alpha * a[None, :], 1 - alpha * c[:, None]
    b1, b2 = (2 * alpha * (U.T @ B @ V) for B in (task.first.B, task.second.B.T))
    v = (on_second * b1 + b2) / (1 - on_first * on_second)
    u = on_first * v + b1
    return U @ u @ V.T, U @ v @ V.T, float(np.abs(on_first * on_second).max())


def run(
    task: Problem, alpha: float, half_steps: int, progress: Progress | None = None
) -> tuple[FloatArray, dict[str, Any]]:
    """The iterates (half_steps + 1, n, d), and what is measured and certified along them.

    gap : h(Y) − h(Y*) = ½ ⟨Y − Y*, ∇h(Y)⟩, as h is quadratic; half_steps + 1 numbers. For each half step: holds,
    whether the certificate does; bound, its lower bound on the fall of h, which is valid for every α, so that a half
    step whose bound is not negative is guaranteed; apollonius, whether that certificate holds. guaranteed_until : the
    number of half steps, from the start, that are all guaranteed. last_guaranteed, first_rise : None if there is none.
    """
    (a, _), (c, _) = task.spectra
    L_h, m_h = float(a[-1] + c[-1]), float(a[0] + c[0])
    iterates = np.empty((half_steps + 1, *task.start.shape))
    Y, gap, certificates, near = task.start, [], [], []
    for k in range(half_steps + 1):
        iterates[k] = Y
        gradients = task.gradients(Y)
        gap.append(0.5 * float(((Y - task.minimiser) * (gradients[0] + gradients[1])).sum()))
        if k == half_steps:
            break
        on, other = k % 2, 1 - k % 2
        certificates.append(gradient_norm(gradients[other], gradients[on], L_h=L_h, alpha=alpha))
        L_f = float((a, c)[other][-1])
        near.append(apollonius(Y, task.minimisers[other], task.minimiser, L_f=L_f, m_h=m_h, L_h=L_h, alpha=alpha).holds)
        Y = Y - alpha * gradients[on]
        if progress is not None:
            progress(k + 1, half_steps, f"half steps of {alpha:.3g}")
    guaranteed = np.array([certificate.decrease >= 0 for certificate in certificates])
    rises = np.diff(gap) > 0
    return iterates, {
        "alpha": alpha,
        "L_h": L_h,
        "m_h": m_h,
        "L_f1": float(a[-1]),
        "L_f2": float(c[-1]),
        "gap": gap,
        "holds": [bool(certificate.holds) for certificate in certificates],
        "bound": [float(certificate.decrease) for certificate in certificates],
        "apollonius": [bool(holds) for holds in near],
        "guaranteed_until": int(np.argmin([*guaranteed, False])),
        "last_guaranteed": _last(guaranteed),
        "first_rise": int(np.argmax(rises)) + 1 if rises.any() else None,
        "rises": int(rises.sum()),
    }


def _last(flags: FloatArray) -> int | None:
    found = np.flatnonzero(flags)
    return int(found[-1]) + 1 if found.size else None


# ------------------------------------------------------------------------------------------------ figure 2


def trajectory(
    seed: int = 0, progress: Progress | None = None, n: int = N, d: int = D, half_steps: int = HALF_STEPS
) -> dict[str, Any]:
    """The iterates of α = 0.05 in two planes, with the minimiser Y* of h at the origin, and where they end.

    principal : the iterates and the two limits in the first two principal components of the iterates, whose shares of
    the variance are ``shares``; the start has positive coordinates. plane : the same in the plane through Y* and the
    limits, which lie in it. limits : the point after a step on f₁, then the one after a step on f₂.
    distances : of the iterates and of the limits to Y*.
    """
    task = problem(seed, n, d)
    iterates, measured = run(task, ALPHA, half_steps, progress)
    after_first, after_second, contraction = limits(task, ALPHA)
    points = (iterates - task.minimiser).reshape(len(iterates), -1)
    ends = np.stack([(end - task.minimiser).ravel() for end in (after_first, after_second)])

    centred = points - points.mean(axis=0)
    variances, vectors = np.linalg.eigh(centred @ centred.T)  # as many rows as iterates, far fewer than columns
    components = vectors.T[[-1, -2]] @ centred / np.sqrt(variances[[-1, -2], None])
    components *= np.where(points[0] @ components.T < 0, -1, 1)[:, None]
    plane = _plane(*ends)
    return {
        "n": n,
        "d": d,
        "alpha": ALPHA,
        "L_h": measured["L_h"],
        "contraction": contraction,
        "shares": (variances[[-1, -2]] / variances.sum()).tolist(),
        "principal": {"points": (points @ components.T).tolist(), "limits": (ends @ components.T).tolist()},
        "plane": {"points": (points @ plane.T).tolist(), "limits": (ends @ plane.T).tolist()},
        "distances": np.linalg.norm(points, axis=1).tolist(),
        "limit_distances": np.linalg.norm(ends, axis=1).tolist(),
    }


def _plane(u: FloatArray, v: FloatArray) -> FloatArray:
    """An orthonormal basis (2, p) of the plane of u and v: v along the first axis, u on the upper side."""
    first = v / np.linalg.norm(v)
    rest = u - (u @ first) * first
    return np.stack([first, rest / np.linalg.norm(rest)])


def draw_trajectory(numbers: dict[str, Any]) -> Any:
    """The figure of ``trajectory``."""
    figure, axes = canvas.panels(1, 3, 16, 6)
    whole, zoom, plane = axes[0]
    for panel, key in ((whole, "principal"), (zoom, "principal"), (plane, "plane")):
        points, ends = np.array(numbers[key]["points"]), np.array(numbers[key]["limits"])
        first = {"color": canvas.BLUE, "markersize": 5}
        second = {"color": canvas.ORANGE, "markersize": 6, "markeredgecolor": "black", "markeredgewidth": 0.4}
        panel.plot(*points.T, color="0.7", linewidth=0.8)
        panel.plot(*points[:1].T, "s", color="black", markersize=7, label="start")
        panel.plot(*points[1::2].T, "o", **first, label="after a half step on $f_1$")
        panel.plot(*points[2::2].T, "^", **second, label="after a half step on $f_2$")
        if numbers["contraction"] < 1:
            panel.plot(*ends.T, "x", color=canvas.VERMILION, markersize=11, markeredgewidth=3, label="the two limits")
        panel.plot(0, 0, **canvas.STAR, label="minimiser of $f_1 + f_2$", zorder=5)
        panel.set(
            xlabel=f"first principal component ({numbers['shares'][0]:.0%} of the variance)",
            ylabel=f"second principal component ({numbers['shares'][1]:.0%})",
        )
        panel.grid(color="0.92")
        if panel is not whole:  # the last quarter of the iterates
            shown = np.concatenate([points[len(points) * 3 // 4 :], ends, [[0, 0]]])
            middle, size = (shown.max(axis=0) + shown.min(axis=0)) / 2, 0.6 * np.ptp(shown, axis=0)
            size = np.full(2, size.max()) if panel is plane else size
            panel.set(xlim=(middle[0] - size[0], middle[0] + size[0]), ylim=(middle[1] - size[1], middle[1] + size[1]))
    whole.set_title(
        f"{len(numbers['distances']) - 1} half steps of {numbers['alpha']} head for the minimiser of the sum"
    )
    zoom.set_title("Zoom: in these components the limits\nare hardly apart from the minimiser")
    near = " and ".join(f"{distance:.1f}" for distance in numbers["limit_distances"])
    plane.set_title(f"The plane through all three:\nthe alternation ends {near} away from it")
    plane.set(xlabel="distance along the limit after $f_2$", ylabel="distance across it", aspect="equal")
    handles, labels = whole.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    return figure


# ------------------------------------------------------------------------------------------------ figure 3


def energy_gap(
    seed: int = 0, progress: Progress | None = None, n: int = N, d: int = D, half_steps: int = HALF_STEPS
) -> dict[str, Any]:
    """``run`` for α = 0.05 and for the largest α that the certificate admits, 1 / L_h."""
    task = problem(seed, n, d)
    (a, _), (c, _) = task.spectra
    runs = [run(task, alpha, half_steps, progress)[1] for alpha in (ALPHA, 1 / float(a[-1] + c[-1]))]
    return {"n": n, "d": d, "runs": runs}


def draw_energy_gap(numbers: dict[str, Any]) -> Any:
    """The figure of ``energy_gap``."""
    figure, axes = canvas.panels(1, 2, 12, 6)
    for panel, part in zip(axes[0], numbers["runs"], strict=True):
        gap, guaranteed = np.array(part["gap"]), np.array(part["bound"]) >= 0
        rises = np.diff(gap) > 0
        for which, label, style in (
            (guaranteed, "guaranteed: the certificate's bound is not negative", {"color": canvas.BLUE, "linewidth": 4}),
            (~guaranteed & ~rises, "not guaranteed, and the energy falls", {"color": "0.45", "linewidth": 1}),
            (rises, "the energy rises", {"color": canvas.VERMILION, "linewidth": 1.5}),
        ):
            at = np.flatnonzero(which)
            # a stroke a half step, with a gap after it
            strokes = np.stack([at, at + 1, np.full(len(at), np.nan)], axis=1).ravel()
            heights = np.stack([gap[at], gap[at + 1], np.full(len(at), np.nan)], axis=1).ravel()
            panel.plot(strokes, heights, label=label, solid_capstyle="butt", **style)
        for step, line, text in (
            (part["last_guaranteed"], "--", "the last guaranteed half step"),
            (part["first_rise"], ":", "the half step that first raises the energy"),
        ):
            if step is not None:
                panel.axvline(step, color="black", linestyle=line, linewidth=1.2, label=text)
        times = part["alpha"] * part["L_h"]
        name = "the paper's step" if times > 1 else "the longest that the certificate admits"
        panel.set(
            yscale="log",
            xlabel="half step (odd: on $f_1$, even: on $f_2$)",
            ylabel="energy above its minimum,  h(Y) − h(Y*)",
            title=f"α = {part['alpha']:.3g} = {times:.3g} / $L_h$, {name}:\n"
            f"all guaranteed up to half step {part['guaranteed_until']}, the last {part['last_guaranteed']}; "
            f"first rise at {part['first_rise']}",
        )
        panel.grid(color="0.92")
    handles, labels = axes[0, 1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure
