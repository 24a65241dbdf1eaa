"""Columns of files of sets that have no meaning: a misspelt one is an error, others are left aside and named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.command import Record, as_csv, as_json_lines, ended, tagmatch, write

from tagmatch import TagMatch
from tagmatch.files.inputs import read_sets
from tagmatch.files.others import OtherColumns
from tagmatch.model.errors import InputFileError
from tagmatch.subscriptions import COLUMNS

KINDS = ["jsonl", "csv", "parquet"]
MISSPELT = {
    "condition": "where",
    "attributes": "where",
    "location": "area",
    "lat": "area",
    "wher": "where",
    "Where": "where",
    "w here": "where",
    "area_": "area",
    "expiry": "expires",
    "expire": "expires",
}


def file_of(folder: Path, kind: str, rows: list[Record]) -> Path:
    path = folder / f"sets.{kind}"
    if kind == "csv":
        path.write_bytes(as_csv(rows))
        return path
    return write(path, rows)


def with_column(name: str, value: str = "price < 900") -> list[Record]:
    return [{"tags": ["flat"], "key": 1, name: value}, {"tags": ["house"], "key": 2, name: value}]


@pytest.mark.parametrize("kind", KINDS)
def test_a_misspelt_column_is_an_error(tmp_path, kind):
    sets, index = file_of(tmp_path, kind, with_column("wher")), tmp_path / "index"
    message = tagmatch("build", sets, index, code=1)
    for words in (str(sets), "'wher'", "'where'", "--ignore-columns", *(["line 1 (row 0)"] if kind == "jsonl" else [])):
        assert words in message
    assert not index.exists()
    tagmatch("build", sets, index, "--ignore-columns", "wher")
    for command in ("add", "remove"):
        assert "'wher'" in tagmatch(command, index, sets, code=1)
        tagmatch(command, index, sets, "--ignore-columns", "wher")


@pytest.mark.parametrize(("name", "meant"), MISSPELT.items())
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_meant_is_named(tmp_path, kind, name, meant):
    with pytest.raises(InputFileError) as error:
        list(read_sets(str(file_of(tmp_path, kind, with_column(name))), others=OtherColumns(COLUMNS)))
    assert f"column {name!r}" in str(error.value)
    assert f"is {meant!r} meant?" in str(error.value)


@pytest.mark.parametrize("kind", KINDS)
def test_other_columns_are_left_aside_and_named(tmp_path, kind):
    sets, index = file_of(tmp_path, kind, with_column("name")), tmp_path / "index"
    done = ended("build", sets, index)
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        "tagmatch: columns without a meaning were left aside: 'name'; --ignore-columns leaves out this line"
    ]
    for ignored in ("name", "*"):
        tagmatch("build", sets, index, "--overwrite", "--ignore-columns", ignored)
    with TagMatch.open(index) as tm:
        assert tm.match(["flat"]) == [1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_is_not_misspelt_where_the_right_one_is_there(tmp_path, kind):
    rows = [{**row, "keys": "x", "were": "here"} for row in with_column("where")]
    others = OtherColumns(COLUMNS)
    [batch] = read_sets(str(file_of(tmp_path, kind, rows)), others=others, where=True)
    assert batch["where"].to_pylist() == ["price < 900"] * 2
    assert list(others.seen) == ["keys", "were"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [("where", "has a meaning of its own"), ("a,,b", "empty name"), ("a,a", "twice"), ("*,a", "beside '*'")],
)
def test_what_cannot_be_ignored(tmp_path, arguments, words):
    done = ended("build", tmp_path / "sets.jsonl", tmp_path / "index", "--ignore-columns", arguments)
    assert done.returncode == 2
    assert words in " ".join(done.stderr.replace("│", " ").split())


# -- JSON Lines, of which each line has columns of its own -----------------------------------------------------------


def test_one_line_among_many(tmp_path):
    """Where others have such a name inside of another column."""
    rows: list[Record] = [{"tags": [f"t{i}"], "key": i, "more": {"wher": i}} for i in range(5_000)]
    rows[4_321] = {"tags": ["t"], "key": 1, "wher": "a = 1"}
    sets = file_of(tmp_path, "jsonl", rows)
    assert f"{sets}: line 4322 (row 4321) has a column 'wher'" in tagmatch("build", sets, tmp_path / "index", code=1)
    done = ended("build", sets, tmp_path / "index", "--skip-invalid")
    assert done.returncode == 0
    left, skipped = done.stderr.splitlines()
    assert "left aside: 'more';" in left
    assert "skipped 1 invalid row" in skipped
    assert "line 4322" in skipped
    with TagMatch.open(tmp_path / "index") as tm:
        assert len(tm) == 4_999


names = st.one_of(
    st.sampled_from([*COLUMNS, *MISSPELT, "name", "x"]), st.text(st.characters(codec="utf-8"), max_size=5)
)
values = st.recursive(
    st.none() | st.integers(-9, 9) | st.text(st.sampled_from('a:,{}"\\ '), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)


@given(rows=st.lists(st.dictionaries(names.filter(lambda name: name not in COLUMNS), values, max_size=3), max_size=6))
def test_names_are_those_that_json_has(tmp_path_factory, rows):
    """Whatever texts and inner objects look like."""
    folder = tmp_path_factory.mktemp("names")
    whole = [{"tags": ["a"], "key": number, **row} for number, row in enumerate(rows)]
    (folder / "sets.jsonl").write_bytes(as_json_lines(whole))
    others = OtherColumns(COLUMNS)
    wrong = [number for number, row in enumerate(rows) if any(map(is_misspelt, row))]
    found: Any = None
    try:
        read = sum(map(len, read_sets(str(folder / "sets.jsonl"), others=others)))
    except InputFileError as error:
        found = str(error)
    if wrong:
        assert found is not None
        assert f"(row {wrong[0]}) has a column" in found
    else:
        assert read == len(rows)
        plain = {name for row in rows for name in row if json.dumps(name, ensure_ascii=False) == f'"{name}"'}
        assert plain <= set(others.seen) <= {name for row in rows for name in row}


def is_misspelt(name: str) -> bool:
    try:
        OtherColumns(COLUMNS).check([name, "tags", "key"], "")
    except InputFileError:
        return True
    return False
