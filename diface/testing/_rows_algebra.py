"""Rows 14, 18, 19, 20 and 22: complex numbers, linear algebra, branches and loops."""

from __future__ import annotations

from typing import Any

import numpy as np

from diface import array_namespace
from diface.testing._building import BRIEF, array_scenario, batch_like, cast, pattern
from diface.testing._scenario import Scenario

__all__ = ["algebra_rows"]

_FIRST_ORDER = ("value_and_jacobian", "value_and_pushforward", "value_and_pullback")


def square(z: Any) -> Any:
    return z * z


def squared_modulus(z: Any) -> Any:
    xp = array_namespace(z)
    return xp.sum(xp.real(z * xp.conj(z)))


def solve(x: Any, A: Any, b: Any) -> Any:
    return array_namespace(x).linalg.solve(A + x[:, None] * x[None, :], b)


def log_determinant(X: Any) -> Any:
    xp = array_namespace(X)
    return xp.log(xp.linalg.det(X))


def eigenvalues(X: Any) -> Any:
    # eigh and not eigvalsh: autograd has a rule for the former alone.
    return array_namespace(X).linalg.eigh((X + X.T) / 2)[0]


def signed_square(x: Any) -> Any:
    xp = array_namespace(x)
    return xp.where(xp.sum(x) > 0, x * x, -x * x)


def signed_square_by_if(x: Any) -> Any:
    if array_namespace(x).sum(x) > 0:
        return x * x
    return -x * x


def long_loop(x: Any) -> Any:
    xp = array_namespace(x)
    for _ in range(200):
        x = x + 0.01 * xp.sin(x)
    return x


def square_times(X: Any, B: Any) -> Any:
    return X @ X @ B


def algebra_rows(dtype: str) -> list[Scenario]:
    """The scenarios of these rows in one precision."""
    only = () if dtype == "float64" else BRIEF
    return [*_complex(dtype, only), *_linalg(dtype, only), *_branches(dtype, only), *_products(dtype, only)]


def _complex(dtype: str, only: tuple[str, ...]) -> list[Scenario]:
    kind = {"float64": "complex128", "float32": "complex64"}[dtype]
    z = np.array([3 + 4j, -1 + 0.5j, 0.25 - 2j])
    rows = [
        array_scenario(
            "14 complex square", square, z, kind, value=lambda z: z**2, jacobian=lambda z: np.diag(2 * z),
            tangent=pattern(z.shape, 1, "complex128"), needs=("complex",), only=only,
        ),
        _modulus("14 squared modulus", z, kind, "array", only),
    ]
    if dtype == "float64":
        rows.append(_modulus("14 squared modulus of a number", np.asarray(3 + 4j), kind, "python", only))
    return rows


def _modulus(name: str, z: Any, dtype: str, kind: str, only: tuple[str, ...]) -> Scenario:
    """|z|²: not analytic, so its derivatives are linear over the reals alone."""
    real = {"complex128": "float64", "complex64": "float32"}[dtype]
    t = pattern(z.shape, 1, "complex128")
    ts, cs = batch_like(t, "complex128"), batch_like(np.asarray(-1 / 12), "float64")
    axes = tuple(range(1, ts.ndim))
    return Scenario(
        f"{name}-{dtype if kind == 'array' else kind}",
        squared_modulus,
        (cast(z, dtype, kind),),
        {
            "value": cast(np.sum(abs(z) ** 2), real, kind),
            "gradient": cast(2 * z, dtype, kind),
            "pushforward": cast(np.sum(2 * (z.conj() * t).real), real, kind),
            "pullback": cast(2 * z * (-1 / 12), dtype, kind),
            "hvp": cast(2 * t, dtype, kind),
            "batched_pushforward": cast(np.sum(2 * (z.conj() * ts).real, axis=axes), real),
            "batched_pullback": cast(2 * np.multiply.outer(cs, z), dtype),
            "batched_hvp": cast(2 * ts, dtype),
        },
        tangent=cast(t, dtype, kind),
        cotangent=cast(-1 / 12, real, kind),
        tangents=cast(ts, dtype),
        cotangents=cast(cs, real),
        dtype=dtype,
        needs=frozenset({"complex"}),
        only=only,
    )


def _solve_jacobian(x: Any, A: Any, b: Any) -> Any:
    inverse = np.linalg.inv(A + np.outer(x, x))
    y = inverse @ b
    return -(inverse * (x @ y) + np.outer(inverse @ x, y))


def _eigen_jacobian(X: Any) -> Any:
    _, V = np.linalg.eigh((X + X.T) / 2)
    return np.einsum("ik,jk->kij", V, V)


def _linalg(dtype: str, only: tuple[str, ...]) -> list[Scenario]:
    A = np.array([[4.0, 1.0, -0.5], [0.5, 3.0, 1.0], [-1.0, 0.25, 5.0]])
    return [
        array_scenario(
            "18 solve", solve, np.array([0.3, -0.7, 1.1]), dtype, constants=(A, np.array([1.0, -2.0, 0.5])),
            value=lambda x, A, b: np.linalg.solve(A + np.outer(x, x), b), jacobian=_solve_jacobian,
            prepare=3, needs=("linalg",), tolerance="linalg", only=only, differences=True,
        ),
        array_scenario(
            "18 log determinant", log_determinant, A, dtype, value=lambda X: np.log(np.linalg.det(X)),
            jacobian=lambda X: np.linalg.inv(X).T,
            hessian=lambda X: -np.einsum("jk,li->ijkl", np.linalg.inv(X), np.linalg.inv(X)),
            prepare=3, needs=("linalg",), tolerance="linalg", only=only, differences=True,
        ),
        array_scenario(
            "18 eigenvalues", eigenvalues, A, dtype, value=lambda X: np.linalg.eigvalsh((X + X.T) / 2),
            jacobian=_eigen_jacobian, prepare=3, needs=("linalg", "hermitian"), tolerance="linalg", only=only,
            differences=True,
        ),
    ]


def _branches(dtype: str, only: tuple[str, ...]) -> list[Scenario]:
    x = np.array([1.5, -0.5, 2.0])
    rows = []
    for name, f in (("where", signed_square), ("if", signed_square_by_if)):
        for side, sign in (("positive", 1), ("negative", -1)):
            rows.append(
                array_scenario(
                    f"19 {name} {side}", f, sign * x, dtype, value=lambda x, s=sign: s * x**2,
                    jacobian=lambda x, s=sign: np.diag(2 * s * x), prepare=-3, needs=("branch",), only=only,
                )
            )
    return rows


def _loop_value(x: Any) -> Any:
    for _ in range(200):
        x = x + 0.01 * np.sin(x)
    return x


def _loop_jacobian(x: Any) -> Any:
    slope = np.ones_like(x)
    for _ in range(200):
        slope = slope * (1 + 0.01 * np.cos(x))
        x = x + 0.01 * np.sin(x)
    return np.diag(slope)


def _products(dtype: str, only: tuple[str, ...]) -> list[Scenario]:
    X = np.array([[1.0, 2.0, -1.0], [0.5, -3.0, 0.25], [2.0, 1.0, 0.0]])
    B = np.array([[1.0, -2.0], [0.5, 3.0], [4.0, 0.0]])
    return [
        # Compiling 200 steps takes most of a second: one operator for each mode.
        array_scenario(
            "20 long loop", long_loop, np.array([0.42, 1.3, -2.0]), dtype, value=_loop_value,
            jacobian=_loop_jacobian, tolerance="loop", differences=True,
            only=_FIRST_ORDER if dtype == "float64" else _FIRST_ORDER[1:],
        ),
        array_scenario(
            "22 matrix product", square_times, X, dtype, constants=(B,), value=lambda X, B: X @ X @ B,
            jacobian=lambda X, B: np.einsum("ik,lj->ijkl", np.eye(3), X @ B) + np.einsum("ik,lj->ijkl", X, B),
            tangent=pattern((3, 3), 1), only=only,
        ),
    ]
