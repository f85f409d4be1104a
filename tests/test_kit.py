"""The check kit: it accepts every shipped penalty and activation, and each of its checks rejects a planted fault."""

from dataclasses import replace

import numpy as np
import pytest

import refimpl
from refimpl import ACTIVATIONS, PENALTIES, Activation, Rho, get_rho
from refimpl.testing import CheckFailure, activation_checks, check_activation, check_rho, penalty_checks, results

pytest_plugins = ["pytester"]

EXP, SOFT = PENALTIES["exp"], ACTIVATIONS["soft_threshold"]


@refimpl.testing.parametrize_with_checks([*PENALTIES.values(), "sqrt(z + 4)"])
def test_shipped_penalties(penalty, check):
    check(penalty)


@refimpl.testing.parametrize_with_checks(list(ACTIVATIONS.values()))
def test_shipped_activations(activation, check):
    check(activation)


def in_place(z):
    z *= 2
    return -np.exp(-z / 2)


class Counting:
    calls = 0

    def __call__(self, z):
        self.calls += 1
        return np.exp(-z) + self.calls


PENALTY_FAULTS = {
    "shapes": replace(EXP, derivative=lambda z: np.exp(-z[..., :1]) if z.size > 1 else np.exp(-z)),
    "finite": Rho("log z", lambda z: np.log(z), lambda z: 1 / (1 + z)),
    "pure": replace(EXP, value=in_place),
    "float32": replace(EXP, value=lambda z: -np.exp(-z) if z.dtype == np.float64 else -np.exp(-z) - 1e-2),
    "derivative": replace(EXP, derivative=lambda z: 1.01 * np.exp(-z)),
    "formula": replace(EXP, formula="-exp(-z) + z/1000"),
    "usable": Rho("falling", lambda z: -z, lambda z: -np.ones_like(z)),
    "nondecreasing": Rho("hump", lambda z: np.sin(np.minimum(z, 3.0)), lambda z: np.cos(np.minimum(z, 3.0)) * (z < 3)),
    "concave": Rho("square", lambda z: z**2, lambda z: 2 * z),
    "bernstein": replace(PENALTIES["epanechnikov"], bernstein=True),
    "descent": get_rho("1 - cos(z)"),
}
ACTIVATION_FAULTS = {
    "shapes": replace(SOFT, prox=lambda v, alpha: np.atleast_1d(SOFT.prox(v, alpha)).ravel()),
    "pure": replace(SOFT, penalty=lambda y: np.multiply(y, 1.5, out=y)),
    "finite": replace(SOFT, penalty=lambda y: np.where(np.abs(y) > 1, np.inf, 0.0)),
    "monotone": Activation("silu", np.zeros_like, lambda v, alpha: v / (1 + np.exp(-v))),
    "prox": replace(SOFT, prox=lambda v, alpha: np.sign(v) * np.maximum(np.abs(v) - 0.5, 0)),
    "descent": replace(SOFT, prox=lambda v, alpha: SOFT.prox(v, alpha) + 0.5),
}


@pytest.mark.parametrize("name", [check.name for check in penalty_checks()])
def test_a_faulty_penalty_is_rejected_by_the_check(name):
    check = next(check for check in penalty_checks() if check.name == name)
    with pytest.raises(CheckFailure, match=name) as failure:
        check(PENALTY_FAULTS[name])
    assert check.claim in str(failure.value)
    assert "derivations/" in str(failure.value)
    assert failure.value.smallest


@pytest.mark.parametrize("name", [check.name for check in activation_checks()])
def test_a_faulty_activation_is_rejected_by_the_check(name):
    check = next(check for check in activation_checks() if check.name == name)
    with pytest.raises(CheckFailure, match=name) as failure:
        check(ACTIVATION_FAULTS[name])
    assert failure.value.smallest


def test_an_answer_that_changes_is_rejected():
    check = next(check for check in penalty_checks() if check.name == "pure")
    with pytest.raises(CheckFailure, match="second time"):
        check(Rho("counting", lambda z: -np.exp(-z), Counting()))


def test_a_constant_derivative_may_be_a_scalar():
    check_rho(Rho("two z", lambda z: 2 * z, lambda z: 2.0))


def test_all_at_once():
    check_rho("log(z + 2)")
    check_activation("relu")
    with pytest.raises(CheckFailure):
        check_rho("z**2")
    with pytest.raises(CheckFailure):
        check_activation(ACTIVATION_FAULTS["prox"])


def test_results_do_not_stop_at_a_failure_or_a_crash():
    def crash(z):
        raise RuntimeError("no")

    outcome = list(results(Rho("crash", crash, crash), penalty_checks()))
    assert [result.name for result in outcome] == [check.name for check in penalty_checks()]
    assert not any(result.passed for result in outcome if result.name in ("shapes", "finite", "derivative", "concave"))
    assert "RuntimeError: no" in outcome[0].message


def test_any_object_with_a_value_and_a_derivative():
    class MyPenalty:
        def value(self, z):
            return np.log(z + 5)

        def derivative(self, z):
            return 1 / (z + 5)

    check_rho(MyPenalty())
    assert refimpl.AttentionEnergy(rho=MyPenalty()).rho.name == "MyPenalty"


def test_through_pytest(pytester):
    pytester.makepyfile(
        """
        import numpy as np, refimpl

        class MyPenalty:
            def value(self, z): return z**2
            def derivative(self, z): return 2 * z

        @refimpl.testing.parametrize_with_checks([MyPenalty(), refimpl.get_rho("sqrt(z + 1)")])
        def test_penalty(penalty, check): check(penalty)
        """
    )
    outcome = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider").parseoutcomes()
    assert outcome["passed"] + outcome["failed"] == 2 * len(penalty_checks())
    assert outcome["failed"] >= 1
