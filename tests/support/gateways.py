"""A gateway between an index and another broker, for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from support.waiting import wait_until

from tagmatch import TagMatch
from tagmatch.broker.gateways.gateway import Gateway
from tagmatch.broker.hub import Hub
from tagmatch.broker.sessions import Sessions
from tagmatch.broker.subscriber_options import HUB_DEFAULTS, HubOptions

G = TypeVar("G", bound=Gateway)


@contextmanager
def running(
    tm: TagMatch[Any],
    make: Callable[[TagMatch[Any], Hub, Sessions], G],
    options: HubOptions = HUB_DEFAULTS,
    seconds: float = 60,
) -> Iterator[tuple[G, Sessions]]:
    """A gateway that has connected, and the sessions of its hub, which has these options; within so many seconds."""
    sessions = Sessions(tm.stats()["key_type"])
    with Hub(tm, sessions, options, channels=list(tm.stats()["channels"])) as hub:
        gateway = make(tm, hub, sessions)
        gateway.start()
        try:
            wait_until(lambda: gateway.stats()["connected"] == 1, seconds)
            yield gateway, sessions
        finally:
            gateway.stop()
