"""Columns of files of queries: attributes in one or in many columns, places, and files without tags."""

import json
import math
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from oracle import And, Not, Test, evaluate
from support.agreement import index_of
from support.command import (
    Record,
    answers,
    as_csv,
    as_json_lines,
    as_table,
    done,
    ended,
    from_json_lines,
    refused,
    tagmatch,
    write,
)
from support.expressions import text_of

from tagmatch import Near, TagMatch

pytestmark = pytest.mark.slow

KINDS = pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
TREES = [
    Test("price", "<", (10,)), Test("price", "=", (2**53 + 1,)), Test("price", "!=", (5,)),
    Not(Test("price", "exists", ())), And((Test("a city", "=", ("Rome",)), Test("new", "=", (True,)))),
    Test("a city", "prefix", ("0",)), Test("a city", "exists", ()), Not(Test("new", "=", (True,))),
    Test("id", "exists", ()),
]  # fmt: skip
#: With several values, with none, and texts as numbers are written
ROWS: list[Record] = [
    {"price": 9.5, "a city": ["Rome", "Oslo"], "new": True}, {"price": None, "a city": ["0071"], "new": False},
    {"price": 5, "a city": None, "new": None}, {"price": -2.5e-3, "a city": ["7", 'é,"x"'], "new": True},
    {"price": math.inf, "a city": ["true"], "new": True},
]  # fmt: skip
NAMES = ["price", "a city", "new"]
FINITE = ROWS[:-1]


@pytest.fixture(scope="module")
def index(tmp_path_factory, seed):
    path, spelling = tmp_path_factory.mktemp("queries") / "index", random.Random(seed)
    index_of([["a"]] * len(TREES), range(len(TREES)), path, where=[text_of(tree, spelling) for tree in TREES]).close()
    return path


def expected(rows: list[Record], names: list[str]) -> list[list[int]]:
    asked = [{name: row.get(name) for name in names} for row in rows]
    return [[key for key, tree in enumerate(TREES) if evaluate(tree, {"a"}, row)] for row in asked]


def queries(rows: list[Record], **others: Any) -> list[Record]:
    return [{"id": f"n{number}", "tags": ["a"], **row, **others} for number, row in enumerate(rows)]


def assert_fails(index: Path, path: Path, message: str, option: str = "*") -> None:
    assert message in refused("match", index, path, "--attributes", option)


# -- attributes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "names"), [("*", NAMES), ("price,a city,new", NAMES), ("new", ["new"]), ("a city", ["a city"])]
)
def test_columns(index, tmp_path, option, names):
    """Of Parquet and of CSV, also of streams and folders."""
    wanted, lines = expected(ROWS, names), as_csv(queries(ROWS))
    assert any(wanted)
    found = done("match", index, write(tmp_path / "queries.parquet", queries(ROWS)), "--attributes", option)
    assert answers(found) == wanted
    assert [row["id"] for row in from_json_lines(found)] == [f"n{number}" for number in range(len(ROWS))]
    assert tagmatch("match", index, "-", "--format", "csv", "--attributes", option, stdin=lines) == found
    (tmp_path / "folder").mkdir()
    for part in range(2):
        (tmp_path / "folder" / f"{part}.csv").write_bytes(lines)
    assert answers(done("match", index, tmp_path / "folder", "--attributes", option)) == wanted * 2


def test_many_rows_of_a_column(index, tmp_path):
    """Over several batches, with integers that are no floats, texts and numbers by turns; and texts in quotes."""
    rows = [ROWS[number % len(ROWS)] | {"price": [2**53, 2**53 + 1, 4, "x"][number % 4]} for number in range(30_000)]
    path = write(tmp_path / "q.csv", queries(rows))
    assert answers(done("match", index, path, "--attributes", "*")) == expected(rows[:20], NAMES) * 1_500
    path.write_bytes(b'tags,a city\na,"""0071"""\n')
    assert answers(done("match", index, path)) == expected([{"a city": "0071"}], NAMES)


@KINDS
def test_without_the_option_all_are(index, tmp_path, kind):
    """As in Python; options leave some aside, or choose. A column of attributes counts too, but none may be in both."""
    path = write(tmp_path / f"q.{kind}", queries(FINITE))
    for options, names in (
        ([], NAMES), (["--ignore-columns", "price,new"], ["a city"]), (["--ignore-columns", "*"], []),
        (["--attributes", "new"], ["new"]),
    ):  # fmt: skip
        assert answers(done("match", index, path, *options)) == expected(FINITE, names)
    path = write(tmp_path / f"q.{kind}", queries(FINITE, attributes={"id": 1}))
    assert answers(done("match", index, path)) == expected([{**row, "id": 1} for row in FINITE], [*NAMES, "id"])
    path = write(tmp_path / f"q.{kind}", queries(FINITE, attributes={"price": 1}))
    assert_fails(index, path, "attribute 'price' is a column, and in the column 'attributes'; leave out one")


@KINDS
@pytest.mark.parametrize(("name", "meant"), [("Tags", "tags"), ("attribute", "attributes"), ("with_in", "within")])
def test_misspelt_columns(index, tmp_path, kind, name, meant):
    rows = [{"note" if meant == "tags" else "tags": ["a"], "price": 5, name: 1}]
    path = write(tmp_path / f"q.{kind}", rows)
    line = refused("match", index, path)
    for words in (str(path), f"column {name!r}", f"is {meant!r} meant?", "'attributes'", f"--attributes {name!r}"):
        assert words in line
    if meant != "tags":
        chosen = done("match", index, path, "--attributes", f"price,{name}")
        assert answers(chosen) == answers(done("match", index, path, "--ignore-columns", name))
        skipped = ended("match", index, path, "--skip-invalid")
        assert (skipped.returncode, skipped.stdout) == (int(kind != "jsonl"), "")


def test_rows_of_json_lines_have_columns_of_their_own(index):
    """Also values of several types, over several blocks, in a stream, and names written with escapes."""
    rows: list[Record] = [
        {"price": [10, "x", True][number % 3]} if number % 4 else {"a city": ["Rome", "x"]} for number in range(9_000)
    ]
    lines = as_json_lines([{"tags": ["a"], **row} for row in rows]).replace(b'"price"', b'"pr\\u0069ce"', 5)
    wanted = expected(rows[:12], NAMES)
    assert answers(tagmatch("match", index, "-", stdin=lines)) == wanted * 750
    assert any(wanted)
    for line, message in (
        (b'{"tags": ["a"], "price": 1, "price": 2}', "it has 'price' more than once"),
        (b'{"tags": ["a"], "price": {"eur": 1}}', 'row 0: attribute "price": a value must be a bool, a number'),
        (b'{"price": 1, "id": [1]}', "column 'id': row 0 must be an integer or a string"),
    ):
        assert message in tagmatch("match", index, "-", stdin=line, code=1)
    assert answers(tagmatch("match", index, "-", stdin=b'{"price": 5}')) == [[]]


def test_columns_of_parquet_that_will_not_do(index, tmp_path):
    path = tmp_path / "q.parquet"
    for name, values, message in (
        ("at", pa.array([0] * 5, pa.timestamp("us")), "column 'at' is of timestamp[us], but attributes are bools"),
        ("a\0b", pa.array([0] * 5), "the name of an attribute must not contain U+0000"),
        ("big", pa.array([0, 1, 2**63, 0, 0], pa.uint64()), "column 'big': row 2 has 9223372036854775808, which must"),
    ):
        pq.write_table(as_table(queries(ROWS)).append_column(name, values), path)
        assert_fails(index, path, message)
        assert answers(done("match", index, path, "--attributes", "price")) == expected(ROWS, ["price"])
    skipped = ended("match", index, path, "--attributes", "price,big", "--skip-invalid")
    assert answers(skipped.stdout) == expected([*ROWS[:2], *ROWS[3:]], ["price"])
    assert "q.parquet: column 'big': row 2 has" in skipped.stderr


def test_cells_that_will_not_do(index, tmp_path):
    lines, path = as_csv(queries(ROWS)).splitlines(keepends=True), tmp_path / "q.csv"
    integer, value = (
        "an integer must be from -2**63",
        "a value must be a bool, a number, a str, a date, a datetime, an IP address or a Version, not",
    )
    for cell, message in (
        (b"9223372036854775808", f"q.csv: line 4: column 'price': row 2: attribute \"price\": {integer}"),
        (b"[[1]]", f"q.csv: line 4: column 'price': row 2: attribute \"price\": {value}"),
        (b"[1", "q.csv: line 4 (row 2) is not a row of CSV: column 'price': '[1' is no JSON"),
    ):
        path.write_bytes(b"".join([*lines[:3], b"n2,a," + cell + b",,\n", *lines[4:]]))
        assert_fails(index, path, message, "price")
        skipped = ended("match", index, path, "--attributes", "price", "--skip-invalid")
        assert answers(skipped.stdout) == expected([*ROWS[:2], *ROWS[3:]], ["price"])


@KINDS
def test_attributes_that_a_declaration_refuses(tmp_path, kind):
    """They are mistakes of their rows, with their places."""
    path, asked = tmp_path / "index", tmp_path / f"q.{kind}"
    index_of([["a"]], [1], path, attributes={"price": "int64"}, strict=True).close()
    rows: list[Record] = [{"price": 1}, {"price": None, "colour": 1}, {"price": 2}]
    write(asked, [{"tags": ["a"], **row} for row in rows])
    told = refused("match", path, asked)
    assert str(asked) in told
    assert 'row 1: attribute "colour" is not declared; there is price' in told
    skipped = ended("match", path, asked, "--skip-invalid")
    assert answers(skipped.stdout) == [[1], [1]]
    assert "skipped 1 invalid row" in skipped.stderr
    write(asked, [{"tags": ["a"], "price": price} for price in ("x", "7")])
    assert "row 0: attribute \"price\": it takes an integer, such as 17, not 'x'" in refused("match", path, asked)
    assert answers(ended("match", path, asked, "--skip-invalid").stdout) == [[1]]
    attributes = pa.array([[("price", 1)], [("prise", 7)]], pa.map_(pa.string(), pa.int64()))
    pq.write_table(pa.table({"attributes": attributes}), tmp_path / "maps.parquet")
    assert "column 'attributes': row 1: attribute \"prise\" is not" in refused("match", path, tmp_path / "maps.parquet")


def test_options_that_will_not_do(index, tmp_path):
    path = write(tmp_path / "q.parquet", queries(ROWS))
    for option, message in (
        ("price,price", "names 'price' twice"), ("price,", "has an empty name"), ("", "has an empty name"),
        ("price,id", "the column 'id' has its own meaning"), ("*,price", "names columns besides '*'"),
    ):  # fmt: skip
        assert message in tagmatch("match", index, path, "--attributes", option, code=2)
    for file in (path, write(tmp_path / "q.csv", queries(ROWS))):
        assert_fails(index, file, f"{file} has no column 'cost'; its columns are 'id', 'tags'", "price,cost")


def test_attributes_in_one_column(tmp_path):
    """As objects of JSON, whose values may differ in type, and as maps."""
    index, path = tmp_path / "index", tmp_path / "q.parquet"
    wheres = ["price < 10", None, 'city in {"Rome"} or tags {"de"}']
    index_of([["fr"], ["fr"], []], [1, 2, 3], index, where=wheres).close()
    mixed = b'{"tags": ["fr", "de"], "attributes": {"price": "9", "city": "Rome"}}\n\n'
    mixed += b'{"tags": ["fr", "de"], "attribut\\u0065s": {"price": [9, true], "city": null}}'
    assert answers(tagmatch("match", index, "-", "--unique", stdin=mixed)) == [[2, 3], [1, 2, 3]]
    maps = pa.array([[("price", 9.5)], [("price", 10.0), ("new", None)], None], pa.map_(pa.string(), pa.float64()))
    tags = pa.array([["fr"], ["fr", "de"], ["fr"]])
    pq.write_table(pa.table({"tags": tags, "attributes": maps}), path)
    assert answers(done("match", index, path)) == [[1, 2], [2, 3], [2]]
    pq.write_table(pa.table({"tags": tags, "attributes": tags}), path)
    assert "must be a struct" in refused("match", index, path)
    found = from_json_lines(done("explain", index, "fr", "--attributes", '{"price": 3}'))
    assert sorted((row["keys"], row.get("where")) for row in found) == [([1], "price < 10"), ([2], None)]
    assert "is no object of JSON" in ended("explain", index, "fr", "--attributes", "[]").stderr


# -- without tags ------------------------------------------------------------------------------------------------------

ATTRIBUTES: list[Record] = [
    {"price": 9.5, "city": "Rome"}, {"price": 9.5, "city": None}, {"price": 11.0, "city": "Rome"}
]  # fmt: skip


@pytest.fixture(scope="module")
def untagged(tmp_path_factory):
    path = tmp_path_factory.mktemp("untagged") / "index"
    index_of([[], []], [1, 2], path, where=["price < 10", 'city = "Rome"']).close()
    return path


@KINDS
@pytest.mark.parametrize("others", [{}, {"tags": None}], ids=["missing", "null"])
def test_queries_without_tags(untagged, tmp_path, kind, others):
    """With a column of attributes, or with columns, also a query that has none of them."""
    path = tmp_path / f"q.{kind}"
    rows = [{**others, "attributes": row} for row in ATTRIBUTES]
    assert answers(done("match", untagged, write(path, rows))) == [[1, 2], [1], [2]]
    if kind != "jsonl":
        rows = [others | row for row in [*ATTRIBUTES, {"price": None, "city": None}]]
        found = done("match", untagged, write(path, rows), "--attributes", "price,city")
        assert answers(found) == [[1, 2], [1], [2], []]
        for options in ([], ["--attributes", "*"]):
            neither = refused("match", untagged, write(path, [{"id": 1}]), *options)
            assert "has no column 'tags' or 'attributes'; it" in neither
    message = refused("match", untagged, write(path, [{"attributes": {"price": 1}}, {"attributes": None}]))
    assert "column 'tags': row 1 is null: give [] for no tags, or a value of 'attributes'" in message


# -- places ------------------------------------------------------------------------------------------------------------

BOX = {"west": 9, "south": 45, "east": 10, "north": 46}
#: Queries, and the keys that they find
PLACES: list[tuple[Record, list[int]]] = [
    ({"tags": ["a"], "location": [9.19, 45.46]}, [1, 3]),
    ({"tags": ["a"], "location": {"lon": 9.19, "lat": 45.46}, "within": BOX}, [3]),
    ({"tags": ["a"], "location": None, "within": {"lon": 9.2, "lat": 45.46, "metres": 10}}, [3]),
    ({"tags": ["a"]}, []),
    ({"tags": [], "attributes": {"x": 1}, "location": [0, 0]}, [2]),
]
FOUND = [keys for _, keys in PLACES]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    path = tmp_path_factory.mktemp("places") / "index"
    with TagMatch(path, device="cpu", threads=1) as tm:
        tm.add_set(["a"], 1, where="within circle(9.19, 45.46, 1000)")
        tm.add_set([], 2, where="x = 1 and within circle(0, 0, 1)")
        tm.add_set(["a"], 3, area=Near(2000))
        tm.move([1, 3], [20, 9.2], [0, 45.46])
        tm.consolidate()
    return path


def test_places(places, tmp_path):
    several = {"tags": ["a"], "location": [[0, 0], {"lon": 9.19, "lat": 45.46}]}
    for kind in ("jsonl", "csv"):
        asked = write(tmp_path / f"q.{kind}", [row for row, _ in [*PLACES, (several, [])]])
        assert answers(done("match", places, asked)) == [*FOUND, [1, 3]]
    pairs = [row.get("location") for row, _ in PLACES]
    lists = [list(pair.values()) if isinstance(pair, dict) else pair for pair in pairs]
    rows = [{**row, "location": pair} for (row, _), pair in zip(PLACES, lists, strict=True)]
    assert answers(done("match", places, write(tmp_path / "q.parquet", rows))) == FOUND
    found = from_json_lines(done("explain", places, "a", "--location", "9.19,45.46"))
    shown = [("within circle(9.19, 45.46, 1000)", [1]), ("within near(2000)", [3])]
    assert sorted((row["where"], row["keys"]) for row in found) == shown
    assert done("explain", places, "a", "--location", "0,0", "--location", "9.19,45.46") != ""
    assert done("explain", places, "a") == ""
    told = ended("explain", places, "a", "--location", "9.19").stderr.replace("│", " ").split()
    assert "'9.19' is no place: give two numbers, as in 9.19,45.46" in " ".join(told)


def test_mistakes_name_their_lines(places):
    good = PLACES[0][0]
    for row, message in (
        ({"location": [1]}, "location': row 1: a location must be [lon, lat] or an object with lon and lat"),
        ({"location": {"lon": 1}}, "location': row 1: a location must have a number lat"),
        ({"location": [[1, 2], [1]]}, "location': row 1: a location must be [lon, lat] or an object with lon and lat"),
        ({"location": [1, 95]}, "location': row 1: lat must be from -90 to 90, not 95.0"),
        ({"location": ["1", 2]}, "location': row 1: lon must be a number, not str '1'"),
        ({"within": {"metres": 5}}, "within': row 1: an area must be a circle, a box, a polygon or a corridor: near"),
        ({"within": {"lon": 1, "lat": 95, "metres": 5}}, "within': row 1: lat must be from -90 to 90"),
        ({"within": [1, 2]}, "within': row 1: an area must be an object"),
        ({"attributes": {"price": {}}}, 'attributes\': row 1: attribute "price"'),
    ):
        failed = ended(
            "match", places, "-", "--skip-invalid", stdin=as_json_lines([good, {"tags": ["a"], **row}, good])
        )
        assert answers(failed.stdout) == [[1, 3]] * 2
        assert f"line 2: column '{message}" in failed.stderr


def test_tags_in_a_dictionary_beside_attributes(index, tmp_path):
    tags = pa.array([["a", "b"], [], ["b", "a"]], pa.list_(pa.dictionary(pa.int32(), pa.string())))
    pq.write_table(pa.table({"tags": tags, "price": [5.0, 5.0, 9.5]}), tmp_path / "q.parquet")
    rows = [{"price": 5.0}, {}, {"price": 9.5}]
    wanted = expected(rows, ["price"])
    assert answers(done("match", index, tmp_path / "q.parquet")) == [wanted[0], [], wanted[2]]


def test_mistakes_of_columns_name_their_files(places, tmp_path):
    """A column of locations may be one of attributes, if that is said."""
    file = tmp_path / "queries.parquet"
    for column, message in (
        ([[1.0, 2.0], [1.0]], "column 'location': row 1 must have two numbers, lon and lat"),
        (["Rome", "Oslo"], "column 'location' says where queries are, and must be structs, not string"),
    ):
        pq.write_table(pa.table({"tags": [["a"], ["a"]], "location": column}), file)
        assert f"{file}: {message}" in refused("match", places, file)
    index_of([[]], [1], tmp_path / "index", where='location = "Rome"').close()
    for path in (file, write(tmp_path / "q.csv", [{"tags": ["a"], "location": city} for city in ("Rome", "Oslo")])):
        assert answers(done("match", tmp_path / "index", path, "--attributes", "location")) == [[1], []]


def test_the_plane(tmp_path):
    path, lines = tmp_path / "index", [{"location": [1000, 2004]}, {"location": {"x": 1000, "y": 2006}}]
    area = {"lon": 1000, "lat": 2000, "metres": 5}
    done("build", write(tmp_path / "sets.jsonl", [{"tags": [], "key": 7, "area": area}]), path, "--plane")
    asked = write(tmp_path / "q.jsonl", [{"tags": [], **line} for line in lines])
    assert answers(done("match", path, asked, "--plane")) == [[7], []]
    assert from_json_lines(done("explain", path, "a", "--location", "1000,2003", "--plane"))[0]["keys"] == [7]
    for arguments in (["info", path], ["check", path], ["match", path, asked], ["explain", path, "a"]):
        line = refused(*arguments)
        assert "there are areas on the plane: open the index with plane=True (commands: --plane)" in line
    assert "ok, 1 set\n" in done("check", path, "--plane")
    assert json.loads(done("info", path, "--plane", "--json"))["sets"] == 1
    assert json.loads(done("export", path))["key"] == 7


def test_numbers_in_place_of_keys(tmp_path):
    """In each format of answers; CSV, which has no lists, has these."""
    index, path = tmp_path / "index", write(tmp_path / "q.jsonl", [{"tags": ["a", "b"], "id": "x"}, {"tags": ["c"]}])
    index_of([["a"], ["b"], ["a", "b"]], [1, 1, 2], index).close()
    for asked, name, expected in (
        (["--count"], "count", [3, 0]), (["--count", "--unique"], "count", [2, 0]),
        (["--exists"], "exists", [True, False]),
    ):  # fmt: skip
        rows = [{"id": "x", name: expected[0]}, {"id": 1, name: expected[1]}]
        assert from_json_lines(tagmatch("match", index, path, *asked)) == rows
        done("match", index, path, *asked, "-o", tmp_path / "a.parquet")
        assert pq.read_table(tmp_path / "a.parquet").to_pylist() == [rows[0], rows[1] | {"id": "1"}]
        cells = [json.dumps(each) for each in expected]
        lines = ["id," + name, f'"x",{cells[0]}', f"1,{cells[1]}"]
        assert tagmatch("match", index, path, *asked, "--output-format", "csv").splitlines() == lines
    assert "CSV cannot hold" in tagmatch("match", index, path, "--output-format", "csv", code=1)
    assert "give one of the two" in tagmatch("match", index, path, "--count", "--exists", code=2)


def test_ids_in_views_are_strings(tmp_path):
    """As polars writes them."""
    index, path = tmp_path / "index", tmp_path / "q.parquet"
    index_of([["a"]], [1], index).close()
    pq.write_table(pa.table({"id": pa.array(["x", "7"], pa.string_view()), "tags": [["a"], []]}), path)
    rows = [{"id": "x", "keys": [1]}, {"id": "7", "keys": []}]
    assert from_json_lines(done("match", index, path)) == rows
    done("match", index, path, "-o", tmp_path / "a.parquet")
    assert pq.read_table(tmp_path / "a.parquet").to_pylist() == rows


@KINDS
def test_a_score_of_rows_that_have_no_attributes(tmp_path, kind):
    """Their keys come in order, also without any other rows."""
    index, path = tmp_path / "index", tmp_path / f"q.{kind}"
    with TagMatch(index, device="cpu", data={"priority": "int64"}) as tm:
        for key in (1, 2):
            tm.put(key, ["a"], data={"priority": key})
        tm.consolidate()
    for bids, expected in ([2, None], [[2, 1], [1, 2]]), ([None], [[1, 2]]):
        rows = [{"tags": ["a"], "bid": bid} for bid in bids]
        path.write_bytes(as_json_lines(rows) if kind == "jsonl" else as_csv(rows))
        if kind == "parquet":
            pq.write_table(pa.table({"tags": [["a"]] * len(bids), "bid": pa.array(bids, pa.float64())}), path)
        found = from_json_lines(done("match", index, path, "--limit", "2", "--score", "priority * bid"))
        assert [row["keys"] for row in found] == expected


def test_only_keys_with_some_data(tmp_path):
    index, path = tmp_path / "index", write(tmp_path / "q.jsonl", [{"tags": ["a", "b"]}, {"tags": ["c"]}])
    with TagMatch(index, device="cpu", data={"tenant": "string"}) as tm:
        for key, tenant in ((7, "acme"), (8, "bob"), (9, "acme")):
            tm.put(key, ["a"], data={"tenant": tenant})
        tm.consolidate()
    only = "--only", 'tenant = "acme"'
    assert from_json_lines(tagmatch("match", index, path, *only)) == [{"id": 0, "keys": [7, 9]}, {"id": 1, "keys": []}]
    assert [row["count"] for row in from_json_lines(tagmatch("match", index, path, *only, "--count"))] == [2, 0]
    assert "is 'tenant' meant" in tagmatch("match", index, path, "--only", 'tenannt = "acme"', code=1)
    assert from_json_lines(tagmatch("explain", index, "a", *only)) == [{"tags": ["a"], "keys": [7, 9]}]
    assert tagmatch("explain", index, "a", "--key", "7", *only).startswith("key 7 matches")
    assert tagmatch("explain", index, "a", "--key", "8", *only).startswith("key 8 does not match: no set has it")
