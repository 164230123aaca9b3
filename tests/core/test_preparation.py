"""Preparation and the cache of unprepared calls."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import diface
from diface.errors import ArgumentMismatchError, PreparationMismatchError
from diface.extend import cache_clear, cache_info
from tests.engines import require

x = np.array([1.0, 2.0, 3.0])


def total(v: Any, scale: float = 1.0) -> Any:
    return (v**2).sum() * scale


def test_prepared_equals_unprepared() -> None:
    prep = diface.prepare(diface.value_and_gradient, total, "finite_diff", np.zeros(3))
    y, g = prep(x)
    y2, g2 = diface.value_and_gradient(total, "finite_diff", x, prep=prep)
    y3, g3 = diface.value_and_gradient(total, "finite_diff", x)
    assert y == y2 == y3
    np.testing.assert_array_equal(g, g2)
    np.testing.assert_array_equal(g, g3)


def test_constants_may_have_other_values() -> None:
    prep = diface.prepare("gradient", total, "finite_diff", x, 1.0)
    np.testing.assert_allclose(prep(x, 3.0), 6 * x, rtol=1e-7)


def test_tangents_and_cotangents() -> None:
    prep = diface.prepare("pushforward", lambda v: v * 2, "finite_diff", x, tangent=np.zeros(3))
    np.testing.assert_allclose(prep(x, tangent=np.ones(3)), 2 * np.ones(3), rtol=1e-7)
    with pytest.raises(ArgumentMismatchError, match=r"called with no vector; tangent was expected"):
        prep(x)
    with pytest.raises(ArgumentMismatchError, match=r"called with cotangent; tangent was expected"):
        prep(x, cotangent=np.ones(3))
    with pytest.raises(PreparationMismatchError, match=r"tangent: prepared"):
        prep(x, tangent=np.ones(4))
    plain = diface.prepare("gradient", total, "finite_diff", x)
    with pytest.raises(ArgumentMismatchError, match=r"called with tangent; no vector was expected"):
        plain(x, tangent=x)


@pytest.mark.parametrize(
    ("args", "field"),
    [
        ((np.ones(4),), r"args\[0\]: prepared numpy float64\[3\] on cpu, came numpy float64\[4\]"),
        ((np.ones(3, np.float32),), r"came numpy float32\[3\]"),
        ((np.ones((3, 1)),), r"came numpy float64\[3, 1\]"),
        (([np.ones(3)],), r"args\[0\]\[0\]: prepared nothing, came numpy float64\[3\]"),
        ((1.0,), r"came python float\[\]"),
        ((x, 2.0), r"args\[1\]: prepared nothing, came python float"),
    ],
)
def test_mismatch_report(args: tuple[Any, ...], field: str) -> None:
    prep = diface.prepare("gradient", total, "finite_diff", x)
    with pytest.raises(PreparationMismatchError, match=field):
        prep(*args)


def test_static_leaves_are_part_of_it() -> None:
    def power(v: Any, options: dict[str, str]) -> Any:
        return (v ** (2 if options["kind"] == "square" else 3)).sum()

    prep = diface.prepare("gradient", power, "finite_diff", x, {"kind": "square"})
    with pytest.raises(PreparationMismatchError, match=r"prepared 'square', came 'cube'"):
        prep(x, {"kind": "cube"})


def test_prep_for_something_else() -> None:
    prep = diface.prepare("gradient", total, "finite_diff", x)
    with pytest.raises(PreparationMismatchError, match=r"operator: prepared gradient, came value_and_gradient"):
        diface.value_and_gradient(total, "finite_diff", x, prep=prep)
    with pytest.raises(PreparationMismatchError, match=r"f: prepared"):
        diface.gradient(lambda v: v.sum(), "finite_diff", x, prep=prep)
    with pytest.raises(PreparationMismatchError, match=r"backend: prepared .*central"):
        diface.gradient(total, diface.AutoFiniteDiff(method="forward"), x, prep=prep)
    with pytest.raises(PreparationMismatchError, match=r"has_aux: prepared False, came True"):
        diface.gradient(total, "finite_diff", x, prep=prep, has_aux=True)


def test_on_mismatch_prepare() -> None:
    prep = diface.prepare("gradient", total, "finite_diff", x, on_mismatch="prepare")
    np.testing.assert_allclose(prep(np.ones(4)), 2 * np.ones(4), rtol=1e-7)
    assert prep(np.float32([1, 2])).dtype == np.float32
    np.testing.assert_allclose(prep(x), 2 * x, rtol=1e-7)


def test_compiles_once() -> None:
    jnp = require("jax").numpy
    runs = []

    def f(v: Any) -> Any:
        runs.append(1)
        return jnp.sum(v**2)

    prep = diface.prepare("gradient", f, "jax", x)
    traced = len(runs)
    for k in range(5):
        np.testing.assert_allclose(prep(x + k), 2 * (x + k))
    assert len(runs) == traced
    for k in range(5):
        diface.gradient(f, "jax", x + k)
    assert len(runs) <= 2 * traced


def test_a_lambda_made_afresh_is_compiled_once() -> None:
    jnp = require("jax").numpy
    runs = []
    cache_clear()
    for _ in range(50):
        diface.gradient(lambda v: (runs.append(1), jnp.sum(v**2))[1], "jax", x)
    assert len(runs) < 5
    assert cache_info()[0] == 1


def test_another_closure_is_another_function() -> None:
    jnp = require("jax").numpy
    for scale in (1.0, 2.0, 3.0):
        np.testing.assert_allclose(diface.gradient(lambda v: scale * jnp.sum(v), "jax", x), scale * np.ones(3))  # noqa: B023


_FACTOR = 1.0


def _uses_a_global(v: Any) -> Any:
    return (v * _FACTOR).sum()


def test_another_global_is_another_function(monkeypatch: pytest.MonkeyPatch) -> None:
    require("jax")
    np.testing.assert_allclose(diface.gradient(_uses_a_global, "jax", x), np.ones(3))
    monkeypatch.setitem(_uses_a_global.__globals__, "_FACTOR", 2.0)
    np.testing.assert_allclose(diface.gradient(_uses_a_global, "jax", x), 2 * np.ones(3))


def _calls_another(v: Any) -> Any:
    return 1.0 * _uses_a_global(v)


def test_another_global_of_a_callee(monkeypatch: pytest.MonkeyPatch) -> None:
    require("jax")
    np.testing.assert_allclose(diface.gradient(_calls_another, "jax", x), np.ones(3))
    monkeypatch.setitem(_uses_a_global.__globals__, "_FACTOR", 3.0)
    np.testing.assert_allclose(diface.gradient(_calls_another, "jax", x), 3 * np.ones(3))


def test_memory_of_fresh_functions_is_bounded() -> None:
    class Owner:
        def __call__(self, v: Any) -> Any:
            return (v**2).sum()

    cache_clear()
    first = Owner()
    gone = weakref.ref(first)
    diface.gradient(first, "finite_diff", x)
    del first
    size, limit = cache_info()
    for _ in range(limit + 5):
        diface.gradient(Owner(), "finite_diff", x)
    size, limit = cache_info()
    assert size == limit
    gc.collect()
    assert gone() is None
    cache_clear()


def test_arguments_are_not_kept_alive() -> None:
    class Array(np.ndarray[Any, Any]):
        pass

    v = x.copy().view(Array)
    gone = weakref.ref(v)
    prep = diface.prepare("gradient", total, "finite_diff", v)
    del v
    gc.collect()
    assert gone() is None
    assert repr(prep).startswith("<Preparation of gradient(finite_diff) for numpy")


@pytest.mark.parametrize("backend", ["jax", "torch", "autograd", "finite_diff", "complex_step"])
def test_a_preparation_runs_in_many_threads(backend: str) -> None:
    if backend in ("jax", "torch", "autograd"):
        require(backend)

    def f(v: Any) -> Any:
        xp = diface.array_namespace(v)
        return xp.sum(xp.sin(v) * v)

    prep = diface.prepare("value_and_gradient", f, backend, x)
    points = [x + k for k in range(40)]
    expected = [np.cos(p) * p + np.sin(p) for p in points]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(prep, points))
    for p, (y, g), e in zip(points, results, expected, strict=True):
        np.testing.assert_allclose(y, np.sum(np.sin(p) * p), rtol=1e-12)
        np.testing.assert_allclose(g, e, rtol=1e-6)


def test_unprepared_calls_in_many_threads() -> None:
    cache_clear()
    barrier = threading.Barrier(8)

    def work(k: int) -> Any:
        barrier.wait()
        return diface.gradient(total, "finite_diff", x + k)

    with ThreadPoolExecutor(8) as pool:
        for k, g in enumerate(pool.map(work, range(8))):
            np.testing.assert_allclose(g, 2 * (x + k), rtol=1e-6)
