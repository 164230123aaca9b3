"""PyTorch's tensors."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as torch_pytree
import torch.utils.dlpack
from torch._C._dynamo import eval_frame
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.autograd import forward_ad

from diface.errors import UnsupportedError
from diface.extend import ArrayLibrary, ArraySpec, Host, writable_alias

_torch_host: Host | None = None

__all__ = ["TORCH", "TorchLibrary", "is_followed"]


class TorchLibrary(ArrayLibrary):
    """``torch.Tensor`` and its subclasses."""

    name = "torch"
    mutable = True
    untraced_numbers = True
    detects_writes = True

    def owns(self, kind: type) -> bool:
        return issubclass(kind, torch.Tensor)

    @property
    def host(self) -> Host:
        global _torch_host
        if _torch_host is None:  # (no functools.cache: torch.compile would warn of it)
            from diface_backends.torch_host import TorchHost  # built on this module

            _torch_host = TorchHost()
        return _torch_host

    def describe(self, x: torch.Tensor) -> ArraySpec:
        return ArraySpec(self.name, tuple(x.shape), str(x.dtype)[6:], str(x.device))

    def matcher(self, spec: ArraySpec, x: torch.Tensor) -> Callable[[Any], bool]:
        shape, dtype, device = x.shape, x.dtype, x.device

        def matches(other: Any) -> bool:
            return (
                isinstance(other, torch.Tensor)
                and other.shape == shape
                and other.dtype is dtype
                and other.device == device
            )

        return matches

    def is_traced(self, x: torch.Tensor) -> bool:
        return is_followed(x)

    def is_inexact(self, x: torch.Tensor) -> bool:
        return x.is_floating_point() or x.is_complex()

    def namespace(self, x: torch.Tensor) -> Any:
        return _namespace()

    def is_complex(self, x: torch.Tensor) -> bool:
        return x.is_complex()

    def ones_like(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ones_like(x)

    def to_numpy(self, x: torch.Tensor) -> np.ndarray[Any, Any] | None:
        x = _plain(x)
        if x.device.type != "cpu":
            return None
        if x.dtype is torch.bfloat16:
            dtype = _numpy_bfloat16()
            return None if dtype is None else x.view(torch.int16).numpy().view(dtype)
        return x.numpy()

    def from_numpy(self, x: np.ndarray[Any, Any]) -> tuple[torch.Tensor, bool]:
        shared = True
        if any(stride < 0 for stride in x.strides):
            # torch knows no negative strides (its DLPack import aborts the process on them).
            x, shared = np.array(x, order="C"), False
        if not x.flags.writeable:
            x = writable_alias(x)
        if x.dtype.kind == "V" and x.dtype.name == "bfloat16":  # (a dtype's name takes 2 µs)
            return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16), shared
        try:
            return torch.from_numpy(x), shared
        except TypeError as error:
            raise UnsupportedError(
                f"exchange(torch): PyTorch has no tensors of NumPy's dtype {x.dtype}. "
                "Convert it first, for example by x.astype('float64')."
            ) from error

    def to_dlpack(self, x: torch.Tensor) -> Any:
        return _plain(x)

    def from_dlpack(self, x: Any) -> torch.Tensor:
        return torch.utils.dlpack.from_dlpack(x)

    def copy(self, x: torch.Tensor) -> torch.Tensor:
        return x.detach().clone()

    def detach(self, x: torch.Tensor) -> torch.Tensor:
        return x.detach()

    def version(self, x: Any) -> int:
        return x._version if isinstance(x, torch.Tensor) and not x.is_inference() else 0

    def eye(self, n: int, like: torch.Tensor) -> torch.Tensor:
        return torch.eye(n, dtype=like.dtype, device=like.device)

    def join(self, parts: Any) -> torch.Tensor:
        return torch.cat(list(parts))

    def scalar(self, value: complex, like: torch.Tensor) -> torch.Tensor:
        return torch.tensor(value, dtype=like.dtype, device=like.device)

    def conceal(self, function: Callable[..., Any]) -> None:
        # As torch.compiler.disable does, but without importing torch._dynamo (which takes seconds) or
        # another call in between: Dynamo neither inlines the function nor looks into what it calls.
        function._torchdynamo_disable = True  # type: ignore[attr-defined]
        skip = eval_frame._FrameAction.SKIP
        eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(skip, skip))

    def open_node(self, node: Any) -> tuple[Callable[[Any], Any], Callable[[Any, Any], Any]] | None:
        definition = torch_pytree.SUPPORTED_NODES.get(type(node))
        if definition is None:
            return None
        flatten, unflatten = definition.flatten_fn, definition.unflatten_fn

        def open_node(whole: Any) -> tuple[Any, Any, Any]:
            children, context = flatten(whole)
            return children, context, context

        return open_node, lambda context, children: unflatten(list(children), context)


@functools.cache
def _namespace() -> Any:
    import array_api_compat.torch as namespace  # 20 ms that only this needs

    return namespace


@functools.cache
def _numpy_bfloat16() -> np.dtype[Any] | None:
    """NumPy's bfloat16, which the package ``ml_dtypes`` (one of JAX's) brings."""
    try:
        return np.dtype(importlib.import_module("ml_dtypes").bfloat16)
    except ModuleNotFoundError:
        return None


def is_followed(x: torch.Tensor) -> bool:
    """Whether ``torch.func`` or forward mode is differentiating, or mapping over, ``x`` just now."""
    if is_functorch_wrapped_tensor(x):
        return True
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None


def _plain(x: torch.Tensor) -> torch.Tensor:
    """``x`` as an ordinary strided tensor on the same memory, safe to export."""
    if is_followed(x):
        # Exporting a functorch wrapper through DLPack crashes the process.
        raise UnsupportedError(
            "exchange(torch): a tensor that torch.func or forward mode is following cannot be handed to another "
            "library. Wrap the function that needs it: diface.DifferentiateWith(f, backend)."
        )
    if x.layout is not torch.strided:
        raise UnsupportedError(
            f"exchange(torch): a tensor of layout {x.layout} cannot be handed to another library. "
            "Convert it: x.to_dense()."
        )
    return x.detach().resolve_conj().resolve_neg()


TORCH = TorchLibrary()
