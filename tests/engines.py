"""Which engines the tests may use. ``DIFACE_REQUIRE=jax,torch`` makes a missing one a failure."""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest

REQUIRED = frozenset(filter(None, os.environ.get("DIFACE_REQUIRE", "").split(",")))


def require(name: str) -> Any:
    """The module of an engine; skips the test (or test module), with the reason, where it is missing."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name or name in REQUIRED:
            raise
        pytest.skip(f"{name} is not installed", allow_module_level=True)
