"""CuPy's arrays: callers on a GPU, for any engine that can use the same device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy
import numpy as np

from diface.errors import UnsupportedError
from diface.extend import ArrayLibrary, ArraySpec

__all__ = ["CUPY", "CupyLibrary"]


class CupyLibrary(ArrayLibrary):
    """``cupy.ndarray``."""

    name = "cupy"
    mutable = True

    def owns(self, kind: type) -> bool:
        return issubclass(kind, cupy.ndarray)

    def describe(self, x: Any) -> ArraySpec:
        return ArraySpec(self.name, tuple(x.shape), x.dtype.name, f"cuda:{x.device.id}")

    def matcher(self, spec: ArraySpec, x: Any) -> Callable[[Any], bool]:
        return lambda other: isinstance(other, cupy.ndarray) and self.describe(other) == spec

    def is_inexact(self, x: Any) -> bool:
        return bool(x.dtype.kind in "fc")

    def namespace(self, x: Any) -> Any:
        return cupy

    def to_numpy(self, x: Any) -> np.ndarray[Any, Any] | None:
        return None

    def from_numpy(self, x: np.ndarray[Any, Any]) -> tuple[Any, bool]:
        raise UnsupportedError(
            "exchange(cupy): a result on the host cannot be given to a caller with CuPy arrays without a copy to "
            "the device. Use an engine that runs on the GPU, or pass cupy.asnumpy(x)."
        )

    def to_dlpack(self, x: Any) -> Any:
        return x

    def from_dlpack(self, x: Any) -> Any:
        return cupy.from_dlpack(x)

    def copy(self, x: Any) -> Any:
        return x.copy()


CUPY = CupyLibrary()
