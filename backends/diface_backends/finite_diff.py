"""Finite differences: derivatives of any function, from its values alone.

Steps balance truncation and rounding: ε^(1/3) for a central first difference, ε^(1/2) for a one-sided
one, ε^(1/4) for a second difference, times the magnitude of what is moved. Source: P. Gill, W. Murray
and M. Wright, *Practical Optimization*, Academic Press (1981), section 8.6.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np

from diface import AutoFiniteDiff
from diface.errors import BackendNotInstalledError
from diface.extend import Arrays, Function, Guest, PullbackMap, Results, Run, library_of
from diface_backends.numeric import (
    assemble,
    directions,
    displaced,
    epsilon,
    magnitude,
    numbers,
    real_directions,
    stack,
)

__all__ = ["FiniteDiffGuest"]


class FiniteDiffGuest(Guest):
    """Differentiates functions of any arrays by differences."""

    specification = AutoFiniteDiff
    name = "finite_diff"
    library = None
    modes = frozenset({"forward"})
    vectorized = True  # it wants a whole batch at once, to spread the evaluations
    numeric = True
    once = False

    def __init__(self, backend: AutoFiniteDiff) -> None:
        super().__init__(backend)
        self._central = backend.method == "central"
        self._step = backend.step
        self._executor = backend.executor
        self._progress = backend.progress

    def value_and_pullback(self, function: Function, xs: Arrays) -> tuple[Arrays, Arrays, PullbackMap]:
        raise NotImplementedError("finite_diff has no reverse mode; core derives it from pushforwards")

    def value_and_pushforward(self, function: Function, xs: Arrays, txs: Arrays) -> Results:
        ys, aux, rows = self._pushforwards(function, xs, [txs])
        return ys, aux, rows[0]

    def value_and_batched_pushforward(self, function: Function, xs: Arrays, txs: Arrays, size: int) -> Results:
        ys, aux, rows = self._pushforwards(function, xs, directions(txs, size))
        return ys, aux, stack(rows)

    def value_gradient_and_batched_hvp(
        self, function: Function, xs: Arrays, txs: Arrays, size: int, seed: Callable[[Arrays], Arrays]
    ) -> tuple[Arrays, Arrays, Arrays, Arrays]:
        units = real_directions(xs)
        ys, aux, slopes = self._pushforwards(function, xs, units)
        seed(ys)  # refuses anything but one real number
        gradients = assemble(xs, [slope[0] for slope in slopes])
        values, base = [numbers(x) for x in xs], 0.25
        along = directions(txs, size)
        steps = [self._size(values, t, xs, base) for t in along]
        unit_steps = [self._size(values, e, xs, base) for e in units]
        points = []
        for t, k in zip(along, steps, strict=True):
            for e, h in zip(units, unit_steps, strict=True):
                for a, b in ((k, h), (k, -h), (-k, h), (-k, -h)):
                    points.append(displaced(displaced(xs, a, t), b, e))
        outs = iter(self._evaluate(function, points, len(points)))
        products = []
        for k in steps:
            row = []
            for h in unit_steps:
                pp, pm, mp, mm = (next(outs)[0] for _ in range(4))
                row.append((pp - pm - mp + mm) * _inverse(4 * h * k))
            products.append(assemble(xs, row))
        return ys, aux, gradients, stack(products)

    def value_and_two_pushforwards(
        self, function: Function, xs: Arrays, txs: Arrays
    ) -> tuple[Arrays, Arrays, Arrays, Arrays]:
        ys, aux, rows = self._pushforwards(function, xs, [txs])
        h = self._size([numbers(x) for x in xs], txs, xs, 0.25)
        ahead, behind = self._evaluate(function, [displaced(xs, h, txs), displaced(xs, -h, txs)], 2)
        second = tuple([(a - 2 * y + b) * _inverse(h * h) for a, y, b in zip(ahead, ys, behind, strict=True)])
        return ys, aux, rows[0], second

    # ---- first differences ----------------------------------------------------------------------

    def _pushforwards(
        self, function: Function, xs: Arrays, along: Sequence[Arrays]
    ) -> tuple[Arrays, Arrays, list[Arrays]]:
        ys, aux = function(*[_copy(x) for x in xs])
        values = [numbers(x) for x in xs]
        exponent = 1 / 3 if self._central else 1 / 2
        steps = [self._size(values, t, xs, exponent) for t in along]

        def points() -> Iterator[Arrays]:
            for t, h in zip(along, steps, strict=True):
                yield displaced(xs, h, t)
                if self._central:
                    yield displaced(xs, -h, t)

        count = len(along) * (2 if self._central else 1)
        outs = iter(self._evaluate(function, points(), count))
        rows = []
        for t, h in zip(along, steps, strict=True):
            ahead = next(outs)
            behind = next(outs) if self._central else ys
            width = self._width(xs, t, h)
            rows.append(tuple([(a - b) * _inverse(width) for a, b in zip(ahead, behind, strict=True)]))
        return ys, aux, rows

    def _size(self, values: Sequence[np.ndarray[Any, Any]], t: Arrays, xs: Arrays, exponent: float) -> float:
        """The step h in ``x + h t``: a power of two, so that ``h t`` is exact."""
        size, largest = magnitude(values, [numbers(v) for v in t])
        if largest == 0.0 or not np.isfinite(largest):
            return 1.0
        if self._step is not None:
            return self._step / largest
        if not np.isfinite(size):
            size = 1.0
        return float(2.0 ** np.round(np.log2(epsilon(xs) ** exponent * size / largest)))

    def _width(self, xs: Arrays, t: Arrays, h: float) -> float:
        """How far apart the points really are along ``t``, after the rounding of ``x + h t``."""
        moved, norm = 0.0, 0.0
        ends = (displaced(xs, h, t), displaced(xs, -h, t) if self._central else xs)
        for a, b, v in zip(*ends, t, strict=True):
            unit = numbers(v)
            moved += float(np.sum(np.real(np.conj(unit) * (numbers(a) - numbers(b)))))
            norm += float(np.sum(np.abs(unit) ** 2))
        width = moved / norm if norm else 0.0
        return width if np.isfinite(width) and width else (2 * h if self._central else h)

    # ---- evaluations ----------------------------------------------------------------------------

    def _evaluate(self, function: Function, points: Iterable[Arrays], count: int) -> list[Arrays]:
        """``ys`` at each point, in order; spread over the executor, with a bar, as asked for."""
        with _bar(count) if self._progress else contextlib.nullcontext(lambda: None) as advance:
            if self._executor is None:
                outs = []
                for point in points:
                    outs.append(function(*point)[0])
                    advance()
                return outs
            return _spread(self._executor, function, points, advance)


def _spread(
    executor: Executor, function: Function, points: Iterable[Arrays], advance: Callable[[], None]
) -> list[Arrays]:
    if not isinstance(function, Run):
        futures = [executor.submit(function, *point) for point in points]
        accept: Callable[[Any], Any] = _identity
    else:
        # What travels is the user's own function and its arguments: nothing of ours to pickle.
        futures = [executor.submit(function.f, *function.arguments(point)) for point in points]
        accept = function.accept
    outs = []
    try:
        for future in futures:
            outs.append(accept(future.result())[0])
            advance()
    finally:
        for future in futures:
            future.cancel()
    return outs


def _identity(result: Any) -> Any:
    return result


@contextlib.contextmanager
def _bar(count: int) -> Iterator[Callable[[], None]]:
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ModuleNotFoundError as error:
        raise BackendNotInstalledError(
            "AutoFiniteDiff(progress=True) needs rich, which is not installed. "
            'Run: pip install "diface[cli]", or use progress=False.'
        ) from error
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("finite differences", total=count)
        yield lambda: progress.advance(task)


def _inverse(h: float) -> float:
    return 1.0 / h


def _copy(x: Any) -> Any:
    library = library_of(x)
    assert library is not None
    return library.copy(x)

