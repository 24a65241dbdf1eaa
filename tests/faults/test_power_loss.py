"""What `power_loss` rests on: what is recorded, what is made of that, and that each sync is needed."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from faults.disk_states import Disk
from faults.power_loss import Moment, check, moments_of, recordings
from faults.preloads import compiled, preloading
from faults.recording import Record, Recording, State, records_of, state_of

EVERY_CALL = """
import os, shutil, sys, threading
from pathlib import Path
import pyarrow as pa
from faults.recording import mark, recorded, state_of

folder = Path(sys.argv[1])
(folder / "old").mkdir()
(folder / "old" / "file").write_bytes(b"old")
os.chdir(folder)
with recorded(folder, Path(sys.argv[2])):
    Path("written").write_bytes(bytes(range(256)) * 40)
    Path("written").open("ab").write(b"more")
    with open("parts", "w+b", buffering=0) as file:
        os.writev(file.fileno(), [b"abc", b"", b"defg"])
        os.pwrite(file.fileno(), b"X", 3)
        os.pwritev(file.fileno(), [b"Y", b"Z"], 4)
        os.lseek(file.fileno(), 20, 0)
        os.write(os.dup(file.fileno()), b"at 20")
        os.ftruncate(file.fileno(), 22)
        os.fsync(file.fileno())
        os.ftruncate(file.fileno(), 50)
        os.fdatasync(file.fileno())
    with pa.OSFile("table", "wb") as sink, pa.ipc.new_file(sink, pa.schema([("n", pa.int64())])) as writer:
        writer.write_table(pa.table({"n": range(3000)}))
    mark("half")
    os.makedirs("new/folder/within")
    shutil.copyfile("written", "new/copy")
    with open("written", "rb") as source, open("new/range", "wb") as to:
        os.copy_file_range(source.fileno(), to.fileno(), 300, 1000, 10)
    os.rename("new", "renamed")
    os.link("renamed/copy", "renamed/folder/linked")
    Path("renamed/folder/linked").open("r+b").write(b"in both")
    Path("old/file").open("wb").close()
    os.replace("table", "old/table")
    shutil.copytree("renamed", "gone")
    shutil.rmtree("gone")
    at = os.open("renamed", os.O_RDONLY)
    os.mkdir("by", dir_fd=at)
    os.rename("range", "by/range", src_dir_fd=at, dst_dir_fd=at)
    os.fsync(at)
    threads = [threading.Thread(target=Path(f"thread {i}").write_bytes, args=[bytes(50 * i)]) for i in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    if not (pid := os.fork()):
        Path("forked").write_bytes(b"by a fork")
        os._exit(0)
    os.waitpid(pid, 0)
    Path(sys.argv[2] + " beside").write_bytes(b"elsewhere")
Path("unrecorded").write_bytes(b"late")
"""

MAPPED = """
import mmap, sys
from pathlib import Path
from faults.recording import recorded

file = Path(sys.argv[1], "file")
with recorded(file.parent, Path(sys.argv[2])), file.open("w+b") as opened:
    opened.truncate(100)
    opened.flush()
    mmap.mmap(opened.fileno(), 100)[7] = 1
"""


@pytest.fixture(scope="session")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled("recorder.c", tmp_path_factory.mktemp("recorder"))


def records(script: str, recorder: Path, folder: Path) -> list[Record]:
    """What a script is recorded to do in a folder within this one, which is new."""
    (folder / "disk").mkdir()
    command = [sys.executable, "-c", script, str(folder / "disk"), str(folder / "trace")]
    done = subprocess.run(command, env=preloading(recorder), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return list(records_of((folder / "trace").read_bytes()))


def replayed(found: list[Record], folder: Path, start: State) -> Disk:
    disk = Disk(start, str(folder / "disk"))
    for record in found:
        disk.apply(record)
    return disk


def test_all_calls_are_recorded_with_their_data(recorder, tmp_path):
    found = records(EVERY_CALL, recorder, tmp_path)
    state = state_of(tmp_path / "disk")
    assert state.pop("unrecorded") == b"late"
    assert replayed(found, tmp_path, {"old": None, "old/file": b"old"}).written() == state
    kinds = [record.kind for record in found]
    assert set(kinds) == {"open", "write", "truncate", "sync", "rename", "link", "remove", "mkdir", "mark"}
    assert kinds.count("sync") == 3
    assert [record.path for record in found if record.kind == "mark"] == ["half"]


def test_a_file_that_is_changed_through_memory_is_refused(recorder, tmp_path):
    found = records(MAPPED, recorder, tmp_path)
    with pytest.raises(AssertionError, match=r"cannot be replayed: mmap of .*file"):
        replayed(found, tmp_path, {})


OLD: State = {"old": b"before"}
STEPS = """
import os, sys
from pathlib import Path
from faults.recording import recorded

def sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)

os.chdir(sys.argv[1])
Path("old").write_bytes(b"before")
with recorded(Path("."), Path(sys.argv[2])):
"""


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("Path('new').write_bytes(b'x'); sync('new')", OLD),
        ("Path('new').write_bytes(b'x'); sync('.')", {**OLD, "new": b""}),
        ("Path('new').write_bytes(b'x'); sync('new'); sync('.')", {**OLD, "new": b"x"}),
        ("Path('new').write_bytes(b'x'); sync('.'); sync('new')", {**OLD, "new": b"x"}),
        ("Path('old').write_bytes(b'after'); sync('.')", OLD),
        ("Path('old').write_bytes(b'after'); sync('old')", {"old": b"after"}),
        ("Path('old').unlink()", OLD),
        ("Path('old').unlink(); sync('.')", {}),
        ("Path('old').rename('new'); sync('new')", OLD),
        ("Path('old').rename('new'); sync('.')", {"new": b"before"}),
        ("Path('new').write_bytes(b'x'); Path('new').replace('old'); sync('.')", {"old": b""}),
        ("os.makedirs('a/b'); sync('a/b'); sync('.')", {**OLD, "a": None}),
        ("os.makedirs('a/b'); sync('a'); sync('.')", {**OLD, "a": None, "a/b": None}),
        ("os.mkdir('a'); sync('.'); Path('old').rename('a/new'); sync('a')", {**OLD, "a": None, "a/new": b"before"}),
        ("os.mkdir('a'); sync('.'); Path('old').rename('a/new'); sync('.')", {"a": None}),
        ("os.mkdir('a'); sync('a'); Path('old').rename('a/new'); sync('a'); os.rename('a', 'b'); sync('.')",
         {"b": None, "b/new": b"before"}),
    ],
)  # fmt: skip
def test_only_what_was_synced_is_sure_to_be_there(recorder, tmp_path, steps, expected):
    found = records(f"{STEPS}    {steps}", recorder, tmp_path)
    assert replayed(found, tmp_path, OLD).synced() == expected


def test_of_the_rest_anything_may_be_there(recorder, tmp_path, rng):
    steps = "Path('new').write_bytes(b'x' * 1300); Path('old').rename('gone'); os.mkdir('a')"
    disk = replayed(records(f"{STEPS}    {steps}", recorder, tmp_path), tmp_path, OLD)
    written = b"x" * 1300
    after = {"gone": b"before", "a": None}
    assert list(disk.one_more()) == [{**OLD, "new": b""}, {"gone": b"before"}, {**OLD, "a": None}, OLD]
    assert list(disk.one_less()) == [
        after, {**OLD, "a": None, "new": written}, {"gone": b"before", "new": written}, {**after, "new": b""},
    ]  # fmt: skip
    mixtures = [disk.mixed(rng) for _ in range(2000)]
    found = {(frozenset(state) - {"new"}, state.get("new")) for state in mixtures}
    names = {frozenset(each) for each in ({"old"}, {"old", "a"}, {"gone"}, {"gone", "a"})}
    assert {name for name, _ in found} == names
    torn = {contents for _, contents in found if contents}
    sectors = [[b"x" * (end - begin), bytes(end - begin)] for begin, end in ((0, 512), (512, 1024), (1024, 1300))]
    whole = {one + two + three for one in sectors[0] for two in sectors[1] for three in sectors[2]}
    assert whole <= torn <= whole | {contents.rstrip(b"\0") for contents in whole}


def fails(recording: Recording, moment: Moment) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        try:
            check(recording, moment, Path(folder))
        except AssertionError:
            return True
        return False


@pytest.mark.nightly
def test_each_sync_is_needed(tmp_path):
    (recording,) = recordings(tmp_path, "first_consolidation")
    assert not any(fails(recording, moment) for moment in moments_of(recording, 0, random.Random()))
    syncs = [number for number, record in enumerate(recording.records) if record.kind == "sync"]
    assert len(syncs) >= 3 + 4 + 1 + 3  # new folders; files and their folder; the manifest, and its folder twice
    for number in syncs:
        without = replace(recording, records=recording.records[:number] + recording.records[number + 1 :])
        moments = moments_of(without, 0, random.Random())
        assert any(fails(without, moment) for moment in reversed(moments)), f"nothing shows that {number} is missing"
