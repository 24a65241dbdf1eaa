"""Folders of Parquet shards: written in parallel, whole once `_workload.json` is there.

Rows in a file of their own, Parquet or JSON Lines by suffix, or on standard output.

Random numbers that depend on a seed and a row number alone, so that any row can be drawn anywhere.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq

from tagmatch.files.formats import JSON_SUFFIXES, PARQUET_SUFFIXES, STANDARD_STREAM
from tagmatch.files.streams import write_whole
from tagmatch.model.errors import IndexExistsError, InputFileError, TagMatchError
from tagmatch.model.kernels.jit import inlined

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


@contextlib.contextmanager
def row_writer(
    path: str, schema: pa.Schema, json_lines: Callable[[pa.RecordBatch], memoryview]
) -> Iterator[Callable[[pa.RecordBatch], object]]:
    """Give a function that writes batches; a file appears under its name only when it is whole."""
    if path == STANDARD_STREAM:
        yield lambda batch: sys.stdout.buffer.write(json_lines(batch))
        sys.stdout.buffer.flush()
        return
    target = Path(path)
    suffix = target.suffix.lower()
    if suffix not in PARQUET_SUFFIXES | JSON_SUFFIXES:
        known = ", ".join(sorted(PARQUET_SUFFIXES | JSON_SUFFIXES))
        raise TagMatchError(f"{path}: the name must end in one of {known}")
    with write_whole(target) as part:
        if suffix in PARQUET_SUFFIXES:
            with pq.ParquetWriter(part, schema, compression="zstd") as writer:
                yield writer.write_batch
        else:
            with part.open("wb") as stream:
                yield lambda batch: stream.write(json_lines(batch))


_U = np.uint64


@inlined
def mix(x):
    """Return a random number, uint64, for each `x`: SplitMix64 (G. Steele, D. Lea, C. Flood, OOPSLA 2014)."""
    x = _U(x) + _U(0x9E3779B97F4A7C15)
    x = (x ^ (x >> _U(30))) * _U(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> _U(27))) * _U(0x94D049BB133111EB)
    return x ^ (x >> _U(31))


@inlined
def uniform(x):
    """Return a random number in [0, 1) for each `x`."""
    return (mix(x) >> _U(11)) * (1.0 / 9007199254740992.0)


@inlined
def position(sums, value):
    """Return the first place whose running sum is greater than `value`, the last place if none is."""
    low, high = _U(0), _U(len(sums) - 1)
    while low < high:
        middle = (low + high) >> _U(1)
        if sums[middle] > value:
            high = middle
        else:
            low = middle + _U(1)
    return low
