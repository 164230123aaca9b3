"""Finding engines and array libraries by entry point, loaded when first needed.

Group ``diface.backends``: short name → the engine's ``Guest`` class.
Group ``diface.arrays``: the top-level module of an array type → its ``ArrayLibrary`` object.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import sys
import warnings
from importlib import metadata
from typing import Any

from diface._engine import ArrayLibrary, Guest
from diface._specs import BUILT_IN, Backend
from diface.errors import BackendNotInstalledError, UnknownBackendError

__all__ = ["BackendInfo", "backend_of", "backends", "guest_of", "is_available", "library_for_root"]


@functools.cache
def _entries(group: str) -> dict[str, metadata.EntryPoint]:
    return {entry.name: entry for entry in metadata.entry_points(group=group)}


def _names() -> list[str]:
    return sorted(BUILT_IN.keys() | _entries("diface.backends").keys())


def _unknown(came: object) -> UnknownBackendError:
    installed = ", ".join(repr(name) for name in _names() if is_available(name))
    return UnknownBackendError(
        f"backend {came!r} is not known. Installed here: {installed}. "
        "Pass one of these names, or an instance such as diface.AutoFiniteDiff()."
    )


@functools.cache
def _spec_class(name: str) -> type[Backend]:
    if name in BUILT_IN:
        return BUILT_IN[name]
    entry = _entries("diface.backends").get(name)
    if entry is None:
        raise _unknown(name)
    specification: type[Backend] = entry.load().specification
    return specification


@functools.cache
def _named(name: str) -> Backend:
    return _spec_class(name)()


def backend_of(backend: object) -> Backend:
    """The backend described by an instance or a short name."""
    if isinstance(backend, Backend):
        return backend
    if isinstance(backend, str):
        return _named(backend)
    if isinstance(backend, type) and issubclass(backend, Backend):
        raise UnknownBackendError(
            f"backend {backend.__name__} is a class; an instance was expected. Write {backend.__name__}()."
        )
    raise _unknown(backend)


def _missing(spec: type[Backend], error: ModuleNotFoundError | None = None) -> BackendNotInstalledError:
    return BackendNotInstalledError(
        f"backend {spec.name!r} needs {spec.module or spec.distribution}, which is not installed. "
        f'Run: pip install "diface[{spec.extra}]"',
        name=error.name if error else spec.module,
    )


@functools.lru_cache(maxsize=256)
def guest_of(backend: Backend) -> Guest:
    """The engine that ``backend`` describes, loaded now if it was not before."""
    spec = type(backend)
    entry = _entries("diface.backends").get(spec.name)
    if entry is None:
        raise UnknownBackendError(
            f"backend {spec.name!r} has no entry point in the group 'diface.backends'. "
            "Reinstall the distribution that provides it (for the built-in ones: pip install diface)."
        )
    try:
        kind = entry.load()
    except ModuleNotFoundError as error:
        # Only the engine's own module missing means "not installed"; anything else is a broken
        # install, and must be seen as what it is.
        if spec.module and (error.name or "").partition(".")[0] == spec.module.partition(".")[0]:
            raise _missing(spec, error) from error
        raise
    guest: Guest = kind(backend)
    return guest


def is_available(backend: Backend | str) -> bool:
    """Whether the engine of ``backend`` is installed (it is not loaded to find out).

    Raises:
        UnknownBackendError: No backend of that name is registered.

    Example:
        >>> is_available("finite_diff")
        True
    """
    spec = _spec_class(backend) if isinstance(backend, str) else type(backend_of(backend))
    if not spec.module:
        return True
    if sys.modules.get(spec.module) is not None:
        return True
    try:
        return importlib.util.find_spec(spec.module) is not None
    except (ImportError, ValueError):
        return False


@dataclasses.dataclass(frozen=True)
class BackendInfo:
    """What ``backends()`` tells about one backend."""

    name: str
    installed: bool
    version: str | None
    devices: tuple[str, ...]
    modes: tuple[str, ...]


def backends() -> list[BackendInfo]:
    """The registered backends, sorted by name: installed or not, version, devices, modes.

    Engines that are installed are loaded, to ask them for their devices. One that fails to load
    is listed without devices, with a warning that says why; the others are not disturbed.

    Example:
        >>> [info.installed for info in backends() if info.name == "finite_diff"]
        [True]
    """
    return [_info(name) for name in _names()]


def _info(name: str) -> BackendInfo:
    spec = None
    try:
        spec = _spec_class(name)
        if not is_available(name):
            return BackendInfo(name, False, None, (), spec.supported_modes)
        version = metadata.version(spec.distribution or "diface")
        return BackendInfo(name, True, version, guest_of(spec()).devices(), spec.supported_modes)
    except Exception as error:  # a broken plugin must not take the others down
        warnings.warn(f"backend {name!r} is registered but failed to load: {error!r}", stacklevel=3)
        return BackendInfo(name, False, None, (), spec.supported_modes if spec else ())


@functools.cache
def library_for_root(root: str) -> ArrayLibrary | None:
    """The array library whose types live under the top-level module ``root``."""
    entry = _entries("diface.arrays").get(root)
    if entry is None:
        return None
    library: Any = entry.load()
    assert isinstance(library, ArrayLibrary)
    return library


def loaded_libraries() -> list[ArrayLibrary]:
    """The array libraries whose module has been imported by somebody."""
    found = [library_for_root(root) for root in _entries("diface.arrays") if root in sys.modules]
    return [library for library in dict.fromkeys(found) if library is not None]
