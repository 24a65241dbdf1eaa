"""Keys that are strings, and times after which keys expire, in files and on the command line."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.command import Record, answers, done, exported, from_json_lines, refused, tagmatch, write
from support.index_files import contents_of

from tagmatch import TagMatch

pytestmark = pytest.mark.slow

KINDS = pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])


@pytest.fixture
def index(tmp_path):
    return tmp_path / "index"


# -- keys that are strings ---------------------------------------------------------------------------------------------

NAMED: list[Record] = [
    {"tags": ["a"], "key": "ana"},
    {"tags": ["a", "b"], "key": ' "b\\o", \u00e9|[x] '},
    {"tags": [], "key": ""},
    {"tags": ["a"], "key": "7"},
]


@pytest.fixture
def named(tmp_path):
    done("build", write(tmp_path / "sets.jsonl", NAMED), tmp_path / "named", "--key-type", "string")
    return tmp_path / "named"


@KINDS
def test_string_keys_in_files(named, tmp_path, kind):
    """From each format, and back."""
    write(tmp_path / f"sets.{kind}", NAMED)
    done("export", named, tmp_path / f"exported.{kind}")
    for number, source in enumerate(("sets", "exported")):
        done("build", tmp_path / f"{source}.{kind}", tmp_path / str(number), "--key-type", "string")
        assert contents_of(tmp_path / str(number)) == contents_of(named)


def test_string_keys_in_answers(named, tmp_path):
    query, keys, file = [{"tags": ["a", "b"]}], sorted(row["key"] for row in NAMED), tmp_path / "answers.parquet"
    for rows, expected in ((query, [keys]), ([], [])):
        done("match", named, write(tmp_path / "q.jsonl", rows), "-o", file, "--unique")
        found = pq.read_table(file)["keys"]
        assert found.type == pa.list_(pa.large_string())
        assert found.to_pylist() == expected
    explained = from_json_lines(done("explain", named, "a", "b"))
    assert sorted(key for row in explained for key in row["keys"]) == keys
    assert json.loads(done("info", named, "--json"))["key_type"] == "string"
    tagmatch("add", named, "-", stdin=b'{"tags": ["z"], "key": "new"}')
    tagmatch("remove", named, "-", stdin=b'{"tags": ["a"], "key": "ana"}')
    assert answers(tagmatch("match", named, "-", stdin=b'{"tags": ["a", "z"]}')) == [["", "7", "new"]]


@pytest.mark.parametrize(
    ("command", "row", "told"),
    [
        (["add"], {"tags": ["a"], "key": 7}, "line 1: column 'key': row 0 must be a string"),
        (["add"], {"tags": ["a"], "key": None}, "line 1: column 'key': row 0 must be a string"),
        (["add"], {"tags": ["a"]}, "line 1 (row 0) has no column 'key'; it has 'tags'"),
        (["build", "--overwrite"], {"tags": ["a"], "key": "ana"}, "tagmatch build --key-type string"),
    ],
)
def test_wrong_keys(named, command, row, told):
    before = contents_of(named)
    arguments = ["-", named] if command[0] == "build" else [named, "-"]
    assert told in tagmatch(command[0], *arguments, *command[1:], stdin=json.dumps(row).encode(), code=1)
    assert contents_of(named) == before


def test_any_key_but_one_with_a_zero_byte_has_a_form_in_csv(tmp_path, index):
    keys, again = ["a\nb", '"', "c\r\nd,\r", " ", "\n"], tmp_path / "again"
    sets = write(tmp_path / "sets.jsonl", [{"tags": ["a"], "key": key} for key in keys])
    done("build", sets, index, "--key-type", "string")
    done("export", index, tmp_path / "sets.csv")
    done("build", tmp_path / "sets.csv", again, "--key-type", "string")
    with TagMatch.open(again) as tm:
        assert sorted(tm.match(["a"])) == sorted(keys)
    done("add", again, write(sets, [{"tags": ["a"], "key": "e\0f"}]))
    assert "'e\\x00f' has U+0000" in refused("export", again, tmp_path / "more.csv")
    assert not (tmp_path / "more.csv").exists()


# -- times -------------------------------------------------------------------------------------------------------------

LATER = datetime(2199, 12, 31, 12, 0, 0, 123_456, tzinfo=UTC)
TIMED: list[Record] = [
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
def timed(tmp_path):
    done("build", write(tmp_path / "timed.jsonl", TIMED), tmp_path / "timed")
    return tmp_path / "timed"


def test_times_in_files(timed, tmp_path):
    assert times(timed) == STORED
    for name in ("jsonl", "csv.zst", "parquet"):
        done("export", timed, tmp_path / f"again.{name}")
        done("build", tmp_path / f"again.{name}", tmp_path / "again", "--overwrite")
        assert times(tmp_path / "again") == STORED
    done("remove", timed, write(tmp_path / "rows.jsonl", [{"tags": ["a"], "key": 1, "expires": "whenever"}]))
    assert 1 not in times(timed)  # which key it is does not depend on its time


def test_export_leaves_out_what_has_expired_since(index):
    with TagMatch(index) as tm:
        tm.add_sets([["a"], ["a"], ["b"]], [1, 2, 3], expires=[timedelta(seconds=2), None, timedelta(seconds=2)])
        tm.consolidate()
        while len(tm) > 1:
            pass
    assert exported(index) == [{"tags": ["a"], "key": 2}]


@pytest.mark.parametrize("expires", ["2190-01-01T01:00:00+01:00", "36500d"])
def test_a_time_for_rows_that_have_none(timed, tmp_path, expires):
    rows = [{"tags": ["new"], "key": 10}, {"tags": ["new"], "key": 11, "expires": LATER.isoformat()}]
    before = datetime.now(UTC)
    assert done("add", timed, write(tmp_path / "new.jsonl", rows), "--expires", expires).startswith(f"{timed}: 5 sets")
    found = times(timed)
    at = found.pop(10)
    if expires == "36500d":
        assert timedelta(0) <= at - before - timedelta(days=36_500) < timedelta(hours=1)
    else:
        assert at == datetime(2190, 1, 1, tzinfo=UTC)
    assert found == {**STORED, 11: LATER}
    # A file without a time in any row
    only = write(tmp_path / "only.jsonl", [{"tags": ["only"], "key": 12}])
    done("add", timed, only, "--expires", expires)
    assert times(timed)[12] - at < timedelta(hours=1)


ZONE = "row 0 must be a time with its zone"


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        (
            "x.jsonl", '{"tags": ["a"], "key": 1}\n{"tags": ["b"], "key": 2, "expires": "soon"}\n',
            "x.jsonl: line 2: column 'expires': row 1 must be a time with its zone, as \"2027-01-31T12:00:00Z\", not",
        ),
        ("x.jsonl", '{"tags": ["b"], "key": 2, "expires": "2030-01-01T00:00:00"}\n', ZONE),
        ("x.jsonl", '{"tags": ["b"], "key": 2, "expires": 1900000000}\n', "row 0 must be a time, as"),
        ("x.csv", "tags,key,expires\na,1,\nb,2,2030-01-01\n", "x.csv: line 3: column 'expires': row 1 must be a time"),
    ],
)  # fmt: skip
def test_times_that_cannot_be_used(timed, tmp_path, name, text, told):
    (tmp_path / name).write_text(text)
    before = contents_of(timed)
    assert told in refused("add", timed, tmp_path / name)
    for kind in (pa.timestamp("us"), pa.int64()):
        table = pa.table({"tags": [["a"]], "key": [1], "expires": pa.array([5], kind)})
        pq.write_table(table, tmp_path / "x.parquet")
        assert "column 'expires'" in refused("add", timed, tmp_path / "x.parquet")
    assert contents_of(timed) == before


def test_options_of_times_that_cannot_be_used(timed, tmp_path):
    before = contents_of(timed)
    for expires in ("30x", "", "2030-01-01", "2030-01-01T00:00:00", "99999999999d", "-5d"):
        assert "--expires" in tagmatch("add", timed, tmp_path / "timed.jsonl", f"--expires={expires}", code=2)
    assert contents_of(timed) == before
