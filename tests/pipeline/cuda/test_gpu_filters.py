"""Sets with constraints beside others that the device matches."""

from __future__ import annotations

from typing import Any

import pytest

from tagmatch import TagMatch

pytestmark = pytest.mark.gpu


def test_constraints_beside_tags(engine: dict[str, Any]) -> None:
    with TagMatch(**engine) as tm:
        tm.add_set(["a"], 1)
        tm.add_set([], 2, where="price < 10")
        tm.add_set(["a"], 3, where='price < 10 and not city = "Rome"')
        tm.add_set(["b"], 4)
        tm.add_set(["a", "b"], 5, where="price >= 10 or exists(city)")
        tm.consolidate()
        tm.add_set(["a"], 6, where='city prefix "R"')
        tm.remove_set(["b"], 4)
        tm.consolidate()
        asked: list[tuple[list[str], dict[str, Any], list[int]]] = [
            (["a"], {}, [1]),
            (["a"], {"price": 9.5}, [1, 2, 3]),
            (["a", "b"], {"price": 9.5, "city": "Rome"}, [1, 2, 5, 6]),
            (["b"], {"price": 10}, []),
            ([], {"price": -1}, [2]),
        ]
        for tags, attributes, keys in asked:
            assert sorted(tm.match(tags, attributes=attributes)) == keys
            assert tm.match_unique(tags, attributes=attributes) == set(keys)
            assert sorted(key for _, found in tm.explain(tags, attributes=attributes) for key in found) == keys
