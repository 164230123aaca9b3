"""One thin door to ``optree``, which opens what any loaded engine, or ``dataclasses``, can open.

A node type that is registered with one engine only (an Equinox module with JAX, a dataclass with
PyTorch) is opened by that engine's registry, whichever engine differentiates.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, TypeAlias

import optree

from diface._exchange import find_library
from diface._registry import loaded_libraries

__all__ = ["LEAF", "TreeSpec", "flatten", "paths", "unflatten"]

_NAMESPACE = "diface"
TreeSpec: TypeAlias = optree.PyTreeSpec
_LEAF_TYPES: set[type] = {str, bytes, bool, int, float, complex, type(None)}

LEAF: TreeSpec = optree.tree_structure(0.0, namespace=_NAMESPACE)  # type: ignore[arg-type]
"""The specification of a tree that is one leaf."""


def flatten(tree: Any) -> tuple[list[Any], TreeSpec]:
    """The leaves of ``tree``, in order, and its structure."""
    while True:
        leaves, spec = optree.tree_flatten(tree, namespace=_NAMESPACE)
        fresh = {type(leaf): leaf for leaf in leaves if type(leaf) not in _LEAF_TYPES}
        registered = [_register(kind, leaf) for kind, leaf in fresh.items()]  # all of them: no short cut
        if not any(registered):
            return leaves, spec


def unflatten(spec: TreeSpec, leaves: Any) -> Any:
    """The tree of structure ``spec`` with these leaves."""
    return optree.tree_unflatten(spec, leaves)


def paths(spec: TreeSpec, name: str) -> list[str]:
    """How each leaf is reached from a variable ``name``: ``x['a'][0]``."""
    return [accessor.codify(name) for accessor in spec.accessors()]


def _register(kind: type, leaf: Any) -> bool:
    """Registers ``kind`` as a node if somebody can open it; says whether it did."""
    if len(_LEAF_TYPES) > 10_000:  # types made in a loop must not grow memory
        _LEAF_TYPES.clear()
    if find_library(kind) is not None:
        _LEAF_TYPES.add(kind)
        return False
    for library in loaded_libraries():
        opened = library.open_node(leaf)
        if opened is not None:
            _add(kind, *opened)
            return True
    if dataclasses.is_dataclass(kind):
        _add(kind, _open_dataclass, _close_dataclass)
        return True
    _LEAF_TYPES.add(kind)
    return False


@dataclasses.dataclass(frozen=True, eq=False)
class _Shape:
    """What is left of a node when its children are taken out; equal to another of the same make."""

    kind: type
    key: Any
    rebuild: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Shape) and self.kind is other.kind and bool(self.key == other.key)

    def __hash__(self) -> int:
        return hash(self.kind)


def _add(kind: type, open_node: Any, close_node: Any) -> None:
    def flatten_node(node: Any) -> tuple[Any, _Shape]:
        children, key, whole = open_node(node)
        return tuple(children), _Shape(kind, key, whole)

    def unflatten_node(shape: _Shape, children: Any) -> Any:
        return close_node(shape.rebuild, tuple(children))

    optree.register_pytree_node(kind, flatten_node, unflatten_node, namespace=_NAMESPACE)  # type: ignore[arg-type]


def _open_dataclass(node: Any) -> tuple[list[Any], Any, Any]:
    names = tuple(field.name for field in dataclasses.fields(node))
    children = [getattr(node, name) for name in names]
    # The specification outlives the call in caches: it must not keep the arrays alive.
    return children, names, _close_dataclass(node, [None] * len(names))


def _close_dataclass(whole: Any, children: Any) -> Any:
    # Not by its __init__: the children may be tracers or None, which __post_init__ would refuse.
    result = copy.copy(whole)
    for field, child in zip(dataclasses.fields(whole), children, strict=True):
        object.__setattr__(result, field.name, child)
    return result
