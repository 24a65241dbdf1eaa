"""The files of an index on disk."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tagmatch import TagMatch
from tagmatch.model.storage.format import manifest_text

MANIFEST = "MANIFEST.json"


def make_index(
    path: Path, rows: Sequence[Any], removed: Sequence[Any] = (), *, expires: Any = None, **options: Any
) -> Path:
    """Add and remove rows of tags, key and perhaps an expression, as a program on one machine does."""
    if any(isinstance(row[1], str) for row in rows):
        options = {"key_type": "string", **options}
    with TagMatch(path, threads=2, device="cpu", durability="none", **options) as tm:
        for some, stage in ((rows, partial(tm.add_sets, expires=expires)), (removed, tm.remove_sets)):
            if some:
                tags, keys, *where = zip(*some, strict=True)
                stage(tags, keys, **({"where": where[0]} if where else {}))
        tm.consolidate()
    return path


def files_of(path: Path) -> list[Path]:
    """All with contents; locks have none."""
    return sorted(file for file in path.rglob("*") if file.is_file() and file.name not in ("LOCK", "WRITER"))


def contents_of(path: Path) -> dict[str, bytes]:
    """What is in them, by their paths within the index."""
    return {str(file.relative_to(path)): file.read_bytes() for file in files_of(path)}


def unnamed_in(path: Path) -> list[str]:
    """Names in an index without staged changes that belong to nothing: no manifest has one."""
    manifest = "".join(file.read_text() for file in path.glob("MANIFEST*.json"))  # also of earlier snapshots
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
