"""The service itself: calls of Flight come in, are checked, counted and logged, and go to what answers them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Generator, Iterator
from functools import partial
from typing import Any

from tagmatch.broker import flight as wire
from tagmatch.broker.access import RESERVED, ClientCall, UserLimits, require, user_of
from tagmatch.broker.actions import ACTIONS, CONTENTS, action
from tagmatch.broker.config import Config, Role, User, in_url
from tagmatch.broker.flight import IncomingStream, Method, OutgoingStream, Rpc, Transport
from tagmatch.broker.hub import Subscribers
from tagmatch.broker.observe import LOG, Metrics, Span, no_span
from tagmatch.broker.streams import EXCHANGES, PUTS, Stream
from tagmatch.broker.wire import (
    GoneError,
    UnauthenticatedError,
    is_expected,
    name_of,
    read_json,
    write_json,
)
from tagmatch.embedded import TagMatch
from tagmatch.model.errors import (
    AccessError,
    ClosedError,
    InvalidTypeError,
    InvalidValueError,
    Overloaded,
    TagMatchError,
    UnavailableError,
)
from tagmatch.model.names import near_match


class Service:
    """An index, served; `running.serving` starts one, and ends it."""

    def __init__(self, index: TagMatch[Any], config: Config, span: Span = no_span) -> None:
        stats, server = index.stats(), config.server
        self.index, self.config, self._span = index, config, span
        self.has_string_keys, self.plane = stats["key_type"] == "string", bool(stats["plane"])
        self.limits: UserLimits = UserLimits(server)
        self.metrics = Metrics(index.stats)
        for gauge, figure in (("connections", "connections"), ("under_way", "calls"), ("held", "held")):
            getattr(self.metrics, gauge).set_function(lambda figure=figure: getattr(self.limits, figure))
        self.is_draining = False
        self._idle = threading.Condition()
        self._calls = 0
        self.subscribers = Subscribers(index, config, stats["key_type"])
        self.metrics.watch_subscribers(self.subscribers.stats)
        methods: dict[str, Method] = {
            "DoExchange": partial(self._stream, "exchange", EXCHANGES),
            "DoPut": partial(self._stream, "put", PUTS),
            "DoGet": self._get,
            "DoAction": self._action,
            "ListActions": self._list_actions,
            "ListFlights": self._list_flights,
            "GetFlightInfo": self._flight_info,
            "GetSchema": self._schema,
        }
        self._transport = Transport(
            server,
            f"{in_url(server.host)}:{server.port}",
            {f"/arrow.flight.protocol.FlightService/{name}": method for name, method in methods.items()},
            server.max_calls + 3 * RESERVED,
            self._has_ended,
        )
        self.port = self._transport.port
        scheme = "grpc" if server.tls_cert is None else "grpc+tls"
        self.url = f"{scheme}://{in_url(server.host)}:{self.port}"

    # -- calls -------------------------------------------------------------------------------------------------------

    def _stream(self, what: str, known: dict[str, tuple[Role, Stream]], rpc: Rpc) -> Generator[bytes]:
        """`DoExchange` and `DoPut`: a stream of the client, and perhaps one to it."""
        with self._taken(rpc, what) as user:
            incoming = IncomingStream(rpc, self.config.server)
            role, stream, name, command = _command(incoming.descriptor, known)
            with self._call(rpc, user, role, name) as call:
                yield from stream(call, command, incoming)

    def _get(self, rpc: Rpc) -> Generator[bytes]:
        """`DoGet`: give the stored rows or sets."""
        with self._taken(rpc, "get") as user:
            found = read_json(wire.read_ticket(rpc.only()), "the ticket")
            name = found.pop("get", None)
            if found or not isinstance(name, str) or name not in CONTENTS:
                raise InvalidValueError(f'the ticket must be {{"get": NAME}}, with {" or ".join(CONTENTS)}')
            with self._call(rpc, user, "read", "get") as call:
                self.limits.admit(call.user.name, 1)
                schema, batches = CONTENTS[name](self.index)
                outgoing = OutgoingStream(schema)
                yield outgoing.begin()
                for batch in batches:
                    call.require()
                    yield from outgoing.batch(batch)

    def _action(self, rpc: Rpc) -> Generator[bytes]:
        """`DoAction`: do something else."""
        with self._taken(rpc, "action", is_action=True, while_draining=True) as user:
            name, body = wire.read_action(rpc.only())
            found = action(name)
            given = {} if found.role is None else read_json(body, "the body")
            with self._call(rpc, user, found.role, name) as call:
                if found.role is not None:
                    self.limits.admit(call.user.name, 1)
                yield wire.result(write_json(found.perform(call, found.options.of(given, name))))

    def _list_actions(self, rpc: Rpc) -> Generator[bytes]:
        """`ListActions`: say which actions there are."""
        with self._asked(rpc, "list_actions"):
            for name, each in ACTIONS.items():
                yield wire.action_type(name, each.description)

    def _list_flights(self, rpc: Rpc) -> Generator[bytes]:
        """`ListFlights`: say what there is to get."""
        with self._asked(rpc, "list_flights"):
            for name in CONTENTS:
                yield wire.flight_info(self._schema_of(name), write_json({"get": name}))

    def _flight_info(self, rpc: Rpc) -> Generator[bytes]:
        """`GetFlightInfo`: say what a descriptor `{"get": NAME}` would give."""
        with self._asked(rpc, "get_flight_info"):
            command = wire.read_descriptor(rpc.only()).command
            yield wire.flight_info(self._described(command), command)

    def _schema(self, rpc: Rpc) -> Generator[bytes]:
        """`GetSchema`: say which columns that would have."""
        with self._asked(rpc, "get_schema"):
            yield wire.schema_result(self._described(wire.read_descriptor(rpc.only()).command))

    def _described(self, command: bytes) -> memoryview:
        """The schema of what a descriptor asks for."""
        name = read_json(command, "the descriptor").get("get")
        if not isinstance(name, str) or name not in CONTENTS:
            raise InvalidValueError(f'the descriptor must be {{"get": NAME}}, with {" or ".join(CONTENTS)}')
        return self._schema_of(name)

    def _schema_of(self, name: str) -> memoryview:
        schema, _ = CONTENTS[name](self.index)
        return memoryview(schema.serialize())

    # -- around them -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _asked(self, rpc: Rpc, what: str) -> Iterator[None]:
        """Take in a question about the service, for which the role `read` is enough."""
        with self._taken(rpc, what, while_draining=True) as user, self._call(rpc, user, "read", what):
            yield

    @contextlib.contextmanager
    def _taken(self, rpc: Rpc, what: str, *, is_action: bool = False, while_draining: bool = False) -> Iterator[User]:
        """Take in a call, if there is room for it, before anything of it is read; give its user."""
        with self._errors(rpc, what):
            user = user_of(rpc.token, self.config.users, or_nobody=is_action)
            with self._idle:
                if self.is_draining and not while_draining:
                    raise UnavailableError("the service ends, and takes no more calls")
                self._calls += 1
            try:
                with self.limits.call(user, rpc.peer, is_action=is_action):
                    yield user
            finally:
                with self._idle:
                    self._calls -= 1
                    self._idle.notify_all()

    @contextlib.contextmanager
    def _call(self, rpc: Rpc, user: User, role: Role | None, name: str) -> Iterator[ClientCall]:
        """Check what the caller may do, and count the call."""
        if role is not None:
            require(user, role, name)
        began = time.perf_counter()
        with (
            self.metrics.call(name),
            self._span(f"tagmatch.{name}", {"user": user.name, "peer": rpc.peer}),
            self.limits.memory(user, rpc.ended) as memory,
        ):
            call = ClientCall(self, user, role or "read", name, rpc, memory)
            rpc.check = call.require
            yield call
        seconds = round(time.perf_counter() - began, 6)
        LOG.debug("call", extra={"fields": {"call": name, "user": user.name, "peer": rpc.peer, "seconds": seconds}})

    @contextlib.contextmanager
    def _errors(self, rpc: Rpc, what: str) -> Iterator[None]:
        """Make whatever goes wrong an error of Flight, of one line; what was not foreseen is logged as a whole."""
        try:
            yield
        except GoneError:
            LOG.debug("a client is gone", extra={"fields": {"call": what, "peer": rpc.peer}})
            raise
        except Exception as error:
            if isinstance(error, AccessError | Overloaded):
                self._refuse(error)
            elif not is_expected(error):
                LOG.exception("a call has failed", extra={"fields": {"call": what, "peer": rpc.peer}})
            else:
                LOG.info("error", extra={"fields": {"call": what, "peer": rpc.peer, "error": str(error)[:500]}})
            if isinstance(error, ClosedError):
                error = UnavailableError("the service ends, and takes no more calls")
            self.metrics.errors.labels(name_of(error)).inc()
            raise error from None

    def _refuse(self, error: TagMatchError) -> None:
        reasons = {UnauthenticatedError: "unauthenticated", AccessError: "role", Overloaded: "limit"}
        reason = next(reason for kind, reason in reasons.items() if isinstance(error, kind))
        self.metrics.refusals.labels(reason).inc()
        LOG.warning("refused", extra={"fields": {"reason": str(error)}})

    def _has_ended(self, rpc: Rpc, error: TagMatchError) -> None:
        self.metrics.cancelled.inc()
        LOG.warning("a call was ended", extra={"fields": {"peer": rpc.peer, "reason": str(error)}})

    # -- the end -----------------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether it takes calls, and gateways that are required have connections."""
        return not self.is_draining and self.subscribers.is_ready

    def readiness(self) -> tuple[bool, bytes]:
        """Whether it is ready, and that in words, with a line for each gateway."""
        ready = self.is_ready
        lines = ["ready" if ready else "not ready", *(": ".join(each) for each in self.subscribers.conditions.items())]
        return ready, "".join(f"{line}\n" for line in lines).encode()

    def drain(self) -> None:
        """Take no more calls, and ask clients to end their streams; returns at once."""
        with self._idle:
            if self.is_draining:
                return
            self.is_draining = True
        LOG.info("draining")
        self.subscribers.begin_to_end()

    def wait_until_idle(self, seconds: float) -> bool:
        """Wait until no call is under way; returns whether that is so."""
        with self._idle:
            return self._idle.wait_for(lambda: not self._calls, seconds)

    def shutdown(self) -> None:
        """End all calls that are left, and listen no more; returns at once."""
        self._transport.stop()


def _command(descriptor: Any, known: dict[str, tuple[Role, Stream]]) -> tuple[Role, Stream, str, dict[str, Any]]:
    """What a descriptor asks for, and its options."""
    if not descriptor.is_command:
        raise InvalidTypeError("the descriptor must be a command, a JSON object, not a path")
    command = read_json(descriptor.command, "the descriptor")
    name = command.pop("command", None)
    if not isinstance(name, str) or name not in known:
        raise InvalidValueError(f"there is no command {str(name)[:60]!r}{near_match(str(name)[:60], [*known])}")
    return (*known[name], name, command)
