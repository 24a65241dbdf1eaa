"""All logs of staged changes in the folder of an index: what they hold, and what is cut or removed at opening."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tagmatch.model.errors import StagedChangesWarning, TagMatchError
from tagmatch.model.options import KeyType
from tagmatch.model.storage.durable import sync
from tagmatch.model.storage.file_lock import is_locked
from tagmatch.model.storage.format import WRITER, Manifest, first_log_of, staged_of
from tagmatch.model.storage.journal.scan import LogFile, generations_in, log_path, scan
from tagmatch.model.storage.plain_files import plain_file


@dataclass(frozen=True, slots=True)
class Staged:
    """What the logs of an index hold.

    Attributes
    ----------
    changes : int
        Changes that are staged.
    records : int
        Calls that staged them.
    nbytes : int
        Bytes of the logs, without torn tails.
    torn_bytes, torn_records : int
        What opening the index would cut, as it was not written wholly: bytes, and how many calls can be told in them.
    """

    changes: int
    records: int
    nbytes: int
    torn_bytes: int
    torn_records: int


def peek(folder: Path, first: int) -> Staged:
    """What the logs hold, from generation `first` on. Takes no lock: the last call of a program may still be written.

    Raises
    ------
    IndexCorruptError, IndexVersionError, TagMatchError
        As `Journal.acquire`.
    """
    logs = _scan_unlocked(folder, first)
    return Staged(
        sum(log.rows for log in logs),
        sum(log.records for log in logs),
        sum(log.end for log in logs),
        sum(log.torn_bytes for log in logs),
        sum(log.torn_records for log in logs),
    )


def key_type_of_logs(folder: Path) -> KeyType | None:
    """What the keys are of all that is staged in a folder without an index; `None` if nothing is. Errors as `peek`."""
    return next((log.key_type for log in _scan_unlocked(folder, 1) if log.key_type is not None), None)


def left_behind(folder: Path, manifest: Callable[[], Manifest]) -> Staged | None:
    """What programs that have ended, or a copy, have left in an index with this manifest, if that is something.

    Nothing that this program can take over is left where another one has the log, or where this user may not write.
    Errors as `peek`.
    """
    with telling_errors(f"cannot read the staged changes of the index {folder}"):
        if not generations_in(folder) and not staged_of(manifest()):
            return None
        try:
            if is_locked(folder, WRITER):
                return None
        except FileNotFoundError:  # no one can have it, then
            pass
        except PermissionError:
            return None
        return _left(folder, manifest())


def _left(folder: Path, manifest: Manifest) -> Staged:
    logs = peek(folder, first_log_of(manifest))
    return replace(logs, changes=logs.changes + sum(entry["changes"] for entry in staged_of(manifest)))


def _scan_unlocked(folder: Path, first: int) -> list[LogFile]:
    """Look through logs that a program may be removing, as it does when it has saved a newer snapshot."""
    with telling_errors(f"cannot read the staged changes of the index {folder}"):
        while True:
            before = generations_in(folder)
            try:
                return scan(folder, first)
            except (FileNotFoundError, TagMatchError):
                if generations_in(folder) == before:
                    raise


def whole_logs(folder: Path, first: int) -> list[LogFile]:
    """All logs from generation `first` on, after their torn tails have been cut, with a warning; errors as `scan`."""
    logs = scan(folder, first)
    for log in logs:
        if log.torn_bytes or log.header is None:
            _cut_torn_tail(log)
    return [log for log in logs if log.header is not None]


def remove_logs(folder: Path, before: int) -> None:
    """Remove logs that no longer count, oldest first; one that stays makes no difference."""
    for generation in generations_in(folder):
        if generation < before:
            with suppress(OSError):
                log_path(folder, generation).unlink()


def _cut_torn_tail(log: LogFile) -> None:
    if log.header is None:
        log.path.unlink()
        sync(log.path.parent)
    else:
        with plain_file(log.path.parent, log.path.name, "r+b") as file:
            os.ftruncate(file.fileno(), log.end)
            os.fsync(file.fileno())
    some = f" of {log.torn_records} calls or more" if log.torn_records else ""
    warnings.warn(
        f"{log.path} ended with {log.torn_bytes} bytes that were not written wholly, as the program or the machine "
        f"stopped meanwhile; they are cut, and the staged changes{some} that were in them are lost",
        StagedChangesWarning,
        stacklevel=5,
    )


@contextmanager
def telling_errors(what: str) -> Iterator[None]:
    """Tell what could not be done when the system says no."""
    try:
        yield
    except OSError as error:
        raise told(what, error) from error


def told(what: str, error: OSError) -> TagMatchError:
    """The error that something could not be done, with the system's reason."""
    return TagMatchError(f"{what}: {error.strerror or error}")
