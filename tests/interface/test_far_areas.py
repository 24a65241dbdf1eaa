"""Circles that leave out little of the globe, and those of the plane whose squared radii are no doubles."""

from __future__ import annotations

import pyarrow as pa
import pytest
from support.distances import HALF_WAY

from tagmatch import Circle, Near, TagMatch

ANTIPODES = [(-170.0, -45.0), (-170.0, -44.9999), (-169.9999, -45.0)]
FAR = [(1e308, -1e308), (1.5e154, 0.0), (1e-170, 0.0), (0.0, 5e-324), (0.0, 0.0)]


@pytest.mark.parametrize(
    ("plane", "middle", "radius", "asked", "expected"),
    [
        (False, (10.0, 45.0), HALF_WAY - 1e-3, ANTIPODES, [False, True, True]),
        (False, (10.0, 45.0), HALF_WAY - 10, ANTIPODES, [False, True, False]),
        (True, (0.0, 0.0), 1.4e154, FAR, [False, False, True, True, True]),
        (True, (0.0, 0.0), 1.7e308, FAR, [True, True, True, True, True]),
        (True, (0.0, 0.0), 1e-200, FAR, [False, False, False, True, True]),
        (True, (0.0, 0.0), 0.0, FAR, [False, False, False, False, True]),
    ],
)
@pytest.mark.parametrize("others", [0, 400])
def test_all_ways_to_ask(plane, middle, radius, asked, expected, others):
    """A circle that stays, a client that moves, and clients within a circle; a message alone, and in a table."""
    circle = Circle(*middle, radius)
    with TagMatch(device="cpu", plane=plane) as tm:
        tm.add_set(["stays"], 1, area=circle)
        tm.add_set(["moves"], 2, area=Near(radius))
        tm.add_set(["asked for"], 3)
        tm.add_sets([["stays"]] * others, range(10, 10 + others), area=Circle(*middle, 0))
        tm.consolidate()
        for place, is_there in zip(asked, expected, strict=True):
            lon, lat = place
            tm.move([2, 3], [middle[0], lon], [middle[1], lat])
            for tags, key in ((["stays"], 1), (["moves"], 2)):
                table = pa.table({"tags": [tags], "location": [list(place)]})
                assert (key in tm.match(tags, location=place)) is is_there
                assert (key in tm.match_many(table).to_pylist()[0]) is is_there
            tags, found = ["asked for"], [3] if is_there else []
            assert tm.match(tags, within=circle) == found
            tm.move([3], [middle[0]], [middle[1]])
            assert tm.match(tags, within=Circle(lon, lat, radius)) == found
