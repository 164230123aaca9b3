"""The suite's own expectations against central differences, without any engine."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from diface.testing import Scenario, default_scenarios
from diface.testing._callers import caller_of
from diface.testing._compare import as_numpy, inner, mismatches

DOUBLE = [s for s in default_scenarios() if s.dtype in ("float64", "complex128")]
NUMPY = caller_of("numpy")


def _value(scenario: Scenario, active: Any) -> Any:
    args = list(scenario.args)
    if isinstance(scenario.argnums, tuple):
        for n, arg in zip(scenario.argnums, active, strict=True):
            args[n] = arg
    else:
        args[scenario.argnums] = active
    y = scenario.f(*args)
    return y[0] if scenario.has_aux else y


def _moved(x: Any, t: Any, h: float) -> Any:
    """x + h t, through pytrees; what has no tangent stays."""
    if t is None:
        return x
    if isinstance(x, dict):
        return {key: _moved(x[key], t[key], h) for key in x}
    if isinstance(x, tuple):
        return tuple(_moved(a, b, h) for a, b in zip(x, t, strict=True))
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        names = [field.name for field in dataclasses.fields(x)]
        return dataclasses.replace(x, **{k: _moved(getattr(x, k), getattr(t, k), h) for k in names})
    return x + h * t


def _names() -> set[str]:
    return {s.name[:2] for s in default_scenarios()} | {"06"}  # 05 and 06 are one function


def test_every_row_is_there_in_both_precisions() -> None:
    assert _names() == {f"{n:02d}" for n in range(1, 23)}
    for single in ("float32", "complex64"):
        assert any(s.dtype == single for s in default_scenarios())


def test_names_are_unique() -> None:
    names = [s.name for s in default_scenarios()]
    assert len(set(names)) == len(names)


def test_the_published_numbers() -> None:
    row = next(s for s in DOUBLE if s.name == "05 06 power sums-float64")
    assert row.expected["value"] == 152814025
    assert row.expected["gradient"][0] == 282334
    steepest = next(s for s in DOUBLE if s.name.startswith("14 squared modulus of a number"))
    assert steepest.expected["gradient"] == 6 + 8j


@pytest.mark.parametrize("scenario", DOUBLE, ids=str)
def test_value(scenario: Scenario) -> None:
    y = _value(scenario, scenario.active)
    expected = as_numpy(scenario.expected["value"], NUMPY)
    for a, b in zip(expected, as_numpy(y, NUMPY), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("scenario", [s for s in DOUBLE if s.tangent is not None], ids=str)
def test_pushforward_and_hvp(scenario: Scenario) -> None:
    h = 1e-4
    points = [_moved(scenario.active, scenario.tangent, k * h) for k in (-1, 0, 1)]
    turns = [as_numpy(_value(scenario, point), NUMPY) for point in points]
    if "pushforward" in scenario.expected:
        tys = as_numpy(scenario.expected["pushforward"], NUMPY)
        for low, high, ty in zip(turns[0], turns[2], tys, strict=True):
            scale = max(np.max(np.abs(ty), initial=0), 1)
            np.testing.assert_allclose((high - low) / (2 * h), ty, atol=1e-5 * scale)
    if "hvp" in scenario.expected:
        (low,), (mid,), (high,) = turns
        curvature = inner(as_numpy(scenario.tangent, NUMPY), as_numpy(scenario.expected["hvp"], NUMPY))
        scale = max(abs(curvature), abs(float(mid)), 1)
        np.testing.assert_allclose((high - 2 * mid + low) / h**2, curvature, atol=1e-5 * scale)


@pytest.mark.parametrize("scenario", [s for s in DOUBLE if "pullback" in s.expected], ids=str)
def test_pullback_is_the_adjoint_of_the_pushforward(scenario: Scenario) -> None:
    left = inner(as_numpy(scenario.cotangent, NUMPY), as_numpy(scenario.expected["pushforward"], NUMPY))
    right = inner(as_numpy(scenario.expected["pullback"], NUMPY), as_numpy(scenario.tangent, NUMPY))
    assert left == pytest.approx(right, rel=1e-12, abs=1e-12)


def test_nan_is_within_no_tolerance() -> None:
    assert mismatches(np.zeros(2), np.array([0.0, np.nan]), 1.0, 1.0, NUMPY, None)
