"""What a process does to the files under a folder, recorded by `recorder.c`, under which the process must run."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

#: Files, and folders (`None`), by their paths within the folder
State = dict[str, bytes | None]


@dataclass(frozen=True, slots=True)
class Record:
    """A change.

    Attributes
    ----------
    kind : str
        `open` (perhaps to make a file), `write`, `truncate`, `sync`, `rename`, `link`, `remove`, `mkdir`; `mark`, by
        the process itself; or `escape`: what cannot be replayed.
    inode : int
    number : int
        Where is written; the new size; 1 where opening has truncated.
    path : str
        Or the text of a mark.
    data : bytes
        What is written, or the other path.
    """

    kind: str
    inode: int
    number: int
    path: str
    data: bytes


def records_of(trace: bytes) -> Iterator[Record]:
    """The records of a trace."""
    position = 0
    while position < len(trace):
        end = trace.index(b"\n", position)
        kind, *numbers = trace[position:end].split(b" ")
        inode, number, path, data = map(int, numbers)
        position = end + 1 + path + data
        yield Record(
            kind.decode(), inode, number, os.fsdecode(trace[end + 1 : end + 1 + path]), trace[end + 1 + path : position]
        )


def state_of(folder: Path) -> State:
    """What there is in a folder."""
    return {
        str(entry.relative_to(folder)): None if entry.is_dir() else entry.read_bytes() for entry in folder.rglob("*")
    }


def write_state(state: State, folder: Path) -> None:
    """Make a folder's contents so; it is empty."""
    for name in sorted(state):
        contents = state[name]
        if contents is None:
            (folder / name).mkdir()
        else:
            (folder / name).write_bytes(contents)


@contextmanager
def recorded(folder: Path, trace: Path) -> Iterator[None]:
    """Record into the file `trace`, within the block."""
    process = ctypes.CDLL(None)
    process.recorder_start(os.fsencode(folder), os.fsencode(trace))
    try:
        yield
    finally:
        process.recorder_stop()


def mark(text: str) -> None:
    """Have a mark in the trace."""
    ctypes.CDLL(None).recorder_mark(text.encode())
