"""Where queries are, on the command line: columns `location` and `within`, `--location`, and `--plane`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.command import as_json_lines, ended, from_json_lines, tagmatch

from tagmatch import Near, TagMatch

BOX = {"west": 9, "south": 45, "east": 10, "north": 46}
#: Queries, and the keys that they find
ROWS: list[tuple[dict[str, Any], list[int]]] = [
    ({"tags": ["a"], "location": [9.19, 45.46]}, [1, 3]),
    ({"tags": ["a"], "location": {"lon": 9.19, "lat": 45.46}, "within": BOX}, [3]),
    ({"tags": ["a"], "location": None, "within": {"lon": 9.2, "lat": 45.46, "metres": 10}}, [3]),
    ({"tags": ["a"]}, []),
    ({"attributes": {"x": 1}, "location": [0, 0]}, [2]),
]


@pytest.fixture
def index(tmp_path: Path) -> Path:
    with TagMatch(tmp_path / "index", device="cpu", threads=1) as tm:
        tm.add_set(["a"], 1, where="within circle(9.19, 45.46, 1000)")
        tm.add_set([], 2, where="x = 1 and within circle(0, 0, 1)")
        tm.add_set(["a"], 3, area=Near(2000))
        tm.move([1, 3], [20, 9.2], [0, 45.46])
        tm.consolidate()
    return tmp_path / "index"


def answers(text: str) -> list[list[int]]:
    return [sorted(row["keys"]) for row in from_json_lines(text)]


def test_json_lines(index: Path) -> None:
    lines = as_json_lines([row for row, _ in ROWS])
    assert answers(tagmatch("match", index, "-", stdin=lines)) == [keys for _, keys in ROWS]


def test_csv(index: Path) -> None:
    cells = [
        ["[]" if "tags" not in row else "a", *(json.dumps(row[name]) if row.get(name) else "" for name in NAMES)]
        for row, _ in ROWS
    ]
    lines = ["tags,attributes,location,within"]
    lines += [",".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in cells]
    text = "\n".join(lines).encode() + b"\n"
    assert answers(tagmatch("match", index, "-", "--format", "csv", stdin=text)) == [keys for _, keys in ROWS]


NAMES = ["attributes", "location", "within"]


def test_parquet(index: Path, tmp_path: Path) -> None:
    area = pa.struct(dict.fromkeys((*BOX, "lon", "lat", "metres"), pa.float64()))
    for kind in (pa.struct({"lon": pa.float64(), "lat": pa.float64()}), pa.list_(pa.float64(), 2)):
        places = [row.get("location") for row, _ in ROWS]
        pairs = [list(place.values()) if isinstance(place, dict) else place for place in places]
        if pa.types.is_struct(kind):
            pairs = [pair and dict(zip(("lon", "lat"), pair, strict=True)) for pair in pairs]
        table = pa.table(
            {
                "tags": pa.array([row.get("tags", []) for row, _ in ROWS], pa.list_(pa.string())),
                "attributes": pa.array([row.get("attributes") for row, _ in ROWS], pa.struct({"x": pa.int64()})),
                "location": pa.array(pairs, kind),
                "within": pa.array([row.get("within") for row, _ in ROWS], area),
            }
        )
        pq.write_table(table, tmp_path / "queries.parquet")
        assert answers(tagmatch("match", index, tmp_path / "queries.parquet")) == [keys for _, keys in ROWS]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"location": [1]}, "column 'location': row 1: a location must be [lon, lat] or an object with lon and lat"),
        ({"location": {"x": 1, "y": 2}}, "column 'location': row 1: a location must be [lon, lat] or an object"),
        ({"location": {"lon": 1}}, "column 'location': row 1: a location must have a number lat"),
        ({"location": [1, 95]}, "column 'location': row 1: lat must be from -90 to 90, not 95.0"),
        ({"location": ["1", 2]}, "column 'location': row 1: lon must be a number, not str '1'"),
        ({"location": "Rome"}, "column 'location': row 1: a location must be [lon, lat] or an object"),
        ({"within": {"metres": 5}}, "column 'within': row 1: an area must be a circle or a box here, not near"),
        ({"within": {"lon": 1, "lat": 95, "metres": 5}}, "column 'within': row 1: lat must be from -90 to 90"),
        ({"within": [1, 2]}, "column 'within': row 1: an area must be an object"),
    ],
)
def test_mistakes_name_their_lines(index: Path, row: dict[str, Any], message: str) -> None:
    lines = as_json_lines([ROWS[0][0], {"tags": ["a"], **row}, ROWS[0][0]])
    failed = ended("match", index, "-", stdin=lines)
    assert (failed.returncode, answers(failed.stdout)) == (1, [[1, 3]])
    assert f"line 2: {message}" in failed.stderr
    skipped = ended("match", index, "-", "--skip-invalid", stdin=lines)
    assert answers(skipped.stdout) == [[1, 3]] * 2


def test_mistakes_name_their_rows(index: Path, tmp_path: Path) -> None:
    file = tmp_path / "queries.parquet"
    for column, message in (
        (pa.array([[1.0, 2.0], [1.0]]), "column 'location': row 1 must have two numbers, lon and lat"),
        (pa.array([[1.0, 2.0], [1.0, 95.0]]), "column 'location': row 1: lat must be from -90 to 90, not 95.0"),
        (pa.array(["Rome", "Oslo"]), "column 'location' says where queries are, and must be structs, not string"),
    ):
        pq.write_table(pa.table({"tags": [["a"], ["a"]], "location": column}), file)
        failed = ended("match", index, file)
        assert failed.returncode == 1
        assert f"{file}: {message}" in failed.stderr


def test_a_location_may_be_an_attribute(tmp_path: Path) -> None:
    with TagMatch(tmp_path / "index", device="cpu", threads=1) as tm:
        tm.add_set([], 1, where='location = "Rome"')
        tm.consolidate()
    pq.write_table(pa.table({"tags": [["a"], ["a"]], "location": ["Rome", "Oslo"]}), tmp_path / "queries.parquet")
    (tmp_path / "queries.csv").write_text("tags,location\na,Rome\na,Oslo\n")
    for name in ("queries.parquet", "queries.csv"):
        found = tagmatch("match", tmp_path / "index", tmp_path / name, "--attributes", "location")
        assert answers(found) == [[1], []]


def test_explain(index: Path) -> None:
    found = from_json_lines(tagmatch("explain", index, "a", "--location", "9.19,45.46"))
    assert [(row["where"], row["keys"]) for row in found] == [
        ("within circle(9.19, 45.46, 1000)", [1]), ("within near(2000)", [3])
    ]  # fmt: skip
    assert tagmatch("explain", index, "a") == ""
    assert "'9.19' is no place: give two numbers, as in 9.19,45.46" in " ".join(
        ended("explain", index, "a", "--location", "9.19").stderr.replace("│", " ").split()
    )


def test_the_plane(tmp_path: Path) -> None:
    path = tmp_path / "index"
    sets = b'{"tags": [], "key": 7, "area": {"lon": 1000, "lat": 2000, "metres": 5}}\n'
    (tmp_path / "sets.jsonl").write_bytes(sets)
    tagmatch("build", tmp_path / "sets.jsonl", path, "--plane")
    lines = as_json_lines([{"tags": [], "location": [1000, 2004]}, {"tags": [], "location": {"x": 1000, "y": 2006}}])
    assert answers(tagmatch("match", path, "-", "--plane", stdin=lines)) == [[7], []]
    assert from_json_lines(tagmatch("explain", path, "a", "--location", "1000,2003", "--plane"))[0]["keys"] == [7]
    for arguments in (["info", path], ["check", path], ["match", path, "-"], ["explain", path, "a"]):
        failed = ended(*arguments)
        assert failed.returncode == 1
        assert "there are areas on the plane: open the index with plane=True (commands: --plane)" in failed.stderr
    assert "ok, 1 sets" in tagmatch("check", path, "--plane")
    assert json.loads(tagmatch("info", path, "--plane", "--json"))["sets"] == 1
    assert json.loads(tagmatch("export", path))["key"] == 7
