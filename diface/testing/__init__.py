"""The conformance suite: what every engine must give, for the built-in ones and a third party's alike.

An engine that is registered passes the suite with one import::

    from diface.testing import check_differentiation

    print(check_differentiation(["my_engine"]))
"""

from __future__ import annotations

from diface.testing._benchmark import benchmark_differentiation
from diface.testing._callers import Caller, caller_of
from diface.testing._capabilities import Gaps
from diface.testing._cases import Case, cases
from diface.testing._check import ConformanceResult, Gap, check_differentiation
from diface.testing._defaults import default_scenarios
from diface.testing._failures import ConformanceError, Failure
from diface.testing._scenario import OPERATORS, Scenario
from diface.testing._wrapped import OpaqueError, check_wrapped, wrapped_cases

__all__ = [
    "OPERATORS",
    "Caller",
    "Case",
    "ConformanceError",
    "ConformanceResult",
    "Failure",
    "Gap",
    "Gaps",
    "OpaqueError",
    "Scenario",
    "benchmark_differentiation",
    "caller_of",
    "cases",
    "check_differentiation",
    "check_wrapped",
    "default_scenarios",
    "wrapped_cases",
]
