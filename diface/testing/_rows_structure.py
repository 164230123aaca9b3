"""Rows 15, 16, 17 and 21: pytrees, trivial functions, several arguments and auxiliary results."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from diface import array_namespace
from diface.testing._building import BATCH, BRIEF, V, array_scenario, pattern
from diface.testing._scenario import Scenario, map_arrays

__all__ = ["Pair", "structure_rows"]


@dataclasses.dataclass
class Pair:
    """An argument that is a dataclass."""

    a: Any
    b: Any


def _read_dict(p: Any) -> tuple[Any, Any]:
    return p["a"], p["b"]


def _read_nested(p: Any) -> tuple[Any, Any]:
    (a,), (_, (b,)) = p
    return a, b


def _read_pair(p: Any) -> tuple[Any, Any]:
    return p.a, p.b


def sines(p: Any, read: Callable[[Any], tuple[Any, Any]]) -> Any:
    a, b = read(p)
    xp = array_namespace(a)
    return xp.sum(xp.sin(a)) + xp.sum(xp.cos(b))


def sines_of_dict(p: Any) -> Any:
    return sines(p, _read_dict)


def sines_of_nested(p: Any) -> Any:
    return sines(p, _read_nested)


def sines_of_pair(p: Any) -> Any:
    return sines(p, _read_pair)


def dict_to_dict(p: Any) -> Any:
    xp = array_namespace(p["a"])
    return {"product": p["a"] * xp.sum(p["b"]), "squares": p["b"] ** 2}


def identity(x: Any) -> Any:
    return x


def total(x: Any) -> Any:
    return array_namespace(x).sum(x)


def copied(x: Any) -> Any:
    return x + 0.0


def constant_array(x: Any) -> Any:
    return 2 * array_namespace(x).ones_like(x)


def constant_number(x: Any) -> float:
    return 3.0


def product(x: Any, c: Any) -> Any:
    return x * c


def inner(x: Any, c: Any) -> Any:
    return array_namespace(x).sum(x * x * c)


def cube_sum_with_name(x: Any) -> Any:
    return array_namespace(x).sum(x**3), "row 21"


def cube_sum_with_integers(x: Any) -> Any:
    return array_namespace(x).sum(x**3), np.array([1, 2**40, 3])


def cube_sum_with_dict(x: Any) -> Any:
    return array_namespace(x).sum(x**3), {"name": "row 21", "count": 3, "twice": 2 * x, "none": None}


def structure_rows(dtype: str) -> list[Scenario]:
    """The scenarios of these rows in one precision."""
    only = () if dtype == "float64" else BRIEF
    return [*_trees(dtype, only), *_trivial(dtype, only), *_arguments(dtype, only), *_auxiliary(dtype, only)]


# ---- 15 ------------------------------------------------------------------------------------


def _trees(dtype: str, only: tuple[str, ...]) -> list[Scenario]:
    def both(make: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
        return make(np.asarray(a, dtype), np.asarray(b, dtype))

    a, b = V.reshape(2, 3) / 4, np.array([0.3, -1.0, 2.0, 0.7])
    ta, tb = pattern((2, 3), 1), pattern((4,), 2)
    tas, tbs = pattern((BATCH, 2, 3), 3), pattern((BATCH, 4), 4)
    ga, gb = np.cos(a), -np.sin(b)
    value, c, cs = np.sum(np.sin(a)) + np.sum(np.cos(b)), -1 / 12, pattern((BATCH,), 1)
    Haa = np.diag(-np.sin(a).ravel()).reshape(2, 3, 2, 3)
    Hbb = np.diag(-np.cos(b))
    rows = []
    for name, f, make in (
        ("15 dict", sines_of_dict, lambda a, b: {"a": a, "b": b}),
        ("15 nested tuples", sines_of_nested, lambda a, b: ((a,), ("text", (b,)))),
        ("15 dataclass", sines_of_pair, Pair),
    ):
        # A leaf that is no array has no derivative.
        grad = make if name != "15 nested tuples" else lambda a, b: ((a,), (None, (b,)))
        first = both(grad, Haa, np.zeros((2, 3, 4)))
        expected = {
            "value": np.asarray(value, dtype),
            "gradient": both(grad, ga, gb),
            "pushforward": np.asarray(np.sum(ga * ta) + np.sum(gb * tb), dtype),
            "pullback": both(grad, ga * c, gb * c),
            "hvp": both(grad, -np.sin(a) * ta, -np.cos(b) * tb),
            "hessian": grad(first, both(grad, np.zeros((4, 2, 3)), Hbb)),
            "batched_pushforward": np.asarray(np.sum(ga * tas, (1, 2)) + np.sum(gb * tbs, 1), dtype),
            "batched_pullback": both(grad, np.multiply.outer(cs, ga), np.multiply.outer(cs, gb)),
            "batched_hvp": both(grad, -np.sin(a) * tas, -np.cos(b) * tbs),
        }
        rows.append(
            Scenario(
                f"{name}-{dtype}", f, (both(make, a, b),), expected, tangent=both(grad, ta, tb),
                cotangent=np.asarray(c, dtype), tangents=both(grad, tas, tbs),
                cotangents=np.asarray(cs, dtype), dtype=dtype, only=only,
            )
        )
    return [*rows, _dict_to_dict(dtype, only)]


def _dict_to_dict(dtype: str, only: tuple[str, ...]) -> Scenario:
    a, b = V[:2], np.array([0.3, -1.0, 2.0])
    ta, tb, cp, cq = pattern((2,), 1), pattern((3,), 2), pattern((2,), 3), pattern((3,), 4)
    expected = {
        "value": {"product": a * b.sum(), "squares": b**2},
        "jacobian": {
            "product": {"a": b.sum() * np.eye(2), "b": np.repeat(a[:, None], 3, 1)},
            "squares": {"a": np.zeros((3, 2)), "b": np.diag(2 * b)},
        },
        "pushforward": {"product": ta * b.sum() + a * tb.sum(), "squares": 2 * b * tb},
        "pullback": {"a": cp * b.sum(), "b": np.full(3, cp @ a) + 2 * b * cq},
    }
    narrow = _narrow(dtype)
    return Scenario(
        f"15 dict to dict-{dtype}", dict_to_dict, (narrow({"a": a, "b": b}),), narrow(expected),
        tangent=narrow({"a": ta, "b": tb}), cotangent=narrow({"product": cp, "squares": cq}),
        dtype=dtype, only=only,
    )


def _narrow(dtype: str) -> Callable[[Any], Any]:
    return lambda tree: map_arrays(lambda x: np.asarray(x, dtype), tree)


# ---- 16 ------------------------------------------------------------------------------------


def _trivial(dtype: str, only: tuple[str, ...]) -> list[Scenario]:
    M, empty = V.reshape(2, 3), np.zeros((0,))
    eye = np.eye(6).reshape(2, 3, 2, 3)
    unchanged: dict[str, Any] = {
        "value": lambda x: x, "jacobian": lambda x: np.eye(x.size).reshape(x.shape + x.shape),
    }  # fmt: skip
    summed: dict[str, Any] = {
        "value": np.sum, "jacobian": np.ones_like,
        "hessian": lambda x: np.zeros(x.shape + x.shape),
    }  # fmt: skip
    return [
        array_scenario("16 identity", identity, M, dtype, only=only, **unchanged),
        array_scenario("16 copy", copied, M, dtype, only=only, **unchanged),
        array_scenario("16 sum", total, M, dtype, only=only, **summed),
        array_scenario("16 empty identity", identity, empty, dtype, only=only, **unchanged),
        array_scenario("16 empty sum", total, empty, dtype, only=only, **summed),
        array_scenario(
            "16 constant array", constant_array, M, dtype, value=lambda x: np.full(x.shape, 2.0),
            jacobian=lambda x: 0 * eye, only=only,
        ),
        array_scenario(
            "16 constant number", constant_number, M, dtype, value=lambda x: np.array(3.0),
            jacobian=np.zeros_like, hessian=lambda x: 0 * eye, only=only,
        ),
    ]


# ---- 17 ------------------------------------------------------------------------------------


def _arguments(dtype: str, only: tuple[str, ...]) -> list[Scenario]:
    x, c = np.array([0.5, -2.0, 3.0]), np.array([4.0, 1.5, -1.0])
    rows = [_product(f"17 argnums={n}", x, c, n, dtype, only) for n in (0, 1, (0, 1), -1)]
    rows += [_inner(f"17 scalar argnums={n}", x, c, n, dtype, only) for n in (1, (1, 0))]
    if dtype == "float64":  # NumPy makes float32 times int64 a float64, the engines do not
        integers = np.array([3, 2**33 + 1, -5])
        rows.append(_product("17 integer constant", x, integers, 0, dtype, only))
    return rows


def _product(name: str, x: Any, c: Any, n: Any, dtype: str, only: tuple[str, ...]) -> Scenario:
    columns = (np.diag(c), np.diag(x))
    tangents, ct = (pattern((3,), 1), pattern((3,), 2)), pattern((3,), 3)
    pulls = (c * ct, x * ct)
    chosen = n if isinstance(n, tuple) else (n,)
    expected = {
        "value": x * c,
        "jacobian": _pick(columns, n),
        "pushforward": sum(columns[k] @ tangents[k] for k in chosen),
        "pullback": _pick(pulls, n),
    }
    narrow = _narrow(dtype)
    args = tuple(np.asarray(v, dtype) if v.dtype.kind == "f" else v for v in (x, c))
    return Scenario(
        f"{name}-{dtype}", product, args, narrow(expected), argnums=n,
        tangent=narrow(_pick(tangents, n)), cotangent=narrow(ct), dtype=dtype, only=only,
    )


def _inner(name: str, x: Any, c: Any, n: Any, dtype: str, only: tuple[str, ...]) -> Scenario:
    """Σ x² c, whose mixed second derivatives do not vanish."""
    grads = (2 * x * c, x**2)
    blocks = ((np.diag(2 * c), np.diag(2 * x)), (np.diag(2 * x), np.zeros((3, 3))))
    tangents = (pattern((3,), 1), pattern((3,), 2))
    chosen = n if isinstance(n, tuple) else (n,)
    hvps = tuple(sum(row[k] @ tangents[k] for k in chosen) for row in blocks)
    expected = {
        "value": np.sum(x**2 * c),
        "gradient": _pick(grads, n),
        "hvp": _pick(hvps, n),
        "hessian": _pick(tuple(_pick(row, n) for row in blocks), n),
    }
    narrow = _narrow(dtype)
    return Scenario(
        f"{name}-{dtype}", inner, (narrow(x), narrow(c)), narrow(expected), argnums=n,
        tangent=narrow(_pick(tangents, n)), dtype=dtype, only=only,
    )


def _pick(parts: tuple[Any, ...], n: Any) -> Any:
    return tuple(parts[k] for k in n) if isinstance(n, tuple) else parts[n]


# ---- 21 ------------------------------------------------------------------------------------


def _auxiliary(dtype: str, only: tuple[str, ...]) -> list[Scenario]:
    x = np.asarray([0.5, -2.0, 3.0, 1.0], dtype)
    t, c = pattern((4,), 1, dtype), np.asarray(-1 / 12, dtype)
    narrow = _narrow(dtype)
    shared = narrow(
        {
            "value": np.sum(x**3), "gradient": 3 * x**2, "jacobian": 3 * x**2,
            "pushforward": np.sum(3 * x**2 * t), "pullback": 3 * x**2 * c,
            "hvp": 6 * x * t, "hessian": np.diag(6 * x),
        }
    )  # fmt: skip
    return [
        Scenario(
            f"21 aux {name}-{dtype}", f, (x,), {**shared, "aux": aux}, has_aux=True, tangent=t, cotangent=c,
            dtype=dtype, only=only,
        )
        for name, f, aux in (
            ("string", cube_sum_with_name, "row 21"),
            ("integers", cube_sum_with_integers, np.array([1, 2**40, 3])),
            ("dict", cube_sum_with_dict, {"name": "row 21", "count": 3, "twice": 2 * x, "none": None}),
        )
    ]
