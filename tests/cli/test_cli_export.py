"""`tagmatch export`: what it writes, `tagmatch build` reads, and makes the same index of it."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import strategies
from support.command import COMMAND, FORMATS, done, from_json_lines, tagmatch
from support.index_files import manifest_as_first

from tagmatch import TagMatch
from tagmatch.files.inputs import read_sets
from tagmatch.files.sets import set_writer

pytestmark = pytest.mark.slow

ODD_TAGS = [
    ",", '"', '""', "'", "|", "[", "]", "[]", '["a"]', "{}", "\n", "\r", "\r\n", "\n\n", "a\nb", "\\", "\\n", "\\u0041",
    "\t", " ", " a ", "\x7f", "\u2028", "\ufeff", "NULL", "null", "1", "-1", *strategies.COMMON_TAGS,
]  # fmt: skip
SCHEMA = pa.schema([("tags", pa.list_(pa.string())), ("key", pa.uint64())])

formats = pytest.mark.parametrize("name", FORMATS)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, layout: str) -> Path:
    """Sets of all tags that might be written wrongly."""
    path = tmp_path_factory.mktemp("export") / "index"
    with TagMatch(path, layout=layout, max_partition_size=7, durability="none") as tm:
        tm.add_sets([[tag] for tag in ODD_TAGS], range(len(ODD_TAGS)))
        tm.add_sets([ODD_TAGS[first::7] for first in range(7)], strategies.BOUNDARY_KEYS[:7])
        tm.add_sets([[], []], [2**64 - 1, 3])
        tm.consolidate()
    return path


def manifest(index: Path) -> bytes:
    return (index / "MANIFEST.json").read_bytes()


@formats
def test_build_makes_the_same_index_of_it(index, layout, tmp_path, name):
    """Of a file by suffix, of one by option, and of what goes through a pipe."""
    file, other, piped = (tmp_path / part for part in (f"sets.{name}", "sets.dat", "piped"))
    assert done("export", index, file) == ""
    assert done("export", index, "-o", other, "--format", name) == ""
    output = subprocess.run([COMMAND, "export", index, "--format", name], capture_output=True, check=True, timeout=120)
    piped.write_bytes(output.stdout)
    for number, path in enumerate((file, other, piped)):
        form = ["--format", name] if path != file else []
        built = tmp_path / f"{number}.index"
        done("build", path, built, "--layout", layout, "--max-partition-size", 7, *form)
        assert manifest(built) == manifest(index)


def test_rows_are_those_of_to_arrow(index, tmp_path):
    with TagMatch.open(index) as tm:
        table = tm.to_arrow()
    assert from_json_lines(tagmatch("export", index).replace("\u2028", "\\u2028")) == table.to_pylist()
    done("export", index, tmp_path / "sets.parquet")
    assert pq.read_table(tmp_path / "sets.parquet") == table


@formats
@given(rows=st.lists(st.lists(st.tuples(strategies.tag_sets, strategies.keys)), max_size=3))
def test_whatever_is_written_is_read(name, rows):
    """Batch by batch; slices of arrays too."""
    batches = [
        pa.RecordBatch.from_pylist([{"tags": tags, "key": key} for tags, key in [([], 0), *batch]], SCHEMA).slice(1)
        for batch in rows
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/sets.{name}"
        with set_writer(path, SCHEMA) as write_batch:
            for batch in batches:
                write_batch(batch)
        found = pa.Table.from_batches(read_sets(path), SCHEMA)
    assert found.to_pylist() == pa.Table.from_batches(batches, SCHEMA).to_pylist()


@formats
def test_an_index_of_nothing(tmp_path, name):
    with TagMatch(tmp_path / "empty", durability="none") as tm:
        tm.add_set(["a"], 1)
        tm.consolidate()
        tm.remove_set(["a"], 1)
        tm.consolidate()
    done("export", tmp_path / "empty", tmp_path / f"sets.{name}")
    done("build", tmp_path / f"sets.{name}", tmp_path / "index", "--allow-empty")
    assert manifest(tmp_path / "index") == manifest_as_first(tmp_path / "empty")


def test_another_layout(index, layout, tmp_path):
    """Through a pipe from one command to the other."""
    other = {"rarest": "balanced", "balanced": "rarest"}[layout]
    command = f"{COMMAND} export {index} | {COMMAND} build - {tmp_path}/index --layout {other}"
    subprocess.run(["bash", "-o", "pipefail", "-c", command], check=True, timeout=120)
    with TagMatch.open(index) as tm, TagMatch.open(tmp_path / "index") as found:
        assert dict(found) == dict(tm)
        assert found.stats()["layout"] == other


# -- files and streams -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small on the disk, but not as rows: a set with a tag of 1 MB and 600 keys."""
    path = tmp_path_factory.mktemp("large") / "index"
    with TagMatch(path) as tm:
        tm.add_sets([["x" * 1_000_000]], [0])
        tm.consolidate()
        for first in range(1, 600, 50):
            tm.add_sets([["x" * 1_000_000]] * 50, range(first, first + 50))
        tm.consolidate()
    return path


@formats
def test_a_file_appears_only_when_it_is_whole(large, tmp_path, name):
    """On a disk that gets full; what is there stays."""
    file = tmp_path / f"sets.{name}"
    file.write_text("older")
    limit = 2_000  # bytes, also of what is compressed
    command = subprocess.run(
        [COMMAND, "export", large, file],
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert command.returncode == 1
    assert command.stderr == f"tagmatch: {file}: cannot be written: File too large\n"
    assert os.listdir(tmp_path) == [file.name]
    assert file.read_text() == "older"


@pytest.mark.parametrize("name", ["jsonl", "csv.gz", "parquet"])
def test_a_full_disk_behind_standard_output(index, name):
    with Path("/dev/full").open("wb") as full:
        command = subprocess.run(
            [COMMAND, "export", index, "--format", name], stdout=full, stderr=subprocess.PIPE, timeout=120
        )
    assert command.returncode == 1, name
    assert command.stderr.decode().splitlines() == ["tagmatch: standard output: No space left on device"], name


def test_a_reader_that_has_had_enough(large):
    with subprocess.Popen([COMMAND, "export", large], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.read(1_000)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


# A process has at least the peak of the one that started it, so that one is to be small
PEAK = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10)
"""


@pytest.mark.parametrize("name", ["jsonl", "csv", "parquet"])
def test_memory_is_bounded(large, name):
    """It is less than half of what is written."""
    command = [sys.executable, "-c", PEAK, COMMAND, "export", large, "--format", name]
    peak = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    print(f"{int(peak.stdout) >> 20} MiB")
    assert int(peak.stdout) < 400_000_000


def test_what_cannot_be_written(index, tmp_path):
    for path, words in (
        (tmp_path / "sets.txt", ["sets.txt", "cannot tell the format"]),
        (tmp_path / "no" / "sets.csv", ["sets.csv", "No such file"]),
        ("", ["empty"]),
    ):
        message = tagmatch("export", index, path, code=1)
        assert all(word in message for word in words), message
    assert str(tmp_path / "nowhere") in tagmatch("export", tmp_path / "nowhere", tmp_path / "sets.csv", code=1)
    assert "OUTPUT" in tagmatch("export", index, "a.csv", "-o", "b.csv", code=2)
    assert not os.listdir(tmp_path)


def test_damage_is_found(tmp_path):
    with TagMatch(tmp_path / "index") as tm:
        tm.add_set(["a"], 1)
        tm.consolidate()
    (file,) = tmp_path.rglob("keys.arrow")
    contents = bytearray(file.read_bytes())
    contents[len(contents) // 2] ^= 1
    file.write_bytes(contents)
    assert "keys.arrow" in tagmatch("export", tmp_path / "index", tmp_path / "sets.csv", code=1)
    assert not (tmp_path / "sets.csv").exists()
