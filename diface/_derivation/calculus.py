"""First-order pieces on tuples of arrays, from whichever mode the engine has.

Where the wanted mode is missing, the other one over a basis gives the same numbers, exactly.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence

from diface._engine import Array, ArrayLibrary, Arrays, Function, Guest, PullbackMap, Results
from diface.errors import PerformanceWarning

__all__ = ["Calculus"]

# A basis of n directions for n numbers takes n² numbers: beyond this it is taken in blocks.
_BLOCK_ELEMENTS = 2**24


class Calculus:
    """An engine, the modes that may be used, and what follows from them.

    Args:
        guest: The engine.
        library: The library of its arrays (for an engine of no own library, the caller's).
        modes: The modes that may be used: those of the engine, or the one that the user forced.
        label: ``operator(backend)``, for messages.
    """

    def __init__(self, guest: Guest, library: ArrayLibrary, modes: frozenset[str], label: str) -> None:
        self.guest = guest
        self.library = library
        self.modes = modes
        self.label = label
        self.forward = "forward" in modes
        self.reverse = "reverse" in modes

    # ---- directions ------------------------------------------------------------------------

    def basis(self, xs: Arrays) -> Iterator[tuple[Arrays, int]]:
        """The unit tangents of ``xs`` in blocks: tangents with a leading axis, and its length."""
        sizes = [math.prod(x.shape) for x in xs]
        total = sum(sizes)
        rows = max(1, _BLOCK_ELEMENTS // max(total, 1))
        if total <= rows:
            if total:
                yield self._block(xs, sizes, total, 0, total), total
            return
        for start in range(0, total, rows):
            stop = min(start + rows, total)
            yield self._block(xs, sizes, total, start, stop), stop - start

    def _block(self, xs: Arrays, sizes: list[int], total: int, start: int, stop: int) -> Arrays:
        block, offset = [], 0
        for x, size in zip(xs, sizes, strict=True):
            eye = self.library.eye(total, x)[start:stop, offset : offset + size]
            block.append(self.library.namespace(x).reshape(eye, (stop - start, *x.shape)))
            offset += size
        return tuple(block)

    def zeros(self, x: Array) -> Array:
        return self.library.namespace(x).zeros_like(x)

    def stack(self, arrays: Sequence[Array]) -> Array:
        return self.library.namespace(arrays[0]).stack(arrays)

    def inner(self, a: Array, b: Array) -> Array:
        """Re⟨a, b⟩ over all axes of b; ``a`` may have a leading batch axis."""
        xp = self.library.namespace(b)
        n = math.prod(b.shape)
        a = xp.reshape(a, (*a.shape[: len(a.shape) - len(b.shape)], n))
        b = xp.reshape(b, (n,))
        if self.is_complex(a) or self.is_complex(b):
            return xp.real(xp.sum(xp.conj(a) * b, axis=-1))
        return xp.sum(a * b, axis=-1)

    def is_complex(self, x: Array) -> bool:
        return self.library.is_complex(x)

    # ---- forward ---------------------------------------------------------------------------

    def pushforward(self, function: Function, xs: Arrays, txs: Arrays) -> Results:
        """``(ys, aux, J txs)``."""
        if self.forward:
            return self.guest.value_and_pushforward(function, xs, txs)
        ys, aux, rows = self._pullback_rows(function, xs)
        return ys, aux, self._push_rows(ys, rows, txs)

    def pushforward_map(self, function: Function, xs: Arrays) -> tuple[Arrays, Arrays, PullbackMap]:
        """``(ys, aux, push)``."""
        if self.forward:
            return self.guest.value_and_linear_map(function, xs)
        ys, aux, rows = self._pullback_rows(function, xs)
        return ys, aux, self.guest.close(self._push_rows, ys, rows)

    def batched_pushforward(self, function: Function, xs: Arrays, txs: Arrays, size: int) -> Results:
        """As ``pushforward``, for ``size`` tangents along a leading axis."""
        ys: Arrays = ()
        aux: Arrays = ()
        if size == 0:
            ys, aux = function(*xs)
            return ys, aux, tuple(self.library.namespace(y).zeros((0, *y.shape), dtype=y.dtype) for y in ys)
        if self.forward and self.guest.vectorized:
            return self.guest.value_and_batched_pushforward(function, xs, txs, size)
        if not self.forward:
            ys, aux, rows = self._pullback_rows(function, xs)
            results = [list(self._push_rows(ys, rows, tuple(t[i] for t in txs))) for i in range(size)]
        else:
            results = []
            for i in range(size):
                ys, aux, tys = self.guest.value_and_pushforward(function, xs, tuple(t[i] for t in txs))
                results.append(list(tys))
        return ys, aux, tuple(self.stack([row[k] for row in results]) for k in range(len(ys)))

    def _pullback_rows(self, function: Function, xs: Arrays) -> tuple[Arrays, Arrays, list[list[Arrays]]]:
        """J by reverse mode: for each y, for each turn (1, and 1j where y is complex), its rows."""
        ys, aux, pull = self.guest.value_and_pullback(function, xs)
        self._warn_derived("forward", "pullbacks", ys)
        ones = self.rows(pull, ys)
        turned = self.rows(pull, ys, 1j) if any(self.is_complex(y) for y in ys) else ones
        return ys, aux, [
            [ones[k], turned[k]] if self.is_complex(y) else [ones[k]] for k, y in enumerate(ys)
        ]

    def _push_rows(self, ys: Arrays, rows: list[list[Arrays]], txs: Arrays) -> Arrays:
        # Re⟨Jᵀe, t⟩ = Re⟨e, J t⟩ is the real part of an element of J t, and with i·e the imaginary part.
        return tuple(
            self._shaped(y, [self._total(parts, txs) for parts in turns]) for y, turns in zip(ys, rows, strict=True)
        )

    # ---- reverse ---------------------------------------------------------------------------

    def pullback(self, function: Function, xs: Arrays) -> tuple[Arrays, Arrays, PullbackMap]:
        """``(ys, aux, pull)``."""
        if self.reverse:
            return self.guest.value_and_pullback(function, xs)
        self._warn_derived("reverse", "pushforwards", xs)
        ys, aux, columns = self.columns(function, xs)
        return ys, aux, self.guest.close(self._pull_columns, xs, columns)

    def gradient(self, function: Function, xs: Arrays, seed: Callable[[Arrays], Arrays]) -> Results:
        """``(ys, aux, gradient)``, with the cotangent ``seed(ys)``."""
        if self.reverse:
            return self.guest.value_and_gradient(function, xs, seed)
        self._warn_derived("reverse", "pushforwards", xs)
        ys, aux, columns = self.columns(function, xs)
        return ys, aux, self._pull_columns(xs, columns, seed(ys))

    def batched_pull(self, pull: PullbackMap, cts: Arrays, size: int, xs: Arrays) -> Arrays:
        """``pull`` of each of ``size`` cotangents along a leading axis, to be like ``xs``."""
        if size == 0:
            return tuple(self.library.namespace(x).zeros((0, *x.shape), dtype=x.dtype) for x in xs)
        if self.reverse and self.guest.vectorized:
            return self.guest.batched_pullback(pull, cts, size)
        results = [pull(tuple(c[i] for c in cts)) for i in range(size)]
        return tuple(self.stack([row[k] for row in results]) for k in range(len(results[0])))

    def _pull_columns(self, xs: Arrays, columns: list[list[Arrays]], cts: Arrays) -> Arrays:
        return tuple(
            self._shaped(x, [self._total(parts, cts) for parts in turns]) for x, turns in zip(xs, columns, strict=True)
        )

    def _total(self, parts: Arrays, vectors: Arrays) -> Array:
        """The sum of ``Re⟨part, vector⟩``."""
        total = self.inner(parts[0], vectors[0])
        for part, vector in zip(parts[1:], vectors[1:], strict=True):
            total = total + self.inner(part, vector)
        return total

    def _shaped(self, like: Array, turns: list[Array]) -> Array:
        """An array like ``like`` from its real (and imaginary) parts."""
        flat = turns[0] + 1j * turns[1] if len(turns) == 2 else turns[0]
        return self.library.namespace(like).reshape(flat, like.shape)

    # ---- whole matrices --------------------------------------------------------------------

    def columns(self, function: Function, xs: Arrays) -> tuple[Arrays, Arrays, list[list[Arrays]]]:
        """J by forward mode: for each x, for each turn (1, and 1j where x is complex), its columns.

        Each entry is a tuple over ys of arrays of shape ``(x.size, *y.shape)``.
        """
        ys, aux, ones = self._sweep(function, xs, 1)
        turned: list[Arrays] | None = None
        if any(self.is_complex(x) for x in xs):
            turned = self._sweep(function, xs, 1j)[2]
        return ys, aux, [
            [ones[k], turned[k]] if turned is not None and self.is_complex(x) else [ones[k]]
            for k, x in enumerate(xs)
        ]

    def _sweep(self, function: Function, xs: Arrays, turn: complex) -> tuple[Arrays, Arrays, list[Arrays]]:
        ys: Arrays = ()
        aux: Arrays = ()
        blocks: list[Arrays] = []
        for tangents, size in self.basis(xs):
            ys, aux, tys = self.batched_pushforward(function, xs, self._turned(tangents, turn), size)
            blocks.append(tys)
        if not blocks:
            ys, aux = function(*xs)
            blocks = [tuple(self.library.namespace(y).zeros((0, *y.shape), dtype=y.dtype) for y in ys)]
        whole = self.join(blocks)
        return ys, aux, self.split(whole, [math.prod(x.shape) for x in xs])

    def rows(self, pull: PullbackMap, ys: Arrays, turn: complex = 1) -> list[Arrays]:
        """J by reverse mode: for each y a tuple over xs of arrays of shape ``(y.size, *x.shape)``."""
        blocks = [
            self.batched_pull(pull, self._turned(cotangents, turn), size, ())
            for cotangents, size in self.basis(ys)
        ]
        if not blocks:
            zero = pull(tuple(self.zeros(y) for y in ys))
            blocks = [self.batched_pull(pull, (), 0, zero)]
        return self.split(self.join(blocks), [math.prod(y.shape) for y in ys])

    def _turned(self, vectors: Arrays, turn: complex) -> Arrays:
        """The complex ones among ``vectors`` times ``turn``, the real ones left out."""
        return vectors if turn == 1 else tuple(v * turn if self.is_complex(v) else v * 0 for v in vectors)

    def join(self, blocks: list[Arrays]) -> Arrays:
        if len(blocks) == 1:
            return blocks[0]
        return tuple(self.library.join(parts) for parts in zip(*blocks, strict=True))

    def split(self, whole: Arrays, sizes: list[int]) -> list[Arrays]:
        parts, offset = [], 0
        for size in sizes:
            parts.append(tuple(w[offset : offset + size] for w in whole))
            offset += size
        return parts

    def _warn_derived(self, missing: str, calls: str, vectors: Arrays) -> None:
        """Tells what it costs that the engine lacks a mode (a mode that the user forbade is no lack)."""
        count = sum(math.prod(v.shape) for v in vectors)
        if missing in self.guest.modes or (self.guest.numeric and count <= _QUIET_EVALUATIONS):
            return
        warnings.warn(
            f"{self.label}: {self.guest.name} has no {missing} mode, so this takes {count} {calls}. "
            f"Use an engine with {missing} mode if that is too slow.",
            PerformanceWarning,
            stacklevel=2,
        )


# Whoever chooses finite differences expects one evaluation a direction; a large number is told.
_QUIET_EVALUATIONS = 1000
