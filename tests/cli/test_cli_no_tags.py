"""Files without tags: of sets that have conditions, and of queries that have attributes."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.command import done, ended, from_json_lines, tagmatch, write
from support.index_files import contents_of

from tagmatch.files.constraints import constraint_lists

FORMATS = ["jsonl", "csv", "parquet"]
CHEAP = [{"attr": "price", "op": "<", "value": 10}]
IN_ROME = [{"attr": "city", "op": "=", "value": "Rome"}]
ATTRIBUTES = [{"price": 9.5, "city": "Rome"}, {"price": 9.5, "city": None}, {"price": 11.0, "city": "Rome"}]
ANSWERS = [[1, 2], [1], [2]]

pytestmark = pytest.mark.slow


def file_of(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Rows as files have them; what a row does not have is null in Parquet, and empty in CSV."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            lines = csv.writer(file)
            lines.writerow(names)
            for row in rows:
                cells = [row.get(name) for name in names]
                lines.writerow([json.dumps(cell) if isinstance(cell, list | dict) else cell for cell in cells])
    elif path.suffix == ".parquet":
        columns = {name: [row.get(name) for row in rows] for name in names}
        kinds = {"tags": pa.list_(pa.string()), "key": pa.uint64(), "where": pa.string()}
        pq.write_table(
            pa.table({
                name: constraint_lists(values) if name == "constraints" else pa.array(values, kinds.get(name))
                for name, values in columns.items()
            }),
            path,
        )  # fmt: skip
    else:
        write(path, rows)
    return path


SETS = {
    "where": [{"key": 1, "where": "price < 10"}, {"key": 2, "where": 'city = "Rome"'}],
    "constraints": [{"key": 1, "constraints": CHEAP}, {"key": 2, "constraints": IN_ROME}],
    "either": [{"key": 1, "where": "price < 10"}, {"key": 2, "constraints": IN_ROME}],
    "some with tags": [
        {"tags": ["a"], "key": 3},
        {"key": 1, "where": "price < 10"},
        {"key": 2, "constraints": IN_ROME},
    ],
    "null tags": [{"tags": None, "key": 1, "where": "price < 10"}, {"tags": [], "key": 2, "constraints": IN_ROME}],
}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("rows", SETS.values(), ids=SETS)
def test_sets(tmp_path: Path, rows: list[dict[str, Any]], form: str) -> None:
    """They make the index that those with empty lists make, and are removed in the same way."""
    plain = write(tmp_path / "plain.jsonl", [row | {"tags": row.get("tags") or []} for row in rows])
    path = file_of(tmp_path / f"sets.{form}", rows)
    done("build", plain, tmp_path / "plain")
    done("build", path, tmp_path / "index")
    assert contents_of(tmp_path / "index") == contents_of(tmp_path / "plain")
    done("build", write(tmp_path / "none.jsonl", []), tmp_path / "added", "--allow-empty")
    done("add", tmp_path / "added", path, "--expires", "30d")
    exported = from_json_lines(tagmatch("export", tmp_path / "added"))
    assert sorted((row["key"], row["tags"]) for row in exported) == sorted(
        (row["key"], row.get("tags") or []) for row in rows
    )
    done("remove", tmp_path / "index", path)
    assert tagmatch("export", tmp_path / "index") == ""


@pytest.fixture
def index(tmp_path: Path) -> Path:
    done("build", write(tmp_path / "sets.jsonl", SETS["where"]), tmp_path / "index")
    return tmp_path / "index"


def answers(text: str) -> list[list[int]]:
    return [sorted(row["keys"]) for row in from_json_lines(text)]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("others", [{}, {"tags": None}], ids=["missing", "null"])
def test_queries(index: Path, tmp_path: Path, form: str, others: dict[str, Any]) -> None:
    rows: list[dict[str, Any]] = [{**others, "attributes": attributes} for attributes in ATTRIBUTES]
    if others or form == "jsonl":
        rows.append({"tags": ["b"]})
    queries = file_of(tmp_path / f"queries.{form}", rows)
    assert answers(tagmatch("match", index, queries)) == [*ANSWERS, []][: len(rows)]


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("others", [{}, {"tags": None}], ids=["missing", "null"])
@pytest.mark.parametrize("option", ["*", "price,city"])
def test_queries_with_columns_of_attributes(
    index: Path, tmp_path: Path, form: str, others: dict[str, Any], option: str
) -> None:
    """Also a query that has none of them."""
    rows: list[dict[str, Any]] = [others | row for row in [*ATTRIBUTES, {"price": None, "city": None}]]
    rows.append({"price": 1.0, "city": "Oslo"} | ({"tags": ["b"]} if others else {}))
    queries = file_of(tmp_path / f"queries.{form}", rows)
    assert answers(tagmatch("match", index, queries, "--attributes", option)) == [*ANSWERS, [], [1]]


@pytest.mark.parametrize(
    ("form", "rows", "message"),
    [
        ("jsonl", [{"key": 1}], "line 2 (row 1) has no column 'tags', 'where', 'constraints' or 'area'; it has 'key'"),
        (
            "jsonl",
            [{"key": 1, "where": None}],
            "line 2: column 'tags': row 1 is null: give [] for no tags, or a value of 'where', 'constraints' or 'area'",
        ),
        ("csv", [{"key": 1}], "line 3: column 'tags': row 1 is null: give [] for no tags, or a value of 'where',"),
        ("parquet", [{"key": 1}], "column 'tags': row 1 is null: give [] for no tags, or a value of 'where',"),
        ("parquet", [{"tags": ["a"], "key": 1}, {"key": 2}], "column 'tags': row 2 is null: give [] for no tags"),
    ],
)
def test_sets_that_have_neither(tmp_path: Path, form: str, rows: list[dict[str, Any]], message: str) -> None:
    path = file_of(tmp_path / f"sets.{form}", [{"key": 7, "where": "price < 10"}, *rows])
    failed = ended("build", path, tmp_path / "index")
    assert failed.returncode == 1
    assert message in failed.stderr
    done("build", path, tmp_path / "index", "--skip-invalid")
    assert len(from_json_lines(tagmatch("export", tmp_path / "index"))) == len(rows)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_files_that_have_neither_column(index: Path, tmp_path: Path, form: str) -> None:
    path = file_of(tmp_path / f"sets.{form}", [{"key": 1}])
    assert "has no column 'tags', 'where', 'constraints' or 'area'; it" in tagmatch("add", index, path, code=1)
    path = file_of(tmp_path / f"queries.{form}", [{"id": 1}])
    assert "has no column 'tags' or 'attributes'; it" in tagmatch("match", index, path, code=1)
    assert "has no column 'tags' or 'attributes'; it" in tagmatch("match", index, path, "--attributes", "*", code=1)


@pytest.mark.parametrize("form", FORMATS)
def test_queries_that_have_neither(index: Path, tmp_path: Path, form: str) -> None:
    path = file_of(tmp_path / f"queries.{form}", [{"attributes": {"price": 1}}, {"attributes": None}])
    message = tagmatch("match", index, path, code=1)
    assert "column 'tags': row 1 is null: give [] for no tags, or a value of 'attributes'" in message


@pytest.mark.parametrize("form", FORMATS)
def test_rows_that_ask_for_nothing(tmp_path: Path, form: str) -> None:
    """They are errors, unless it is said that they are meant to match every message."""
    sets, index = file_of(tmp_path / f"sets.{form}", [{"key": 1, "where": "x = 1"}, {"key": 2}]), tmp_path / "index"
    failed = ended("build", sets, index)
    assert failed.returncode == 1
    assert "row 1" in failed.stderr
    done("build", sets, index, "--match-all")
    queries = write(tmp_path / "q.jsonl", [{"x": 1}, {"x": 2}])
    assert [sorted(row["keys"]) for row in from_json_lines(tagmatch("match", index, queries))] == [[1, 2], [2]]
    done("remove", index, sets, "--match-all")
    assert [row["keys"] for row in from_json_lines(tagmatch("match", index, queries))] == [[], []]
