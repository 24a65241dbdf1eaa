"""The right answers where keys expire, and a clock that tests set."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.oracle import Oracle

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


def set_clock(monkeypatch: pytest.MonkeyPatch, *, rest_s: float = 0.0) -> Clock:
    """A clock, at which indexes look at short intervals; they rest for so many seconds between two times."""
    clock = Clock()
    monkeypatch.setattr(
        "tagmatch.model.clock.now_us",
        lambda: (clock.now - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1),
    )
    monkeypatch.setattr("tagmatch.expiring._LOOK_S", 0.002)
    monkeypatch.setattr("tagmatch.expiring._REST_S", rest_s)
    monkeypatch.setattr("tagmatch.expiring._REST_RATIO", 0)
    return clock


class ExpiringOracle:
    """Keys of sets with the times at which they expire; shares nothing with the library."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stored: dict[frozenset[str], dict[Any, datetime | None]] = {}
        self._staged: list[tuple[bool, frozenset[str], Any, datetime | None]] = []

    def add_set(self, tags: Iterable[str], key: Any, *, expires: datetime | timedelta | None = None) -> None:
        at = self._clock.now + expires if isinstance(expires, timedelta) else expires
        self._staged.append((True, frozenset(tags), key, at))

    def remove_set(self, tags: Iterable[str], key: Any) -> None:
        self._staged.append((False, frozenset(tags), key, None))

    def consolidate(self) -> None:
        for added, tags, key, at in self._staged:
            keys = self._stored.setdefault(tags, {})
            keys.pop(key, None)
            if added:
                keys[key] = at
        self._staged.clear()

    def times(self) -> dict[tuple[frozenset[str], Any], datetime | None]:
        """When each key of each set expires, of those that have not."""
        return {
            (tags, key): at
            for tags, keys in self._stored.items()
            for key, at in keys.items()
            if at is None or at > self._clock.now
        }

    def now(self) -> Oracle:
        """What there is now."""
        oracle = Oracle()
        for tags, key in self.times():
            oracle.add_set(tags, key)
        oracle.consolidate()
        return oracle


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for what happens in the background."""
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < 60
        time.sleep(0.001)
