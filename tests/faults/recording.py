"""What an operation does to the files under a folder, as `recorder.c` records it, under which its process must run."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Files, and folders (`None`), by their paths within the folder
State = dict[str, bytes | None]


@dataclass(frozen=True, slots=True)
class Record:
    """A change.

    Its kind is `open` (perhaps to make a file), `write`, `truncate`, `sync`, `rename`, `link`, `remove`, `mkdir`;
    `mark`, by the process itself; or `escape`: what cannot be replayed. `number` is where is written, the new size, or
    1 where opening has truncated; `path` may be the text of a mark, and `data` the other path.
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


# -- operations -------------------------------------------------------------------------------------------------------

#: The sets of an index, or `None` where there is none
Contents = dict[frozenset[str], tuple[Any, ...]] | None
#: Under which contents have where clients are: key, longitude and latitude of each, in order
CLIENTS = frozenset(["where clients are"])


def at_number(name: str) -> tuple[str, int | None]:
    """The path of an index, and perhaps the number of a snapshot of it, for which a name stands: `index@2`."""
    path, _, number = name.partition("@")
    return path, int(number) if number else None


@dataclass(frozen=True)
class Recording:
    """What an operation did.

    The trace has its folder as `root`; `staged` is whether the contents count the changes that are staged. `contents`
    are those of each index, or snapshot of one, by its name (see `at_number`): before, and after each step. A mark
    `begun 2` says that the second step has begun, `acknowledged 2` that it has returned, and so must last.
    """

    name: str
    root: str
    start: State
    end: State
    records: tuple[Record, ...]
    key_type: str
    staged: bool
    contents: list[dict[str, Contents]]


class Run:
    """An operation that runs; `path` is the folder in which all that it changes is."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / name
        self.path.mkdir()
        self._trace = folder / f"{name}.trace"
        self._name, self._key_type, self._staged = name, "integer", False
        self._contents: list[dict[str, Contents]] = []
        self._recorded = ExitStack()

    def start(self, contents: dict[str, Contents], key_type: str = "integer", *, staged: bool = False) -> None:
        """Take it that what there is is safe, and has these contents; record what is done from now on."""
        self._start, self._key_type, self._staged = state_of(self.path), key_type, staged
        self._contents.append(contents)
        self._recorded.enter_context(recorded(self.path, self._trace))

    @contextmanager
    def step(self, contents: dict[str, Contents]) -> Iterator[None]:
        """What is done in the block gives these indexes these contents, of which the end of the block may be sure."""
        self._contents.append({**self._contents[-1], **contents})
        number = len(self._contents) - 1
        mark(f"begun {number}")
        yield
        mark(f"acknowledged {number}")

    def end(self) -> Recording:
        """Return what was recorded."""
        self._recorded.close()
        records, end = tuple(records_of(self._trace.read_bytes())), state_of(self.path)
        path = os.path.realpath(self.path)
        return Recording(self._name, path, self._start, end, records, self._key_type, self._staged, self._contents)
