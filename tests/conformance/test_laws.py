"""Laws that hold for every function, on random shapes and numbers: linearity, adjointness, the chain rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import diface
from tests.engines import require

ENGINES = ("jax", "torch", "autograd", "finite_diff", "complex_step")
MODULES = {"jax", "torch", "autograd"}
# Finite differences are right to about this; the others to rounding.
TOLERANCE = {"finite_diff": 1e-5}

laws = settings(max_examples=6, derandomize=True, deadline=None, database=None)
# Few shapes: JAX compiles anew for each. Zero-size, 0-d and non-square ones are among them.
shapes = st.sampled_from([(), (1,), (3,), (2, 3), (0, 2), (3, 1, 2)])
seeds = st.integers(0, 2**32 - 1)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name in MODULES:
        require(name)
    return name


def waves(x: Any) -> Any:
    """Elementwise and mixing: no two elements of its Jacobian agree by accident."""
    xp = diface.array_namespace(x)
    return xp.sin(x) * xp.sum(x) + x * x


def pair(x: Any) -> Any:
    xp = diface.array_namespace(x)
    return xp.stack([xp.cos(x), x * x * x])


def chained(x: Any) -> Any:
    return pair(waves(x))


def draws(seed: int, *sizes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.uniform(-1.5, 1.5, shape)) for shape in sizes]


def assert_close(engine: str, came: Any, expected: Any) -> None:
    tolerance = TOLERANCE.get(engine, 1e-11)
    scale = max(float(np.max(np.abs(expected), initial=0.0)), 1.0)
    assert came.shape == np.shape(expected)
    np.testing.assert_allclose(came, expected, rtol=0, atol=tolerance * scale)


# hypothesis and function-scoped fixtures: `engine` is a plain string, the same for every example.
@pytest.mark.parametrize("f", [waves, pair])
def test_pushforward_is_linear(engine: str, f: Any) -> None:
    @laws
    @given(shapes, seeds, st.floats(-3, 3))
    def law(shape: tuple[int, ...], seed: int, a: float) -> None:
        x, s, t = draws(seed, shape, shape, shape)
        whole = diface.pushforward(f, engine, x, tangent=a * s + t)
        parts = [diface.pushforward(f, engine, x, tangent=v) for v in (s, t)]
        assert_close(engine, whole, a * parts[0] + parts[1])

    law()


@pytest.mark.parametrize("f", [waves, pair])
def test_pullback_is_linear(engine: str, f: Any) -> None:
    @laws
    @given(shapes, seeds, st.floats(-3, 3))
    def law(shape: tuple[int, ...], seed: int, a: float) -> None:
        out = f(np.zeros(shape)).shape
        x, s, t = draws(seed, shape, out, out)
        whole = diface.pullback(f, engine, x, cotangent=a * s + t)
        parts = [diface.pullback(f, engine, x, cotangent=v) for v in (s, t)]
        assert_close(engine, whole, a * parts[0] + parts[1])

    law()


def test_pullback_is_the_adjoint_of_pushforward(engine: str) -> None:
    @laws
    @given(shapes, seeds)
    def law(shape: tuple[int, ...], seed: int) -> None:
        x, v, w = draws(seed, shape, shape, (2, *shape))
        Jv = diface.pushforward(pair, engine, x, tangent=v)
        Jw = diface.pullback(pair, engine, x, cotangent=w)
        assert_close(engine, np.sum(w * Jv), np.sum(Jw * v))

    law()


def test_chain_rule(engine: str) -> None:
    @laws
    @given(shapes, seeds)
    def law(shape: tuple[int, ...], seed: int) -> None:
        x, v, w = draws(seed, shape, shape, (2, *shape))
        y, ty = diface.value_and_pushforward(waves, engine, x, tangent=v)
        forward = diface.pushforward(pair, engine, y, tangent=ty)
        assert_close(engine, diface.pushforward(chained, engine, x, tangent=v), forward)
        reverse = diface.pullback(waves, engine, x, cotangent=diface.pullback(pair, engine, y, cotangent=w))
        assert_close(engine, diface.pullback(chained, engine, x, cotangent=w), reverse)

    law()
