"""Columns of files of sets: keys, conditions, times, and columns without a meaning."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.agreement import index_of
from support.command import (
    Record,
    answers,
    as_json_lines,
    done,
    ended,
    exported,
    from_json_lines,
    refused,
    tagmatch,
    tagmatch_alone,
    write,
)
from support.index_files import contents_of
from support.waiting import wait_until

from tagmatch import TagMatch
from tagmatch.files.columns import OtherColumns
from tagmatch.files.rows import read_sets
from tagmatch.model.errors import InputFileError
from tagmatch.model.input.subscriptions import COLUMNS

pytestmark = pytest.mark.slow

KINDS = pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])


@pytest.fixture
def index(tmp_path):
    return tmp_path / "index"


CHEAP: list[Record] = [
    {"attr": "price", "op": "<", "value": 10}, {"attr": "city", "op": "in", "values": ["Rome", 7]}
]  # fmt: skip
EARLY: list[Record] = [
    {"attr": "city", "op": "between", "value": "A", "upper": "M"}, {"attr": "new", "op": "=", "value": True}
]  # fmt: skip
CHEAP_TEXT, EARLY_TEXT = 'price < 10 and city in {7, "Rome"}', 'city between "A" and "M" and new = true'
NAMED: list[Record] = [
    {"tags": ["a"], "key": "ana"}, {"tags": ["a", "b"], "key": ' "b\\o", \u00e9|[x] '}, {"tags": [], "key": ""},
    {"tags": ["a"], "key": "7"},
]  # fmt: skip
#: Rows, and their conditions as texts
SETS: dict[str, list[tuple[Record, str | None]]] = {
    "constraints": [({"key": 1, "constraints": CHEAP}, CHEAP_TEXT), ({"key": 2, "constraints": EARLY}, EARLY_TEXT)],
    "some with tags": [
        ({"tags": ["a"], "key": 3}, None),
        ({"tags": ["a"], "key": 4, "where": "x = 1", "constraints": CHEAP}, f"x = 1 and {CHEAP_TEXT}"),
        ({"key": 1, "where": 'c = "R"'}, 'c = "R"'),
        ({"tags": None, "key": 5, "where": "y < 1"}, "y < 1"),
        ({"tags": [], "key": 2, "constraints": EARLY}, EARLY_TEXT),
    ],
    "string keys": [(row, None) for row in NAMED],
}


@KINDS
@pytest.mark.parametrize("rows", SETS.values(), ids=SETS)
def test_conditions(tmp_path, index, rows, kind):
    """In each form they make the same index, with or without tags; and they are removed in the same way."""
    key_type = ["--key-type", "string"] if rows[0][0] in NAMED else []
    plain: list[Record] = [{"tags": row.get("tags") or [], "key": row["key"], "where": text} for row, text in rows]
    path = write(tmp_path / f"sets.{kind}", [row for row, _ in rows])
    done("build", write(tmp_path / "plain.jsonl", plain), tmp_path / "plain", *key_type)
    done("build", path, index, *key_type)
    assert contents_of(index) == contents_of(tmp_path / "plain")
    done("export", index, tmp_path / f"again.{kind}")
    done("build", tmp_path / f"again.{kind}", tmp_path / "again", *key_type)
    assert contents_of(tmp_path / "again") == contents_of(index)
    done("build", path, tmp_path / "expiring", "--expires", "30d", *key_type)
    found = exported(tmp_path / "expiring")
    assert [(row["key"], sorted(row["tags"])) for row in found] == sorted((row["key"], row["tags"]) for row in plain)
    assert all("expires" in row for row in found)
    done("remove", index, path)
    assert done("export", index) == ""


def test_mistakes_name_line_and_row(index, tmp_path):
    equals = '[{"attr": "x", "op": "exists"}, {"attr": "x", "op": "=="}]'
    for more, message in (
        ('"tags": [], "where": "price <"', "column 'where': row 1: column 8: expected a value"),
        ('"tags": [], "constraints": 7', "column 'constraints': row 1: constraints must be a list"),
        (f'"constraints": {equals}', "column 'constraints': row 1, constraint 1: there is no operator '=='"),
        (
            '"constraints": [{"attr": "p", "op": "=", "value": {}}]',
            "column 'constraints': row 1: a value must be a bool",
        ),
        (
            '"constraints": [{"attr": "p", "op": "=", "value": {"int": 1, "text": "x"}}]',
            "column 'constraints': row 1: a value must be a bool",
        ),
        ('"tags": ["\\u0000=x"]', "column 'tags': row 1 holds a tag that begins as constraints"),
    ):
        (tmp_path / "sets.jsonl").write_text(f'{{"tags": ["a"], "key": 1}}\n{{"key": 1, {more}}}\n')
        assert f"line 2: {message}" in refused("build", tmp_path / "sets.jsonl", index)


@KINDS
def test_conditions_on_declared_attributes(tmp_path, index, kind):
    """What a declaration refuses is one row, with its place, as any other mistake."""
    rows: list[Record] = [
        {"key": 1, "where": "price < 1", "constraints": None}, {"key": 2, "where": 'town = "x"', "constraints": None},
        {"key": 3, "where": None, "constraints": [{"attr": "day", "op": "<", "value": "soon"}]},
        {"key": 4, "where": "day < 3", "constraints": CHEAP[:1]}, {"key": 5, "where": None, "constraints": CHEAP[:1]},
    ]  # fmt: skip
    with TagMatch(index, attributes={"price": "int64", "day": "date"}, strict=True) as tm:
        tm.consolidate()
    sets = write(tmp_path / f"sets.{kind}", rows)
    told = refused("add", index, sets)
    assert str(sets) in told
    assert "column 'where': row 1: column 1: attribute \"town\" is not declared; there is day, price" in told
    assert "skipped 3 invalid rows" in ended("add", index, sets, "--skip-invalid").stderr
    assert [row["key"] for row in exported(index)] == [1, 5]


def test_data_of_parquet_that_cannot_be_stored(tmp_path, index):
    """It is one row, with its place."""
    columns = {
        "email=string": pa.array([b"x", b"x\xe9"]).view(pa.string()),
        "since=date": pa.array([0, -719_528], pa.date32()),
        "price=decimal(10, 2)": pa.array([1.25, 1.239]),
    }
    for column, values in columns.items():
        name, sets = column.partition("=")[0], tmp_path / "sets.parquet"
        pq.write_table(pa.table({"key": [1, 2], "tags": [["a"], ["b"]], name: values}), sets)
        told = refused("build", sets, index, "--data", column, "--overwrite")
        assert re.search(f"sets.parquet: column '{name}': .*rows? 1", told)
        skipped = ended("build", sets, index, "--data", column, "--skip-invalid", "--overwrite")
        assert "skipped 1 invalid row" in skipped.stderr
        assert [row["key"] for row in exported(index)] == [1]


@KINDS
def test_data_that_is_left_aside(tmp_path, index, kind):
    sets = write(tmp_path / f"sets.{kind}", [{"key": 1, "tags": ["a"], "email": "ana@example.org", "size": 3}])
    options = "--data", "email=string", "--data", "size=int64"
    done("build", sets, index, *options, "--ignore-columns", "*")
    assert json.loads(done("get", index, 1))["data"] == {"email": "ana@example.org", "size": 3}
    done("put", index, sets, "--ignore-columns", "email")
    assert json.loads(done("get", index, 1))["data"] == {"size": 3}


def test_keys_are_put_from_files_whose_columns_have_other_types(tmp_path, index):
    folder = tmp_path / "sets"
    folder.mkdir()
    wide, decimal = pa.large_list(pa.large_string()), pa.decimal128(5, 1)
    for number, (key, tags, size, price) in enumerate([
        (pa.int32(), pa.list_(pa.string()), pa.int8(), pa.float64()), (pa.uint64(), wide, pa.int64(), decimal)
    ]):  # fmt: skip
        columns = {"key": pa.array([number], key), "tags": pa.array([["a"]], tags), "size": pa.array([number], size)}
        pq.write_table(pa.table({**columns, "price": pa.array([1.5]).cast(price)}), folder / f"{number}.parquet")
    done("build", folder, index, "--data", "size=int64", "--data", "price=decimal(9, 2)")
    for key in (0, 1):
        assert json.loads(done("get", index, key))["data"] == {"size": key, "price": "1.50"}
    pq.write_table(pa.table({"key": [1], "tags": [["a"]], "area": ["circle(9, 45, 5)"]}), folder / "0.parquet")
    pq.write_table(pa.table({"key": [1], "area": [{"metres": 5}]}), folder / "1.parquet")
    assert "a column of one file has another type in another file" in refused("put", index, folder)


def test_times_of_nanoseconds(tmp_path, index):
    """The command, which does without pandas, writes them to files, but has no record of them."""
    rows: list[Record] = [{"key": 1, "tags": ["a"], "at": "2026-11-28T10:00:00.123456789Z"}]
    done("build", write(tmp_path / "sets.jsonl", rows), index, "--data", "at=timestamp[ns, UTC]")
    assert "a time of data has nanoseconds" in tagmatch_alone("get", index, 1, code=1)
    assert "10:00:00.123456789" in done("export", index)


def test_times_of_spark_are_as_they_are(tmp_path, index):
    """Its older type has 96 bits; as nanoseconds, 64 bits have too few years."""
    times = [datetime(2300, 1, 1), datetime(1500, 1, 1)]
    table = pa.table({"key": [0, 1], "tags": [[], []], "at": pa.array(times, pa.timestamp("us"))})
    pq.write_table(table, tmp_path / "sets.parquet", use_deprecated_int96_timestamps=True)
    done("build", tmp_path / "sets.parquet", index, "--data", "at=timestamp[us]")
    assert [json.loads(done("get", index, key))["data"]["at"][:10] for key in (0, 1)] == ["2300-01-01", "1500-01-01"]


def test_areas(tmp_path, index):
    """On the sphere or on the plane; they are shown as conditions, and removed as areas or as these."""
    rows: list[Record] = [
        {"tags": ["a"], "key": 1, "area": {"lon": 9.19, "lat": 45.46, "metres": 5000}},
        {"tags": [], "key": 2, "area": {"metres": 500}},
    ]
    wheres = ["within circle(9.19, 45.46, 5000)", "within near(500)"]
    shown = [{"tags": row["tags"], "key": row["key"], "where": where} for row, where in zip(rows, wheres, strict=True)]
    done("build", write(tmp_path / "sets.jsonl", rows), index)
    assert exported(index) == shown
    done("remove", index, write(tmp_path / "fewer.jsonl", [rows[0], shown[1]]))
    assert exported(index) == []
    far = write(tmp_path / "far.jsonl", [{"key": 4, "area": {"kind": "circle", "lon": 1000, "lat": -1e6, "metres": 3}}])
    line = refused("add", index, far)
    assert "line 1: column 'area': row 0: lon must be from -180 to 180, not 1000.0" in line
    done("add", index, far, "--plane")
    assert exported(index) == [{"tags": [], "key": 4, "where": "within circle(1000, -1000000, 3)"}]
    done("remove", index, far, "--plane")
    assert exported(index) == []


NOTHING = "give [] for no tags, or a value of 'where', 'constraints' or 'area'"


@pytest.mark.parametrize(
    ("kind", "row", "message"),
    [
        ("jsonl", {"key": 1}, "line 2 (row 1) has no column 'tags', 'where', 'constraints' or 'area'; it has 'key'"),
        ("jsonl", {"key": 1, "where": None}, f"line 2: column 'tags': row 1 is null: {NOTHING}"),
        ("csv", {"key": 1}, f"line 3: column 'tags': row 1 is null: {NOTHING}"),
        ("parquet", {"key": 1}, f"column 'tags': row 1 is null: {NOTHING}"),
    ],
)
def test_sets_that_ask_for_nothing(tmp_path, index, kind, row, message):
    """They are errors, unless they are left out, or it is said that they are meant to match every message."""
    path = write(tmp_path / f"sets.{kind}", [{"key": 7, "where": "x = 1"}, row])
    assert message in refused("build", path, index)
    assert ended("build", path, index, "--skip-invalid").returncode == 0
    assert len(exported(index)) == 1
    done("build", path, index, "--match-all", "--overwrite")
    queries = write(tmp_path / "q.jsonl", [{"x": 1}, {"x": 2}])
    assert answers(done("match", index, queries)) == [[1, 7], [1]]
    done("remove", index, path, "--match-all")
    assert answers(done("match", index, queries)) == [[], []]
    if kind != "jsonl":
        line = refused("add", index, write(path, [row]))
        assert "has no column 'tags', 'where', 'constraints' or 'area'; it" in line


MISSPELT = {
    "wher": "where", "Where": "where", "w here": "where", "condition": "where", "attributes": "where",
    "area_": "area", "location": "area", "lat": "area", "expiry": "expires", "expire": "expires",
}  # fmt: skip


def with_column(name: str, value: str = "price < 900") -> list[Record]:
    return [{"tags": ["flat"], "key": 1, name: value}, {"tags": ["house"], "key": 2, name: value}]


@KINDS
def test_other_columns(tmp_path, index, kind):
    """A misspelt one is an error; others are left aside and named."""
    sets = write(tmp_path / f"sets.{kind}", with_column("wher"))
    message = refused("build", sets, index)
    for words in (str(sets), "'wher'", "'where'", "--ignore-columns", "line 1 (row 0)" if kind == "jsonl" else ""):
        assert words in message
    assert not index.exists()
    for command, *paths in (["build", sets, index], ["add", index, sets], ["remove", index, sets]):
        assert "'wher'" in refused(command, *paths)
        done(command, *paths, "--ignore-columns", "wher")
    sets = write(tmp_path / f"sets.{kind}", with_column("name"))
    built = ended("build", sets, index, "--overwrite")
    left = "tagmatch: columns without a meaning were left aside: 'name'; --ignore-columns leaves out this line\n"
    assert (built.returncode, built.stderr) == (0, left)
    for ignored in ("name", "*"):
        tagmatch("build", sets, index, "--overwrite", "--ignore-columns", ignored)
    with TagMatch.open(index) as tm:
        assert tm.match(["flat"]) == [1]


@KINDS
def test_what_is_meant_is_named(tmp_path, kind):
    for name, meant in MISSPELT.items():
        with pytest.raises(InputFileError) as error:
            list(read_sets(str(write(tmp_path / f"sets.{kind}", with_column(name))), others=OtherColumns(COLUMNS)))
        assert f"column {name!r}" in str(error.value)
        assert f"is {meant!r} meant?" in str(error.value)
    # Where the right one is there, none is misspelt
    rows = [{**row, "keys": "x", "were": "here"} for row in with_column("where")]
    others = OtherColumns(COLUMNS)
    [batch] = read_sets(str(write(tmp_path / f"sets.{kind}", rows)), others=others)
    assert batch["where"].to_pylist() == ["price < 900"] * 2
    assert list(others.seen) == ["keys", "were"]


def test_what_cannot_be_ignored(tmp_path, index):
    for arguments, words in (("where", "has its own meaning"), ("a,,b", "empty name"), ("*,a", "besides '*'")):
        line = tagmatch("build", tmp_path / "sets.jsonl", index, "--ignore-columns", arguments, code=2)
        assert words in " ".join(line.replace("│", " ").split())


def test_one_line_among_many(tmp_path, index):
    """Where others have such a name inside of another column."""
    rows: list[Record] = [{"tags": [f"t{i}"], "key": i, "more": {"wher": i}} for i in range(5_000)]
    rows[4_321] = {"tags": ["t"], "key": 1, "wher": "a = 1"}
    sets = write(tmp_path / "sets.jsonl", rows)
    assert f"{sets}: line 4322 (row 4321) has a column 'wher'" in refused("build", sets, index)
    left, skipped = ended("build", sets, index, "--skip-invalid").stderr.splitlines()
    assert "left aside: 'more';" in left
    assert re.search("skipped 1 invalid row.*line 4322", skipped)
    with TagMatch.open(index) as tm:
        assert len(tm) == 4_999


NAMES = st.sampled_from([*COLUMNS, *MISSPELT, "name", "x"]) | st.text(st.characters(codec="utf-8"), max_size=5)
VALUES = st.recursive(
    st.none() | st.integers(-9, 9) | st.text(st.sampled_from('a:,{}"\\ '), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


@given(rows=st.lists(st.dictionaries(NAMES.filter(lambda name: name not in COLUMNS), VALUES, max_size=3), max_size=6))
def test_names_are_those_that_json_has(tmp_path_factory, rows):
    """Whatever texts and inner objects look like."""
    path = tmp_path_factory.mktemp("names") / "sets.jsonl"
    path.write_bytes(as_json_lines([{"tags": ["a"], "key": number, **row} for number, row in enumerate(rows)]))
    others = OtherColumns(COLUMNS)
    if wrong := [number for number, row in enumerate(rows) if is_misspelt(row)]:
        with pytest.raises(InputFileError, match=rf"\(row {wrong[0]}\) has a column"):
            list(read_sets(str(path), others=others))
    else:
        assert sum(map(len, read_sets(str(path), others=others))) == len(rows)
        plain = {name for row in rows for name in row if json.dumps(name, ensure_ascii=False) == f'"{name}"'}
        assert plain <= set(others.seen) <= {name for row in rows for name in row}


def is_misspelt(row: Record) -> bool:
    try:
        OtherColumns(COLUMNS).check([*row, "tags", "key"], "")
    except InputFileError:
        return True
    return False


@pytest.fixture
def named(tmp_path):
    done("build", write(tmp_path / "sets.jsonl", NAMED), tmp_path / "named", "--key-type", "string")
    return tmp_path / "named"


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


def test_a_key_of_many_digits(tmp_path, index):
    done("build", write(tmp_path / "sets.jsonl", [{"tags": ["a"], "key": 1}]), index)
    assert "is not an integer from 0 to 2**64 - 1" in tagmatch("get", index, "9" * 5000, code=2)
    assert "key must be from 0 to 2**64 - 1" in refused("get", index, "9" * 50)


def test_wrong_keys(named):
    before = contents_of(named)
    for arguments, row, told in (
        (["add", named, "-"], b'{"tags": ["a"], "key": 7}', "line 1: column 'key': row 0 must be a string"),
        (["add", named, "-"], b'{"tags": ["a"], "key": null}', "line 1: column 'key': row 0 must be a string"),
        (["add", named, "-"], b'{"tags": ["a"]}', "line 1 (row 0) has no column 'key'; it has 'tags'"),
        (["build", "-", named, "--overwrite"], b'{"tags": [], "key": "a"}', "tagmatch build --key-type string"),
    ):
        assert told in tagmatch(*arguments, stdin=row, code=1)
        assert contents_of(named) == before


def test_any_key_but_one_with_a_zero_byte_has_a_form_in_csv(tmp_path, index):
    keys, again = ["a\nb", '"', "c\r\nd,\r", " ", "\n"], tmp_path / "again"
    index_of([["a"]] * len(keys), keys, index, key_type="string").close()
    done("export", index, tmp_path / "sets.csv")
    done("build", tmp_path / "sets.csv", again, "--key-type", "string")
    with TagMatch.open(again) as tm:
        assert sorted(tm.match(["a"])) == sorted(keys)
    tagmatch("add", again, "-", stdin=b'{"tags": [], "key": "e\\u0000f"}')
    assert "'e\\x00f' has U+0000" in refused("export", again, tmp_path / "more.csv")
    assert not (tmp_path / "more.csv").exists()


LATER = datetime(2199, 12, 31, 12, 0, 0, 123_456, tzinfo=UTC)
TIMED: list[Record] = [
    {"tags": ["a"], "key": 1, "expires": LATER.isoformat()}, {"tags": ["a", "b"], "key": 2, "expires": None},
    {"tags": ["b"], "key": 3}, {"tags": [], "key": 4, "expires": "2020-01-01T00:00:00+01:00"},
    {"tags": [], "key": 5, "expires": "2200-01-01T00:30:00+01:00"},
]  # fmt: skip
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
    soon = timedelta(seconds=2)
    with index_of([["a"], ["a"], ["b"]], [1, 2, 3], index, expires=[soon, None, soon]) as tm:
        wait_until(lambda: len(tm) == 1)
    assert exported(index) == [{"tags": ["a"], "key": 2}]


@pytest.mark.parametrize("expires", ["2190-01-01T01:00:00+01:00", "36500d"])
def test_a_time_for_rows_that_have_none(timed, tmp_path, expires):
    """In a file with some, and in one without any."""
    rows = [{"tags": ["new"], "key": 10}, {"tags": ["new"], "key": 11, "expires": LATER.isoformat()}]
    only = [{"tags": ["only"], "key": 12}]
    at = datetime.now(UTC) + timedelta(days=36_500) if expires == "36500d" else datetime(2190, 1, 1, tzinfo=UTC)
    for name, some in (("new", rows), ("only", only)):
        done("add", timed, write(tmp_path / f"{name}.jsonl", some), "--expires", expires)
    found = times(timed)
    for key in (10, 12):
        assert timedelta(0) <= found.pop(key) - at < timedelta(hours=1)
    assert found == {**STORED, 11: LATER}


@pytest.mark.parametrize("kind", [pa.null(), pa.timestamp("ns", "UTC"), pa.timestamp("s", "Europe/Rome")])
def test_a_time_for_rows_of_parquet_that_have_none(tmp_path, index, kind):
    given = [None, None if kind == pa.null() else 4_000_000_000 * (10**9 if kind.unit == "ns" else 1)]
    table = pa.table({"tags": [["a"], ["b"]], "key": [1, 2], "expires": pa.array(given, kind)})
    pq.write_table(table, tmp_path / "sets.parquet")
    done("build", tmp_path / "sets.parquet", index, "--expires", "2300-01-01T00:00:00Z")
    none = datetime(2300, 1, 1, tzinfo=UTC)
    assert times(index) == {1: none, 2: none if given[1] is None else datetime.fromtimestamp(4_000_000_000, UTC)}


def test_times_that_cannot_be_used(timed, tmp_path):
    before, zone = contents_of(timed), "row 0 must be a time with its zone"
    first, second = '{"tags": ["a"], "key": 1}\n', '{"tags": ["b"], "key": 2, "expires": %s}\n'
    for name, text, told in (
        ("x.jsonl", first + second % '"soon"', "x.jsonl: line 2: column 'expires': row 1 must be a time with its"),
        ("x.jsonl", second % '"2030-01-01T00:00:00"', zone),
        ("x.jsonl", second % "1900000000", "row 0 must be a time, as"),
        ("x.csv", "tags,key,expires\na,1,\nb,2,2030-01-01\n", "x.csv: line 3: column 'expires': row 1 must be a time"),
    ):
        (tmp_path / name).write_text(text)
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
