"""Columns of files of queries that are an attribute each: all that have no meaning of their own, or those chosen."""

from __future__ import annotations

import csv
import io
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.command import done, ended, from_json_lines, tagmatch, write
from support.expressions import text_of
from support.trees import And, Not, Test, evaluate

TREES = [
    Test("price", "<", (10,)),
    Test("price", "=", (2**53 + 1,)),
    Test("price", "!=", (5,)),
    Not(Test("price", "exists", ())),
    And((Test("a city", "=", ("Rome",)), Test("new", "=", (True,)))),
    Test("a city", "prefix", ("0",)),
    Test("a city", "exists", ()),
    Not(Test("new", "=", (True,))),
    Test("id", "exists", ()),
]
#: With several values, with none, and texts as numbers are written
ROWS: list[dict[str, Any]] = [
    {"price": 9.5, "a city": ["Rome", "Oslo"], "new": True},
    {"price": None, "a city": ["0071"], "new": False},
    {"price": 5, "a city": None, "new": None},
    {"price": -2.5e-3, "a city": ["7", 'é,"x"'], "new": True},
    {"price": math.inf, "a city": ["true"], "new": True},
]
NAMES = ["price", "a city", "new"]

pytestmark = pytest.mark.slow


@pytest.fixture
def index(tmp_path: Path, rng: Any) -> Path:
    sets = [{"tags": ["a"], "key": key, "where": text_of(tree, rng)} for key, tree in enumerate(TREES)]
    done("build", write(tmp_path / "sets.jsonl", sets), tmp_path / "index")
    return tmp_path / "index"


def expected(rows: list[dict[str, Any]], names: list[str]) -> list[list[int]]:
    asked = [{name: row[name] for name in names} for row in rows]
    return [[key for key, tree in enumerate(TREES) if evaluate(tree, {"a"}, row)] for row in asked]


def answers(text: str) -> list[list[int]]:
    return [sorted(row["keys"]) for row in from_json_lines(text)]


def as_csv(rows: list[dict[str, Any]], **others: Any) -> bytes:
    """Cells as a program writes them that knows no types; texts that look like other values are in JSON's quotes."""
    lines = io.StringIO()
    written = csv.writer(lines)
    written.writerow(["id", "price", "tags", "new", "a city", *others])
    for number, row in enumerate(rows):
        price = "" if row["price"] is None else "1e999" if row["price"] == math.inf else row["price"]
        cities = row["a city"] or []
        city = json.dumps(cities[0]) if len(cities) == 1 else json.dumps(cities) if cities else ""
        written.writerow([f"n{number}", price, "a", "" if row["new"] is None else row["new"], city, *others.values()])
    return lines.getvalue().encode()


def parquet(path: Path, rows: list[dict[str, Any]], **others: pa.Array) -> Path:
    columns = {
        "id": pa.array([f"n{number}" for number in range(len(rows))]),
        "price": pa.array([row["price"] for row in rows], pa.float64()),
        "tags": pa.array([["a"]] * len(rows)),
        "new": pa.array([row["new"] for row in rows]),
        "a city": pa.array([row["a city"] for row in rows], pa.list_(pa.string())),
    }
    pq.write_table(pa.table(columns | others), path)
    return path


@pytest.mark.parametrize(
    ("option", "names"), [("*", NAMES), ("price,a city,new", NAMES), ("new", ["new"]), ("a city", ["a city"])]
)
def test_columns(index: Path, tmp_path: Path, option: str, names: list[str]) -> None:
    """Of Parquet and of CSV, also of streams and folders."""
    wanted = expected(ROWS, names)
    assert any(wanted)
    queries = parquet(tmp_path / "queries.parquet", ROWS)
    found = tagmatch("match", index, queries, "--attributes", option)
    assert answers(found) == wanted
    assert [row["id"] for row in from_json_lines(found)] == [f"n{number}" for number in range(len(ROWS))]
    lines = as_csv(ROWS)
    assert tagmatch("match", index, "-", "--format", "csv", "--attributes", option, stdin=lines) == found
    (tmp_path / "folder").mkdir()
    for part in range(2):
        (tmp_path / "folder" / f"{part}.csv").write_bytes(lines)
    twice = tagmatch("match", index, tmp_path / "folder", "--attributes", option)
    assert answers(twice) == wanted * 2


def test_many_rows_of_a_column(index: Path) -> None:
    """Over several batches, with integers that are no floats, texts and numbers by turns."""
    rows = [ROWS[number % len(ROWS)] | {"price": [2**53, 2**53 + 1, 4, "x"][number % 4]} for number in range(70_000)]
    found = tagmatch("match", index, "-", "--format", "csv", "--attributes", "*", stdin=as_csv(rows))
    assert answers(found) == expected(rows, NAMES)


def json_lines(path: Path, rows: list[dict[str, Any]], **others: Any) -> Path:
    lines = [{"id": f"n{number}", "tags": ["a"], **row, **others} for number, row in enumerate(rows)]
    return write(path, lines)


def of_kind(folder: Path, kind: str, rows: list[dict[str, Any]], **others: Any) -> Path:
    if kind == "jsonl":
        return json_lines(folder / "q.jsonl", rows, **others)
    if kind == "parquet":
        return parquet(
            folder / "q.parquet", rows, **{name: pa.array([each] * len(rows)) for name, each in others.items()}
        )
    path = folder / "q.csv"
    path.write_bytes(as_csv(rows, **{name: json.dumps(each) for name, each in others.items()}))
    return path


KINDS = ["parquet", "csv", "jsonl"]
FINITE = ROWS[:-1]


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_option_all_are(index: Path, tmp_path: Path, kind: str) -> None:
    """As in Python; `--ignore-columns` leaves some aside, and `--attributes` chooses."""
    path = of_kind(tmp_path, kind, FINITE)
    assert answers(tagmatch("match", index, path)) == expected(FINITE, NAMES)
    assert answers(tagmatch("match", index, path, "--ignore-columns", "price,new")) == expected(FINITE, ["a city"])
    assert answers(tagmatch("match", index, path, "--ignore-columns", "*")) == expected(
        [dict.fromkeys(NAMES)] * len(FINITE), NAMES
    )
    assert answers(tagmatch("match", index, path, "--attributes", "new")) == expected(FINITE, ["new"])


@pytest.mark.parametrize("kind", KINDS)
def test_columns_and_a_column_of_attributes(index: Path, tmp_path: Path, kind: str) -> None:
    """Both count, and none may be in both."""
    others = {"attributes": {"id": 1}}
    rows = [{**row, "id": 1} for row in FINITE]
    assert answers(tagmatch("match", index, of_kind(tmp_path, kind, FINITE, **others))) == expected(
        rows, [*NAMES, "id"]
    )
    path = of_kind(tmp_path, kind, FINITE, attributes={"price": 1})
    assert_fails(index, path, "*", "attribute 'price' is a column, and in the column 'attributes'; leave out one")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "meant"),
    [("Tags", "tags"), ("attribute", "attributes"), ("Location", "location"), ("with_in", "within"), ("ids", "id")],
)
def test_misspelt_columns(index: Path, tmp_path: Path, kind: str, name: str, meant: str) -> None:
    rows = [{"tags": ["a"], "price": 5, name: 1}, {"tags": ["a"], "price": 5}]
    if kind == "csv":
        lines = "".join(f"{tags},{price},{other}\n" for tags, price, other in (("a", 5, 1), ("a", 5, "")))
        path = tmp_path / "q.csv"
        path.write_text(f"tags,price,{name}\n{lines}")
    else:
        path = write(tmp_path / f"q.{kind}", rows)
    if meant == "tags":
        path.write_bytes(path.read_bytes() if kind == "parquet" else path.read_bytes().replace(b"tags", b"note"))
        if kind == "parquet":
            pq.write_table(pq.read_table(path).drop_columns(["tags"]), path)
    failed = ended("match", index, path)
    assert failed.returncode == 1
    (line,) = failed.stderr.splitlines()
    for words in (str(path), f"column {name!r}", f"is {meant!r} meant?", "'attributes'", f"--attributes {name!r}"):
        assert words in line
    if meant != "tags":
        chosen = tagmatch("match", index, path, "--attributes", f"price,{name}")
        assert answers(chosen) == answers(tagmatch("match", index, path, "--ignore-columns", name))
        skipped = ended("match", index, path, "--skip-invalid")
        assert (skipped.returncode == 0 and len(answers(skipped.stdout)) == 1) == (kind == "jsonl")


def test_rows_of_json_lines_have_columns_of_their_own(index: Path) -> None:
    """Also values of several types, over several blocks, in a stream, and names written with escapes."""
    rows: list[dict[str, Any]] = [
        {"price": [10, "x", True][number % 3]} if number % 4 else {"a city": ["Rome", "x"]} for number in range(9_000)
    ]
    lines = b"".join(json.dumps({"tags": ["a"], **row}).encode() + b"\n" for row in rows)
    lines = lines.replace(b'"price"', b'"pr\\u0069ce"', 5)
    wanted = [[key for key, tree in enumerate(TREES) if evaluate(tree, {"a"}, row)] for row in rows]
    assert answers(tagmatch("match", index, "-", stdin=lines)) == wanted
    assert any(wanted)
    for line, message in (
        (b'{"tags": ["a"], "price": 1, "price": 2}', "it has 'price' more than once"),
        (b'{"tags": ["a"], "price": {"eur": 1}}', 'row 0: attribute "price": a value must be a bool, an int'),
        (b'{"price": 1, "id": [1]}', "column 'id': row 0 must be an integer or a string"),
    ):
        failed = ended("match", index, "-", stdin=line)
        assert failed.returncode == 1
        assert message in failed.stderr
    assert answers(tagmatch("match", index, "-", stdin=b'{"price": 5}')) == [[]]


def test_a_file_without_a_column_that_was_chosen(index: Path, tmp_path: Path) -> None:
    for kind in ("parquet", "csv"):
        path = of_kind(tmp_path, kind, ROWS)
        assert_fails(index, path, "price,cost", f"{path} has no column 'cost'; its columns are 'id', 'price'")


def assert_fails(index: Path, path: Path, option: str, message: str) -> None:
    failed = ended("match", index, path, "--attributes", option)
    assert failed.returncode == 1
    (line,) = failed.stderr.splitlines()
    assert message in line


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("day", pa.array([0] * 5, pa.date32()), "column 'day' is of date32[day], but attributes are bools"),
        ("cost", pa.array([Decimal(1)] * 5), "column 'cost' is of decimal128(1, 0), but attributes are"),
        ("raw", pa.array([[b"\0=price\0b1"]] * 5), "column 'raw' is of list<"),
        ("pair", pa.array([{"x": 1}] * 5), "column 'pair' is of struct<"),
        (
            "big",
            pa.array([0, 1, 2**63, 0, 0], pa.uint64()),
            "column 'big': row 2 has 9223372036854775808, which must be",
        ),
        ("", pa.array([0] * 5), "column '': the name of an attribute must not be empty"),
        ("a\0b", pa.array([0] * 5), "the name of an attribute must not contain U+0000"),
    ],
)
def test_columns_of_parquet_that_will_not_do(
    index: Path, tmp_path: Path, name: str, values: pa.Array, message: str
) -> None:
    path = parquet(tmp_path / "q.parquet", ROWS, **{name: values})
    assert_fails(index, path, "*", message)
    assert answers(tagmatch("match", index, path, "--attributes", "price")) == expected(ROWS, ["price"])


def test_rows_that_will_not_do(index: Path, tmp_path: Path) -> None:
    """They are named, or left out."""
    path = parquet(tmp_path / "q.parquet", ROWS, big=pa.array([0, 1, 2**63, 0, 0], pa.uint64()))
    left = [row for number, row in enumerate(ROWS) if number != 2]
    skipped = ended("match", index, path, "--attributes", "price,big", "--skip-invalid")
    assert answers(skipped.stdout) == expected(left, ["price"])
    assert "q.parquet: column 'big': row 2 has" in skipped.stderr
    lines = as_csv(ROWS).splitlines(keepends=True)
    for cell, message in (
        (b"9223372036854775808", "column 'price': row 2: attribute \"price\": an integer must be from -2**63"),
        (
            b"[[1]]",
            "column 'price': row 2: attribute \"price\": a value must be a bool, an int, a float or a str, not list",
        ),
        (b"[1", "(row 2) is not a row of CSV: column 'price': '[1' is no JSON"),
    ):
        (tmp_path / "q.csv").write_bytes(b"".join([*lines[:3], b"n2," + cell + b",a,,\n", *lines[4:]]))
        assert_fails(index, tmp_path / "q.csv", "price", "q.csv: line 4")
        assert_fails(index, tmp_path / "q.csv", "price", message)
        skipped = ended("match", index, tmp_path / "q.csv", "--attributes", "price", "--skip-invalid")
        assert answers(skipped.stdout) == expected(left, ["price"])


def test_two_columns_of_a_name(index: Path, tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_bytes(b"tags,price,price\na,1,2\n")
    assert_fails(index, tmp_path / "q.csv", "price", "q.csv has 2 columns 'price'; there must be one")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("price,price", "names 'price' twice"),
        ("price,", "has an empty name"),
        ("", "has an empty name"),
        ("tags", "the column 'tags' has a meaning of its own"),
        ("price,id", "the column 'id' has a meaning of its own"),
        ("attributes", "the column 'attributes' has a meaning of its own"),
        ("*,price", "has names beside '*'"),
    ],
)
def test_options_that_will_not_do(index: Path, tmp_path: Path, option: str, message: str) -> None:
    failed = ended("match", index, parquet(tmp_path / "q.parquet", ROWS), "--attributes", option)
    assert failed.returncode == 2
    assert message in failed.stderr
