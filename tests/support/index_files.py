"""The files of an index on disk."""

from __future__ import annotations

import json
from pathlib import Path

from tagmatch.model.storage.format import manifest_text

MANIFEST = "MANIFEST.json"


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
    always = {"LOCK", "WRITER", "MANIFEST.json", "POSITIONS.arrow"}
    return sorted(name for name in names - always if f'"{name}"' not in manifest)


def manifest_as_first(path: Path) -> bytes:
    """The manifest of an index, but its snapshot has number 1, whatever came before it."""
    manifest = json.loads((path / MANIFEST).read_bytes())
    del manifest["checksum"]
    return manifest_text({**manifest, "number": 1})


def contents_as_first(path: Path) -> dict[str, bytes]:
    """What is in its files, but its snapshot has number 1, whatever came before it."""
    return contents_of(path) | ({MANIFEST: manifest_as_first(path)} if (path / MANIFEST).exists() else {})
