"""Operations that are recorded as they run: what they change, step by step, and what there is after each step."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.recording import Record, State, mark, recorded, records_of, state_of

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

    Attributes
    ----------
    name : str
        Of the operation.
    root : str
        The path of its folder in the trace.
    start, end : State
        The folder before and after.
    records : tuple of Record
    key_type : str
    staged : bool
        Whether the contents count the changes that are staged.
    contents : list of dict
        Of each index, or snapshot of one, by its name (see `at_number`): before, and after each step. A mark `begun 2`
        says that the second step has begun, `acknowledged 2` that it has returned, and so must last.
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
    """An operation that runs.

    Attributes
    ----------
    path : Path
        The folder in which all that it changes is.
    """

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
