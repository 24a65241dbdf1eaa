"""Messages of a gateway, without a broker: each is done with when its notifications are sent, and is given up alone."""

from functools import partial
from types import SimpleNamespace
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


def hub_of(error: Exception) -> Hub:
    """Each message has key 7, but messages with one whose tag is `bad` have an error."""

    def match_many(queries: pa.Table, **_: Any) -> pa.ListArray:
        if ["bad"] in queries["tags"].to_pylist():
            raise error
        return pa.array([[7]] * len(queries), pa.list_(pa.uint64()))

    matcher: Any = SimpleNamespace(match_many=match_many)
    return Hub(matcher, Sessions("integer"))


def handed_over(hub: Hub, *names: str) -> tuple[list[str], list[Any], list[str], HandingOver]:
    """The messages that are done with, what to call once notifications are sent, dead letters, and what did it."""
    done: list[str] = []
    sent: list[Any] = []
    letters: list[Any] = []
    kept: Any = SimpleNamespace(add=letters.extend)
    handing = HandingOver(hub, MqttOptions(messages="in"), 1 << 20, kept, sent.append, plane=False, steady=steady_us)
    for name in names:
        assert handing.receive(Incoming([("tag", name)], b"", done=partial(done.append, name)), may_drop=False)
    handing.start()
    assert handing.wait(60)
    handing.end()
    wait_until(lambda: not handing.is_alive())
    return done, sent, [letter.properties[0][1] for letter in letters], handing


def counts(handing: HandingOver) -> dict[str, int]:
    return {name: count for name, count in handing.stats().items() if count}


@pytest.mark.parametrize(
    ("error", "outcome"), [(RuntimeError("of nobody's"), "failed"), (InvalidValueError("of the message"), "refused")]
)
def test_each_is_done_with_when_its_notifications_are_sent(error: Exception, outcome: str) -> None:
    with hub_of(error) as hub:
        done, sent, letters, handing = handed_over(hub, "a", "b", "bad", "c", "d")
    assert (done, letters) == (["bad"], ["bad"])
    for act in sent:
        act()
    assert sorted(done) == ["a", "b", "bad", "c", "d"]
    assert counts(handing) == {"received": 5, "matched": 4, outcome: 1}


def test_messages_for_which_the_service_has_no_time_come_again() -> None:
    hub = hub_of(RuntimeError())
    hub.close()
    *told, handing = handed_over(hub, "a", "b")
    assert (told, counts(handing)) == ([[], [], []], {"received": 2, "dropped": 2})
