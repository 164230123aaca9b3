"""The operators by name: what each is built from, and how its result is put together."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["OPERATORS", "VALUE", "Operator"]


class Operator(NamedTuple):
    """One public operator.

    Attributes:
        name: Its public name.
        build: The builder that computes it (``_builders.BUILDERS``).
        direction: The keyword with the vector that it is applied to, if any.
        parts: What its result consists of, in order: ``"y"`` (the value), ``"x"`` (arrays like the
            differentiated arguments), ``"ty"`` (like the value), ``"map"`` (a linear function), and
            matrices by output and input (``"yx"``, ``"xx"``); each with the index of the computed
            output that it is taken from.
        order: The order of the derivative.
        scalar_in: Whether x must be one real number.
    """

    name: str
    build: str
    direction: Literal["tangent", "cotangent"] | None
    parts: tuple[tuple[str, int], ...]
    order: int = 1
    scalar_in: bool = False


_Y = ("y", -1)

VALUE = Operator("value", "value", None, (_Y,))
"""The function itself, run as the engine runs it; not public."""

OPERATORS: dict[str, Operator] = {
    operator.name: operator
    for operator in (
        Operator("gradient", "gradient", None, (("x", 0),)),
        Operator("value_and_gradient", "gradient", None, (_Y, ("x", 0))),
        Operator("derivative", "derivative", None, (("ty", 0),), scalar_in=True),
        Operator("value_and_derivative", "derivative", None, (_Y, ("ty", 0)), scalar_in=True),
        Operator("jacobian", "jacobian", None, (("yx", 0),)),
        Operator("value_and_jacobian", "jacobian", None, (_Y, ("yx", 0))),
        Operator("pushforward", "pushforward", "tangent", (("ty", 0),)),
        Operator("value_and_pushforward", "pushforward", "tangent", (_Y, ("ty", 0))),
        Operator("pullback", "pullback", "cotangent", (("x", 0),)),
        Operator("value_and_pullback", "pullback", "cotangent", (_Y, ("x", 0))),
        Operator("value_and_pullback_function", "pullback_function", None, (_Y, ("map", 0))),
        Operator("value_and_pushforward_function", "pushforward_function", None, (_Y, ("map", 0))),
        Operator("hvp", "hvp", "tangent", (("x", 1),), order=2),
        Operator("gradient_and_hvp", "hvp", "tangent", (("x", 0), ("x", 1)), order=2),
        Operator("hessian", "hessian", None, (("xx", 1),), order=2),
        Operator("value_gradient_and_hessian", "hessian", None, (_Y, ("x", 0), ("xx", 1)), order=2),
        Operator("second_derivative", "second_derivative", None, (("ty", 1),), order=2, scalar_in=True),
        Operator(
            "value_derivative_and_second_derivative", "second_derivative", None,
            (_Y, ("ty", 0), ("ty", 1)), order=2, scalar_in=True,
        ),
    )
}
