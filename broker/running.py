"""How a service begins and ends."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tagmatch.broker.config import ChannelOptions, Config, MetricsOptions, ServerOptions
from tagmatch.broker.config_file import check_files
from tagmatch.broker.observe import LOG, HttpEndpoint, set_up_logs, spans
from tagmatch.broker.service import Service
from tagmatch.embedded import TagMatch
from tagmatch.model.errors import ConfigError, IndexNotFoundError, TagMatchError
from tagmatch.model.options import Channel, Order
from tagmatch.model.where.constraints import Where

# A thread that waits for the interpreter lock asks for it so soon: answers need not wait for other work
_SWITCH_S = 0.0005
# For what is under way in libraries, after the time to drain
_LAST_S = 2.0

#: Said where it may not be meant
NO_USERS = "there are no users: everyone who can connect may do everything"


@contextlib.contextmanager
def serving(index: TagMatch[Any], config: Config | None = None) -> Iterator[Service]:
    """Serve an index within a `with` block: by default on a free port of this machine, for everyone on it.

    At its end the service drains: for at most `drain_seconds` what is under way is answered.
    """
    if config is None:
        config = Config(ServerOptions(port=0), metrics=MetricsOptions(enabled=False))
    service = started(index, config)
    try:
        yield service
    finally:
        end(service)


def started(index: TagMatch[Any], config: Config) -> Service:
    """A service that takes calls; errors as `serving`."""
    config.check_exposure()
    check_files(config)
    try:
        service = Service(index, config, spans(to_console=config.log.traces))
        service.subscribers.start()
        return service
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, TagMatchError):
            raise
        where = f"{config.server.host}:{config.server.port}"
        raise TagMatchError(f"{where}: cannot listen: {' '.join(str(error).split())}") from None


def end(service: Service) -> bool:
    """Drain a service and end it; returns whether all that was under way has been answered."""
    service.drain()
    idle = service.wait_until_idle(service.config.server.drain_seconds)
    service.subscribers.end(_LAST_S)
    service.shutdown()
    service.wait_until_idle(_LAST_S)
    return idle


def run(config: Config, announce: Callable[[str], None]) -> int:
    """Serve until SIGTERM, Ctrl-C or the action `drain`; returns the exit code.

    A second signal ends the process at once.
    """
    set_up_logs(config.log)
    config.check_exposure()
    sys.setswitchinterval(_SWITCH_S)
    stop = threading.Event()
    with opened(config) as index:
        make_ready(index)
        service = started(index, config)

        def obey(*_: object) -> None:
            if stop.is_set():
                os._exit(0)
            stop.set()

        signal.set_wakeup_fd(-1)  # from here on, both drain; until here they have ended the process
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, obey)
        http = None
        if config.metrics.enabled:
            http = HttpEndpoint(config.metrics, service.metrics.text, service.readiness)
        announce(f"listening on {service.url}" + ("" if http is None else f", metrics on {http.url}/metrics"))
        gc.collect()
        gc.freeze()  # what is there now stays: the garbage collector need not look at it again and again
        if not config.users:
            LOG.warning(NO_USERS)
        LOG.info("started", extra={"fields": {"url": service.url, "sets": len(index)}})
        while not stop.wait(0.2) and not service.is_draining:
            pass
        idle = end(service)
        LOG.info("ended", extra={"fields": {"answered_all": idle}})
        if http is not None:
            http.close()
    if not idle:  # calls that are still at work need not end
        sys.stdout.flush()
        os._exit(0)
    return 0


def notes_on(config: Config) -> list[str]:
    """What may surprise, though it can be meant, and what a service that begins now would miss."""
    notes = []
    if not config.users:
        notes.append(NO_USERS)
    try:
        if config.index.path is None or not config.index.create:
            TagMatch.snapshots(_path_in(config))
    except TagMatchError as error:
        notes.append(str(error))
    return notes


def make_ready(index: TagMatch[Any]) -> None:
    """Have what matches messages of tags compiled, or read from where it is kept, before one comes: match two.

    They are in no channel: there, what takes so long once would be taken for what every message takes.
    """
    stored = next(iter(index), (frozenset(), ()))[0]
    tags = [tag for tag in stored if not isinstance(tag, Where)]
    index.match_many(pa.table({"tags": pa.array([tags, tags], pa.list_(pa.string()))}))


def opened(config: Config) -> TagMatch[Any]:
    """The index that a configuration names."""
    options, path = config.index, _path_in(config)
    channels = [each.channel for each in config.channel]
    try:
        return TagMatch.open(path, **options.keywords, channels=channels)
    except IndexNotFoundError:
        if not options.create:
            raise
        return TagMatch(path, **options.keywords, channels=channels)


def _path_in(config: Config) -> str:
    if config.index.path is None:
        raise ConfigError("there is no index: give INDEX, or `path` in [index]")
    return config.index.path


def with_arguments(
    config: Config,
    path: str | None,
    host: str | None,
    port: int | None,
    channels: Sequence[Channel] = (),
    order: Order | None = None,
) -> Config:
    """The configuration, where arguments of the command line take the place of some options.

    A channel takes the place of the one with its name.
    """
    index = config.index if path is None else replace(config.index, path=path)
    if order is not None:
        index = replace(index, order=order)
    by_name = {each.name: each for each in config.channel}
    for each in channels:
        by_name[each.name] = ChannelOptions(each.name, each.due if each.deadline is not None else None, each.priority)
    server = config.server
    if host is not None:
        server = replace(server, host=host)
    if port is not None:
        server = replace(server, port=port)
    return replace(config, index=index, server=server, channel=tuple(by_name.values()))
