"""PyTorch as a host: one ``autograd.Function`` whose rules name only the algebra of guest functions.

The guest's pullback of the forward run is kept on the context; arguments are saved by PyTorch, which
so notices when they are changed in place. Where the backward pass is differentiated or mapped itself,
it is a ``foreign_call`` again, which still uses what was kept for its own value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch._C._functorch import is_legacy_batchedtensor
from torch.autograd import forward_ad

from diface.errors import UnsupportedError
from diface.extend import (
    Batched,
    ForeignFunction,
    Host,
    KeptPullback,
    Pullback,
    Pushforward,
    call,
    call_keeping,
    freeze,
    is_inexact,
)
from diface_backends.torch_arrays import TORCH, is_followed

__all__ = ["TorchHost"]

Tensors = Sequence[torch.Tensor]
Shortcut = Callable[[Tensors], "list[torch.Tensor] | None"]


class TorchHost(Host):
    """PyTorch's followed tensors as arguments of a foreign function."""

    def follows(self, x: torch.Tensor) -> bool:
        return (x.requires_grad and torch.is_grad_enabled()) or is_followed(x)

    def foreign_call(self, function: ForeignFunction, arrays: Sequence[Any]) -> Sequence[Any]:
        wanted = any(x.requires_grad for x in arrays)
        if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
            return cast("Tensors", ForeignCall.apply(function, _Kept(wanted), *arrays))
        if len(arrays) > 1:
            function = freeze(function, [x.requires_grad for x in arrays])
        return cast("Tensors", PlainForeignCall.apply(function, _Kept(wanted), *arrays))


class _Kept:
    """What one call of a foreign function leaves behind for its derivative.

    Attributes:
        wanted: Whether the pullback should be kept at all.
        shortcut: Gives the call's value from what an earlier call kept, if that is still possible.
        mapped_shortcut: The shortcut for the mapped call, by which arguments are mapped and the size.
        pull: The kept pullback, once the call has run.
        mapped: Where the call was mapped: which arguments, and what the mapped call left behind.
    """

    __slots__ = ("mapped", "mapped_shortcut", "pull", "shortcut", "wanted")

    def __init__(
        self,
        wanted: bool = False,
        shortcut: Shortcut | None = None,
        mapped_shortcut: Callable[[tuple[bool, ...], int], Shortcut | None] | None = None,
    ) -> None:
        self.wanted = wanted
        self.shortcut = shortcut
        self.mapped_shortcut = mapped_shortcut
        self.pull: KeptPullback | None = None
        self.mapped: tuple[tuple[bool, ...], _Kept] | None = None


class ForeignCall(torch.autograd.Function):
    """``foreign_call`` for PyTorch: ``ForeignCall.apply(function, kept, *xs)``."""

    @staticmethod
    def forward(function: ForeignFunction, kept: _Kept, *xs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outs: list[torch.Tensor] | None = None
        if kept.shortcut is not None:
            outs = kept.shortcut(xs)
        if outs is None:
            if kept.wanted:
                outs, kept.pull = call_keeping(function, xs, TORCH)
            else:
                outs = call(function, xs, TORCH)
        return tuple([_apart(y, xs) for y in outs])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        ctx.function, ctx.kept, *xs = inputs
        ctx.save_for_backward(*xs)
        ctx.save_for_forward(*xs)
        ctx.set_materialize_grads(False)
        _mark_fixed(ctx, output)

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor | None) -> tuple[Any, ...]:
        xs, function, kept = ctx.saved_tensors, ctx.function, ctx.kept
        if any(ct is not None and is_legacy_batchedtensor(ct) for ct in cotangents):
            raise UnsupportedError(
                f"{function.root.label}: PyTorch's is_grads_batched (torch.autograd.functional with vectorize=True) "
                "maps in a way that no autograd.Function can follow. Use torch.func.jacrev, or torch.func.vmap of "
                "torch.func.vjp."
            )
        cts: Sequence[Any] = cotangents
        if len(cts) != 1 or cts[0] is None:
            if all(ct is None for ct in cotangents):
                return (None,) * (2 + len(xs))
            cts = _complete(cotangents, function, xs)
        if kept.pull is None or torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():
            dxs: Sequence[torch.Tensor] = ForeignCall.apply(Pullback(function), _reuse(kept, len(xs)), *xs, *cts)
        else:
            dxs = kept.pull(cts, TORCH)
        return (None, None, *_spread(dxs, function))

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        function, xs = ctx.function, ctx.saved_tensors
        active = [
            torch.zeros_like(x) if t is None else t
            for x, t, spec in zip(xs, tangents[2:], function.in_specs, strict=True)
            if is_inexact(spec)
        ]
        tys = iter(ForeignCall.apply(Pushforward(function), _Kept(), *xs, *active))
        return tuple(
            [next(tys) if is_inexact(spec) else None for spec in function.out_specs]
        )

    @staticmethod
    def vmap(  # pyright: ignore[reportIncompatibleMethodOverride] (PyTorch passes forward's arguments)
        info: Any, in_dims: tuple[Any, ...], function: ForeignFunction, kept: _Kept, *xs: torch.Tensor
    ) -> Any:
        flags = tuple([dim is not None for dim in in_dims[2:]])
        size = info.batch_size
        moved = [x.movedim(dim, 0) if dim is not None else x for x, dim in zip(xs, in_dims[2:], strict=True)]
        shortcut = kept.mapped_shortcut(flags, size) if kept.mapped_shortcut is not None else None
        inner = _Kept(kept.wanted, shortcut)
        kept.mapped = (flags, inner)
        outs = ForeignCall.apply(Batched(function, flags, size), inner, *moved)
        return outs, (0,) * len(outs)


class PlainForeignCall(torch.autograd.Function):
    """``ForeignCall`` outside ``torch.func``: for a function with ``setup_context`` PyTorch inspects the
    signature in each call, which takes longer than a small guest function."""

    @staticmethod
    def forward(ctx: Any, function: ForeignFunction, kept: _Kept, *xs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.function, ctx.kept = function, kept
        ctx.save_for_backward(*xs)
        ctx.set_materialize_grads(False)
        outs = ForeignCall.forward(function, kept, *xs)
        _mark_fixed(ctx, outs)
        return outs

    backward = ForeignCall.backward


def _reuse(kept: _Kept, n: int) -> _Kept:
    """For the call of ``Pullback(F)`` on ``n`` arguments and cotangents: its value by what ``F`` kept."""

    def shortcut(args: Tensors) -> list[torch.Tensor] | None:
        return None if kept.pull is None else kept.pull(args[n:], TORCH)

    def mapped_shortcut(flags: tuple[bool, ...], size: int) -> Shortcut | None:
        def expanded(args: Tensors) -> list[torch.Tensor]:
            return [
                ct if flag else ct.expand(size, *ct.shape)
                for ct, flag in zip(args[n:], flags[n:], strict=True)
            ]

        if not any(flags[:n]):
            # jacrev: one run, many cotangents.
            return lambda args: None if kept.pull is None else kept.pull.batched(expanded(args), size, TORCH)
        if kept.mapped is not None and kept.mapped[0] == flags[:n]:
            inner = kept.mapped[1]
            function = inner.pull.function if inner.pull is not None else None
            if isinstance(function, Batched) and all(
                flag for flag, spec in zip(flags, function.function.in_specs, strict=False) if is_inexact(spec)
            ):
                # vmap(grad): the mapped run's pullback is the mapped pullback (only where every
                # argument is mapped: it sums over the others).
                return lambda args: None if inner.pull is None else inner.pull(expanded(args), TORCH)
        return None

    return _Kept(False, shortcut, mapped_shortcut)


def _mark_fixed(ctx: Any, outs: Tensors) -> None:
    """Tells PyTorch which results have no derivative."""
    fixed = [y for y in outs if not (y.is_floating_point() or y.is_complex())]
    if fixed:
        ctx.mark_non_differentiable(*fixed)


def _complete(cotangents: Sequence[Any], function: ForeignFunction, xs: Tensors) -> list[torch.Tensor]:
    """The cotangents of the floating-point results, zeros where PyTorch has none."""
    device = xs[0].device if xs else None
    return [
        torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype), device=device) if ct is None else ct
        for ct, spec in zip(cotangents, function.out_specs, strict=True)
        if is_inexact(spec)
    ]


def _spread(dxs: Sequence[torch.Tensor], function: ForeignFunction) -> list[torch.Tensor | None]:
    remaining = iter(dxs)
    return [next(remaining) if is_inexact(spec) else None for spec in function.in_specs]


def _apart(y: torch.Tensor, xs: Tensors) -> torch.Tensor:
    """``y`` in memory of its own: autograd must not take a result for one of the arguments."""
    for x in xs:
        if y is x or (y.numel() and y.data_ptr() == x.data_ptr()):
            return y.clone()
    return y
