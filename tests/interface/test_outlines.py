"""Polygons and corridors against plain Python: an arc to a place far away crosses edges, by exact determinants."""

import contextlib
import itertools
import json
import math
import random
import struct
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from support.agreement import index_of
from support.command import tagmatch

from tagmatch import Box, Circle, Corridor, FilterError, InvalidTypeError, InvalidValueError, Near, Polygon, TagMatch
from tagmatch.model.input.places import area_from, area_has
from tagmatch.model.where.areas import area_in, check, payload_of

EARTH = 6371008.8
SQUARE = "POLYGON ((9 45, 10 45, 10 46, 9 46, 9 45))"
# WKB of a polygon
TRIANGLE = struct.pack("<BIII8d", 1, 3, 1, 4, 9, 45, 11, 45, 10, 46, 9, 45)
HOLED = "POLYGON ((0 0, 10 0, 10 10, 0 10, 0 0), (4 4, 6 4, 6 6, 4 6, 4 4))"

# -- the oracle --------------------------------------------------------------------------------------------------------


def vector(lon, lat):
    lon, lat = math.radians(lon), math.radians(lat)
    return math.cos(lat) * math.cos(lon), math.cos(lat) * math.sin(lon), math.sin(lat)


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def cross(a, b):
    return a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]


def turn(a, b, c):
    """The exact sign of a determinant."""
    a, b, c = (tuple(map(Fraction, each)) for each in (a, b, c))
    return dot(a, cross(b, c)) > 0


def arcs_cross(a, b, c, d):
    """Whether two arcs of great circles cross, none of whose ends is on the other one."""
    return turn(a, c, b) == turn(c, b, d) == turn(b, d, a) == turn(d, a, c)


def angle(a, b):
    return 2 * math.asin(min(1.0, math.dist(a, b) / 2))


def minus(a, b):
    return [x - y for x, y in zip(a, b, strict=True)]


def from_edge(p, a, b):
    """The angle from a point to an edge."""
    # By differences, as the product of a and b themselves is rounded by centimetres if these are close together
    around = cross(a, minus(b, a))
    length = math.sqrt(dot(around, around))
    if dot(cross(around, a), minus(p, a)) >= 0 and dot(cross(b, around), minus(p, b)) >= 0 and length > 0:
        return math.asin(min(1.0, abs(dot(around, minus(p, a))) / length))
    return min(angle(p, a), angle(p, b))


def edges_of(lines):
    return [edge for line in lines for edge in itertools.pairwise([vector(*point) for point in line])]


def ring_has(ring, p):
    corners = [vector(*point) for point in ring]
    middle = [sum(axis) for axis in zip(*corners, strict=True)]
    # No place where corners are by accident
    away = [-x + nudge for x, nudge in zip(middle, (0.00123, 0.00217, -0.00171), strict=True)]
    length = math.sqrt(dot(away, away))
    away = tuple(x / length for x in away)
    return sum(arcs_cross(p, away, a, b) for a, b in itertools.pairwise(corners)) % 2 == 1


def polygon_has(area, place):
    """Whether a polygon has a place; `None` if it is too near to the border to say."""
    p = vector(*place)
    if any(from_edge(p, a, b) * EARTH < 1e-3 for part in area.parts for a, b in edges_of(part)):
        return None
    return any(ring_has(part[0], p) and not any(ring_has(hole, p) for hole in part[1:]) for part in area.parts)


def corridor_has(area, place):
    away = min(from_edge(vector(*place), a, b) for a, b in edges_of(area.lines)) * EARTH
    return None if abs(away - area.metres) < 1e-3 else away < area.metres


def has(area, *place, plane=False):
    (found,) = area_has(area, np.array([float(place[0])]), np.array([float(place[1])]), plane=plane)
    return bool(found)


# -- random outlines ---------------------------------------------------------------------------------------------------


def at(middle, bearing, distance):
    """The place so far from another one, as an angle, in a direction."""
    lon, lat = map(math.radians, middle)
    north = -math.sin(lat) * math.cos(lon), -math.sin(lat) * math.sin(lon), math.cos(lat)
    east = -math.sin(lon), math.cos(lon), 0.0
    aside = [math.cos(bearing) * n + math.sin(bearing) * e for n, e in zip(north, east, strict=True)]
    x, y, z = (math.cos(distance) * v + math.sin(distance) * w for v, w in zip(vector(*middle), aside, strict=True))
    return math.degrees(math.atan2(y, x)), math.degrees(math.atan2(z, math.hypot(x, y)))


def star(rng, middle, radius, least):
    """A ring around a place, whose corners are between these parts of the radius away."""
    count = rng.randint(6, 14)
    turns = [(i + rng.uniform(0, 0.7)) * 2 * math.pi / count for i in range(count)]
    if rng.random() < 0.5:
        turns.reverse()
    # By tangents, so that edges of great circles stay beyond a part of the least one
    away = [math.atan(math.tan(radius) * rng.uniform(least, 1)) for _ in turns]
    ring = [at(middle, bearing, distance) for bearing, distance in zip(turns, away, strict=True)]
    return [*ring, ring[0]]


def any_middle(rng):
    anywhere = rng.uniform(-180, 180), math.degrees(math.asin(rng.uniform(-1, 1)))
    return rng.choice(
        [anywhere, (180.0, rng.uniform(-80, 80)), (0.0, 90.0), (rng.uniform(-180, 180), -90.0), (9.0, 45.0)]
    )


def any_outline(rng):
    middle, radius = any_middle(rng), rng.choice([1e-7, 1e-5, 1e-3, 0.1, 0.7, 1.2])
    if rng.random() < 0.3:
        radius = min(radius, 0.8)  # else some lie beyond half of the globe
        line = [at(middle, rng.uniform(0, 7), rng.uniform(0, radius)) for _ in range(rng.randint(2, 6))]
        return Corridor(line, rng.uniform(0, 0.3) * radius * EARTH), middle, radius
    part = [star(rng, middle, radius, 0.8)]
    if rng.random() < 0.5:
        part.append(star(rng, middle, math.atan(0.4 * math.tan(radius)), 0.5))
    return Polygon([part]), middle, radius


rngs = st.integers(0, 2**32).map(random.Random)


@given(rngs)
def test_on_the_sphere(rng):
    area, middle, radius = any_outline(rng)
    oracle = polygon_has if isinstance(area, Polygon) else corridor_has
    places = [at(middle, rng.uniform(0, 7), min(rng.uniform(0, 1.3) * radius, math.pi)) for _ in range(20)]
    places += [any_middle(rng), at(middle, 0, math.pi), middle]
    for place in places:
        expected = oracle(area, place)
        assert expected is None or has(area, *place) == expected, (area, place)
    assert all(has(area, *point) for point in area.points)


@given(rngs, st.integers(1, 6), st.sampled_from([1.0, 1e-150, 1e150, 0.125]))
@example(random.Random(0), 4, 1e300)
def test_on_the_plane(rng, half, scale):
    """Of integers, multiplied, so that it is exact: all places of a lattice."""
    ring = [(rng.randint(-half, half), rng.randint(-half, half)) for _ in range(rng.randint(3, 6))]
    assume(len(set(ring)) == len(ring))
    ring.append(ring[0])
    scaled = Polygon([[(x * scale, y * scale) for x, y in ring]])
    with contextlib.suppress(InvalidValueError):  # edges may cross
        check(scaled, plane=True)
        with index_of([[]], [1], area=scaled, plane=True, device="cpu", threads=1) as tm:
            assert tm.match([], location=scaled.parts[0][0][0]) == [1]
    edges = [*itertools.pairwise(ring)]
    line = Corridor([(x * scale, y * scale) for x, y in ring[:-1]], scale)
    for x, y in itertools.product(range(-half - 1, half + 2), repeat=2):
        sides = [(bx - ax) * (y - ay) - (by - ay) * (x - ax) for (ax, ay), (bx, by) in edges]
        crossed = sum(
            (ay > y) != (by > y) and (side > 0) == (by > ay)
            for side, ((_, ay), (_, by)) in zip(sides, edges, strict=True)
        )
        is_on = any(_from(edge, x, y) == 0 for edge in edges)
        assert has(scaled, x * scale, y * scale, plane=True) == (is_on or crossed % 2 == 1), (ring, x, y)
        near = min(_from(edge, x, y) for edge in edges[:-1])
        assert abs(near - 1) < 1e-9 or has(line, x * scale, y * scale, plane=True) == (near < 1)


def _from(edge, x, y):
    """The squared distance of a place from an edge, exactly."""
    (ax, ay), (bx, by) = edge
    along = Fraction((x - ax) * (bx - ax) + (y - ay) * (by - ay), (bx - ax) ** 2 + (by - ay) ** 2)
    along = max(Fraction(0), min(Fraction(1), along))
    return (x - ax - along * (bx - ax)) ** 2 + (y - ay - along * (by - ay)) ** 2


@pytest.mark.parametrize(
    ("area", "inside", "outside"),
    [
        (
            Polygon(SQUARE),
            [(9, 45), (9, 45.5), (9.5, 45.5), (9.5, 46.001)],
            [(9.5, 44.999), (8.9999999, 45.5), (9.5, 46.002)],
        ),
        (
            Polygon("POLYGON ((-1 0, 1 0, 0 -1, -1 0))"),
            [(0, 0), (0.3, 0), (0, -1), (0, -0.5)],
            [(0, 1e-9), (0, -1.0000001)],
        ),
        (
            Polygon("POLYGON ((0 60, 90 60, 180 60, -90 60, 0 60))"),
            [(0, 90), (7, 90), (45, 70), (180, 60), (-180, 60)],
            [(45, 61), (0, 59)],
        ),
        (
            Polygon("POLYGON ((179 -1, -179 -1, -179 1, 179 1, 179 -1))"),
            [(180, 0), (-180, 0), (179, 0), (-179, 0)],
            [(0, 0), (178.9, 0)],
        ),
        (
            Polygon("POLYGON ((0 1, 120 1, -120 1, 0 1))"),
            [(0, 90), (0, 1.0001), (60, 3)],
            [(0, -90), (60, 1), (0, 0.999)],
        ),
        (Polygon(HOLED), [(4, 4), (4, 5), (1, 1), (10, 10)], [(5, 5), (4.0001, 5), (-1, 5)]),
        (
            Polygon("MULTIPOLYGON (((0 0, 1 0, 1 1, 0 0)), ((0 0, 1 0, 1 1, 0 0)), ((50 0, 51 0, 51 1, 50 0)))"),
            [(0.9, 0.5), (50.9, 0.5)],
            [(20, 0.2)],
        ),
        (
            Corridor("LINESTRING (0 0, 10 0, 10 10)", 111_000),
            [(5, 0.99), (5, -0.99), (10.99, 5), (0, -0.9), (-0.9, 0)],
            [(5, 1.01), (-1.01, 0)],
        ),
        (
            Corridor("MULTILINESTRING ((179 0, -179 0), (0 89, 180 89))", 1000),
            [(180, 0), (-180, 0.008), (90, 90), (0, 90)],
            [(180, 0.01), (90, 89)],
        ),
        (Corridor([(9, 45), (9, 46)], 0), [(9, 45), (9, 46)], [(9.0000001, 45), (9, 44.9999999)]),
    ],
)
def test_places(area, inside, outside):
    assert [has(area, *place) for place in inside + outside] == [True] * len(inside) + [False] * len(outside)
    with index_of([[], []], [1, 2], area=[area, None], device="cpu") as tm:
        assert [sorted(tm.match([], location=place)) for place in inside] == [[1, 2]] * len(inside)
        assert [tm.match([], location=place) for place in outside] == [[2]] * len(outside)


@given(rngs)
def test_an_index(rng):
    """Of any areas, some negated, some with tags and conditions: by packets, one by one, and with a client."""
    drawn = [any_outline(rng) for _ in range(12)]
    areas = [area for area, _, _ in drawn]
    expected, wheres = {}, []
    for key, area in enumerate(areas):
        other = rng.choice(areas)
        where = rng.choice(
            [None, f"not within {other.text}", f"within {other.text} and x < 3", "within box(-180, 0, 180, 90)"]
        )
        wheres.append(where)
        expected[key] = area, other, where
    with TagMatch(device="cpu", threads=1) as tm:
        for key, (area, _, where) in expected.items():
            tm.add_set(["a"] if key % 2 else [], key, area=area, where=where)
        tm.add_set([], 99, area=Near(1e7), where=f"within {areas[0].text}")
        tm.consolidate()
        places = [at(middle, rng.uniform(0, 7), rng.uniform(0, 1.2) * radius) for _, middle, radius in drawn]
        tm.move([99], *([value] for value in places[0]))
        packets = tm.match_many(
            pa.table({"tags": [["a"]] * 12, "x": [1, 5] * 6, "location": [list(each) for each in places]})
        )
        for number, place in enumerate(places):
            holds = {id(area): has(area, *place) for area in areas}
            wanted = []
            for key, (area, other, where) in expected.items():
                met = holds[id(area)]
                if where is not None and where.startswith("not"):
                    met &= not holds[id(other)]
                elif where is not None and "x <" in where:
                    met &= holds[id(other)] and number % 2 == 0
                elif where is not None:
                    met &= place[1] >= 0
                wanted += [key] * met
            found = sorted(tm.match(["a"], {"x": [1, 5][number % 2]}, location=place))
            near = math.degrees(angle(vector(*place), vector(*places[0]))) / 360 * 2 * math.pi * EARTH < 1e7
            assert found == wanted + [99] * (holds[id(areas[0])] and near)
            assert sorted(packets[number].as_py()) == found


@given(rngs)
def test_what_is_written_is_read(rng):
    area, _, _ = any_outline(rng)
    for plane in (False, True):
        assert area_in(payload_of(area, plane=plane)) == area
    assert eval(repr(area)) == area
    with index_of([[]], [1], area=area, device="cpu") as tm:
        (tags, _) = next(iter(tm))
        (where,) = tags
        tm.remove_set([], 1, where=str(where))
        tm.consolidate()
        assert len(tm) == 0


def test_forms():
    shapely = pytest.importorskip("shapely")
    for text, kind in (
        (SQUARE, Polygon),
        (HOLED, Polygon),
        (f"MULTIPOLYGON ({HOLED[8:]}, ((20 0, 21 0, 21 1, 20 0)))", Polygon),
    ):
        geometry, area = shapely.from_wkt(text), kind(text)
        forms = [
            text,
            geometry.wkb,
            shapely.to_wkb(shapely.set_srid(geometry, 4326), include_srid=True),
            geometry,
            shapely.to_geojson(geometry),
        ]
        forms += [shapely.to_wkb(geometry, byte_order=0), json.loads(shapely.to_geojson(geometry)), area.text, area]
        assert [kind(form) for form in forms[:-1]] == [area] * (len(forms) - 1)
        with index_of([[]] * len(forms), range(len(forms)), area=forms, device="cpu") as tm:
            assert len(tm) == 1
        for column in (
            pa.array([text]),
            pa.array([geometry.wkb]),
            pa.array([json.loads(shapely.to_geojson(geometry))]),
            pa.array([text]).dictionary_encode(),
            pa.array([area.parts if len(area.parts) > 1 else area.parts[0]]),
        ):
            with index_of([[]], [1], area=column, device="cpu") as tm:
                assert str(next(iter(next(iter(tm))[0]))) == f"within {area.text}"
    line = shapely.from_wkt("LINESTRING (9 45, 10 46)")
    assert Corridor(line, 5) == Corridor(line.wkb, 5) == Corridor(line.wkt, 5) == Corridor([[9, 45], [10, 46]], 5)
    assert shapely.geometry.shape(Polygon(HOLED)).equals(shapely.from_wkt(HOLED))


RING = [[[9, 45], [10, 45], [9, 46], [9, 45]]]
MISTAKES = [
    (
        "POLYGON ((9 45, 10 45, 10 46))",
        "ring 1 is not closed: it begins at 9 45, ends at 10 46; repeat the first place",
    ),
    ("POLYGON ((9 45, 10 45, 9 45))", "ring 1 has 2 different places, and must have 3 or more"),
    (
        "POLYGON ((9 45, 10 46, 10 45, 9 46, 9 45))",
        "edges of the polygon cross each other: 9 45 to 10 46 and 10 45 to 9 46",
    ),
    ("POLYGON ((45 109, 45 110, 46 110, 45 109))", "lat must be from -90 to 90, not 109.0; lon and lat seem swapped"),
    (
        "POLYGON ((0 -1, 120 -1, -120 -1, 0 -1), (0 80, 1 80, 1 81, 0 80))",
        "a polygon must lie within less than half of the globe",
    ),
    (
        "POLYGON ((0 0, 1 0, 1 1, 0 1, 0 0), (2 0, 3 0, 3 1, 2 0))",
        "ring 2 is a hole, and 2 0 of it is outside of ring 1: make it a part of a MULTIPOLYGON",
    ),
    (
        "MULTIPOLYGON (((5 5, 6 5, 6 6, 5 5)), ((0.4 0.4, 0.6 0.4, 0.6 0.6, 0.4 0.4), (0 0, 1 0, 1 1, 0 1, 0 0)))",
        "ring 2 of part 2 is a hole, and 0 0 of it is outside of ring 1",
    ),
    ("POLYGON (9 45, 10 45, 10 46, 9 45)", "parentheses of a POLYGON must be closed, and 2 deep"),
    ("POLYGON ((9 45, 10 45, 10 46, 9 45)", "parentheses of a POLYGON must be closed, and 2 deep"),
    ("POLYGON ((9 45 1, 10 45 1, 10 46 1, 9 45 1))", "a place must have two numbers, not 3"),
    ("POLYGON ((9 45, 10 x, 10 46, 9 45))", "expected a number, found 'x'"),
    ("POLYGON EMPTY", "the text must begin with POLYGON or MULTIPOLYGON and a parenthesis"),
    ("POLYGON ((9 45, 10 45, 1e999 46, 9 45))", "ring 1: a coordinate must be finite, not inf"),
    ("LINESTRING (9 45, 10 45)", "column 1: expected an area"),
    ("circle(9, 45, 5) and x = 1", "a text must be one area"),
    ("5 m of linestring(9 45, 9 45)", "column 1: the line has 1 different places, and must have 2 or more"),
    ("20000000 m of linestring(9 45, 10 45)", "a corridor must lie within less than half of the globe"),
    (
        {"type": "Point", "coordinates": [9, 45]},
        "the type of the geometry must be POLYGON or MULTIPOLYGON, not 'Point'",
    ),
    ({"type": "Polygon", "coordinates": 5}, "coordinates of a polygon are nested 3 or 4 deep, not 1"),
    ({"type": "MultiPolygon", "coordinates": 5}, "a polygon must be WKT, WKB, GeoJSON or coordinates, not int"),
    ({"type": "Polygon", "coordinates": [*RING, None]}, "ring 2 must be a list of places, not None"),
    ({"type": "MultiPolygon", "coordinates": [RING, 5]}, "a part must be a list of rings, not 5"),
    ({"type": "MultiPolygon", "coordinates": [RING, []]}, "a part must be a list of rings, not an empty one"),
    (b"\1\1\0\0\0", "this is no WKB of a POLYGON or MULTIPOLYGON with two numbers a place"),
]


@pytest.mark.parametrize(("given_area", "message"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes(given_area, message):
    with TagMatch(device="cpu", threads=1) as tm:
        with pytest.raises((InvalidTypeError, InvalidValueError)) as told:
            tm.add_set([], 1, area=given_area)
        assert str(told.value).startswith("area: ")
        assert message in str(told.value)
        with pytest.raises((InvalidTypeError, InvalidValueError)) as told:
            tm.add_sets([[], []], [1, 2], area=[None, given_area])
        assert str(told.value).startswith("area: row 1: ")
        if isinstance(given_area, str) and given_area.startswith("POLYGON (("):
            with pytest.raises(FilterError):
                tm.add_set([], 1, where=f"x = 1 or within {given_area}")


@pytest.mark.parametrize(
    ("where", "location", "expected"),
    [
        (
            "within polygon((0 0, 1 0, 1 1, 0 1, 0 0))",
            (2, 0),
            "the message is outside the polygon, 111,195 m from its border",
        ),
        (
            "within 1000 m of linestring(0 0, 1 0)",
            (0.5, 1),
            "the message is 111,195 m from the line, 110,195 m too far",
        ),
        ("not within polygon((0 0, 1 0, 1 1, 0 1, 0 0))", (0, 0), "the message is within"),
    ],
)
def test_reasons(where, location, expected):
    with index_of([[]], [7], where=[where], device="cpu", threads=1) as tm:
        assert expected in str(tm.explain([], location=location, key=7))
        assert tm.match([], location=location) == []


def test_records_and_files(tmp_path):
    """By records, files of each format, and commands; indexes without outlines have the same format."""
    areas = [
        SQUARE,
        "500 m of linestring(9 45, 10 45)",
        json.loads(json.dumps(Polygon(SQUARE).__geo_interface__)),
        "circle(9.5, 45.5, 1000)",
    ]
    with TagMatch(tmp_path / "index", device="cpu") as tm:
        tm.put(5, area=Polygon(SQUARE))
        tm.consolidate()
        assert tm.get(5).area == Polygon(SQUARE)
    with TagMatch.open(tmp_path / "index", device="cpu") as tm:
        assert tm.match([], location=(9.5, 45.5)) == [5]
        tm.put(5, area=Polygon(HOLED))
        tm.consolidate()
        assert tm.match([], location=(9.5, 45.5)) == []
    jsonl = "".join(json.dumps({"key": key, "area": area}) + "\n" for key, area in enumerate(areas))
    jsonl += json.dumps({"key": 4, "area": {"kind": "circle", "lon": 9.5, "lat": 45.5, "metres": 1000}}) + "\n"
    (tmp_path / "sets.jsonl").write_text(jsonl)
    cells = [area if isinstance(area, str) else json.dumps(area) for area in areas]
    rows = [f'{key},"{cell.replace(chr(34), chr(34) * 2)}"' for key, cell in enumerate(cells)]
    (tmp_path / "sets.csv").write_text(
        "\n".join(["key,area", *rows, '4,"{""lon"": 9.5, ""lat"": 45.5, ""metres"": 1000}"', ""])
    )
    pa.parquet.write_table(
        pa.table({"key": range(5), "area": [*cells, "circle(9.5, 45.5, 1000)"]}), tmp_path / "sets.parquet"
    )
    for suffix in ("jsonl", "csv", "parquet"):
        tagmatch("build", tmp_path / f"sets.{suffix}", tmp_path / suffix)
        asked = '{"tags": [], "location": [9.5, 45.5]}\n{"tags": [], "location": [9.5, 45.003]}\n'
        found = tagmatch("match", tmp_path / suffix, "-", stdin=asked.encode())
        assert [sorted(json.loads(line)["keys"]) for line in found.splitlines()] == [[0, 2, 3, 4], [0, 1, 2]]


def test_large_polygons_among_circles():
    """So many that grids have them, with one of many corners."""
    rng = random.Random(3)
    ring = [at((9, 45), 2 * math.pi * i / 5000, 0.05 * rng.uniform(0.9, 1)) for i in range(5000)]
    areas = [Polygon([[*ring, ring[0]]])]
    for _ in range(600):
        middle = at((9, 45), rng.uniform(0, 7), rng.uniform(0, 0.06))
        areas.append(
            rng.choice(
                [
                    Circle(*middle, 5000),
                    Polygon([star(rng, middle, 1e-3, 0.5)]),
                    Box(middle[0], middle[1], middle[0] + 0.1, middle[1] + 0.1),
                ]
            )
        )
    with index_of([[]] * len(areas), range(len(areas)), area=areas, device="cpu", threads=1) as tm:
        places = [at((9, 45), rng.uniform(0, 7), rng.uniform(0, 0.06)) for _ in range(50)]
        lon, lat = np.array(places).T.copy()
        found = tm.match_many(
            pa.table(
                {"tags": [[]] * 50, "location": [list(place) for place in places]},
                pa.schema({"tags": pa.list_(pa.string()), "location": pa.list_(pa.float64())}),
            )
        )
        all_have = [area_has(area, lon, lat, plane=False) for area in areas]
        for number, keys in enumerate(found.to_pylist()):
            assert sorted(keys) == [key for key, have in enumerate(all_have) if have[number]]


@pytest.mark.parametrize("plane", [False, True])
def test_clients_are_found_in_every_area(plane: bool) -> None:
    """One message and many, as keys, explanations, highlights and best keys: near sets, and those that follow none."""
    rng = np.random.default_rng(5)
    lon, lat, count = rng.uniform(8, 12, 150), rng.uniform(44, 47, 150), 150
    width = 0.3 if plane else 30_000
    asked = [
        "polygon((9 45, 11 45, 10 46.5, 9 45), (9.8 45.2, 10.2 45.2, 10 45.6, 9.8 45.2))",
        f"{width} m of linestring(9 45, 11 46)",
        "multipolygon(((8 44, 9 44, 9 47, 8 44)), ((11 44, 12 44, 12 47, 11 44)))",
        f"circle(10, 45, {width})",
        None,
    ]
    with TagMatch(device="cpu", threads=1, plane=plane) as tm:
        tm.add_sets([["a"]] * count, range(count), area=[None if key % 2 else Near(1e9) for key in range(count)])
        tm.consolidate()
        tm.move(np.arange(count, dtype=np.uint64), lon, lat)
        expected = [
            [*range(1, count, 2)]
            if each is None
            else np.flatnonzero(area_has(area_from(each), lon, lat, plane=plane)).tolist()
            for each in asked
        ]
        assert all(0 < len(each) < count for each in expected)
        for each, keys in zip(asked, expected, strict=True):
            assert sorted(tm.match(["a"], within=each)) == keys
            assert sorted(key for _, found in tm.explain(["a"], within=each) for key in found) == keys
        table = pa.table({"tags": [["a"]] * 10, "within": asked * 2})
        assert [sorted(each) for each in tm.match_many(table).to_pylist()] == expected * 2
        assert [*map(len, tm.match_highlights(table).to_pylist())] == [*map(len, expected)] * 2
        assert [sorted(each) for each in tm.match_best(table, limit=count).to_pylist()] == expected * 2
        found = tm.match_many(pa.table({"tags": [["a"]], "within": [TRIANGLE]}))
        assert found.to_pylist() == [tm.match(["a"], within=TRIANGLE)]
        assert 0 < len(found[0]) < count
        for bad in (Near(5), "near(5)"):
            with pytest.raises(InvalidTypeError, match="must be a circle, a box, a polygon or a corridor"):
                tm.match([], within=bad)
        with pytest.raises(InvalidValueError, match="column 'within': row 1: "):
            tm.match_many(pa.table({"tags": [["a"]] * 2, "within": [asked[0], "polygon((0 0"]}))
