"""The tests that compare all ways to ask with the oracle, once more, on CUDA."""

from typing import Any

import pytest
from interface.test_match_oracle import *  # noqa: F403
from oracle import Oracle
from support.agreement import assert_agree, loaded
from support.expiring import set_clock
from support.segments import segments_stay
from support.waiting import wait_until

from tagmatch import TagMatch

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*(Grid size|Host array)")]


def test_keys_that_are_strings(engine: dict[str, Any]) -> None:
    pairs = [(["a"], "bob"), (["a", "b"], "alice"), (["a", "b"], "bob"), ([], "é"), (["c"], "")]
    tm, oracle = loaded(pairs, key_type="string", **engine)
    assert_agree(tm, oracle, [["a", "b", "x"], ["c"], [], ["a", "c"]])


@pytest.mark.parametrize("few", [0, 100], ids=["marked", "laid out anew"])
def test_keys_that_expire(engine: dict[str, Any], monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    """Sets without other keys are marked as deleted, and those with some go to another segment, or all are laid out."""
    clock, tags = set_clock(monkeypatch), ["a", "b", "c", "d", "e"]
    oracle = Oracle(clock.tell)
    with segments_stay(few), TagMatch(**engine) as tm:
        for database in (tm, oracle):
            for key, tag in enumerate(tags):
                database.add_set([tag], key, expires=None if key == 3 else clock.after(key + 1))
            database.add_set(["a"], 10)
            database.add_set([], 11, expires=clock.after(4))
            database.add_set(tags, 12)
            database.consolidate()
        for _ in range(5):
            wait_until(lambda: dict(tm) == dict(oracle))
            assert_agree(tm, oracle, [[], ["a"], ["a", "b"], ["c", "d", "e"], tags])
            clock.pass_by(1)
        assert len(oracle.times()) == 3
