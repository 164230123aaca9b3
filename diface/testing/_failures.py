"""What a failed check says, and the error that collects them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

from diface._specs import Backend

__all__ = ["ConformanceError", "Failure", "label_of"]


@dataclasses.dataclass(frozen=True)
class Failure:
    """One check of one case that failed."""

    backend: str
    scenario: str
    operator: str
    caller: str
    check: str
    detail: str

    def __str__(self) -> str:
        case = f"{self.backend}, {self.scenario}, {self.operator}, arrays of {self.caller}"
        return f"{case}: {self.check}: {self.detail}"


class ConformanceError(AssertionError):
    """A backend does not give what it must.

    Attributes:
        failures: What failed, one by one.
    """

    def __init__(self, failures: Sequence[Failure], ran: int) -> None:
        self.failures = list(failures)
        failed = {(f.backend, f.scenario, f.operator, f.caller) for f in failures}
        lines = [f"{len(failures)} check(s) failed in {len(failed)} of {ran} case(s):"]
        lines += [f"  {line}" for failure in failures for line in str(failure).splitlines()]
        super().__init__("\n".join(lines))


def label_of(backend: Backend) -> str:
    """The backend's short name, with the options that are not the default."""
    # Every backend is a frozen dataclass, by the rule of `Backend` itself.
    options = [
        f"{field.name}={getattr(backend, field.name)}"
        for field in dataclasses.fields(cast(Any, backend))
        if getattr(backend, field.name) != field.default
    ]
    return f"{backend.name}({','.join(options)})" if options else backend.name
