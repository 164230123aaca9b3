"""Finite differences: accuracy by dtype and order, steps, executors, progress, and what f may do."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import diface
from diface import AutoFiniteDiff
from tests.engines import require


def f(x: Any) -> Any:
    return np.sum(np.sin(x) * x)


def df(x: Any) -> Any:
    return np.cos(x) * x + np.sin(x)


def slow_square(x: Any) -> Any:
    """At the top of the module, so that another process can import it."""
    return (x**2).sum()


@pytest.mark.parametrize(
    ("method", "dtype", "tolerance"),
    [
        ("central", "float64", 1e-9), ("forward", "float64", 1e-6), ("central", "float32", 5e-4),
        ("forward", "float32", 2e-2), ("central", "float16", 1e-1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_accuracy(method: Any, dtype: str, tolerance: float, scale: float) -> None:
    x = (np.linspace(0.5, 2.0, 7) * scale).astype(dtype)

    def g(x: Any) -> Any:
        return ((x / scale) ** 3).sum()

    expected = 3 * (x.astype(float) / scale) ** 2 / scale
    if dtype == "float16" and scale > 1:
        pytest.skip("1e4 cubed is more than float16 can hold")
    out = diface.gradient(g, AutoFiniteDiff(method=method), x)
    assert out.dtype == x.dtype
    np.testing.assert_allclose(out, expected, rtol=tolerance)


def test_elements_of_very_different_size_get_steps_of_their_own() -> None:
    x = np.array([1e-3, 1.0, 1e6])
    J = diface.jacobian(lambda x: x**2 / 2, "finite_diff", x)
    np.testing.assert_allclose(np.diag(J), x, rtol=1e-6)


def test_the_order_of_the_error() -> None:
    x = np.array([1.0])
    errors = {}
    for method in ("central", "forward"):
        errors[method] = [
            abs(diface.gradient(lambda x: np.exp(x).sum(), AutoFiniteDiff(method=method, step=h), x)[0] - np.e)
            for h in (1e-2, 1e-3)
        ]
    assert 80 < errors["central"][0] / errors["central"][1] < 120
    assert 8 < errors["forward"][0] / errors["forward"][1] < 12


def test_the_step_is_the_step() -> None:
    seen: list[float] = []

    def g(x: Any) -> Any:
        seen.append(float(x[0]))
        return x.sum()

    diface.gradient(g, AutoFiniteDiff(step=0.125), np.array([1.0]))
    assert sorted(seen) == [0.875, 1.0, 1.125]


def test_second_order() -> None:
    x = np.array([0.3, 1.2, -0.7])

    def g(x: Any) -> Any:
        return x[0] ** 3 * x[1] + np.exp(x[1] * x[2])

    e = np.exp(x[1] * x[2])
    H = np.array([
        [6 * x[0] * x[1], 3 * x[0] ** 2, 0.0],
        [3 * x[0] ** 2, x[2] ** 2 * e, e + x[1] * x[2] * e],
        [0.0, e + x[1] * x[2] * e, x[1] ** 2 * e],
    ])  # fmt: skip
    np.testing.assert_allclose(diface.hessian(g, "finite_diff", x), H, atol=1e-6)
    v = np.array([1.0, -2.0, 0.5])
    np.testing.assert_allclose(diface.hvp(g, "finite_diff", x, tangent=v), H @ v, atol=1e-6)
    y, dy, d2y = diface.value_derivative_and_second_derivative(np.sin, "finite_diff", 0.7)
    assert y == np.sin(0.7)
    assert abs(dy - np.cos(0.7)) < 1e-9
    assert abs(d2y + np.sin(0.7)) < 1e-6


def test_number_of_evaluations() -> None:
    runs = []

    def g(x: Any) -> Any:
        runs.append(1)
        return x.sum()

    diface.value_and_gradient(g, "finite_diff", np.ones(5))
    assert len(runs) == 11
    runs.clear()
    diface.value_and_gradient(g, AutoFiniteDiff(method="forward"), np.ones(5))
    assert len(runs) == 6


def test_threads() -> None:
    x = np.linspace(0, 1, 9)
    with ThreadPoolExecutor(2) as pool:
        y, g = diface.value_and_gradient(f, AutoFiniteDiff(executor=pool), x)
        np.testing.assert_allclose(g, df(x), rtol=1e-8, atol=1e-9)
        H = diface.hessian(slow_square, AutoFiniteDiff(executor=pool), x[:3])
        (gt, aux) = diface.gradient(lambda t: ((t["a"] ** 2).sum(), "aux"), AutoFiniteDiff(executor=pool),
                                    {"a": x}, has_aux=True)
    np.testing.assert_allclose(H, 2 * np.eye(3), atol=1e-5)
    np.testing.assert_allclose(gt["a"], 2 * x, rtol=1e-8, atol=1e-9)
    assert aux == "aux"
    assert y == f(x)


def test_processes() -> None:
    x = np.linspace(0, 1, 3)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        g = diface.gradient(slow_square, AutoFiniteDiff(executor=pool), x)
    np.testing.assert_allclose(g, 2 * x, atol=1e-9)


def test_an_error_in_a_worker_reaches_the_caller() -> None:
    def broken(x: Any) -> Any:
        if x[0] != 1.0:
            raise LookupError("no such point")
        return x.sum()

    with ThreadPoolExecutor(2) as pool, pytest.raises(LookupError, match="no such point"):
        diface.gradient(broken, AutoFiniteDiff(executor=pool), np.ones(3))


def test_progress(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rich")
    diface.gradient(slow_square, AutoFiniteDiff(progress=True), np.ones(3))
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "finite differences" in captured.err


@pytest.mark.parametrize("make", ["numpy", "torch", "jax"])
def test_the_function_gets_the_callers_own_arrays(make: str) -> None:
    module = np if make == "numpy" else require(make)
    kind = {"numpy": "ndarray", "torch": "Tensor", "jax": "ArrayImpl"}[make]
    array = (module.numpy.asarray if make == "jax" else module.asarray)([1.0, 2.0])
    seen = set()

    def g(x: Any) -> Any:
        seen.add(type(x).__name__)
        return (x**2).sum()

    out = diface.gradient(g, "finite_diff", array)
    assert seen == {kind}
    assert type(out) is type(array)
    np.testing.assert_allclose(np.asarray(out), [2.0, 4.0], rtol=2e-2)


def test_writing_into_the_argument_is_safe() -> None:
    x = np.array([1.0, 2.0])

    def doubling(x: Any) -> Any:
        x *= 2
        return (x**2).sum()

    np.testing.assert_allclose(diface.gradient(doubling, "finite_diff", x), [8.0, 16.0], rtol=1e-8)
    np.testing.assert_array_equal(x, [1.0, 2.0])


def test_nan_and_inf_are_not_hidden() -> None:
    assert np.isnan(diface.gradient(f, "finite_diff", np.array([1.0, np.nan]))).all()
    with np.errstate(invalid="ignore"):
        out = diface.gradient(lambda x: np.log(x).sum(), "finite_diff", np.array([-1.0]))
    assert np.isnan(out).all()


def test_complex_numbers() -> None:
    z = np.array([1 + 2j, -0.5j])
    H = diface.hvp(lambda z: np.sum(np.abs(z) ** 2), "finite_diff", z, tangent=np.array([1 + 1j, 2j]))
    np.testing.assert_allclose(H, 2 * np.array([1 + 1j, 2j]), atol=1e-5)
    J = diface.jacobian(lambda z: z**2, "finite_diff", z)
    np.testing.assert_allclose(J, np.diag(2 * z), atol=1e-8)


def test_warns_of_very_many_evaluations() -> None:
    with pytest.warns(diface.errors.PerformanceWarning, match=r"no reverse mode, so this takes 1500 pushforwards"):
        diface.gradient(lambda x: x.sum(), "finite_diff", np.ones(1500))
