"""Is this the attention step, the feed-forward step or the layer of the paper, and if not, what is different?

    report = check_attention(my_attention)        # raises NonConformance with the diagnosis, or returns the report

The function under test is called on small inputs, from two tokens on a line to large norms, and each named check asks
one thing of what it returns: the reference value, an invariant, a bound. Where values differ,
:mod:`refimpl.testing.deviations` looks for the known deviation that explains them.

Tolerances bound the rounding of any sound algorithm in the dtype under test: logits u_i·u_j are taken to be off by
4 (d + k + 8) ε ‖u‖², which is what the Gram form costs, and carried through the weights to first order, twice; rows
may miss the sum 1 by 2 ε ‖u‖², as where weights are exp(logit − log Σ exp).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..attention import AttentionEnergy
from ..feedforward import FeedForwardEnergy
from ..numerics import FloatArray, read_number
from ..rho import Rho
from ..transformer import UnfoldedTransformer
from . import rounding
from .deviations import Inputs, Model, Observation, explain
from .kit import Check, CheckFailure, Finding, Result
from .subject import Subject, describe, same_answer

if TYPE_CHECKING:
    from .gradient_field import GradientField

KINDS = ("attention", "feedforward", "layer")
# what each kind of function takes, by the names of Inputs; m only where it is asked for
ARGUMENTS = {"attention": ("Y", "W", "m"), "feedforward": ("Y", "Wf", "B"), "layer": ("Y", "W", "Wf", "B")}
_STEP = {"attention": "step", "feedforward": "feed-forward step", "layer": "layer"}


@dataclass(frozen=True)
class Conformance:
    """What was found: ``ok``, one sentence where it is not, each check, and what was not checked and why."""

    ok: bool
    diagnosis: str | None
    checks: tuple[Result, ...]
    skipped: dict[str, str]

    def as_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)


class NonConformance(AssertionError):
    """The function is not what it is checked to be; ``report`` is a :class:`Conformance` or :class:`GradientField`."""

    def __init__(self, report: Conformance | GradientField) -> None:
        self.report = report
        checks = report.checks if isinstance(report, Conformance) else ()
        failed = [f"  {check.name}: {check.message}" for check in checks if not check.passed]
        super().__init__("\n".join([str(report.diagnosis), *failed]))


def check_attention(
    fn: Callable[..., Any],
    rho: str | Rho = "exp",
    *,
    framework: str = "numpy",
    dtype: str = "float64",
    batched: bool = False,
    pair_weights: bool = False,
    seconds: float = 10.0,
    seed: int = 0,
) -> Conformance:
    """Check ``fn(Y, W)`` against the attention step Y⁺ = A Y of ρ, α = 1: softmax_β(U Uᵀ) Y for ρ = −e^(−z).

    Parameters
    ----------
    fn : a function of arrays of the framework, Y (n, d) and W (d, k), that returns Y⁺ (n, d).
    rho : a name, a formula in z, or a :class:`refimpl.Rho`.
    framework : "numpy", "torch" or "jax"; the last two are differentiated as well.
    dtype : "float64" or "float32", of what the function is given and has to return.
    batched : Y is (b, n, d) instead.
    pair_weights : the function takes m (n, n) as a third argument.
    seconds : how long one call may take.

    Raises :class:`NonConformance`, an ``AssertionError``, with the diagnosis where a check fails, and ``ValueError`` or
    ``TypeError`` for arguments that are none of these. Source: claims ``attention.*``.
    """
    return _checked("attention", fn, rho, framework, dtype, batched, pair_weights, seconds, seed)


def check_feedforward(
    fn: Callable[..., Any],
    *,
    framework: str = "numpy",
    dtype: str = "float64",
    batched: bool = False,
    seconds: float = 10.0,
    seed: int = 0,
) -> Conformance:
    """Check ``fn(Y, W_f, B)`` against the feed-forward step Y⁺ = ReLU(B − Y W_fˢ), W_fˢ = ½ (W_f + W_fᵀ), α = 1.

    W_f is (d, d) and B (n, d); the rest as in :func:`check_attention`. Source: claims ``ffn.*``.
    """
    return _checked("feedforward", fn, "exp", framework, dtype, batched, False, seconds, seed)


def check_layer(
    fn: Callable[..., Any],
    rho: str | Rho = "exp",
    *,
    framework: str = "numpy",
    dtype: str = "float64",
    batched: bool = False,
    seconds: float = 10.0,
    seed: int = 0,
) -> Conformance:
    """Check ``fn(Y, W, W_f, B)`` against one layer: the attention step, then the feed-forward step on its result.

    The arguments are those of :func:`check_attention` and :func:`check_feedforward`.
    """
    return _checked("layer", fn, rho, framework, dtype, batched, False, seconds, seed)


def _checked(kind: str, *arguments: Any) -> Conformance:
    report = examine(kind, *arguments)
    if not report.ok:
        raise NonConformance(report)
    return report


def examine(
    kind: str,
    fn: Callable[..., Any],
    rho: str | Rho = "exp",
    framework: str = "numpy",
    dtype: str = "float64",
    batched: bool = False,
    pair_weights: bool = False,
    seconds: float = 10.0,
    seed: int = 0,
    progress: Callable[[int, int, str], None] | None = None,
    found: Callable[[Result], None] | None = None,
) -> Conformance:
    """The report of :func:`check_attention` and its siblings, whether the function passes or not.

    ``progress`` is told (number, total, name) before each check and ``found`` its result.
    """
    if kind not in KINDS:
        raise ValueError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r}")
    subject = Subject(fn, framework, dtype, batched, read_number(seconds, "seconds", "(0, inf)"))
    bench = Bench(kind, subject, AttentionEnergy(rho=rho).rho, pair_weights, seed)
    checks = [check for check in CHECKS[kind] if check.name not in bench.skipped()]
    results = []
    for number, check in enumerate(checks):
        if progress is not None:
            progress(number, len(checks), check.name)
        results.append(_result(check, bench))
        if found is not None:
            found(results[-1])
    ok = all(result.passed for result in results)
    return Conformance(ok, None if ok else _diagnosis(bench, results), tuple(results), bench.skipped())


def _result(check: Check, bench: Bench) -> Result:
    try:
        check(bench)
    except CheckFailure as failure:
        return Result(check.name, check.claim, False, failure.finding, failure.smallest)
    except Exception as error:  # a function may leave anything behind, NumPy itself changed
        return Result(check.name, check.claim, False, f"the check could not run after your function: {describe(error)}")
    return Result(check.name, check.claim, True)


# ------------------------------------------------------------------------------------------------ inputs


class Bench:
    """The function under test beside the reference, on the same inputs."""

    def __init__(self, kind: str, subject: Subject, rho: Rho, masked: bool, seed: int) -> None:
        self.kind, self.subject, self.rho, self.masked, self.seed = kind, subject, rho, masked, seed
        self.eps = float(np.finfo(subject.dtype).eps)

    def skipped(self) -> dict[str, str]:
        """The checks that do not apply, and why."""
        reasons = {}
        if not self.subject.batched:
            reasons["batch"] = "the function takes single sentences (--batched says otherwise)"
        if self.subject.framework == "numpy":
            reasons["gradients"] = "NumPy has no reverse mode to compare with"
        elif not self.smooth:
            reasons["gradients"] = f"{self.rho.name} has no second derivative"
        if self.subject.framework == "jax":
            reasons["memory layout"] = "JAX arrays have one layout"
        if self.kind != "feedforward" and not self.rho.concave:
            reasons["descent"] = f"nothing bounds the step of {self.rho.name}, which is not known to be concave"
        skipped = {check.name: reasons[check.name] for check in CHECKS[self.kind] if check.name in reasons}
        if self.kind == "layer":
            skipped["descent"] = "a layer descends where a certificate holds (refimpl.certificates), not everywhere"
        return skipped

    @property
    def smooth(self) -> bool:
        """Whether the backward pass of ρ is known."""
        return self.kind == "feedforward" or self.rho.second_derivative is not None

    def inputs(
        self,
        note: str,
        n: int,
        d: int,
        k: int,
        size: float = 0.8,
        shape: Callable[[FloatArray], FloatArray] | None = None,
    ) -> Inputs:
        """Random inputs that the dtype under test holds exactly; ``shape`` changes the tokens."""
        rng = np.random.default_rng([self.seed, n, d, k])

        def draw(*shape: int) -> FloatArray:
            return np.round(rng.standard_normal(shape), 2)  # short numbers: they are shown where a check fails

        Y, W, Wf, B = size * draw(n, d), draw(d, k) / 2 ** np.round(np.log2(d) / 2), draw(d, d), draw(n, d)
        while np.linalg.norm(Wf + Wf.T, 2) > 1.8:  # ‖W_fˢ‖₂ ≤ 0.9, so that α = 1 descends
            Wf = Wf / 2
        m = rng.integers(0, 4, (n, n)) / 2.0
        Y, W, Wf, B = (self.held(array) for array in (Y if shape is None else shape(Y), W, Wf, B))
        return Inputs(note, Y, W, Wf, B, np.maximum(m, m.T) + np.eye(n) if self.masked else None)

    def held(self, array: FloatArray) -> FloatArray:
        """The array, rounded to the dtype under test."""
        return np.asarray(array.astype(self.subject.dtype), dtype=np.float64)

    def ordinary(self) -> list[Inputs]:
        """Tokens of ordinary size, the smallest input first."""
        shapes = [(2, 1, 1), (2, 2, 2), (3, 2, 2), (4, 3, 3), (5, 4, 4), (9, 4, 4), (33, 8, 8), (20, 16, 16)]
        return [self.inputs(f"{n} tokens, d = {d}", n, d, k) for n, d, k in shapes]

    def arguments(self, inputs: Inputs) -> list[FloatArray]:
        """What the function is called with."""
        arrays = (getattr(inputs, name) for name in ARGUMENTS[self.kind])
        return [array for array in arrays if array is not None]

    def given(self, inputs: Inputs) -> list[FloatArray]:
        """``arguments``, as a batch of one where the function takes batches."""
        Y, *others = self.arguments(inputs)
        return [Y[None] if self.subject.batched else Y, *others]

    def call(self, inputs: Inputs) -> FloatArray:
        """The function's tokens; a finding carries the inputs that led to it."""
        try:
            return self.subject(*self.arguments(inputs))
        except Finding as finding:
            raise Finding(f"{finding.finding} ({inputs.note})", self.show(inputs)) from None

    def shown(self, inputs: Inputs, question: Callable[[], None]) -> None:
        """``question()``; a finding carries the inputs."""
        try:
            question()
        except Finding as finding:
            raise Finding(finding.finding, self.show(inputs)) from None

    # --------------------------------------------------------------------------------------------- the reference

    def attention(self, inputs: Inputs) -> AttentionEnergy:
        """E_attn of the inputs."""
        return AttentionEnergy(inputs.W, self.rho, inputs.m)

    def feedforward(self, inputs: Inputs) -> FeedForwardEnergy:
        """E_ffn of the inputs, with ReLU."""
        return FeedForwardEnergy(inputs.Wf, inputs.B)

    def averaged(self, inputs: Inputs) -> FloatArray:
        """A Y, the attention step."""
        return np.asarray(self.attention(inputs).step(inputs.Y), dtype=np.float64)

    def reference(self, inputs: Inputs) -> FloatArray:
        """What the function should return."""
        Y = inputs.Y if self.kind == "feedforward" else self.averaged(inputs)
        return np.asarray(Y if self.kind == "attention" else self.feedforward(inputs).step(Y))

    def reference_vjp(self, inputs: Inputs, V: FloatArray) -> list[FloatArray]:
        """The cotangents of the arguments, m excepted."""
        attention, feedforward = self.attention(inputs), self.feedforward(inputs)
        pull: dict[str, Callable[..., Any]] = {
            "attention": attention.vjp,
            "feedforward": feedforward.vjp,
            "layer": UnfoldedTransformer(attention, feedforward).vjp,
        }
        return [np.asarray(cotangent) for cotangent in pull[self.kind](inputs.Y, V)]

    def tolerance(self, inputs: Inputs, eps: float | None = None) -> FloatArray:
        """How far rounding at ``eps`` may take each entry (n, d) of a sound algorithm's result."""
        eps = self.eps if eps is None else eps
        if self.kind == "feedforward":
            return rounding.feedforward_tolerance(self.feedforward(inputs), inputs.Y, eps)
        error = rounding.attention_tolerance(self.attention(inputs), inputs.Y, eps)
        return error if self.kind == "attention" else self._through(inputs, error, eps)

    def _through(self, inputs: Inputs, error: FloatArray, eps: float) -> FloatArray:
        """The error of the layer whose attention half has that error."""
        feedforward, Y = self.feedforward(inputs), self.averaged(inputs)
        moved = 2 * error + error @ (np.abs(inputs.Wf + inputs.Wf.T) / 2)
        return np.asarray(moved + rounding.feedforward_tolerance(feedforward, Y, eps))

    def vjp_tolerance(self, inputs: Inputs, V: FloatArray) -> Sequence[FloatArray]:
        """How far rounding may take each cotangent of :meth:`reference_vjp`."""
        attention, feedforward, Y, eps = self.attention(inputs), self.feedforward(inputs), inputs.Y, self.eps
        none = np.zeros_like(Y)
        if self.kind == "attention":
            return rounding.attention_vjp_tolerance(attention, Y, V, none, eps)
        if self.kind == "feedforward":
            return rounding.feedforward_vjp_tolerance(feedforward, Y, none, V, eps)
        averaged = self.averaged(inputs)
        averaged_error = rounding.attention_tolerance(attention, Y, eps)
        V_error, Wf, B = rounding.feedforward_vjp_tolerance(feedforward, averaged, averaged_error, V, eps)
        pulled = np.asarray(feedforward.vjp(averaged, V).Y, dtype=np.float64)
        return *rounding.attention_vjp_tolerance(attention, Y, pulled, V_error, eps), Wf, B

    def away_from_kinks(self, inputs: Inputs, V: FloatArray) -> FloatArray:
        """V, without the entries whose ReLU may be on either side of 0."""
        if self.kind == "attention":
            return V
        Y = inputs.Y if self.kind == "feedforward" else self.averaged(inputs)
        before = Y - np.asarray(self.feedforward(inputs).gradient(Y))
        return np.where(np.abs(before) > 4 * self.tolerance(inputs), V, 0.0)

    def show(self, inputs: Inputs) -> str:
        """The inputs as one line to paste, where they are small."""
        if inputs.Y.size > 12:
            return f"{inputs.note}, {inputs.Y.shape[0]} × {inputs.Y.shape[1]} tokens, seed {self.seed}"
        arrays = zip(ARGUMENTS[self.kind], self.arguments(inputs), strict=False)
        return "; ".join(f"{name} = {_short(array)}" for name, array in arrays)

    def compare(self, inputs: Inputs, output: FloatArray, expected: FloatArray, what: str, slack: float = 1.0) -> None:
        """A finding where the output is further from what is expected than rounding explains."""
        error = np.abs(output - expected)
        tolerance = slack * self.tolerance(inputs)
        if not (error <= tolerance).all():
            i, a = (int(x) for x in np.unravel_index(np.argmax(error / np.maximum(tolerance, 1e-300)), error.shape))
            raise Finding(
                f"{what}: entry ({i}, {a}) is {output[i, a]:.10g}, expected {expected[i, a]:.10g}, "
                f"off by {error[i, a]:.2g} where rounding explains {tolerance[i, a]:.1g}",
                self.show(inputs),
            )


def _short(array: FloatArray) -> str:
    return str(np.array(array).tolist()).replace(".0,", ",").replace(".0]", "]")


# ------------------------------------------------------------------------------------------------ the checks


def _call(bench: Bench) -> None:
    bench.call(bench.inputs("3 tokens", 3, 2, 2))


def _dtype(bench: Bench) -> None:
    bench.call(bench.inputs("3 tokens", 3, 2, 2))
    if bench.subject.returned != bench.subject.dtype:
        raise Finding(f"your function returns {bench.subject.returned} for {bench.subject.dtype} tokens")


def _values(*names: str) -> Callable[[Bench], None]:
    """The check that the function gives the reference on inputs of these names."""

    def check(bench: Bench) -> None:
        for inputs in [inputs for name in names for inputs in _INPUTS[name](bench)]:
            bench.compare(inputs, bench.call(inputs), bench.reference(inputs), "differs from the reference")

    return check


def _large(bench: Bench) -> None:
    try:
        _values("large")(bench)
    except Finding as finding:
        if "returns nan" in finding.finding or "returns inf" in finding.finding:
            hint = "exp overflows, so subtract the row maximum of the logits first"
            raise Finding(f"{finding.finding}: {hint}", finding.smallest) from None
        raise


def _collinear(Y: FloatArray) -> FloatArray:
    return np.outer(np.arange(len(Y)) - 1.5, Y[0])


def _twins(Y: FloatArray) -> FloatArray:
    return np.asarray(Y[[0, 0, 1, 2, 1]])


def _far_from_origin(bench: Bench) -> float:
    """Tokens this long have logits whose exponential is beyond the floats: 709 in float64, 88 in float32."""
    return 80.0 if bench.subject.dtype == "float64" else 25.0


def _lifted(bench: Bench) -> Inputs:
    """Tokens close to each other and far from the origin: ordinary attention, large logits."""
    inputs = bench.inputs("large norms", 5, 4, 4)
    u, s, _ = np.linalg.svd(inputs.W)
    return replace(inputs, Y=bench.held(inputs.Y + _far_from_origin(bench) * u[:, 0] / s[0]))


_INPUTS: dict[str, Callable[[Bench], list[Inputs]]] = {
    "ordinary": lambda bench: bench.ordinary(),
    "rectangular": lambda bench: [
        bench.inputs("a map to fewer dimensions", 4, 3, 2),
        bench.inputs("a map to more dimensions", 6, 3, 5),
    ],
    "degenerate": lambda bench: [
        replace(bench.inputs("W of rank 1", 4, 3, 3), W=np.outer([1.0, -0.5, 0.25], [0.5, 1.0, -1.0])),
        replace(bench.inputs("W = 0", 4, 3, 3), W=np.zeros((3, 3))),
        replace(bench.inputs("W_f = 0", 4, 3, 3), Wf=np.zeros((3, 3))),
        replace(bench.inputs("B = 0", 4, 3, 3), B=np.zeros((4, 3))),
    ],
    "duplicates": lambda bench: [
        bench.inputs("two tokens that coincide", 2, 2, 2, shape=lambda Y: Y[[0, 0]]),
        bench.inputs("duplicates", 5, 3, 3, shape=_twins),
        bench.inputs("a token at the origin", 5, 3, 3, shape=lambda Y: Y * (np.arange(5) != 2)[:, None]),
        bench.inputs("tokens on a line", 4, 3, 3, shape=_collinear),
    ],
    "near": lambda bench: [bench.inputs("tokens 1e-3 apart", 5, 3, 3, shape=lambda Y: Y[0] + 1e-3 * Y)],
    "far": lambda bench: [bench.inputs("tokens far apart", 6, 3, 3, size=6.0)],
    "many": lambda bench: [bench.inputs("200 tokens", 200, 4, 4)],
    "single": lambda bench: [bench.inputs("a single token", 1, 3, 3), bench.inputs("a single number", 1, 1, 1)],
    "large": lambda bench: [_lifted(bench), bench.inputs("large tokens", 5, 4, 4, size=_far_from_origin(bench))],
}


def _rows(bench: Bench) -> None:
    """n = d independent tokens determine A from A Y."""
    inputs = bench.inputs("5 independent tokens", 5, 5, 5, shape=lambda Y: 1.5 * np.eye(5) + Y / 4)
    A = np.linalg.solve(inputs.Y.T, bench.call(inputs).T).T
    inverse = np.abs(np.linalg.inv(inputs.Y))
    error = bench.tolerance(inputs) @ inverse
    sums = A.sum(axis=1)
    if not (np.abs(sums - 1) <= error.sum(axis=1)).all():
        i = int(np.argmax(np.abs(sums - 1)))
        raise Finding(
            f"row {i} of the attention that your result implies sums to {sums[i]:.10g}, not 1", bench.show(inputs)
        )
    if not (-error <= A).all():
        i, j = (int(x) for x in np.unravel_index(np.argmin(A), A.shape))
        raise Finding(
            f"the attention that your result implies is negative: A[{i}, {j}] = {A[i, j]:.3g}", bench.show(inputs)
        )


def _hull(bench: Bench) -> None:
    for inputs in bench.ordinary():
        directions = np.random.default_rng(bench.seed).standard_normal((inputs.Y.shape[1], 16))
        before, after = inputs.Y @ directions, bench.call(inputs) @ directions
        error = 2 * bench.tolerance(inputs) @ np.abs(directions)
        outside = np.maximum(before.min(axis=0) - after, after - before.max(axis=0)) - error
        if not (outside <= 0).all():
            i = int(np.argmax(outside.max(axis=1)))
            message = f"token {i} leaves the convex hull of the tokens, by {outside.max():.2g} in some direction"
            raise Finding(message, bench.show(inputs))


def _permutation(bench: Bench) -> None:
    for inputs in bench.ordinary():
        order = np.roll(np.random.default_rng(bench.seed).permutation(len(inputs.Y)), 1)
        m = None if inputs.m is None else inputs.m[order][:, order]
        permuted = replace(inputs, Y=inputs.Y[order], B=inputs.B[order], m=m)
        what = f"permuting the tokens by {order.tolist()} does not permute the result"
        bench.compare(permuted, bench.call(permuted), bench.call(inputs)[order], what, slack=2)


def _translation(bench: Bench) -> None:
    for size in (1.0, 1e4 if bench.subject.dtype == "float64" else 16.0):
        inputs = bench.inputs("4 tokens", 4, 3, 3)
        shift = size * np.array([1.0, -0.5, 0.25])
        moved = replace(inputs, Y=bench.held(inputs.Y + shift))
        back = replace(inputs, Y=bench.held(moved.Y - shift))  # exact: what rounding lost of Y is lost in both
        what = f"adding {shift.tolist()} to every token does not add it to the result"
        bench.compare(moved, bench.call(moved), bench.call(back) + shift, what, slack=2)


def _rotation(bench: Bench) -> None:
    inputs = bench.inputs("5 tokens", 5, 4, 4)
    R = np.linalg.qr(np.random.default_rng(bench.seed).standard_normal((4, 4)))[0]
    turned = replace(inputs, Y=bench.held(inputs.Y @ R), W=bench.held(R.T @ inputs.W))
    spun = replace(inputs, W=bench.held(inputs.W @ R))
    once = bench.call(inputs)
    # the turned inputs are rounded, which moves the result by as much as rounding inside the function does
    bench.compare(turned, bench.call(turned), once @ R, "turning the tokens does not turn the result", slack=4)
    bench.compare(inputs, bench.call(spun), once, "turning U = YW changes the result", slack=4)


def _fixed_points(bench: Bench) -> None:
    if bench.kind == "attention":
        inputs = bench.inputs("4 equal tokens", 4, 3, 3, shape=lambda Y: np.repeat(Y[:1], 4, axis=0))
        bench.compare(inputs, bench.call(inputs), inputs.Y, "equal tokens do not stay where they are")
        flat = replace(bench.inputs("W = 0", 4, 3, 3), W=np.zeros((3, 3)))
        m = np.ones((4, 4)) if flat.m is None else flat.m
        mean = m @ flat.Y / m.sum(axis=1, keepdims=True)
        if float(np.asarray(bench.rho.derivative(np.zeros(1))).reshape(-1)[0]) == 0:
            mean = flat.Y  # every weight is ρ'(0) = 0: nothing moves
        bench.compare(flat, bench.call(flat), mean, "with W = 0 tokens do not go to their mean")
    elif bench.kind == "feedforward":
        inputs = bench.inputs("a fixed point", 4, 3, 3)
        H = np.eye(3) + (inputs.Wf + inputs.Wf.T) / 2
        Y = bench.held(np.abs(inputs.Y))
        # Y > 0 and B = Y H: the gradient is 0 there
        still = replace(inputs, Y=Y, B=bench.held(Y @ H))
        bench.compare(still, bench.call(still), Y, "the minimiser Y = B H⁻¹ > 0 does not stay where it is", slack=2)
        zero = replace(inputs, Y=0 * Y, B=-np.abs(inputs.B))
        bench.compare(zero, bench.call(zero), 0 * Y, "Y = 0 with B ≤ 0 does not stay where it is")
    else:
        inputs = bench.inputs("equal tokens", 4, 3, 3, shape=lambda Y: np.repeat(np.abs(Y[:1]), 4, axis=0))
        H = np.eye(3) + (inputs.Wf + inputs.Wf.T) / 2
        still = replace(inputs, B=bench.held(inputs.Y @ H))
        bench.compare(
            still, bench.call(still), inputs.Y, "equal tokens Y = B H⁻¹ > 0 do not stay where they are", slack=2
        )


def _unchanged(bench: Bench) -> None:
    inputs = bench.inputs("3 tokens", 3, 2, 2)
    arrays = bench.given(inputs)
    bench.shown(inputs, lambda: bench.subject.changed(arrays, ARGUMENTS[bench.kind][: len(arrays)]))


def _twice(bench: Bench) -> None:
    inputs = bench.inputs("3 tokens", 3, 2, 2)
    other = bench.inputs("3 other tokens", 3, 2, 2, size=1.6)
    bench.shown(inputs, lambda: bench.subject.reuses_memory(bench.given(inputs), bench.given(other)))
    bench.shown(inputs, lambda: same_answer([bench.call(inputs) for _ in range(3)]))


def _layout(bench: Bench) -> None:
    for inputs in (bench.inputs("4 tokens", 4, 3, 3), bench.inputs("5 tokens", 5, 4, 4)):
        once = bench.call(inputs)
        arrays = bench.given(inputs)
        other = bench.subject.transposed_call(arrays).reshape(once.shape)
        bench.compare(inputs, other, once, "tokens stored column by column give another result", slack=2)


def _batch(bench: Bench) -> None:
    first = bench.inputs("a batch of 3", 4, 3, 3)
    stack = np.stack([first.Y, 2 * first.Y[::-1], first.Y / 2])
    together = bench.subject.batch(stack, *bench.arguments(first)[1:])
    for number, (Y, result) in enumerate(zip(stack, together, strict=True)):
        alone = replace(first, Y=Y)
        what = f"sentence {number} of a batch is not what it is alone"
        bench.compare(alone, result, bench.call(alone), what, slack=2)


def _descent(bench: Bench) -> None:
    for inputs in [*bench.ordinary(), *_INPUTS["far"](bench)]:
        if bench.kind == "feedforward":
            inputs = replace(inputs, Y=np.abs(inputs.Y))
        output, Y = bench.call(inputs), inputs.Y
        r = np.linalg.norm(bench.tolerance(inputs), axis=1)
        if bench.kind == "attention":
            attention = bench.attention(inputs)
            fall = float(attention.value(Y) - attention.value(output))
            bound = float(attention.step_decrease(Y))
            slack = rounding.descent_slack(attention, Y, output, r)
        else:
            ffn = bench.feedforward(inputs)
            fall = float(ffn.value(Y) - ffn.value(output))
            # ½ λ_max(H) < 1: W_fˢ is drawn with ‖W_fˢ‖₂ ≤ 0.9
            bound = (1 - ffn.half_curvature(Y).max()) * float(((ffn.step(Y) - Y) ** 2).sum())
            gradient = np.linalg.norm(ffn.gradient(output), axis=1)
            slack = float((gradient * r + r * r).sum())
            slack += rounding.feedforward_error(ffn, Y) + rounding.feedforward_error(ffn, np.maximum(output, 0))
        if not fall >= bound - slack:
            verb = "rises" if fall < 0 else "falls"
            message = f"the energy {verb} by {abs(fall):.6g} where it has to fall by {bound:.6g} at least"
            raise Finding(message, bench.show(inputs))


def _gradients(bench: Bench) -> None:
    names = ARGUMENTS[bench.kind]
    rectangular = [] if bench.kind == "feedforward" else _INPUTS["rectangular"](bench)
    for inputs in [*bench.ordinary(), *rectangular]:
        V = bench.held(np.random.default_rng(bench.seed).standard_normal(inputs.Y.shape))
        V = bench.away_from_kinks(inputs, V)
        try:
            computed = bench.subject.vjp(bench.arguments(inputs), V)
        except Finding as finding:
            raise Finding(f"{finding.finding} (backward, {inputs.note})", bench.show(inputs)) from None
        expected, tolerances = bench.reference_vjp(inputs, V), bench.vjp_tolerance(inputs, V)
        for name, got, wanted, tolerance in zip(names, computed, expected, tolerances, strict=False):
            error = np.abs(got - wanted)
            if not (error <= tolerance).all():
                i = int(np.argmax(error / np.maximum(tolerance, 1e-300)))
                raise Finding(
                    f"the gradient with respect to {name} is off by {error.flat[i]:.2g} "
                    f"where rounding explains {tolerance.flat[i]:.1g}",
                    bench.show(inputs),
                )


def _checks(kind: str) -> Iterator[Check]:
    step = {"attention": "attention.step", "feedforward": "ffn.step", "layer": "ffn.step"}[kind]
    table: list[tuple[str, str, Callable[[Bench], None]]] = [
        ("call", step, _call),
        ("dtype", step, _dtype),
        ("value", step, _values("ordinary")),
        ("degenerate", step, _values("degenerate")),
        ("duplicates", step, _values("duplicates")),
        ("near tokens", step, _values("near")),
        ("far tokens", step, _values("far")),
        ("many tokens", step, _values("many")),
        ("single token", step, _values("single")),
        ("large norms", step, _large),
        ("permutation", "attention.invariants", _permutation),
        ("rotation", "attention.invariants", _rotation),
        ("fixed points", step, _fixed_points),
        ("inputs unchanged", step, _unchanged),
        ("same answer twice", step, _twice),
        ("memory layout", step, _layout),
        ("batch", step, _batch),
        ("descent", f"{'ffn' if kind == 'feedforward' else 'attention'}.sufficient_decrease", _descent),
        ("gradients", f"backward.{'ffn' if kind == 'feedforward' else 'attention'}", _gradients),
    ]
    attention_only = [
        ("rectangular map", step, _values("rectangular")),
        ("rows sum to one", "attention.step", _rows),
        ("convex hull", "attention.invariants", _hull),
        ("translation", "attention.invariants", _translation),
    ]
    left_out = {"attention": [], "feedforward": ["rotation"], "layer": ["rotation", "descent"]}[kind]
    if kind == "attention":
        table[3:3] = attention_only
    elif kind == "layer":
        table[3:3] = attention_only[:1]
    for name, claim, body in table:
        if name not in left_out:
            yield Check(name, claim, body, lambda bench: bench)


CHECKS = {kind: list(_checks(kind)) for kind in KINDS}


# ------------------------------------------------------------------------------------------------ the diagnosis


def _diagnosis(bench: Bench, results: Sequence[Result]) -> str:
    """One sentence: the deviation that explains the values, or else what the first failed check found."""
    try:
        return _explained(bench, results)
    except Exception:  # what the function left behind breaks the search too
        first = next(result for result in results if not result.passed)
        return f"{first.message} ({first.claim})"


def _explained(bench: Bench, results: Sequence[Result]) -> str:
    failed = [result for result in results if not result.passed]
    subject = f"your {_STEP[bench.kind]}"
    if {"call", "same answer twice"} & {result.name for result in failed} or bench.subject.hung:
        first = next(result for result in failed if result.name in ("call", "same answer twice") or bench.subject.hung)
        return f"{first.message} ({first.claim})"
    by_name = {result.name: result for result in failed}
    if "value" in by_name or "rectangular map" in by_name:
        model, observations = Model(bench.kind, bench.rho, bench.masked), list(_observations(bench))
        found = explain(model, observations) if observations else None
        if found is not None and (found.deviations or found.precision):
            return found.sentence(subject, model.formula({}), by_name[next(iter(by_name))].claim)
        if found is None and "value" in by_name:
            return _undiagnosed(bench, results)
    first = by_name.get("large norms", failed[0])
    return (
        f"{subject} is right on ordinary tokens, but not in the check {first.name!r}: {first.message} ({first.claim})"
    )


def _observations(bench: Bench) -> Iterator[Observation]:
    """What the function makes of ordinary inputs, those first that tell deviations apart best."""
    precisions: dict[str, float] = {}
    if bench.subject.dtype == "float64":
        precisions = _LOWER if _is_coarse(bench) else {_ROUNDED: _LOWER["float32"]}
    for n, d, k in [(5, 4, 4), (4, 3, 3), (9, 4, 4), (6, 3, 5), (4, 3, 2)]:
        inputs = bench.inputs(f"{n} tokens, d = {d}", n, d, k)
        try:
            output = bench.call(inputs)
        except Finding:
            continue
        lower = {name: bench.tolerance(inputs, eps) for name, eps in precisions.items()}
        yield Observation(inputs, output, bench.tolerance(inputs), lower)


_ROUNDED = "float32, or uses numbers such as W that were rounded to it"
_LOWER = {"float32": 2.0**-23, "half precision": 2.0**-7}


def _is_coarse(bench: Bench) -> bool:
    """Whether the function fails to follow a move of its tokens by 1e-11, as one that runs in lower precision does."""
    inputs = bench.inputs("5 tokens, d = 4", 5, 4, 4)
    moved = replace(inputs, Y=inputs.Y + 1e-11 * np.sign(inputs.B))
    with contextlib.suppress(Finding):
        change = bench.call(moved) - bench.call(inputs)
        # any smooth step follows, and takes a step back as far as a step forth
        back = bench.call(replace(inputs, Y=inputs.Y - 1e-11 * np.sign(inputs.B))) - bench.call(inputs)
        return bool(np.abs(change + back).max() > 1e-13 or not change.any())
    return False


def _undiagnosed(bench: Bench, results: Sequence[Result]) -> str:
    kept = [r.name for r in results if r.passed and r.name in _INVARIANTS]
    lost = [r.name for r in results if not r.passed and r.name in _INVARIANTS]
    value = next(r for r in results if r.name == "value")
    text = f"your {_STEP[bench.kind]} {value.message}; it is none of the known deviations, alone or in pairs"
    inputs = bench.inputs("5 tokens, d = 4", 5, 4, 4)
    with contextlib.suppress(Finding):
        wrong = np.abs(bench.call(inputs) - bench.reference(inputs)) > bench.tolerance(inputs)
        for axis, what in ((1, "token"), (0, "column")):
            if 0 < (which := np.flatnonzero(wrong.any(axis=axis))).size < wrong.shape[1 - axis]:
                text += f", and only {what} {', '.join(map(str, which))} of {wrong.shape[1 - axis]} is wrong"
    if kept or lost:
        text += f" (it keeps: {', '.join(kept) or 'no invariant'}; it breaks: {', '.join(lost) or 'none'})"
    return f"{text} ({value.claim})"


_INVARIANTS = ("rows sum to one", "convex hull", "permutation", "translation", "rotation", "fixed points", "descent")
