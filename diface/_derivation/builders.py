"""What each operator computes, on tuples of arrays, for any engine.

A builder gets a ``Task`` and gives ``run(*arrays) -> ((ys, carried, *outs), structure)``, which the
engine may compile as a whole. ``arrays`` are those of the arguments, then those of the direction.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from diface import _pytree
from diface._engine import Array, ArrayLibrary, Arrays, Function, PullbackMap
from diface._functions import SINGLE, Run, Structure
from diface.errors import ArgumentMismatchError, NotDifferentiableError, NotScalarError, UnsupportedError

if TYPE_CHECKING:
    from diface._task import Direction, Task

__all__ = ["BUILDERS", "Build"]

Build = Callable[["Task"], Callable[..., Any]]


def value(task: Task) -> Callable[..., Any]:
    def run(*arrays: Array) -> Any:
        call = task.run_of(arrays)
        return call(*task.active_of(arrays)), call.structure

    return run


def gradient(task: Task) -> Callable[..., Any]:
    calculus, seed = task.calculus, task.seed

    def run(*arrays: Array) -> Any:
        call = task.run_of(arrays)
        ys, carried, gs = calculus.gradient(call, task.active_of(arrays), seed)
        return (ys, carried, gs), call.structure

    return run


def derivative(task: Task) -> Callable[..., Any]:
    calculus = task.calculus

    def run(*arrays: Array) -> Any:
        call, xs = task.run_of(arrays), task.active_of(arrays)
        ys, carried, tys = calculus.pushforward(call, xs, task.ones(xs))
        return (ys, carried, tys), call.structure

    return run


def pushforward(task: Task) -> Callable[..., Any]:
    calculus, size = task.calculus, task.batch

    def run(*arrays: Array) -> Any:
        call, xs = task.run_of(arrays), task.active_of(arrays)
        txs = task.direction_of(arrays)
        if size is None:
            ys, carried, tys = calculus.pushforward(call, xs, txs)
        else:
            ys, carried, tys = calculus.batched_pushforward(call, xs, txs, size)
        return (ys, carried, tys), call.structure

    return run


def pullback(task: Task) -> Callable[..., Any]:
    calculus, size = task.calculus, task.batch

    def run(*arrays: Array) -> Any:
        call, xs = task.run_of(arrays), task.active_of(arrays)
        if size is None:
            ys, carried, txs = calculus.gradient(call, xs, lambda ys: task.cotangents(arrays, ys, call))
        else:
            ys, carried, pull = calculus.pullback(call, xs)
            cts = task.cotangents(arrays, ys, call)
            txs = calculus.batched_pull(pull, cts, size, xs)
        return (ys, carried, txs), call.structure

    return run


def pullback_function(task: Task) -> Callable[..., Any]:
    calculus = task.calculus

    def run(*arrays: Array) -> Any:
        call = task.run_of(arrays)
        ys, carried, pull = calculus.pullback(call, task.active_of(arrays))
        return (ys, carried, pull), call.structure

    return run


def pushforward_function(task: Task) -> Callable[..., Any]:
    calculus = task.calculus

    def run(*arrays: Array) -> Any:
        call, xs = task.run_of(arrays), task.active_of(arrays)
        ys, carried, push = calculus.pushforward_map(call, xs)
        return (ys, carried, push), call.structure

    return run


def jacobian(task: Task) -> Callable[..., Any]:
    calculus = task.calculus

    def run(*arrays: Array) -> Any:
        call, xs = task.run_of(arrays), task.active_of(arrays)
        ys: Arrays = ()
        carried: Arrays = ()
        matrix: list[list[Array]] | None = None
        if not task.prefers_forward(call, xs):
            ys, carried, pull = calculus.pullback(call, xs)
            # Only now do some engines know how many rows there are.
            complex_ys = calculus.forward and any(calculus.is_complex(y) for y in ys)
            if not complex_ys and not task.is_tall(sum(math.prod(y.shape) for y in ys), xs):
                matrix = _by_rows(task, xs, ys, pull)
        if matrix is None:
            ys, carried, columns = calculus.columns(call, xs)
            matrix = [[_from_columns(task, x, y, turns, k) for x, turns in zip(xs, columns, strict=True)]
                      for k, y in enumerate(ys)]
        _require_all(task, call)
        return (ys, carried, tuple(map(tuple, matrix))), call.structure

    return run


def _from_columns(task: Task, x: Array, y: Array, turns: list[Arrays], k: int) -> Array:
    """The block of J for one output and one input, from its columns."""
    xp = task.library.namespace(y)
    block = xp.moveaxis(turns[0][k], 0, -1)
    if len(turns) == 2:
        turned = xp.moveaxis(turns[1][k], 0, -1)
        if task.calculus.is_complex(y):
            # Analytic: J(i·e) = i·J(e). Where it is not, NaN says so instead of half the truth.
            gap = xp.abs(turned - 1j * block)
            scale = xp.abs(block) + xp.abs(turned)
            slack = 1e-5 * xp.max(scale) if math.prod(block.shape) else 0.0
            slack = slack + (1e-3 if task.guest.numeric else 1e-30)  # the noise of differences, near zero
            block = xp.where(gap <= 1e-3 * scale + slack, block, block * xp.nan)
        else:
            block = block + 1j * turned
    return xp.reshape(block, (*y.shape, *x.shape))


def _by_rows(task: Task, xs: Arrays, ys: Arrays, pull: PullbackMap) -> list[list[Array]]:
    if any(task.calculus.is_complex(v) for v in (*xs, *ys)):
        raise UnsupportedError(
            f"{task.label}: a jacobian with complex numbers is taken in forward mode; this backend is held to "
            "reverse mode. Drop mode='reverse', or use diface.pullback."
        )
    xp = task.library.namespace
    return [
        [xp(r).reshape(r, (*y.shape, *x.shape)) for x, r in zip(xs, row, strict=True)]
        for y, row in zip(ys, task.calculus.rows(pull, ys), strict=True)
    ]


def _require_all(task: Task, call: Run) -> None:
    if call.structure is not SINGLE and any(k < 0 for k in call.structure.kinds):
        raise NotDifferentiableError(
            f"{task.label}: f returned integers or booleans, which have no derivative. "
            "Return them as auxiliary data: has_aux=True, return (y, aux)."
        )


# ---- second order --------------------------------------------------------------------------


def _gradient_function(task: Task, call: Run) -> Function:
    """``(*xs) -> (gs, (*ys, *carried))``."""

    def function(*xs: Array) -> tuple[Arrays, Arrays]:
        ys, carried, gs = task.calculus.gradient(call, xs, task.seed)
        return gs, (*ys, *carried)

    return function


def hvp(task: Task) -> Callable[..., Any]:
    calculus, guest, size = task.calculus, task.guest, task.batch

    def run(*arrays: Array) -> Any:
        call, xs = task.run_of(arrays), task.active_of(arrays)
        txs = task.direction_of(arrays)
        if guest.numeric and size == 0:
            ys, carried, gs = calculus.gradient(call, xs, task.seed)
            empty = tuple(task.library.namespace(x).zeros((0, *x.shape), dtype=x.dtype) for x in xs)
            return (ys, carried, gs, empty), call.structure
        if guest.numeric:
            stacked = txs if size is not None else tuple(t[None] for t in txs)
            ys, carried, gs, hvs = guest.value_gradient_and_batched_hvp(call, xs, stacked, size or 1, task.seed)
            if size is None:
                hvs = tuple(h[0] for h in hvs)
            return (ys, carried, gs, hvs), call.structure
        function = _gradient_function(task, call)
        if size is not None and not calculus.forward:
            gs, extra, pull = calculus.pullback(function, xs)
            hvs = calculus.batched_pull(pull, txs, size, xs)
        elif size is not None:
            gs, extra, hvs = calculus.batched_pushforward(function, xs, txs, size)
        elif not calculus.forward:
            gs, extra, pull = calculus.pullback(function, xs)
            hvs = pull(txs)
        else:
            gs, extra, hvs = calculus.pushforward(function, xs, txs)
        return (extra[:1], extra[1:], gs, hvs), call.structure

    return run


def hessian(task: Task) -> Callable[..., Any]:
    calculus, guest = task.calculus, task.guest

    def run(*arrays: Array) -> Any:
        call, xs = task.run_of(arrays), task.active_of(arrays)
        task.refuse_complex_hessian(xs)
        if guest.numeric:
            ys, carried, gs, columns = _numeric_hessian(task, call, xs)
        elif calculus.forward:
            gs, extra, turns = calculus.columns(_gradient_function(task, call), xs)
            ys, carried, columns = extra[:1], extra[1:], [turn[0] for turn in turns]
        else:
            gs, extra, pull = calculus.pullback(_gradient_function(task, call), xs)
            ys, carried, columns = extra[:1], extra[1:], calculus.rows(pull, gs)
        xp = task.library.namespace
        # A Hessian is symmetric, so its rows (reverse) serve as its columns (forward).
        matrix = tuple(
            tuple(
                xp(g).reshape(xp(g).moveaxis(column[k], 0, -1), (*g.shape, *x.shape))
                for x, column in zip(xs, columns, strict=True)
            )
            for k, g in enumerate(gs)
        )
        return (ys, carried, gs, matrix), call.structure

    return run


def _numeric_hessian(task: Task, call: Run, xs: Arrays) -> Any:
    calculus = task.calculus
    blocks, ys, carried, gs = [], (), (), ()
    for tangents, size in calculus.basis(xs):
        ys, carried, gs, hvs = task.guest.value_gradient_and_batched_hvp(call, xs, tangents, size, task.seed)
        blocks.append(hvs)
    if not blocks:
        ys, carried, gs = calculus.gradient(call, xs, task.seed)
        blocks = [tuple(task.library.namespace(x).zeros((0, *x.shape), dtype=x.dtype) for x in xs)]
    whole = calculus.join(blocks)
    return ys, carried, gs, calculus.split(whole, [math.prod(x.shape) for x in xs])


def second_derivative(task: Task) -> Callable[..., Any]:
    calculus, guest = task.calculus, task.guest

    def run(*arrays: Array) -> Any:
        call, xs = task.run_of(arrays), task.active_of(arrays)
        if guest.numeric:
            ys, carried, tys, ttys = guest.value_and_two_pushforwards(call, xs, task.ones(xs))
            return (ys, carried, tys, ttys), call.structure
        count = 0

        def first(*xs: Array) -> tuple[Arrays, Arrays]:
            nonlocal count
            ys, carried, tys = calculus.pushforward(call, xs, task.ones(xs))
            count = len(ys)
            return tys, (*ys, *carried)

        tys, extra, ttys = calculus.pushforward(first, xs, task.ones(xs))
        return (extra[:count], extra[count:], tys, ttys), call.structure

    return run


BUILDERS: dict[str, Build] = {
    "value": value,
    "gradient": gradient,
    "derivative": derivative,
    "pushforward": pushforward,
    "pullback": pullback,
    "pullback_function": pullback_function,
    "pushforward_function": pushforward_function,
    "jacobian": jacobian,
    "hvp": hvp,
    "hessian": hessian,
    "second_derivative": second_derivative,
}


# ---- checks shared by the builders ---------------------------------------------------------


def require_scalar(ys: Arrays, library: ArrayLibrary, label: str) -> None:
    """Raises unless ``ys`` is one real number."""
    if len(ys) != 1:
        came, advice = "no floating-point number", "Return a float."
        if ys:
            came, advice = f"{len(ys)} arrays", "Use diface.jacobian, or has_aux=True and return (y, aux)."
    else:
        (y,) = ys
        if len(y.shape) and math.prod(y.shape) != 1:
            came = f"an array of shape {tuple(y.shape)}"
            advice = "Use diface.jacobian or diface.pullback, or reduce it: return the sum."
        elif library.is_complex(y):
            came, advice = f"a {y.dtype} number", "Take its real part or its absolute value."
        else:
            return
    raise NotScalarError(f"{label}: f returned {came}; one real number was expected. {advice}")


def match_cotangents(
    label: str, library: ArrayLibrary, direction: Direction, cts: Arrays, ys: Arrays, structure: Structure
) -> Arrays:
    """The cotangents for ``ys``, in order, checked against them (of which shape and dtype are looked at)."""
    if structure is SINGLE and direction.bare_leaf:
        picked: list[Any] = list(cts)
    else:
        try:
            parts = structure.spec.flatten_up_to(direction.unflatten(cts))
        except (ValueError, TypeError) as error:
            raise ArgumentMismatchError(
                f"{label}: the cotangent has the structure {direction.spec}; f returned {structure.spec}. "
                "Pass a cotangent with the structure of f's result."
            ) from error
        picked = [part for part, kind in zip(parts, structure.kinds, strict=True) if kind >= 0]
    lead = () if direction.size is None else (direction.size,)
    paths = [
        path
        for path, kind in zip(_pytree.paths(structure.spec, "cotangent"), structure.kinds, strict=True)
        if kind >= 0
    ]
    for k, (ct, y, path) in enumerate(zip(picked, ys, paths, strict=True)):
        wanted = (*lead, *y.shape)
        if ct is None or tuple(ct.shape) != wanted:
            came = "None" if ct is None else f"shape {tuple(ct.shape)}"
            raise ArgumentMismatchError(
                f"{label}: {path} has {came}; f returned shape {tuple(y.shape)}, so {wanted} was expected. "
                "Pass a cotangent like f's result" + (" with one leading batch axis." if lead else ".")
            )
        if "complex" in str(y.dtype) and not library.is_complex(ct):
            picked[k] = ct = ct + library.namespace(ct).zeros((), dtype=y.dtype)  # real numbers are complex numbers
        if ct.dtype != y.dtype:
            raise ArgumentMismatchError(
                f"{label}: {path} has dtype {ct.dtype}; f returned {y.dtype}. Convert the cotangent to f's dtype."
            )
    return tuple(picked)
