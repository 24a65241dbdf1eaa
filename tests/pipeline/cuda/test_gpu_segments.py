"""Segments and deleted sets on the device."""

from __future__ import annotations

from typing import Any

import pytest
from oracle import Oracle
from support.agreement import assert_agree, change_all

from tagmatch import TagMatch

pytestmark = pytest.mark.gpu

ALL = ["a", "b", "c", "d", "e"]


def test_deleted_sets_and_other_segments(engine: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tagmatch.partitioner.consolidation.FEW_SETS", 0)
    monkeypatch.setattr("tagmatch.merging.Merging.begin", lambda _: None)
    rounds = [
        [*((True, [tag], key) for key, tag in enumerate(ALL)), (True, ["a", "b"], 12), (True, [], 13), (True, ALL, 14)],
        [(False, ["a"], 0), (True, ["a", "b"], 16), (False, [], 13), (True, ["e", "a"], 17)],
        [(True, [], 18), (False, ALL, 14), (False, ["e", "a"], 17)],
    ]
    oracle = Oracle()
    with TagMatch(**engine) as tm:
        for changes in rounds:
            change_all(changes, tm, oracle)
            assert_agree(tm, oracle, [[], ["a"], ["a", "b"], ["c", "d", "e"], ALL])
        assert (tm.stats()["segments"], tm.stats()["deleted"]) == (2, 4)
