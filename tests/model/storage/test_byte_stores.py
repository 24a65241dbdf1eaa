"""A place for indexes with the abstract methods of `ByteStore`, and no more: a repository needs nothing else."""

import io
import os
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from support.agreement import assert_agree, loaded

from tagmatch import TagMatch, backup, restore
from tagmatch.model.errors import IndexExistsError, IndexLockedError, IndexNotFoundError, InvalidValueError
from tagmatch.model.storage import byte_store
from tagmatch.model.storage.byte_store import ByteStore, ChangeableStore, Kind, Written
from tagmatch.model.storage.folders import LocalFolder
from tagmatch.model.storage.format import Commit
from tagmatch.model.storage.positions import open_positions
from tagmatch.model.storage.repository import Repository
from tagmatch.model.storage.tables import manifest_of, segment_entry, table_file, tables_of

PAIRS = [(["a"], 1), (["a", "b"], 2), (["c"], 3), ([], 4), (["a"], 6)]
QUERIES = [["b", "a"], ["x"], ["c"], []]


class Memory(ByteStore):
    """Files in a dictionary, which folders of it share."""

    address = ""

    def __init__(self, files: dict[str, bytes] | None = None, below: str = "") -> None:
        self.files, self.below = {} if files is None else files, below
        self.address = f"memory:{id(self.files)}/{below}"

    def __str__(self) -> str:
        return f"memory:{self.below}"

    def folder(self, name: str) -> "Memory":
        return Memory(self.files, f"{self.below}{name}/")

    def kind(self, name: str = "") -> Kind | None:
        if self.below + name in self.files:
            return "file"
        within = f"{self.below}{name}/" if name else self.below
        return "folder" if any(each.startswith(within) for each in self.files) else None

    def names(self) -> list[str]:
        paths = [path.removeprefix(self.below) for path in self.files if path.startswith(self.below)]
        return sorted({path.partition("/")[0] for path in paths})

    def open(self, name: str) -> AbstractContextManager[Any]:
        if self.below + name not in self.files:
            raise FileNotFoundError(name)
        return nullcontext(io.BytesIO(self.files[self.below + name]))

    def write(self, name: str, text: bytes) -> None:
        self.files[self.below + name] = text

    def put(self, made: Path, name: str) -> None:
        for file in sorted(made.iterdir()) if made.is_dir() else [made]:
            self.write(name if file == made else f"{name}/{file.name}", file.read_bytes())

    def adopt(self, source: "Memory", names: Mapping[str, str], made: Path) -> None:  # type: ignore[override]  # noqa: ARG002
        for name, there in names.items():
            self.files[self.below + there] = self.files.pop(source.below + name)

    def remove(self, name: str) -> None:
        path = self.below + name
        for each in [each for each in self.files if each == path or each.startswith(f"{path}/")]:
            del self.files[each]

    def create(self) -> None:
        """Folders are names of files."""

    def remove_if_empty(self) -> None:
        """Nothing is left of it."""


class Held:
    """A name among others, which is a lock and a log for as long as it is held."""

    def __init__(self, files: dict[str, bytes], path: str) -> None:
        self.files, self.path, self.sync = files, path, lambda: None

    @property
    def is_there(self) -> bool:
        return self.path in self.files

    def put(self, pieces: list[Any], at: int, _: int) -> None:
        self.files[self.path] = self.files[self.path][:at] + b"".join(pieces)

    def cut(self, end: int) -> None:
        self.files[self.path] = self.files[self.path][:end]

    def close(self) -> None:
        """Only locks are taken away."""


class HeldLock(Held):
    def close(self) -> None:
        self.files.pop(self.path, None)


class Changeable(Memory, ChangeableStore):
    """One in which indexes are changed: what a lock is, and a log."""

    def prepare(self) -> None:
        """Folders are names of files."""

    def lock_at_once(self, name: str) -> Held | None:
        if self.is_locked(name):
            return None
        self.files[self.below + name] = b""
        return HeldLock(self.files, self.below + name)

    def is_locked(self, name: str) -> bool:
        return self.below + name in self.files

    def log(self, name: str, *, new: bool = False) -> Held:
        if new:
            self.write(name, b"")
        return Held(self.files, self.below + name)

    def state(self) -> tuple[int, int] | None:
        return hash(frozenset(self.files)), 0


@pytest.fixture
def place() -> Repository:
    return Repository(Memory())


def test_an_index_there_answers_as_one_in_a_folder(place: Repository, tmp_path: Path) -> None:
    with pytest.raises(IndexNotFoundError, match="there is no index at memory:: it has no MANIFEST"):
        place.open()
    tm, oracle = loaded(PAIRS, device="cpu")
    with tm:
        tm.save(place)  # type: ignore[arg-type]
        tm.save(tmp_path / "index")
        first = place.manifest()["snapshot"]
        assert place.manifest() == Repository.at(tmp_path / "index").manifest()
        with TagMatch.open(place, device="cpu") as copy:  # type: ignore[arg-type]
            assert_agree(copy, oracle, QUERIES)
            with pytest.raises(InvalidValueError, match="cannot change memory:"):
                copy.add_set(["a"], 9)
            tm.add_set(["a"], 9)
            tm.consolidate()
            place.save(tm.snapshot, Commit(keep=1))
            assert copy.reload()
            assert 9 in copy.match(["a"])
    assert place.numbered(1).open().name == first
    there = place.in_place(place.manifest()["snapshot"])
    (segment, *_) = there.snapshot.segments
    there.fetch_rows(segment, 0, len(segment))
    place.check_kept()
    place.files.write("notes.txt", b"")
    place.files.remove("MANIFEST.json")
    with pytest.raises(IndexExistsError, match="memory: is a folder with other files in it"):
        place.has_index()


def test_copies_of_it(place: Repository, tmp_path: Path) -> None:
    with TagMatch(tmp_path / "index", device="cpu") as tm:
        tm.add_sets(*zip(*PAIRS, strict=True))
        tm.consolidate()
        tm.add_set(["staged"], 7)
        tm.move([1], 2, 3)
        tm.save_positions()
        backup(tmp_path / "index", place)  # type: ignore[arg-type]
        assert backup(tmp_path / "index", place).old_bytes > 0  # type: ignore[arg-type]
    assert restore(place, tmp_path / "restored").staged == 1  # type: ignore[arg-type]
    found = open_positions(LocalFolder(tmp_path / "restored"), "integer", plane=False)
    assert found is not None
    assert found.keys.to_pylist() == [1]
    with TagMatch(tmp_path / "restored", device="cpu") as tm:
        tm.consolidate()
        assert tm.match(["staged"]) == [4, 7]


def test_an_index_is_changed_there() -> None:
    """What is staged lasts, and so do positions; one program at a time changes an index."""
    place: Any = Repository(Changeable())
    oracle = loaded(PAIRS, device="cpu")[1]
    with TagMatch(place, device="cpu") as tm:
        tm.add_sets(*zip(*PAIRS, strict=True))
        with pytest.raises(IndexLockedError, match="has changes staged for the index memory:"):
            TagMatch(place, device="cpu").add_set(["b"], 1)
    with TagMatch(place, device="cpu") as tm:
        assert tm.stats()["staged"] == len(PAIRS)
        tm.consolidate()
        assert_agree(tm, oracle, QUERIES)
        tm.move([1], 2, 3)
        tm.save_positions()
        tm.add_set(["new"], 9)
    with TagMatch(place, device="cpu") as tm:
        tm.consolidate()
        assert tm.match(["new"]) == [4, 9]
    found = open_positions(place.files, "integer", plane=False)
    assert found is not None
    assert found.keys.to_pylist() == [1]
    assert {name.partition("-")[0] for name in place.files.names()} == {"MANIFEST.json", "segment", "POSITIONS.arrow"}


@pytest.mark.parametrize("kind", ["store", "folder"])
def test_a_job_keeps_its_files_from_another_as_long_as_it_lives(
    kind: str, place: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which fails at once, and does not take those of the first for those of a killed one."""
    monkeypatch.setattr(byte_store, "_SIGN_OF_LIFE_S", 0.01)
    jobs = place if kind == "store" else Repository.at(tmp_path / "index")
    with jobs.scratch() as files:
        files.write("x", b"half")
        for _ in range(2):
            with pytest.raises(IndexLockedError, match=f"another job works on .*: process {os.getpid()} on .* UTC;"):
                jobs.scratch().__enter__()
            with loaded(PAIRS, device="cpu")[0] as tm:
                jobs.append(tm.snapshot, None, {})
                jobs.replace(jobs.manifest(), jobs.replaced_name(), Written(files, {}))
            jobs.files.remove("MANIFEST.json")
        assert files.read("x") == b"half"
        left = jobs.files.folder("unfinished-job-killed")
        left.create()
        # A store has the last sign of life of a killed program
        left.write("owner", f"{time.time() - 61:.0f} another".encode())
    if kind == "store":
        left.write("owner", f"{time.time() - 50:.0f} another".encode())
        with pytest.raises(IndexLockedError, match="index memory:: another; wait"):
            jobs.scratch().__enter__()
        left.write("owner", f"{time.time() - 61:.0f} another".encode())
    with jobs.scratch():
        assert "unfinished-job-killed" not in jobs.files.names()


def test_a_job_leaves_its_files_there(place: Repository) -> None:
    with loaded(PAIRS, device="cpu")[0] as tm, place.scratch() as files:
        written, segment = {}, tm.snapshot.only
        for table, columns in tables_of(segment):
            whole = table_file(table, columns)
            with files.new(whole.name) as path:
                written[whole.name] = whole.write(0, path)
            assert files.map(whole.name).read() == files.map(whole.name, keep=True).read()
        entry = segment_entry(written, len(segment), len(segment.vocabulary), segment.vocabulary.seed)
        names = {f"{entry['name']}/{name}": name for name in written}
        place.switch(manifest_of([entry], segment.options, "integer"), None, Written(files, names))
        assert len(place.open()) == 4
    assert {name.partition("-")[0] for name in place.files.names()} == {"MANIFEST.json", "segment"}
    assert byte_store.folder_for_copies().is_dir()
