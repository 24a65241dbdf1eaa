"""Logs that came with a copy of an index: files of staged changes that a manifest names, `changes-<checksum>.log`.

Each is the part of a log that counts. It never changes; what its changes are staged for is a manifest that does not
name it any more.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path

from tagmatch.model.errors import IndexCorruptError
from tagmatch.model.storage.format import CHANGES_PREFIX, Entry, checksum_in
from tagmatch.model.storage.journal.folder import telling_errors
from tagmatch.model.storage.journal.records import Logged, decoded
from tagmatch.model.storage.journal.scan import records_in, scan


def logs_as_files(logs: Iterable[tuple[str, FileIO]], first: int, folder: Path, index: object) -> list[Entry]:
    """Write and sync files in a folder that have the changes of logs; returns what manifests say of them, in order.

    Parameters
    ----------
    logs
        Names and contents of the logs, from generation `first` on. Programs may be writing to the last one.
    index
        Whose logs these are, for messages.

    Raises
    ------
    IndexCorruptError, IndexVersionError
        As `scan`.
    """
    copies = folder / "logs"
    copies.mkdir()
    for name, original in logs:
        with (copies / name).open("wb") as to:
            shutil.copyfileobj(original, to)
    try:
        found = [log for log in scan(copies, first) if log.records]
    except IndexCorruptError as error:
        raise IndexCorruptError(str(error).replace(str(copies), str(index))) from None
    entries = []
    for log in found:
        with log.path.open("r+b") as file:
            file.truncate(log.end)  # what comes after is being written, or was not written wholly
            os.fsync(file.fileno())
        checksum = checksum_in(copies, log.path.name)
        name = f"{CHANGES_PREFIX}{checksum}.log"
        log.path.rename(folder / name)
        entries.append({"name": name, "changes": log.rows, "bytes": log.end, "xxh3_64": checksum})
    shutil.rmtree(copies)
    return entries


def changes_in(folder: Path, entries: Iterable[Entry]) -> Iterator[Logged]:
    """What files in the folder of an index have logged, of which its manifest says this, in order.

    Raises
    ------
    IndexCorruptError
        One is missing or damaged.
    TagMatchError
        One cannot be read.
    """
    with telling_errors(f"cannot read the staged changes of the index {folder}"):
        yield from decoded((record for entry in entries for record in records_in(folder / entry["name"])), folder)
