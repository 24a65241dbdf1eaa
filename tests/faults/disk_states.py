"""A disk that changes as a trace says, and what may be on it when its power is lost.

Only what was synced is sure to be there: a file's contents since its last fsync, the names in a folder since the
folder's. Of the rest, anything may be: writes in any order and in parts, names in any order. This is stricter than most
file systems are, and what POSIX leaves open.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from faults.recording import Record, State

#: Parts of a write that a disk does wholly or not at all
SECTOR = 512


@dataclass(eq=False)
class File:
    """A file: its contents when it was last synced, and what was written since.

    A piece of contents is a place and what is written there; without anything, the file gets at least so large. `None`
    cuts it there.
    """

    synced: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)

    def after(self, pieces: Sequence[tuple[int, bytes | None]]) -> bytes:
        """Contents if these have come to the disk."""
        contents = bytearray(self.synced)
        for place, data in pieces:
            contents.extend(bytes(max(0, place - len(contents))))
            contents[place : None if data is None else place + len(data)] = data or b""
        return bytes(contents)

    def mixed(self, rng: random.Random, kept: float, *, in_order: bool) -> Iterator[tuple[int, bytes | None]]:
        """Some of what is pending: of a write all, nothing, or some sectors. In order, each but the last is whole."""
        pending = self.pending
        if in_order:
            pending = pending[: rng.randint(0, len(pending))]
        for number, (place, data) in enumerate(pending):
            if data is None or (in_order and number < len(pending) - 1):
                if in_order or rng.random() < kept:
                    yield place, data
                continue
            if rng.random() < kept:
                yield place, data
            elif rng.random() < 0.5:
                bounds = [place, *range(place - place % SECTOR + SECTOR, place + len(data), SECTOR), place + len(data)]
                for begin, end in pairwise(bounds):
                    if rng.random() < 0.5:
                        yield begin, data[begin - place : end - place]
                if rng.random() < 0.5:
                    yield place + len(data), b""


@dataclass(eq=False)
class Folder:
    """A folder: its names when it was last synced, and the changes since, each of one name or of two at once."""

    synced: dict[str, Node] = field(default_factory=dict)
    pending: list[dict[str, Node | None]] = field(default_factory=list)

    def after(self, changes: Sequence[dict[str, Node | None]]) -> dict[str, Node]:
        """Names if these changes have come to the disk."""
        names: dict[str, Node | None] = dict(self.synced)
        for change in changes:
            names |= change
        return {name: node for name, node in names.items() if node is not None}

    def mixed(self, rng: random.Random, kept: float, *, in_order: bool) -> Iterator[dict[str, Node | None]]:
        """Some of what is pending."""
        if in_order:
            yield from self.pending[: rng.randint(0, len(self.pending))]
        else:
            yield from (change for change in self.pending if rng.random() < kept)


Node = File | Folder

#: What is kept of what is pending
Kept = Callable[[Any], Sequence[Any]]


class Disk:
    """A disk.

    Parameters
    ----------
    start : State
        What is on it, synced.
    root : str
        The path of its folder in the trace.
    """

    def __init__(self, start: State, root: str) -> None:
        self._root = root
        self._top = Folder()
        self._of_inode: dict[int, Node] = {}
        self._nodes: list[Node] = [self._top]
        for path in sorted(start):
            contents = start[path]
            parent, name = self._parent(os.path.join(root, path))
            self._nodes.append(Folder() if contents is None else File(contents))
            parent.synced[name] = self._nodes[-1]

    # -- changes -----------------------------------------------------------------------------------------------------

    def apply(self, record: Record) -> bool:
        """Change the disk; returns whether that was a change."""
        return getattr(self, f"_{record.kind}")(record) is not False

    def _open(self, record: Record) -> bool:
        node = self._at(record.path)
        made = node is None
        if node is None:
            node = self._name(record.path, File())
        self._of_inode[record.inode] = node
        if record.number and isinstance(node, File) and (node.synced or node.pending):
            node.pending.append((0, None))
            return True
        return made

    def _write(self, record: Record) -> None:
        self._file(record).pending.append((record.number, record.data))

    def _truncate(self, record: Record) -> None:
        self._file(record).pending.extend([(record.number, b""), (record.number, None)])

    def _sync(self, record: Record) -> None:
        node = self._of_inode[record.inode]
        node.synced = node.after(node.pending)  # type: ignore[arg-type, assignment]
        node.pending.clear()

    def _mkdir(self, record: Record) -> None:
        self._of_inode[record.inode] = self._name(record.path, Folder())

    def _remove(self, record: Record) -> None:
        parent, name = self._parent(record.path)
        parent.pending.append({name: None})

    def _rename(self, record: Record) -> None:
        parent, name = self._parent(record.path)
        new_parent, new_name = self._parent(os.fsdecode(record.data))
        node = parent.after(parent.pending)[name]
        if parent is new_parent:
            parent.pending.append({name: None, new_name: node})
        else:
            new_parent.pending.append({new_name: node})
            parent.pending.append({name: None})

    def _link(self, record: Record) -> None:
        node = self._at(record.path)
        assert node is not None
        parent, name = self._parent(os.fsdecode(record.data))
        parent.pending.append({name: node})

    def _mark(self, _: Record) -> bool:
        return False

    def _escape(self, record: Record) -> None:
        raise AssertionError(f"this cannot be replayed: {record.data.decode()} of {record.path}")

    def _file(self, record: Record) -> File:
        node = self._of_inode.get(record.inode)
        assert isinstance(node, File), f"a file that was not seen to be opened: {record}"
        return node

    def _at(self, path: str) -> Node | None:
        if path == self._root:
            return self._top
        parent, name = self._parent(path)
        return parent.after(parent.pending).get(name)

    def _parent(self, path: str) -> tuple[Folder, str]:
        *folders, name = os.path.relpath(path, self._root).split(os.sep)
        node = self._top
        for folder in folders:
            found = node.after(node.pending)[folder]
            assert isinstance(found, Folder)
            node = found
        return node, name

    def _name(self, path: str, node: Node) -> Node:
        parent, name = self._parent(path)
        parent.pending.append({name: node})
        self._nodes.append(node)
        return node

    # -- states ------------------------------------------------------------------------------------------------------

    def written(self) -> State:
        """All that was done so far: what is left of a program that was killed."""
        return self._state(lambda node: node.pending)

    def synced(self) -> State:
        """What was synced, and nothing else."""
        return self._state(lambda _: ())

    def one_more(self) -> Iterator[State]:
        """What was synced, and of one file what was written since, or of one folder one change."""
        for node, kept, _ in self._pending():
            yield self._state(lambda other, node=node, kept=kept: kept if other is node else ())

    def one_less(self) -> Iterator[State]:
        """All that was done, but of one file what was written since its sync, or of one folder one change."""
        for node, _, rest in self._pending():
            yield self._state(lambda other, node=node, rest=rest: rest if other is node else other.pending)

    def mixed(self, rng: random.Random) -> State:
        """What was synced, and anything of the rest."""
        contents, names = (rng.choice([0, 0.1, 0.5, 0.9, 1]) for _ in range(2))
        in_order = rng.random() < 0.5
        chosen: dict[int, Sequence[Any]] = {}

        def kept(node: Node) -> Sequence[Any]:
            if id(node) not in chosen:
                share = contents if isinstance(node, File) else names
                chosen[id(node)] = [*node.mixed(rng, share, in_order=in_order)]
            return chosen[id(node)]

        return self._state(kept)

    def _pending(self) -> Iterator[tuple[Node, Sequence[Any], Sequence[Any]]]:
        """What is pending one by one, and the rest of what is pending there."""
        for node in self._nodes:
            if isinstance(node, File):
                if node.pending:
                    yield node, node.pending, ()
            else:
                for i in range(len(node.pending)):
                    yield node, node.pending[i : i + 1], node.pending[:i] + node.pending[i + 1 :]

    def _state(self, kept: Kept) -> State:
        found: State = {}

        def visit(node: Node, path: str) -> None:
            if isinstance(node, File):
                found[path] = node.after(kept(node))
            else:
                if path:
                    found[path] = None
                for name, child in node.after(kept(node)).items():
                    visit(child, os.path.join(path, name))

        visit(self._top, "")
        return found
