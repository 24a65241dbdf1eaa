"""Conditions and attributes in files: what the commands make of them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.command import done, ended, from_json_lines, tagmatch, write
from support.index_files import contents_of

from tagmatch.files.constraints import constraint_lists

SETS = [
    {"tags": ["fr"], "key": 1, "where": "price < 10"},
    {"tags": ["fr"], "key": 2},
    {"tags": [], "key": 3, "where": 'city in {"Rome"} or tags {"de"}'},
]
QUERIES = [
    {"tags": ["fr"], "attributes": {"price": 9.5, "city": "Rome"}},
    {"tags": ["fr", "de"], "attributes": {"price": 10, "city": None}},
    {"tags": ["fr"]},
    {"tags": [], "attributes": {"city": "Rome"}},
]
ANSWERS = [[1, 2, 3], [2, 3], [2], [3]]

pytestmark = pytest.mark.slow


@pytest.fixture
def index(tmp_path: Path) -> Path:
    done("build", write(tmp_path / "sets.jsonl", SETS), tmp_path / "index")
    return tmp_path / "index"


def answers(text: str) -> list[list[int]]:
    return [sorted(set(row["keys"])) for row in from_json_lines(text)]


def test_json_lines(index: Path) -> None:
    lines = "".join(json.dumps(query) + "\n\n" for query in QUERIES).encode()
    assert answers(tagmatch("match", index, "-", stdin=lines)) == ANSWERS
    mixed = b"""{"tags": ["fr"], "attributes": {"price": "9"}}
{"tags": ["fr"], "attribut\\u0065s": {"price": [9, true]}}
"""
    assert answers(tagmatch("match", index, "-", stdin=mixed)) == [[2], [1, 2]]


def test_csv(index: Path) -> None:
    lines = io.StringIO()
    rows = csv.writer(lines)
    rows.writerow(["tags", "attributes"])
    for query in QUERIES:
        rows.writerow([json.dumps(query["tags"]), json.dumps(query["attributes"]) if "attributes" in query else ""])
    assert answers(tagmatch("match", index, "-", "--format", "csv", stdin=lines.getvalue().encode())) == ANSWERS


def test_parquet(index: Path, tmp_path: Path) -> None:
    attributes = pa.array([query.get("attributes") for query in QUERIES])
    tags = pa.array([query["tags"] for query in QUERIES], pa.list_(pa.string()))
    pq.write_table(pa.table({"tags": tags, "attributes": attributes}), tmp_path / "queries.parquet")
    assert answers(tagmatch("match", index, tmp_path / "queries.parquet")) == ANSWERS
    maps = pa.array([[("price", 9.5)], [("price", 10.0), ("new", None)], None, []], pa.map_(pa.string(), pa.float64()))
    pq.write_table(pa.table({"tags": tags, "attributes": maps}), tmp_path / "queries.parquet")
    assert answers(tagmatch("match", index, tmp_path / "queries.parquet")) == [[1, 2], [2, 3], [2], []]
    pq.write_table(pa.table({"tags": tags, "attributes": tags}), tmp_path / "queries.parquet")
    assert "must be a struct" in ended("match", index, tmp_path / "queries.parquet").stderr


@pytest.mark.parametrize("name", ["jsonl", "csv", "parquet"])
def test_what_export_writes_makes_the_same_index(index: Path, tmp_path: Path, name: str) -> None:
    done("export", index, tmp_path / f"again.{name}")
    done("build", tmp_path / f"again.{name}", tmp_path / "again")
    assert contents_of(tmp_path / "again") == contents_of(index)
    tagmatch("remove", index, tmp_path / f"again.{name}")
    assert tagmatch("export", index) == ""


STRUCTURED = [
    [{"attr": "price", "op": "<", "value": 10}, {"attr": "city", "op": "in", "values": ["Rome", 7]}],
    None,
    [{"attr": "city", "op": "between", "value": "A", "upper": "M"}, {"attr": "new", "op": "=", "value": True}],
]
AS_TEXT = ['price < 10 and city in {7, "Rome"}', None, 'city between "A" and "M" and new = true']


@pytest.mark.parametrize("name", ["jsonl", "csv", "parquet"])
def test_constraints_are_conditions(tmp_path: Path, name: str) -> None:
    """In each format, with expressions beside; and they are removed in the same way."""
    rows = [{"tags": ["a"], "key": key, "constraints": row} for key, row in enumerate(STRUCTURED)]
    rows.append({"tags": [], "key": 7, "where": "x = 1", "constraints": STRUCTURED[0]})
    where = [*AS_TEXT, f"x = 1 and {AS_TEXT[0]}"]
    done("build", write(tmp_path / "text.jsonl", [
        {"tags": row["tags"], "key": row["key"], "where": text} for row, text in zip(rows, where, strict=True)
    ]), tmp_path / "text")  # fmt: skip
    path = tmp_path / f"sets.{name}"
    if name == "jsonl":
        write(path, rows)
    elif name == "csv":
        with path.open("w", newline="") as file:
            lines = csv.writer(file)
            lines.writerow(["tags", "key", "where", "constraints"])
            for row in rows:
                given = row["constraints"]
                cell = "" if given is None else json.dumps(given)
                lines.writerow([json.dumps(row["tags"]), row["key"], row.get("where", ""), cell])
    else:
        columns = pa.table({name: [row.get(name) for row in rows] for name in ("key", "where")})
        tags = pa.array([row["tags"] for row in rows], pa.list_(pa.string()))
        columns = columns.append_column("tags", tags)
        lists = constraint_lists([row["constraints"] for row in rows])
        pq.write_table(columns.append_column("constraints", lists), path)
    done("build", path, tmp_path / "index")
    assert contents_of(tmp_path / "index") == contents_of(tmp_path / "text")
    done("build", path, tmp_path / "expiring", "--expires", "30d")
    exported = from_json_lines(tagmatch("export", tmp_path / "expiring"))
    assert len(exported) == len(rows)
    assert all("expires" in row for row in exported)
    tagmatch("remove", tmp_path / "index", path)
    assert tagmatch("export", tmp_path / "index") == ""


def test_explain(index: Path) -> None:
    found = from_json_lines(tagmatch("explain", index, "fr", "--attributes", '{"price": 3}'))
    assert sorted(found, key=lambda row: row["keys"]) == [
        {"tags": ["fr"], "keys": [1], "where": "price < 10"},
        {"tags": ["fr"], "keys": [2]},
    ]
    assert "is no object of JSON" in ended("explain", index, "fr", "--attributes", "[]").stderr


@pytest.mark.parametrize(
    ("command", "line", "message"),
    [
        ("match", b'{"tags": [], "attributes": {"price": {}}}', "column 'attributes': row 1: attribute \"price\""),
        ("match", b'{"tags": [], "attributes": 7}', "column 'attributes': row 1: attributes must be a mapping"),
        ("add", b'{"tags": [], "key": 1, "where": "price <"}', "column 'where': row 1: column 8: expected a value"),
        ("add", b'{"tags": [], "key": 1, "constraints": 7}', "column 'constraints': row 1: constraints must be a list"),
        (
            "add",
            b'{"tags": [], "key": 1, "constraints": [{"attr": "x", "op": "=", "value": {}}]}',
            "column 'constraints': row 1: a value must be a bool, an int, a float or a str, not dict",
        ),
        (
            "add",
            b'{"tags": [], "key": 1, "constraints": [{"attr": "x", "op": "exists"}, {"attr": "x", "op": "=="}]}',
            "column 'constraints': row 1, constraint 1: there is no operator '=='",
        ),
        ("add", b'{"tags": ["\\u0000=x"], "key": 1}', "column 'tags': row 1 holds a tag that begins as constraints"),
    ],
)
def test_mistakes_name_line_and_row(index: Path, command: str, line: bytes, message: str) -> None:
    failed = ended(command, index, "-", stdin=b'{"tags": [], "key": 1}\n' + line + b"\n")
    assert failed.returncode == 1
    assert f"line 2: {message}" in failed.stderr


def test_areas(tmp_path: Path) -> None:
    """On the sphere or on the plane; they are shown as conditions, and removed as areas or as these."""
    rows = [
        {"tags": ["a"], "key": 1, "area": {"lon": 9.19, "lat": 45.46, "metres": 5000}},
        {"key": 2, "area": {"metres": 500}},
        {"key": 3, "where": "within box(170, -10, -170, 10)"},
    ]
    shown = [
        {"tags": ["a"], "key": 1, "where": "within circle(9.19, 45.46, 5000)"},
        {"tags": [], "key": 2, "where": "within near(500)"},
        {"tags": [], "key": 3, "where": "within box(170, -10, -170, 10)"},
    ]
    index = tmp_path / "index"
    done("build", write(tmp_path / "sets.jsonl", rows[:2]), index)
    done("add", index, write(tmp_path / "more.jsonl", rows[2:]))
    assert sorted(from_json_lines(tagmatch("export", index)), key=lambda row: row["key"]) == shown
    done("remove", index, write(tmp_path / "fewer.jsonl", [rows[0], *shown[1:]]))
    assert tagmatch("export", index) == ""
    refused = ended("build", tmp_path / "more.jsonl", tmp_path / "plane", "--plane").stderr
    assert "line 1: column 'where': row 0: west must be at most east" in refused
    far = {"key": 4, "area": {"kind": "circle", "lon": 1000, "lat": -1e6, "metres": 3}}
    refused = ended("add", index, write(tmp_path / "far.jsonl", [far])).stderr
    assert "line 1: column 'area': row 0: lon must be from -180 to 180, not 1000.0" in refused
    done("add", index, tmp_path / "far.jsonl", "--plane")
    assert from_json_lines(tagmatch("export", index)) == [
        {"tags": [], "key": 4, "where": "within circle(1000, -1000000, 3)"}
    ]
    done("remove", index, tmp_path / "far.jsonl", "--plane")
    assert tagmatch("export", index) == ""
