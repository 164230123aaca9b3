"""The complex step: machine precision on analytic functions, an error on all others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import diface
from diface.errors import NotDifferentiableError, UnsupportedError

CS = "complex_step"
x = np.array([0.3, 1.2, 2.5])


def test_machine_precision() -> None:
    g = diface.gradient(lambda x: np.sum(np.exp(x) / np.sqrt(np.sin(x) ** 3 + np.cos(x) ** 3 + 3)), CS, x)
    s, c = np.sin(x), np.cos(x)
    u = s**3 + c**3 + 3
    expected = np.exp(x) / np.sqrt(u) - np.exp(x) * (3 * s**2 * c - 3 * c**2 * s) / (2 * u**1.5)
    np.testing.assert_allclose(g, expected, rtol=1e-15)


def test_single_precision() -> None:
    v = x.astype(np.float32)
    g = diface.gradient(lambda v: np.sum(np.sin(v) * v), CS, v)
    assert g.dtype == np.float32
    np.testing.assert_allclose(g, np.cos(v) * v + np.sin(v), rtol=1e-6)


def test_linear_algebra() -> None:
    A = np.array([[2.0, 0.3], [0.1, 1.5]])
    g = diface.gradient(lambda A: np.linalg.solve(A, np.ones(2)).sum(), CS, A)
    inverse = np.linalg.inv(A)
    np.testing.assert_allclose(g, -np.outer(inverse.sum(0), inverse @ np.ones(2)), rtol=1e-14)


def test_second_order() -> None:
    H = diface.hessian(lambda x: np.sum(np.sin(x)) * x[0], CS, x)
    expected = -np.diag(np.sin(x)) * x[0]
    expected[0] += np.cos(x)
    expected[:, 0] += np.cos(x)
    np.testing.assert_allclose(H, expected, atol=1e-9)
    assert abs(diface.second_derivative(np.sin, CS, 0.42) + np.sin(0.42)) < 1e-10


def test_constants_have_zero_derivatives() -> None:
    np.testing.assert_array_equal(diface.gradient(lambda x: 3.0, CS, x), np.zeros(3))
    np.testing.assert_array_equal(diface.jacobian(lambda x: np.ones(2), CS, x), np.zeros((2, 3)))


def test_branches_on_values() -> None:
    def relu(x: Any) -> Any:
        return np.sum(np.where(x > 1, x**2, 0 * x))

    np.testing.assert_allclose(diface.gradient(relu, CS, x), np.where(x > 1, 2 * x, 0), rtol=1e-14)


NOT_ANALYTIC = {
    "abs": lambda x: np.sum(np.abs(x)),
    "abs2": lambda x: np.sum(np.abs(x) ** 2),
    "norm": lambda x: np.linalg.norm(x),
    "real": lambda x: np.sum(np.real(x) ** 2),
    "angle": lambda x: np.sum(np.angle(x)) + np.sum(x.real),
    "conj": lambda x: np.sum(np.conj(x) * x),
    "cast": lambda x: np.sum(x.astype(np.float64) ** 2),
    "assignment": lambda x: _into_real(x),
    "float": lambda x: float(x[0]) * 2.0,
    "eigvalsh": lambda x: np.sum(np.linalg.eigvalsh(np.outer(x, x) + np.diag(x)) ** 2),
}


def _into_real(x: Any) -> Any:
    out = np.zeros(3)
    out[:] = x
    return np.sum(out**2)


@pytest.mark.parametrize("name", list(NOT_ANALYTIC))
def test_functions_that_are_not_analytic_are_refused(name: str) -> None:
    with pytest.raises(NotDifferentiableError, match=r"complex_step: .*analytic function.*AutoFiniteDiff"):
        diface.gradient(NOT_ANALYTIC[name], CS, x)


def test_complex_arguments_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"x has dtype complex128; float32 or float64 was expected"):
        diface.gradient(lambda z: np.sum(np.abs(z)), CS, x + 1j)


def test_other_precisions_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"x has dtype float16"):
        diface.gradient(lambda v: np.sum(v**2), CS, x.astype(np.float16))


def test_nan_is_not_hidden() -> None:
    assert np.isnan(diface.gradient(lambda x: np.sum(x**2), CS, np.array([np.nan, 1.0]))[0])
