"""Sets with areas: how they are staged, stored, shown and removed."""

import math
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.areas import areas, numbers_of, plane_areas, text_of
from support.command import write

from tagmatch import Box, Circle, FilterError, InvalidTypeError, InvalidValueError, Near, NullError, TagMatch, Where
from tagmatch.files.rows import read_sets
from tagmatch.model.input.places import KIND, NUMBERS, area_rows
from tagmatch.model.where.constraints import Constraint

OPTIONS: dict[str, Any] = {"device": "cpu", "threads": 1}

CITY = Circle(9.19, 45.46, 5000)
OCEAN = Box(170, -10, -170, 10)
AREAS = [CITY, OCEAN, Near(500), None, Circle(0, 0, 0), Near(0.5)]


def text(area: Any) -> str:
    return text_of(area).replace(".0,", ",").replace(".0)", ")")


def shown(area: Any) -> frozenset[Where]:
    return frozenset() if area is None else frozenset([Where(text(area))])


def record(area: Any, *, kind: bool = True) -> dict[str, Any] | None:
    if area is None:
        return None
    found = {name: getattr(area, name) for name in area.__slots__}
    return {KIND: type(area).__name__.lower(), **found} if kind else found


def stored(tm: TagMatch[Any]) -> dict[frozenset[str], tuple[Any, ...]]:
    tm.consolidate()
    tm.check()
    return dict(tm)


def test_equal_areas_are_one_set() -> None:
    with TagMatch(**OPTIONS) as tm:
        tm.add_set(["a"], 1, area=CITY)
        tm.add_set(["a"], 2, where="within circle(9.190, 45.46, 5e3)")
        tm.add_sets([["a"], ["a"]], [3, 4], area=CITY)
        tm.add_sets([["a"]], [5], area=pa.array([record(CITY)]))
        tm.add_sets([["a"], []], [6, 7], where=["within circle(9.19,45.46,5000.0)", None])
        tm.add_set(["a"], 8, where=text(CITY), area=Circle(9.19, 45.46, np.float32(5000)))
        assert stored(tm) == {frozenset(): (7,), frozenset(["a"]) | shown(CITY): (1, 2, 3, 4, 5, 6, 8)}


def test_what_iteration_gives_is_taken_again() -> None:
    with TagMatch(**OPTIONS) as tm, TagMatch(**OPTIONS) as again:
        for key, area in enumerate(AREAS):
            tm.add_set(["a"], key, area=area, where="x = 1" if key % 2 else None, expires=timedelta(days=key + 1))
        tm.add_set([], 9, where='not within box(1, 2, 3, 4) and within circle(1, 2, 3) or tags {"b"}')
        found = stored(tm)
        assert len(found) == len(AREAS) + 2
        pairs = [(tags, key) for tags, keys in found.items() for key in keys]
        table = tm.to_arrow()
        for change, change_all in ((again.add_set, again.add_sets), (again.remove_set, again.remove_sets)):
            for tags, key in pairs:
                change(tags, key)
            expected = found if change == again.add_set else {}
            assert stored(again) == expected
            change_all(table["tags"], table["key"], where=table["where"])
            assert stored(again) == expected
        for tags in found:
            assert tags in tm
            assert frozenset([*tags, "other"]) not in tm


ROWS = st.lists(st.tuples(st.lists(st.sampled_from("ab"), max_size=2, unique=True), st.none() | areas), max_size=8)
PLANE_ROWS = st.lists(st.tuples(st.just(["a"]), st.none() | plane_areas), max_size=8)


def struct_column(found: list[Any], data: Any) -> pa.Array:
    """A struct column of any shape that can have these areas: with fields that are needed, and perhaps with others."""
    kinds = {type(area) for area in found if area is not None}
    needed = [name for name in NUMBERS if any(name in kind.__slots__ for kind in kinds)]
    others = [name for name in NUMBERS if name not in needed]
    fields = data.draw(st.permutations([*needed, *(data.draw(st.sets(st.sampled_from(others))) if others else [])]))
    # Without a kind, a `near` cannot be told from a circle whose place is missing
    must_say = Near in kinds and ("lon" in fields or "lat" in fields)
    says = must_say or not fields or data.draw(st.booleans())
    value_type = pa.float64()
    numbers = [number for area in found if area for number in numbers_of(area)]
    if all(abs(number) < 1e9 and number == float(np.float32(number)) for number in numbers):
        value_type = data.draw(st.sampled_from([pa.float32(), pa.float64()]))
    kind_type = data.draw(st.sampled_from([pa.string(), pa.large_string()]))
    records = []
    for area in found:
        records.append(record(area, kind=says and (must_say or data.draw(st.booleans()))))
        if area is not None and not must_say and isinstance(area, Near) and not data.draw(st.booleans()):
            records[-1] = record(area, kind=says)
    types = {**({KIND: kind_type} if says else {}), **dict.fromkeys(fields, value_type)}
    return pa.array(records, pa.struct(types))


@given(plane=st.booleans(), data=st.data())
def test_structs_are_stored_as_one_by_one(plane: bool, data: Any) -> None:
    rows = data.draw(PLANE_ROWS if plane else ROWS)
    found = [area for _, area in rows]
    column = struct_column(found, data)
    tags = [Constraint.within(area, plane=plane).tag for area in found if area is not None]
    made = area_rows(column, plane=plane, threads=2)
    ends = made.tags.offsets.tolist()
    assert [bytes(made.tags.data[a:b]).decode() for a, b in pairwise(ends)] == tags
    assert np.diff(made.offsets).tolist() == [area is not None for area in found]
    if data.draw(st.booleans()) and rows:
        cut = data.draw(st.integers(0, len(rows)))
        column = pa.chunked_array([column[:cut], column[cut:]])
    sets, keys = [row for row, _ in rows], range(len(rows))
    with TagMatch(plane=plane, **OPTIONS) as tm, TagMatch(plane=plane, **OPTIONS) as other:
        how = data.draw(st.sampled_from(["table", "columns", "listed"]))
        if how == "table":
            lists = pa.array(sets, pa.list_(pa.string()))
            tm.add_subscriptions(pa.table({"key": pa.array(keys, pa.uint64()), "tags": lists, "area": column}))
        else:
            tm.add_sets(sets, keys, area=column if how == "columns" else iter(found))
        for tags_of_one, key, area in zip(sets, keys, found, strict=True):
            other.add_set(tags_of_one, key, area=area)
        expected: dict[frozenset[str], list[int]] = {}
        for (own, area), key in zip(rows, keys, strict=True):
            expected.setdefault(frozenset(own) | shown(area), []).append(key)
        assert stored(tm) == stored(other) == {own: tuple(some) for own, some in expected.items()}
        tm.remove_sets(sets, keys, area=column)
        assert stored(tm) == {}


def test_integers_and_negative_zeros_and_slices() -> None:
    column = pa.array([None, {"lon": 0, "lat": -0.0, "metres": 0.0}, {"lon": -0.0, "lat": 45, "metres": 7}])
    types = pa.struct({"lon": pa.int8(), "lat": pa.uint64(), "metres": pa.int64()})
    integers = pa.array([{"lon": 1, "lat": 2, "metres": 2**62}], types)
    with TagMatch(**OPTIONS) as tm:
        tm.add_sets([[], []], [1, 2], area=column[1:])
        tm.add_sets([[]], [3], area=integers)
        tm.add_sets([[]], [4], area=pa.nulls(1))
        tm.add_sets([], [], area=pa.chunked_array([], pa.struct({"metres": pa.float64()})))
        tm.add_subscriptions(pa.table({"key": [5], "area": pa.array([{"metres": 3}])}))
        found = [Circle(0, 0, 0), Circle(0, 45, 7), Circle(1, 2, 2.0**62), None, Near(3)]
        assert stored(tm) == {shown(area): (key,) for key, area in enumerate(found, 1)}


_SWAPPED = "; lon and lat seem swapped: lon comes first"
_GOOD = {"kind": "circle", "lon": 1.0, "lat": 2.0, "metres": 3.0}
_CIRCLE, _BOX = "a circle has lon, lat, metres", "a box has west, south, east, north"
_FIELDS = "kind, lon, lat, metres, west, south, east, north"

#: What the second of two rows has
BAD_RECORDS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({**_GOOD, "kind": "disc"}, InvalidValueError, "there is no kind 'disc'; there are circle, box, near"),
    ({**_GOOD, "kind": "Circle"}, InvalidValueError, "there is no kind 'Circle'; there are circle, box, near"),
    ({**_GOOD, "lat": None}, NullError, f"field 'lat' is null; {_CIRCLE}"),
    ({"lon": 1.0, "metres": 2.0}, NullError, f"field 'lat' is null; {_CIRCLE}"),
    ({"metres": 2.0}, NullError, f"field 'lon' is null; {_CIRCLE}"),
    ({"kind": "near"}, NullError, "field 'metres' is null; a near has metres"),
    ({"kind": "box", "west": 1.0}, NullError, f"field 'south' is missing; {_BOX}"),
    (
        {"west": 1.0, "lon": 3.0},
        InvalidValueError,
        "field 'lon' does not belong to a box, which has west, south, east, north",
    ),
    ({**_GOOD, "kind": "near"}, InvalidValueError, "field 'lon' does not belong to a near, which has metres"),
    ({**_GOOD, "west": 5.0}, InvalidValueError, "field 'west' does not belong to a circle, which has lon, lat, metres"),
    ({"kind": None}, NullError, "all fields are null; a row without an area is null itself"),
    ({**_GOOD, "lon": math.nan}, InvalidValueError, "lon must be finite, not nan"),
    ({**_GOOD, "lat": -math.inf}, InvalidValueError, "lat must be finite, not -inf"),
    ({**_GOOD, "metres": math.inf}, InvalidValueError, "metres must be finite, not inf"),
    ({**_GOOD, "metres": -1.0}, InvalidValueError, "metres must be zero or more, not -1.0"),
    ({"kind": "near", "metres": math.nan}, InvalidValueError, "metres must be finite, not nan"),
    ({**_GOOD, "lat": 91.0}, InvalidValueError, f"lat must be from -90 to 90, not 91.0{_SWAPPED}"),
    ({**_GOOD, "lon": -180.5}, InvalidValueError, "lon must be from -180 to 180, not -180.5"),
]


def assert_told(kind: type[Exception], message: str, call: Any, *arguments: Any, **options: Any) -> None:
    with pytest.raises(kind) as caught:
        call(*arguments, **options)
    assert str(caught.value) == message


@pytest.mark.parametrize(("bad", "kind", "message"), BAD_RECORDS, ids=range(len(BAD_RECORDS)))
def test_mistakes_in_structs(bad: dict[str, Any], kind: type[Exception], message: str) -> None:
    column = pa.array([_GOOD, bad])
    table = pa.table({"key": [1, 2], "area": pa.chunked_array([column[:1], column[1:]])})
    with TagMatch(**OPTIONS) as tm:
        for stage in (tm.add_sets, tm.remove_sets):
            assert_told(kind, f"area: row 1: {message}", stage, [["a"], ["b"]], [1, 2], area=column)
        assert_told(kind, f"area: row 1: {message}", tm.add_subscriptions, table)
        assert tm.stats()["staged"] == 0


_NOT_EAST = "west must be at most east, which is 2.0, on the plane, not"

BAD_BOXES = [
    ((1.0, 5.0, 2.0, 4.0), "south must be at most north, which is 4.0, not 5.0", None),
    ((181.0, 1.0, 2.0, 4.0), "west must be from -180 to 180, not 181.0", f"{_NOT_EAST} 181.0"),
    (
        (1.0, -91.0, 2.0, 4.0),
        "south must be from -90 to 90, not -91.0; west and south seem swapped: west comes first",
        "",
    ),
    ((3.0, 1.0, 2.0, 4.0), "", f"{_NOT_EAST} 3.0"),
    ((math.nan, 1.0, 2.0, 4.0), "west must be finite, not nan", None),
]


@pytest.mark.parametrize(("numbers", "on_sphere", "on_plane"), BAD_BOXES, ids=range(len(BAD_BOXES)))
def test_boxes_on_the_sphere_and_on_the_plane(numbers: tuple[float, ...], on_sphere: str, on_plane: str | None) -> None:
    """An empty message: it is good there; `None`: the same."""
    bad = dict(zip(("west", "south", "east", "north"), numbers, strict=True))
    expression = f"within box({', '.join(map(str, numbers))})"
    for plane, message in ((False, on_sphere), (True, on_sphere if on_plane is None else on_plane)):
        with TagMatch(plane=plane, **OPTIONS) as tm:
            column, where = pa.array([None, bad]), [None, expression]
            if not message:
                tm.add_sets([[], []], [1, 2], area=column)
                tm.add_sets([[], []], [1, 3], where=where)
                assert stored(tm) == {frozenset(): (1,), shown(Box(**bad)): (2, 3)}
                continue
            assert_told(InvalidValueError, f"area: row 1: {message}", tm.add_sets, [[], []], [1, 2], area=column)
            if on_plane is not None:  # else the language itself, or the class, refuses it
                one, several = Box(**bad), [None] * 7 + [Box(**bad)]
                assert_told(FilterError, f"where: row 1: {message}", tm.add_sets, [[], []], [1, 2], where=where)
                assert_told(FilterError, f"where: {message}", tm.add_set, [], 1, where=f"not x = 1 or not {expression}")
                assert_told(InvalidValueError, f"area: {message}", tm.add_set, [], 1, area=one)
                assert_told(InvalidValueError, f"area: row 7: {message}", tm.add_sets, [[]] * 8, range(8), area=several)
            assert tm.stats()["staged"] == 0


_NO_TYPE = "area must be texts, WKB, lists of rings, or structs with"
_NO_COLUMN = "area must be a Circle, a Box, a Near, a Polygon or a Corridor, or one for each row"

BAD_COLUMNS: list[tuple[Any, type[Exception], str]] = [
    (5, InvalidTypeError, f"{_NO_COLUMN}, not 5 (int)"),
    ({"radius": 5}, InvalidValueError, "area: a near has metres, not radius"),
    ({"type": "Dot"}, InvalidTypeError, "area: the type of the geometry must be POLYGON or MULTIPOLYGON, not 'Dot'"),
    ("near(-5)", InvalidValueError, "area: column 6: metres must be zero or more, not -5.0"),
    ([None, 5], InvalidTypeError, "area: row 1 must be a Circle, a Box, a Near, a Polygon or a Corridor, not 5 (int)"),
    ([Near(1)], InvalidValueError, "area must have an area or a null for each of the 2 sets, not 1"),
    (pa.array([{"metres": 1}]), InvalidValueError, "area must have an area or a null for each of the 2 sets, not 1"),
    (pa.array([1, 2]), InvalidTypeError, f"{_NO_TYPE} {_FIELDS}, not int64"),
    (pa.array([{"radius": 1}] * 2), InvalidTypeError, f"area: areas have fields {_FIELDS}, each once, not 'radius'"),
    (pa.array([{"metres": "1"}] * 2), InvalidTypeError, "area: field 'metres' must be numbers, not string"),
    (pa.array([{"metres": True}] * 2), InvalidTypeError, "area: field 'metres' must be numbers, not bool"),
    (pa.array([{"kind": 1, "metres": 1}] * 2), InvalidTypeError, "area: field 'kind' must be strings, not int64"),
]  # fmt: skip


@pytest.mark.parametrize(("area", "kind", "message"), BAD_COLUMNS, ids=range(len(BAD_COLUMNS)))
def test_what_is_no_column_of_areas(area: Any, kind: type[Exception], message: str) -> None:
    with TagMatch(**OPTIONS) as tm:
        assert_told(kind, message, tm.add_sets, [["a"], ["b"]], [1, 2], area=area)
        assert tm.stats()["staged"] == 0


def test_other_mistakes() -> None:
    where = [None] * 7 + ["x = 1 or within circle(1, 91, 2)", "x = 1"]
    with TagMatch(**OPTIONS) as tm:
        assert_told(
            InvalidTypeError,
            "area must be a Circle, a Box, a Near, a Polygon or a Corridor, not 5 (int)",
            tm.add_set,
            [],
            1,
            area=5,
        )
        message = f"where: row 7: lat must be from -90 to 90, not 91.0{_SWAPPED}"
        assert_told(FilterError, message, tm.add_sets, [[]] * 9, range(9), where=where)
        with pytest.raises(FilterError, match=r"^where: row 1: `not within near\(1\)` has no meaning"):
            tm.add_sets([[]] * 2, range(2), where=["within near(1)", "not within near(1)"])
        assert tm.stats()["staged"] == 0


@pytest.mark.parametrize("name", ["sets.jsonl", "sets.csv", "sets.parquet"])
def test_files_have_areas(tmp_path: Path, name: str) -> None:
    found = [*AREAS, Near(3)]
    some_say = not name.endswith("parquet")
    kinds = [not some_say or key % 2 == 0 for key in range(len(found))]
    rows = [
        {"tags": ["a"], "key": key, "area": record(area, kind=kind), "where": "x = 1" if key == len(AREAS) else None}
        for key, (area, kind) in enumerate(zip(found, kinds, strict=True))
    ]
    path = write(tmp_path / name, rows)
    with TagMatch(**OPTIONS) as tm:
        for batch in read_sets(str(path)):
            tm.add_subscriptions(batch)
        expected = {frozenset(["a"]) | shown(area): (key,) for key, area in enumerate(AREAS)}
        assert stored(tm) == {**expected, frozenset(["a", Where("x = 1")]) | shown(Near(3)): (len(AREAS),)}


@pytest.mark.parametrize(
    ("area", "message"),
    [
        ('{"metres": -1}', "metres must be zero or more, not -1.0"),
        ('{"metres": true}', "metres must be a number, not bool True"),
        ('{"metres": 1e999}', "metres must be finite, not inf"),
        ('{"lon": null, "lat": null, "metres": 1}', f"field 'lon' is null; {_CIRCLE}"),
        ('{"kind": 1, "metres": 1}', "field 'kind' must be a text, not 1 (int)"),
        ('{"radius": 1}', "areas have no field 'radius'"),
        ("{}", "all fields are null; a row without an area is null itself"),
        ("[1]", "an area must be an object, not [1] (list)"),
        (
            '{"type": "Polygon", "coordinates": [[[9, 45], [10, 45], [9, 46], [9, 45]], null]}',
            "area: ring 2 must be a list of places, not None",
        ),
    ],
)  # fmt: skip
def test_mistakes_in_files(tmp_path: Path, area: str, message: str) -> None:
    path = tmp_path / "sets.jsonl"
    path.write_text('{"tags": [], "key": 1}\n{"key": 2, "area": {"metres": 1}}\n{"key": 3, "area": ' + area + "}\n")
    with pytest.raises((InvalidTypeError, InvalidValueError)) as caught:
        list(read_sets(str(path)))
    assert str(caught.value) == f"{path}: line 3: column 'area': row 2: {message}"


def test_mistakes_of_geometry_in_files(tmp_path: Path) -> None:
    lines, where = tmp_path / "sets.jsonl", "within circle(1, 95, 1)"
    lines.write_text(f'{{"key": 1, "where": "x = 1"}}\n{{"key": 2, "where": "{where}"}}\n')
    area = [None, {"lon": 1, "lat": 95, "metres": 1}]
    pq.write_table(pa.table({"key": [1, 2], "tags": [[], []], "area": area}), tmp_path / "sets.parquet")
    for path, place in ((lines, "line 2: column 'where'"), (tmp_path / "sets.parquet", "column 'area'")):
        with pytest.raises((FilterError, InvalidValueError)) as told:
            list(read_sets(str(path)))
        assert str(told.value) == f"{path}: {place}: row 1: lat must be from -90 to 90, not 95.0{_SWAPPED}"
        [batch] = read_sets(str(path), plane=True)
        if path == lines:
            assert batch["where"].to_pylist() == ["x = 1", where]
        else:
            assert pc.struct_field(batch["area"], "lat").to_pylist() == [None, 95]
