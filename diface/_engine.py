"""What an engine must provide: the protocols ``ArrayLibrary`` and ``Guest`` (public in ``diface.extend``).

An *array library* knows how arrays of one library look and cross. A *guest* differentiates
functions of tuples of arrays. Everything else (pytrees, operators, preparation, errors) is derived
from these in core, once for all engines.
"""

from __future__ import annotations

import contextlib
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from diface._algebra import ForeignFunction
    from diface._specs import Backend

__all__ = ["ArrayLibrary", "ArraySpec", "Arrays", "Function", "Guest", "Host", "PullbackMap", "Results"]

Array = Any
Arrays = tuple[Array, ...]
Function = Callable[..., tuple[Arrays, Arrays]]
"""``function(*xs) -> (ys, aux)``: tuples of arrays; ``aux`` is carried along undifferentiated."""
PullbackMap = Callable[[Arrays], Arrays]
Results = tuple[Arrays, Arrays, Arrays]
Scope = Callable[[], contextlib.AbstractContextManager[Any]]


class ArraySpec(NamedTuple):
    """What a preparation depends on, for one array: hashable, comparable, printable."""

    library: str
    shape: tuple[int, ...]
    dtype: str
    device: str

    def __str__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        return f"{self.library} {self.dtype}[{shape}] on {self.device}"


class ArrayLibrary(ABC):
    """The arrays of one library: how to recognise, describe, import and export them."""

    name: str
    mutable: bool
    """Whether arrays of this library can be written into."""
    untraced_numbers: bool = False
    """Whether an array that is being followed turns into a Python number without an error."""
    protects: bool = False
    """Whether ``protect`` gives an alias that refuses to be written into."""
    detects_writes: bool = False
    """Whether ``version`` tells that an array has been written into."""

    @abstractmethod
    def owns(self, kind: type) -> bool:
        """Whether objects of type ``kind`` are arrays (or tracers) of this library."""

    @abstractmethod
    def describe(self, x: Array) -> ArraySpec:
        """The specification of ``x``; also for a tracer."""

    @abstractmethod
    def matcher(self, spec: ArraySpec, x: Array) -> Callable[[Array], bool]:
        """A fast predicate: is an object an array with the specification ``spec`` of ``x``?"""

    def is_traced(self, x: Array) -> bool:
        """Whether ``x`` stands for an unknown value, or is followed by an engine just now."""
        return False

    @abstractmethod
    def namespace(self, x: Array) -> Any:
        """The module of functions to compute on ``x`` with (array API names)."""

    @abstractmethod
    def is_inexact(self, x: Array) -> bool:
        """Whether ``x`` is real or complex floating point, and so can be differentiated."""

    def is_complex(self, x: Array) -> bool:
        """Whether ``x`` has a complex dtype."""
        return "complex" in str(x.dtype)

    @abstractmethod
    def to_numpy(self, x: Array) -> np.ndarray[Any, Any] | None:
        """A NumPy view of ``x`` that shares its memory, or ``None`` where there is none."""

    @abstractmethod
    def from_numpy(self, x: np.ndarray[Any, Any]) -> tuple[Array, bool]:
        """``x`` as an array of this library, and whether it shares the memory of ``x``."""

    @abstractmethod
    def to_dlpack(self, x: Array) -> Any:
        """An object with ``__dlpack__`` that shares the memory of ``x`` and is safe to export."""

    @abstractmethod
    def from_dlpack(self, x: Any) -> Array:
        """An array of this library that shares the memory of the DLPack exporter ``x``."""

    @abstractmethod
    def copy(self, x: Array) -> Array:
        """A copy of ``x`` in memory of its own."""

    def protect(self, x: Array) -> Array:
        """An alias of ``x`` that refuses to be written into; ``x`` itself if there is no such thing."""
        return x

    def version(self, x: Array) -> int:
        """A number that changes when ``x`` is written into."""
        return 0

    def writable(self, x: Array, *, fresh: bool) -> Array:
        """``x`` as a caller may keep it; ``fresh`` says that nobody else holds its memory."""
        return x

    def eye(self, n: int, like: Array) -> Array:
        """The identity matrix of size ``n`` with the dtype and device of ``like``."""
        return self.namespace(like).eye(n, dtype=like.dtype)

    def zeros(self, spec: ArraySpec) -> Array:
        """Zeros of a shape and dtype, on the CPU or the default device."""
        return self.from_numpy(np.zeros(spec.shape, dtype=spec.dtype))[0]

    def detach(self, x: Array) -> Array:
        """``x`` without what an engine remembers about how it was computed."""
        return x

    @property
    def host(self) -> Host | None:
        """How this library's engine meets functions that it cannot see into; ``None`` if it never does."""
        return None

    def ones_like(self, x: Array) -> Array:
        """An array of ones like ``x``."""
        return self.namespace(x).ones_like(x)

    def join(self, parts: Sequence[Array]) -> Array:
        """The arrays one after the other along axis 0."""
        return self.namespace(parts[0]).concatenate(parts)

    def scalar(self, value: complex, like: Array) -> Array:
        """A 0-d array with the dtype and device of ``like``."""
        xp = self.namespace(like)
        return xp.asarray(value, dtype=like.dtype)

    def conceal(self, function: Callable[..., Any]) -> None:  # noqa: B027 (most engines compile no Python code)
        """Tells a compiler of Python code that this engine may have to leave ``function`` alone."""

    def scope(self, specs: Sequence[ArraySpec]) -> Scope | None:
        """A context to enter around everything done with arrays of these specifications, if one is needed."""
        return None

    def open_node(self, node: Any) -> tuple[Callable[[Any], Any], Callable[[Any, Any], Any]] | None:
        """How to open a pytree node that this engine knows, and only it may know.

        Returns:
            ``None`` if ``node`` is a leaf for this engine; else ``(open, close)`` with
            ``open(node) -> (children, key, rebuild)`` and ``close(rebuild, children) -> node``.
            Nodes with equal keys have the same structure; ``rebuild`` must hold no arrays.
        """
        return None


class Host(ABC):
    """An engine in the part of meeting, while it differentiates, a function that it cannot see into."""

    @abstractmethod
    def follows(self, x: Array) -> bool:
        """Whether the engine is differentiating by, mapping over or tracing ``x`` just now."""

    @abstractmethod
    def foreign_call(self, function: ForeignFunction, arrays: Sequence[Array]) -> Sequence[Array]:
        """The results of ``function``, followed by the engine as its rules say."""


class Guest(ABC):
    """An engine in the part of differentiating functions written in its own arrays.

    ``function`` is always ``function(*xs) -> (ys, aux)`` on tuples of the engine's arrays. All of
    ``xs`` and ``ys`` are real or complex floating-point arrays; constants are closed over.

    Pullbacks are the adjoint with respect to the real inner product ``Re⟨a, b⟩``: for a real
    function of a complex argument the pullback of 1 is the direction of steepest ascent.
    """

    name: str
    library: ArrayLibrary | None
    """The engine's arrays; ``None``: the function is called with the caller's own."""
    modes: frozenset[str]
    vectorized: bool = False
    """Whether the batched forms are one call instead of a loop."""
    nests: bool = False
    """Whether functions made of this guest's derivatives can be differentiated by it again."""
    numeric: bool = False
    """Whether derivatives come from values alone."""
    fresh_outputs: bool = False
    """Whether no result of a compiled run shares memory with what the pullback has kept."""
    captures: bool = False
    """Whether what ``compile`` gives goes on with the objects that a function referred to when it was traced."""
    once: bool = True
    """Whether a value-and-pullback runs the function exactly once."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def devices(self) -> tuple[str, ...]:
        """The devices that the engine can use on this machine."""
        return ("cpu",)

    def adopt(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """The user's function as this engine wants to run it (compiled, say)."""
        return f

    def admit(self, x: Array, source: ArrayLibrary, target: ArrayLibrary) -> Array:
        """An argument ``x`` of another library, as this engine wants it."""
        from diface._exchange import convert  # not at the top: that module is built on this one

        return convert(x, source, target)

    def release(self, x: Array, result: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """A NumPy view ``result`` of an output ``x``, made such that the caller may write into it."""
        return result if result.flags.writeable else np.array(result)

    def output_sizes(self, function: Function, xs: Arrays) -> int | None:
        """How many numbers ``function(*xs)`` returns, found without running it; ``None``: unknown."""
        return None

    def compile(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """``run(*arrays) -> (nested tuples of arrays, structure)``, made fast for repeated calls.

        ``structure`` is static: it must be returned as it was when ``run`` was traced.
        """
        return run

    @abstractmethod
    def value_and_pushforward(self, function: Function, xs: Arrays, txs: Arrays) -> Results:
        """``(ys, aux, tys)`` with ``tys = J txs``."""

    @abstractmethod
    def value_and_pullback(self, function: Function, xs: Arrays) -> tuple[Arrays, Arrays, PullbackMap]:
        """``(ys, aux, pull)`` with ``pull(cotangents) = Jᵀ cotangents``, callable any number of times."""

    def value_and_gradient(self, function: Function, xs: Arrays, seed: Callable[[Arrays], Arrays]) -> Results:
        """``(ys, aux, pull(seed(ys)))``: the pullback is used once, which some engines do faster."""
        ys, aux, pull = self.value_and_pullback(function, xs)
        return ys, aux, pull(seed(ys))

    def direct_gradient(self, f: Callable[..., Array], count: int) -> Callable[..., Any] | None:
        """A shortcut for the commonest call, where Python's own overhead would be felt.

        Returns:
            A function of ``count`` bare arrays, all to be differentiated, that gives ``(y, *gs)`` for
            a bare real 0-d ``y``, or ``None`` wherever anything is out of the ordinary: then the
            general way is taken from the start. ``None`` if the engine has no such shortcut.
        """
        return None

    def value_and_batched_pushforward(self, function: Function, xs: Arrays, txs: Arrays, size: int) -> Results:
        """As ``value_and_pushforward``, each tangent with a leading axis of length ``size``."""
        raise NotImplementedError(f"{self.name} declares no batched pushforward")

    def batched_pullback(self, pull: PullbackMap, cotangents: Arrays, size: int) -> Arrays:
        """``pull`` of each of ``size`` cotangents along a leading axis."""
        raise NotImplementedError(f"{self.name} declares no batched pullback")

    def close(self, linear: Callable[..., Arrays], *arrays: Any) -> PullbackMap:
        """``vectors -> linear(*arrays, vectors)``, as something that may leave a compiled run."""
        return functools.partial(linear, *arrays)

    def vectorize(self, function: Callable[..., Arrays], axes: tuple[bool, ...]) -> Callable[..., Arrays] | None:
        """``function`` mapped over the leading axis where ``axes`` is set; ``None``: by a loop in core."""
        return None

    def evaluate_shapes(self, function: Callable[..., Arrays], specs: Sequence[ArraySpec]) -> Any:
        """``(shape, dtype name)`` of each result of ``function``, found without values.

        Returns ``None`` where the engine has no such evaluation, or it fails on this function.
        """
        return None

    def value_and_linear_map(self, function: Function, xs: Arrays) -> tuple[Arrays, Arrays, PullbackMap]:
        """``(ys, aux, push)`` with ``push(tangents) = J tangents``."""
        ys, aux = function(*xs)

        def push(txs: Arrays) -> Arrays:
            return self.value_and_pushforward(function, xs, txs)[2]

        return ys, aux, push

    def call_linear(self, linear: PullbackMap, vectors: Arrays) -> Arrays:
        """``linear(vectors)`` for a map that came out of a compiled run."""
        return linear(vectors)

    def value_gradient_and_batched_hvp(
        self, function: Function, xs: Arrays, txs: Arrays, size: int, seed: Callable[[Arrays], Arrays]
    ) -> tuple[Arrays, Arrays, Arrays, Arrays]:
        """``(ys, aux, gs, Hts)`` of a scalar function; only of a numeric guest."""
        raise NotImplementedError(f"{self.name} declares no second order of its own")

    def value_and_two_pushforwards(
        self, function: Function, xs: Arrays, txs: Arrays
    ) -> tuple[Arrays, Arrays, Arrays, Arrays]:
        """``(ys, aux, J t, d²f[t, t])``; only of a numeric guest."""
        raise NotImplementedError(f"{self.name} declares no second order of its own")

    def explain_failure(self, error: BaseException) -> str | None:
        """A hint for the user when ``error`` came out of a run, or ``None``."""
        return None

    def is_write_error(self, error: BaseException) -> bool:
        """Whether ``error`` says that the function tried to write into a protected input."""
        return isinstance(error, ValueError) and "read-only" in str(error)
