"""Array crossings: which library an array belongs to, and how it gets into another without a copy.

On a CPU the common ground is the NumPy view (fastest, every layout); where a dtype or device has
none, it is DLPack. Every crossing can be seen in a ledger.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import array_api_compat
import numpy as np

from diface._engine import Array, ArrayLibrary, ArraySpec
from diface._registry import library_for_root
from diface.errors import NotDifferentiableError, UnsupportedError

__all__ = ["NUMPY", "PYTHON", "Crossing", "array_namespace", "convert", "ledger", "library_of"]


class NumpyLibrary(ArrayLibrary):
    """NumPy arrays."""

    name = "numpy"
    mutable = True
    protects = True

    def owns(self, kind: type) -> bool:
        return issubclass(kind, np.ndarray)

    def describe(self, x: Array) -> ArraySpec:
        if isinstance(x, (np.ma.MaskedArray, np.matrix)):
            # No engine knows the mask, or that * is a matrix product: the result would be wrong in silence.
            raise NotDifferentiableError(
                f"an argument is a {type(x).__name__}; a plain array was expected. "
                "Pass numpy.asarray(x), or x.filled(value) for a masked array."
            )
        return ArraySpec(self.name, x.shape, x.dtype.name, "cpu")

    def matcher(self, spec: ArraySpec, x: Array) -> Callable[[Array], bool]:
        kind, shape, dtype = type(x), x.shape, x.dtype.newbyteorder("=")

        def matches(other: Array) -> bool:
            return (
                type(other) is kind
                and other.shape == shape
                and (other.dtype == dtype or other.dtype.newbyteorder("=") == dtype)
            )

        return matches

    def namespace(self, x: Array) -> Any:
        return np

    def is_inexact(self, x: Array) -> bool:
        return _inexact(x.dtype)

    def is_complex(self, x: Array) -> bool:
        return bool(x.dtype.kind == "c")

    def to_numpy(self, x: Array) -> np.ndarray[Any, Any]:
        array = np.asarray(x)
        # No other library knows the other byte order, and some read it as it stands, wrongly.
        return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))

    def from_numpy(self, x: np.ndarray[Any, Any]) -> tuple[Array, bool]:
        return x, True

    def to_dlpack(self, x: Array) -> Any:
        return x

    def from_dlpack(self, x: Any) -> Array:
        return np.from_dlpack(x)

    def copy(self, x: Array) -> Array:
        return np.array(x)

    def protect(self, x: Array) -> Array:
        view = x.view()
        view.flags.writeable = False
        return view

    def writable(self, x: Array, *, fresh: bool) -> Array:
        return x if x.flags.writeable else np.array(x)


class NumpyScalarLibrary(NumpyLibrary):
    """NumPy scalars such as ``np.float64(0.42)``: as 0-d arrays inside, as scalars outside."""

    name = "numpy scalar"
    mutable = False
    protects = False

    def owns(self, kind: type) -> bool:
        return issubclass(kind, np.generic)

    def from_numpy(self, x: np.ndarray[Any, Any]) -> tuple[Array, bool]:
        return (x[()], False) if x.ndim == 0 else (x, True)

    def protect(self, x: Array) -> Array:
        return x

    def writable(self, x: Array, *, fresh: bool) -> Array:
        return np.array(x) if isinstance(x, np.ndarray) and not x.flags.writeable else x


class PythonLibrary(NumpyScalarLibrary):
    """Python's own numbers: as 0-d arrays inside, as numbers outside."""

    name = "python"

    def owns(self, kind: type) -> bool:
        return kind in (float, int, complex, bool)

    def describe(self, x: Array) -> ArraySpec:
        return ArraySpec(self.name, (), type(x).__name__, "cpu")

    def matcher(self, spec: ArraySpec, x: Array) -> Callable[[Array], bool]:
        kind = type(x)
        return lambda other: type(other) is kind

    def is_inexact(self, x: Array) -> bool:
        return isinstance(x, (float, complex))

    def is_complex(self, x: Array) -> bool:
        return isinstance(x, complex)

    def from_numpy(self, x: np.ndarray[Any, Any]) -> tuple[Array, bool]:
        return (x.item(), False) if x.ndim == 0 else (x, True)


class StandardLibrary(ArrayLibrary):
    """Any other library that follows the array API standard and DLPack."""

    mutable = True

    def __init__(self, name: str) -> None:
        self.name = name

    def owns(self, kind: type) -> bool:
        return True

    def describe(self, x: Array) -> ArraySpec:
        dtype = str(x.dtype).rpartition(".")[2]
        return ArraySpec(self.name, tuple(x.shape), dtype, str(array_api_compat.device(x)))

    def matcher(self, spec: ArraySpec, x: Array) -> Callable[[Array], bool]:
        kind = type(x)
        return lambda other: type(other) is kind and self.describe(other) == spec

    def namespace(self, x: Array) -> Any:
        return array_api_compat.array_namespace(x)

    def is_inexact(self, x: Array) -> bool:
        return bool(self.namespace(x).isdtype(x.dtype, ("real floating", "complex floating")))

    def to_numpy(self, x: Array) -> np.ndarray[Any, Any] | None:
        return None

    def from_numpy(self, x: np.ndarray[Any, Any]) -> tuple[Array, bool]:
        raise UnsupportedError(
            f"exchange({self.name}): an array of NumPy cannot be brought into {self.name} without knowing its "
            "namespace. Register an ArrayLibrary for it in the entry-point group 'diface.arrays'."
        )

    def to_dlpack(self, x: Array) -> Any:
        return x

    def from_dlpack(self, x: Any) -> Array:
        raise UnsupportedError(
            f"exchange({self.name}): results cannot be brought back into {self.name}. "
            "Register an ArrayLibrary for it in the entry-point group 'diface.arrays'."
        )

    def copy(self, x: Array) -> Array:
        return self.namespace(x).asarray(x, copy=True)


NUMPY = NumpyLibrary()
NUMPY_SCALAR = NumpyScalarLibrary()
PYTHON = PythonLibrary()

_BY_TYPE: dict[type, ArrayLibrary | None] = {
    np.ndarray: NUMPY, float: PYTHON, int: PYTHON, complex: PYTHON, bool: PYTHON
}


def _inexact(dtype: np.dtype[Any]) -> bool:
    # ml_dtypes' bfloat16 and its kin have kind "V" and a name that says what they are.
    return dtype.kind in "fc" or (dtype.kind == "V" and "float" in dtype.name)


def library_of(x: object) -> ArrayLibrary | None:
    """The library that ``x`` is an array (or a number, or a tracer) of; ``None`` if it is none."""
    kind = type(x)
    try:
        return _BY_TYPE[kind]
    except KeyError:
        library = find_library(kind)
        if len(_BY_TYPE) > 10_000:  # types made in a loop must not grow memory
            _BY_TYPE.clear()
        _BY_TYPE[kind] = library
        return library


def find_library(kind: type) -> ArrayLibrary | None:
    """The library that arrays of type ``kind`` belong to."""
    if kind in _BY_TYPE:
        return _BY_TYPE[kind]
    if issubclass(kind, np.generic):
        return NUMPY_SCALAR
    for base in kind.__mro__:
        library = library_for_root(base.__module__.partition(".")[0])
        if library is not None and library.owns(kind):
            return library
    if issubclass(kind, np.ndarray):
        return NUMPY
    if "__dlpack__" in dir(kind) and "__array_namespace__" in dir(kind):
        return StandardLibrary(kind.__module__.partition(".")[0])
    return None


def array_namespace(*xs: object) -> Any:
    """The namespace (array API names) to compute on ``xs`` with, also on an engine's tracers.

    One function then serves several engines. Where engines mix, the tracer's namespace wins.

    Args:
        xs: Arrays, tracers or Python numbers; what is neither is passed over.

    Returns:
        A module such as ``numpy``, ``jax.numpy``, ``array_api_compat.torch`` or ``autograd.numpy``.

    Raises:
        TypeError: None of ``xs`` is an array.

    Example:
        >>> import numpy as np
        >>> array_namespace(np.ones(3)) is np
        True
    """
    namespace: Any = None
    for x in xs:
        library = library_of(x)
        if library is None:
            continue
        if library.is_traced(x):
            return library.namespace(x)
        if namespace is None or (namespace is np and library is not PYTHON):
            namespace = library.namespace(x)
    if namespace is None:
        came = ", ".join(type(x).__name__ for x in xs) or "nothing"
        raise TypeError(f"array_namespace: no array among the arguments ({came}). Pass at least one array.")
    return namespace


class _Memory:
    """The memory of an array as NumPy's array interface describes it, writable."""

    def __init__(self, x: np.ndarray[Any, Any]) -> None:
        self.owner = x
        interface = dict(x.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


def writable_alias(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A writable array on the memory of a read-only one: for whoever knows that nothing is harmed."""
    if x.dtype.kind == "V":  # ml_dtypes: the interface knows them as raw bytes
        return np.asarray(_Memory(x.view(f"u{x.dtype.itemsize}"))).view(x.dtype)
    return np.asarray(_Memory(x))


class Crossing(NamedTuple):
    """One array that went from one library into another."""

    source: str
    target: str
    nbytes: int
    shared: bool


class _Ledgers(threading.local):
    def __init__(self) -> None:
        self.open: list[list[Crossing]] = []


_ledgers = _Ledgers()


@contextlib.contextmanager
def ledger() -> Iterator[list[Crossing]]:
    """Collects the crossings that this thread makes inside the ``with`` block.

    Example:
        >>> with ledger() as crossings:
        ...     pass
        >>> crossings
        []
    """
    entries: list[Crossing] = []
    _ledgers.open.append(entries)
    try:
        yield entries
    finally:
        _ledgers.open = [kept for kept in _ledgers.open if kept is not entries]


def convert(x: Array, source: ArrayLibrary, target: ArrayLibrary) -> Array:
    """``x`` of ``source`` as an array of ``target``, sharing memory where that is possible."""
    if source is target:
        return x
    view = source.to_numpy(x)
    if view is not None:
        result, shared = target.from_numpy(view)
        shared = shared and (view is x or not isinstance(x, np.ndarray) or np.may_share_memory(view, x))
    else:
        result, shared = target.from_dlpack(source.to_dlpack(x)), True
    if _ledgers.open:
        record(source, target, x, shared)
    return result


def record(source: ArrayLibrary, target: ArrayLibrary, x: Array, shared: bool) -> None:
    """Notes a crossing in the ledgers that are open on this thread."""
    nbytes = int(getattr(x, "nbytes", 8))
    for entries in _ledgers.open:
        entries.append(Crossing(source.name, target.name, nbytes, shared))
