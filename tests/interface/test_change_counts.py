"""What changes say that they did: how many are staged, and what became of them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tagmatch import ChangeCounts, InvalidValueError, Near, NotStoredError, TagMatch


@pytest.fixture
def alerts():
    with TagMatch(device="cpu", key_type="string") as tm:
        tm.add_set(["flat"], "ana", where='price < 900 or city = "Rome"')
        tm.add_sets([["flat"], ["house"]], ["bo", "bo"], area=[Near(500), None])
        tm.consolidate()
        yield tm


def test_removals_of_nothing_are_counted(alerts):
    """Without the condition, with another one, of an unknown key, and twice."""
    assert alerts.remove_set(["flat"], "ana") == 1
    assert alerts.remove_set(["flat"], "ana", where="price < 901") == 1
    assert alerts.remove_sets([["house"], ["house"], ["house"]], ["cy", "bo", "bo"]) == 3
    assert alerts.consolidate() == ChangeCounts(removed=1, missing=4)
    assert alerts.remove_set(["flat"], "ana", where='city = "Rome" or price < 900') == 2
    assert alerts.consolidate() == (0, 0, 2, 0)
    assert alerts.consolidate() == ChangeCounts()
    assert alerts.stats()["changes"] == {"added": 4, "already_there": 0, "removed": 3, "missing": 4}


def test_an_alert_with_a_new_condition_is_another_one(alerts):
    assert alerts.add_set(["flat"], "ana", where="price < 950") == 1
    assert alerts.add_set(["flat"], "ana", where="price < 900") == 1
    assert alerts.consolidate(full=True) == ChangeCounts(added=1, already_there=1)


@pytest.mark.parametrize("durability", ["fsync", "none"])
def test_missing_may_be_an_error(tmp_path, durability):
    """What is staged counts, in order, whoever has staged it; and nothing is staged."""
    with TagMatch(tmp_path, device="cpu", durability="os") as tm:
        tm.add_sets([["a"], ["a", "b"]], [1, 2])
        tm.consolidate()
        tm.add_set(["c"], 3, where="x < 1")
    with TagMatch(tmp_path, device="cpu", durability=durability) as tm:
        plain = [(["a"], 2, None), (["b"], 2, None), (["c"], 3, None)]
        for tags, key, where in [*plain, (["c"], 3, "x < 2"), (["d"], 4, "x = 1")]:
            with pytest.raises(NotStoredError, match=f"key {key} is not stored with the set .*{tags[0]}"):
                tm.remove_set(tags, key, where=where, missing="error")
        with pytest.raises(NotStoredError, match=r"key 1 is not stored with the set \['a', 'z'\], nor are 1 more"):
            tm.remove_sets([["a"], ["a", "z"], ["a"]], [1, 1, 1], missing="error")
        assert tm.stats()["staged"] == 1
        assert tm.remove_set(["c"], 3, where="x < 1", missing="error") == 1
        with pytest.raises(NotStoredError, match=r"key 3 is not stored with the set \['c'\] where x < 1:"):
            tm.remove_set(["c"], 3, where="x < 1", missing="error")
        table = pa.table({"tags": [["b", "a"], ["a"]], "key": [2, 1]})
        assert tm.remove_subscriptions(table, missing="error") == 2
        assert tm.consolidate() == (1, 0, 3, 0)
        assert len(tm) == 0


def test_what_missing_may_be():
    with pytest.raises(InvalidValueError, match="missing must be"):
        TagMatch().remove_set(["a"], 1, missing="err")
