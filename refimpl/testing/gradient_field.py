"""Is this update a gradient step, and in which constant metric?

    report = check_gradient_field(update)   # raises NonConformance with the diagnosis, or returns the report

An update y ↦ T(y) of R^N, tokens (n, d) with N = n d, is a step y − P⁻¹ ∇E(y) on some energy E in the metric P
(constant, symmetric, positive definite) iff P J(y) is symmetric at every y, J = ∂T/∂y: then the field P (y − T(y)) is
free of rotation, which makes it a gradient on a convex domain (Poincaré). The metric is Euclidean where P = I, and
diagonal where P = diag(p): p_a J_ab = p_b J_ba. That E falls is another question: the step may be too long.

A function is differentiated at a few points, and nothing is said beyond the error of that; formulas are decided by
:mod:`refimpl.testing.gradient_formula`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.integrate import quad
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components, minimum_spanning_tree

from ..numerics import EPS, FloatArray, read_number
from .conformance import NonConformance
from .kit import Finding
from .subject import Subject, same_answer

_SIZES = (1.0, 0.25, 2.0, 1.0, 0.25, 2.0)  # of the tokens, point by point
_SPREAD = 0.25  # of the tokens about one of their size, at the second half of the points
_DRAWS = 20  # of a point, to find one with no kink near it
_CLEAR = 10.0  # an asymmetry is one beyond so many times the error
_CLOSE = 1e-5  # to what share of its integrand the work on a side is computed: 100 roundings of float32
_PIECES = 30  # that the quadrature may cut a side of the closed path into


class Precision(NamedTuple):
    """What a dtype lets one see.

    step : of the differences, for tokens of size 1: truncation and rounding are about equal there.
    coarse : derivatives T(y) − y that are known no better than to this share of the largest say nothing.
    widest : metrics whose weights differ by a larger factor are not told from none.
    """

    step: float
    coarse: float
    widest: float


PRECISION = {"float64": Precision(2.0**-9, 1e-4, 1e6), "float32": Precision(2.0**-6, 1e-2, 1e3)}


@dataclass(frozen=True)
class GradientField:
    """What was found of an update T.

    verdict : "euclidean" or "diagonal", the metric in which T is a gradient step; "constant" where no diagonal metric
        will do but one that mixes entries; "none" where no diagonal metric will do; "undecided".
    diagnosis : the verdict and its reason in one sentence.
    asymmetry : ‖½ (J − Jᵀ)‖ / ‖J − I‖, the largest over the points: 0 for a Euclidean gradient step, 1 where the
        displacement T(y) − y is a pure rotation, the same for every step size. ``error`` is what differentiation may
        contribute to it, ``where`` the point (n, d).
    in_metric : the same in the metric that was found.
    metric : p (n, d), the smallest weight of each independent group of entries being 1; P (N, N) for "constant"; None
        too where floats do not hold a weight.
    eigenvalue : one of J that is not real, where that shows that there is no constant metric at all.
    route : how J was found: "complex step", "central differences" or "symbolic".
    points : where J was looked at, (k, n, d).
    """

    verdict: str
    diagnosis: str
    asymmetry: float | None = None
    error: float | None = None
    where: FloatArray | None = None
    in_metric: float | None = None
    metric: FloatArray | None = None
    eigenvalue: complex | None = None
    route: str | None = None
    points: FloatArray | None = None

    @property
    def ok(self) -> bool:
        """Whether it is a gradient step in the Euclidean or a diagonal metric."""
        return self.verdict in ("euclidean", "diagonal")

    def as_dict(self) -> dict[str, Any]:
        """As plain JSON values; a complex number is [real, imaginary]."""

        def plain(value: Any) -> Any:
            if isinstance(value, np.ndarray):
                return value.tolist()
            return [value.real, value.imag] if isinstance(value, complex) else value

        return {"ok": self.ok} | {name: plain(value) for name, value in asdict(self).items()}


def check_gradient_field(
    update: Callable[[Any], Any] | Sequence[str],
    tokens: int = 4,
    dim: int = 3,
    *,
    framework: str = "numpy",
    dtype: str = "float64",
    seconds: float = 10.0,
    seed: int = 0,
) -> GradientField:
    """Check that an update is a gradient step in the Euclidean metric or in a constant diagonal one.

    Parameters
    ----------
    update : a function of arrays of the framework, tokens (n, d), that returns the new tokens; or formulas in y1, y2,
        and so on, one a component, which are decided exactly. The other parameters are of a function.
    tokens, dim : n and d of the tokens that it is called with.
    framework : "numpy", "torch" or "jax".
    dtype : "float64" or "float32", of what the function is given and has to return.
    seconds : how long one call may take.

    Raises :class:`NonConformance`, an ``AssertionError`` with the diagnosis, for the verdicts "constant", "none" and
    "undecided", ``report`` being the :class:`GradientField`, and ``ValueError`` or ``TypeError`` for arguments that are
    none of these. Source: claim ``gradient_field.integrability``.
    """
    if callable(update):
        report = examine_field(update, tokens, dim, framework, dtype, seconds, seed)
    else:
        from .gradient_formula import examine_formulas

        report = examine_formulas(update, seed)
    if not report.ok:
        raise NonConformance(report)
    return report


def examine_field(
    update: Callable[[Any], Any],
    tokens: int = 4,
    dim: int = 3,
    framework: str = "numpy",
    dtype: str = "float64",
    seconds: float = 10.0,
    seed: int = 0,
    progress: Callable[[int, int, str], None] | None = None,
) -> GradientField:
    """The report of :func:`check_gradient_field` on a function, whatever the verdict.

    ``progress`` is told (number, total, name) before each point.
    """
    for name, value, least in (("tokens", tokens, 1), ("dim", dim, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise ValueError(f"{name}: expected a whole number of at least {least}, got {value!r}")
    subject = Subject(update, framework, dtype, False, read_number(seconds, "seconds", "(0, inf)"))
    try:
        return _judge(_look(subject, tokens, dim, seed, progress), subject)
    except Finding as finding:
        return GradientField("undecided", f"{finding.finding} ({CLAIM})")


CLAIM = "gradient_field.integrability"


# ------------------------------------------------------------------------------------------------ derivatives


class Seen(NamedTuple):
    """What was seen of T: J (k, N, N) at ``points`` (k, n, d), each entry to ``error`` (k,)."""

    points: FloatArray
    J: FloatArray
    error: FloatArray
    route: str


def _look(subject: Subject, n: int, d: int, seed: int, progress: Callable[[int, int, str], None] | None = None) -> Seen:
    """J at points of each size, first of tokens far apart, then of close ones: attention may leave the former alone.

    Before and after, the function has to be one: the same answer for the same tokens.
    """
    first, second = (_draw(subject, np.random.default_rng([seed, number]), (n, d)) for number in (1, 2))
    answers = [subject(first) for _ in range(3)]
    if subject.returned != subject.dtype:
        raise Finding(f"your function returns {subject.returned} for {subject.dtype} tokens")
    same_answer(answers)
    subject.changed([first], ["Y"])
    subject.reuses_memory([first], [second])
    found = []
    for number, size in enumerate(_SIZES):
        if progress is not None:
            progress(number, len(_SIZES), f"point {number + 1}")
        rng, close = np.random.default_rng([seed, n, d, number]), number >= len(_SIZES) // 2
        found.append(_smooth_point(subject, (n, d), size, close, rng))
    same_answer([answers[0], subject(first)])
    points, J, error = (np.array(part) for part in zip(*found, strict=True))
    exact = _complex_steps(subject, points, J, error) if subject.dtype == "float64" else None
    if exact is not None:
        return Seen(points, *exact, "complex step")
    return Seen(points, J, error, "central differences")


def _draw(
    subject: Subject, rng: np.random.Generator, shape: tuple[int, int], size: float = 1.0, close: bool = False
) -> FloatArray:
    """Random tokens in multiples of 256 ε, so that Y ± m h, h a power of two, has no rounding."""
    grid = 256 * float(np.finfo(subject.dtype).eps)
    Y = rng.standard_normal(shape)
    if close:
        Y = rng.standard_normal(shape[1]) + _SPREAD * Y
    return np.asarray(np.round(size * Y / grid) * grid)


def _smooth_point(
    subject: Subject, shape: tuple[int, int], size: float, close: bool, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray, float]:
    """A point where the differences agree, with J and its error: near a kink they do not."""
    step, coarse, _ = PRECISION[subject.dtype]
    h = size * step
    best: tuple[FloatArray, FloatArray, float] | None = None
    for _ in range(_DRAWS):
        Y = _draw(subject, rng, shape, size, close)
        J, apart, rounding = _central_differences(subject, Y, h)
        if best is None or apart + rounding < best[2]:
            best = Y, J, apart + rounding
        if apart <= coarse * np.abs(J - np.eye(Y.size)).max() + rounding:
            break
    assert best is not None
    return best


def _central_differences(subject: Subject, Y: FloatArray, h: float) -> tuple[FloatArray, float, float]:
    """J (N, N) by central differences of the steps h, 2h and 4h, extrapolated twice (Richardson), and its two errors.

    They are how far the two extrapolations of lower order are apart, which shows kinks, curvature and what the function
    loses on the way, and what 8 ε of the largest number gives over h.
    """
    N = Y.size
    D, size = np.empty((3, N, N)), np.abs(Y).max()
    for b in range(N):
        for level, m in enumerate((1, 2, 4)):
            e = np.zeros_like(Y)
            e.flat[b] = m * h
            up, down = subject(Y + e), subject(Y - e)
            D[level, :, b] = (up - down).ravel() / (2 * m * h)
            size = max(size, np.abs(up).max())
    fine, wide = (4 * D[0] - D[1]) / 3, (4 * D[1] - D[2]) / 3
    rounding = 8 * float(np.finfo(subject.dtype).eps) * size / h
    return (16 * fine - wide) / 15, float(np.abs(fine - wide).max()), float(rounding)


def _complex_steps(
    subject: Subject, points: FloatArray, J: FloatArray, error: FloatArray
) -> tuple[FloatArray, FloatArray] | None:
    """J (k, N, N) from Im T(Y + i h e_b) / h and its error (k,), where that agrees with the differences everywhere.

    abs, conj and the like break it without a word, and what they hide is no larger than the disagreement: that is the
    error, unless rounding, by which alone two h that are no power of two apart differ, is larger.
    """
    twin = Subject(subject.fn, subject.framework, "float64", False, subject.seconds)  # it may hang on such input
    steps = np.empty((2, *J.shape))
    try:
        for k, Y in enumerate(points):
            for b in range(Y.size):
                e = np.zeros_like(Y)
                e.flat[b] = 1.0
                for which, h in enumerate((2.0**-100, 1.37 * 2.0**-100)):
                    steps[which, k, :, b] = twin.complex_step(Y, e, h).ravel()
    except Finding:
        return None
    apart = np.abs(steps[0] - J).max(axis=(1, 2))
    if not (apart <= _CLEAR * error).all():
        return None
    scatter = np.abs(steps[0] - steps[1]).max(axis=(1, 2))
    size = np.maximum(np.abs(steps[0]).max(axis=(1, 2)), 1)
    return steps[0], np.maximum(8 * (scatter + J.shape[1] * EPS * size), 2 * apart)


# ------------------------------------------------------------------------------------------------ metrics


class Fit(NamedTuple):
    """A diagonal metric p with p_a J_ab = p_b J_ba, or why there is none; ``found`` None where errors hide which."""

    found: bool | None
    p: FloatArray
    why: str = ""


def fit_diagonal(J: FloatArray, error: FloatArray, widest: float, name: Callable[[int], str]) -> Fit:
    """The diagonal metric of J (k, N, N), each known to ``error`` (k,), by the ratios that it forces.

    p_a / p_b = J_ba / J_ab wherever both are seen. A spanning forest of the pairs seen best gives p, up to a factor
    for each group of entries that act on each other; all pairs at all points then have to agree with it.
    """
    N = J.shape[1]
    e = error[:, None, None]
    other = J.transpose(0, 2, 1)
    seen = np.minimum(np.abs(J), np.abs(other)) / e
    opposite = (np.sign(J) != np.sign(other)) & (seen > _CLEAR)
    nowhere = Fit(False, np.ones(N))
    if opposite.any():
        k, a, b = _where(np.where(opposite, seen, 0))
        ask = f"{name(a)} and {name(b)} act on each other with opposite signs"
        return nowhere._replace(why=f"{ask}: J = {J[k, a, b]:.3g} and {J[k, b, a]:.3g}")
    linked = seen.max(axis=0) > _CLEAR
    np.fill_diagonal(linked, False)
    alone = np.where(linked, 0.0, np.abs(J) / e)
    alone[:, np.arange(N), np.arange(N)] = 0
    if alone.max() > widest:
        k, a, b = _where(alone)
        most = abs(J[k, b, a]) + error[k]
        return nowhere._replace(
            why=f"{name(b)} acts on {name(a)}, J = {J[k, a, b]:.3g}, and the other way J is 0 to within {most:.1g}, "
            f"which leaves weights that differ by more than {abs(J[k, a, b]) / most:.1g}"
        )
    # the relative error of the ratio, at the point where the pair is seen best; never 0, which would be no edge
    best = seen.argmax(axis=0)
    rows, columns = np.indices((N, N))
    forth, back = J[best, rows, columns], J[best, columns, rows]
    with np.errstate(divide="ignore", invalid="ignore"):
        uncertain = np.where(linked, error[best] * (1 / np.abs(forth) + 1 / np.abs(back)), 0)
        ratio = np.where(linked, np.log(np.abs(back)) - np.log(np.abs(forth)), 0)  # log p_a − log p_b
    tree = minimum_spanning_tree(csr_array(uncertain))  # of a dense array it would leave out what is close to 0
    tree = tree + tree.T
    _, groups = connected_components(tree)
    log_p, slack = np.zeros(N), np.zeros(N)
    for group in range(groups.max() + 1):
        order, parents = breadth_first_order(tree, int(np.flatnonzero(groups == group)[0]))
        for a in order[1:]:
            b = parents[a]
            log_p[a], slack[a] = log_p[b] + ratio[a, b], slack[b] + uncertain[a, b]
        log_p[groups == group] -= log_p[groups == group].min()
    p = np.exp(log_p)
    misfit = np.where(groups[:, None] == groups, _misfit(J, error, log_p, slack), 0)
    if misfit.max() > _CLEAR:
        k, a, b = _where(misfit)
        ask = f"the weights of {name(a)} and {name(b)} would need the ratio {p[a] / p[b]:.6g}"
        here = f"{J[k, b, a] / J[k, a, b]:.6g}" if J[k, a, b] else "another"
        return Fit(False, p, f"{ask} for some pairs and points and {here} for others")
    if misfit.max() > 1 or alone.max() > _CLEAR:
        return Fit(None, p, "the asymmetry in the metric that fits best is within ten times the error")
    return Fit(True, p)


def _misfit(J: FloatArray, error: FloatArray, log_p: FloatArray, slack: FloatArray) -> FloatArray:
    """|p_a J_ab − p_b J_ba| over what the errors of J, and ``slack`` of log p, explain (k, N, N)."""
    G = _in_metric(J, np.exp(log_p))
    other = G.transpose(0, 2, 1)
    u = np.exp((log_p[:, None] - log_p) / 2)
    explained = (u + u.T) * error[:, None, None] + (np.abs(G) + np.abs(other)) * (slack[:, None] + slack) / 2
    return np.asarray(np.abs(G - other) / explained)


def _in_metric(J: FloatArray, p: FloatArray) -> FloatArray:
    """P^½ J P^−½, which is symmetric iff P J is."""
    return np.asarray(np.sqrt(p)[:, None] * J / np.sqrt(p))


def _where(M: FloatArray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(np.argmax(M), M.shape))


def asymmetry_of(J: FloatArray) -> FloatArray:
    """‖½ (J − Jᵀ)‖ / ‖J − I‖ at each point; 0 where J = I."""
    moved, turned = _norms(J - np.eye(J.shape[1])), _norms(J - J.transpose(0, 2, 1)) / 2
    return np.asarray(np.where(turned == 0, 0.0, turned / np.where(moved == 0, 1.0, moved)))


def _norms(A: FloatArray) -> FloatArray:
    """The Frobenius norm of each matrix, of numbers whose squares overflow too."""
    size = np.abs(A).max(axis=(1, 2))
    return np.asarray(size * np.linalg.norm(A / np.where(size == 0, 1.0, size)[:, None, None], axis=(1, 2)))


class Mixing(NamedTuple):
    """A constant metric P that mixes entries, or the reason why there is none at all, or neither."""

    P: FloatArray | None = None
    why: str = ""
    eigenvalue: complex | None = None


def fit_constant(J: FloatArray, error: FloatArray, precision: Precision) -> Mixing:
    """Whether P J_k is symmetric for a symmetric, positive definite P and all k.

    Such a J_k is similar to a symmetric matrix, so an eigenvalue that is not real refutes P, if it is further from the
    real line than N discs of Bauer and Fike reach. P J is symmetric for C = Σ c_k J_k too: where C = V Λ V⁻¹ has real,
    distinct eigenvalues, Vᵀ P V commutes with Λ and is diagonal, so the question is the diagonal one for V⁻¹ J_k V.
    """
    N = J.shape[1]
    c = np.linspace(1.0, 2.0, len(J)) / error  # a point that is known badly would blur the mean
    c /= c.sum()
    C, C_error = np.tensordot(c, J, 1), float(c @ error)
    for what, A, e in [*(("J", A, e) for A, e in zip(J, error, strict=True)), ("a mean of the J", C, C_error)]:
        values, V = np.linalg.eig(A)
        reach = 2 * N * np.linalg.cond(V) * N * (e + 4 * EPS * np.abs(A).max())
        if np.abs(values.imag).max() > reach:
            value = values[np.argmax(values.imag)]
            return Mixing(None, f"{what} has the eigenvalues {value.real:.3g} ± {value.imag:.3g}i", complex(value))
    # V is that of C, the last. Rounding may take a repeated eigenvalue off the real line, as a pair, of one real span
    V, values = np.where(values.imag >= 0, V.real, V.imag), values.real
    condition = float(np.linalg.cond(V))
    if not condition <= math.sqrt(precision.widest):
        return Mixing()
    inverse = np.linalg.inv(V)
    turned = inverse @ J @ V
    turned_error = condition * N * (error + 4 * EPS * np.abs(J).max())
    # how far the eigenvectors of C may be from V, in its own basis; then Vᵀ P V is diagonal for every P
    gap = np.abs(values[:, None] - values)[~np.eye(N, dtype=bool)].min(initial=np.inf)
    turn = N * condition * C_error / gap if gap else np.inf
    distinct = N * turn < 0.01
    if distinct:
        turned_error = turned_error + 2 * N * turn * np.abs(turned).max()
    fit = fit_diagonal(turned, turned_error, precision.widest, lambda a: f"eigenvector {a + 1}")
    if fit.found is False and distinct:
        return Mixing(None, "the points ask for different ones")
    if not fit.found or turned_error.max() > precision.coarse * np.abs(turned - np.eye(N)).max():
        return Mixing()
    P = inverse.T @ (fit.p[:, None] * inverse)
    spread = np.linalg.eigvalsh(P)
    if not spread[-1] <= precision.widest * spread[0]:
        return Mixing()
    P = (P + P.T) / (2 * spread[0])
    # the errors of C, which P is made from, are no excuse: each J_k has to be symmetric to its own
    root = np.linalg.cholesky(P).T
    inside = root @ J @ np.linalg.inv(root)
    explained = 2 * N * math.sqrt(spread[-1] / spread[0]) * (error + 4 * EPS * np.abs(J).max(axis=(1, 2)))
    uneven = np.abs(inside - inside.transpose(0, 2, 1)).max(axis=(1, 2))
    return Mixing(P) if (uneven <= _CLEAR * explained).all() else Mixing()


# ------------------------------------------------------------------------------------------------ the verdict


def _judge(seen: Seen, subject: Subject) -> GradientField:
    points, J, error, _ = seen
    precision = PRECISION[subject.dtype]
    shape = points.shape[1:]
    N = J.shape[1]
    asymmetry = asymmetry_of(J)
    moved = _norms(J - np.eye(N))
    unknown = N * error / np.where(moved == 0, 1.0, moved)
    worst = int((asymmetry - unknown).argmax())  # where T hardly moves its tokens the share is rounding
    report = GradientField(
        "undecided",
        "",
        float(asymmetry[worst]),
        float(unknown[worst]),
        points[worst],
        route=seen.route,
        points=points,
    )

    def verdict(verdict: str, text: str, **fields: Any) -> GradientField:
        return replace(report, verdict=verdict, diagnosis=f"{text} ({CLAIM})", **fields)

    known = f"at {len(points)} points, by {seen.route}"
    if (moved <= N * error).all():
        known += ", at all of which T(y) − y does not change"
    blur = float(error.max() / (np.abs(J - np.eye(N)).max() or np.inf))
    misfit = _misfit(J, error, np.zeros(N), np.zeros(N)).max()
    if blur <= precision.coarse and misfit <= 1:
        return _on_closed_path(
            verdict(
                "euclidean",
                "your update is a gradient step in the Euclidean metric: no asymmetry found beyond "
                f"{unknown.max():.1g}, {known}",
                in_metric=report.asymmetry,
                metric=np.ones(shape),
            ),
            subject,
        )
    seen_to = f"known to {blur:.1g} of the largest" if blur < 1 else "not seen"
    unsure = f"the derivatives of T(y) − y are {seen_to} {known}"
    if misfit <= 1:
        return verdict("undecided", f"undecided: {unsure}, and the asymmetry is no more than that explains")
    if misfit <= _CLEAR:
        return verdict("undecided", f"undecided: {unsure}, and the asymmetry is {misfit:.1g} times what that explains")
    uneven = f"asymmetry {report.asymmetry:.3g} {known}"
    fit = fit_diagonal(J, error, precision.widest, lambda a: f"entry ({a // shape[1]}, {a % shape[1]})")
    if fit.found and blur <= precision.coarse:
        p = fit.p.reshape(shape)
        text = f"your update is a gradient step in a constant diagonal metric, {described(p)}; Euclidean"
        inside = float(asymmetry_of(_in_metric(J, fit.p)).max())
        return _on_closed_path(verdict("diagonal", f"{text} {uneven}", in_metric=inside, metric=p), subject)
    if fit.found is not False:
        why = fit.why or unsure
        return verdict("undecided", f"undecided: not a gradient step in the Euclidean metric, {uneven}; {why}")
    return _on_closed_path(
        beyond_diagonal(verdict("none", f"{NO_DIAGONAL}: {fit.why}; {uneven}"), J, error, precision), subject
    )


NO_DIAGONAL = "your update is a gradient step in no constant diagonal metric"


def beyond_diagonal(report: GradientField, J: FloatArray, error: FloatArray, precision: Precision) -> GradientField:
    """The report "none", with what is found of metrics that are not diagonal."""
    text, _, claim = report.diagnosis.rpartition(" ")
    P, why, eigenvalue = fit_constant(J, error, precision)
    changes: dict[str, Any] = {"eigenvalue": eigenvalue}
    if P is not None:
        root = np.linalg.cholesky(P).T
        changes |= {"verdict": "constant", "metric": P}
        changes["in_metric"] = float(asymmetry_of(root @ J @ np.linalg.inv(root)).max())
        text += f"; but at these points in one that mixes entries, of condition {np.linalg.cond(P):.3g}"
    elif why:
        text += f"; nor in any other constant metric: {why}"
    else:
        text += "; of other constant metrics nothing is known"
    return replace(report, diagnosis=f"{text} {claim}", **changes)


def described(p: FloatArray) -> str:
    """The weights p (n, d) in words: per feature or per token where that is what they are."""

    def text(weights: FloatArray) -> str:
        return "(" + ", ".join(f"{w:.4g}" for w in weights) + ")"

    if np.allclose(p, p[:1], rtol=1e-6):
        return f"p = {text(p[0])} per feature"
    if np.allclose(p, p[:, :1], rtol=1e-6):
        return f"p = {text(p[:, 0])} per token"
    return f"p = {text(p.ravel())}" if p.size <= 12 else f"with weights from 1 to {p.max():.4g}"


def _on_closed_path(report: GradientField, subject: Subject) -> GradientField:
    """The report, unless the field does work around the closed path through the points, as one that jumps may.

    That is the integral of ⟨P (y − T(y)), dy⟩, which is 0 for every gradient, whatever was seen of the Jacobian.
    """
    if report.metric is None or report.points is None:
        return report
    total = error = 0.0
    for start, end in zip(report.points, np.roll(report.points, -1, axis=0), strict=True):
        way = (end - start).ravel()
        weight = way @ report.metric if report.verdict == "constant" else way * report.metric.ravel()

        def work(t: float, start: FloatArray = start, end: FloatArray = end, weight: FloatArray = weight) -> float:
            Y = start + t * (end - start)
            return float(weight @ (Y - subject(Y)).ravel())

        size = float(np.abs(weight).sum() * np.abs([start, subject(start), end, subject(end)]).max())
        close = _CLOSE * size
        part, unsure, *_ = quad(work, 0, 1, epsabs=close, epsrel=0, limit=_PIECES, full_output=1)
        total, error = total + part, error + unsure + close
    if abs(total) <= error:
        return report
    text = "undecided: J is symmetric in a metric at every point, but the field does work around a closed path through "
    text += f"them, {total:.3g} ± {error:.1g}: does your update jump? ({CLAIM})"
    return replace(report, verdict="undecided", diagnosis=text, in_metric=None, metric=None)
