"""The README's programs run, and print what it says that they print."""

from __future__ import annotations

import contextlib
import io
import pathlib
import re
from typing import Any

import pytest

from tests.engines import require

README = pathlib.Path(__file__).parents[2] / "README.md"


def test_readme() -> None:
    for name in ("jax", "torch", "autograd"):
        require(name)
    pytest.importorskip("scipy")
    namespace: dict[str, Any] = {}
    printed = None
    outputs = 0
    for kind, text in re.findall(r"```(python|text)\n(.*?)```", README.read_text(), re.DOTALL):
        if kind == "python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(text, namespace)
            printed = out.getvalue()
        else:
            assert text == printed
            outputs += 1
    assert outputs >= 4


def test_readme_gives_the_commands_that_ci_runs() -> None:
    text = README.read_text()
    assert 'pip install -c constraints.txt -e ".[all]" && python -m diface tour' in text
    assert 'pip install -c constraints.txt -e ".[all,test]" && python -m pytest' in text
