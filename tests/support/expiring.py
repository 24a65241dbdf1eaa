"""A clock that tests set, and what an index says of the times at which its keys expire."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from support.conditions import conditions_in

from tagmatch import TagMatch

#: When the clock of tests begins
BEGIN = datetime(2026, 11, 23, tzinfo=UTC)


class Clock:
    """The time of all indexes of this process, which stands still unless it is set."""

    def __init__(self) -> None:
        self.now = BEGIN

    def after(self, seconds: float) -> datetime:
        return self.now + timedelta(seconds=seconds)

    def pass_by(self, seconds: float) -> None:
        self.now = self.after(seconds)

    def tell(self) -> datetime:
        """The time, as oracles ask for it; their copies ask the same clock."""
        return self.now

    def __deepcopy__(self, _: Any) -> Any:
        return self


def set_clock(monkeypatch: pytest.MonkeyPatch, *, rest_s: float = 0.0) -> Clock:
    """A clock, at which indexes look at short intervals; they rest for some seconds between two times."""
    clock = Clock()
    monkeypatch.setattr(
        "tagmatch.model.clock.now_us",
        lambda: (clock.now - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1),
    )
    monkeypatch.setattr("tagmatch.changing._LOOK_S", 0.002)
    monkeypatch.setattr("tagmatch.changing._REST_S", rest_s)
    monkeypatch.setattr("tagmatch.changing._REST_RATIO", 0)
    return clock


def times_of(tm: TagMatch[Any]) -> dict[tuple[frozenset[str], Any], datetime | None]:
    """When each key of each set of an index expires, as `Oracle.times` has it."""
    return pairs_in(tm.to_arrow())


def pairs_in(found: pa.Table) -> dict[tuple[frozenset[str], Any], datetime | None]:
    """The same of a table, as `to_arrow` gives it."""
    times = found.column("expires").to_pylist() if "expires" in found.schema.names else [None] * len(found)
    where = found.column("where").to_pylist() if "where" in found.schema.names else [None] * len(found)
    rows = zip(found["tags"].to_pylist(), where, found["key"].to_pylist(), times, strict=True)
    return {(frozenset(tags) | conditions_in(text), key): at for tags, text, key, at in rows}
