"""Preparation: what depends on shapes, dtypes and structure only is done once and kept.

``prepare`` gives it to the user; without it, operators keep what they made in a bounded cache.
"""

from __future__ import annotations

import functools
import threading
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar

from diface import _pytree
from diface._derivation.table import OPERATORS, VALUE, Operator
from diface._exchange import library_of
from diface._functions import Layout, layout_of
from diface._registry import backend_of
from diface._specs import Backend
from diface._task import Direction, Options, Task
from diface._verification import verify as check_derivative
from diface.errors import ArgumentMismatchError, PreparationMismatchError

__all__ = ["Preparation", "apply", "cache_clear", "cache_info", "prepare"]

_MISSING: Any = object()
_CACHE_SIZE = 256

T = TypeVar("T")


class Cache(Generic[T]):
    """A thread-safe bounded cache, least recently used first to go."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._entries: OrderedDict[Any, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Any, make: Callable[[], T]) -> T:
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
                return entry
        entry = make()
        with self._lock:
            entry = self._entries.setdefault(key, entry)
            while len(self._entries) > self.size:
                self._entries.popitem(last=False)
        return entry

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)


_TASKS: Cache[Task] = Cache(_CACHE_SIZE)


def cache_clear() -> None:
    """Forgets everything that unprepared calls have compiled."""
    _TASKS.clear()


def cache_info() -> tuple[int, int]:
    """How many compiled calls are kept for unprepared use, and how many at most."""
    return len(_TASKS), _TASKS.size


class _Same:
    """Equal only to a key of the very same objects (which it keeps alive)."""

    __slots__ = ("objects",)

    def __init__(self, *objects: Any) -> None:
        self.objects = objects

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Same)
            and len(self.objects) == len(other.objects)
            and all(map(_is, self.objects, other.objects))
        )

    def __hash__(self) -> int:
        return hash(tuple(map(id, self.objects)))


def _is(a: Any, b: Any) -> bool:
    return a is b


def function_key(f: Callable[..., Any]) -> Any:
    """What a function's behaviour depends on, as far as it can be seen from outside.

    Two lambdas made by the same line, with the same objects in their closures and globals, have
    equal keys: a lambda made afresh in each turn of a loop is compiled once. And a function whose
    closure or globals have been given other objects has another key: it is compiled again.
    """
    if isinstance(f, types.MethodType):
        return _Same(f.__self__), function_key(f.__func__)
    if isinstance(f, functools.partial):
        keywords = tuple(sorted(f.keywords))
        return (
            function_key(f.func), _Same(*f.args, *(f.keywords[name] for name in keywords)),
            len(f.args), keywords,
        )
    if not isinstance(f, types.FunctionType) or f.__dict__:
        return _Same(f)
    seen: list[Any] = []
    _collect(f, seen, {f})
    return f.__code__, _Same(*seen), tuple(f.__kwdefaults__ or ())


def _collect(f: types.FunctionType, seen: list[Any], visited: set[Any]) -> None:
    """The objects that ``f``, and the functions of its own module that it calls, refer to."""
    closure = [_cell(cell) for cell in f.__closure__ or ()]
    used = [f.__globals__.get(name, _MISSING) for name in _global_names(f.__code__)]
    seen += [f.__globals__, *(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values(), *closure, *used]
    for value in (*closure, *used):
        if isinstance(value, types.FunctionType) and value.__globals__ is f.__globals__ and value not in visited:
            visited.add(value)
            _collect(value, seen, visited)


@functools.lru_cache(maxsize=1024)
def _global_names(code: types.CodeType) -> tuple[str, ...]:
    """The global names that a code object, or one nested in it, may read."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names.update(_global_names(constant))
    return tuple(sorted(names))


def _cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return _MISSING


def check_function(f: Any, label: str) -> None:
    if not callable(f):
        raise ArgumentMismatchError(
            f"{label}: f is {type(f).__name__} {f!r}; a function was expected. "
            f"Call {label.partition('(')[0]}(f, backend, x)."
        )


def _check_arguments(args: tuple[Any, ...], label: str) -> None:
    if not args:
        raise ArgumentMismatchError(
            f"{label}: no argument to differentiate was given. Call {label.partition('(')[0]}(f, backend, x)."
        )


def _options(operator: Operator, argnums: Any, has_aux: bool, batched: bool, label: str) -> Options:
    if isinstance(argnums, list):
        argnums = tuple(argnums)
    if not isinstance(argnums, (int, tuple)):
        raise ArgumentMismatchError(
            f"{label}: argnums is {argnums!r}; an integer or a tuple of integers was expected. Use argnums=0."
        )
    return Options(argnums, bool(has_aux), bool(batched))


class _Call:
    """One call of an operator, taken apart: what it needs to find or make its task."""

    def __init__(
        self,
        operator: Operator,
        f: Callable[..., Any],
        backend: Backend,
        args: tuple[Any, ...],
        options: Options,
        vector: Any,
    ) -> None:
        self.operator = operator
        self.f = f
        self.backend = backend
        self.options = options
        self.label = f"{operator.name}({backend.name})"
        self.layout, self.arrays = layout_of(args)
        self.vector = vector
        self.direction = None
        if operator.direction is not None:
            if vector is _MISSING:
                raise ArgumentMismatchError(
                    f"{self.label}: no {operator.direction} was given. Pass {operator.direction}=..., "
                    f"of the structure of {'x' if operator.direction == 'tangent' else 'the result of f'}."
                )
            self.direction = Direction(vector, options.batched, self.label, operator.direction)

    def forget(self) -> None:
        """Lets go of the arrays, when only their kind is still of interest."""
        self.arrays, self.vector = [], None

    def task(self) -> Task:
        return Task(
            self.operator, self.f, self.backend, self.layout, self.arrays, self.options, self.direction
        )

    def cached_task(self) -> Task:
        direction = None if self.direction is None else self.direction.key
        key = (
            self.operator.name, function_key(self.f), self.backend, self.options, self.layout.key, direction
        )
        return _TASKS.get(key, self.task)


def _vectors(task: Task, vector: Any) -> list[Any]:
    """The leaves of a tangent or cotangent, as the task takes them."""
    if vector is _MISSING:
        return []
    if task.operator.direction == "tangent":
        return task.tangents_of(vector)
    leaves, _ = _pytree.flatten(vector)
    return [task.cotangent_leaf(leaf) for leaf in leaves]


def apply(
    name: str,
    f: Callable[..., Any],
    backend: Backend | str,
    args: tuple[Any, ...],
    argnums: int | tuple[int, ...],
    has_aux: bool,
    prep: Preparation | None,
    vector: Any = _MISSING,
    batched: bool = False,
) -> Any:
    """What every public operator does with its arguments."""
    operator = VALUE if name == "value" else OPERATORS[name]
    spec = backend_of(backend)
    label = f"{name}({spec.name})"
    if prep is not None:
        if not isinstance(prep, Preparation):
            raise ArgumentMismatchError(
                f"{label}: prep is {type(prep).__name__}; the result of diface.prepare was expected. "
                f"Call prep = diface.prepare({name!r}, f, backend, x)."
            )
        prep._check(operator, f, spec, _options(operator, argnums, has_aux, batched, label))
        return prep._apply(args, vector)
    check_function(f, label)
    _check_arguments(args, label)
    call = _Call(operator, f, spec, args, _options(operator, argnums, has_aux, batched, label), vector)
    task = call.cached_task()
    return task(call.arrays, _vectors(task, vector))


class Preparation:
    """An operator prepared for one function, backend and kind of arguments: call it like the function.

    Made by :func:`diface.prepare`. It may be called from any thread, at the same time.
    """

    def __init__(self, call: _Call, on_mismatch: Literal["error", "prepare"]) -> None:
        self._on_mismatch = on_mismatch
        self._call = call
        self._lock = threading.Lock()
        self._task = call.task()
        call.forget()
        self._direction = call.direction

    @property
    def f(self) -> Callable[..., Any]:
        """The function that it was prepared for."""
        return self._call.f

    @property
    def backend(self) -> Backend:
        """The backend that it was prepared for."""
        return self._call.backend

    @property
    def operator(self) -> str:
        """The name of the operator that it was prepared for."""
        return self._call.operator.name

    def __repr__(self) -> str:
        specs = ", ".join(map(str, self._task.layout.specs))
        return f"<Preparation of {self._task.label} for {specs}>"

    def __call__(self, *args: Any, tangent: Any = _MISSING, cotangent: Any = _MISSING) -> Any:
        """The operator's result at ``args``, as ``operator(f, backend, *args, ...)`` gives it.

        Args:
            args: Arguments of the shapes, dtypes, devices and structure that were prepared for.
            tangent: The tangent, where the operator takes one.
            cotangent: The cotangent, where the operator takes one.

        Raises:
            PreparationMismatchError: The arguments are of another kind, and
                ``on_mismatch="prepare"`` was not asked for.
        """
        task = self._task
        if (
            task.direct is not None and len(args) == 1
            and tangent is _MISSING and cotangent is _MISSING and task.layout.matchers[0](args[0])
        ):
            result = task.direct(args[0])
            if result is not None:
                return result if task.with_value else result[1]
            return task(list(args), [])
        vector = cotangent if tangent is _MISSING else tangent
        if vector is not _MISSING or self._direction is not None:
            self._check_keyword(tangent, cotangent)
        return self._apply(args, vector)

    def _check_keyword(self, tangent: Any, cotangent: Any) -> None:
        wanted = self._call.operator.direction
        given = {"tangent": tangent, "cotangent": cotangent}
        came = [name for name, value in given.items() if value is not _MISSING]
        if came != ([wanted] if wanted else []):
            raise ArgumentMismatchError(
                f"{self._task.label}: called with {' and '.join(came) or 'no vector'}; "
                f"{wanted or 'no vector'} was expected. "
                + (f"Call prep(*args, {wanted}=...)." if wanted else "Call prep(*args).")
            )

    def _apply(self, args: tuple[Any, ...], vector: Any) -> Any:
        task = self._task
        arrays = task.layout.arrays_of(args)
        if arrays is None:
            task, arrays = self._other(args, vector)
        if vector is _MISSING:
            if self._direction is not None:
                self._check_keyword(_MISSING, _MISSING)
            return task(arrays, [])
        if self._direction is not None and not self._fits(vector):
            task, arrays = self._other(args, vector)
        return task(arrays, _vectors(task, vector))

    def _fits(self, vector: Any) -> bool:
        assert self._direction is not None
        library = library_of(vector)
        if self._direction.bare_leaf and library is not None:
            spec = library.describe(vector)
            return (spec.shape, spec.dtype) == self._direction.key[1][0] or library.name == "python"
        came = Direction(vector, self._call.options.batched, self._task.label, "vector")
        return came.key[:2] == self._direction.key[:2]

    def _other(self, args: tuple[Any, ...], vector: Any) -> tuple[Task, list[Any]]:
        """A task for arguments other than those prepared for, or an error that says what differs."""
        _check_arguments(args, self._task.label)
        call = _Call(self._call.operator, self._call.f, self._call.backend, args, self._call.options, vector)
        if self._on_mismatch == "prepare":
            with self._lock:
                arrays = call.arrays
                self._call, self._direction, self._task = call, call.direction, call.task()
                call.forget()
                return self._task, arrays
        raise PreparationMismatchError(self._report(call))

    def _report(self, call: _Call) -> str:
        lines = _differences(self._task.layout, call.layout)
        if call.direction is not None and self._direction is not None:
            lines += _direction_differences(self._direction, call.direction, str(self._call.operator.direction))
        return (
            f"{self._task.label}: the arguments are not of the kind that was prepared for.\n"
            + "\n".join(lines)
            + "\nPrepare for them: diface.prepare(...), or pass on_mismatch=\"prepare\" to have it done."
        )

    def _check(self, operator: Operator, f: Any, backend: Backend, options: Options) -> None:
        """Raises where the operator, f, backend or options are not those prepared for."""
        own = self._call
        lines = []
        if operator.name != own.operator.name:
            lines.append(f"  operator: prepared {own.operator.name}, came {operator.name}")
        if f is not own.f and f != own.f:
            lines.append(f"  f: prepared {own.f!r}, came {f!r}")
        if backend != own.backend:
            lines.append(f"  backend: prepared {own.backend!r}, came {backend!r}")
        for field, mine, came in zip(Options._fields, own.options, options, strict=True):
            if mine != came:
                lines.append(f"  {field}: prepared {mine!r}, came {came!r}")
        if lines:
            raise PreparationMismatchError(
                f"{operator.name}({backend.name}): the preparation was made for something else.\n"
                + "\n".join(lines)
                + "\nMake one for this call: diface.prepare(operator, f, backend, *args)."
            )


def _differences(prepared: Layout, came: Layout) -> list[str]:
    """A line for each leaf in which two layouts differ."""
    mine, theirs = dict(prepared.describe("args")), dict(came.describe("args"))
    lines = []
    for path in [*mine, *(path for path in theirs if path not in mine)]:
        a, b = mine.get(path, "nothing"), theirs.get(path, "nothing")
        if a != b:
            lines.append(f"  {path}: prepared {a}, came {b}")
    if not lines:
        lines.append(f"  structure: prepared {prepared.spec}, came {came.spec}")
    return lines


def _direction_differences(prepared: Direction, came: Direction, keyword: str) -> list[str]:
    if prepared.key[:2] == came.key[:2]:
        return []
    return [f"  {keyword}: prepared {prepared.key[1]} in {prepared.spec}, came {came.key[1]} in {came.spec}"]


def prepare(
    operator: Callable[..., Any] | str,
    f: Callable[..., Any],
    backend: Backend | str,
    /,
    *args: Any,
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    tangent: Any = _MISSING,
    cotangent: Any = _MISSING,
    batched: bool = False,
    verify: bool = False,
    on_mismatch: Literal["error", "prepare"] = "error",
) -> Preparation:
    """Does once what an operator needs to do for arguments of this kind: trace, compile, choose the mode.

    Args:
        operator: The operator (``diface.gradient``) or its name.
        f: The function.
        backend: The engine, as an instance or a short name.
        args: Typical arguments: only their shapes, dtypes, devices and structure matter.
        argnums: As for the operator.
        has_aux: As for the operator.
        tangent: A typical tangent, where the operator takes one.
        cotangent: A typical cotangent, where the operator takes one.
        batched: As for the operator.
        verify: Compare the derivative at ``args`` with a numerical one along random directions.
        on_mismatch: What a call with arguments of another kind does: ``"error"``, or ``"prepare"``
            anew.

    Returns:
        A :class:`Preparation`: call it with arguments, or pass it to the operator as ``prep=``.

    Raises:
        VerificationError: ``verify=True``, and the derivative disagrees with the numerical one.
        ArgumentMismatchError: The arguments do not fit together.

    Example:
        >>> import numpy as np, diface
        >>> prep = diface.prepare(diface.gradient, lambda x: (x**2).sum(), "finite_diff", np.zeros(2))
        >>> prep(np.array([1.0, 2.0])).round(6)
        array([2., 4.])
    """
    name = operator if isinstance(operator, str) else getattr(operator, "__name__", repr(operator))
    if name not in OPERATORS:
        raise ArgumentMismatchError(
            f"prepare: operator {name!r} is not known. Use one of: {', '.join(sorted(OPERATORS))}."
        )
    if on_mismatch not in ("error", "prepare"):
        raise ArgumentMismatchError(
            f'prepare: on_mismatch={on_mismatch!r} is not known. Use "error" or "prepare".'
        )
    spec = backend_of(backend)
    label = f"prepare({name}, {spec.name})"
    check_function(f, label)
    _check_arguments(args, label)
    chosen = OPERATORS[name]
    vector = cotangent if chosen.direction == "cotangent" else tangent
    options = _options(chosen, argnums, has_aux, batched, label)
    preparation = Preparation(_Call(chosen, f, spec, args, options, vector), on_mismatch)
    result = preparation._apply(args, vector)  # compiles, and finds what f cannot do, now rather than later
    if verify:

        def other(name: str, args: tuple[Any, ...], tangent: Any = _MISSING, cotangent: Any = _MISSING) -> Any:
            vector = cotangent if tangent is _MISSING else tangent
            return apply(name, f, spec, args, argnums, has_aux, None, vector)

        check_derivative(preparation._task, args, other, result)
    return preparation
