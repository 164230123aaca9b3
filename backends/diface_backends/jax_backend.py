"""JAX as an engine. The whole operator is one compiled call; JAX's own transformations do the rest."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from diface import AutoJAX
from diface.errors import PerformanceWarning
from diface.extend import (
    ArrayLibrary,
    Arrays,
    ArraySpec,
    Function,
    Guest,
    PullbackMap,
    Results,
    convert,
    writable_alias,
)
from diface_backends.jax_arrays import JAX, check_dtype, shareable

__all__ = ["JAXGuest"]

# Below this size handing NumPy's memory to the compiled call is faster than a DLPack import.
_SMALL = 2**16

# What JAX raises when Python asks a tracer for its value.
_NEEDS_VALUE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerBoolConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


class JAXGuest(Guest):
    """Differentiates functions written with ``jax.numpy``."""

    specification = AutoJAX
    name = "jax"
    library = JAX
    modes = frozenset({"forward", "reverse"})
    vectorized = True
    nests = True

    def __init__(self, backend: AutoJAX) -> None:
        super().__init__(backend)
        self.jit = self.captures = backend.jit
        self.fresh_outputs = backend.jit  # XLA gives each result of a compiled call memory of its own

    def devices(self) -> tuple[str, ...]:
        return tuple(str(device) for device in jax.devices())

    def admit(self, x: Any, source: ArrayLibrary, target: ArrayLibrary) -> Any:
        if self.jit:
            view = source.to_numpy(x)
            if view is not None:
                check_dtype(view)
            if view is not None and (view.nbytes <= _SMALL or not shareable(view)):
                return view  # the compiled call takes it as it is, at the least cost
        return convert(x, source, target)

    def release(self, x: Any, result: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if not self.jit:
            return np.array(result)
        return _writable_view(x, result)

    def output_sizes(self, function: Function, xs: Arrays) -> int | None:
        try:
            ys, _ = jax.eval_shape(function, *xs)
        except _NEEDS_VALUE:
            return None
        return sum(y.size for y in ys)

    def close(self, linear: Callable[..., Arrays], *arrays: Any) -> PullbackMap:
        return Partial(linear, *arrays)

    def compile(self, run: Callable[..., Any]) -> Callable[..., Any]:
        return _Compiled(run) if self.jit else run

    def value_and_pushforward(self, function: Function, xs: Arrays, txs: Arrays) -> Results:
        ys, tys, aux = jax.jvp(function, xs, txs, has_aux=True)
        return ys, aux, tys

    def value_and_batched_pushforward(self, function: Function, xs: Arrays, txs: Arrays, size: int) -> Results:
        ys, push, aux = jax.linearize(function, *xs, has_aux=True)
        return ys, aux, jax.vmap(push)(*txs)

    def vectorize(self, function: Callable[..., Arrays], axes: tuple[bool, ...]) -> Callable[..., Arrays]:
        return jax.vmap(function, in_axes=tuple(0 if flag else None for flag in axes))

    def evaluate_shapes(self, function: Callable[..., Arrays], specs: Sequence[ArraySpec]) -> Any:
        xs = [jax.ShapeDtypeStruct(spec.shape, jnp.dtype(spec.dtype)) for spec in specs]
        try:
            return [(y.shape, y.dtype.name) for y in jax.eval_shape(lambda *xs: function(*xs), *xs)]
        except _NEEDS_VALUE:
            return None

    def value_and_linear_map(self, function: Function, xs: Arrays) -> tuple[Arrays, Arrays, PullbackMap]:
        ys, push, aux = jax.linearize(function, *xs, has_aux=True)
        return ys, aux, Partial(_spread, push)

    def value_and_pullback(self, function: Function, xs: Arrays) -> tuple[Arrays, Arrays, PullbackMap]:
        ys, pull, aux = jax.vjp(function, *xs, has_aux=True)
        if any(jnp.iscomplexobj(v) for v in (*xs, *ys)):
            # JAX's pullback is the transpose; the adjoint is its conjugate on both sides.
            return ys, aux, Partial(_adjoint, pull)
        return ys, aux, pull

    def batched_pullback(self, pull: PullbackMap, cotangents: Arrays, size: int) -> Arrays:
        return jax.vmap(pull)(cotangents)

    def call_linear(self, linear: PullbackMap, vectors: Arrays) -> Arrays:
        return _apply(linear, vectors) if self.jit else linear(vectors)

    def explain_failure(self, error: BaseException) -> str | None:
        if isinstance(error, jax.errors.TracerArrayConversionError):
            return (
                "f applies a NumPy function to an array that JAX is following. "
                "Use jax.numpy, or diface.array_namespace(x)."
            )
        return None


def _spread(push: Callable[..., Any], vectors: Arrays) -> Arrays:
    return push(*vectors)


def _adjoint(pull: PullbackMap, cotangents: Arrays) -> Arrays:
    return tuple(map(jnp.conj, pull(tuple(map(jnp.conj, cotangents)))))


@jax.jit
def _apply(linear: PullbackMap, vectors: Arrays) -> Arrays:
    return linear(vectors)


def _writable_view(x: Any, result: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A NumPy array on the memory of ``x``, an output of a compiled call that nobody else holds.

    XLA gives every output of a compiled call memory of its own (also where the function returns its
    input or a constant), so that writing into it disturbs nobody; NumPy's view of a JAX array is
    read-only, and SciPy's and users' in-place updates would need a copy.
    """
    if result.nbytes <= _SMALL or not x.is_fully_addressable:
        return np.array(result)
    return writable_alias(result)


class _Compiled:
    """``run`` under ``jax.jit``: first with every number traced, then as far as Python allows.

    Python integers and booleans are traced like arrays, so that another value compiles nothing new;
    where the function needs their value (``range(n)``), they become static. Where it needs the value
    of an array (``if x.sum() > 0``), it is run as plain Python, with a warning.
    """

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run
        self._structures: dict[tuple[Any, ...], Any] = {}
        self._structure: Any = None
        self._call: Callable[..., Any] = self._traced
        self._jitted = jax.jit(self._trace)
        self._static_jitted: dict[tuple[int, ...], Callable[..., Any]] = {}

    def __call__(self, *arrays: Any) -> Any:
        return self._call(*arrays)

    def _trace(self, *arrays: Any) -> Any:
        result, self._structure = self._run(*arrays)
        return result

    def _traced(self, *arrays: Any) -> Any:
        try:
            result = self._jitted(*arrays)
        except _NEEDS_VALUE:
            self._call = self._static
            return self._static(*arrays)
        return result, self._structure

    def _static(self, *arrays: Any) -> Any:
        where = tuple(i for i, x in enumerate(arrays) if isinstance(x, (bool, int)))
        if not where:
            return self._eager(*arrays)
        jitted = self._static_jitted.get(where)
        if jitted is None:
            jitted = self._static_jitted[where] = jax.jit(self._trace_static, static_argnums=where)
        try:
            result = jitted(*arrays)
        except _NEEDS_VALUE:
            return self._eager(*arrays)
        return result, self._structures[_statics(arrays)]

    def _trace_static(self, *arrays: Any) -> Any:
        result, structure = self._run(*arrays)
        self._structures[_statics(arrays)] = structure
        return result

    def _eager(self, *arrays: Any) -> Any:
        if self._call != self._eager:
            self._call = self._eager
            warnings.warn(
                "f branches on the values of arrays, so JAX cannot compile it; it is run as plain Python. "
                "Use jax.numpy.where or jax.lax.cond to have it compiled, or diface.AutoJAX(jit=False) to "
                "say that this is meant.",
                PerformanceWarning,
                stacklevel=2,
            )
        return self._run(*[jnp.asarray(x) if isinstance(x, np.ndarray) else x for x in arrays])


def _statics(arrays: Sequence[Any]) -> tuple[Any, ...]:
    return tuple((type(x), x) for x in arrays if isinstance(x, (bool, int)))
