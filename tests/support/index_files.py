"""The files of an index on disk."""

from __future__ import annotations

from pathlib import Path


def files_of(path: Path) -> list[Path]:
    """All with contents; locks have none."""
    return sorted(file for file in path.rglob("*") if file.is_file() and file.name not in ("LOCK", "WRITER"))


def contents_of(path: Path) -> dict[str, bytes]:
    """What is in them, by their paths within the index."""
    return {str(file.relative_to(path)): file.read_bytes() for file in files_of(path)}
