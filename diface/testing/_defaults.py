"""The scenarios that every engine passes."""

from __future__ import annotations

import functools

from diface.testing._rows_algebra import algebra_rows
from diface.testing._rows_arrays import array_rows
from diface.testing._rows_structure import structure_rows
from diface.testing._scenario import Scenario

__all__ = ["default_scenarios"]


@functools.cache
def default_scenarios() -> tuple[Scenario, ...]:
    """The scenarios that every engine passes, in double and single precision.

    Numbers, vectors and matrices, sums and differences, linear algebra, complex numbers, pytrees,
    several arguments, auxiliary results, branches and loops. Their names begin with a number of two
    digits, which groups them.

    Returns:
        The scenarios; the same objects each time, so that compiled functions can be kept.

    Example:
        >>> scenarios = default_scenarios()
        >>> sorted({scenario.name[:2] for scenario in scenarios})[:3]
        ['01', '02', '03']
    """
    return tuple(
        scenario
        for dtype in ("float64", "float32")
        for rows in (array_rows, algebra_rows, structure_rows)
        for scenario in sorted(rows(dtype), key=lambda scenario: scenario.name)
    )
