"""Messages of a gateway, without a broker: each is done with when its notifications are sent, and is given up alone."""

from __future__ import annotations

from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from support.waiting import wait_until

from tagmatch.broker.gateways.handing_over import HandingOver
from tagmatch.broker.gateways.incoming import Incoming
from tagmatch.broker.gateways.options import MqttOptions
from tagmatch.broker.hub import Hub
from tagmatch.broker.sessions import Sessions
from tagmatch.model.clock import steady_us
from tagmatch.model.errors import InvalidValueError


class Matcher:
    """Each message has key 7, but messages with one whose tag is `bad` have an error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def match_many(self, queries: pa.Table, **_: Any) -> pa.ListArray:
        if ["bad"] in queries["tags"].to_pylist():
            raise self._error
        return pa.array([[7]] * len(queries), pa.list_(pa.uint64()))


class Side:
    """What hands messages over, and what it tells of them."""

    def __init__(self, hub: Hub, *names: str) -> None:
        self.done: list[str] = []
        self.sent: list[Any] = []  # what to call once notifications are sent
        self.letters: list[str] = []
        letters: Any = self
        self._handing = HandingOver(
            hub, MqttOptions(messages="in"), 1 << 20, letters, self.sent.append, plane=False, steady=steady_us
        )
        for name in names:
            came = Incoming([("tag", name)], b"", done=partial(self.done.append, name))
            assert self._handing.receive(came, may_drop=False)
        self._handing.start()
        assert self._handing.wait(60)
        self._handing.end()
        wait_until(lambda: not self._handing.is_alive())

    def add(self, letters: list[Any]) -> None:
        self.letters += [letter.properties[0][1] for letter in letters]

    def counts(self) -> dict[str, int]:
        return {name: count for name, count in self._handing.stats().items() if count}


@pytest.mark.parametrize("error", [RuntimeError("of nobody's"), InvalidValueError("of the message")])
def test_each_is_done_with_when_its_notifications_are_sent(error: Exception) -> None:
    with Hub(Matcher(error), Sessions("integer")) as hub:
        side = Side(hub, "a", "b", "bad", "c", "d")
    assert (side.done, side.letters) == (["bad"], ["bad"])
    for act in side.sent:
        act()
    assert sorted(side.done) == ["a", "b", "bad", "c", "d"]
    outcome = "failed" if isinstance(error, RuntimeError) else "refused"
    assert side.counts() == {"received": 5, "matched": 4, outcome: 1}


def test_messages_for_which_the_service_has_no_time_come_again() -> None:
    hub = Hub(Matcher(RuntimeError()), Sessions("integer"))
    hub.close()
    side = Side(hub, "a", "b")
    assert (side.done, side.sent, side.letters) == ([], [], [])
    assert side.counts() == {"received": 2, "dropped": 2}
