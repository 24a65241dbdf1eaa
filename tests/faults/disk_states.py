"""A folder that is watched while a program changes it, and what may be on its disk when the power is lost.

Only synced data is sure to be there: a file's contents since its last fsync, the names in a folder since the
folder's. Of the rest, anything may be: of a file each sector as it was at any time since, names in any order. This is
stricter than most file systems are, and what POSIX leaves open.
"""

from __future__ import annotations

import functools
import math
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

#: Files, and folders (`None`), by their paths within the folder
State = dict[str, bytes | None]
#: Part of a file that a disk writes wholly or not at all
SECTOR = 512
# Before and after each of these the folder is looked at; other operations in between come in no order
_CALLS = ("fsync", "ftruncate", "link", "mkdir", "pwritev", "rename", "replace", "rmdir", "unlink")


@dataclass(eq=False)
class File:
    """Contents when it was last synced, and those that it had since."""

    synced: bytes = b""
    pending: list[bytes] = field(default_factory=list)

    def after(self, kept: Sequence[bytes]) -> bytes:
        return kept[-1] if kept else self.synced

    def mixed(self, rng: random.Random, share: float, *, in_order: bool) -> list[bytes]:
        """Contents whose sectors are each of any time, or, in order, of one time or the next."""
        if not self.pending or rng.random() > share:
            return []
        versions, last = [self.synced, *self.pending], rng.randrange(len(self.pending) + 1)
        some = versions[max(0, last - 1) : last + 1] if in_order else versions
        size = rng.choice([len(each) for each in some])
        # No shorter than each of them: a synced file is not cut
        size = rng.choice([size, size, max(size // SECTOR * SECTOR, min(map(len, some)))])
        starts = range(0, size, SECTOR)
        parts = (
            rng.choice(some)[start : min(start + SECTOR, size)].ljust(min(SECTOR, size - start), b"\0")
            for start in starts
        )
        return [rng.choice([versions[last], b"".join(parts)])]


@dataclass(eq=False)
class Folder:
    """Names when it was last synced, and the changes since, each of one name or of two at once."""

    synced: dict[str, Node] = field(default_factory=dict)
    pending: list[dict[str, Node | None]] = field(default_factory=list)

    def after(self, kept: Sequence[dict[str, Node | None]]) -> dict[str, Node]:
        names = functools.reduce(dict.__or__, kept, self.synced)
        return {name: node for name, node in names.items() if node is not None}

    def mixed(self, rng: random.Random, share: float, *, in_order: bool) -> list[dict[str, Node | None]]:
        if in_order:
            return self.pending[: rng.randint(0, len(self.pending))]
        return [change for change in self.pending if rng.random() < share]


Node = File | Folder


class _KilledError(BaseException):
    """The end of a program, after which it changes nothing any more."""


class Disk:
    """What a folder has is synced when this begins; `look` is called after each change, with whether it was a sync.

    Of the syncs, the one with number `ignored` does nothing.
    """

    def __init__(self, path: Path, look: Callable[[], None] = lambda: None, ignored: int = 0) -> None:
        self._path, self._look, self._ignored, self.syncs = path, look, ignored, 0
        self._killed_at, self._is_dead = math.inf, False
        self._device, inode = path.stat().st_dev, path.stat().st_ino
        self._top = Folder()
        self._nodes: dict[int, Node] = {inode: self._top}
        self._all: list[Node] = [self._top]  # also removed ones
        self._scan()
        for node in self._all:
            self._sync(node)

    # -- changes -----------------------------------------------------------------------------------------------------

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note all changes in the block, of threads of this process."""
        lock = threading.RLock()

        def noted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
            def called(*arguments: Any, **options: Any) -> Any:
                with lock:
                    self.scan()
                    self._is_dead |= name == "fsync" and self.syncs >= self._killed_at
                    if self._is_dead:
                        raise _KilledError
                    try:
                        return self._synced(*arguments) if name == "fsync" else call(*arguments, **options)
                    finally:
                        self.scan(at_once=name in ("rename", "replace"))

            return called

        with ExitStack() as patches:
            for name in _CALLS:
                patches.enter_context(patch.object(os, name, noted(name, getattr(os, name))))
            yield
            self.scan()

    @contextmanager
    def killed_before(self, number: int) -> Iterator[list[bool]]:
        """The block's operations end after `number` more syncs, unless it makes fewer; the list says whether."""
        self._killed_at, killed = self.syncs + number, list[bool]()
        try:
            yield killed
        except _KilledError:
            killed.append(True)
        self._killed_at, self._is_dead = math.inf, False

    def _synced(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        if found.st_dev == self._device and (node := self._nodes.get(found.st_ino)):
            self.syncs += 1
            if self.syncs != self._ignored:
                self._sync(node)
                self._look()

    @staticmethod
    def _sync(node: Any) -> None:
        node.synced = node.after(node.pending)
        node.pending.clear()

    def scan(self, *, at_once: bool = False) -> None:
        """Note the changes since the last time, perhaps names of one folder at once."""
        if self._scan(at_once=at_once):
            self._look()

    def _scan(self, *, at_once: bool = False) -> bool:
        top = next(iter(self._nodes))
        seen: dict[int, Node] = {top: self._top}
        has_changed = self._scan_folder(self._top, self._path, seen, at_once)
        self._nodes = seen
        return has_changed

    def _scan_folder(self, folder: Folder, path: Path, seen: dict[int, Node], at_once: bool) -> bool:
        names, has_changed = dict[str, Node](), False
        for name in sorted(os.listdir(path)):
            inner, kind = path / name, Folder if (path / name).is_dir() else File
            inode = inner.stat().st_ino
            node = self._nodes.get(inode)
            if not isinstance(node, kind):
                node = kind()
                self._all.append(node)
            names[name] = seen[inode] = node
            if isinstance(node, Folder):
                has_changed |= self._scan_folder(node, inner, seen, at_once)
            elif (contents := inner.read_bytes()) != node.after(node.pending):
                node.pending.append(contents)
                has_changed = True
        before = folder.after(folder.pending)
        changed = {
            name: names.get(name) for name in sorted({*names, *before}) if names.get(name) is not before.get(name)
        }
        folder.pending += [changed] if at_once and changed else [{name: node} for name, node in changed.items()]
        return has_changed or bool(changed)

    # -- states ------------------------------------------------------------------------------------------------------

    def written(self) -> State:
        """All operations so far: the state that a killed program leaves."""
        return self._state(lambda node: node.pending)

    def synced(self) -> State:
        """What was synced, and nothing else."""
        return self._state(lambda _: ())

    def one_more(self) -> Iterator[State]:
        """All synced operations, and the later writes of one file, or one change of one folder."""
        for node, kept, _ in self._pending():
            yield self._state(lambda other, node=node, kept=kept: kept if other is node else ())

    def one_less(self) -> Iterator[State]:
        """All operations, without the writes of one file since its sync, or without one change of one folder."""
        for node, _, rest in self._pending():
            yield self._state(lambda other, node=node, rest=rest: rest if other is node else other.pending)

    def mixed(self, rng: random.Random) -> State:
        """What was synced, and anything of the rest."""
        shares = {kind: rng.choice([0, 0.1, 0.5, 0.9, 1]) for kind in (File, Folder)}
        in_order = rng.random() < 0.5
        chosen: dict[Node, Any] = {}  # of a file with several names, one

        def kept(node: Node) -> Any:
            if node not in chosen:
                chosen[node] = node.mixed(rng, shares[type(node)], in_order=in_order)
            return chosen[node]

        return self._state(kept)

    def _pending(self) -> Iterator[tuple[Node, Any, Any]]:
        """Pending operations one by one, and the rest of those pending there."""
        for node in self._all:
            if isinstance(node, File):
                if node.pending:
                    yield node, node.pending, ()
            else:
                for i in range(len(node.pending)):
                    yield node, node.pending[i : i + 1], node.pending[:i] + node.pending[i + 1 :]

    def _state(self, kept: Callable[[Any], Any]) -> State:
        found: State = {}

        def visit(folder: Folder, path: str) -> None:
            for name, node in folder.after(kept(folder)).items():
                inner = os.path.join(path, name)
                found[inner] = node.after(kept(node)) if isinstance(node, File) else None
                if isinstance(node, Folder):
                    visit(node, inner)

        visit(self._top, "")
        return found
