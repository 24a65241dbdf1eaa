"""The folder of an index may be a stranger's: no name in it leads out of it, and no link, pipe or lock harms a user."""

import contextlib
import fcntl
import gc
import os
import shutil
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.agreement import index_of
from support.index_files import Manifest, contents_of, read_manifest, with_manifest
from support.segments import segments_stay

import tagmatch
from tagmatch import IndexCorruptError, TagMatch, TagMatchError
from tagmatch.model.storage.folders import LocalFolder

OPTIONS: dict[str, Any] = {"device": "cpu", "threads": 1}
SECRET = b"of the victim"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index with a file of every kind: two snapshots, deletions, positions, a log, and changes that came along."""
    folder = tmp_path_factory.mktemp("original")
    first, path = folder / "first", folder / "index"
    with segments_stay(), index_of([[f"tag {i}", "all"] for i in range(100)], range(100), first, **OPTIONS) as tm:
        tagmatch.backup(first, path, keep_snapshots=2)
        tm.remove_set(["tag 7", "all"], 7)
        tm.consolidate()
        tm.move([1], [9.0], [45.0])
        tm.save_positions()
        tm.add_set(["staged"], 1)
        tagmatch.backup(first, path)
    with TagMatch(path, **OPTIONS) as tm:
        tm.add_set(["staged later"], 2)
    kinds = ("MANIFEST.json", "MANIFEST-*", "segment-*", "deleted-*", "changes-*", "staged-*", "POSITIONS.arrow")
    assert all(any(path.glob(kind)) for kind in kinds)
    return path


@pytest.fixture
def index(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "index"))


_SHOWN = {"rows": 0, "bytes": len(SECRET), "xxh3_64": "0" * 16}
NAMED: dict[str, Callable[[Manifest, str], object]] = {
    "segment": lambda manifest, name: manifest["segments"][0].update(name=name),
    "table": lambda manifest, name: manifest["segments"][0]["files"].update({name: _SHOWN}),
    "deletions": lambda manifest, name: manifest["segments"][0].update(deleted={"name": name, **_SHOWN}),
    "changes": lambda manifest, name: manifest["staged"][0].update(name=name),
    "kept": lambda manifest, name: manifest["kept"][0].update(name=name),
    "snapshot": lambda manifest, name: manifest.update(snapshot=name),
}
NAMES = ["../{}", "{}", "segment-0123456789abcdef/../../x", "..", ".", "", "a\0b", "LOCK", "segment-0123456789ABCDEF"]
CALLS: list[Callable[[Path, Path], object]] = [
    lambda index, _: TagMatch.open(index, **OPTIONS), lambda index, _: TagMatch(index, **OPTIONS), tagmatch.backup,
    tagmatch.restore, lambda index, place: tagmatch.restore(index, place, snapshot=read_manifest(index)["number"]),
    lambda index, _: tagmatch.restore(index, index, replace=True),
]  # fmt: skip


def refused(index: Path, place: Path, match: str) -> None:
    for call in CALLS:
        with pytest.raises(IndexCorruptError, match=match):
            call(index, place / "place")


@pytest.mark.parametrize("kind", NAMED)
def test_names_of_other_forms_are_refused(index: Path, tmp_path: Path, kind: str) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(SECRET)
    before = read_manifest(index)
    for name in (name.format(victim) for name in NAMES):
        with_manifest(index, lambda manifest, name=name: NAMED[kind](manifest, name))
        refused(index, tmp_path, "is of no index that tagmatch has written")
        with_manifest(index, lambda manifest: (manifest.clear(), manifest.update(before)))
        assert victim.read_bytes() == SECRET
    _opened(index)


def test_names_in_the_manifest_of_an_earlier_snapshot_are_refused(index: Path) -> None:
    """Also in what says which files can go: else none does."""
    from xxhash import xxh3_64_hexdigest

    number = read_manifest(index)["kept"][0]["number"]
    kept = index / f"MANIFEST-{number}.json"
    text = kept.read_bytes().replace(b'"keys.arrow"', b'"../../../victim"')
    kept.write_bytes(text)

    def change(manifest: Manifest) -> None:
        manifest["kept"][0].update(bytes=len(text), xxh3_64=xxh3_64_hexdigest(text))

    with_manifest(index, change)
    with pytest.raises(IndexCorruptError, match=f"MANIFEST-{number}.json is of no index"):
        TagMatch.open(index, snapshot=number, **OPTIONS)


#: Where in a manifest, and what it says there
GONE = object()
VALUES: list[tuple[Any, ...]] = [
    ("segments", []), ("segments", {}), ("segments", 7), ("segments", GONE), ("segments", 0, "files", GONE),
    ("segments", 0, "files", "tagsets.arrow", GONE), ("segments", 0, "rows", -1), ("segments", 0, "rows", True),
    ("layout", "other"), ("format", "3"), ("format", 1), ("format", None), ("log", 0), ("log", 2**70),
    ("max_partition_size", 0), ("keep_snapshots", "many"), ("kept", 0, "until", "yesterday"), ("kept", [None]),
    ("kept", 0, "number", 77), ("staged", "none"), ("staged", 0, "changes", 2**63 - 1), ("backup", 7), ("epochs", []),
]  # fmt: skip


@pytest.mark.parametrize("where", VALUES, ids=range(len(VALUES)))
def test_values_that_no_manifest_has_are_refused(index: Path, tmp_path: Path, where: tuple[Any, ...]) -> None:
    *above, name, value = where

    def change(manifest: Any) -> None:
        for each in above:
            manifest = manifest[each]
        manifest[name] = value
        if value is GONE:
            del manifest[name]

    with_manifest(index, change)
    for call in CALLS:
        with contextlib.suppress(KeyError), pytest.raises(IndexCorruptError):
            call(index, tmp_path / "place")


def test_a_manifest_that_is_nested_deeply_is_damaged(index: Path) -> None:
    gc.collect()  # so deep, no finalizer of other tests' objects could run
    (index / "MANIFEST.json").write_bytes(b'{"format": ' + 100_000 * b"[" + b"}\n")
    with pytest.raises(IndexCorruptError, match="is damaged"):
        TagMatch.open(index, **OPTIONS)


TRAPS: dict[str, Callable[[Path, Path], object]] = {
    "link": lambda file, victim: file.symlink_to(victim),
    "pipe": lambda file, _: os.mkfifo(file),
    "device": lambda file, _: file.symlink_to("/dev/zero"),
}


#: All that a user may do with an index, at a place
USES: list[Callable[[Path, Path], object]] = [
    lambda index, _: _opened(index), lambda index, _: _changed(index), lambda index, _: _changed(index, full=True),
    lambda index, place: tagmatch.backup(index, place / "backup"),
    lambda index, place: tagmatch.restore(index, place / "restored"),
    lambda index, place: tagmatch.restore(place.parent / "good", index, replace=True),
]  # fmt: skip


def _opened(index: Path) -> None:
    with TagMatch.open(index, **OPTIONS) as tm:
        tm.match(["all"])
        tm.check()


def _changed(index: Path, *, full: bool = False) -> None:
    with TagMatch(index, keep_snapshots=1, **OPTIONS) as tm:
        tm.add_set(["new"], 1)
        tm.move([1], [9.0], [45.0])
        tm.save_positions()
        tm.consolidate(full=full)


@pytest.mark.slow
@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.timeout(120)  # to open a pipe waits for ever
def test_nothing_is_opened_or_written_through_a_trap(original: Path, tmp_path: Path, trap: str) -> None:
    """In the place of each file that is there, or that may be written."""
    victim, place = tmp_path / "victim", tmp_path / "place"
    shutil.copytree(original, tmp_path / "good")
    names = {str(file.relative_to(original)) for file in original.rglob("*") if file.is_file()}
    names |= {"LOCK", "WRITER", "MANIFEST.json.new", "POSITIONS.arrow.new", "unfinished-0/owner"}
    for name in sorted(names | {f"staged-{n:08}.log" for n in (3, 4, 5)}):
        for number, use in enumerate(USES):
            victim.write_bytes(SECRET)
            index = Path(shutil.copytree(original, tmp_path / "index"))
            place.mkdir()
            file = index / name
            file.parent.mkdir(exist_ok=True)
            file.unlink(missing_ok=True)
            TRAPS[trap](file, victim)
            with contextlib.suppress(TagMatchError):  # some remove it, others never look at it
                use(index, place)
            assert victim.read_bytes() == SECRET, (name, number)
            assert not [each for each in place.rglob("*") if each.is_file() and each.read_bytes() == SECRET]
            shutil.rmtree(index)
            shutil.rmtree(place)


@pytest.mark.parametrize("trap", TRAPS)
def test_a_trap_among_the_files_of_a_snapshot_is_named(index: Path, tmp_path: Path, trap: str) -> None:
    for file in sorted(file for file in index.glob("*/*") if file.is_file()):
        shutil.move(file, tmp_path / "aside")
        TRAPS[trap](file, tmp_path / "aside")  # even one to the very file
        refused(index, tmp_path, f"{file.name} is a link, or no plain file")
        file.unlink()
        shutil.move(tmp_path / "aside", file)


def test_folders_that_are_links_are_refused_and_left_alone(index: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    segment = next(index.glob("segment-*"))
    shutil.move(segment, outside)
    before = contents_of(outside)
    segment.symlink_to(outside)
    # What looks like left behind by a writer, or like of an earlier snapshot, is removed: links, not what they lead to
    for name in ("unfinished-1", "segment-0123456789abcdef", "snapshot-0123456789abcdef"):
        (index / name).symlink_to(outside)
    refused(index, tmp_path, "is a link, or no plain file")
    segment.unlink()
    shutil.copytree(outside, segment)
    _changed(index)
    assert contents_of(outside) == before
    assert not [file for file in index.rglob("*") if file.is_symlink()]


def test_the_path_of_an_index_may_be_a_link(index: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(index)
    _opened(tmp_path / "link")
    _changed(tmp_path / "link")
    tagmatch.backup(tmp_path / "link", tmp_path / "backup")
    (tmp_path / "to").mkdir()
    (tmp_path / "above").symlink_to(tmp_path / "to")
    tagmatch.restore(tmp_path / "backup", tmp_path / "above" / "index")
    _opened(tmp_path / "above" / "index")


def test_locks_are_kept_from_those_who_may_only_read(index: Path) -> None:
    """To lock a file, it is enough to open it: those that an earlier version has made are closed to readers, too."""
    for lock, mode in (("LOCK", 0o644), ("WRITER", 0o664)):
        (index / lock).touch()
        (index / lock).chmod(mode)
    _changed(index)
    modes = {lock: stat.S_IMODE((index / lock).stat().st_mode) for lock in ("LOCK", "WRITER")}
    assert modes == {"LOCK": 0o600, "WRITER": 0o660}
    for lock in modes:
        (index / lock).unlink()
    before = os.umask(0o022)
    try:
        _changed(index)
    finally:
        os.umask(before)
    assert {stat.S_IMODE((index / lock).stat().st_mode) for lock in modes} == {0o600}


@pytest.mark.slow
def test_who_looks_at_an_index_keeps_no_one_from_writing(index: Path) -> None:
    """It counts staged changes, for which it has to know whether a program is at it."""
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            with TagMatch.open(index, **OPTIONS) as tm:
                assert tm.stats()["staged"] in (0, *range(2, 200))
            for _ in range(100):  # much more often than by opening
                LocalFolder(index).is_locked("WRITER")

    with ThreadPoolExecutor(3) as threads:
        looks = [threads.submit(look) for _ in range(3)]
        try:
            for _ in range(40):
                with TagMatch(index, **OPTIONS) as tm:
                    tm.add_set(["new"], 1)
        finally:
            stop.set()
    assert [each.result() for each in looks] == [None] * 3


def test_a_lock_is_still_one(index: Path) -> None:
    with TagMatch(index, **OPTIONS) as tm:
        tm.add_set(["new"], 1)
        with pytest.raises(tagmatch.IndexLockedError), TagMatch(index, **OPTIONS) as other:
            other.add_set(["new"], 2)
        with (index / "WRITER").open("ab") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
