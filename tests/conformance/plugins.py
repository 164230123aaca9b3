"""Registers engines as a third party does: by a distribution's entry points."""

from __future__ import annotations

from pathlib import Path

__all__ = ["write_distribution"]


def write_distribution(folder: Path, name: str, backends: dict[str, str], arrays: dict[str, str]) -> None:
    """Writes what an installed distribution leaves in site-packages: its metadata and entry points."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = []
    for group, entries in (("diface.backends", backends), ("diface.arrays", arrays)):
        lines += [f"[{group}]", *(f"{key} = {value}" for key, value in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
