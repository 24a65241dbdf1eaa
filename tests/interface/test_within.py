"""`within` of a message: clients in areas of all kinds, by plain Python, on each way in."""

import io
import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from interface.test_outlines import any_outline, at, corridor_has, polygon_has
from support.agreement import index_of
from support.command import answers, as_csv, as_json_lines, done, refused
from support.service import config, posted

from tagmatch import Box, Circle, Corridor, Near, Polygon, TagMatch, connect
from tagmatch.broker.service import serving

LAYOUTS = ("rarest", "balanced")
SQUARE = "POLYGON ((9 45, 10 45, 10 46, 9 46, 9 45))"
STREET = "1000 m of linestring(20 0, 30 0)"


@given(st.integers(0, 2**32).map(random.Random), st.sampled_from(LAYOUTS))
@example(random.Random(8845443), "rarest")  # a street of millimetres
def test_clients_on_the_sphere(rng, layout):
    drawn = [any_outline(rng) for _ in range(3)]
    places = [
        at(middle, rng.uniform(0, 7), rng.uniform(0, 1.3) * radius) for _, middle, radius in drawn for _ in range(8)
    ]
    lacks, nears = rng.randrange(len(places)), [rng.choice([None, Near(1e6)]) for _ in places]
    with index_of([["a"]] * len(places), range(len(places)), area=nears, layout=layout, device="cpu", threads=1) as tm:
        there = [key for key in range(len(places)) if key != lacks]
        tm.move(there, *zip(*(places[key] for key in there), strict=True))
        areas = [area for area, _, _ in drawn]
        messages = pa.table({"tags": [["a"]] * 4, "within": [*(each.text for each in areas), None]})
        found = [*map(set, tm.match_many(messages).to_pylist())]
        assert found.pop() >= {key for key, near in enumerate(nears) if near is None}
        for area, many in zip(areas, found, strict=True):
            oracle = polygon_has if isinstance(area, Polygon) else corridor_has
            told = {key: oracle(area, places[key]) for key in there}
            assert set(tm.match(["a"], within=area)) == many == set(tm.match_unique(["a"], within=area))
            assert (
                {key for key, has in told.items() if has}
                <= many
                <= {key for key, has in told.items() if has is not False}
            )
            assert tm.match_count(["a"], within=area) == len(many)
            assert all(tm.explain(["a"], within=area, key=key).matches is (key in many) for key in rng.sample(there, 3))


@pytest.mark.parametrize("layout", LAYOUTS)
@given(rng=st.integers(0, 2**32).map(random.Random))
def test_clients_on_the_plane(layout, rng):
    """Of integers, so that it is exact."""
    corners = [(rng.randint(-9, 9), rng.randint(-9, 9)) for _ in range(3)]
    (ax, ay), (bx, by), (cx, cy) = corners
    if (bx - ax) * (cy - ay) == (by - ay) * (cx - ax):
        return
    area, sides = Polygon([[*corners, corners[0]]]), [*zip(corners, corners[1:] + corners[:1], strict=True)]
    lattice = [(x, y) for x in range(-9, 10, 2) for y in range(-9, 10, 2)]
    turns = [[(qx - px) * (y - py) - (qy - py) * (x - px) for (px, py), (qx, qy) in sides] for x, y in lattice]
    inside = {key for key, found in enumerate(turns) if not min(found) < 0 < max(found)}
    options = {"plane": True, "layout": layout, "device": "cpu", "threads": 1}
    with index_of([["a"]] * len(lattice), range(len(lattice)), **options) as tm:
        tm.move(range(len(lattice)), *zip(*lattice, strict=True))
        assert set(tm.match(["a"], within=area)) == inside
        assert set(tm.match_many(pa.table({"tags": [["a"]], "within": [area.text]})).to_pylist()[0]) == inside


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Clients 1 in the square, 2 on the street, 3 in the box, 4 nowhere."""
    folder = tmp_path_factory.mktemp("within")
    with TagMatch(folder / "index", device="cpu", threads=1) as index:
        index.add_sets([["a"]] * 4, [1, 2, 3, 4])
        index.consolidate()
        index.move([1, 2, 3], [9.5, 25, -5], [45.5, 0.001, -5])
        index.save_positions()
        with serving(index, config()) as service, connect(service.url) as client:
            yield folder, index, client, service.http.url


#: In each form, and which client is there
FORMS = [
    (SQUARE, 1),
    (json.dumps(Polygon(SQUARE).__geo_interface__), 1),
    (STREET, 2),
    ("circle(9.5, 45.5, 10)", 1),
    ("box(-6, -6, -4, -4)", 3),
]
OBJECTS = [
    (Polygon(SQUARE), 1), (Corridor([(20, 0), (30, 0)], 1000), 2), (Circle(25, 0, 1000), 2), (Box(-6, -6, -4, -4), 3),
    (Polygon(SQUARE).__geo_interface__, 1),
]  # fmt: skip


@pytest.mark.parametrize(("area", "client"), [*FORMS, *OBJECTS])
def test_of_one_message(served, area, client):
    folder, index, remote, url = served
    for each in (index, remote):
        assert each.match(["a"], within=area) == [client]
        assert each.submit(["a"], within=area).result(60) == [client]
        assert each.match_count(["a"], within=area) == 1
        assert each.explain(["a"], within=area, key=client).matches
        assert not each.explain(["a"], within=area, key=4).matches
    if isinstance(area, str):
        (found,) = done("explain", folder / "index", "a", "--within", area).splitlines()
        assert json.loads(found)["keys"] == [client]
    if isinstance(area, str | dict):
        assert posted(f"{url}/match", {"tags": ["a"], "within": area}) == {"keys": [client]}


def test_of_many_messages(served):
    folder, index, remote, url = served
    texts, expected = [area for area, _ in FORMS], [[client] for _, client in FORMS]
    tags = [["a"]] * len(FORMS)
    columns = [
        pa.array(texts),
        pa.array(texts).dictionary_encode(),
        pa.array([{"text": each} for each in texts]),
        pa.array(texts, pa.string_view()),
    ]
    for column in columns:
        table = pa.table({"tags": tags, "within": column})
        assert index.match_many(table).to_pylist() == expected
        assert remote.match_many(table).to_pylist() == expected
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    found = posted(f"{url}/match_many", sink.getvalue(), "application/vnd.apache.arrow.stream")
    assert pa.ipc.open_stream(found).read_all()["keys"].to_pylist() == expected
    rows = [{"tags": ["a"], "within": each} for each in texts]
    assert [each["keys"] for each in posted(f"{url}/match_many", rows)] == expected
    (folder / "m.jsonl").write_bytes(as_json_lines(rows))
    (folder / "m.csv").write_bytes(as_csv(rows))
    pq.write_table(pa.table({"tags": tags, "within": texts}), folder / "m.parquet")
    for name in ("m.jsonl", "m.csv", "m.parquet"):
        assert answers(done("match", folder / "index", folder / name)) == expected


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("polygon((0 0, 1 0))", "must"),
        ("a village", "row 1"),
        ("near(5)", "near(…) is about where a subscriber is"),
        ("POLYGON ((0 0, 1 1, 1 0, 0 1, 0 0))", "cross"),
    ],
)
def test_mistakes(served, wrong, message):
    folder, index, remote, _ = served
    for each in (index, remote):
        with pytest.raises((ValueError, TypeError), match="within"):
            each.match(["a"], within=wrong)
        with pytest.raises(ValueError, match="'within': row 1") as told:
            each.match_many(pa.table({"tags": [["a"]] * 2, "within": [None, wrong]}))
        assert message in str(told.value)
    (folder / "w.jsonl").write_bytes(as_json_lines([{"tags": ["a"]}, {"tags": ["a"], "within": wrong}]))
    assert "line 2" in refused("match", folder / "index", folder / "w.jsonl")
