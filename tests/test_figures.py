"""The paper's figures 1 to 4 and the pictures of the idea: their numbers by a second route, and their command."""

from __future__ import annotations

import functools
import json
import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest

from refimpl import FeedForwardEnergy, certificates, cli, definitions, get_rho
from refimpl.experiments import alternation, apollonius, line, plane, truncation
from refimpl.experiments.figures import FIGURES, Figure, write

DOCS = Path(__file__).parent.parent / "docs" / "figures"
EPS = np.finfo(float).eps
SMALL = {"n": 12, "d": 5, "half_steps": 30}


def digits(rows: list[str]) -> np.ndarray:
    return np.array([list(map(int, row)) for row in rows])


# ------------------------------------------------------------------------------------------------ figure 1


@pytest.mark.parametrize("C", [0.2, 0.7, 1.5, 4.0])
def test_the_ball_of_apollonius(C: float) -> None:
    rng = np.random.default_rng(0)
    y_f, y_h = rng.normal(size=(2, 3))
    centre, radius = apollonius.ball(y_f, y_h, C)
    directions = rng.normal(size=(100, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    on_it = centre + radius * directions
    to_f, to_h = (np.linalg.norm(on_it - point, axis=1) for point in (y_f, y_h))
    # C² is squared, and divides by 1 − C²; a few roundings of numbers as large as the ball
    np.testing.assert_allclose(to_f, C * to_h, rtol=0, atol=32 * EPS * (1 + C) * (radius + np.linalg.norm(centre)))
    for factor, inside in ((0.999, True), (1.001, False)):
        holds = certificates.apollonius(
            (centre + factor * radius * directions)[:, None], y_f[None], y_h[None], L_f=1.0, m_h=C, L_h=5.0, alpha=0.1
        ).holds
        assert (holds == (inside == (C < 1))).all()


def test_the_circles_of_figure_1() -> None:
    for circle, C in zip(apollonius.compute(cells=3)["circles"], (0.7, 1.5), strict=True):
        contains = {
            key: np.linalg.norm(np.subtract(circle[key], circle["centre"])) < circle["radius"] for key in ("y_f", "y_h")
        }
        assert circle["C"] == C
        assert contains == {"y_f": C < 1, "y_h": C > 1}
        assert circle["certified"] == ("inside" if C < 1 else "outside")


def test_the_levels_of_figure_1() -> None:
    """By the Hessians: a step on g changes h by −α ⟨∇g, ∇h⟩ + ½ α² ∇g H ∇gᵀ."""
    numbers = apollonius.compute(cells=61)
    q = {key: np.array(value) for key, value in numbers["quadratics"].items()}
    H, minimum, alpha = q["P"] + q["R"], np.array(numbers["minimiser"]), float(q["alpha"])
    np.testing.assert_allclose(minimum @ H, q["a"] @ q["P"] + q["b"] @ q["R"], rtol=0, atol=16 * EPS)
    np.testing.assert_allclose(np.linalg.eigvalsh(H), [q["m_h"], q["L_h"]], rtol=16 * EPS)
    assert alpha <= 1 / q["L_h"]
    line = np.linspace(*numbers["extent"], 61)
    y = np.stack(np.meshgrid(line, line), axis=-1)
    gradients = {"f": (y - q["a"]) @ q["P"], "g": (y - q["b"]) @ q["R"]}
    for on, other in (("g", "f"), ("f", "g")):
        step, levels = numbers["steps"][on], digits(numbers["steps"][on]["levels"])
        grad, grad_h = gradients[on], gradients["f"] + gradients["g"]
        rise = -alpha * (grad * grad_h).sum(-1) + 0.5 * alpha**2 * ((grad @ H) * grad).sum(-1)
        distance = np.linalg.norm(y - step["centre"], axis=-1) - step["radius"]
        pull = np.linalg.norm(gradients[other], axis=-1) - np.linalg.norm(grad_h, axis=-1)
        sure = (abs(rise) > 1e-12) & (abs(distance) > 1e-12) & (abs(pull) > 1e-12)
        assert sure.sum() >= sure.size - 2
        # nested: what the distances certify the gradients do, and what they certify falls
        expected = np.select([distance > 0, pull < 0, rise < 0], [0, 1, 2], 3)
        np.testing.assert_array_equal(levels[sure], expected[sure])
        np.testing.assert_array_equal((levels == 3)[sure], (rise > 0)[sure])
        assert set(levels.flat) == {0, 1, 2, 3}
        assert step["C"] > 1


def test_the_iterates_of_figure_1() -> None:
    points = apollonius.compute(cells=3)["iterates"]
    levels = [point["level"] for point in points[:-1]]
    falls = np.diff([point["h"] for point in points]) < 0
    assert [level == 3 for level in levels] == (~falls).tolist()
    assert levels[0] == 0
    assert levels[-2] == 3  # near the minimiser, in the ball that no certificate covers
    assert [point["step_on"] for point in points] == ["g", "f"] * 8 + [None]


# ------------------------------------------------------------------------------------------------ figures 2 and 3


def weights(seed: int, n: int, d: int) -> tuple[np.ndarray, ...]:
    """W₁, W₂, B₁, B₂ and the start, drawn again."""
    rng = np.random.default_rng(seed)
    return tuple(
        scale * rng.normal(size=shape)
        for scale, shape in ((0.1, (d, d)), (0.1, (n, n)), (1, (n, d)), (1, (n, d)), (10, (n, d)))
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_the_problem(seed: int) -> None:
    n, d = 9, 4
    W1, W2, B1, B2, start = weights(seed, n, d)
    task = alternation.problem(seed, n, d)
    np.testing.assert_array_equal(task.start, start)
    rng = np.random.default_rng(5)
    Y, direction = rng.normal(size=(2, n, d))
    terms = (
        lambda Y: (abs(Y @ W1) ** 2).sum() + (abs(Y - B1) ** 2).sum(),
        lambda Y: (abs(W2 @ Y) ** 2).sum() + (abs(Y - B2) ** 2).sum(),
    )
    for term, gradient, alone in zip(terms, task.gradients(Y), task.minimisers, strict=True):
        # a quadratic: the central difference is exact but for rounding
        slope = (term(Y + direction) - term(Y - direction)) / 2
        assert (gradient * direction).sum() == pytest.approx(slope, rel=1e-12)
        assert term(alone) < min(term(alone + 1e-3 * direction), term(alone - 1e-3 * direction))
    for gradient, alone in zip((0, 1), task.minimisers, strict=True):
        np.testing.assert_allclose(task.gradients(alone)[gradient], 0, atol=256 * EPS)
    # the Sylvester equation against the whole Hessian, (n d, n d)
    hessian = 2 * (np.kron(np.eye(n), W1 @ W1.T) + np.kron(W2.T @ W2, np.eye(d)) + 2 * np.eye(n * d))
    expected = np.linalg.solve(hessian, 2 * (B1 + B2).ravel()).reshape(n, d)
    np.testing.assert_allclose(task.minimiser, expected, rtol=0, atol=256 * EPS)
    np.testing.assert_allclose(sum(task.gradients(task.minimiser)), 0, atol=256 * EPS)
    _, measured = alternation.run(task, 0.05, 4)
    curvatures = np.linalg.eigvalsh(hessian)
    assert [measured["m_h"], measured["L_h"]] == pytest.approx([curvatures[0], curvatures[-1]], rel=256 * EPS)
    energies = [sum(term(point) for term in terms) for point in alternation.run(task, 0.05, 4)[0]]
    minimum = sum(term(task.minimiser) for term in terms)
    np.testing.assert_allclose(measured["gap"], np.subtract(energies, minimum), rtol=0, atol=1e-12 * energies[0])


def test_the_half_steps() -> None:
    W1, W2, B1, B2, Y = weights(3, 7, 4)
    iterates, _ = alternation.run(alternation.problem(3, 7, 4), 0.05, 6)
    for k in range(7):
        np.testing.assert_allclose(iterates[k], Y, rtol=0, atol=1e-12)
        gradient = 2 * (Y @ W1 @ W1.T + Y - B1) if k % 2 == 0 else 2 * (W2.T @ W2 @ Y + Y - B2)
        Y = Y - 0.05 * gradient


@pytest.mark.parametrize("alpha", [0.05, 0.2])
def test_the_limits(alpha: float) -> None:
    """They are each other's image, and where many half steps end; the minimiser of the sum is neither."""
    task = alternation.problem(0, 10, 4)
    after_first, after_second, contraction = alternation.limits(task, alpha)
    assert contraction < 1
    image = after_second - alpha * task.gradients(after_second)[0]
    np.testing.assert_allclose(image, after_first, rtol=0, atol=256 * EPS)
    np.testing.assert_allclose(image - alpha * task.gradients(image)[1], after_second, rtol=0, atol=256 * EPS)
    half_steps = 2 * int(np.ceil(np.log(EPS) / np.log(contraction)))
    iterates, _ = alternation.run(task, alpha, half_steps)
    np.testing.assert_allclose(iterates[-2:], [after_first, after_second], rtol=0, atol=1e-12)
    assert min(np.linalg.norm(end - task.minimiser) for end in (after_first, after_second)) > 0.1
    # the contraction is the spectral radius of two half steps
    origin, units = np.zeros((10, 4)), np.eye(40).reshape(40, 10, 4)

    def two(Y: np.ndarray) -> np.ndarray:
        Y = Y - alpha * task.gradients(Y)[0]
        return Y - alpha * task.gradients(Y)[1]

    linear = np.array([(two(unit) - two(origin)).ravel() for unit in units])
    assert abs(np.linalg.eigvals(linear)).max() == pytest.approx(contraction, rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_no_guaranteed_half_step_raises_the_energy(seed: int) -> None:
    task = alternation.problem(seed, 80, 20)
    (a, _), (c, _) = task.spectra
    L_h, falling = a[-1] + c[-1], 0
    for alpha in (1 / L_h, 1.5 / L_h, 2.5 / L_h):
        iterates, run = alternation.run(task, alpha, 120)
        gap, bound = np.array(run["gap"]), np.array(run["bound"])
        falls = gap[:-1] - gap[1:]
        assert (falls >= bound - 1e-12 * gap[:-1]).all()
        guaranteed = bound >= 0
        assert (falls[guaranteed] >= -1e-12 * gap[:-1][guaranteed]).all()
        falling += guaranteed.sum()
        # the certificate, from the gradients of each iterate
        for k, Y in enumerate(iterates[:-1]):
            gradients = task.gradients(Y)
            other, whole = np.linalg.norm(gradients[1 - k % 2]), np.linalg.norm(gradients[0] + gradients[1])
            assert run["holds"][k] == (alpha * L_h <= 1 and other <= whole)
            assert not run["apollonius"][k] or run["holds"][k]
            assert not run["holds"][k] or guaranteed[k]
        steps = range(1, 121)
        assert run["guaranteed_until"] == next(k - 1 for k in steps if not guaranteed[k - 1])
        assert run["last_guaranteed"] == next((k for k in reversed(steps) if guaranteed[k - 1]), None)
        assert run["first_rise"] == next((k for k in steps if gap[k] > gap[k - 1]), None)
        assert run["first_rise"] is not None
        assert run["guaranteed_until"] < run["first_rise"]
        assert run["rises"] == sum(gap[k] > gap[k - 1] for k in steps)
    assert falling > 20


def test_the_planes_of_figure_2() -> None:
    numbers = alternation.trajectory(seed=2, **SMALL)
    task = alternation.problem(2, SMALL["n"], SMALL["d"])
    iterates, _ = alternation.run(task, 0.05, SMALL["half_steps"])
    after_first, after_second, contraction = alternation.limits(task, 0.05)
    points = (iterates - task.minimiser).reshape(31, -1)
    _, s, Vt = np.linalg.svd(points - points.mean(axis=0), full_matrices=False)
    expected = points @ Vt[:2].T
    expected *= np.sign(expected[0])
    np.testing.assert_allclose(numbers["principal"]["points"], expected, rtol=0, atol=1e-9)
    np.testing.assert_allclose(numbers["shares"], s[:2] ** 2 / (s**2).sum(), rtol=1e-12)
    assert numbers["contraction"] == contraction
    np.testing.assert_allclose(numbers["distances"], np.linalg.norm(points, axis=1), rtol=1e-14)
    # in the plane through the three points nothing of the distances between them is lost
    u, v = np.array(numbers["plane"]["limits"])
    lengths = [np.linalg.norm(end - task.minimiser) for end in (after_first, after_second)]
    assert [np.linalg.norm(u), np.linalg.norm(v)] == pytest.approx(lengths, rel=1e-13)
    assert numbers["limit_distances"] == pytest.approx(lengths, rel=1e-13)
    assert np.linalg.norm(u - v) == pytest.approx(np.linalg.norm(after_first - after_second), rel=1e-13)
    assert abs(v[1]) <= 1e-12
    assert u[1] > 0
    assert (np.linalg.norm(numbers["plane"]["points"], axis=1) <= np.array(numbers["distances"]) * (1 + 1e-12)).all()


def test_figure_3_is_the_paper_s_step_and_the_longest_that_is_certified() -> None:
    paper, certified = alternation.energy_gap(seed=1, **SMALL)["runs"]
    assert paper["alpha"] == 0.05
    assert certified["alpha"] == 1 / certified["L_h"]
    assert any(certified["holds"])


# ------------------------------------------------------------------------------------------------ figure 4


@pytest.fixture(scope="module")
def truncated() -> dict[str, Any]:
    return truncation.compute(cells=21)


def test_the_share_of_figure_4(truncated: dict[str, Any]) -> None:
    """Against the definition, at every point, and h against the issue's formula by its gradient."""
    W, alpha, x = np.array(truncated["W"]), truncated["alpha"], truncated["x"]
    assert alpha == 0.25
    assert truncated["shares"] == [0.2, 0.4, 0.6, 0.8]
    assert (W == W.T).all()
    for panel in truncated["panels"]:
        for i, x2 in enumerate(x):
            for j, x1 in enumerate(x):
                xi = (alpha * (np.array([x1, x2]) @ (W + np.eye(2)) - panel["B"])).tolist()
                assert abs(panel["kappa"][i][j] - definitions.truncated_share([x1, x2], xi)) <= 0.5e-6 + 64 * EPS
                if all(abs(e - y) > 1e-12 for e, y in zip(xi, (x1, x2), strict=True)):
                    assert int(panel["cut"][i][j]) == any(e > y for e, y in zip(xi, (x1, x2), strict=True))


def test_what_share_the_certificate_allows(truncated: dict[str, Any]) -> None:
    x, allowed = truncated["x"], truncated["allowed"]
    for panel in truncated["panels"]:
        held = 0
        for i, x2 in enumerate(x):
            for j, x1 in enumerate(x):
                gradient = FeedForwardEnergy(truncated["W"], panel["B"]).gradient([[x1, x2]])
                certificate = certificates.truncation(
                    [[x1, x2]], [[0.0, 0.0]], gradient, L_h=truncated["L_h"], alpha=truncated["alpha"]
                )
                if abs(panel["kappa"][i][j] - allowed) > 1e-6:
                    assert certificate.holds == (panel["kappa"][i][j] < allowed)
                held += certificate.holds
        assert 0 < held < len(x) ** 2
    assert truncated["L_h"] == pytest.approx(np.linalg.eigvalsh(np.eye(2) + truncated["W"])[-1], rel=8 * EPS)


def test_the_minimisers_of_figure_4(truncated: dict[str, Any]) -> None:
    """The conditions of Karush, Kuhn and Tucker, and where the steps end."""
    inside, edge = truncated["panels"]
    for panel in (inside, edge):
        x = np.array(panel["minimiser"])
        gradient = FeedForwardEnergy(truncated["W"], panel["B"]).gradient(x[None])[0]
        assert (x >= 0).all()
        assert (gradient >= -64 * EPS).all()
        assert abs(gradient * x).max() <= 64 * EPS
        h = [float(FeedForwardEnergy(truncated["W"], panel["B"]).value([point])) for point in panel["path"]]
        assert (np.diff(h) <= 64 * EPS * h[0]).all()
        # each step contracts distances by at least 1 − α λ_min(H), as ReLU does not stretch them
        contraction = 1 - truncated["alpha"] * np.linalg.eigvalsh(np.eye(2) + truncated["W"])[0]
        start, end = (np.linalg.norm(np.subtract(panel["path"][k], x)) for k in (0, -1))
        assert end <= contraction ** (len(panel["path"]) - 1) * start + 64 * EPS
    assert min(inside["minimiser"]) > 0
    assert edge["minimiser"][1] == 0
    assert not any("1" in row for row in inside["cut"])  # κ counts entries that step away from 0, too
    assert any("1" in row for row in edge["cut"])
    assert np.max(inside["kappa"]) > 0.8


# ------------------------------------------------------------------------------------------------ tokens on a line


@pytest.fixture(scope="module")
def moving() -> list[dict[str, Any]]:
    return line.majorizer(cells=41)["panels"]


def one_token(panel: dict[str, Any], y: float) -> list[list[float]]:
    return [[y], *([other] for other in panel["others"])]


def test_the_majorizer_by_the_definitions(moving: list[dict[str, Any]]) -> None:
    """Above the energy for a concave penalty, below it for a convex one, at every drawn point; equal at Y."""
    for panel, above in zip(moving, (1, -1), strict=True):
        value, slope = get_rho(panel["rho"]).literal()
        n = len(panel["others"]) + 1
        rounding = 16 * n * n * EPS * np.abs(panel["energy"]).max()
        at_W_and_m = [[1.0]], definitions.ones(n)

        def energy(y: float, panel: Any = panel, value: Any = value, rest: Any = at_W_and_m) -> float:
            return definitions.attention_energy(one_token(panel, y), rest[0], value, rest[1])

        energies = [energy(y) for y in panel["places"]]
        np.testing.assert_allclose(panel["energy"], energies, rtol=0, atol=rounding)
        for move in panel["moves"]:
            Y = one_token(panel, move["y"])

            def Q(y: float, Y: Any = Y, panel: Any = panel, value: Any = value, slope: Any = slope) -> float:
                return definitions.attention_majorizer(
                    one_token(panel, y), Y, [[1.0]], value, slope, definitions.ones(len(Y))
                )

            drawn = [Q(y) for y in panel["places"]]
            np.testing.assert_allclose(move["majorizer"], drawn, rtol=0, atol=rounding)
            assert (above * np.subtract(move["majorizer"], energies) >= -rounding).all()
            assert np.abs(np.subtract(move["majorizer"], energies)).max() > 0.1
            assert move["energy"] == pytest.approx(energy(move["y"]), abs=rounding)
            assert Q(move["y"]) == pytest.approx(move["energy"], abs=rounding)
            # a parabola: smallest where it is symmetric, and back at E(Y) as far again
            lowest = move["minimiser"]
            assert Q(lowest + 0.5) == pytest.approx(Q(lowest - 0.5), abs=rounding)
            assert Q(lowest + 0.5) > Q(lowest)
            assert move["at"][1:] == pytest.approx([Q(lowest), move["energy"]], abs=rounding)
            assert Q(move["limit"]) == pytest.approx(move["energy"], abs=rounding)


def test_the_moves_under_the_majorizer(moving: list[dict[str, Any]]) -> None:
    concave, convex = moving
    for panel in moving:
        slope = get_rho(panel["rho"]).literal()[1]
        for move, after in pairwise(panel["moves"]):
            Y = one_token(panel, move["y"])
            ones = definitions.ones(len(Y))
            step = functools.partial(definitions.attention_step, Y, [[1.0]], slope, ones)
            A = definitions.attention_weights(definitions.kernel(Y, [[1.0]], slope, ones))
            assert after["y"] == pytest.approx(step(1.0)[0][0], abs=64 * EPS)
            assert move["A_11"] == pytest.approx(A[0][0], abs=16 * EPS)
            to_minimum = 1 / (1 - A[0][0])
            assert [step(alpha)[0][0] for alpha in (to_minimum, 2 * to_minimum)] == pytest.approx(
                [move["minimiser"], move["limit"]], abs=64 * EPS
            )
    falls = np.diff([[move["energy"] for move in panel["moves"]] for panel in moving])
    assert (falls[0] < 0).all()
    assert (falls[1] > 0).all()
    # one token alone may go further than all of them at once: λ_min(A) ≤ A_11
    assert 2 <= concave["max_alpha"] < 2 / (1 - concave["moves"][0]["A_11"])
    # between −1 and 1 the penalty z² takes y to −2 y / (1 + y²); E = 4 + ½ (1 + 6 y² + y⁴)
    for move, after in pairwise(convex["moves"]):
        y = move["y"]
        assert after["y"] == pytest.approx(-2 * y / (1 + y * y), abs=16 * EPS)
        assert move["energy"] == pytest.approx(4 + (1 + 6 * y**2 + y**4) / 2, rel=16 * EPS)
        assert move["at"][0] < move["energy"] < after["energy"]  # what Q promises, and what comes


def test_plain_softmax_raises_the_energy() -> None:
    """The rise in closed form, and both kinds of steps from their logits."""
    numbers = line.plain_softmax()
    with mpmath.workdps(50):
        e, middle = mpmath.exp, mpmath.mpf(7) / 6  # the token at 0 attends to all three alike
        first = (-e(mpmath.mpf(1) / 4) / 2 + 4 * e(-2)) / (e(mpmath.mpf(1) / 4) + 1 + e(-2))
        last = (-e(-2) / 2 + 4 * e(16)) / (e(-2) + 1 + e(16))
        before, after = (
            -sum(e(-((a - b) ** 2) / 2) for a, b in ((x, y), (x, z), (y, z)))
            for x, y, z in ((mpmath.mpf(-1) / 2, mpmath.mpf(0), mpmath.mpf(4)), (first, middle, last))
        )
        assert numbers["rise"] == pytest.approx(float(after - before), abs=16 * EPS)
    assert 0.3826 < numbers["rise"] < 0.3827
    for name, beta in (("plain", 0.0), ("reweighted", 0.5)):
        run = numbers["runs"][name]
        assert run["tokens"][0] == [-0.5, 0, 4]
        for y, after in pairwise(np.array(run["tokens"])):
            weights = np.exp(np.outer(y, y) - beta * y**2)
            np.testing.assert_allclose(after, weights @ y / weights.sum(axis=1), rtol=0, atol=64 * EPS * 4)
        for y, energy in zip(run["tokens"], run["energy"], strict=True):
            pairs = ((y[0] - y[1]), (y[0] - y[2]), (y[1] - y[2]))
            # e^(−z) and z ≤ 10: rounding of y counts for ten times as much
            assert energy == pytest.approx(-sum(math.exp(-u * u / 2) for u in pairs), abs=64 * EPS)
    assert (np.diff(numbers["runs"]["reweighted"]["energy"]) < 0).all()


# ------------------------------------------------------------------------------------------------ tokens in the plane


@pytest.fixture(scope="module")
def in_the_plane() -> dict[str, Any]:
    return plane.compute(0)


def test_the_steps_in_the_plane(in_the_plane: dict[str, Any]) -> None:
    """Each run by the definitions: tokens that are rounded to 1e-6, and the energies of two layers."""
    rho, slope = get_rho("exp").literal()
    eye, m, lam = definitions.identity(2), definitions.ones(60), in_the_plane["lambda"]
    Wf, B = in_the_plane["Wf"], [[in_the_plane["B"]] * 2] * 60
    h = float(np.linalg.eigvalsh(np.eye(2) + Wf)[-1])
    centres = np.repeat([[0.6, 3.0], [3.4, 0.6], [3.6, 3.8]], 20, axis=0)
    X = np.maximum(centres + 0.5 * np.random.default_rng(0).normal(size=(60, 2)), 0).tolist()

    def relu(v: float, alpha: float) -> float:
        return max(v, 0.0)

    def attention(Y: Any) -> Any:
        return definitions.attention_step(Y, eye, slope, m, 1)

    def nothing(v: float) -> float:
        return 0.0

    steps = {
        "alone": attention,
        "data": lambda Y: definitions.residual_step(Y, X, eye, slope, m, lam, 1),
        "alternating": lambda Y: definitions.feedforward_step(attention(Y), Wf, B, relu, 1),
        "joint": lambda Y: definitions.joint_step(Y, eye, slope, m, Wf, B, relu, 1, h),
    }
    own = {
        "alone": {},
        "data": {"data": lambda Y: definitions.data_energy(Y, X, lam)},
        "alternating": {"feed-forward": lambda Y: definitions.feedforward_energy(Y, Wf, B, nothing)},
        "joint": {"feed-forward": lambda Y: definitions.feedforward_energy(Y, Wf, B, nothing)},
    }
    assert set(in_the_plane["runs"]) == set(steps)
    for name, run in in_the_plane["runs"].items():
        Y = X
        for layer in range(3):
            np.testing.assert_allclose(run["tokens"][layer], Y, rtol=0, atol=0.5e-6 + 1e-12)
            terms = {"attention": lambda Y: definitions.attention_energy(Y, eye, rho, m)} | own[name]
            assert set(run["terms"]) == set(terms)
            total = 0.0
            for term, value in terms.items():
                assert run["terms"][term][layer] == pytest.approx(value(Y), abs=1e-10)
                total += value(Y)
            assert run["energy"][layer] == pytest.approx(total, abs=1e-10)
            pairs = [math.dist(a, b) for a in Y for b in Y]
            assert run["diameter"][layer] == pytest.approx(max(pairs), rel=1e-12)
            Y = steps[name](Y)


@pytest.mark.parametrize("seed", range(3))
def test_what_must_hold_in_the_plane(seed: int) -> None:
    runs = plane.compute(seed)["runs"]
    for run in runs.values():
        change, size = np.diff(run["energy"]), np.abs(run["energy"][1:])
        assert run["rises"] == [layer for layer in range(1, 25) if change[layer - 1] > 1e-9 * size[layer - 1]]
        assert run["tokens"][0] == runs["alone"]["tokens"][0]
    for name in ("alone", "data", "joint"):  # attention.step, residual.step and joint.step never raise it
        assert runs[name]["rises"] == []
    for name in ("alternating", "joint"):
        assert np.min(runs[name]["tokens"]) >= 0
    # every token stays in the hull: the diameter shrinks, and to nothing without a data term
    diameter = np.array(runs["alone"]["diameter"])
    assert (np.diff(diameter) <= 0).all()
    assert diameter[-1] < 1e-6
    assert runs["alone"]["energy"][-1] == pytest.approx(-60 * 59 / 2, abs=1e-6)
    # where L Y = λ (X − Y), a function of the token of slope 60 at most: λ / (60 + λ) of the inputs' distance is left
    X, Y = (np.array(runs["data"]["tokens"][layer]) for layer in (0, -1))
    apart = [np.linalg.norm(points[:, None] - points, axis=-1) for points in (X, Y)]
    moves = Y[:, None] - Y
    pull = (np.exp(-0.5 * (moves**2).sum(axis=-1, keepdims=True)) * moves).sum(axis=1)
    left = np.linalg.norm(pull + 10 * (Y - X), axis=1).max()  # of the gradient; tokens are rounded to 1e-6
    assert left < 0.5
    assert (apart[1] >= (10 * apart[0] - 2 * left) / 70 - 1e-12).all()
    assert apart[1].max() > 3


# ------------------------------------------------------------------------------------------------ the command


PLAIN = ["apollonius", "alternation", "energy-gap", "truncation", "majorizer", "plain-softmax", "tokens"]
ABOUT_TEXT = ["energy-by-layer", "energy-by-layer-trained", "released", "penalties-on-text"]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same figures of fewer numbers."""
    pytest.importorskip("matplotlib")
    for name in ("alternation", "energy-gap", "apollonius", "truncation", "majorizer"):
        figure = FIGURES[name]
        options = SMALL if name in ("alternation", "energy-gap") else {"cells": 21}
        monkeypatch.setitem(FIGURES, name, figure._replace(compute=functools.partial(figure.compute, **options)))


@pytest.mark.usefixtures("small")
def test_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "folder"
    assert cli.main(["figures", "--out", str(out), "--json", "--seed", "3"]) == 0
    text, err = capsys.readouterr()
    assert err == ""
    report = json.loads(text)
    assert [figure["name"] for figure in report["figures"]] == PLAIN
    assert list(report["skipped"]) == ABOUT_TEXT
    assert report["skipped"]["released"] == "it needs SST-2 and IMDB and word vectors"
    assert sorted(path.name for path in out.iterdir()) == sorted(f"{n}.{s}" for n in PLAIN for s in ("json", "png"))
    for figure in report["figures"]:
        assert set(figure) == {"name", "path", "numbers"}
        assert Path(figure["path"]).read_bytes().startswith(b"\x89PNG")
        assert json.loads(Path(figure["path"]).with_suffix(".json").read_text()) == figure["numbers"]
        assert figure["numbers"]["seed"] == 3
        # the JSON is what is drawn
        again = tmp_path / "again.png"
        FIGURES[figure["name"]].draw(figure["numbers"]).savefig(again, dpi=100)
        assert again.read_bytes() == Path(figure["path"]).read_bytes()


@pytest.mark.usefixtures("small")
def test_only_and_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    only = ["--only", "truncation", "--only", "energy-gap", "--only", "truncation"]
    for folder, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        assert cli.main(["figures", "--out", str(tmp_path / folder), *only, "--seed", seed]) == 0
        out, err = capsys.readouterr()
        assert (err, out.count(".png")) == ("", 2)
    a, b, c = ({path.name: path.read_bytes() for path in (tmp_path / folder).iterdir()} for folder in ("a", "b", "c"))
    assert set(a) == {"truncation.png", "truncation.json", "energy-gap.png", "energy-gap.json"}
    assert a == b
    assert a["energy-gap.json"] != c["energy-gap.json"]
    assert a["truncation.png"] == c["truncation.png"]


@pytest.fixture
def corpora(tmp_path: Path) -> list[str]:
    """Options that name two small corpora and their word vectors."""
    words = ["a", "good", "bad", "film", "plot", "fine", "poor", "long"]
    vectors = np.random.default_rng(0).standard_normal((8, 4))
    np.savez(tmp_path / "words.npz", words=np.array(words), vectors=vectors)
    lines = ["a good film\t1", "a bad film\t0", "fine plot\t1", "a poor long plot\t0", "good fine film\t1"] * 3
    for name in ("sst2", "imdb"):
        (tmp_path / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    files = {"--sst2": "sst2.tsv", "--imdb": "imdb.tsv", "--embeddings": "words.npz"}
    return [part for option, file in files.items() for part in (option, str(tmp_path / file))]


def test_figures_about_text(
    tmp_path: Path, corpora: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    for name, options in (
        ("energy-by-layer", {"samples": 6}),
        ("energy-by-layer-trained", {"samples": 5, "steps": 10, "layers": 2}),
    ):
        figure = FIGURES[name]
        monkeypatch.setitem(FIGURES, name, figure._replace(compute=functools.partial(figure.compute, **options)))
    only = ["--only", "energy-by-layer", "--only", "energy-by-layer-trained"]
    assert cli.main(["figures", "--out", str(tmp_path / "out"), *only, *corpora, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["skipped"] == {}
    random, trained = (figure["numbers"]["rows"] for figure in report["figures"])
    assert [(row["text"], row["relu"]) for row in random] == [
        (text, relu) for text in ("SST-2", "IMDB") for relu in (False, True)
    ]
    assert all(len(row["mean_energy"]) == 13 and row["samples"] == 6 for row in random)
    assert all((row["trained_on"], row["held_out"]) == (10, 5) for row in trained)
    assert all(len(row[when]["mean_energy"]) == 3 for row in trained for when in ("before", "after"))
    for figure in report["figures"]:
        assert Path(figure["path"]).read_bytes().startswith(b"\x89PNG")


def test_figures_about_text_need_it(tmp_path: Path, corpora: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    out = ["figures", "--out", str(tmp_path / "out"), "--only", "energy-by-layer-trained"]
    assert cli.main(out) == 0
    assert "skipped: energy-by-layer-trained, it needs SST-2 and IMDB" in capsys.readouterr().out
    assert cli.main([*out, *corpora[:4]]) == 2
    assert "embeddings: --sst2 and --imdb need --embeddings F" in capsys.readouterr().err
    for name in ("sst2", "imdb"):
        (tmp_path / f"{name}.tsv").write_text("sentence\tlabel\na good film\t1\nnothing known\t0\n")
    assert cli.main([*out, *corpora]) == 2
    assert "SST-2: expected two documents with words or more, half to train on, got 1" in capsys.readouterr().err


def never(seed: int, progress: object) -> dict[str, Any]:
    raise AssertionError("computed before the directory was found fit")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--only", "apollonus"],
            f"only: expected one of {', '.join(FIGURES)}, got 'apollonus'",
        ),
        (["--out", "{}/file"], "{}/file: File exists"),
        (["--out", "{}/file/folder"], "{}/file/folder: Not a directory"),
        (["--out", "{}/full", "--only", "truncation"], "can be written, got {}/full/truncation.png"),
    ],
)
def test_refused_before_any_work(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    pytest.importorskip("matplotlib")
    for name, figure in FIGURES.items():
        monkeypatch.setitem(FIGURES, name, Figure(figure.title, never, figure.draw))
    (tmp_path / "file").write_text("")
    (tmp_path / "full" / "truncation.png").mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    given = [word.format(tmp_path) for word in arguments]
    assert cli.main(["figures", "--out", str(tmp_path / "new"), *given]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("refimpl: error: ")
    assert err.count("\n") == 1
    assert message.format(*[tmp_path] * message.count("{}")) in err
    assert sorted(tmp_path.rglob("*")) == before


def test_out_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["figures"]) == 2
    assert "--out" in capsys.readouterr().err


@pytest.mark.usefixtures("small")
def test_a_figure_that_fails_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure as Canvas

    def full(self: object, path: Path, **options: object) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device", str(path))

    for suffix in ("png", "json"):
        (tmp_path / f"truncation.{suffix}").write_bytes(b"old")
    monkeypatch.setattr(Canvas, "savefig", full)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path, ["truncation"])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "truncation.png": b"old",
        "truncation.json": b"old",
    }


@pytest.mark.usefixtures("small")
def test_progress(tmp_path: Path) -> None:
    calls: list[tuple[int, int, str]] = []
    write(tmp_path, progress=lambda *call: calls.append(call))
    labels = dict.fromkeys(label for _, _, label in calls)
    assert len(labels) == 4  # the step of 0.05 is taken in two figures
    for label in labels:
        assert max(done for done, _, name in calls if name == label) == next(t for _, t, n in calls if n == label)


# ------------------------------------------------------------------------------------------------ the documents


def test_the_pictures_of_the_documents() -> None:
    """The numbers in docs/: the deterministic ones again, and what the others say of themselves."""
    numbers = {path.stem: json.loads(path.read_text()) for path in DOCS.glob("*.json")}
    assert {*PLAIN, "energy-by-layer", "released", "penalties-on-text"} <= set(numbers) <= set(FIGURES)
    assert {path.stem for path in DOCS.glob("*.png")} == set(numbers)
    for name in ("apollonius", "truncation"):
        again = json.loads(json.dumps(FIGURES[name].compute(0, None)))
        for key in ("circles", "steps", "W", "allowed"):
            if key in again:
                assert_close(numbers[name][key], again[key])
    for part in numbers["energy-gap"]["runs"]:
        gap, bound = np.array(part["gap"]), np.array(part["bound"])
        assert len(gap) == 201
        assert (gap[:-1] - gap[1:] >= bound - 1e-12 * gap[:-1]).all()
    assert (numbers["alternation"]["n"], numbers["alternation"]["d"]) == (500, 128)
    for name in ("majorizer", "plain-softmax", "tokens"):
        again = json.loads(json.dumps(FIGURES[name].compute(0, None)))
        assert_close({key: numbers[name][key] for key in again}, again)


def test_the_captions_of_the_idea() -> None:
    """Every number of the captions, signs included, is one of the JSON, and none of those is left out."""
    page = (DOCS.parent / "figures.md").read_text(encoding="utf-8").partition("## Pictures of the idea")[2]
    prose = re.sub(r"```.*?```|!?\[[^]]*\]\([^)]*\)|`[^`]*`", "", page, flags=re.DOTALL)
    sections = re.split(r"^### ", prose, flags=re.MULTILINE)[1:]
    numbers = {
        name: json.loads((DOCS / f"{name}.json").read_text()) for name in ("majorizer", "plain-softmax", "tokens")
    }
    concave, convex = numbers["majorizer"]["panels"]
    first, last = concave["moves"][0], concave["moves"][-1]
    falls = {f"{first['A_11']:.2f}", f"{1 / (1 - first['A_11']):.2f}", f"{2 / (1 - first['A_11']):.2f}"}
    falls |= {f"{concave['max_alpha']:.2f}", f"{first['energy']:.2f}", f"{last['energy']:.2f}"}
    rises = [
        convex["moves"][0]["energy"],
        convex["moves"][0]["at"][0],
        *(convex["moves"][k]["energy"] for k in (1, -1)),
    ]
    plain = numbers["plain-softmax"]["runs"]["plain"]
    softmax = {f"{y:g}" for y in plain["tokens"][0] if y != -0.5} | {f"{plain['tokens'][1][1]:.2f}"}
    softmax |= {f"{numbers['plain-softmax']['rise']:.4f}", *(f"{energy:.4f}" for energy in plain["energy"][:2])}
    runs = numbers["tokens"]["runs"]
    alone, data, alternating, joint = (runs[name] for name in ("alone", "data", "alternating", "joint"))
    ends = np.array(alternating["tokens"][-1])
    cloud = np.array(alone["tokens"][3]).reshape(3, 20, 2)
    cloud_diameter = np.linalg.norm(cloud[:, :, None] - cloud[:, None], axis=-1).max()
    jumps = [alternating["energy"][k] - alternating["energy"][k - 1] for k in alternating["rises"]]
    assert 0.03 < cloud_diameter < 0.04
    assert alone["diameter"][12] < 0.001 < alone["diameter"][11]
    assert (alternating["rises"][0], len(jumps)) == (3, 10)
    assert all(min(abs(end)) == 0 for end in ends)
    tokens = {"60", "3", "0.04", "12", "0.001", "1,770", "−1", "0", "24", f"{data['diameter'][0]:.2f}"}
    tokens |= {f"{data['diameter'][-1]:.2f}", f"{numbers['tokens']['lambda']:g}", f"{numbers['tokens']['B']:g}"}
    tokens |= {f"{number:g}" for row in numbers["tokens"]["Wf"] for number in row}
    tokens |= {str((ends[:, axis] == 0).sum()) for axis in (0, 1)}
    tokens |= {f"{jumps[0]:.1f}", f"{max(jumps[1:]):.4f}", f"{joint['energy'][-1]:,.0f}"}
    tokens |= {
        f"{alternating['energy'][-1]:,.0f}",
        "1",
        f"{(60 + numbers['tokens']['lambda']) / numbers['tokens']['lambda']:g}",
    }
    expected = [
        falls | {f"{energy:.2f}" for energy in rises} | {"1", "−1", "−2"},
        softmax | {"1", f"{min(plain['energy']):.2f}"},
        tokens,
    ]
    assert len(sections) == len(expected)
    for section, allowed in zip(sections, expected, strict=True):
        found = set(re.findall(r"−?\d[\d,]*(?:\.\d+)?(?<!,)", section))
        assert found == {number.replace("-", "−") for number in allowed}


def assert_close(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert set(one) == set(other)
        for key in one:
            assert_close(one[key], other[key])
    elif isinstance(one, list):
        for x, y in zip(one, other, strict=True):
            assert_close(x, y)
    else:
        assert one == (pytest.approx(other, rel=1e-12) if isinstance(one, float) else other)
