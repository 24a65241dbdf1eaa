"""`tagmatch match --attributes`: columns of files that are an attribute each."""

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
from support.expressions import And, Not, Test, evaluate, text_of

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


def test_without_the_option_columns_are_none(index: Path, tmp_path: Path) -> None:
    wanted = expected([dict.fromkeys(NAMES)] * len(ROWS), NAMES)
    assert answers(tagmatch("match", index, parquet(tmp_path / "queries.parquet", ROWS))) == wanted


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_a_file_with_an_attribute_that_is_none(index: Path, tmp_path: Path, form: str) -> None:
    path = parquet(tmp_path / "q.parquet", ROWS, attributes=pa.array([{"x": 1}] * len(ROWS)))
    if form == "csv":
        path = tmp_path / "q.csv"
        path.write_bytes(as_csv(ROWS, attributes="{}"))
    for option, message in (("*", "has a column 'attributes', so that"), ("price", "has a column 'attributes', so")):
        assert_fails(index, path, option, f"{path} {message}")
    path = parquet(tmp_path / "q.parquet", ROWS) if form == "parquet" else tmp_path / "q.csv"
    if form == "csv":
        path.write_bytes(as_csv(ROWS))
    assert_fails(
        index,
        path,
        "price,cost",
        f"{path} has no column 'cost'; its columns are 'id', 'price'",
    )


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


def test_json_lines_have_no_columns(index: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "q.jsonl", [{"tags": ["a"], "price": 1}])
    assert_fails(index, path, "price", "q.jsonl is read as JSON Lines, which have no columns for --attributes")


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
