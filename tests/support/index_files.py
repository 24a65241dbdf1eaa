"""The files of an index on disk."""

from __future__ import annotations

from pathlib import Path


def files_of(path: Path) -> list[Path]:
    """All with contents; locks have none."""
    return sorted(file for file in path.rglob("*") if file.is_file() and file.name not in ("LOCK", "WRITER"))


def contents_of(path: Path) -> dict[str, bytes]:
    """What is in them, by their paths within the index."""
    return {str(file.relative_to(path)): file.read_bytes() for file in files_of(path)}


def unnamed_in(path: Path) -> list[str]:
    """Names in an index without staged changes that belong to nothing: the manifest has none of them."""
    manifest = (path / "MANIFEST.json").read_text()
    names = {part for entry in path.rglob("*") for part in entry.relative_to(path).parts}
    return sorted(name for name in names - {"LOCK", "WRITER", "MANIFEST.json"} if f'"{name}"' not in manifest)
