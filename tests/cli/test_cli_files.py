"""Formats and places of files: by suffix, by option, in folders and in streams; and what `tagmatch export` writes."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import subprocess
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import strategies
from support.command import (
    COMMAND,
    FORMATS,
    Record,
    as_parquet,
    done,
    ended,
    from_json_lines,
    refused,
    tagmatch,
    write,
)
from support.index_files import contents_of, manifest_as_first

from tagmatch import IndexNotFoundError, TagMatch
from tagmatch.files.columns import ID, QUERY_TAGS
from tagmatch.files.csv_lines import CsvLines
from tagmatch.files.csv_rows import csv_blocks
from tagmatch.files.inputs import read_sets
from tagmatch.files.invalid import InvalidRows
from tagmatch.files.lines import TextReader
from tagmatch.files.sets import set_writer

pytestmark = pytest.mark.slow

formats = pytest.mark.parametrize("name", FORMATS)

SETS: list[Record] = [{"tags": ["a"], "key": 1}, {"tags": ["b", "c"], "key": 2**64 - 1}, {"tags": [], "key": 3}]
QUERIES: list[Record] = [{"tags": ["a", "é"], "id": "x"}, {"tags": ["c", "b"]}, {"tags": []}]
ANSWERS: list[Record] = [{"id": "x", "keys": [1, 3]}, {"id": 1, "keys": [3, 2**64 - 1]}, {"id": 2, "keys": [3]}]


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    path = tmp_path_factory.mktemp("formats") / "index"
    with TagMatch(path) as tm:
        tm.add_sets([row["tags"] for row in SETS], [row["key"] for row in SETS])
        tm.consolidate()
    return path


def in_order(text: str) -> list[Record]:
    return [{**answer, "keys": sorted(answer["keys"])} for answer in from_json_lines(text)]


@formats
def test_queries(index, tmp_path, name):
    """By suffix, and by option: from a pipe, from a file that stands for standard input, and from one of any suffix."""
    data, other = FORMATS[name](QUERIES), tmp_path / "queries.dat"
    for path in (tmp_path / f"queries.{name}", other):
        path.write_bytes(data)
    assert in_order(done("match", index, tmp_path / f"queries.{name}")) == ANSWERS
    assert in_order(done("match", index, other, "--format", name)) == ANSWERS
    assert in_order(tagmatch("match", index, "-", "--format", name, stdin=data)) == ANSWERS
    for path in ("-", "/dev/stdin"):
        assert in_order(tagmatch("match", index, path, "--format", name, stdin=other)) == ANSWERS


@pytest.mark.parametrize("name", ["jsonl", "jsonl.zst"])
def test_folders(index, tmp_path, name):
    for number, query in enumerate(QUERIES):
        (tmp_path / f"{number}.{name}").write_bytes(FORMATS[name]([query]))
    (tmp_path / f"_left.{name}").write_text("out")
    assert in_order(done("match", index, tmp_path)) == ANSWERS
    (tmp_path / "a.parquet").write_bytes(as_parquet(QUERIES[:1]))
    if name == "jsonl":
        assert "JSON Lines and Parquet" in refused("match", index, tmp_path)
    assert in_order(done("match", index, tmp_path, "--format", "parquet")) == ANSWERS[:1]


@pytest.mark.parametrize("name", ["jsonl", "jsonl.gz", "jsonl.zst", "parquet"])
def test_output_formats(index, tmp_path, name):
    queries = write(tmp_path / "queries.jsonl", [{"tags": query["tags"]} for query in QUERIES])
    files = [tmp_path / f"answers.{name}", tmp_path / "answers.dat"]
    done("match", index, queries, "-o", files[0])
    done("match", index, queries, "-o", files[1], "--output-format", name)
    if name in ("jsonl.gz", "parquet"):
        command = [COMMAND, "match", index, queries, "--output-format", name]
        files.append(tmp_path / "piped")
        files[-1].write_bytes(subprocess.run(command, capture_output=True, check=True).stdout)
    for file in files:
        found = opened(file, name)
        assert [sorted(answer["keys"]) for answer in found] == [answer["keys"] for answer in ANSWERS]
        assert [answer["id"] for answer in found] == [0, 1, 2]


def opened(path: Path, name: str) -> list[Record]:
    if name == "parquet":
        return pq.read_table(path).to_pylist()
    data = path.read_bytes()
    if name == "jsonl.gz":
        data = gzip.decompress(data)
    if name == "jsonl.zst":
        data = pa.CompressedInputStream(io.BytesIO(data), "zstd").read()
    return from_json_lines(data.decode())


@pytest.mark.parametrize("name", ["jsonl.gz", "jsonl.zst", "csv.gz"])
def test_damaged_compressed_files(tmp_path, name):
    sets = tmp_path / f"sets.{name}"
    for data in (b"no such thing", FORMATS[name](SETS)[:-9]):
        sets.write_bytes(data)
        assert str(sets) in refused("build", sets, tmp_path / "index")
        with pytest.raises(IndexNotFoundError):
            TagMatch.open(tmp_path / "index")


@pytest.mark.parametrize(
    "more", ["", ', "area": {"lon": 8.9, "lat": 44.4, "metres": 20000}', ', "wher": 1', ', "name": 1']
)
def test_a_row_over_several_lines(tmp_path, more):
    sets = tmp_path / "sets.jsonl"
    sets.write_text(f'{{"tags": ["a"], "key": 1}}\n{{"tags": ["b"],\n"key": 2{more}}}\n')
    assert f"{sets}: line 2 (row 1) is not a JSON object" in refused("build", sets, tmp_path / "index")


def test_answers_do_not_take_the_place_of_queries(index, tmp_path):
    path, link = write(tmp_path / "q.jsonl", QUERIES), tmp_path / "link.jsonl"
    before = path.read_bytes()
    link.symlink_to(path)
    for output in (path, link):
        assert "the queries are in this file" in refused("match", index, path, "--output", output)
    assert path.read_bytes() == before


def test_files_of_other_things(index, tmp_path):
    assert f"{index} is an index, not a file of rows" in refused("match", index, index)
    queries = write(tmp_path / "queries.jsonl", [{"location": [9, 45], "id": 7}])
    assert "has no column 'tags' or 'attributes'; it has 'location', 'id'" in refused("match", index, queries)
    message = refused("match", index, write(queries, [{"Tags": ["a"], "id": 7}]))
    assert "has a column 'Tags', which means nothing here; is 'tags' meant?" in message
    write(queries, QUERIES)
    assert "CSV" in refused("match", index, queries, "-o", tmp_path / "answers.csv")


@pytest.mark.parametrize(
    "arguments",
    [["build", "", "NEW"], ["build", "SETS", ""], ["match", "", "SETS"], ["info", ""], ["match", "INDEX", ""]],
    ids=str,
)
def test_empty_paths(index, tmp_path, arguments):
    paths = {"SETS": write(tmp_path / "sets.jsonl", SETS), "INDEX": index, "NEW": tmp_path / "new"}
    message = refused(*(paths.get(word, word) for word in arguments))
    assert "empty" in message
    assert "give" in message


def test_home(tmp_path):
    write(tmp_path / "sets.jsonl", SETS)
    write(tmp_path / "queries.jsonl", QUERIES)
    kernels = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    environment = os.environ | {"HOME": str(tmp_path), "XDG_CACHE_HOME": kernels}
    for arguments in (
        ["build", "~/sets.jsonl", "~/index"],
        ["match", "~/index", "~/queries.jsonl", "--output=~/answers.jsonl"],
        ["check", "~/index"],
    ):
        subprocess.run([COMMAND, *arguments], env=environment, cwd=tmp_path, check=True, timeout=600)
    assert in_order((tmp_path / "answers.jsonl").read_text()) == ANSWERS
    assert not (tmp_path / "~").exists()


# -- CSV ---------------------------------------------------------------------------------------------------------------


@given(
    rows=st.lists(
        st.tuples(
            st.lists(st.text(st.characters(exclude_characters="\0\r|", codec="utf-8")), max_size=4), st.booleans()
        )
    )
)
def test_tags_in_csv(rows):
    """As JSON lists, or separated where that is possible."""
    text = io.StringIO()
    cells = csv.writer(text, lineterminator="\n")
    for tags, as_json in rows:
        plain = "|".join(tags)
        separable = not as_json and plain and not plain.startswith("[") and "\0" not in plain
        cells.writerow([plain if separable else json.dumps(tags), "more"])
    columns = (QUERY_TAGS, ID)
    reader = TextReader("queries", CsvLines(["tags", "other"], columns), columns, InvalidRows(), 0)
    blocks = csv_blocks(io.BytesIO(text.getvalue().encode()).read)
    found = [tags for batch, _ in reader.rows(blocks) for tags in batch["tags"].to_pylist()]
    assert found == [tags for tags, _ in rows]


BAD_CSV = {
    "no column key": ("tags,id\na,1\n", ["no column 'key'", "'tags', 'id'"]),
    "another column key": ("tags,keys\na,1\n", ["column 'keys'", "is 'key' meant?"]),
    "empty": ("", ["no column 'tags'"]),
    "key": ("tags,key\na,1\na,x\n", ["line 3", "row 1", "'key'"]),
    "negative key": ("tags,key\na,1\na,-1\n", ["line 3", "row 1", "'key'", "-1"]),
    "no key": ("tags,key\na,1\na,\n", ["line 3", "row 1", "'key'"]),
    "too many cells": ("tags,key\na,1\na,1,2\n", ["line 3", "row 1", "3 cells"]),
    "no tags": ("tags,key\na,1\n,1\n", ["line 3", "row 1", "empty", "write [] for the empty set"]),
    "no JSON": ('tags,key\na,1\n"[""a""",1\n', ["line 3", "row 1"]),
    "JSON of others": ("tags,key\na,1\n[1],1\n", ["line 3", "row 1", "'tags'"]),
    "no UTF-8": (b"tags,key\na,1\n\xff,1\n", ["line 3", "row 1"]),
}


@pytest.mark.parametrize(("text", "words"), BAD_CSV.values(), ids=BAD_CSV)
def test_bad_csv(tmp_path, text, words):
    sets = tmp_path / "sets.csv"
    sets.write_bytes(text if isinstance(text, bytes) else text.encode())
    message = refused("build", sets, tmp_path / "index")
    for word in (str(sets), *words):
        assert word in message
    if "line 3" in words:
        assert "skipped 1 invalid row;" in ended("build", sets, tmp_path / "index", "--skip-invalid").stderr
        with TagMatch.open(tmp_path / "index") as tm:
            assert tm.match(["a"]) == [1]


# -- export ------------------------------------------------------------------------------------------------------------

ODD_TAGS = [
    ",", '"', '""', "'", "|", "[", "]", "[]", '["a"]', "{}", "\n", "\r", "\r\n", "\n\n", "a\nb", "\\", "\\n", "\\u0041",
    "\t", " ", " a ", "\x7f", "\u2028", "\ufeff", "NULL", "null", "1", "-1", *strategies.COMMON_TAGS,
]  # fmt: skip
SCHEMA = pa.schema([("tags", pa.list_(pa.string())), ("key", pa.uint64())])


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
    """Of a file by suffix, of one by option, and of what goes through a pipe."""
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


def test_rows_are_those_of_to_arrow(odd, tmp_path):
    with TagMatch.open(odd) as tm:
        table = tm.to_arrow()
    assert from_json_lines(done("export", odd).replace("\u2028", "\\u2028")) == table.to_pylist()
    done("export", odd, tmp_path / "sets.parquet")
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


@pytest.mark.parametrize("name", ["jsonl", "csv.gz", "parquet"])
def test_an_index_of_nothing(tmp_path, name):
    with TagMatch(tmp_path / "empty", durability="none") as tm:
        tm.add_set(["a"], 1)
        tm.consolidate()
        tm.remove_set(["a"], 1)
        tm.consolidate()
    done("export", tmp_path / "empty", tmp_path / f"sets.{name}")
    done("build", tmp_path / f"sets.{name}", tmp_path / "index", "--allow-empty")
    assert (tmp_path / "index" / "MANIFEST.json").read_bytes() == manifest_as_first(tmp_path / "empty")


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
    for path, words in (
        (tmp_path / "sets.txt", ["sets.txt", "cannot tell the format"]),
        (tmp_path / "no" / "sets.csv", ["sets.csv", "No such file"]),
        ("", ["empty"]),
    ):
        message = refused("export", odd, path)
        assert all(word in message for word in words), message
    assert str(tmp_path / "nowhere") in refused("export", tmp_path / "nowhere", tmp_path / "sets.csv")
    assert "OUTPUT" in tagmatch("export", odd, "a.csv", "-o", "b.csv", code=2)
    assert not os.listdir(tmp_path)


def test_damage_is_found(tmp_path):
    with TagMatch(tmp_path / "index") as tm:
        tm.add_set(["a"], 1)
        tm.consolidate()
    (file,) = tmp_path.rglob("keys.arrow")
    contents = bytearray(file.read_bytes())
    contents[len(contents) // 2] ^= 1
    file.write_bytes(contents)
    assert "keys.arrow" in refused("export", tmp_path / "index", tmp_path / "sets.csv")
    assert not (tmp_path / "sets.csv").exists()
