"""Formats and places of files: by suffix, by option, in folders and in streams."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.command import COMMAND, FORMATS, Record, as_json_lines, as_parquet, ended, from_json_lines, tagmatch, write

from tagmatch import IndexNotFoundError, TagMatch
from tagmatch.files.columns import ID, QUERY_TAGS
from tagmatch.files.csv_lines import CsvLines
from tagmatch.files.csv_rows import csv_blocks
from tagmatch.files.invalid import InvalidRows
from tagmatch.files.lines import TextReader

pytestmark = pytest.mark.slow

SETS: list[Record] = [{"tags": ["a"], "key": 1}, {"tags": ["b", "c"], "key": 2**64 - 1}, {"tags": [], "key": 3}]
QUERIES: list[Record] = [{"tags": ["a", "é"], "id": "x"}, {"tags": ["c", "b"]}, {"tags": []}]
ANSWERS: list[Record] = [{"id": "x", "keys": [1, 3]}, {"id": 1, "keys": [3, 2**64 - 1]}, {"id": 2, "keys": [3]}]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("formats") / "index"
    with TagMatch(path) as tm:
        tm.add_sets([row["tags"] for row in SETS], [row["key"] for row in SETS])
        tm.consolidate()
    return path


def in_order(text: str) -> list[Record]:
    return [{**answer, "keys": sorted(answer["keys"])} for answer in from_json_lines(text)]


@pytest.mark.parametrize("name", FORMATS)
def test_by_suffix(tmp_path, name):
    sets, queries = tmp_path / f"sets.{name}", tmp_path / f"queries.{name}"
    sets.write_bytes(FORMATS[name](SETS))
    queries.write_bytes(FORMATS[name](QUERIES))
    tagmatch("build", sets, tmp_path / "index")
    assert in_order(tagmatch("match", tmp_path / "index", queries)) == ANSWERS


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("path", ["-", "/dev/stdin"])
def test_by_option(index, tmp_path, name, path):
    """From a pipe, from a file that stands for standard input, and from a file of another suffix."""
    data = FORMATS[name](QUERIES)
    if path == "-":
        assert in_order(tagmatch("match", index, path, "--format", name, stdin=data)) == ANSWERS
    (tmp_path / "queries.dat").write_bytes(data)
    assert in_order(tagmatch("match", index, tmp_path / "queries.dat", "--format", name)) == ANSWERS
    assert in_order(tagmatch("match", index, path, "--format", name, stdin=tmp_path / "queries.dat")) == ANSWERS


def test_process_substitution(index, tmp_path):
    queries = write(tmp_path / "queries.jsonl", QUERIES)
    command = f"{COMMAND} match {index} <(cat {queries}) -o >(cat > {tmp_path}/answers; echo done)"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("done\n", "")
    assert in_order((tmp_path / "answers").read_text()) == ANSWERS


@pytest.mark.parametrize("name", ["jsonl", "jsonl.gz", "jsonl.zst"])
def test_folders(index, tmp_path, name):
    for number, query in enumerate(QUERIES):
        (tmp_path / f"{number}.{name}").write_bytes(FORMATS[name]([query]))
    (tmp_path / f"_left.{name}").write_text("out")
    assert in_order(tagmatch("match", index, tmp_path)) == ANSWERS


def test_folders_of_several_kinds(index, tmp_path):
    (tmp_path / "a.parquet").write_bytes(as_parquet(QUERIES[:1]))
    (tmp_path / "b.jsonl").write_bytes(as_json_lines(QUERIES[1:]))
    assert "JSON Lines and Parquet" in tagmatch("match", index, tmp_path, code=1)
    assert in_order(tagmatch("match", index, tmp_path, "--format", "parquet")) == ANSWERS[:1]


@pytest.mark.parametrize("name", ["jsonl", "jsonl.gz", "jsonl.zst", "parquet"])
def test_output_formats(index, tmp_path, name):
    queries = write(tmp_path / "queries.jsonl", [{"tags": query["tags"]} for query in QUERIES])
    tagmatch("match", index, queries, "-o", tmp_path / f"answers.{name}")
    tagmatch("match", index, queries, "-o", tmp_path / "answers.dat", "--output-format", name)
    piped = subprocess.run(
        [COMMAND, "match", index, queries, "--output-format", name], capture_output=True, timeout=120, check=True
    )
    (tmp_path / "piped").write_bytes(piped.stdout)
    for file in (f"answers.{name}", "answers.dat", "piped"):
        found = opened(tmp_path / file, name)
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


def test_answers_do_not_take_the_place_of_queries(index, tmp_path):
    path, link = tmp_path / "q.jsonl", tmp_path / "link.jsonl"
    path.write_text('{"tags": ["a"]}\n')
    link.symlink_to(path)
    for output in (path, link):
        assert "the queries are in this file" in tagmatch("match", index, path, "--output", output, code=1)
    assert path.read_text() == '{"tags": ["a"]}\n'


def test_answers_are_not_csv(index, tmp_path):
    queries = write(tmp_path / "queries.jsonl", QUERIES)
    assert "CSV" in tagmatch("match", index, queries, "-o", tmp_path / "answers.csv", code=1)


def test_ids_in_parquet_answers(index, tmp_path):
    """The first query decides whether ids are numbers or strings; row numbers stand for those that are missing."""
    queries, answers = tmp_path / "queries.jsonl", tmp_path / "answers.parquet"
    for ids, expected in (
        (["x", None], ["x", "1"]),
        ([None, 7], [0, 7]),
        ([None, "x"], None),
    ):
        write(queries, [{"tags": [], "id": name} for name in ids])
        if expected is None:
            assert "do not fit one Parquet column" in tagmatch("match", index, queries, "-o", answers, code=1)
        else:
            tagmatch("match", index, queries, "-o", answers)
            assert pq.read_table(answers)["id"].to_pylist() == expected


@pytest.mark.parametrize("name", ["jsonl.gz", "jsonl.zst", "csv.gz"])
def test_damaged_compressed_files(tmp_path, name):
    sets = tmp_path / f"sets.{name}"
    for data in (b"no such thing", FORMATS[name](SETS)[:-9]):
        sets.write_bytes(data)
        assert str(sets) in tagmatch("build", sets, tmp_path / "index", code=1)
        with pytest.raises(IndexNotFoundError):
            TagMatch.open(tmp_path / "index")


@pytest.mark.parametrize(
    "more", ["", ', "area": {"lon": 8.9, "lat": 44.4, "metres": 20000}', ', "wher": 1', ', "name": 1']
)
def test_a_row_over_several_lines(tmp_path, more):
    sets = tmp_path / "sets.jsonl"
    sets.write_text(f'{{"tags": ["a"], "key": 1}}\n{{"tags": ["b"],\n"key": 2{more}}}\n')
    assert f"{sets}: line 2 (row 1) is not a JSON object" in tagmatch("build", sets, tmp_path / "index", code=1)


# -- CSV -------------------------------------------------------------------------------------------------------------


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
    message = tagmatch("build", sets, tmp_path / "index", code=1)
    for word in (str(sets), *words):
        assert word in message
    if "line 3" in words:
        assert "skipped 1 invalid row;" in ended("build", sets, tmp_path / "index", "--skip-invalid").stderr
        with TagMatch.open(tmp_path / "index") as tm:
            assert tm.match(["a"]) == [1]


def test_an_index_in_the_place_of_rows(index):
    message = tagmatch("match", index, index, code=1)
    assert f"{index} is an index, not a file of rows" in message


def test_a_missing_column_of_json_lines(index, tmp_path):
    queries = write(tmp_path / "queries.jsonl", [{"location": [9, 45], "id": 7}])
    assert "has no column 'tags' or 'attributes'; it has 'location', 'id'" in tagmatch("match", index, queries, code=1)
    write(queries, [{"Tags": ["a"], "id": 7}])
    assert "has a column 'Tags', which means nothing here; is 'tags' meant?" in tagmatch(
        "match", index, queries, code=1
    )


# -- paths and the command itself ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [["build", "", "NEW"], ["build", "SETS", ""], ["match", "", "SETS"], ["info", ""], ["match", "INDEX", ""]],
    ids=str,
)
def test_empty_paths(index, tmp_path, arguments):
    paths = {"SETS": write(tmp_path / "sets.jsonl", SETS), "INDEX": index, "NEW": tmp_path / "new"}
    message = tagmatch(*(paths.get(word, word) for word in arguments), code=1)
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
        subprocess.run([COMMAND, *arguments], env=environment, cwd=tmp_path, check=True, timeout=120)
    assert in_order((tmp_path / "answers.jsonl").read_text()) == ANSWERS
    assert not (tmp_path / "~").exists()


def test_as_a_module(index):
    done = subprocess.run(
        [sys.executable, "-m", "tagmatch", "info", index, "--json"], capture_output=True, text=True, timeout=120
    )
    assert json.loads(done.stdout)["sets"] == len(SETS)


def test_completion():
    environment = os.environ | {"_TAGMATCH_COMPLETE": "complete_bash", "COMP_WORDS": "tagmatch w", "COMP_CWORD": "1"}
    done = subprocess.run([COMMAND], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["warmup"]
