"""The service itself: calls of Flight come in, are checked, counted and logged, and go to what answers them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyarrow import flight

from tagmatch.broker.access import MIDDLEWARE, Access, Users, require
from tagmatch.broker.actions import ACTIONS, action
from tagmatch.broker.calls import Call
from tagmatch.broker.changes import put
from tagmatch.broker.config import Config, Role, User
from tagmatch.broker.contents import CONTENTS
from tagmatch.broker.errors import UnauthenticatedError, flight_error, is_expected, name_of
from tagmatch.broker.exchange import exchange
from tagmatch.broker.limits import Limits
from tagmatch.broker.logs import LOG
from tagmatch.broker.metrics import Metrics
from tagmatch.broker.subscribing import Subscribers
from tagmatch.broker.tracing import Span, no_span
from tagmatch.broker.wire import ChangeOptions, MatchOptions, read_json, write_json
from tagmatch.interface import TagMatch
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

#: A stream of any kind: `stream(call, command, reader, writer)`
Stream = Callable[[Call, dict[str, Any], Any, Any], None]
_NOBODY = User("nobody", "0" * 64)


def _matching(call: Call, command: dict[str, Any], reader: Any, writer: Any) -> None:
    exchange(call, MatchOptions.of(command, "the descriptor"), reader, writer)


def _matching_unique(call: Call, command: dict[str, Any], reader: Any, writer: Any) -> None:
    _matching(call, {**command, "unique": True}, reader, writer)


def _changing(kind: str) -> Stream:
    def change(call: Call, command: dict[str, Any], reader: Any, writer: Any) -> None:
        put(call, kind, ChangeOptions.of(command, "the descriptor"), reader, writer)

    return change


class Service(flight.FlightServerBase):  # type: ignore[misc]
    """An index, served; `running.serving` starts one, and ends it.

    Parameters
    ----------
    index : TagMatch
    config : Config
    span : callable
        What begins a span, as `tracing.spans` makes it.

    Attributes
    ----------
    index : TagMatch
    config : Config
    limits : Limits
    metrics : Metrics
    has_string_keys, plane : bool
        Of the index.
    exchanges, puts : dict
        What a command of `DoExchange` and of `DoPut` does, by name, with the role that it needs: to add more to.
    subscribers : Subscribers
        Sessions, what publishes to them, and gateways.
    is_draining : bool
        Whether it ends.
    on_drain : list of callable
        Called once when it begins to end.
    """

    def __init__(self, index: TagMatch[Any], config: Config, span: Span = no_span) -> None:
        stats, server = index.stats(), config.server
        self.index, self.config, self._span = index, config, span
        self.has_string_keys, self.plane = stats["key_type"] == "string", bool(stats["plane"])
        self.limits, self.metrics = Limits(server), Metrics(index.stats)
        self.metrics.connections.set_function(lambda: self.limits.connections)
        self.exchanges: dict[str, tuple[Role, Stream]] = {
            "match": ("read", _matching),
            "match_unique": ("read", _matching_unique),
        }
        self.puts: dict[str, tuple[Role, Stream]] = {
            kind: ("write", _changing(kind)) for kind in ("add", "remove", "move")
        }
        self.is_draining = False
        self.on_drain: list[Callable[[], None]] = []
        self._idle, self._drained = threading.Condition(), threading.Event()
        self._calls = 0
        self.subscribers = Subscribers(self)
        scheme = "grpc" if server.tls_cert is None else "grpc+tls"
        super().__init__(
            f"{scheme}://{_in_url(server.host)}:{server.port}",
            tls_certificates=None if server.tls_cert is None else [(_read(server.tls_cert), _read(server.tls_key))],
            verify_client=server.client_ca is not None,
            root_certificates=None if server.client_ca is None else _read(server.client_ca),
            middleware={MIDDLEWARE: Access(Users(config.users), self._refuse)},
        )
        self.url = f"{scheme}://{_in_url(server.host)}:{self.port}"

    # -- calls -------------------------------------------------------------------------------------------------------

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Answer messages."""
        with self._errors(context, "exchange"):
            role, stream, name, command = _command(descriptor, self.exchanges)
            with self._call(context, role, name) as call:
                stream(call, command, reader, writer)

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Make changes."""
        with self._errors(context, "put"):
            role, stream, name, command = _command(descriptor, self.puts)
            with self._call(context, role, name) as call:
                stream(call, command, reader, writer)

    def do_get(self, context: Any, ticket: Any) -> flight.GeneratorStream:
        """Give what is stored."""
        with self._errors(context, "get"):
            found = read_json(ticket.ticket, "the ticket")
            name = found.pop("get", None)
            if found or not isinstance(name, str) or name not in CONTENTS:
                raise InvalidValueError(f'the ticket must be {{"get": NAME}}, with {" or ".join(CONTENTS)}')
            with self._call(context, "read", "get") as call:
                self.limits.admit(call.user.name, 1)
                schema, batches = CONTENTS[name](call)
        return flight.GeneratorStream(schema, self._given(context, batches))

    def do_action(self, context: Any, asked: Any) -> list[bytes]:
        """Do something else."""
        with self._errors(context, "action"):
            found, body = action(asked.type), asked.body
            if found.role is None:
                return [write_json(found.perform(Call(self, _NOBODY, "read", asked.type, ""), {}))]
            options = read_json(b"" if body is None else body.to_pybytes(), "the body")
            with self._call(context, found.role, asked.type, while_draining=True) as call:
                self.limits.admit(call.user.name, 1)
                return [write_json(found.perform(call, options))]
        raise AssertionError  # `_errors` raises

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        """Say which actions there are."""
        with self._errors(context, "list_actions"):
            self._user(context, "read", "list_actions")
        return [(name, each.description) for name, each in ACTIONS.items()]

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[Any]:
        """Say what there is to get."""
        del criteria
        with self._errors(context, "list_flights"):
            self._user(context, "read", "list_flights")
            found = [self._flight(write_json({"get": name}), name) for name in CONTENTS]
        return iter(found)

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        """Say what a descriptor `{"get": NAME}` would give."""
        with self._errors(context, "get_flight_info"):
            self._user(context, "read", "get_flight_info")
            name = read_json(descriptor.command or b"", "the descriptor").get("get")
            if not isinstance(name, str) or name not in CONTENTS:
                raise InvalidValueError(f'the descriptor must be {{"get": NAME}}, with {" or ".join(CONTENTS)}')
            return self._flight(descriptor.command, name)

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        """Say which columns that would have."""
        return flight.SchemaResult(self.get_flight_info(context, descriptor).schema)

    def _flight(self, command: bytes, name: str) -> Any:
        schema, _ = CONTENTS[name](Call(self, _NOBODY, "read", "get", ""))
        descriptor = flight.FlightDescriptor.for_command(command)
        return flight.FlightInfo(schema, descriptor, [flight.FlightEndpoint(command, [])], -1, -1)

    # -- around them -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _call(self, context: Any, role: Role, name: str, *, while_draining: bool = False) -> Iterator[Call]:
        """Check who calls, and count the call."""
        user = self._user(context, role, name)
        peer, began = context.peer(), time.perf_counter()
        with self._idle:
            if self.is_draining and not while_draining:
                raise UnavailableError("the service ends, and takes no more calls")
            self._calls += 1
        try:
            with (
                self.limits.connection(peer),
                self.metrics.call(name),
                self._span(f"tagmatch.{name}", {"user": user.name, "peer": peer}),
            ):
                yield Call(self, user, role, name, peer)
        finally:
            with self._idle:
                self._calls -= 1
                self._idle.notify_all()
        seconds = round(time.perf_counter() - began, 6)
        LOG.debug("call", extra={"fields": {"call": name, "user": user.name, "peer": peer, "seconds": seconds}})

    def _user(self, context: Any, role: Role, what: str) -> User:
        caller = context.get_middleware(MIDDLEWARE)
        return require(None if caller is None else caller.user, role, what)

    @contextlib.contextmanager
    def _errors(self, context: Any, what: str) -> Iterator[None]:
        """Make whatever goes wrong an error of Flight, of one line; what was not foreseen is logged as a whole."""
        try:
            yield
        except Exception as error:
            if isinstance(error, AccessError | Overloaded):
                self._refuse(error)
            elif not is_expected(error):
                LOG.exception("a call has failed", extra={"fields": {"call": what, "peer": context.peer()}})
            else:
                LOG.info("error", extra={"fields": {"call": what, "peer": context.peer(), "error": str(error)[:500]}})
            if isinstance(error, ClosedError):
                error = UnavailableError("the service ends, and takes no more calls")
            self.metrics.errors.labels(name_of(error)).inc()
            raise flight_error(error) from None

    def _refuse(self, error: TagMatchError) -> None:
        reasons = {UnauthenticatedError: "unauthenticated", AccessError: "role", Overloaded: "limit"}
        self.metrics.refused(next(reason for kind, reason in reasons.items() if isinstance(error, kind)))
        LOG.warning("refused", extra={"fields": {"reason": str(error)}})

    def _given(self, context: Any, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with self._errors(context, "get"):
            yield from batches

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
        for act in self.on_drain:
            act()
        self._drained.set()

    def wait_for_drain(self, timeout: float | None = None) -> bool:
        """Wait until somebody calls `drain`; returns whether somebody has."""
        return self._drained.wait(timeout)

    def wait_until_idle(self, seconds: float) -> bool:
        """Wait until no call is under way; returns whether that is so."""
        with self._idle:
            return self._idle.wait_for(lambda: not self._calls, seconds)


def _command(descriptor: Any, known: dict[str, tuple[Role, Stream]]) -> tuple[Role, Stream, str, dict[str, Any]]:
    """What a descriptor asks for, and its options."""
    if descriptor.descriptor_type != flight.DescriptorType.CMD:
        raise InvalidTypeError("the descriptor must be a command, a JSON object, not a path")
    command = read_json(descriptor.command or b"", "the descriptor")
    name = command.pop("command", None)
    if not isinstance(name, str) or name not in known:
        raise InvalidValueError(f"there is no command {str(name)[:60]!r}{near_match(str(name)[:60], [*known])}")
    return (*known[name], name, command)


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _read(path: str | None) -> bytes:
    assert path is not None
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise TagMatchError(f"{path}: cannot be read: {error.strerror}") from None
