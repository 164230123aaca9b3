"""``python -m diface tour`` and ``python -m diface doctor``."""

from __future__ import annotations

import argparse
import io
import sys
from typing import NoReturn, final

import diface


@final
class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(
            2,
            f"{self.prog}: {message}.\n"
            "The commands are tour and doctor. What they do: python -m diface --help\n",
        )


def main(argv: list[str] | None = None) -> int:
    """Runs a command; returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without "µ" is no reason to stop
    parser = _Parser(
        prog="python -m diface",
        description="One interface to the automatic-differentiation engines of Python.",
    )
    parser.add_argument("--version", action="version", version=f"diface {diface.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    commands.add_parser("tour", help="the main job on real data, by every engine installed (under a minute)")
    commands.add_parser("doctor", help="engines, versions, devices, crossings, and what may bite on this machine")
    command = parser.parse_args(argv).command
    try:
        if command == "tour":
            from diface._tour import run
        else:
            from diface._doctor import run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("rich", "scipy", "sklearn"):
            raise
        print(f'{command}: needs {error.name}, which is not installed. Run: pip install "diface[cli]"', file=sys.stderr)
        return 1
    return run()


if __name__ == "__main__":
    sys.exit(main())
