"""Every engine passes every scenario: one test for each backend, scenario, operator and kind of arrays."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from diface import AutoAutograd, AutoFiniteDiff, AutoJAX, AutoTorch, Backend
from diface.testing import Case, Scenario, cases, default_scenarios
from tests.engines import require

ENGINES = ("jax", "torch", "autograd", "finite_diff", "complex_step")
VARIANTS: tuple[Backend, ...] = (
    AutoJAX(jit=False),
    AutoJAX(mode="forward"),
    AutoJAX(mode="reverse"),
    AutoTorch(mode="forward"),
    AutoTorch(mode="reverse"),
    AutoAutograd(mode="forward"),
    AutoAutograd(mode="reverse"),
    AutoFiniteDiff(method="forward"),
)
NATIVE = (
    ("jax", "jax"), ("torch", "torch"), ("torch", "jax"), ("finite_diff", "torch"), ("finite_diff", "jax"),
)  # fmt: skip

# What differs by mode and by kind of arrays: one of each shape of argument and result, no more.
FEW_ROWS = ("01", "05", "08", "09", "12", "14", "15", "16", "17", "19", "21", "22")
FEW_OPERATORS = (
    "value_and_gradient", "value_and_derivative", "value_and_jacobian", "value_and_pushforward",
    "value_and_pullback", "value_and_pullback_function", "batched_pushforward", "batched_pullback",
    "gradient_and_hvp", "value_gradient_and_hessian",
)  # fmt: skip


def few() -> list[Scenario]:
    found: dict[str, Scenario] = {}
    for scenario in default_scenarios():
        if scenario.name[:2] in FEW_ROWS and scenario.dtype in ("float64", "complex128"):
            found.setdefault(scenario.name[:2] if scenario.name[:2] != "16" else scenario.name, scenario)
    return list(found.values())


def installed(backend: Backend | str) -> bool:
    module = _module(backend)
    return not module or importlib.util.find_spec(module) is not None


def _module(backend: Backend | str) -> str:
    name = backend if isinstance(backend, str) else backend.name
    return name if name in ("jax", "torch", "autograd") else ""


def loads(backend: Backend | str) -> bool:
    """Whether the engine is there and works; ``test_the_engine_is_here`` tells of one that is not."""
    if not installed(backend):
        return False
    try:
        cases([backend], [])
    except Exception:  # one broken engine must not take the tests of the others with it
        return False
    return True


def collect() -> Iterator[Case]:
    for engine in filter(loads, ENGINES):
        yield from cases([engine])
    for variant in filter(loads, VARIANTS):
        yield from cases([variant], few(), operators=FEW_OPERATORS)
    for backend, caller in NATIVE:
        if loads(backend) and loads(caller):
            yield from cases([backend], few(), operators=FEW_OPERATORS, callers=[caller])


@pytest.mark.parametrize("name", ENGINES)
def test_the_engine_is_here(name: str) -> None:
    # Without this, an engine that is missing or broken would leave no trace but fewer tests.
    if _module(name):
        require(_module(name))
    assert cases([name])


@pytest.mark.parametrize("case", [pytest.param(case, id=str(case)) for case in collect()])
def test_conformance(case: Case) -> None:
    if case.gap is not None:
        pytest.skip(f"declared gap: {case.gap}")
    case.check()
