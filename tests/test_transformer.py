"""The layer: alternating and joint schedules, and the trajectory."""

import dataclasses

import numpy as np
import pytest

from refimpl import (
    ACTIVATIONS,
    PENALTIES,
    AttentionEnergy,
    FeedForwardEnergy,
    ResidualAttentionEnergy,
    Trajectory,
    UnfoldedTransformer,
    definitions,
)

EPS = np.finfo(float).eps
WF = np.array([[0.5, 1.0], [-2.0, 0.25]])
SCHEDULES = ("alternating", "joint")


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def make(schedule="alternating", *, rho="exp", activation="relu", data=False, Wf=WF, B=0.25, m=None, W="map", **kwargs):
    attn = AttentionEnergy(random(2, 2, seed=2) if isinstance(W, str) else W, rho, m)
    if data:
        attn = ResidualAttentionEnergy(attn, 0.5, 0.7)
    return UnfoldedTransformer(attn, FeedForwardEnergy(Wf, B, activation), schedule=schedule, **kwargs)


@pytest.fixture(params=SCHEDULES)
def schedule(request):
    return request.param


@pytest.fixture(params=[False, True], ids=["no data term", "data term"])
def data(request):
    return request.param


# ------------------------------------------------------------------------------------------------ one layer


@pytest.mark.parametrize("alpha", [0.5, 1.0])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_alternating_is_one_step_after_the_other(activation, alpha, data):
    model, Y = make(activation=activation, data=data, alpha=alpha), random(4, 2)
    between = model.attention.step(Y, alpha)
    np.testing.assert_array_equal(model.layer(Y), model.feedforward.step(between, alpha))


@pytest.mark.parametrize("rho", PENALTIES)
def test_the_joint_step_against_fifty_digits(rho, exact):
    Y, Wf = np.abs(random(4, 2)), WF
    model = make("joint", rho=rho, Wf=Wf)
    W, B = model.attention.W, np.full((4, 2), 0.25)
    s, h = np.linalg.svd(W, compute_uv=False)[0] ** 2, 1 + np.linalg.eigvalsh((Wf + Wf.T) / 2)[-1]
    slope = PENALTIES[rho].literal("mpmath")[1]
    expected = exact(definitions.joint_step, Y, W, slope, np.ones((4, 4)), Wf, B, lambda v, a: max(v, 0), s, h)
    np.testing.assert_allclose(model.layer(Y), expected, rtol=0, atol=64 * EPS)


def test_the_joint_step_by_hand():
    # two equal tokens at 2, ρ = z, W = 1: d = 2; W_f = 3: h = 4, M = 2 + 2 = 4; gradient 4 · 2 − 4 = 4
    model = make("joint", rho="linear", W=None, Wf=[[3.0]], B=4.0, activation="identity")
    np.testing.assert_array_equal(model.layer([[2.0], [2.0]]), [[1.0], [1.0]])
    # α divides M: ½ takes half the step
    half = make("joint", rho="linear", W=None, Wf=[[3.0]], B=4.0, activation="identity", alpha=0.5)
    np.testing.assert_array_equal(half.layer([[2.0], [2.0]]), [[1.5], [1.5]])
    # the prox is taken at 1 / M = ¼: soft threshold ½ takes away ⅛
    soft = make("joint", rho="linear", W=None, Wf=[[3.0]], B=4.0, activation="soft_threshold")
    np.testing.assert_array_equal(soft.layer([[2.0], [2.0]]), [[0.875], [0.875]])
    # non-convex: M = 8, argument 1.5 above the threshold ½ √⅛
    hard = make("joint", rho="linear", W=None, Wf=[[3.0]], B=4.0, activation="hard_threshold")
    np.testing.assert_array_equal(hard.layer([[2.0], [2.0]]), [[1.5], [1.5]])
    # data term: M = 4 + ½ · 8, gradient 4 + 8 (2 − 1)
    attn = ResidualAttentionEnergy(AttentionEnergy(rho="linear"), 1.0, 8.0)
    model = UnfoldedTransformer(attn, FeedForwardEnergy([[3.0]], 4.0, "identity"), schedule="joint")
    np.testing.assert_array_equal(model.layer([[2.0], [2.0]]), [[0.5], [0.5]])


def test_a_row_without_curvature_stays_in_the_joint_step():
    model = make("joint", W=None, m=np.diag([0.0, 1.0]), Wf=[[-2.0]], B=3.0, activation="identity")
    step = model.layer([[5.0], [4.0]])
    assert step[0] == 5.0
    assert step[1] == 4.0 - (-4.0 - 3.0)  # M = 1


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("rho", PENALTIES)
def test_the_joint_schedule_never_rises(rho, activation, data):
    for seed in range(3):
        Y = ACTIVATIONS[activation].prox(2 * random(4, 2, seed=seed), 1.0)
        model = make("joint", rho=rho, activation=activation, data=data, Wf=2 * random(2, 2, seed=seed), depth=4)
        energy = model.forward(Y).energy
        assert np.isfinite(energy).all()
        assert (np.diff(energy) <= 1e-13 * (1 + np.abs(energy[:-1]))).all()


# ------------------------------------------------------------------------------------------------ trajectories


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize("depth", [0, 1, 5])
def test_the_trajectory(schedule, data, depth, batch):
    model, Y = make(schedule, data=data, depth=depth), np.abs(random(*batch, 4, 2))
    run = model.forward(Y)
    assert isinstance(run, Trajectory)
    assert run.tokens.shape == (depth + 1, *batch, 4, 2)
    assert run.energy.shape == (depth + 1, *batch)
    assert list(run.terms) == (["attention", "data", "feedforward"] if data else ["attention", "feedforward"])
    np.testing.assert_array_equal(run.tokens[0], Y)
    for t in range(depth):
        np.testing.assert_array_equal(run.tokens[t + 1], model.layer(run.tokens[t]))
    for name, value in run.terms.items():
        assert value.shape == run.energy.shape
        assert value.dtype == np.float64
        np.testing.assert_array_equal(value, np.stack([model.terms(tokens)[name] for tokens in run.tokens]))
    np.testing.assert_allclose(run.energy, sum(run.terms.values()), rtol=4 * EPS)
    np.testing.assert_allclose(run.energy, [model.value(tokens) for tokens in run.tokens], rtol=4 * EPS)
    assert not np.shares_memory(run.tokens, Y)


def test_the_terms_are_the_energies(data):
    model, Y = make(data=data), np.abs(random(4, 2))
    attn = model.attention.attention if data else model.attention
    terms = model.terms(Y)
    assert terms["attention"] == attn.value(Y)
    assert terms["feedforward"] == model.feedforward.value(Y)
    if data:
        assert terms["data"] == pytest.approx(0.35 * np.sum((Y - 0.5) ** 2), rel=8 * EPS)


@pytest.mark.parametrize("m_shape", [None, (4, 4), (3, 4, 4)], ids=str)
def test_a_batch_is_a_loop(schedule, data, m_shape):
    m = None if m_shape is None else np.ones(m_shape) + np.eye(4)
    Y = np.abs(random(3, 4, 2))
    run = make(schedule, data=data, depth=3, m=m).forward(Y)
    for b in range(3):
        one = make(schedule, data=data, depth=3, m=None if m is None else np.broadcast_to(m, (3, 4, 4))[b]).forward(
            Y[b]
        )
        np.testing.assert_allclose(run.tokens[:, b], one.tokens, rtol=1e-13, atol=1e-14)
        np.testing.assert_allclose(run.energy[:, b], one.energy, rtol=1e-13)


def test_batches_of_pair_weights_and_one_set_of_tokens(schedule):
    # either a trajectory of the full shape, or an error that names an argument; not NumPy's words about arrays
    m = np.stack([np.ones((4, 4)), np.eye(4)])
    model, Y = make(schedule, depth=2, m=m), np.abs(random(4, 2))
    try:
        run = model.forward(Y)
    except ValueError as error:
        assert str(error).startswith(("Y: ", "pair_weights: "))  # noqa: PT017
    else:
        assert run.tokens.shape == (3, 2, 4, 2)
        assert run.energy.shape == (3, 2)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_narrow_floats_stay_and_energies_are_float64(schedule, data, dtype):
    model, Y = make(schedule, data=data, depth=3), np.abs(random(4, 2)).astype(dtype)
    run = model.forward(Y)
    assert run.tokens.dtype == dtype
    assert run.energy.dtype == np.float64
    np.testing.assert_array_equal(run.tokens[0], Y)
    np.testing.assert_array_equal(run.energy[2], model.forward(run.tokens[2].astype(float)).energy[0])
    assert model.layer(Y).dtype == dtype


@pytest.mark.parametrize("Y", [[[0, 1], [3, 4]], np.array([[0, 1], [3, 255]], dtype=np.uint8)], ids=["list", "uint8"])
def test_integers_are_taken_as_float64(schedule, Y):
    model, wide = make(schedule, depth=2), np.asarray(Y).astype(float)
    assert model.forward(Y).tokens.dtype == np.float64
    np.testing.assert_array_equal(model.forward(Y).tokens, model.forward(wide).tokens)


@pytest.mark.parametrize("n", [0, 1])
def test_no_token_and_one_token(schedule, data, n):
    run = make(schedule, data=data, depth=2).forward(np.ones((n, 2)))
    assert run.tokens.shape == (3, n, 2)
    np.testing.assert_array_equal(run.terms["attention"], [0, 0, 0])
    if n == 0:
        np.testing.assert_array_equal(run.energy, [0, 0, 0])


def test_the_input_is_kept_and_answers_repeat(schedule, data):
    model, Y = make(schedule, data=data, depth=3), np.abs(random(4, 2))
    kept = Y.copy()
    Y.setflags(write=False)
    first, second = model.forward(Y), model.forward(Y)
    np.testing.assert_array_equal(first.tokens, second.tokens)
    np.testing.assert_array_equal(Y, kept)
    for name in ("attention", "feedforward", "depth", "schedule", "alpha", "anything"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(model, name, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.tokens = None


def test_an_infeasible_start_has_infinite_energy_and_the_first_layer_is_finite(schedule):
    run = make(schedule, depth=2).forward([[-1.0, 2.0], [1.0, 1.0]])
    assert run.energy[0] == np.inf
    assert np.isfinite(run.energy[1:]).all()


@pytest.mark.parametrize("scale", [1e154, 1e200, 1e300])
def test_overflow_of_an_energy_is_infinite_without_nan_or_warning(schedule, data, scale):
    run = make(schedule, data=data, depth=2, W=None, Wf=np.eye(2) / 2).forward(
        np.array([[1.0, 0.0], [0.0, 1.0]]) * scale
    )
    assert not np.isnan(run.energy).any()
    assert np.isfinite(run.tokens).all()
    if scale > 1e155:
        assert run.energy[0] == np.inf


def test_the_default_is_twelve_alternating_layers():
    model = UnfoldedTransformer(AttentionEnergy(), FeedForwardEnergy([[0.5]]))
    assert (model.depth, model.schedule, model.alpha) == (12, "alternating", 1.0)
    assert model.forward([[1.0]]).tokens.shape == (13, 1, 1)
    two = UnfoldedTransformer(AttentionEnergy(), FeedForwardEnergy([[0.5]]), depth=np.int64(2))
    assert two.forward([[1.0]]).energy.shape == (3,)


# ------------------------------------------------------------------------------------------------ refusals

ATTN, FFN = AttentionEnergy(), FeedForwardEnergy([[0.5]])


@pytest.mark.parametrize("value", [None, "exp", FFN, AttentionEnergy, 3], ids=lambda v: type(v).__name__)
def test_bad_attention(value, refused):
    with refused(TypeError, f"attention: expected an attention energy, got {type(value).__name__}"):
        UnfoldedTransformer(value, FFN)


@pytest.mark.parametrize("value", [None, "relu", ATTN, FeedForwardEnergy, 3], ids=lambda v: type(v).__name__)
def test_bad_feedforward(value, refused):
    with refused(TypeError, f"feedforward: expected a FeedForwardEnergy, got {type(value).__name__}"):
        UnfoldedTransformer(ATTN, value)


@pytest.mark.parametrize("depth", [-1, 2.0, 2.5, "3", None, True, np.nan, [3], 1j], ids=repr)
def test_bad_depth(depth, refused):
    with refused((ValueError, TypeError), "depth: expected a whole number of at least 0, got ") as caught:
        UnfoldedTransformer(ATTN, FFN, depth=depth)
    assert str(caught.value).endswith(repr(depth))


@pytest.mark.parametrize("value", ["sequential", "", "Joint", None, 0, ["joint"]], ids=repr)
def test_bad_schedule(value, refused):
    with refused((ValueError, TypeError), "schedule: expected 'alternating' or 'joint', got ") as caught:
        UnfoldedTransformer(ATTN, FFN, schedule=value)
    assert str(caught.value).endswith(repr(value))


def test_bad_alpha(bad_number, refused):
    alpha, error, came = bad_number
    with refused(error, f"alpha: expected a .*number.*, got .*{came}"):
        UnfoldedTransformer(ATTN, FFN, alpha=alpha)
    for alpha in (0, -0.5):
        with refused(ValueError, rf"alpha: expected a number in \(0, inf\), got {alpha}"):
            UnfoldedTransformer(ATTN, FFN, alpha=alpha)


@pytest.mark.parametrize("method", ["layer", "terms", "value", "forward"])
def test_bad_tokens(method, schedule, bad_array, refused):
    Y, error, came = bad_array
    with refused(error, f"Y: expected .*, got .*{came}"):
        getattr(UnfoldedTransformer(ATTN, FFN, schedule=schedule), method)(Y)


@pytest.mark.parametrize("method", ["layer", "terms", "value", "forward"])
def test_tokens_of_the_wrong_shape(method, schedule, refused):
    model = UnfoldedTransformer(ATTN, FFN, schedule=schedule)
    for Y in (1.0, [1.0, 2.0]):
        with refused(ValueError, r"Y: expected shape \(\.\.\., n, .\), .*, got shape \("):
            getattr(model, method)(Y)
    with refused(ValueError, r"Y: expected shape \(\.\.\., n, 1\), .*, got shape \(3, 2\)"):
        getattr(model, method)(np.ones((3, 2)))
