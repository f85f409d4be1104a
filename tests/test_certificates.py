"""Certificates on numbers that can be checked by hand, and that what holds is never false."""

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refimpl import AttentionEnergy, FeedForwardEnergy, certificates, definitions, get_rho
from refimpl.asymmetric import diagonal_metric
from refimpl.certificates import (
    Certificate,
    apollonius,
    attention_metric,
    gradient_norm,
    majorizer,
    prox_mapping,
    truncation,
)
from refimpl.certificates import truncated_share as kappa

EPS = np.finfo(float).eps


def column(*values):
    return np.array(values, dtype=float)[:, None]


# (certificate, what it gives): scalars, in binary fractions, worked by hand.
BY_HAND = {
    # f = ½ (y − 1)², g = 2 (y + 1)², h'' = 5, at y = 1: ∇f = 0, ∇g = 8: h falls by at least ½ · ⅛ (64 + (1 − ⅝) 64)
    "gradient norm holds": (gradient_norm([[0.0]], [[8.0]], L_h=5.0, alpha=0.125), (True, 8.0, 5.5)),
    # at y = −0.75: ∇f = −1.75, ∇g = 1, ∇h = −0.75
    "gradient norm fails": (gradient_norm([[-1.75]], [[1.0]], L_h=5.0, alpha=0.125), (False, -1.0, -0.1328125)),
    "gradient norm, step too long": (gradient_norm([[0.0]], [[8.0]], L_h=5.0, alpha=0.25), (False, 8.0, 6.0)),
    "gradient norm at its edge": (gradient_norm([[-0.5]], [[1.0]], L_h=4.0, alpha=0.25), (True, 0.0, 0.0)),
    "gradient norm of two": (gradient_norm([[3.0, 0.0]], [[0.0, 4.0]], L_h=0.0, alpha=0.5), (True, 2.0, 8.0)),
    "no gradient at all": (gradient_norm([[0.0]], [[0.0]], L_h=1.0, alpha=1.0), (True, 0.0, 0.0)),
    "only f pulls": (gradient_norm([[3.0]], [[0.0]], L_h=1.0, alpha=1.0), (True, 0.0, 0.0)),
    # y_f = 1, y_h = −0.6 and C = 5
    "apollonius holds": (
        apollonius([[1.4]], [[1.0]], [[-0.6]], L_f=1.0, m_h=5.0, L_h=5.0, alpha=0.125), (True, 9.6, 6.24)),
    "apollonius fails": (
        apollonius([[-0.6]], [[1.0]], [[-0.6]], L_f=1.0, m_h=5.0, L_h=5.0, alpha=0.125), (False, -1.6, -0.16)),
    "apollonius, step too long": (
        apollonius([[1.0]], [[1.0]], [[-0.6]], L_f=1.0, m_h=5.0, L_h=5.0, alpha=0.25), (False, 8.0, 8.0)),
    # C = 1: the half-space of the nearer point
    "apollonius half-space": (
        apollonius([[3.0, 9.0]], [[2.0, 9.0]], [[0.0, 9.0]], L_f=1.0, m_h=1.0, L_h=2.0, alpha=0.5), (True, 2.0, 2.0)),
    # C = ½: a ball around y_f
    "apollonius ball, inside": (
        apollonius([[5.0]], [[4.0]], [[0.0]], L_f=2.0, m_h=1.0, L_h=2.0, alpha=0.5), (True, 3.0, 5.25)),
    "apollonius ball, outside": (
        apollonius([[9.0]], [[4.0]], [[0.0]], L_f=2.0, m_h=1.0, L_h=2.0, alpha=0.5), (False, -1.0, -4.75)),
    "prox mapping holds": (prox_mapping([[1.0]], [[4.0]], L_h=1.0, alpha=0.5), (True, 2.0, 4.0)),
    "prox mapping at its edge": (prox_mapping([[3.0]], [[4.0]], L_h=1.0, alpha=0.5), (True, 0.0, 0.0)),
    "prox mapping fails": (prox_mapping([[3.5]], [[4.0]], L_h=1.0, alpha=0.5), (False, -0.5, -1.0)),
    "prox mapping, step too long": (prox_mapping([[0.5]], [[4.0]], L_h=1.0, alpha=2.0), (False, -0.5, -4.0)),
    "prox mapping, nothing moves": (prox_mapping([[0.0]], [[0.0]], L_h=1.0, alpha=0.5), (True, 0.0, 0.0)),
    "prox mapping, only f pulls": (prox_mapping([[1.0]], [[0.0]], L_h=1.0, alpha=0.5), (False, -1.0, 0.0)),
    # nothing cut: κ = 0 and it is the gradient-norm bound
    "truncation without a cut": (truncation([[8.0]], [[0.0]], [[8.0]], L_h=4.0, alpha=0.25), (True, 64.0, 8.0)),
    # ξ = 2, y = 1: κ = ¾; 64 + 0 − 0 − 2 √¾ · 64
    "truncation with a cut": (
        truncation([[1.0]], [[0.0]], [[8.0]], L_h=4.0, alpha=0.25), (False, 64 - 64 * 3**0.5, 8 - 8 * 3**0.5)),
    # ξ = (1, 4), y = (1, 2): κ = 12/17; ∇h = (4, 16) again
    "truncation of one of two": (
        truncation([[1.0, 2.0]], [[0.0, 0.0]], [[4.0, 16.0]], L_h=0.0, alpha=0.25),
        (True, 544 - 544 * (12 / 17) ** 0.5, 68 - 68 * (12 / 17) ** 0.5)),
    "truncation of nothing": (truncation([[0.0]], [[3.0]], [[0.0]], L_h=1.0, alpha=1.0), (True, 0.0, 0.0)),
    # tokens 0 and 2, ρ = z: Δ = ±1, Tr Δᵀ (D + Γ) Δ / 2 = 2; ∇f = (1, 1): ⟨∇f, Δ⟩ = 0, ½ L_f ‖Δ‖² = L_f
    "attention metric holds": (
        attention_metric(AttentionEnergy(rho="linear"), column(0, 2), column(1, 1), L_f=1.5), (True, 0.5, 0.5)),
    "attention metric fails": (
        attention_metric(AttentionEnergy(rho="linear"), column(0, 2), column(1, -1), L_f=0.5), (False, -0.5, -0.5)),
    "attention metric of a half step": (
        attention_metric(AttentionEnergy(rho="linear"), column(0, 2), column(0, 0), L_f=1.0, alpha=0.5),
        (True, 1.25, 1.25)),
    "attention metric, nothing moves": (
        attention_metric(AttentionEnergy(), column(1, 1), column(5, -5), L_f=1.0), (True, 0.0, 0.0)),
    # ρ = z, tokens 0 and 2: ∇f = (−2, 2). To 0.5 and 1.5: −2 + ½ · 1 against (1 − ½) ½
    "majorizer holds": (
        majorizer(AttentionEnergy(rho="linear"), column(0, 2), column(0.5, 1.5), L_g=1.0), (True, 1.75, 1.75)),
    # to −1 and 3: 4 + ½ · 4 against (1 − ½) 2
    "majorizer fails": (
        majorizer(AttentionEnergy(rho="linear"), column(0, 2), column(-1, 3), L_g=1.0), (False, -5.0, -5.0)),
    "majorizer of a quarter of the step": (
        majorizer(AttentionEnergy(rho="linear"), column(0, 2), column(-1, 3), L_g=1.0, alpha=0.25), (True, 1.0, 1.0)),
    # W = ½ and m_12 = 2: ∇f halved, and the trace as well
    "majorizer with W and m": (
        majorizer(AttentionEnergy([[0.5]], "linear", [[0, 2], [2, 0]]), column(0, 2), column(-1, 3), L_g=1.0),
        (False, -2.0, -2.0)),
    # tokens move together, which attention does not see: (½ − ½) 2, then (1 − ½) 2
    "majorizer at its edge": (
        majorizer(AttentionEnergy(), column(0, 2), column(1, 3), L_g=1.0, alpha=2.0), (True, 0.0, 0.0)),
    "majorizer, a shift": (majorizer(AttentionEnergy(), column(0, 2), column(1, 3), L_g=1.0), (True, 1.0, 1.0)),
    "majorizer, step too long": (
        majorizer(AttentionEnergy(), column(0, 2), column(1, 3), L_g=3.0), (False, -1.0, -1.0)),
    # z overflows where the weight is 0
    "majorizer, out of sight": (
        majorizer(AttentionEnergy([[1e200]]), column(0, 2), column(-1, 3), L_g=1.0), (True, 1.0, 1.0)),
    "majorizer, nothing moves": (majorizer(AttentionEnergy(), column(0, 2), column(0, 2), L_g=3.0), (True, 0.0, 0.0)),
}  # fmt: skip


@pytest.mark.parametrize(("got", "expected"), BY_HAND.values(), ids=BY_HAND)
def test_by_hand(got, expected):
    assert isinstance(got, Certificate)
    holds, margin, decrease = expected
    assert np.ndim(got.holds) == 0
    assert bool(got.holds) is holds
    assert got.margin == pytest.approx(margin, rel=16 * EPS, abs=64 * EPS)
    assert got.decrease == pytest.approx(decrease, rel=16 * EPS, abs=64 * EPS)


@pytest.mark.parametrize(
    ("y", "xi", "expected"),
    [
        ([[1.0, 2.0]], [[2.0, 1.0]], 0.6),
        ([[1.0, 2.0]], [[-2.0, 1.0]], 0.6),
        ([[1.0, 2.0]], [[1.0, -2.0]], 0.0),
        ([[0.0, 0.0]], [[3.0, 4.0]], 1.0),
        ([[0.0, 4.0]], [[3.0, 4.0]], 0.36),
        ([[1.0, 2.0]], [[0.0, 0.0]], 0.0),
        ([[0.0, 0.0]], [[0.0, 0.0]], 0.0),
        (column(1, 0), column(2, 0), 0.75),
        ([[1e-200, 2e-200]], [[2e-200, 1e-200]], 0.6),
        ([[1e200, 2e200]], [[2e200, 1e200]], 0.6),
        ([[1e10]], [[1e-300]], 0.0),
        ([[1e308, 0.0]], [[5e-324, 5e-324]], 0.5),
        (np.zeros((0, 2)), np.zeros((0, 2)), 0.0),
    ],
)
def test_the_truncated_share_by_hand(y, xi, expected):
    assert kappa(y, xi) == pytest.approx(expected, rel=8 * EPS, abs=0)


# ------------------------------------------------------------------------------------------------ truth


CALLS = {  # each of (y or ∇f, ∇g) and a step size
    "gradient_norm": lambda a, b: gradient_norm(a, b, L_h=1.5, alpha=0.5),
    "apollonius": lambda a, b: apollonius(a, b, 0 * a + 0.25, L_f=1.0, m_h=1.5, L_h=2.0, alpha=0.5),
    "prox_mapping": lambda a, b: prox_mapping(a, b, L_h=1.5, alpha=0.5),
    "truncation": lambda a, b: truncation(np.abs(a), a, b, L_h=1.5, alpha=0.5),
    "attention_metric": lambda a, b: attention_metric(AttentionEnergy(rho="log1p"), a, b, L_f=0.5),
    "majorizer": lambda a, b: majorizer(AttentionEnergy(rho="log1p"), a, b, L_g=0.5),
}


@pytest.mark.parametrize("batch", [(5,), (2, 3), (0,), (2, 0)], ids=str)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_batch_is_a_loop(call, batch):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, *batch, 4, 3))
    got = call(a, b)
    for name, value in got._asdict().items():
        assert np.shape(value) == batch
        loop = [getattr(call(a[i], b[i]), name) for i in np.ndindex(batch)]
        np.testing.assert_allclose(np.ravel(value), np.array(loop).ravel(), rtol=1e-13, atol=1e-14)
    share = kappa(np.abs(a), b)
    assert np.shape(share) == batch
    np.testing.assert_allclose(np.ravel(share), [kappa(np.abs(a[i]), b[i]) for i in np.ndindex(batch)], rtol=1e-14)


@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1e-100, 1e100, 1e150])
@pytest.mark.parametrize("name", ["gradient_norm", "prox_mapping", "apollonius", "truncation", "majorizer"])
def test_a_certificate_does_not_depend_on_the_unit(name, scale):
    # every inequality is homogeneous: what fails by a factor of two must fail at any scale
    fails = {
        "gradient_norm": lambda s: gradient_norm([[-1.75 * s]], [[s]], L_h=1.0, alpha=0.5),
        "prox_mapping": lambda s: prox_mapping([[2 * s]], [[s]], L_h=1.0, alpha=0.5),
        "apollonius": lambda s: apollonius([[0.0]], [[2 * s]], [[s]], L_f=1.0, m_h=1.0, L_h=1.0, alpha=0.5),
        "truncation": lambda s: truncation([[4 * s]], [[-1.75 * s]], [[s]], L_h=1.0, alpha=0.5),
        # of ρ = z alone the weights do not depend on the unit either
        "majorizer": lambda s: majorizer(AttentionEnergy(rho="linear"), s * column(0, 2), s * column(-1, 3), L_g=1.0),
    }[name]
    assert not fails(1.0).holds
    assert not fails(scale).holds
    assert not np.isnan(fails(scale).margin)


@pytest.mark.parametrize("scale", [1e200, 1e307])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_overflow_is_no_nan_and_no_warning(call, scale):
    rng = np.random.default_rng(0)
    got = call(*(rng.normal(size=(2, 3, 2)) * scale))
    assert not np.isnan(got.margin)
    assert got.holds in (True, False)


quadratics = st.tuples(*[st.integers(-8, 8).map(lambda i: i / 4)] * 4, *[st.integers(1, 12).map(lambda i: i / 4)] * 2)


@given(quadratics, st.integers(1, 8).map(lambda i: i / 8))
def test_what_holds_is_true_on_quadratics(numbers, part):
    """f = ½ a ‖y − p‖², g = ½ b ‖y − q‖² in two dimensions, whose descent is exact."""
    y1, y2, p, q, a, b = numbers
    y, y_f, y_g = np.array([[y1, y2]]), np.array([[p, 0.25]]), np.array([[0.5, q]])
    grad_f, grad_g, L_h, alpha = a * (y - y_f), b * (y - y_g), a + b, part / (a + b)

    def h(y):
        return 0.5 * a * np.sum((y - y_f) ** 2) + 0.5 * b * np.sum((y - y_g) ** 2)

    size = 1e-13 * (1 + h(y))
    plain, relu = y - alpha * grad_g, np.maximum(y - alpha * grad_g, 0)
    one = gradient_norm(grad_f, grad_g, L_h=L_h, alpha=alpha)
    other = apollonius(y, y_f, (a * y_f + b * y_g) / L_h, L_f=a, m_h=L_h, L_h=L_h, alpha=alpha)
    for certificate in (one, other):
        assert h(y) - h(plain) >= certificate.decrease - size  # the bound is true whether or not it holds
        assert not certificate.holds or h(plain) <= h(y) + size
    if (y >= 0).all():
        cut = truncation(y, grad_f, grad_g, L_h=L_h, alpha=alpha)
        assert h(y) - h(relu) >= cut.decrease - size
        mapped = prox_mapping(grad_f, (y - relu) / alpha, L_h=L_h, alpha=alpha)
        assert h(y) - h(relu) >= mapped.decrease - size


@given(st.lists(st.integers(-12, 12).map(lambda i: i / 4), min_size=6, max_size=6), st.integers(1, 8))
def test_the_attention_metric_is_true(numbers, eighths):
    Y, target, alpha = np.array(numbers[:3])[:, None], np.array(numbers[3:])[:, None], eighths / 8
    attn, L_f = AttentionEnergy(), 0.75

    def h(Y):
        return attn.value(Y) + 0.5 * L_f * np.sum((Y - target) ** 2)

    certificate = attention_metric(attn, Y, L_f * (Y - target), L_f=L_f, alpha=alpha)
    assert h(Y) - h(attn.step(Y, alpha)) >= certificate.decrease - 1e-13 * (1 + abs(h(Y)))


@given(st.lists(st.integers(-12, 12).map(lambda i: i / 4), min_size=12, max_size=12), st.integers(1, 16))
@pytest.mark.parametrize("rho", ["exp", "log1p", "epanechnikov"])
def test_the_majorizer_is_that_of_the_definitions(rho, numbers, eighths):
    """The left side as the change of the majorizer, the right one as what the definition of the step guarantees."""
    (Y, Y_new, W), L_g, alpha = np.array(numbers).reshape(3, 2, 2), 1.5, eighths / 8
    penalty = get_rho(rho)
    rise = definitions.attention_majorizer(Y_new, Y, W, penalty.value, penalty.derivative, np.ones((2, 2)))
    rise -= definitions.attention_energy(Y, W, penalty.value, np.ones((2, 2)))
    squared = np.sum((Y_new - Y) ** 2)
    got = majorizer(AttentionEnergy(W, rho), Y, Y_new, L_g=L_g, alpha=alpha)
    size = 2 + np.sum((Y @ W) ** 2) + np.sum((Y_new @ W) ** 2) + squared / alpha
    assert got.margin == pytest.approx(squared / alpha - L_g / 2 * squared - rise, rel=0, abs=64 * EPS * size)


@pytest.mark.parametrize("shift", [0.0, 1e8])
@pytest.mark.parametrize("move", [1.0, 2.0**-20, 2.0**-40])
def test_the_majorizer_keeps_its_digits_near_a_fixed_point(move, shift):
    # ρ = z, tokens shift + (−½, ½), moved by (1, −1) times move: −2 move + 2 move² against 1.5 move²
    Y, Delta = shift + column(-0.5, 0.5), move * column(1, -1)
    Y_new = Y + Delta
    got = majorizer(AttentionEnergy(rho="linear"), Y, Y_new, L_g=0.5)
    moved = (Y_new - Y)[0, 0]  # what the last bit of Y⁺ leaves of the move
    assert got.margin == pytest.approx(2 * moved - 0.5 * moved**2, rel=16 * EPS, abs=0)


@given(st.lists(st.integers(-12, 12).map(lambda i: i / 4), min_size=6, max_size=6), st.integers(1, 8))
@pytest.mark.parametrize("activation", ["relu", "soft_threshold", "hard_threshold"])
def test_the_majorizer_is_true(activation, numbers, eighths):
    attn, ffn, alpha = AttentionEnergy(), FeedForwardEnergy([[0.5]], column(*numbers[3:]), activation), eighths / 6
    Y = ffn.activation.prox(column(*numbers[:3]), 1.0)

    def h(Y):
        return attn.value(Y) + ffn.value(Y)

    Y_new, double = ffn.step(Y, alpha), 1 if ffn.activation.convex else 2
    certificate = majorizer(attn, Y, Y_new, L_g=ffn.curvature, alpha=double * alpha)
    assert h(Y) - h(Y_new) >= certificate.decrease - 1e-13 * (1 + abs(h(Y)) + abs(h(Y_new)))


@given(st.lists(st.integers(-12, 12).map(lambda i: i / 4), min_size=6, max_size=6), st.integers(1, 8))
def test_the_majorizer_holds_wherever_the_gradient_mapping_does(numbers, eighths):
    attn, ffn, alpha = AttentionEnergy(), FeedForwardEnergy([[0.5]], column(*numbers[3:])), eighths / 6
    Y = np.abs(column(*numbers[:3]))
    Y_new, Gamma = ffn.step(Y, alpha), attn.kernel(Y)
    L_h = np.linalg.eigvalsh(np.diag(Gamma.sum(axis=1)) - Gamma)[-1] + ffn.curvature
    mapped = prox_mapping(attn.gradient(Y), (Y - Y_new) / alpha, L_h=L_h, alpha=alpha)
    certificate = majorizer(attn, Y, Y_new, L_g=ffn.curvature, alpha=alpha)
    assert certificate.decrease >= mapped.decrease - 1e-13 * np.sum((Y - Y_new) ** 2) / alpha


def test_in_a_metric_the_majorizer_guarantees_nothing():
    Wf = np.array([[0.0, 1e-3], [0.1, 0.0]])
    attn, Y = AttentionEnergy(), np.array([[0.0, 0.0], [1.5, 0.0]])
    ffn = FeedForwardEnergy(Wf, [[0.0, 0.0], [3.0, 0.0]], metric=diagonal_metric(Wf))
    Y_new = ffn.step(Y)
    certificate = majorizer(attn, Y, Y_new, L_g=ffn.curvature)
    assert certificate.holds
    assert certificate.decrease > 0.01
    assert attn.value(Y_new) + ffn.value(Y_new) > attn.value(Y) + ffn.value(Y) + 0.1


def test_the_energy_does_rise_outside():
    # f = ½ (y − 1)², g = 2 (y + 1)², α = 1/10, at the minimiser −0.6 of h: every step on g rises
    y = -0.6
    after = y - 0.1 * 4 * (y + 1)
    assert 0.5 * (after - 1) ** 2 + 2 * (after + 1) ** 2 > 0.5 * (y - 1) ** 2 + 2 * (y + 1) ** 2
    assert not gradient_norm([[y - 1]], [[4 * (y + 1)]], L_h=5.0, alpha=0.1).holds
    assert not prox_mapping([[y - 1]], [[4 * (y + 1)]], L_h=5.0, alpha=0.1).holds


def test_inputs_are_kept():
    a, b = np.ones((2, 3)), np.full((2, 3), 2.0)
    for array in (a, b):
        array.setflags(write=False)
    for call in CALLS.values():
        call(a, b)
    assert (a == 1).all()
    assert (b == 2).all()


def test_integers_are_fine():
    got = gradient_norm(np.array([[3, 0]], dtype=np.uint8), [[0, 4]], L_h=0, alpha=1)
    assert (bool(got.holds), got.margin) == (True, 2.0)


# ------------------------------------------------------------------------------------------------ refusals

ONE = [[1.0]]
ARRAYS = {
    "gradient_norm": (gradient_norm, {"grad_f": ONE, "grad_g": ONE}, {"L_h": 1.0, "alpha": 1.0}),
    "apollonius": (apollonius, {"y": ONE, "y_f": ONE, "y_h": ONE}, {"L_f": 1.0, "m_h": 1.0, "L_h": 1.0, "alpha": 1.0}),
    "prox_mapping": (prox_mapping, {"grad_f": ONE, "G": ONE}, {"L_h": 1.0, "alpha": 1.0}),
    "truncated_share": (kappa, {"y": ONE, "xi": ONE}, {}),
    "truncation": (truncation, {"y": ONE, "grad_f": ONE, "grad_g": ONE}, {"L_h": 1.0, "alpha": 1.0}),
    "attention_metric": (
        functools.partial(attention_metric, AttentionEnergy()), {"Y": ONE, "grad_f": ONE}, {"L_f": 1.0, "alpha": 1.0}),
    "majorizer": (
        functools.partial(majorizer, AttentionEnergy()), {"Y": ONE, "Y_new": ONE}, {"L_g": 1.0, "alpha": 1.0}),
}  # fmt: skip
EACH_ARRAY = [(name, argument) for name, (_, arrays, _) in ARRAYS.items() for argument in arrays]
EACH_NUMBER = [(name, argument) for name, (_, _, numbers) in ARRAYS.items() for argument in numbers]


def test_every_certificate_is_tried():
    public = {n for n, f in vars(certificates).items() if getattr(f, "__module__", "") == certificates.__name__}
    assert {n for n in public if not n.startswith("_")} == {*ARRAYS, "Certificate"}


@pytest.mark.parametrize(("name", "argument"), EACH_ARRAY)
def test_bad_arrays(name, argument, bad_array, refused):
    value, error, came = bad_array
    call, arrays, numbers = ARRAYS[name]
    with refused(error, f"{argument}: expected .*, got .*{came}"):
        call(**arrays | {argument: value}, **numbers)


@pytest.mark.parametrize(("name", "argument"), EACH_ARRAY)
def test_arrays_of_too_few_axes(name, argument, refused):
    call, arrays, numbers = ARRAYS[name]
    for value in (1.0, [1.0]):
        with refused(ValueError, rf"{argument}: expected .*\(\.\.\., n, d\).*, got shape \("):
            call(**arrays | {argument: value}, **numbers)


@pytest.mark.parametrize("shape", [(2, 3), (3, 2), (1, 2), (2, 1), (1, 1)], ids=str)
@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_different_shapes(name, shape, refused):
    # tokens and gradients at one point: broadcasting one over the other would certify another problem
    call, arrays, numbers = ARRAYS[name]
    last = list(arrays)[-1]
    same = {argument: np.ones((2, 2)) for argument in arrays}
    call(**same, **numbers)
    with refused(ValueError, rf"({'|'.join(arrays)}): expected .*, got shape \("):
        call(**same | {last: np.ones(shape)}, **numbers)


@pytest.mark.parametrize(("name", "argument"), EACH_NUMBER)
def test_bad_constants(name, argument, bad_number, refused):
    value, error, came = bad_number
    call, arrays, numbers = ARRAYS[name]
    with refused(error, f"{argument}: expected a .*number.*, got .*{came}"):
        call(**arrays, **numbers | {argument: value})


@pytest.mark.parametrize(("name", "argument"), EACH_NUMBER)
def test_negative_constants(name, argument, refused):
    call, arrays, numbers = ARRAYS[name]
    with refused(ValueError, rf"{argument}: expected a number in [\[(]0, inf\), got -0.5"):
        call(**arrays, **numbers | {argument: -0.5})
    if argument == "alpha":
        with refused(ValueError, r"alpha: expected a number in \(0, inf\), got 0.0"):
            call(**arrays, **numbers | {argument: 0.0})


def test_negative_tokens_are_outside_the_truncation_certificate(refused):
    with refused(ValueError, r"y: expected non-negative entries, got -0.5"):
        truncation([[1.0, -0.5]], [[1.0, 1.0]], [[1.0, 1.0]], L_h=1.0, alpha=1.0)


@pytest.mark.parametrize("attention", [None, "exp", 3], ids=repr)
@pytest.mark.parametrize(
    "call", [lambda *a: attention_metric(*a, L_f=1.0), lambda *a: majorizer(*a, L_g=1.0)], ids=["metric", "majorizer"]
)
def test_an_attention_energy_is_wanted(call, attention, refused):
    with refused(TypeError, f"attention: expected .*, got {type(attention).__name__}"):
        call(attention, ONE, ONE)
