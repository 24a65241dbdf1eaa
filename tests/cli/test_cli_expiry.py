"""Times of keys in files and on the command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.command import done, from_json_lines, tagmatch, write
from support.index_files import contents_of

from tagmatch import TagMatch

pytestmark = pytest.mark.slow

LATER = datetime(2199, 12, 31, 12, 0, 0, 123_456, tzinfo=UTC)
ROWS: list[dict[str, Any]] = [
    {"tags": ["a"], "key": 1, "expires": LATER.isoformat()},
    {"tags": ["a", "b"], "key": 2, "expires": None},
    {"tags": ["b"], "key": 3},
    {"tags": [], "key": 4, "expires": "2020-01-01T00:00:00+01:00"},
    {"tags": [], "key": 5, "expires": "2200-01-01T00:30:00+01:00"},
]
STORED = {1: LATER, 2: None, 3: None, 5: datetime(2199, 12, 31, 23, 30, tzinfo=UTC)}


def times(index: Path) -> dict[int, datetime | None]:
    with TagMatch.open(index) as tm:
        tm.check()
        return {row["key"]: row.get("expires") for row in tm.to_arrow().to_pylist()}


@pytest.fixture
def index(tmp_path: Path, layout: str) -> Path:
    assert done("build", write(tmp_path / "sets.jsonl", ROWS), tmp_path / "index", "--layout", layout) == ""
    return tmp_path / "index"


def test_times_in_a_file(index: Path) -> None:
    assert times(index) == STORED


@pytest.mark.parametrize("name", ["jsonl", "jsonl.gz", "csv", "csv.zst", "parquet"])
def test_what_export_writes_makes_the_same_index(index: Path, tmp_path: Path, layout: str, name: str) -> None:
    assert done("export", index, tmp_path / f"again.{name}") == ""
    assert done("build", tmp_path / f"again.{name}", tmp_path / "again", "--layout", layout) == ""
    assert contents_of(tmp_path / "again") == contents_of(index)


def test_export_leaves_out_what_has_expired_since(tmp_path: Path) -> None:
    with TagMatch(tmp_path / "index") as tm:
        tm.add_sets([["a"], ["a"], ["b"]], [1, 2, 3], expires=[timedelta(seconds=2), None, timedelta(seconds=2)])
        tm.consolidate()
        while len(tm) > 1:
            pass
    assert from_json_lines(tagmatch("export", tmp_path / "index")) == [{"tags": ["a"], "key": 2}]


@pytest.mark.parametrize("expires", ["2190-01-01T01:00:00+01:00", "36500d"])
def test_a_time_for_rows_that_have_none(index: Path, tmp_path: Path, expires: str) -> None:
    rows = [{"tags": ["new"], "key": 10}, {"tags": ["new"], "key": 11, "expires": LATER.isoformat()}]
    before = datetime.now(UTC)
    assert done("add", index, write(tmp_path / "new.jsonl", rows), "--expires", expires).startswith(f"{index}: 5 sets")
    found = times(index)
    at = found.pop(10)
    if expires == "36500d":
        assert timedelta(0) <= at - before - timedelta(days=36_500) < timedelta(minutes=5)
    else:
        assert at == datetime(2190, 1, 1, tzinfo=UTC)
    assert found == {**STORED, 11: LATER}
    # A file without a time in any row
    only = write(tmp_path / "only.jsonl", [{"tags": ["only"], "key": 12}])
    done("add", index, only, "--expires", expires)
    assert times(index)[12] - at < timedelta(minutes=5)
    done("build", only, tmp_path / "only", "--expires", "2190-01-01T00:00:00Z")
    assert times(tmp_path / "only") == {12: datetime(2190, 1, 1, tzinfo=UTC)}


def test_remove_asks_for_no_times(index: Path, tmp_path: Path) -> None:
    rows = [{"tags": ["a"], "key": 1, "expires": "whenever"}]
    tagmatch("remove", index, write(tmp_path / "rows.jsonl", rows))
    assert 1 not in times(index)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        (
            "x.jsonl",
            '{"tags": ["a"], "key": 1}\n{"tags": ["b"], "key": 2, "expires": "soon"}\n',
            "x.jsonl: line 2: column 'expires': row 1 must be a time with its zone, "
            "as \"2027-01-31T12:00:00Z\", not 'soon'",
        ),
        (
            "x.jsonl",
            '{"tags": ["b"], "key": 2, "expires": "2030-01-01T00:00:00"}\n',
            "row 0 must be a time with its zone",
        ),
        ("x.jsonl", '{"tags": ["b"], "key": 2, "expires": 1900000000}\n', "row 0 must be a time, as"),
        (
            "x.csv",
            "tags,key,expires\na,1,\nb,2,2030-01-01\n",
            "x.csv: line 3: column 'expires': row 1 must be a time with",
        ),
    ],
)
def test_times_that_cannot_be_used(index: Path, tmp_path: Path, name: str, text: str, told: str) -> None:
    (tmp_path / name).write_text(text)
    before = contents_of(index)
    assert told in tagmatch("add", index, tmp_path / name, code=1)
    assert contents_of(index) == before


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.int64()])
def test_columns_of_parquet_that_cannot_be_used(index: Path, tmp_path: Path, kind: pa.DataType) -> None:
    table = pa.table({"tags": [["a"]], "key": [1], "expires": pa.array([5], kind)})
    pq.write_table(table, tmp_path / "x.parquet")
    assert "column 'expires'" in tagmatch("add", index, tmp_path / "x.parquet", code=1)


@pytest.mark.parametrize("expires", ["30x", "", "2030-01-01", "2030-01-01T00:00:00", "99999999999d", "-5d"])
def test_options_that_cannot_be_used(index: Path, tmp_path: Path, expires: str) -> None:
    before = contents_of(index)
    assert "--expires" in tagmatch("add", index, tmp_path / "sets.jsonl", f"--expires={expires}", code=2)
    assert contents_of(index) == before
