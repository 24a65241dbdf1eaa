"""Formats and places of files: by suffix, by option, in folders and in streams; and what `tagmatch export` writes."""

import os
import re
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import strategies
from support.agreement import index_of
from support.command import (
    COMMAND,
    FORMATS,
    Record,
    as_json_lines,
    as_parquet,
    done,
    ended,
    from_json_lines,
    refused,
    tagmatch,
    write,
)
from support.index_files import contents_of

from tagmatch import TagMatch

pytestmark = pytest.mark.slow

formats = pytest.mark.parametrize("name", FORMATS)

SETS: list[Record] = [{"tags": ["a"], "key": 1}, {"tags": ["b", "c"], "key": 2**64 - 1}, {"tags": [], "key": 3}]
QUERIES: list[Record] = [{"tags": ["a", "é"], "id": "x"}, {"tags": ["c", "b"]}, {"tags": []}]
ANSWERS: list[Record] = [{"id": "x", "keys": [1, 3]}, {"id": 1, "keys": [3, 2**64 - 1]}, {"id": 2, "keys": [3]}]


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    path = tmp_path_factory.mktemp("formats") / "index"
    index_of([row["tags"] for row in SETS], [row["key"] for row in SETS], path).close()
    return path


def in_order(text: str) -> list[Record]:
    return [{**answer, "keys": sorted(answer["keys"])} for answer in from_json_lines(text)]


@formats
def test_queries(index, tmp_path, name):
    """By suffix, and by option: from a pipe, from a file as standard input, and from one of any suffix."""
    data, other = FORMATS[name](QUERIES), tmp_path / "queries.dat"
    for path in (tmp_path / f"queries.{name}", other):
        path.write_bytes(data)
    assert in_order(done("match", index, tmp_path / f"queries.{name}")) == ANSWERS
    assert in_order(done("match", index, other, "--format", name)) == ANSWERS
    assert in_order(tagmatch("match", index, "-", "--format", name, stdin=data)) == ANSWERS
    for path in ("-", "/dev/stdin"):
        assert in_order(tagmatch("match", index, path, "--format", name, stdin=other)) == ANSWERS


def test_folders(index, tmp_path):
    for number, query in enumerate(QUERIES):
        (tmp_path / f"{number}.jsonl.zst").write_bytes(FORMATS["jsonl.zst"]([query]))
    (tmp_path / "_left.jsonl.zst").write_text("out")
    assert in_order(done("match", index, tmp_path)) == ANSWERS
    (tmp_path / "a.parquet").write_bytes(as_parquet(QUERIES[:1]))
    (tmp_path / "b.jsonl").write_bytes(b"")
    assert "JSON Lines and Parquet" in refused("match", index, tmp_path)
    assert in_order(done("match", index, tmp_path, "--format", "parquet")) == ANSWERS[:1]


@pytest.mark.parametrize("name", ["jsonl", "jsonl.gz", "jsonl.zst", "parquet"])
def test_output_formats(index, tmp_path, name):
    queries = write(tmp_path / "queries.jsonl", [{"tags": query["tags"]} for query in QUERIES])
    files = [tmp_path / f"answers.{name}", tmp_path / "answers.dat"]
    assert done("match", index, queries, "-o", files[0], "--threads", 2) == ""
    done("match", index, queries, "-o", files[1], "--output-format", name)
    assert sorted(tmp_path.iterdir()) == sorted([queries, *files])
    if name in ("jsonl.gz", "parquet"):
        command = [COMMAND, "match", index, queries, "--output-format", name]
        files.append(tmp_path / "piped")
        files[-1].write_bytes(subprocess.run(command, capture_output=True, check=True).stdout)
    for file in files:
        found = opened(file, name)
        assert [sorted(answer["keys"]) for answer in found] == [answer["keys"] for answer in ANSWERS]
        assert [answer["id"] for answer in found] == [0, 1, 2]
    if name == "parquet":
        assert pq.read_schema(files[0]).field("keys").type.value_type == pa.uint64()


def opened(path: Path, name: str) -> list[Record]:
    if name == "parquet":
        return pq.read_table(path).to_pylist()
    with pa.OSFile(str(path)) as file:
        kind = {"jsonl.gz": "gzip", "jsonl.zst": "zstd"}.get(name)
        data = (pa.CompressedInputStream(file, kind) if kind else file).read()
    return from_json_lines(data.decode().replace("\u2028", "\\u2028"))


def test_answers_do_not_take_the_place_of_queries(index, tmp_path):
    path, link = write(tmp_path / "q.jsonl", QUERIES), tmp_path / "link.jsonl"
    before = path.read_bytes()
    link.symlink_to(path)
    for output in (path, link):
        assert "the queries are in this file" in refused("match", index, path, "--output", output)
    assert path.read_bytes() == before


def test_files_of_a_folder_that_are_left_out_are_named(index, tmp_path):
    for name in ("a.jsonl", "b.jsonl.bz2", "_SUCCESS"):
        (tmp_path / name).write_bytes(as_json_lines(QUERIES))
    found = ended("match", index, tmp_path)
    assert in_order(found.stdout) == ANSWERS
    told = f"tagmatch: warning: {tmp_path}: b.jsonl.bz2 and all files with such suffixes are left out"
    assert found.stderr.startswith(told)
    assert found.stderr.count("\n") == 1


def test_files_of_other_things(index, tmp_path):
    assert f"{index} is an index, not a file of rows" in refused("match", index, index)
    queries = write(tmp_path / "queries.jsonl", [{"location": [9, 45], "id": 7}])
    lacks = "has no column 'tags' or 'attributes'; it has 'location', 'id': give [] for no tags"
    assert lacks in refused("match", index, queries)
    message = refused("match", index, write(queries, [{"Tags": ["a"], "id": 7}]))
    assert "has a column 'Tags', which means nothing here; is 'tags' meant?" in message


def test_empty_paths(index, tmp_path):
    sets = write(tmp_path / "sets.jsonl", SETS)
    for arguments in (["build", "", tmp_path / "new"], ["build", sets, ""], ["match", "", sets], ["match", index, ""]):
        message = refused(*arguments)
        assert "empty" in message
        assert "give" in message


def test_home(tmp_path):
    write(tmp_path / "sets.jsonl", SETS)
    write(tmp_path / "queries.jsonl", QUERIES)
    kernels = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    environment = os.environ | {"HOME": str(tmp_path), "XDG_CACHE_HOME": kernels}
    for arguments in ("build ~/sets.jsonl ~/index", "match ~/index ~/queries.jsonl --output=~/answers.jsonl"):
        subprocess.run([COMMAND, *arguments.split()], env=environment, cwd=tmp_path, check=True, timeout=600)
    assert in_order((tmp_path / "answers.jsonl").read_text()) == ANSWERS
    assert not (tmp_path / "~").exists()


ODD_TAGS = [
    ",", '"', '""', "'", "|", "[", "]", "[]", '["a"]', "{}", "\n", "\r", "\r\n", "\n\n", "a\nb", "\\", "\\n", "\\u0041",
    "\t", " ", " a ", "\x7f", "\u2028", "\ufeff", "NULL", "null", "1", "-1", *strategies.COMMON_TAGS,
]  # fmt: skip


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """Sets of all tags that might be written wrongly."""
    path = tmp_path_factory.mktemp("export") / "index"
    with TagMatch(path, max_partition_size=7, durability="none") as tm:
        tm.add_sets([[tag] for tag in ODD_TAGS], range(len(ODD_TAGS)))
        tm.add_sets([ODD_TAGS[first::7] for first in range(7)], strategies.BOUNDARY_KEYS[:7])
        tm.add_sets([[], []], [2**64 - 1, 3])
        tm.consolidate()
    return path


@formats
def test_build_makes_the_same_index_of_what_export_writes(odd, tmp_path, name):
    """Of a file by suffix, of one by option, and of a pipe."""
    file, other, piped = (tmp_path / part for part in (f"sets.{name}", "sets.dat", "piped"))
    assert done("export", odd, file) == ""
    assert done("export", odd, "-o", other, "--format", name) == ""
    if name in ("csv", "parquet"):
        command = [COMMAND, "export", odd, "--format", name]
        piped.write_bytes(subprocess.run(command, capture_output=True, check=True).stdout)
    for number, path in enumerate((file, other, piped)):
        if path.exists():
            form = ["--format", name] if path != file else []
            done("build", path, tmp_path / f"{number}.index", "--max-partition-size", 7, *form)
            assert contents_of(tmp_path / f"{number}.index") == contents_of(odd)
    if name in ("jsonl", "parquet"):
        with TagMatch.open(odd) as tm:
            assert opened(file, name) == tm.to_arrow().to_pylist()


def test_another_layout(odd, tmp_path):
    """Through a pipe from one command to the other, and by process substitution."""
    queries, new = write(tmp_path / "queries.jsonl", QUERIES), tmp_path / "index"
    command = f"{COMMAND} export {odd} | {COMMAND} build - {new} --layout balanced"
    command += f"; {COMMAND} match {new} <(cat {queries}) -o >(cat > {tmp_path}/answers; echo done)"
    ran = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("done\n", "")
    with TagMatch.open(odd) as tm, TagMatch.open(new) as found:
        assert dict(found) == dict(tm)
        assert found.stats()["layout"] == "balanced"
        answers = from_json_lines((tmp_path / "answers").read_text())
        assert [sorted(row["keys"]) for row in answers] == [sorted(tm.match(query["tags"])) for query in QUERIES]


def test_what_cannot_be_written(odd, tmp_path):
    assert "sets.txt: cannot tell the format" in refused("export", odd, tmp_path / "sets.txt")
    assert re.search(r"no/sets\.csv.*No such file", refused("export", odd, tmp_path / "no" / "sets.csv"))
    assert "empty" in refused("export", odd, "")
    (tmp_path / "a.csv").mkdir()
    assert f"{tmp_path / 'a.csv'} is a folder; give the name of a file" in refused("export", odd, tmp_path / "a.csv")
    (tmp_path / "a.csv").rmdir()
    assert "OUTPUT" in tagmatch("export", odd, "a.csv", "-o", "b.csv", code=2)
    assert not os.listdir(tmp_path)
