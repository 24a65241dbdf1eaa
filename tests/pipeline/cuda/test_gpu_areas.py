"""Sets with areas, which the CPU matches beside what a device does."""

from __future__ import annotations

from typing import Any, get_args

import pyarrow as pa
import pytest

from tagmatch import Circle, CudaOptions, Near, TagMatch
from tagmatch.model.options import Layout
from tagmatch.pipeline.areas.matcher import AreaMatcher

pytestmark = pytest.mark.gpu

HERE = (9.0, 45.0)
AROUND = {"west": 8.0, "south": 44.0, "east": 10.0, "north": 46.0}


@pytest.mark.parametrize("layout", get_args(Layout))
def test_areas_beside_a_device(layout: Any) -> None:
    with TagMatch(device="cuda", layout=layout, cuda=CudaOptions(fewest_queries=1), threads=1) as tm:
        tm.add_sets([["a"]] * 5, range(5), area=Near(10))
        tm.add_sets([["b"]] * 5, range(5, 10), area=Circle(*HERE, 10))
        tm.add_sets([["a"], ["b"]], [20, 21])
        tm.consolidate()
        tm.move([0, 1, 20], *HERE)
        assert isinstance(tm._engine.current.matcher, AreaMatcher)
        assert tm.stats()["devices"][0].startswith("cuda")
        location, within = [list(HERE), None, list(HERE)], [None, AROUND, AROUND]
        asked = pa.table({"tags": [["a", "b"], ["a"], ["a", "b"]], "location": location, "within": within})
        found = [sorted(keys) for keys in tm.match_many(asked).to_pylist()]
        assert found == [[0, 1, 5, 6, 7, 8, 9, 20, 21], [0, 1, 20], [0, 1, 20]]
        assert sorted(tm.match(["a", "b"], location=HERE)) == found[0]
        tm.remove_set(["a"], 1, area=Near(10))
        tm.consolidate()
        tm.move([0, 2], [20, HERE[0]], [0, HERE[1]])
        found = [sorted(keys) for keys in tm.match_many(asked).to_pylist()]
        assert found == [[2, 5, 6, 7, 8, 9, 20, 21], [2, 20], [2, 20]]
