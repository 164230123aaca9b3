"""PyTorch as an engine.

Plain reverse mode uses the autograd graph (the fastest way); forward mode, batches and everything
nested use ``torch.func``, whose transformations compose.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import torch
from torch.autograd import forward_ad

from diface import AutoTorch
from diface.errors import MutationError, PerformanceWarning
from diface.extend import Arrays, Function, Guest, PullbackMap, Results
from diface_backends.torch_arrays import TORCH, is_followed

__all__ = ["TorchGuest"]


_WRITES_INTO_LEAF = "leaf Variable that requires grad"


class _Level(threading.local):
    """How many of our own differentiations this thread is inside of."""

    depth = 0


_level = _Level()


class TorchGuest(Guest):
    """Differentiates functions written with ``torch``."""

    specification = AutoTorch
    name = "torch"
    library = TORCH
    modes = frozenset({"forward", "reverse"})
    vectorized = True
    nests = True

    def __init__(self, backend: AutoTorch) -> None:
        super().__init__(backend)
        self._compile = backend.compile

    def devices(self) -> tuple[str, ...]:
        return ("cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count())))

    def adopt(self, f: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(f) if self._compile else f

    def release(self, x: torch.Tensor, result: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        # An expanded tensor has one number in many places: nobody could write into it.
        return np.array(result) if 0 in result.strides and result.size > 1 else result

    def output_sizes(self, function: Function, xs: Arrays) -> int | None:
        return None

    def direct_gradient(self, f: Callable[..., Any], count: int) -> Callable[..., Any] | None:
        if count != 1:
            return None
        level, grad, is_grad_enabled = _level, torch.autograd.grad, torch.is_grad_enabled
        functorch_active = torch._C._are_functorch_transforms_active

        def direct(x: torch.Tensor) -> Any:
            if level.depth or not is_grad_enabled() or functorch_active() or x.is_inference():
                return None
            leaf = x.detach().requires_grad_()
            level.depth = 1
            try:
                y = f(leaf)
            except RuntimeError as error:
                if _WRITES_INTO_LEAF in str(error):
                    return None
                raise
            finally:
                level.depth = 0
            if not isinstance(y, torch.Tensor) or y.dim() or not y.requires_grad or y.is_complex():
                return None
            g = grad(y, leaf, allow_unused=True)[0]
            return y.detach(), torch.zeros_like(leaf) if g is None else g

        return direct

    # ---- reverse ---------------------------------------------------------------------------

    def value_and_gradient(self, function: Function, xs: Arrays, seed: Callable[[Arrays], Arrays]) -> Results:
        if _is_nested(xs):
            ys, aux, pull = self.value_and_pullback(function, xs)
            return ys, aux, pull(seed(ys))
        leaves, ys, aux = _record(function, xs)
        gs = _gradients(ys, leaves, seed(ys), keep=False)
        return tuple([y.detach() for y in ys]), _detached(aux), gs

    def value_and_pullback(self, function: Function, xs: Arrays) -> tuple[Arrays, Arrays, PullbackMap]:
        if torch._C._are_functorch_transforms_active() or any(map(is_followed, xs)):
            ys, pull, aux = cast(Any, torch.func.vjp(_on_copies(function), *xs, has_aux=True))
            return ys, aux, _FunctionalPullback(pull)
        nested = _is_nested(xs)
        leaves, ys, aux = _record(function, xs)
        pull = _GraphPullback(ys, leaves, nested)
        return (ys, aux, pull) if nested else (tuple(y.detach() for y in ys), _detached(aux), pull)

    def batched_pullback(self, pull: Any, cotangents: Arrays, size: int) -> Arrays:
        if size == 0:
            return tuple(torch.zeros((0, *x.shape), dtype=x.dtype, device=x.device) for x in pull.like(cotangents))
        return _vectorized(pull, cotangents, size, "pullback")

    # ---- forward ---------------------------------------------------------------------------

    def value_and_pushforward(self, function: Function, xs: Arrays, txs: Arrays) -> Results:
        if forward_ad._current_level >= 0 and not torch._C._are_functorch_transforms_active():
            # PyTorch cannot nest forward mode ("not supported at the moment"). The pullback is linear in its
            # cotangent, so its own pullback is the pushforward.
            return self._pushforward_by_pullbacks(function, xs, txs)
        _load_forward_rules()
        with _recording():
            (_, *ys), (_, *tys), aux = cast(Any, torch.func.jvp(_with_first(function), _seen(xs), txs, has_aux=True))
        return tuple(ys), aux, tuple(tys)

    def _pushforward_by_pullbacks(self, function: Function, xs: Arrays, txs: Arrays) -> Results:
        leaves, ys, aux = _record(function, xs)
        with torch.enable_grad():
            cotangents = [torch.zeros_like(y).requires_grad_() for y in ys]
            back = _gradients(ys, leaves, tuple(cotangents), keep=True, graph=True)
            tys = _gradients(back, tuple(cotangents), txs, keep=True)
        return tuple([y.detach() for y in ys]), _detached(aux), tys

    def value_and_batched_pushforward(self, function: Function, xs: Arrays, txs: Arrays, size: int) -> Results:
        _load_forward_rules()
        xs = _seen(xs)
        counts = [0, 0]

        def one(*tangents: torch.Tensor) -> Arrays:
            (_, *ys), (_, *tys), aux = cast(Any, torch.func.jvp(_with_first(function), xs, tangents, has_aux=True))
            counts[:] = [len(ys), len(aux)]
            return (*tys, *ys, *aux)

        if size == 0:
            ys, aux = function(*xs)
            return ys, aux, tuple(y.new_zeros((0, *y.shape)) for y in ys)
        with _recording():
            out = _vectorized(lambda tangents: one(*tangents), txs, size, "pushforward")
        n, m = counts
        # The value does not depend on the tangent: it is the same in every row.
        return tuple(y[0] for y in out[n : 2 * n]), tuple(a[0] for a in out[2 * n : 2 * n + m]), out[:n]


    def vectorize(self, function: Callable[..., Arrays], axes: tuple[bool, ...]) -> Callable[..., Arrays]:
        _load_forward_rules()
        return torch.func.vmap(function, in_dims=tuple(0 if flag else None for flag in axes), randomness="different")

    def evaluate_shapes(self, function: Callable[..., Arrays], specs: Any) -> Any:
        from torch._subclasses.fake_tensor import FakeTensorMode  # 0.3 s that only this needs

        try:
            with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
                xs = [torch.empty(spec.shape, dtype=getattr(torch, spec.dtype)) for spec in specs]
                return [(tuple(y.shape), str(y.dtype)[6:]) for y in function(*xs)]
        except Exception:  # whatever the function does that needs values: a trial run will tell
            return None


class _GraphPullback:
    """The pullback through the graph of one run."""

    def __init__(self, ys: Arrays, leaves: Arrays, nested: bool) -> None:
        self._ys = ys
        self._leaves = leaves
        self._nested = nested

    def __call__(self, cotangents: Arrays) -> Arrays:
        return _gradients(self._ys, self._leaves, cotangents, keep=True, graph=self._nested)

    def like(self, cotangents: Arrays) -> Arrays:
        return self._leaves


class _FunctionalPullback:
    """The pullback of ``torch.func.vjp``."""

    def __init__(self, pull: Callable[[Arrays], Arrays]) -> None:
        self._pull = pull

    def __call__(self, cotangents: Arrays) -> Arrays:
        return self._pull(cotangents)

    def like(self, cotangents: Arrays) -> Arrays:
        return self._pull(tuple(torch.zeros(c.shape[1:], dtype=c.dtype, device=c.device) for c in cotangents))


@functools.cache
def _load_forward_rules() -> None:
    """Loads what ``torch.func.jvp`` loads on first use, without its warning.

    PyTorch 2.13 scripts these rules by ``torch.jit.script`` (pytorch/pytorch#84581), which it has come
    to deprecate; a caller with warnings as errors could not use forward mode at all.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        importlib.import_module("torch._decomp.decompositions_for_jvp")


def _is_nested(xs: Arrays) -> bool:
    """Whether somebody differentiates through, or maps over, this differentiation."""
    if torch._C._are_functorch_transforms_active():
        return True
    return any(is_followed(x) or (_level.depth and x.requires_grad) for x in xs)


@contextlib.contextmanager
def _recording() -> Iterator[None]:
    """Gradients are recorded inside, whatever the caller switched off; and we know that we are in it."""
    _level.depth += 1
    try:
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False), torch.enable_grad():
                yield
        elif torch.is_grad_enabled():
            yield
        else:
            with torch.enable_grad():
                yield
    finally:
        _level.depth -= 1


def _leaf(x: torch.Tensor) -> torch.Tensor:
    """``x`` as a variable to differentiate by, on the same memory."""
    if _level.depth and x.requires_grad:
        return x.view_as(x)
    x = x.detach()
    return (x.clone() if x.is_inference() else x).requires_grad_()


def _seen(xs: Arrays) -> Arrays:
    """The inputs of a forward sweep, cut off from a graph that nobody follows here."""
    if _level.depth:
        return xs
    return tuple(x if is_followed(x) else x.detach() for x in xs)


def _record(function: Function, xs: Arrays) -> tuple[Arrays, Arrays, Arrays]:
    """One run of ``function`` with its graph: ``(leaves, ys, aux)``."""
    fast = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    if not fast:
        with _recording():
            _level.depth -= 1
            try:
                return _record(function, xs)
            finally:
                _level.depth += 1
    leaves = tuple([_leaf(x) for x in xs])
    _level.depth += 1
    try:
        ys, aux = function(*leaves)
    except RuntimeError as error:
        if _WRITES_INTO_LEAF not in str(error):
            raise
        # The function writes into its input: it gets a copy that is no leaf.
        ys, aux = function(*[x.clone() for x in leaves])
    finally:
        _level.depth -= 1
    return leaves, ys, aux


def _gradients(ys: Arrays, leaves: Arrays, cotangents: Arrays, *, keep: bool, graph: bool = False) -> Arrays:
    followed = [k for k, y in enumerate(ys) if y.requires_grad]
    if not followed or not leaves:
        return tuple(torch.zeros_like(x) for x in leaves)
    if len(followed) != len(ys):
        ys = tuple(ys[k] for k in followed)
        cotangents = tuple(cotangents[k] for k in followed)
    try:
        return torch.autograd.grad(
            ys, leaves, cotangents, retain_graph=keep, create_graph=graph, allow_unused=True, materialize_grads=True
        )
    except RuntimeError as error:
        if "modified by an inplace operation" in str(error):
            raise MutationError(
                "pullback(torch): an array that the derivative needs was changed in place after the function had "
                "run. Change a copy of it instead."
            ) from error
        raise


def _on_copies(function: Function) -> Function:
    """``function`` on copies: writing into a dual number would write into the caller's array."""
    return lambda *xs: function(*[x.clone() for x in xs])


def _with_first(function: Function) -> Function:
    """``_on_copies``, with the first input as one more result: ``torch.func.jvp`` wants at least one."""

    def run(*xs: torch.Tensor) -> tuple[Arrays, Arrays]:
        ys, aux = function(*[x.clone() for x in xs])
        return (xs[0], *ys), aux

    return run


def _vectorized(linear: Callable[[Arrays], Arrays], vectors: Arrays, size: int, what: str) -> Arrays:
    """``linear`` of each row, by one vectorised call where PyTorch has the rules for it."""
    try:
        with warnings.catch_warnings():
            # PyTorch tells which of its operations it takes row by row inside (aten::_conj_physical, say).
            warnings.filterwarnings("ignore", message="There is a performance drop")
            return torch.func.vmap(lambda *rows: linear(rows), randomness="same")(*vectors)
    except RuntimeError as error:
        if "vmap" not in str(error) and "batching" not in str(error):
            raise
        warnings.warn(
            f"{what}(torch): PyTorch cannot vectorise this function ({str(error).splitlines()[0][:120]}); "
            f"it takes {size} calls.",
            PerformanceWarning,
            stacklevel=2,
        )
        rows = [linear(tuple(v[i] for v in vectors)) for i in range(size)]
        return tuple(torch.stack(parts) for parts in zip(*rows, strict=True))


def _detached(arrays: Arrays) -> Arrays:
    return tuple([a.detach() for a in arrays]) if arrays else arrays
