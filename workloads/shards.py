"""Folders of Parquet shards: written in parallel, whole once `_workload.json` is there."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from tagmatch.files.formats import write_whole
from tagmatch.model.errors import IndexExistsError, InputFileError, TagMatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

#: Written last: a folder that has it is whole
FACTS = "_workload.json"

_BEGUN = f".{FACTS}.part"
_OURS = re.compile(rf"{re.escape(FACTS)}|{re.escape(_BEGUN)}|sets-\d{{5,}}\.parquet|\.sets-\d{{5,}}\.parquet\.part")

# One thread writes 3.4 M interests a second, 19 bytes each; with Snappy 3.5 M of 30 bytes, without compression 6.6 M of
# 66. Dictionaries of tags, of which most are rare, take longer and do not make files smaller.
_PARQUET: dict[str, Any] = {"compression": "zstd", "use_dictionary": ["key"], "write_statistics": ["key"]}


class _StoppedError(Exception):
    """Another shard has failed."""


def shard_name(number: int) -> str:
    """Return the name of a shard's file; by name, shards are in order."""
    return f"sets-{number:05d}.parquet"


def new_folder(folder: Path, *, overwrite: bool) -> None:
    """Make a folder for shards; one that is there must be empty or, to overwrite it, hold our files only."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        found = sorted(folder.iterdir())
        if found and not overwrite:
            raise IndexExistsError(f"{folder} is not empty; give --overwrite to replace a workload that is in it")
        foreign = [path.name for path in found if not _OURS.fullmatch(path.name) or not path.is_file()]
        if found and not foreign and not any(path.name in (FACTS, _BEGUN) for path in found):
            foreign = [found[0].name]
        if foreign:
            raise IndexExistsError(
                f"{folder} holds {foreign[0]!r}, which tagmatch-workload has not made; remove it or name another folder"
            )
        # No longer whole once its first file is gone, but still ours until the last is
        (folder / _BEGUN).touch()
        (folder / FACTS).unlink(missing_ok=True)
        for path in found:
            if path.name not in (FACTS, _BEGUN):
                path.unlink()
    except FileExistsError:
        raise TagMatchError(f"{folder} is a file; name a folder") from None
    except OSError as error:
        raise TagMatchError(f"{error.filename or folder}: cannot be written: {error.strerror or error}") from None


def write_shards(
    folder: Path,
    shards: Sequence[Callable[[], Iterator[pa.RecordBatch]]],
    schema: pa.Schema,
    facts: dict[str, Any],
    *,
    threads: int,
) -> Iterator[pa.RecordBatch]:
    """Write shards to a folder that `new_folder` made, each by one of the threads.

    Yields each batch when it has been written, in any order. At the end `facts`, with the number of rows, makes the
    folder whole; after an error nothing is left in it.
    """
    stop = Event()
    written: SimpleQueue[pa.RecordBatch | None] = SimpleQueue()

    def write(number: int) -> None:
        try:
            if stop.is_set():
                raise _StoppedError
            with (
                write_whole(folder / shard_name(number)) as part,
                pq.ParquetWriter(part, schema, **_PARQUET) as writer,
            ):
                for batch in shards[number]():
                    if stop.is_set():
                        raise _StoppedError
                    writer.write_batch(batch)
                    written.put(batch)
        except BaseException:
            stop.set()
            raise
        finally:
            written.put(None)

    rows = 0
    try:
        with ThreadPoolExecutor(threads, thread_name_prefix="tagmatch-workload") as pool:
            futures = [pool.submit(write, number) for number in range(len(shards))]
            try:
                for _ in shards:
                    while (batch := written.get()) is not None:
                        rows += len(batch)
                        yield batch
            finally:
                stop.set()
        for error in (future.exception() for future in futures):
            if error is not None and not isinstance(error, _StoppedError):
                raise error
        with write_whole(folder / FACTS) as part:
            part.write_text(json.dumps(facts | {"rows": rows, "shards": len(shards)}, indent=1) + "\n")
    except BaseException:
        for path in folder.iterdir():
            if _OURS.fullmatch(path.name):
                path.unlink(missing_ok=True)
        raise


def read_facts(folder: Path) -> dict[str, Any] | None:
    """Return what `write_shards` noted of a folder; None for a folder that others made."""
    path = folder / FACTS
    if not path.exists():
        if (folder / _BEGUN).exists():
            raise InputFileError(f"{folder} is not whole: tagmatch-workload was stopped; generate it again")
        return None
    try:
        facts = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputFileError(f"{path}: cannot be read: {error}") from None
    if not isinstance(facts, dict):
        raise InputFileError(f"{path}: is not a JSON object")
    return facts
