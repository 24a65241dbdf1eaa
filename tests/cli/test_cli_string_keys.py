"""Keys that are strings, through files and commands."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.command import FORMATS, Record, from_json_lines, tagmatch

from tagmatch import TagMatch

SETS: list[Record] = [
    {"tags": ["a"], "key": "ana"},
    {"tags": ["a", "b"], "key": ' "b\\o", \u00e9|[x] '},
    {"tags": [], "key": ""},
    {"tags": ["a"], "key": "7"},
]
QUERY = {"tags": ["a", "b"]}
KEYS = sorted(row["key"] for row in SETS)


@pytest.fixture
def index(tmp_path: Path) -> Path:
    (tmp_path / "sets.jsonl").write_bytes(FORMATS["jsonl"](SETS))
    tagmatch("build", tmp_path / "sets.jsonl", tmp_path / "index", "--key-type", "string")
    return tmp_path / "index"


@pytest.mark.parametrize("name", ["jsonl", "csv", "parquet"])
def test_build_and_export(index, tmp_path, name):
    """From each format, and back."""
    (tmp_path / f"sets.{name}").write_bytes(FORMATS[name](SETS))
    tagmatch("export", index, tmp_path / f"exported.{name}")
    for number, source in enumerate(("sets", "exported")):
        tagmatch("build", tmp_path / f"{source}.{name}", tmp_path / str(number), "--key-type", "string")
        assert (tmp_path / str(number) / "MANIFEST.json").read_bytes() == (index / "MANIFEST.json").read_bytes()


def test_answers(index, tmp_path):
    (answer,) = from_json_lines(tagmatch("match", index, "-", stdin=json.dumps(QUERY).encode()))
    assert sorted(answer["keys"]) == KEYS
    for queries, expected in ((json.dumps(QUERY), [KEYS]), ("", [])):
        tagmatch("match", index, "-", "-o", tmp_path / "answers.parquet", "--unique", stdin=queries.encode())
        answers = pq.read_table(tmp_path / "answers.parquet")["keys"]
        assert answers.type == pa.list_(pa.large_string())
        assert answers.to_pylist() == expected
    explained = from_json_lines(tagmatch("explain", index, "a", "b"))
    assert sorted(key for row in explained for key in row["keys"]) == KEYS
    assert json.loads(tagmatch("info", index, "--json"))["key_type"] == "string"


def test_changes(index):
    tagmatch("add", index, "-", stdin=b'{"tags": ["z"], "key": "new"}')
    tagmatch("remove", index, "-", stdin=b'{"tags": ["a"], "key": "ana"}')
    (answer,) = from_json_lines(tagmatch("match", index, "-", stdin=b'{"tags": ["a", "z"]}'))
    assert sorted(answer["keys"]) == ["", "7", "new"]


@pytest.mark.parametrize(
    ("command", "row", "told"),
    [
        (["add"], {"tags": ["a"], "key": 7}, "line 1: column 'key': row 0 must be a string"),
        (["add"], {"tags": ["a"], "key": None}, "line 1: column 'key': row 0 must be a string"),
        (["add"], {"tags": ["a"]}, "line 1 (row 0) has no column 'key'; it has 'tags'"),
        (["build", "--overwrite"], {"tags": ["a"], "key": "ana"}, "tagmatch build --key-type string"),
    ],
)
def test_wrong_keys(index, command, row, told):
    before = (index / "MANIFEST.json").read_bytes()
    arguments = ["-", index] if command[0] == "build" else [index, "-"]
    assert told in tagmatch(command[0], *arguments, *command[1:], stdin=json.dumps(row).encode(), code=1)
    assert (index / "MANIFEST.json").read_bytes() == before


def test_any_key_but_one_with_a_zero_byte_has_a_form_in_csv(tmp_path):
    keys = ["a\nb", '"', "c\r\nd,\r", " ", "\n"]
    rows = "".join(json.dumps({"tags": ["a"], "key": key}) + "\n" for key in keys).encode()
    tagmatch("build", "-", tmp_path / "index", "--key-type", "string", stdin=rows)
    tagmatch("export", tmp_path / "index", tmp_path / "sets.csv")
    tagmatch("build", tmp_path / "sets.csv", tmp_path / "again", "--key-type", "string")
    with TagMatch.open(tmp_path / "again") as tm:
        assert sorted(tm.match(["a"])) == sorted(keys)
    tagmatch("add", tmp_path / "again", "-", stdin=b'{"tags": ["a"], "key": "e\\u0000f"}')
    message = tagmatch("export", tmp_path / "again", tmp_path / "more.csv", code=1)
    assert "'e\\x00f' has U+0000" in message
    assert not (tmp_path / "more.csv").exists()
