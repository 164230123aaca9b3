"""A ``Task``: one operator on one function, engine and layout of arguments, ready to run.

This is the layer between the public operators and the builders: it checks and imports the
arguments, runs what the engine compiled, and gives the results the form that the caller expects.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from diface import _pytree
from diface._derivation.builders import BUILDERS, match_cotangents, require_scalar
from diface._derivation.calculus import Calculus
from diface._derivation.table import Operator
from diface._engine import Array, ArrayLibrary, Arrays, ArraySpec, Guest
from diface._exchange import NUMPY, PYTHON, NumpyLibrary, convert, library_of
from diface._functions import SINGLE, Layout, Run, Structure
from diface._registry import guest_of
from diface._specs import Backend
from diface.errors import (
    ArgumentMismatchError,
    MutationError,
    NotDifferentiableError,
    NotScalarError,
    UnsupportedError,
)

__all__ = ["Direction", "Options", "Task"]


class Options(NamedTuple):
    """The keywords of an operator that are not arrays."""

    argnums: int | tuple[int, ...] = 0
    has_aux: bool = False
    batched: bool = False


class Direction:
    """The static part of a tangent or cotangent: structure, shapes and dtypes of its leaves."""

    __slots__ = ("bare_leaf", "key", "libraries", "size", "spec")

    def __init__(self, tree: Any, batched: bool, label: str, keyword: str) -> None:
        leaves, self.spec = _pytree.flatten(tree)
        self.bare_leaf = len(leaves) == 1 and leaves[0] is tree
        shapes: list[Any] = []
        self.libraries: list[ArrayLibrary] = []
        for leaf, path in zip(leaves, _pytree.paths(self.spec, keyword), strict=True):
            library = library_of(leaf)
            if library is None:
                raise ArgumentMismatchError(
                    f"{label}: {path} is {type(leaf).__name__} {leaf!r}; an array or a number was expected. "
                    f"Pass {keyword} as arrays (None where there is nothing to differentiate)."
                )
            self.libraries.append(library)
            spec = library.describe(leaf)
            shapes.append((spec.shape, spec.dtype))
        self.size: int | None = None
        if batched:
            sizes = {shape[0] if shape else None for shape, _ in shapes}
            if len(sizes) != 1 or None in sizes:
                raise ArgumentMismatchError(
                    f"{label}: batched=True, but the leaves of {keyword} have the shapes "
                    f"{[shape for shape, _ in shapes]}; one leading axis of one length was expected. "
                    f"Stack the {keyword}s along axis 0."
                )
            self.size = sizes.pop()
        self.key = (self.spec, tuple(shapes), tuple(library.name for library in self.libraries))

    def unflatten(self, arrays: Sequence[Any]) -> Any:
        """The tree of these leaves."""
        return _pytree.unflatten(self.spec, arrays)


class Task:
    """See the module's docstring.

    Args:
        operator: The operator.
        f: The user's function.
        backend: The engine's description.
        layout: The layout of the arguments.
        arrays: The arrays of typical arguments (looked at now, not kept).
        options: The operator's keywords.
        direction: The static part of its tangent or cotangent.
    """

    def __init__(
        self,
        operator: Operator,
        f: Callable[..., Any],
        backend: Backend,
        layout: Layout,
        arrays: Sequence[Any],
        options: Options,
        direction: Direction | None,
    ) -> None:
        self.operator = operator
        self.f = f
        self.backend = backend
        self.layout = layout
        self.options = options
        self.direction = direction
        self.label = f"{operator.name}({backend.name})"
        self.batch = direction.size if direction is not None else None
        self.guest: Guest = guest_of(backend)
        self._f = self.guest.adopt(f)
        self.argnums = _normal_argnums(options.argnums, layout.spec.num_children, self.label)
        self.active, self._trees = self._find_active()
        self._in_order = self.active == tuple(range(len(layout.specs)))
        self.active_specs = tuple(layout.specs[i] for i in self.active)
        self.library = self.guest.library or self._callers_library()
        self.caller = self._result_library()
        self._check_traced(arrays)
        if operator.scalar_in:
            self._check_scalar_input()
        modes = self.guest.modes
        if backend.forced_mode is not None:
            modes = frozenset({backend.forced_mode})
        self.calculus = Calculus(self.guest, self.library, modes, self.label)
        self._scope = self.library.scope(
            [
                spec for i, (spec, library) in enumerate(zip(layout.specs, layout.libraries, strict=True))
                if library is not PYTHON or i in self.active
            ]
        )
        self._run = self.guest.compile(BUILDERS[operator.build](self))
        self._keeps = any(part == "map" for part, _ in operator.parts)
        self._home = all(library is self.library for library in layout.libraries)
        self._own_copies = False
        self._writes: list[bool] = []
        self._known_writes = not self.library.detects_writes
        self._plain = self._is_plain()
        self.direct = self._shortcut()
        self.with_value = len(operator.parts) == 2

    # ---- the arguments, looked at once ------------------------------------------------------

    def _find_active(self) -> tuple[tuple[int, ...], list[tuple[_pytree.TreeSpec, tuple[int, ...]]]]:
        """The arrays to differentiate, and for each argnum its tree and where its leaves are.

        In such a tree a leaf is an index into the active arrays, or -1 where there is no array.
        """
        layout = self.layout
        children = layout.spec.children()
        starts = np.cumsum([0, *(child.num_leaves for child in children)])
        place = {position: k for k, position in enumerate(layout.positions)}
        active: list[int] = []
        trees = []
        names = _pytree.paths(layout.spec, "args")
        for argnum in self.argnums:
            slots = []
            for leaf in range(starts[argnum], starts[argnum + 1]):
                k = place.get(leaf)
                if k is None:
                    slots.append(-1)
                    continue
                if layout.specs[k].dtype in _NOT_DIFFERENTIABLE or not _is_inexact(layout.specs[k].dtype):
                    raise NotDifferentiableError(
                        f"{self.label}: {names[leaf]} is {layout.specs[k]}; a real or complex floating-point "
                        "number or array was expected. Convert it to floating point, or leave it out of argnums."
                    )
                slots.append(len(active))
                active.append(k)
            if not any(slot >= 0 for slot in slots) and children[argnum].num_leaves:
                raise NotDifferentiableError(
                    f"{self.label}: argument {argnum} holds no array ({self.layout.template[starts[argnum]]!r}). "
                    "Choose another argument by argnums."
                )
            trees.append((children[argnum], tuple(slots)))
        return tuple(active), trees

    def _callers_library(self) -> ArrayLibrary:
        library = self._result_library()
        return NUMPY if isinstance(library, NumpyLibrary) else library

    def _result_library(self) -> ArrayLibrary:
        """The library that results go to which are not like one argument."""
        libraries = [self.layout.libraries[i] for i in self.active] + list(self.layout.libraries)
        for library in libraries:
            if library is not PYTHON:
                return library
        return libraries[0] if libraries else NUMPY

    def _check_traced(self, arrays: Sequence[Any]) -> None:
        for x, library in zip(arrays, self.layout.libraries, strict=True):
            if library is not self.library and library.is_traced(x):
                raise UnsupportedError(
                    f"{self.label}: an argument is being followed by {library.name} (it is a "
                    f"{type(x).__name__}), which {self.backend.name} cannot see. Wrap f: "
                    f"diface.DifferentiateWith(f, {self.backend.name!r}), and differentiate by {library.name}."
                )

    def _check_scalar_input(self) -> None:
        specs = self.active_specs
        if len(specs) != 1 or math.prod(specs[0].shape) != 1:
            came = ", ".join(map(str, specs)) or "no array"
            raise NotScalarError(
                f"{self.label}: x is {came}; one real number was expected. "
                "Use diface.gradient, diface.jacobian or diface.pushforward."
            )
        if "complex" in specs[0].dtype:
            raise NotDifferentiableError(
                f"{self.label}: x is {specs[0]}; one real number was expected. "
                "Use diface.pushforward with tangent=1+0j for an analytic f."
            )

    def _is_plain(self) -> bool:
        """Whether arguments and results are bare arrays of the engine's own, so that nothing crosses."""
        return (
            self.layout.bare
            and self._home
            and not self.guest.numeric
            and not self.options.has_aux
            and isinstance(self.options.argnums, int)
            and self._trees[0][0] == _pytree.LEAF
            and not self._keeps
            and all(part in ("y", "x") for part, _ in self.operator.parts)
            and self.caller is self.library
            and not self.library.protects
            and (len(self.active) == len(self.layout.specs) or not self.library.detects_writes)
        )

    def _shortcut(self) -> Callable[[Any], Any] | None:
        """The engine's own shortcut to ``(y, g)``, where this task is of the kind it is made for."""
        if not self._plain or self.operator.build != "gradient" or not self.calculus.reverse:
            return None
        if len(self.active) != 1 or len(self.layout.specs) != 1 or self._scope is not None:
            return None
        return self.guest.direct_gradient(self._f, 1)

    # ---- for the builders -------------------------------------------------------------------

    def run_of(self, arrays: Sequence[Array]) -> Run:
        layout = self.layout
        count = len(layout.specs)
        return Run(
            self._f, layout, self.active, arrays[:count], self.library, self.options.has_aux, self.label,
            self._in_order,
            self._writes if self._own_copies or not self._known_writes else None,
        )

    def active_of(self, arrays: Sequence[Array]) -> Arrays:
        return tuple([arrays[i] for i in self.active])

    def direction_of(self, arrays: Sequence[Array]) -> Arrays:
        return tuple(arrays[len(self.layout.specs) :])

    def cotangents(self, arrays: Sequence[Array], ys: Arrays, call: Run) -> Arrays:
        assert self.direction is not None
        return match_cotangents(
            self.label, self.library, self.direction, self.direction_of(arrays), ys, call.structure
        )

    def ones(self, xs: Arrays) -> Arrays:
        return tuple(self.library.ones_like(x) for x in xs)

    def seed(self, ys: Arrays) -> Arrays:
        require_scalar(ys, self.library, self.label)
        return (self.library.ones_like(ys[0]),)

    def prefers_forward(self, call: Run, xs: Arrays) -> bool:
        """Forward mode where it takes fewer sweeps, or where only it will do."""
        calculus = self.calculus
        if not (calculus.forward and calculus.reverse):
            return calculus.forward
        if any(calculus.is_complex(x) for x in xs):
            return True
        size = self.guest.output_sizes(call, xs)
        return size is not None and self.is_tall(size, xs)

    def is_tall(self, size: int, xs: Arrays) -> bool:
        """Whether a Jacobian with ``size`` rows has more rows than columns, so that forward mode is cheaper."""
        return self.calculus.forward and size > sum(math.prod(x.shape) for x in xs)

    def refuse_complex_hessian(self, xs: Arrays) -> None:
        for x in xs:
            if self.calculus.is_complex(x):
                raise UnsupportedError(
                    f"{self.label}: x has dtype {x.dtype}; a Hessian of a function of complex numbers is not one "
                    "matrix. Use diface.hvp, or real and imaginary parts as two arguments."
                )

    # ---- running ----------------------------------------------------------------------------

    def __call__(self, arrays: list[Any], vectors: list[Any]) -> Any:
        """The operator's result for arrays with this layout, and the vectors of its direction."""
        if self._plain and not vectors:
            try:
                if self._scope is None:
                    (ys, _, *outs), structure = self._run(*arrays)
                else:
                    with self._scope():
                        (ys, _, *outs), structure = self._run(*arrays)
            except Exception as error:
                self._annotate(error)
                raise
            if structure is SINGLE:
                results = [ys[0] if i < 0 else outs[i][0] for _, i in self.operator.parts]
                return results[0] if len(results) == 1 else tuple(results)
            return self._finish(ys, _, outs, structure, arrays)
        with self._scope() if self._scope is not None else _NO_SCOPE:
            imported, fresh = self._import(arrays)
            given = imported + [convert(v, lib, self.library) for v, lib in self._vectors(vectors)]
            (ys, carried, *outs), structure = self._execute(given, fresh)
            return self._finish(ys, carried, outs, structure, arrays + vectors)

    def _vectors(self, vectors: list[Any]) -> list[tuple[Any, ArrayLibrary]]:
        return [(v, library_of(v) or self.library) for v in vectors]

    def _import(self, arrays: list[Any]) -> tuple[list[Any], bool]:
        """The arrays in the engine's library; and whether all of their memory is our own."""
        own = self._own_copies
        result = []
        active = set(self.active)
        for i, (x, library) in enumerate(zip(arrays, self.layout.libraries, strict=True)):
            target = self.library
            if library is PYTHON and i not in active:
                result.append(x)
                continue
            keep = self._keeps and library.mutable and library is not target
            if library is not target:
                x = self.guest.admit(library.copy(x) if keep else x, library, target)
            elif self.guest.numeric:
                x = target.detach(x)  # nobody follows what is computed from values alone
            result.append(target.copy(x) if own else target.protect(x))
        return result, own

    def _execute(self, arrays: list[Any], own: bool = False) -> Any:
        library = self.library
        if library.detects_writes and not own:
            return self._execute_watched(arrays)
        try:
            return self._run(*arrays)
        except Exception as error:
            if not own and library.protects and self.guest.is_write_error(error):
                # The function writes into its input: from now on it gets copies of its own.
                self._own_copies = True
                return self._run(*[x if library_of(x) is PYTHON else library.copy(x) for x in arrays])
            self._annotate(error)
            raise

    def _execute_watched(self, arrays: list[Any]) -> Any:
        library = self.library
        before = [library.version(x) for x in arrays]
        try:
            result = self._run(*arrays)
        except Exception as error:
            self._annotate(error)
            raise
        for i, (x, version) in enumerate(zip(arrays, before)):  # noqa: B905 (hot path; equal lengths)
            if library.version(x) != version:
                raise MutationError(
                    f"{self.label}: f changed its array number {i} in place, where diface could not give it a copy "
                    "in time; the caller's array has been changed. Let f work on a copy of it."
                )
        self._own_copies = self._own_copies or bool(self._writes)
        self._known_writes = True
        return result

    def _annotate(self, error: Exception) -> None:
        hint = self.guest.explain_failure(error)
        if hint is not None:
            error.add_note(f"{self.label}: {hint}")

    # ---- results ----------------------------------------------------------------------------

    def _finish(self, ys: Arrays, carried: Arrays, outs: list[Any], structure: Structure, arrays: list[Any]) -> Any:
        results = [
            self._part(part, ys if index < 0 else outs[index], ys, carried, structure, arrays)
            for part, index in self.operator.parts
        ]
        if self.options.has_aux:
            aux = structure.auxiliary([self._export(c, self.caller, arrays) for c in carried])
            if len(results) == 1:
                return results[0], aux
            results[0] = (results[0], aux)
        return results[0] if len(results) == 1 else tuple(results)

    def _part(
        self, part: str, out: Any, ys: Arrays, carried: Arrays, structure: Structure, arrays: list[Any]
    ) -> Any:
        if part == "y":
            return structure.value(
                [self._export(y, self.caller, arrays) for y in out],
                [self._export(c, self.caller, arrays) for c in carried],
            )
        if part == "ty":
            zero = [self._export(self.calculus.zeros(c), self.caller, arrays) for c in carried]
            return structure.value([self._export(t, self.caller, arrays) for t in out], zero)
        if part == "x":
            return self.like_x([self._export(g, self._home_of(k), arrays) for k, g in enumerate(out)])
        if part == "map":
            return _LinearMap(self, out, structure, ys)
        matrix = [[self._export(b, self._home_of(k), arrays) for k, b in enumerate(row)] for row in out]
        if part == "yx":
            self._check_analytic(matrix)
            return structure.value([self.like_x(row) for row in matrix], [None] * len(carried))
        return self.like_x([self.like_x(row) for row in matrix])

    def _check_analytic(self, matrix: list[list[Any]]) -> None:
        for row in matrix:
            for block in row:
                if "complex" in str(getattr(block, "dtype", "")):
                    view = np.asarray(convert(block, library_of(block) or NUMPY, NUMPY))
                    if np.isnan(view).any():
                        raise UnsupportedError(
                            f"{self.label}: f is not analytic (it uses abs, conj, real or imag), so its derivative "
                            "is not one complex matrix. Use diface.pushforward or diface.pullback."
                        )

    def _home_of(self, k: int) -> ArrayLibrary:
        return self.layout.libraries[self.active[k]]

    def like_x(self, leaves: Sequence[Any]) -> Any:
        """A tree like the differentiated argument (a tuple of trees for a tuple of argnums)."""
        trees = [
            leaves[slots[0]] if spec == _pytree.LEAF
            else _pytree.unflatten(spec, [leaves[k] if k >= 0 else None for k in slots])
            for spec, slots in self._trees
        ]
        return tuple(trees) if isinstance(self.options.argnums, tuple) else trees[0]

    def _export(self, x: Any, target: ArrayLibrary, arrays: list[Any]) -> Any:
        if target is self.library:
            return self.library.writable(x, fresh=False)
        result = convert(x, self.library, target)
        if isinstance(result, np.ndarray):
            shared = any(isinstance(a, np.ndarray) and np.may_share_memory(a, result) for a in arrays)
            return np.array(result) if shared else self.guest.release(x, result)
        return result

    # ---- tangents ---------------------------------------------------------------------------

    def tangents_of(self, tangent: Any) -> list[Any]:
        """The leaves of a tangent, one for each differentiated array, checked against it."""
        many = isinstance(self.options.argnums, tuple)
        given = tangent if many else (tangent,)
        if many and (not isinstance(tangent, (tuple, list)) or len(tangent) != len(self._trees)):
            raise ArgumentMismatchError(
                f"{self.label}: tangent is {type(tangent).__name__}; a tuple of {len(self._trees)} was expected, "
                "one for each of argnums."
            )
        leaves: list[Any] = []
        for argnum, part, (spec, slots) in zip(self.argnums, given, self._trees, strict=True):
            if spec == _pytree.LEAF:
                parts: list[Any] = [part]
            else:
                _pytree.flatten(part)  # registers what only an engine can open
                try:
                    parts = spec.flatten_up_to(part)
                except (ValueError, TypeError) as error:
                    raise ArgumentMismatchError(
                        f"{self.label}: the tangent of argument {argnum} does not have its structure {spec}: "
                        f"{error}. Pass a tangent with the structure of the argument."
                    ) from error
            leaves += [leaf for leaf, k in zip(parts, slots, strict=True) if k >= 0]
        return [self._check_tangent(leaf, spec) for leaf, spec in zip(leaves, self.active_specs, strict=True)]

    def cotangent_leaf(self, leaf: Any) -> Any:
        """A leaf of a cotangent; a Python number in the precision of x."""
        if library_of(leaf) is PYTHON and self.active_specs and not isinstance(leaf, complex):
            return np.asarray(leaf, dtype=_REAL_DTYPES.get(self.active_specs[0].dtype, self.active_specs[0].dtype))
        return leaf

    def _check_tangent(self, leaf: Any, spec: ArraySpec) -> Any:
        library = library_of(leaf)
        shape = spec.shape if self.batch is None else (self.batch, *spec.shape)
        if library is None:
            raise ArgumentMismatchError(
                f"{self.label}: a tangent is {type(leaf).__name__}; an array of shape {shape} was expected. "
                "Pass a tangent like the argument."
            )
        came = library.describe(leaf)
        dtype = _PYTHON_DTYPES.get(spec.dtype, spec.dtype)
        if library is PYTHON and came.shape == shape:
            return NUMPY.from_numpy(np.asarray(leaf, dtype=dtype if dtype != "bfloat16" else "float32"))[0]
        if came.shape != shape:
            raise ArgumentMismatchError(
                f"{self.label}: a tangent has shape {came.shape}; its argument is {spec}, so {shape} was expected. "
                "Pass a tangent like the argument" + (", with a leading batch axis." if self.batch else ".")
            )
        if came.dtype != dtype:
            raise ArgumentMismatchError(
                f"{self.label}: a tangent has dtype {came.dtype}; its argument is {spec}. "
                f"Convert the tangent to {dtype}."
            )
        return leaf


_NO_SCOPE = contextlib.nullcontext()
_PYTHON_DTYPES = {"float": "float64", "complex": "complex128"}
# The real dtype of the same precision (NumPy has no bfloat16: there a number counts as float32).
_REAL_DTYPES = {
    "float": "float64", "complex": "float64", "complex128": "float64", "complex64": "float32", "bfloat16": "float32",
}
_NOT_DIFFERENTIABLE = {"int", "bool"}


def _is_inexact(dtype: str) -> bool:
    return "float" in dtype or "complex" in dtype


def _normal_argnums(argnums: int | tuple[int, ...], count: int, label: str) -> tuple[int, ...]:
    wanted = argnums if isinstance(argnums, tuple) else (argnums,)
    result = []
    for n in wanted:
        if not isinstance(n, int) or isinstance(n, bool) or not -count <= n < count:
            raise ArgumentMismatchError(
                f"{label}: argnums={argnums!r}, but f was called with {count} argument(s). "
                f"Use integers from {-count} to {count - 1}."
            )
        result.append(n % count)
    if len(set(result)) != len(result):
        raise ArgumentMismatchError(
            f"{label}: argnums={argnums!r} names an argument twice. Name each argument once."
        )
    return tuple(result)


class _LinearMap:
    """A pullback or pushforward as a function of trees in the caller's library."""

    def __init__(self, task: Task, linear: Callable[..., Any], structure: Structure, ys: Arrays) -> None:
        self._task = task
        self._linear = linear
        self._structure = structure
        self._ys = tuple(_Shape(tuple(y.shape), y.dtype) for y in ys)

    def __repr__(self) -> str:
        return f"<{self._task.label}: linear map>"

    def __call__(self, vector: Any) -> Any:
        """The map's image of ``vector``: of a cotangent like y, or of a tangent like x."""
        task = self._task
        with task._scope() if task._scope is not None else _NO_SCOPE:
            if task.operator.name.endswith("pullback_function"):
                return self._pull(vector)
            leaves = task.tangents_of(vector)
            out = task.guest.call_linear(self._linear, self._import(leaves))
            zeros = tuple(0 for kind in self._structure.kinds if kind < 0)
            return self._structure.value([task._export(t, task.caller, leaves) for t in out], zeros)

    def _pull(self, vector: Any) -> Any:
        task = self._task
        direction = Direction(vector, False, task.label, "cotangent")
        leaves, _ = _pytree.flatten(vector)
        leaves = [task.cotangent_leaf(leaf) for leaf in leaves]
        cts = match_cotangents(
            task.label, task.library, direction, self._import(leaves), self._ys, self._structure
        )
        out = task.guest.call_linear(self._linear, cts)
        return task.like_x([task._export(g, task._home_of(k), leaves) for k, g in enumerate(out)])

    def _import(self, leaves: list[Any]) -> Arrays:
        library = self._task.library
        return tuple(convert(v, library_of(v) or library, library) for v in leaves)


class _Shape(NamedTuple):
    shape: tuple[int, ...]
    dtype: Any
