"""The service: it begins and ends here, and its calls are checked, counted and logged, and go to what answers them."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyarrow import flight

from tagmatch.broker import wire
from tagmatch.broker.access import ENDS, RESERVED, Call, UserLimits, require, user_of
from tagmatch.broker.answers import ACTIONS, CONTENTS, EXCHANGES, LIMITED, PUTS, Stream, options_of
from tagmatch.broker.config import ChannelOptions, Config, MetricsOptions, Role, ServerOptions, User
from tagmatch.broker.config_file import check_files
from tagmatch.broker.flight import FlightCall, Method, Transport
from tagmatch.broker.http.server import HttpServer
from tagmatch.broker.hub import Subscribers
from tagmatch.broker.observe import LOG, HttpEndpoint, Metrics, Span, set_up_logs, spans
from tagmatch.broker.replicas import Copies, first_of
from tagmatch.broker.wire import GoneError, UnauthenticatedError, in_url, is_expected, name_of, read_json, write_json
from tagmatch.embedded import TagMatch
from tagmatch.model.errors import (
    AccessError,
    ClosedError,
    ConfigError,
    FilterError,
    IndexNotFoundError,
    InvalidTypeError,
    InvalidValueError,
    Overloaded,
    TagMatchError,
    UnavailableError,
)
from tagmatch.model.names import near_match
from tagmatch.model.options import Channel, Order
from tagmatch.model.storage.format import WRITER
from tagmatch.model.storage.repository import location_of


class Service:
    """An index, served; `serving` starts one, and ends it."""

    def __init__(self, index: TagMatch[Any], config: Config, span: Span, copies: Copies | None = None) -> None:
        stats, server = index.stats(), config.server
        self.index, self.config, self.span = index, config, span
        self.key_type, self.plane = stats["key_type"], bool(stats["plane"])
        self._limited = {user.name: _limited(index, user) for user in config.users if user.filter is not None}
        self.limits = UserLimits(server)
        self.is_draining = False
        self._draining = threading.Lock()
        self._was_answered: bool | None = None  # all that was under way, once it has ended
        self.subscribers = Subscribers(index, config, self.key_type)
        copied = None if copies is None else copies.behind
        self.metrics = Metrics(index.stats, self.limits.stats, self.subscribers.stats, copied)
        methods: dict[str, Method] = {
            "DoExchange": partial(self._stream, "exchange", EXCHANGES),
            "DoPut": partial(self._stream, "put", PUTS),
            "DoGet": self._get,
            "DoAction": self._action,
            "ListActions": partial(self._question, "list_actions", self._actions),
            "ListFlights": partial(self._question, "list_flights", self._infos),
            "GetFlightInfo": partial(self._question, "get_flight_info", self._info),
            "GetSchema": partial(self._question, "get_schema", self._schema),
        }
        self._transport = Transport(
            server,
            f"{in_url(server.host)}:{server.port}",
            {f"/arrow.flight.protocol.FlightService/{name}": method for name, method in methods.items()},
            server.max_calls + 3 * RESERVED,
            self.has_ended,
        )
        self.port = self._transport.port
        scheme = "grpc" if server.tls_cert is None else "grpc+tls"
        self.url = f"{scheme}://{in_url(server.host)}:{self.port}"
        try:
            self.http = HttpServer(self) if config.http.enabled else None
        except BaseException:
            self._transport.stop()
            raise

    def _stream(self, what: str, known: dict[str, tuple[Role, Stream]], call: FlightCall) -> Generator[bytes]:
        """`DoExchange` and `DoPut`: a stream of the client, and perhaps one to it."""
        with self.taken(call, what) as taken:
            incoming = wire.IncomingStream(call, self.config.server)
            if not incoming.descriptor.is_command:
                raise InvalidTypeError("the descriptor must be a command, a JSON object, not a path")
            command = read_json(incoming.descriptor.command, "the descriptor")
            name = command.pop("command", None)
            if not isinstance(name, str) or name not in known:
                raise InvalidValueError(f"there is no command {str(name)[:60]!r}{near_match(str(name)[:60], [*known])}")
            role, stream = known[name]
            taken.as_(role, name)
            yield from stream(call, incoming, **options_of(stream, command, "the descriptor"))

    def _get(self, call: FlightCall) -> Generator[bytes]:
        """`DoGet`: give the stored rows or sets."""
        with self.taken(call, "get") as taken:
            name = _content_in(wire.read_ticket(call.only()), "ticket")
            taken.as_("read", "get")
            self.limits.admit(call.user.name, 1)
            schema, batches = CONTENTS[name](call.index)
            outgoing = call.outgoing(schema)
            yield outgoing.begin()
            for batch in batches:
                call.require()
                yield from outgoing.batch(batch)

    def _action(self, call: FlightCall) -> Generator[bytes]:
        """`DoAction`: do something else."""
        with self.taken(call, "action", is_action=True, while_draining=True) as taken:
            name, body = wire.read_action(call.only())
            if (found := ACTIONS.get(name)) is None:
                raise InvalidValueError(f"there is no action {name[:60]!r}; there is {', '.join(ACTIONS)}")
            given = {} if found.role is None else read_json(body, "the body")
            taken.as_(found.role, name)
            if found.role is not None:
                self.limits.admit(call.user.name, 1)
            yield call.result(found.perform(call, **options_of(found.perform, given, name)))

    def _question(
        self, what: str, answers: Callable[[FlightCall], Iterable[bytes]], call: FlightCall
    ) -> Generator[bytes]:
        """What a client asks about the service, for which the role `read` is enough."""
        with self.taken(call, what, while_draining=True) as taken:
            taken.as_("read", what)
            yield from answers(call)

    def _actions(self, _: FlightCall) -> Iterator[bytes]:
        return (wire.action_type(name, each.description) for name, each in ACTIONS.items())

    def _schema(self, call: FlightCall) -> Iterator[bytes]:
        yield flight.SchemaResult(self._columns(call, wire.read_descriptor(call.only()).command)).serialize()

    def _info(self, call: FlightCall) -> Iterator[bytes]:
        yield self._described(call, wire.read_descriptor(call.only()).command)

    def _infos(self, call: Call) -> Iterator[bytes]:
        return (self._described(call, write_json({"get": name})) for name in CONTENTS)

    def _described(self, call: Call, command: bytes) -> bytes:
        """What a descriptor asks for is given, at the same place, for it as a ticket; its length is not known."""
        descriptor, endpoint = flight.FlightDescriptor.for_command(command), flight.FlightEndpoint(command, [])
        info: bytes = flight.FlightInfo(self._columns(call, command), descriptor, [endpoint], -1, -1).serialize()
        return info

    def _columns(self, call: Call, command: bytes) -> pa.Schema:
        schema, _ = CONTENTS[_content_in(command, "descriptor")](call.index)
        return schema

    def taken(self, call: Call, what: str, *, is_action: bool = False, while_draining: bool = False) -> Taken:
        """Take in a call, in a `with` block, if there is room for it, before anything of it is read."""
        return Taken(self, call, what, is_action=is_action, while_draining=while_draining)

    def index_of(self, user: User) -> TagMatch[Any]:
        """The index; a user with a filter sees and changes some of its keys."""
        return self.index if user.filter is None else self._limited[user.name]

    def has_ended(self, call: Call, error: TagMatchError) -> None:
        """Note that a call was ended whose client does nothing, or may no longer."""
        self.metrics.cancelled.inc()
        LOG.warning("a call was ended", extra={"fields": {"peer": call.peer, "reason": str(error)}})

    @property
    def is_ready(self) -> bool:
        """Whether it takes calls, and gateways that are required have connections."""
        return not self.is_draining and self.subscribers.is_ready

    def readiness(self) -> tuple[bool, bytes]:
        """Whether it is ready, and that in words, with a line for each gateway."""
        lines = ["ready" if self.is_ready else "not ready"]
        lines += [f"{gateway}: {condition}" for gateway, condition in self.subscribers.conditions.items()]
        return self.is_ready, "".join(f"{line}\n" for line in lines).encode()

    def figures(self) -> dict[str, Any]:
        """What the action `stats` tells of the service."""
        own = self.limits.stats(), self.subscribers.stats(), self.subscribers.conditions
        return {**self.metrics.figures(), **dict(zip(("limits", "subscribers", "gateways"), own, strict=True))}

    def drain(self) -> None:
        """Take no more calls, and ask clients to end their streams; returns at once."""
        with self._draining:
            if self.is_draining:
                return
            self.is_draining = True
        LOG.info("draining")
        self.subscribers.begin_to_end()

    def end(self) -> bool:
        """Drain it, and end the calls that are still under way; returns whether all were answered before."""
        self.drain()
        if self._was_answered is None:
            until = time.monotonic() + self.config.server.drain_seconds
            self._was_answered = self.limits.wait_until_idle(self.config.server.drain_seconds)
            self.subscribers.end(max(until - time.monotonic(), _LAST_S))
            self._transport.stop()
            if self.http is not None:
                self.http.stop()
            self.limits.wait_until_idle(_LAST_S)
        return self._was_answered


class Taken:
    """A call that the service has taken in: it is checked, counted and logged. Any failure is an error of one line."""

    def __init__(self, service: Service, call: Call, what: str, *, is_action: bool, while_draining: bool) -> None:
        self._service, self._call, self._what = service, call, what
        self._is_action, self._while_draining = is_action, while_draining
        self._began: float | None = None

    def __enter__(self) -> Taken:
        service, call = self._service, self._call
        try:
            call.service, call.user = service, user_of(call.token, service.config.users, or_nobody=self._is_action)
            call.memory = service.limits.begin(call.user, call.peer, call.ended, is_action=self._is_action)
            if service.is_draining and not self._while_draining:
                service.limits.end(call.memory)
                raise UnavailableError(ENDS)
        except Exception as error:
            raise self._told(error) from None
        return self

    def as_(self, role: Role | None, name: str) -> None:
        """Check that the user may do this, as soon as that is known, and begin to count it."""
        service, call = self._service, self._call
        if role is not None:
            require(call.user, role, name)
            if call.user.filter is not None and name not in LIMITED:
                raise AccessError(f"{name} is not for users with a filter, as {call.user.name!r} has")
        call.role, call.what = role, name
        self._began, self._what = time.perf_counter(), name
        self._times = service.metrics.of_call(name)
        self._times.begin()
        self._span = service.span(name, call.user.name, call.peer)
        if self._span is not None:
            self._span.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        service, call = self._service, self._call
        if self._began is not None:
            seconds = time.perf_counter() - self._began
            self._times.observe(seconds)
            if self._span is not None:
                self._span.__exit__(kind, error, trace)
            if LOG.isEnabledFor(logging.DEBUG) and error is None:
                fields = {"call": self._what, "user": call.user.name, "peer": call.peer, "seconds": round(seconds, 6)}
                LOG.debug("call", extra={"fields": fields})
        service.limits.end(call.memory)
        if isinstance(error, Exception):
            raise self._told(error) from None

    def _told(self, error: Exception) -> Exception:
        """The error for the client, counted and logged; an unforeseen one is logged as a whole."""
        fields = {"call": self._what, "peer": self._call.peer}
        if isinstance(error, GoneError):
            LOG.debug("a client is gone", extra={"fields": fields})
            return error
        metrics = self._service.metrics
        if isinstance(error, AccessError | Overloaded):
            reasons = {UnauthenticatedError: "unauthenticated", AccessError: "role", Overloaded: "limit"}
            metrics.refusals.labels(next(reason for kind, reason in reasons.items() if isinstance(error, kind))).inc()
            LOG.warning("refused", extra={"fields": {"reason": str(error)}})
        elif not is_expected(error):
            LOG.error("a call has failed", extra={"fields": fields}, exc_info=error)
        else:
            LOG.info("error", extra={"fields": {**fields, "error": str(error)[:500]}})
        if isinstance(error, ClosedError):
            error = UnavailableError(ENDS)
        metrics.errors.labels(name_of(error)).inc()
        return error


def _limited(index: TagMatch[Any], user: User) -> TagMatch[Any]:
    """The index with the keys that a user may see and change; ConfigError if the filter does not fit its data."""
    own = copy(index)
    try:
        own._engine = index._engine.limited(user.filter or "")
    except (InvalidTypeError, InvalidValueError, FilterError) as error:
        raise ConfigError(f"filter of user {user.name!r}: {error}") from None
    return own


def _content_in(request: bytes, what: str) -> str:
    found = read_json(request, f"the {what}")
    name = found.pop("get", None)
    if found or not isinstance(name, str) or name not in CONTENTS:
        raise InvalidValueError(f'the {what} must be {{"get": NAME}}, with {" or ".join(CONTENTS)}')
    return name


# -- how it begins and ends -------------------------------------------------------------------------------------------

# A thread that waits for the interpreter lock asks for it so soon: answers need not wait for other work
_SWITCH_S = 0.0002
# For work under way in libraries, after the time to drain
_LAST_S = 2.0

#: Warned of, as it may not be meant
NO_INDEX = "there is no index: give INDEX, or `path` in [index]"
NO_USERS = "there are no users: everyone who can connect may do everything"


@contextlib.contextmanager
def serving(index: TagMatch[Any], config: Config | None = None, copies: Copies | None = None) -> Iterator[Service]:
    """Serve an index within a `with` block: by default on a free port of this machine, for everyone on it.

    At its end the service drains: for at most `drain_seconds` calls under way are answered.
    """
    if config is None:
        config = Config(ServerOptions(port=0), metrics=MetricsOptions(enabled=False))
    config.check_exposure()
    check_files(config)
    try:
        service = Service(index, config, spans(to_console=config.log.traces), copies)
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, TagMatchError):
            raise
        where = f"{config.server.host}:{config.server.port}"
        raise TagMatchError(f"{where}: cannot listen: {' '.join(str(error).split())}") from None
    try:
        service.subscribers.start()
        yield service
    finally:
        service.end()


def run(config: Config, announce: Callable[[str], None]) -> None:
    """Serve until SIGTERM, Ctrl-C or the action `drain`; a second signal ends the process at once."""
    set_up_logs(config.log)
    sys.setswitchinterval(_SWITCH_S)
    stop = threading.Event()

    def obey(*_: object) -> None:
        if stop.is_set():
            os._exit(0)
        stop.set()

    with contextlib.ExitStack() as stack:
        shown = None
        if config.metrics.enabled:  # before the index is open, which may take long
            shown = HttpEndpoint(
                config.metrics, lambda: b"", lambda: (False, b"not ready: the index is not open yet\n")
            )
            stack.callback(shown.close)
        index = stack.enter_context(first_of(partial(opened, config)) if config.index.follow else opened(config))
        make_ready(index)
        copies = None
        if config.index.copy_to is not None:
            copies = stack.enter_context(Copies(_path_in(config), config.index.copy_to))
        service = stack.enter_context(serving(index, config, copies))
        signal.set_wakeup_fd(-1)  # from here on, both drain; until here they have ended the process
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, obey)
        where = f"listening on {service.url}"
        if service.http is not None:
            where += f" and {service.http.url}"
        if shown is not None:
            shown.show(service.metrics.text, service.readiness)
            where += f", metrics on {shown.url}/metrics"
        announce(where)
        gc.collect()
        gc.freeze()  # these objects stay: the garbage collector need not look at them again and again
        if not config.users:
            LOG.warning(NO_USERS)
        LOG.info("started", extra={"fields": {"url": service.url, "sets": len(index)}})
        while not stop.wait(0.2) and not service.is_draining:
            pass
        answered_all = service.end()
        LOG.info("ended", extra={"fields": {"answered_all": answered_all}})
    if not answered_all:  # calls that are still at work need not end
        sys.stdout.flush()
        os._exit(0)


def notes_on(config: Config) -> list[str]:
    """What may surprise, though it can be meant; the errors of an index with which no service could begin."""
    notes, options = [] if config.users else [NO_USERS], config.index
    if options.path is None:
        return [*notes, NO_INDEX]
    index = location_of(_path_in(config), "INDEX")
    if not (options.create or options.follow) or index.has_index():
        index.manifest()
    if (files := index.changeable) is not None and not options.follow and index.has_index():
        lock = files.lock_at_once(WRITER)
        if lock is None:
            notes.append(
                f"a program has changes staged for the index {index}: the service answers, and refuses changes"
            )
        else:
            lock.close()
    return notes


def make_ready(index: TagMatch[Any]) -> None:
    """Compile the kernels that match messages of tags, or load them, before a message comes: match two.

    They are in no channel: there, what takes so long once would be taken for what every message takes. Those of changes
    are loaded, too, as messages that come during the first change wait for that: a small index is made and changed.
    """
    tags, _ = wire.apart(next(iter(index), (frozenset(), ()))[0])
    index.match_many(pa.table({"tags": pa.array([tags, tags], pa.list_(pa.string()))}))
    with TagMatch(layout=index.snapshot.segments[0].options.layout, device="cpu") as small:
        for change in (small.add_sets, small.remove_sets):
            change([["a", "b"], ["b"]], [1, 2])
            small.consolidate()


def opened(config: Config) -> TagMatch[Any]:
    """The index that a configuration names."""
    options, path = config.index, _path_in(config)
    channels = [each.channel for each in config.channel]
    place: Any = path
    if options.follow:
        place = location_of(path, "INDEX").followed(options.writer or "the service that saves it")
    try:
        return TagMatch.open(place, **options.keywords, channels=channels)
    except IndexNotFoundError:
        if not options.create:
            raise
        return TagMatch(path, **options.keywords, channels=channels)


def _path_in(config: Config) -> str:
    if config.index.path is None:
        raise ConfigError(NO_INDEX)
    return config.index.path


def with_arguments(
    config: Config,
    path: str | None,
    host: str | None,
    port: int | None,
    channels: Sequence[Channel] = (),
    order: Order | None = None,
    *,
    follow: bool = False,
) -> Config:
    """The configuration, where arguments of the command line take the place of some options.

    A channel takes the place of the one with its name.
    """
    by_name = {each.name: each for each in config.channel}
    for each in channels:
        by_name[each.name] = ChannelOptions(each.name, each.due if each.deadline is not None else None, each.priority)
    return replace(
        config,
        index=replace(config.index, **_given(path=path, order=order, follow=follow or None)),
        server=replace(config.server, **_given(host=host, port=port)),
        channel=tuple(by_name.values()),
    )


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
