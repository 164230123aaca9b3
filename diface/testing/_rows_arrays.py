"""Rows 1 to 13: numbers and arrays, elementwise functions, sums, differences and quadratic forms."""

from __future__ import annotations

from typing import Any

import numpy as np

from diface import array_namespace
from diface.testing._building import BRIEF, V, array_scenario
from diface.testing._scenario import Scenario

__all__ = ["array_rows"]

X, DX, DY = 0.42, 3.14, -1 / 12
UNEVEN = np.array([1.0, 3.0, 4.0, 8.0, 9.0, 15.0])
"""As ``V`` for the differences: their derivatives would all be alike at ``V``."""


def sine(x: Any) -> Any:
    return array_namespace(x).sin(x)


def two_sines(x: Any) -> Any:
    xp = array_namespace(x)
    return xp.stack([xp.sin(x), xp.sin(2 * x)])


def four_sines(x: Any) -> Any:
    return array_namespace(x).stack([two_sines(x), two_sines(3 * x)])


def power_sums(x: Any) -> Any:
    xp = array_namespace(x)
    return xp.sum(x**4) * xp.sum(x**6)


def sine_and_cosine(x: Any) -> Any:
    xp = array_namespace(x)
    flat = xp.reshape(x, (6,))
    return xp.concatenate([xp.sin(flat), xp.cos(flat)])


def sine_and_cosine_matrix(x: Any) -> Any:
    return array_namespace(x).reshape(sine_and_cosine(x), (6, 2))


def squared_differences(x: Any) -> Any:
    return (x[1:] - x[:-1]) ** 2


def cubed_differences(x: Any) -> Any:
    return (x[1:] - x[:-1]) ** 3


def sum_of_cubed_differences(x: Any) -> Any:
    return array_namespace(x).sum(cubed_differences(x))


def banded(x: Any, A: Any) -> Any:
    return A @ (x * x)


def quartic_form(x: Any, A: Any) -> Any:
    v = x * x
    return array_namespace(x).sum(v * (A @ v))


def array_rows(dtype: str) -> list[Scenario]:
    """The scenarios of rows 1 to 13 in one precision."""
    only = () if dtype == "float64" else BRIEF
    return [*_numbers(dtype, only), *_sums(dtype, only), *_vectors(dtype, only), *_matrices(dtype, only)]


def _h1(x: Any) -> Any:
    return np.array([np.cos(x), 2 * np.cos(2 * x)])


def _h2(x: Any) -> Any:
    return np.array([-np.sin(x), -4 * np.sin(2 * x)])


def _numbers(dtype: str, only: tuple[str, ...]) -> list[Scenario]:
    kinds = ("python", "array") if dtype == "float64" else ("array", "scalar")
    rows = []
    for kind in kinds:
        suffix = " scalar" if kind == "scalar" else ""
        rows += [
            array_scenario(
                f"01 sine{suffix}", sine, X, dtype, value=np.sin, jacobian=np.cos,
                second=lambda x: -np.sin(x), tangent=DX, cotangent=DY, kind=kind, only=only,
            ),
            array_scenario(
                f"03 two sines{suffix}", two_sines, X, dtype,
                value=lambda x: np.array([np.sin(x), np.sin(2 * x)]),
                jacobian=_h1, second=_h2, tangent=DX, cotangent=np.array([-3.0, 4.0]), kind=kind, only=only,
            ),
        ]
    one = array_scenario(
        "02 sine of one", sine, np.array([X]), dtype, value=np.sin, jacobian=lambda x: np.cos(x)[:, None],
        tangent=np.array([DX]), cotangent=np.array([DY]), only=only,
    )
    four = array_scenario(
        "04 four sines", four_sines, X, dtype,
        value=lambda x: np.sin(np.array([[1.0, 2.0], [3.0, 6.0]]) * x),
        jacobian=lambda x: np.stack([_h1(x), 3 * _h1(3 * x)]),
        second=lambda x: np.stack([_h2(x), 9 * _h2(3 * x)]),
        tangent=DX, only=only,
    )
    return [*rows, one, four]


def _power_gradient(x: Any) -> Any:
    A, B = np.sum(x**4), np.sum(x**6)
    return 4 * x**3 * B + 6 * x**5 * A


def _power_hessian(x: Any) -> Any:
    v = x.ravel()
    A, B = np.sum(v**4), np.sum(v**6)
    cross = np.outer(v**3, v**5)
    return (24 * (cross + cross.T) + np.diag(12 * v**2 * B + 30 * v**4 * A)).reshape(x.shape + x.shape)


def _sums(dtype: str, only: tuple[str, ...]) -> list[Scenario]:
    return [
        array_scenario(
            name, power_sums, x, dtype, value=lambda x: np.sum(x**4) * np.sum(x**6),
            jacobian=_power_gradient, hessian=_power_hessian, cotangent=DY, only=only,
        )
        for name, x in (("05 06 power sums", V), ("07 power sums of a matrix", V.reshape(2, 3)))
    ]


def _sine_cosine_jacobian(x: Any) -> Any:
    v = x.ravel()
    return np.concatenate([np.diag(np.cos(v)), np.diag(-np.sin(v))])


def _vectors(dtype: str, only: tuple[str, ...]) -> list[Scenario]:
    rows = []
    for name, f, x, out in (
        ("08 sine and cosine", sine_and_cosine, V, (12,)),
        ("09 vector to matrix", sine_and_cosine_matrix, V, (6, 2)),
        ("09 matrix to vector", sine_and_cosine, V.reshape(2, 3), (12,)),
        ("09 matrix to matrix", sine_and_cosine_matrix, V.reshape(2, 3), (6, 2)),
    ):
        rows.append(
            array_scenario(
                name, f, x, dtype,
                value=lambda x, out=out: np.concatenate([np.sin(x.ravel()), np.cos(x.ravel())]).reshape(out),
                jacobian=lambda x, out=out: _sine_cosine_jacobian(x).reshape(out + x.shape), only=only,
            )
        )
    rows += [
        array_scenario(
            "10 squared differences", squared_differences, UNEVEN, dtype, value=lambda x: np.diff(x) ** 2,
            jacobian=lambda x: 2 * np.diff(x)[:, None] * _step(x), only=only,
        ),
        array_scenario(
            "10 cubed differences", cubed_differences, UNEVEN, dtype, value=lambda x: np.diff(x) ** 3,
            jacobian=lambda x: 3 * np.diff(x)[:, None] ** 2 * _step(x), only=only,
        ),
        array_scenario(
            "11 sum of cubed differences", sum_of_cubed_differences, UNEVEN, dtype,
            value=lambda x: np.sum(np.diff(x) ** 3),
            jacobian=lambda x: 3 * np.diff(x) ** 2 @ _step(x),
            hessian=lambda x: _step(x).T @ (6 * np.diff(x)[:, None] * _step(x)), only=only,
        ),
    ]
    return rows


def _step(x: Any) -> Any:
    """The matrix of ``np.diff``."""
    return np.diff(np.eye(len(x)), axis=0)


def _quartic_hessian(x: Any, A: Any) -> Any:
    S = A + A.T
    H = 4 * S * np.outer(x, x)
    off = S - np.diag(np.diag(S))
    H[np.diag_indices(len(x))] = 12 * np.diag(A) * x**2 + 2 * off @ x**2
    return H


def _matrices(dtype: str, only: tuple[str, ...]) -> list[Scenario]:
    n = 50
    band = np.diag(np.linspace(1, 2, n)) + np.diag(np.linspace(-1, 1, n - 1), 1) - 0.5 * np.eye(n, k=-2)
    form = np.array([[2.0, 1.0, 0.0, -1.0, 3.0], [0.0, -1.0, 2.0, 0.5, 1.0], [1.0, 4.0, 1.5, 0.0, -2.0],
                     [2.0, 0.0, -3.0, 1.0, 0.25], [-1.0, 1.0, 2.0, 0.0, 0.75]])  # fmt: skip
    return [
        array_scenario(
            "12 banded", banded, np.linspace(-1.0, 2.0, n), dtype, constants=(band,),
            value=lambda x, A: A @ x**2, jacobian=lambda x, A: 2 * A * x, only=only,
        ),
        array_scenario(
            "13 quartic form", quartic_form, V[:5] / 2, dtype, constants=(form,),
            value=lambda x, A: x**2 @ A @ x**2, jacobian=lambda x, A: 2 * x * ((A + A.T) @ x**2),
            hessian=_quartic_hessian, cotangent=DY, only=only,
        ),
    ]
