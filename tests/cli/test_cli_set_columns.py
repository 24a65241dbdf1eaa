"""Columns of files of sets: conditions, and columns without a meaning."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.command import Record, answers, as_json_lines, done, ended, exported, refused, tagmatch, write
from support.index_files import contents_of

from tagmatch import TagMatch
from tagmatch.files.inputs import read_sets
from tagmatch.files.others import OtherColumns
from tagmatch.model.errors import InputFileError
from tagmatch.subscriptions import COLUMNS

pytestmark = pytest.mark.slow

KINDS = pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])


@pytest.fixture
def index(tmp_path):
    return tmp_path / "index"


# -- conditions --------------------------------------------------------------------------------------------------------

CHEAP: list[Record] = [
    {"attr": "price", "op": "<", "value": 10}, {"attr": "city", "op": "in", "values": ["Rome", 7]}
]  # fmt: skip
EARLY: list[Record] = [
    {"attr": "city", "op": "between", "value": "A", "upper": "M"}, {"attr": "new", "op": "=", "value": True}
]  # fmt: skip
CHEAP_TEXT, EARLY_TEXT = 'price < 10 and city in {7, "Rome"}', 'city between "A" and "M" and new = true'
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
}


@KINDS
@pytest.mark.parametrize("rows", SETS.values(), ids=SETS)
def test_conditions(tmp_path, index, rows, kind):
    """In each form they make the same index, with or without tags; and they are removed in the same way."""
    plain: list[Record] = [{"tags": row.get("tags") or [], "key": row["key"], "where": text} for row, text in rows]
    path = write(tmp_path / f"sets.{kind}", [row for row, _ in rows])
    done("build", write(tmp_path / "plain.jsonl", plain), tmp_path / "plain")
    done("build", path, index)
    assert contents_of(index) == contents_of(tmp_path / "plain")
    done("export", index, tmp_path / f"again.{kind}")
    done("build", tmp_path / f"again.{kind}", tmp_path / "again")
    assert contents_of(tmp_path / "again") == contents_of(index)
    done("build", path, tmp_path / "expiring", "--expires", "30d")
    found = exported(tmp_path / "expiring")
    assert [(row["key"], row["tags"]) for row in found] == sorted((row["key"], row["tags"]) for row in plain)
    assert all("expires" in row for row in found)
    done("remove", index, path)
    assert done("export", index) == ""


def test_mistakes_name_line_and_row(index, tmp_path):
    equals = '[{"attr": "x", "op": "exists"}, {"attr": "x", "op": "=="}]'
    for more, message in (
        ('"tags": [], "where": "price <"', "column 'where': row 1: column 8: expected a value"),
        ('"tags": [], "constraints": 7', "column 'constraints': row 1: constraints must be a list"),
        (f'"constraints": {equals}', "column 'constraints': row 1, constraint 1: there is no operator '=='"),
        ('"tags": ["\\u0000=x"]', "column 'tags': row 1 holds a tag that begins as constraints"),
    ):
        (tmp_path / "sets.jsonl").write_text(f'{{"tags": ["a"], "key": 1}}\n{{"key": 1, {more}}}\n')
        assert f"line 2: {message}" in refused("build", tmp_path / "sets.jsonl", index)


def test_areas(tmp_path, index):
    """On the sphere or on the plane; they are shown as conditions, and removed as areas or as these."""
    rows: list[Record] = [
        {"tags": ["a"], "key": 1, "area": {"lon": 9.19, "lat": 45.46, "metres": 5000}},
        {"key": 2, "area": {"metres": 500}},
        {"key": 3, "where": "within box(170, -10, -170, 10)"},
    ]
    wheres = ["within circle(9.19, 45.46, 5000)", "within near(500)", "within box(170, -10, -170, 10)"]
    shown: list[Record] = [
        {"tags": row.get("tags", []), "key": row["key"], "where": where}
        for row, where in zip(rows, wheres, strict=True)
    ]
    done("build", write(tmp_path / "sets.jsonl", rows[:2]), index)
    done("add", index, write(tmp_path / "more.jsonl", rows[2:]))
    assert exported(index) == shown
    done("remove", index, write(tmp_path / "fewer.jsonl", [rows[0], *shown[1:]]))
    assert exported(index) == []
    line = refused("build", tmp_path / "more.jsonl", tmp_path / "plane", "--plane")
    assert "line 1: column 'where': row 0: west must be at most east" in line
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


# -- columns without a meaning -----------------------------------------------------------------------------------------

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
        assert done(command, *paths, "--ignore-columns", "wher") is not None
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
    [batch] = read_sets(str(write(tmp_path / f"sets.{kind}", rows)), others=others, where=True)
    assert batch["where"].to_pylist() == ["price < 900"] * 2
    assert list(others.seen) == ["keys", "were"]


def test_what_cannot_be_ignored(tmp_path, index):
    for arguments, words in (("where", "has a meaning of its own"), ("a,,b", "empty name"), ("*,a", "beside '*'")):
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
