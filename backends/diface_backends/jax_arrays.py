"""JAX's arrays and tracers."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from diface.errors import UnsupportedError
from diface.extend import ArrayLibrary, ArraySpec, Host

__all__ = ["JAX", "JAXLibrary"]

# XLA on a CPU shares memory of this alignment only, and copies other memory.
_ALIGNMENT = 64
_WIDE = frozenset(map(np.dtype, ("float64", "complex128", "int64", "uint64")))
_WIDE_NAMES = {"float64", "float", "complex128", "complex", "int64", "uint64"}
_NO_SCOPE = contextlib.nullcontext()
_ARRAY = type(jnp.zeros(()))


class JAXLibrary(ArrayLibrary):
    """``jax.Array`` and everything that JAX passes for one while it traces."""

    name = "jax"
    mutable = False

    def owns(self, kind: type) -> bool:
        return issubclass(kind, jax.Array) or issubclass(kind, jax.core.Tracer)

    @property
    def host(self) -> Host:
        return _host()

    def describe(self, x: Any) -> ArraySpec:
        if isinstance(x, jax.core.Tracer):
            return ArraySpec(self.name, tuple(x.shape), x.dtype.name, "traced")
        if x.is_deleted():
            raise RuntimeError(
                f"jax: an argument of shape {x.shape} has been deleted or donated. Pass an array that still exists."
            )
        devices = x.devices()
        device = str(next(iter(devices))) if len(devices) == 1 else str(x.sharding)
        return ArraySpec(self.name, tuple(x.shape), x.dtype.name, device)

    def matcher(self, spec: ArraySpec, x: Any) -> Callable[[Any], bool]:
        if type(x) is not _ARRAY:
            return lambda other: self.owns(type(other)) and self.describe(other) == spec
        aval, sharding = x.aval, x.sharding
        shape, dtype = x.shape, x.dtype

        def matches(other: Any) -> bool:
            if type(other) is not _ARRAY:
                return False
            if other.aval is not aval and not (other.shape == shape and other.dtype == dtype):
                return False
            return other.sharding is sharding or other.sharding == sharding

        return matches

    def is_traced(self, x: Any) -> bool:
        return isinstance(x, jax.core.Tracer)

    def is_inexact(self, x: Any) -> bool:
        return bool(jnp.issubdtype(x.dtype, jnp.inexact))

    def namespace(self, x: Any) -> Any:
        return jnp

    def to_numpy(self, x: Any) -> np.ndarray[Any, Any] | None:
        if next(iter(x.devices())).platform != "cpu":
            return None
        return np.asarray(x)

    def from_numpy(self, x: np.ndarray[Any, Any]) -> tuple[Any, bool]:
        check_dtype(x)
        with wide() if x.dtype in _WIDE else _NO_SCOPE:
            if shareable(x):
                return jnp.from_dlpack(x), True
            # A copy of our own first: JAX may read the memory after it has returned.
            return jnp.asarray(np.array(x)), False

    def to_dlpack(self, x: Any) -> Any:
        return x

    def from_dlpack(self, x: Any) -> Any:
        with wide():
            return jnp.from_dlpack(x)

    def copy(self, x: Any) -> Any:
        return jnp.array(x)

    def eye(self, n: int, like: Any) -> Any:
        return jnp.eye(n, dtype=like.dtype)

    def scope(self, specs: Sequence[ArraySpec]) -> Callable[[], contextlib.AbstractContextManager[Any]] | None:
        return wide if any(spec.dtype in _WIDE_NAMES for spec in specs) else None

    def open_node(self, node: Any) -> tuple[Callable[[Any], Any], Callable[[Any, Any], Any]] | None:
        if tree_util.default_registry.flatten_one_level(node) is None:
            return None
        return _open_node, _close_node


def _open_node(node: Any) -> tuple[list[Any], Any, Any]:
    children, spec = tree_util.tree_flatten(node, is_leaf=lambda part: part is not node)
    return children, spec, spec


def _close_node(spec: Any, children: Any) -> Any:
    return spec.unflatten(children)


def wide() -> contextlib.AbstractContextManager[Any]:
    """64-bit types for what is done inside, on this thread; the global flag is not touched."""
    return _NO_SCOPE if jax.config.read("jax_enable_x64") else jax.enable_x64(True)


@functools.cache
def _host() -> Host:
    from diface_backends.jax_host import JAXHost  # built on this module

    return JAXHost()


def check_dtype(x: np.ndarray[Any, Any]) -> None:
    """Refuses what JAX has no arrays for."""
    if x.dtype.kind not in "fciubV" or x.dtype.itemsize > (16 if x.dtype.kind == "c" else 8):
        raise UnsupportedError(
            f"exchange(jax): JAX has no arrays of NumPy's dtype {x.dtype}. "
            "Convert it first, for example by x.astype('float64')."
        )


def shareable(x: np.ndarray[Any, Any]) -> bool:
    """Whether JAX can use the memory of ``x`` as it is."""
    return bool(
        x.flags.c_contiguous and x.flags.writeable and x.size
        and x.ctypes.data % _ALIGNMENT == 0 and x.dtype.kind in "fiucb"
    )


JAX = JAXLibrary()
