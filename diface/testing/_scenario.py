"""A ``Scenario``: a function, its arguments, and what every operator must give for it, from mathematics."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from diface import _pytree

__all__ = ["OPERATORS", "Call", "Scenario", "map_arrays"]

Tolerance = Literal["exact", "linalg", "loop"]


class Call(NamedTuple):
    """How a case calls an operator, and which expectations make up its result.

    Attributes:
        operator: The public operator.
        parts: The keys of ``Scenario.expected`` that its result consists of, in order.
        keyword: The keyword that takes a vector.
        vector: The field of the scenario with that vector.
        order: The order of the derivative.
        linear: The result ends with a linear map, to be applied to the vector.
    """

    operator: str
    parts: tuple[str, ...]
    keyword: Literal["tangent", "cotangent"] | None = None
    vector: Literal["tangent", "cotangent", "tangents", "cotangents"] | None = None
    order: int = 1
    linear: bool = False

    @property
    def batched(self) -> bool:
        """Whether the vector has a batch axis."""
        return self.vector in ("tangents", "cotangents")


OPERATORS: dict[str, Call] = {
    "gradient": Call("gradient", ("gradient",)),
    "value_and_gradient": Call("value_and_gradient", ("value", "gradient")),
    "derivative": Call("derivative", ("derivative",)),
    "value_and_derivative": Call("value_and_derivative", ("value", "derivative")),
    "jacobian": Call("jacobian", ("jacobian",)),
    "value_and_jacobian": Call("value_and_jacobian", ("value", "jacobian")),
    "pushforward": Call("pushforward", ("pushforward",), "tangent", "tangent"),
    "value_and_pushforward": Call("value_and_pushforward", ("value", "pushforward"), "tangent", "tangent"),
    "batched_pushforward": Call("pushforward", ("batched_pushforward",), "tangent", "tangents"),
    "value_and_pushforward_function": Call(
        "value_and_pushforward_function", ("value", "pushforward"), None, "tangent", linear=True
    ),
    "pullback": Call("pullback", ("pullback",), "cotangent", "cotangent"),
    "value_and_pullback": Call("value_and_pullback", ("value", "pullback"), "cotangent", "cotangent"),
    "batched_pullback": Call("pullback", ("batched_pullback",), "cotangent", "cotangents"),
    "value_and_pullback_function": Call(
        "value_and_pullback_function", ("value", "pullback"), None, "cotangent", linear=True
    ),
    "hvp": Call("hvp", ("hvp",), "tangent", "tangent", order=2),
    "gradient_and_hvp": Call("gradient_and_hvp", ("gradient", "hvp"), "tangent", "tangent", order=2),
    "batched_hvp": Call("hvp", ("batched_hvp",), "tangent", "tangents", order=2),
    "hessian": Call("hessian", ("hessian",), order=2),
    "value_gradient_and_hessian": Call(
        "value_gradient_and_hessian", ("value", "gradient", "hessian"), order=2
    ),
    "second_derivative": Call("second_derivative", ("second_derivative",), order=2),
    "value_derivative_and_second_derivative": Call(
        "value_derivative_and_second_derivative", ("value", "derivative", "second_derivative"), order=2
    ),
}
"""What a scenario can be checked with; ``batched_*`` are the operators with ``batched=True``."""


def map_arrays(function: Callable[[Any], Any], tree: Any) -> Any:
    """``tree`` with ``function`` applied to its arrays and real or complex numbers."""
    leaves, spec = _pytree.flatten(tree)
    return _pytree.unflatten(
        spec,
        [function(x) if isinstance(x, (np.ndarray, np.generic, float, complex)) else x for x in leaves],
    )


def _zeros(x: Any) -> Any:
    # Constants of another kind (indices, masks) keep their values: zeros could change what f does.
    if isinstance(x, np.ndarray):
        return np.zeros_like(x) if x.dtype.kind in "fc" else x
    return type(x)(0)


@dataclasses.dataclass(frozen=True, eq=False)
class Scenario:
    """A function with arguments and what each operator must give for it.

    Everything is NumPy (or Python numbers); the suite brings it into the caller's library. ``f`` is
    written once, on ``diface.array_namespace(x)``, so that every engine can run it. The expectations
    come from mathematics, never from an engine.

    Args:
        name: A short name, unique in its list.
        f: The function.
        args: Its arguments: pytrees of arrays and Python numbers.
        expected: What is expected, by ``"value"``, ``"aux"``, ``"gradient"``, ``"derivative"``,
            ``"jacobian"``, ``"pushforward"``, ``"pullback"``, ``"hvp"``, ``"hessian"``,
            ``"second_derivative"``, ``"batched_pushforward"``, ``"batched_pullback"`` and
            ``"batched_hvp"``. Integer arrays in ``"aux"`` are NumPy constants of ``f``, and stay so.
        prepare_args: The values that an operator is prepared at, other than those it is run at;
            zeros if ``None``.
        argnums: As for the operators.
        has_aux: As for the operators.
        tangent: Like the differentiated argument.
        cotangent: Like the value.
        tangents: As ``tangent``, with a leading batch axis.
        cotangents: As ``cotangent``, with a leading batch axis.
        dtype: The precision, which chooses the tolerance.
        needs: What an engine must be capable of: ``"complex"``, ``"linalg"``, ``"hermitian"``, ....
        tolerance: How rounding errors grow in ``f``: ``"exact"`` (hardly), ``"linalg"``, ``"loop"``.
        only: The operators to check; empty: all that ``expected`` speaks of.
        differences: Compare with central differences of ``f`` as well.

    Example:
        >>> import numpy as np
        >>> square = Scenario("square", lambda x: (x * x).sum(), (np.array([1.0, 2.0]),),
        ...                   {"value": np.array(5.0), "gradient": np.array([2.0, 4.0])})
        >>> square.operators
        ('gradient', 'value_and_gradient')
    """

    name: str
    f: Callable[..., Any]
    args: tuple[Any, ...]
    expected: Mapping[str, Any]
    prepare_args: tuple[Any, ...] | None = None
    argnums: int | tuple[int, ...] = 0
    has_aux: bool = False
    tangent: Any = None
    cotangent: Any = None
    tangents: Any = None
    cotangents: Any = None
    dtype: str = "float64"
    needs: frozenset[str] = frozenset()
    tolerance: Tolerance = "exact"
    only: tuple[str, ...] = ()
    differences: bool = False

    def __post_init__(self) -> None:
        known = {part for call in OPERATORS.values() for part in call.parts} | {"aux"}
        wrong = sorted(set(self.expected) - known) + sorted(set(self.only) - set(OPERATORS))
        if wrong:
            raise ValueError(
                f"Scenario({self.name!r}): {', '.join(wrong)} is not known. "
                f"expected takes {', '.join(sorted(known))}; only takes {', '.join(OPERATORS)}."
            )

    def __repr__(self) -> str:
        return f"<Scenario {self.name}>"

    @property
    def operators(self) -> tuple[str, ...]:
        """The operators that this scenario checks, by their names in the suite."""
        return tuple(
            name
            for name, call in OPERATORS.items()
            if set(call.parts) <= set(self.expected)
            and (call.vector is None or getattr(self, call.vector) is not None)
            and (not self.only or name in self.only)
        )

    @property
    def active(self) -> Any:
        """The differentiated argument; a tuple of them for a tuple of argnums."""
        if isinstance(self.argnums, tuple):
            return tuple(self.args[n] for n in self.argnums)
        return self.args[self.argnums]

    @property
    def typical(self) -> tuple[Any, ...]:
        """The arguments to prepare at."""
        if self.prepare_args is not None:
            return self.prepare_args
        return tuple(map_arrays(_zeros, arg) for arg in self.args)

    def result_of(self, call: Call) -> Any:
        """What ``call`` must return (a linear map in it stands applied to its vector)."""
        parts = [self.expected[part] for part in call.parts]
        if self.has_aux:
            if len(parts) == 1:
                return parts[0], self.expected["aux"]
            parts[0] = (parts[0], self.expected["aux"])
        return parts[0] if len(parts) == 1 else tuple(parts)
