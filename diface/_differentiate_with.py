"""``DifferentiateWith``: a function whose derivative another engine than its caller's computes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from diface import _pytree
from diface._algebra import GuestFunction, Root
from diface._engine import ArrayLibrary, Host
from diface._exchange import NUMPY, PYTHON, NumpyLibrary, convert, library_of
from diface._execution import call
from diface._functions import SINGLE, STATIC, Layout, layout_of
from diface._preparation import Cache, check_function, function_key
from diface._registry import backend_of, guest_of, loaded_libraries
from diface._specs import Backend
from diface.errors import UnsupportedError

__all__ = ["DifferentiateWith", "differentiate_with"]

_ROOTS: Cache[Root] = Cache(256)


class DifferentiateWith:
    """``f``, differentiated by ``backend`` wherever another engine (the host) meets it.

    Called with plain arrays it computes ``f``. Called inside another engine's differentiation it makes
    that engine use ``backend`` (the guest) for ``f`` and its derivatives: ``d f2(x) = J_f(x) dx``.

    Args:
        f: The function; it receives the guest's own arrays.
        backend: The guest, as an instance or a short name.
        out: The shapes and dtypes of the result, as a pytree of things with ``shape`` and ``dtype``, or a
            function of the arguments' specifications that gives it. Only needed under ``jax.jit``, with
            a guest that cannot find them without values, when a trial run is not wanted.
        name: A name for messages; by default that of ``f``.

    Raises:
        UnknownBackendError: The backend is not known.

    Example:
        >>> import numpy as np, diface
        >>> f2 = diface.DifferentiateWith(lambda x: (x**2).sum(), "finite_diff")
        >>> float(f2(np.array([1.0, 2.0])))
        5.0
    """

    def __init__(
        self,
        f: Callable[..., Any],
        backend: Backend | str,
        *,
        out: Any = None,
        name: str | None = None,
    ) -> None:
        self.backend = backend_of(backend)
        check_function(f, f"DifferentiateWith({self.backend.name})")
        self.f = f
        self.out = out
        self.name = str(name or getattr(f, "__name__", type(f).__name__))
        self._last: tuple[Layout, ArrayLibrary, Root, Any] | None = None
        functools.update_wrapper(self, f, updated=())
        for library in loaded_libraries():
            library.conceal(DifferentiateWith.__call__)

    def __repr__(self) -> str:
        return f"DifferentiateWith({self.name}, {self.backend!r})"

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a function in a class does, this becomes a method."""
        return self if instance is None else functools.partial(self, instance)

    def __getstate__(self) -> dict[str, Any]:
        return {"f": self.f, "backend": self.backend, "out": self.out, "name": self.name}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["f"], state["backend"], out=state["out"], name=state["name"])  # type: ignore[misc]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """``f(*args, **kwargs)``, in the caller's library."""
        last = self._last
        if last is not None and not kwargs:
            layout, library, root, key = last
            arrays = layout.arrays_of(args)
            if arrays is not None and (key is None or key == function_key(self.f)):
                host = library.host
                if host is not None and any(host.follows(x) for x in arrays):
                    return self._through(host, library, root, layout, arrays)
        return self._general(args, kwargs)

    def _general(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        layout, arrays = layout_of((args, kwargs)) if kwargs else layout_of(args)
        library, host = self._caller(layout, arrays)
        guest = guest_of(self.backend)
        if guest.library is library and not guest.numeric:
            # Host and guest are one engine, which sees into its own functions best.
            return self._native(args, kwargs, library)
        if host is None and guest.library is None:
            return self.f(*args, **kwargs)
        root = self._root(layout, library, bool(kwargs))
        arrays = [
            x if lib is PYTHON else convert(x, lib, library)
            for x, lib in zip(arrays, layout.libraries, strict=True)
        ]
        if host is None:
            function = GuestFunction(root, tuple(arrays[i] for i in root.numbers)) if root.numbers else root.plain
            outs = call(function, [arrays[i] for i in root.inputs], library)
            assert root.structure is not None
            return _rebuild(root, [_own(y, arrays, library) for y in outs])
        if not kwargs and all(lib is library for lib in layout.libraries):
            self._last = (layout, library, root, function_key(self.f) if guest.captures else None)
        return self._through(host, library, root, layout, arrays)

    def _through(
        self, host: Host, library: ArrayLibrary, root: Root, layout: Layout, arrays: Sequence[Any]
    ) -> Any:
        if root.numbers:
            function: GuestFunction = GuestFunction(root, tuple([arrays[i] for i in root.numbers]))
            arrays = [arrays[i] for i in root.inputs]
        else:
            function = root.plain
        outs = host.foreign_call(function, arrays)
        return _rebuild(root, outs)

    def _caller(self, layout: Layout, arrays: list[Any]) -> tuple[ArrayLibrary, Host | None]:
        """The library of the results, and the engine that follows the arguments, if one does."""
        followed: list[ArrayLibrary] = []
        for x, library in zip(arrays, layout.libraries, strict=True):
            if library.host is not None and library.host.follows(x) and library not in followed:
                followed.append(library)
        if len(followed) > 1:
            names = " and ".join(library.name for library in followed)
            raise UnsupportedError(
                f"{self!r}: its arguments are being differentiated by {names} at the same time. "
                "Differentiate by one of them, and wrap the other's part in DifferentiateWith."
            )
        if followed:
            return followed[0], followed[0].host
        for library in layout.libraries:
            if library is not PYTHON:
                return (NUMPY if isinstance(library, NumpyLibrary) else library), None
        return PYTHON if layout.libraries else NUMPY, None

    def _native(self, args: tuple[Any, ...], kwargs: dict[str, Any], library: ArrayLibrary) -> Any:
        leaves, spec = _pytree.flatten((args, kwargs))
        leaves = [
            x if (lib := library_of(x)) is None or lib is PYTHON else convert(x, lib, library) for x in leaves
        ]
        args, kwargs = _pytree.unflatten(spec, leaves)
        return self.f(*args, **kwargs)

    def _root(self, layout: Layout, library: ArrayLibrary, keyed: bool) -> Root:
        key = (function_key(self.f), self.backend, layout.key, library.name, keyed, id(self.out))
        return _ROOTS.get(key, lambda: self._make_root(layout, library, keyed))

    def _make_root(self, layout: Layout, library: ArrayLibrary, keyed: bool) -> Root:
        f = self.f
        if keyed:

            def f(args: tuple[Any, ...], kwargs: dict[str, Any], f: Callable[..., Any] = self.f) -> Any:
                return f(*args, **kwargs)

        guest = guest_of(self.backend)
        own = guest.library
        if own is None:
            own = NUMPY if isinstance(library, NumpyLibrary) else library
        return Root(f, self.backend, own, layout, self.name, self.out)


def _own(y: Any, arrays: Sequence[Any], library: ArrayLibrary) -> Any:
    """A result that the caller may write into without changing an argument."""
    if isinstance(y, np.ndarray) and any(isinstance(x, np.ndarray) and np.may_share_memory(x, y) for x in arrays):
        return y.copy()
    return library.writable(y, fresh=False)


def _rebuild(root: Root, outs: Sequence[Any]) -> Any:
    structure = root.structure
    assert structure is not None
    if structure is SINGLE:
        return outs[0]
    remaining = iter(outs)
    leaves = [structure.statics[k - STATIC] if k >= STATIC else next(remaining) for k in structure.kinds]
    return _pytree.unflatten(structure.spec, leaves)


def differentiate_with(
    backend: Backend | str, *, out: Any = None, name: str | None = None
) -> Callable[[Callable[..., Any]], DifferentiateWith]:
    """``DifferentiateWith`` as a decorator.

    Args:
        backend: The guest, as an instance or a short name.
        out: As for :class:`DifferentiateWith`.
        name: As for :class:`DifferentiateWith`.

    Returns:
        A decorator for the function to be differentiated by ``backend``.

    Example:
        >>> @differentiate_with("finite_diff")
        ... def square(x):
        ...     return x * x
        >>> square(3.0)
        9.0
    """
    return lambda f: DifferentiateWith(f, backend, out=out, name=name)
