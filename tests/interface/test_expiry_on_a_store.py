"""Keys that expire in an index on a store, which nobody can change there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.expiring import set_clock
from support.waiting import wait_until

from tagmatch import InvalidValueError, TagMatch
from tagmatch.model.storage.location import location_of

pytest_plugins = ["support.s3_bucket"]
pytestmark = pytest.mark.slow


@pytest.mark.usefixtures("bucket")
def test_they_are_dropped_in_memory(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """`consolidate` has nothing to do then, unless it is to lay out all sets anew; `reload` takes over what is new."""
    clock = set_clock(monkeypatch)
    with TagMatch(tmp_path / "index", device="cpu") as local, TagMatch(device="cpu") as empty:
        local.add_sets([["a"], ["a"], ["b"], ["c"]], [1, 2, 3, 4], expires=[clock.after(5), None, clock.after(9), None])
        local.consolidate()
        local.save(uri)
        saved = location_of(uri, "uri").manifest()
        with TagMatch.open(uri, device="cpu") as tm:
            assert sorted(tm.match(["a", "b", "c"])) == [1, 2, 3, 4]
            clock.pass_by(5)
            wait_until(lambda: sorted(tm.match(["a", "b", "c"])) == [2, 3, 4])
            clock.pass_by(4)
            tm.consolidate()
            assert sorted(tm.match(["a", "b", "c"])) == [2, 4]
            with pytest.raises(InvalidValueError, match="read-only"):
                tm.consolidate(full=True)
            assert sorted(tm.match(["a", "b", "c"])) == [2, 4]
            assert not tm.reload()
            assert location_of(uri, "uri").manifest() == saved
            empty.consolidate()
            empty.save(uri)
            assert tm.reload()
            assert len(tm) == 0
    assert [each for each in caplog.records if each.name.startswith("tagmatch")] == []
