"""What gateways have in common: messages come in and are matched in batches, notifications go out by key."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from tagmatch.broker.config import GatewayOptions
from tagmatch.broker.gateways.handing_over import DeadLetters, HandingOver
from tagmatch.broker.gateways.incoming import Incoming, Requests
from tagmatch.broker.gateways.sending import Outgoing, Sending
from tagmatch.broker.hub import Hub
from tagmatch.broker.sessions import Sessions
from tagmatch.model.errors import TagMatchError

_LOG = logging.getLogger("tagmatch.gateways")
#: Seconds for which a gateway that is required may be without a connection, as its broker may be started again
GRACE_S = 30.0


class NoConnection(Exception):  # noqa: N818 - a state, which ends with the next connection
    """There is no connection, or it has ended."""


class Gateway(ABC):
    """Between a hub and another broker; subclasses know how to talk with that one."""

    def __init__(self, index: Any, hub: Hub, sessions: Sessions, options: GatewayOptions) -> None:
        self._index, self._hub, self._sessions, self.options = index, hub, sessions, options
        self.requests = Requests(index, options.write, options.consolidate_interval)
        self._letters = DeadLetters(options.dead_letters, options.session)
        self._connected, self._ended = threading.Event(), threading.Event()
        self._sending = Sending(self, sessions, options, self._letters, self._connected)
        most_bytes = options.max_waiting_bytes
        if options.notifications:
            most_bytes = min(most_bytes, sessions.options.max_bytes // 2)
        self._handing_over = HandingOver(
            hub,
            options,
            most_bytes,
            self._letters,
            self._sending.when_sent,
            plane=bool(index.stats()["plane"]),
            steady=sessions.steady,
        )
        self._most_bytes = most_bytes
        self._connections = self._failures = 0
        self._is_new, self._since = True, time.monotonic()
        self._has_gone_on = False  # whether anything came or went by the present connection
        self._connecting = threading.Thread(target=self._keep_connected, name="tagmatch-gateway", daemon=True)

    # -- what subclasses do ------------------------------------------------------------------------------------------

    @abstractmethod
    def _run_connection(self) -> None:
        """Connect, call `_is_connected`, and raise when that connection has ended; return to have another at once."""

    @abstractmethod
    def _end_receiving(self) -> None:
        """Stop receiving messages; the connection stays."""

    @abstractmethod
    def _end(self) -> None:
        """End the connection."""

    @abstractmethod
    def why_unsendable(self, outgoing: Outgoing) -> str | None:
        """As `Sends` says."""

    @abstractmethod
    def send(self, outgoing: Sequence[Outgoing]) -> list[tuple[Outgoing, str]]:
        """As `Sends` says."""

    # -- connections -------------------------------------------------------------------------------------------------

    def _is_connected(self, connected: bool) -> None:
        """Called whenever the connection comes or goes."""
        if connected == self._connected.is_set():
            return
        self._since = time.monotonic()
        if connected:
            self._connections += 1
            self._is_new = False
            self._connected.set()
            _LOG.info("connected", extra={"fields": self._named()})
        else:
            self._connected.clear()

    def _keep_connected(self) -> None:
        delay = self.options.retry_first
        while not self._ended.is_set():
            self._has_gone_on = False
            try:
                self._run_connection()
                self._is_connected(False)
                continue
            except (NoConnection, OSError, TagMatchError) as error:
                why: object = error
            except Exception as error:
                _LOG.exception("a connection has failed")
                why = error
            self._is_connected(False)
            if self._ended.is_set():
                return
            self._failures += 1
            fields = {**self._named(), "reason": str(why) or type(why).__name__}
            _LOG.warning("no connection", extra={"fields": fields})
            if self._has_gone_on:
                delay = self.options.retry_first
            self._ended.wait(delay)
            delay = min(2 * delay, self.options.retry_most)

    def _named(self) -> dict[str, object]:
        return {"gateway": self.options.session, "broker": self.options.address}

    @property
    def is_ready(self) -> bool:
        """Whether nothing is against the service's being ready: a gateway that is required has a connection."""
        if not self.options.required or self._connected.is_set():
            return True
        return not self._is_new and time.monotonic() - self._since < GRACE_S

    @property
    def condition(self) -> str:
        """Whether there is a connection, in words."""
        if self._connected.is_set():
            return "connected"
        return f"not connected for {time.monotonic() - self._since:.0f} s"

    # -- messages come in --------------------------------------------------------------------------------------------

    def receive(self, came: Incoming, *, may_drop: bool) -> bool:
        """Take a message, as `HandingOver.receive` does; one of the gateway's own notifications is refused."""
        self._has_gone_on = True
        if self._is_own(came.topic):
            self._handing_over.refuse(came, "it is a notification of this gateway, which would come back for ever")
            return True
        return self._handing_over.receive(came, may_drop=may_drop)

    def _is_own(self, topic: str) -> bool:
        notifications = self.options.places.get("notifications")
        return notifications is not None and self.options.naming.overlap(notifications, topic)

    def _may_answer_to(self, place: str) -> bool:
        """Whether an answer to a request may go there: not to where messages, requests or notifications are."""
        naming = self.options.naming
        if naming.is_usable(place, wildcards=False) and not any(
            naming.overlap(taken, place) for taken in self.options.places.values()
        ):
            return True
        fields = {"gateway": self.options.session, "topic": place[:200]}
        _LOG.warning("a request is not answered, as its answer cannot go there", extra={"fields": fields})
        return False

    # -- the object --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin; returns at once, also where the other broker cannot be reached yet."""
        self._sending.start()
        self.requests.start()
        self._handing_over.start()
        self._connecting.start()

    def stop(self, timeout: float = 10.0) -> bool:
        """Take no more messages, send all notifications, and end; whether that was done within `timeout` seconds."""
        until = time.monotonic() + timeout
        self._end_receiving()
        is_whole = self._handing_over.wait(timeout)
        self._handing_over.end()
        is_whole &= self._sending.end(max(until - time.monotonic(), 0.0))
        self._ended.set()
        self._end()
        self._connecting.join(max(until - time.monotonic(), 1.0))
        self.requests.stop()
        return is_whole

    def stats(self) -> dict[str, int]:
        """Counts."""
        return {
            "connected": int(self._connected.is_set()),
            "connections": self._connections,
            "disconnections": self._failures,
            **self._handing_over.stats(),
            **self._sending.stats(),
            **self._letters.stats(),
            **self.requests.stats(),
        }
