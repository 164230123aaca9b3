"""Every host differentiates through every guest, and through guests inside guests."""

from __future__ import annotations

import pytest

from diface.testing import Case, wrapped_cases
from diface.testing._wrapped import must_be_opaque
from tests.conformance.test_conformance import ENGINES, few, loads

HOSTS = ("jax", "torch", "autograd", "finite_diff", "complex_step")
# Chains are long to compile: one scenario of each kind of result, first and second order.
DEEP_OPERATORS = ("value_and_gradient", "value_and_jacobian", "batched_pullback", "value_gradient_and_hessian")
# What the conformance suite checks of a host alone need not be checked again of each of its guests.
PAIR_OPERATORS = (
    "value_and_gradient", "value_and_derivative", "value_and_jacobian", "value_and_pullback", "batched_pushforward",
    "batched_pullback", "gradient_and_hvp",
)  # fmt: skip
DEEP_ROWS = ("05", "08", "15")


def pairs() -> list[Case]:
    here = [name for name in ENGINES if loads(name)]
    return wrapped_cases([name for name in HOSTS if name in here], here, few(), operators=PAIR_OPERATORS)


def chains() -> list[Case]:
    here = [name for name in ENGINES if loads(name)]
    rows = [scenario for scenario in few() if scenario.name[:2] in DEEP_ROWS]
    hosts = [name for name in ("jax", "torch", "autograd") if name in here]
    return wrapped_cases(hosts, here, rows, depth=2, operators=DEEP_OPERATORS)


def skip_gaps(case: Case) -> None:
    if case.gap is not None:
        pytest.skip(f"declared gap: {case.gap}")
    engines = [engine.name for engine in (case.backend, *case.guests)]
    if engines == ["complex_step", "torch"] and case.scenario.name[:2] in ("12", "19", "22"):
        pytest.skip("declared gap: torch neither compares complex numbers nor multiplies them by a real matrix")


@pytest.mark.parametrize("case", [pytest.param(case, id=str(case)) for case in pairs()])
def test_pair(case: Case) -> None:
    skip_gaps(case)
    must_be_opaque(case)
    case.check()


@pytest.mark.parametrize("case", [pytest.param(case, id=str(case)) for case in chains()])
def test_chain(case: Case) -> None:
    skip_gaps(case)
    case.check()
