"""Descriptions of engines: frozen, hashable, and made without importing any engine.

A description says *which* engine and *how*; the module that can differentiate is found by its name
through the registry, when it is first needed.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar, Literal

if TYPE_CHECKING:
    from concurrent.futures import Executor

from diface.errors import ArgumentMismatchError

Mode = Literal["forward", "reverse"] | None

__all__ = [
    "AutoAutograd",
    "AutoComplexStep",
    "AutoFiniteDiff",
    "AutoJAX",
    "AutoTorch",
    "Backend",
    "Mode",
]


class Backend:
    """A description of an engine: subclass it as a frozen dataclass.

    Attributes:
        name: The short name, and the name of the entry point in ``diface.backends``.
        module: The top-level module that must be importable (``""``: none but NumPy).
        extra: The extra of the distribution that installs it, named in error messages.
        distribution: The name of the distribution whose version is reported.
        supported_modes: The modes that the engine has, for listings that load no engine.
    """

    name: ClassVar[str]
    module: ClassVar[str] = ""
    extra: ClassVar[str] = ""
    distribution: ClassVar[str] = ""
    supported_modes: ClassVar[tuple[str, ...]] = ()

    @property
    def forced_mode(self) -> Mode:
        """The mode that the user asked for, ``None`` when the operator may choose."""
        return getattr(self, "mode", None)


def _check_mode(backend: Backend) -> None:
    if backend.forced_mode not in (None, "forward", "reverse"):
        raise ArgumentMismatchError(
            f"{type(backend).__name__}: mode={backend.forced_mode!r} is not a mode. "
            'Use mode="forward", mode="reverse" or mode=None (the operator chooses).'
        )


@dataclasses.dataclass(frozen=True)
class AutoJAX(Backend):
    """JAX: forward and reverse mode of functions written with ``jax.numpy``.

    Args:
        mode: ``"forward"`` or ``"reverse"`` to force a mode, ``None`` to let the operator choose.
        jit: Compile by ``jax.jit`` (once for each signature). The function must then be pure,
            as for ``jax.jit``; ``jit=False`` runs it as plain Python each time.

    Example:
        >>> AutoJAX(mode="forward")
        AutoJAX(mode='forward', jit=True)
    """

    name: ClassVar[str] = "jax"
    module: ClassVar[str] = "jax"
    extra: ClassVar[str] = "jax"
    distribution: ClassVar[str] = "jax"
    supported_modes: ClassVar[tuple[str, ...]] = ("forward", "reverse")

    mode: Mode = None
    jit: bool = True

    def __post_init__(self) -> None:
        _check_mode(self)


@dataclasses.dataclass(frozen=True)
class AutoTorch(Backend):
    """PyTorch: forward and reverse mode of functions written with ``torch``.

    Args:
        mode: ``"forward"`` or ``"reverse"`` to force a mode, ``None`` to let the operator choose.
        compile: Run the function through ``torch.compile`` first.

    Example:
        >>> AutoTorch() == AutoTorch(mode=None)
        True
    """

    name: ClassVar[str] = "torch"
    module: ClassVar[str] = "torch"
    extra: ClassVar[str] = "torch"
    distribution: ClassVar[str] = "torch"
    supported_modes: ClassVar[tuple[str, ...]] = ("forward", "reverse")

    mode: Mode = None
    compile: bool = False

    def __post_init__(self) -> None:
        _check_mode(self)


@dataclasses.dataclass(frozen=True)
class AutoAutograd(Backend):
    """HIPS autograd: forward and reverse mode of functions written with ``autograd.numpy``.

    Args:
        mode: ``"forward"`` or ``"reverse"`` to force a mode, ``None`` to let the operator choose.
    """

    name: ClassVar[str] = "autograd"
    module: ClassVar[str] = "autograd"
    extra: ClassVar[str] = "autograd"
    distribution: ClassVar[str] = "autograd"
    supported_modes: ClassVar[tuple[str, ...]] = ("forward", "reverse")

    mode: Mode = None

    def __post_init__(self) -> None:
        _check_mode(self)


@dataclasses.dataclass(frozen=True)
class AutoFiniteDiff(Backend):
    """Finite differences: any function of any array library, known only by its values.

    Args:
        method: ``"central"`` (error of order h², two evaluations a direction) or ``"forward"``
            (error of order h, one evaluation a direction).
        step: The step h in the units of x, the same for every element; ``None`` chooses for each
            element the step that balances truncation and rounding for its dtype and magnitude.
        executor: Any ``concurrent.futures.Executor`` (also those of dask.distributed and mpi4py):
            the evaluations are spread over it. With processes, ``f`` must be picklable.
        progress: Show a progress bar while evaluating (needs ``rich``).

    Example:
        >>> AutoFiniteDiff(method="forward").method
        'forward'
    """

    name: ClassVar[str] = "finite_diff"
    supported_modes: ClassVar[tuple[str, ...]] = ("forward",)

    method: Literal["central", "forward"] = "central"
    step: float | None = None
    executor: Executor | None = None
    progress: bool = False

    def __post_init__(self) -> None:
        if self.method not in ("central", "forward"):
            raise ArgumentMismatchError(
                f"AutoFiniteDiff: method={self.method!r} is not known. "
                'Use method="central" or method="forward".'
            )
        if self.step is not None and not self.step > 0:
            raise ArgumentMismatchError(
                f"AutoFiniteDiff: step={self.step!r} is not a positive number. "
                "Use step=None to have it chosen for each element."
            )


@dataclasses.dataclass(frozen=True)
class AutoComplexStep(Backend):
    """The complex step: derivatives of analytic NumPy functions to machine precision.

    Source: W. Squire and G. Trapp, *Using complex variables to estimate derivatives of real
    functions*, SIAM Review 40 (1998).
    """

    name: ClassVar[str] = "complex_step"
    supported_modes: ClassVar[tuple[str, ...]] = ("forward",)


BUILT_IN: dict[str, type[Backend]] = {
    spec.name: spec for spec in (AutoJAX, AutoTorch, AutoAutograd, AutoFiniteDiff, AutoComplexStep)
}
