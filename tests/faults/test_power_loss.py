"""The basis of `power_loss`: the watched changes, the states made of them, and that each sync is needed."""

import os
from pathlib import Path

import pyarrow as pa
import pytest
from faults.disk_states import Disk
from faults.power_loss import check
from faults.saves import Run, first_consolidation

OLD = {"old": b"before"}


def sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """What is watched of the current folder, which has one file."""
    (tmp_path / "disk").mkdir()
    monkeypatch.chdir(tmp_path / "disk")
    Path("old").write_bytes(b"before")
    return Disk(Path())


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("Path('new').write_bytes(b'x'); sync('new')", OLD),
        ("Path('new').write_bytes(b'x'); sync('.')", {**OLD, "new": b""}),
        ("Path('new').write_bytes(b'x'); sync('new'); sync('.')", {**OLD, "new": b"x"}),
        ("Path('new').write_bytes(b'x'); sync('.'); sync('new')", {**OLD, "new": b"x"}),
        ("Path('old').write_bytes(b'after'); sync('.')", OLD),
        ("Path('old').write_bytes(b'after'); sync('old')", {"old": b"after"}),
        ("pa.OSFile('old', 'wb').write(b'arrow'); sync('old')", {"old": b"arrow"}),
        ("Path('old').unlink()", OLD),
        ("Path('old').unlink(); sync('.')", {}),
        ("Path('old').unlink(); Path('new').write_bytes(b'x'); sync('new')", OLD),
        ("Path('old').rename('new'); sync('new')", OLD),
        ("Path('old').rename('new'); sync('.')", {"new": b"before"}),
        ("os.link('old', 'new'); Path('old').write_bytes(b'2'); sync('.'); sync('new')", {"old": b"2", "new": b"2"}),
        ("Path('new').write_bytes(b'x'); Path('new').replace('old'); sync('.')", {"old": b""}),
        ("os.makedirs('a/b'); sync('a/b'); sync('.')", {**OLD, "a": None}),
        ("os.makedirs('a/b'); sync('a'); sync('.')", {**OLD, "a": None, "a/b": None}),
        ("os.mkdir('a'); sync('.'); Path('old').rename('a/new'); sync('a')", {**OLD, "a": None, "a/new": b"before"}),
        ("os.mkdir('a'); sync('.'); Path('old').rename('a/new'); sync('.')", {"a": None}),
        ("os.mkdir('a'); sync('a'); Path('old').rename('a/new'); sync('a'); os.rename('a', 'b'); sync('.')",
         {"b": None, "b/new": b"before"}),
    ],
)  # fmt: skip
def test_only_what_was_synced_is_sure_to_be_there(disk, steps, expected):
    with disk.watched():
        exec(steps, {"os": os, "pa": pa, "Path": Path, "sync": sync})
    assert disk.synced() == expected
    found = {str(entry): None if entry.is_dir() else entry.read_bytes() for entry in Path().rglob("*")}
    assert disk.written() == found


def test_of_the_rest_anything_may_be_there(disk, rng):
    with disk.watched():
        Path("new").write_bytes(b"x" * 1300)
        Path("old").rename("gone")
        os.mkdir("a")
    written, after = b"x" * 1300, {"gone": b"before", "a": None}
    assert sorted(map(str, disk.one_more())) == sorted(
        map(str, [OLD, {**OLD, "new": b""}, {"gone": b"before"}, {**OLD, "a": None}])
    )
    assert {frozenset(state.items()) for state in disk.one_less()} == {
        frozenset(state.items())
        for state in (
            after,
            {**OLD, "a": None, "new": written},
            {"gone": b"before", "new": written},
            {**after, "new": b""},
        )
    }
    found = {(frozenset(state) - {"new"}, state.get("new")) for state in (disk.mixed(rng) for _ in range(2000))}
    assert {name for name, _ in found} == {frozenset(each) for each in ({"old"}, {"old", "a"}, {"gone"}, {"gone", "a"})}
    torn = {contents for _, contents in found if contents}
    sectors = [[b"x" * (end - begin), bytes(end - begin)] for begin, end in ((0, 512), (512, 1024), (1024, 1300))]
    assert torn >= {one + two + three for one in sectors[0] for two in sectors[1] for three in sectors[2]}
    assert {len(contents) for contents in torn} == {1024, 1300}


def fails(folder: Path, *, ignored: int = 0) -> bool:
    """Whether a state of the disk is wrong if a sync does nothing."""
    run = Run(folder / f"run {ignored}", ignored=ignored)
    first_consolidation(run)
    for number, moment in enumerate(reversed(run.end())):
        try:
            check(run, moment, folder / f"{ignored} {number}")
        except AssertionError:
            return True
    assert ignored or run.disk.syncs >= 3 + 4 + 1 + 3  # new folders; files and their folder; the manifest, its folder
    return False


@pytest.mark.nightly
def test_each_sync_is_needed(tmp_path):
    assert not fails(tmp_path)
    run = Run(tmp_path / "counted")
    first_consolidation(run)
    run.end()
    for number in range(1, run.disk.syncs + 1):
        assert fails(tmp_path, ignored=number), f"nothing shows that {number} is missing"
