"""Channels of a service: over the wire, for publishers, in its configuration and its metrics."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.service import NO_METRICS, Served, remote, value, written

from tagmatch import (
    Channel,
    ConfigError,
    DeadlineMissed,
    InvalidValueError,
    Overloaded,
    TagMatch,
    connect,
)
from tagmatch.broker.client import RemoteTagMatch
from tagmatch.broker.config import ChannelOptions, Config, ServerOptions, read_config
from tagmatch.broker.gateways.incoming import Incoming, row_of
from tagmatch.broker.running import opened, serving, with_arguments
from tagmatch.broker.service import Service
from tagmatch.model.channels import channel_of
from tagmatch.pipeline.channels.lines import Edf

TIMEOUT = 60
CHANNELS = (ChannelOptions("alarm", "5s", 1), ChannelOptions("bulk", 60))


@contextlib.contextmanager
def served() -> Iterator[tuple[Service, RemoteTagMatch[Any]]]:
    index: TagMatch[int] = TagMatch(threads=2, device="cpu", channels=[each.channel for each in CHANNELS], order="edf")
    index.add_sets([["cat", "fr"], ["dog"]], [7, 8])
    index.consolidate()
    config = Config(ServerOptions(port=0), metrics=NO_METRICS, channel=CHANNELS)
    with index, serving(index, config) as service, connect(service.url) as tm:
        yield service, tm


def test_messages_of_channels() -> None:
    with served() as (service, tm):
        assert tm.submit(["cat", "fr"], channel="alarm").result(TIMEOUT) == [7]
        assert tm.submit(["dog"], unique=True, channel="alarm").result(TIMEOUT) == {8}
        assert asyncio.run(tm.amatch(["dog"], channel="bulk")) == [8]
        assert tm.match_many([["dog"], [], ["cat", "fr"]], channel="bulk").to_pylist() == [[8], [], [7]]
        assert tm.match(["dog"]) == [8]
        with tm.subscriber("phone", [7]) as phone:
            published = tm.publish([["cat", "fr"], ["dog"]], [b"miaow", b"woof"], channel="alarm")
            assert (published.messages, published.matched) == (2, 2)
            assert next(iter(phone)).payload == b"miaow"
        channels = tm.stats()["channels"]
        assert (channels["alarm"]["answered"], channels["bulk"]["answered"]) == (4, 4)
        assert value(service, "tagmatch_channel_messages_total", channel="alarm", outcome="answered") == 4
        assert value(service, "tagmatch_channel_offered_total", channel="bulk") == 4


def test_errors_keep_their_class_and_the_stream_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with served() as (service, tm):
        with monkeypatch.context() as patched:
            patched.setattr(Edf, "_too_late", lambda *_: True)
            with pytest.raises(DeadlineMissed, match="channel 'alarm', whose deadline is 5 seconds: dropped"):
                tm.submit(["dog"], channel="alarm").result(TIMEOUT)
            with pytest.raises(DeadlineMissed, match="channel 'bulk'"):
                tm.match_many([["dog"]] * 3, channel="bulk")
            with pytest.raises(DeadlineMissed, match="channel 'bulk'"):
                tm.publish([["dog"]], channel="bulk")
            hub = service.subscribers.stats()["hub"]
            assert (hub["in"], hub["dropped"], hub["failed"]) == (1, 1, 0)
        with monkeypatch.context() as patched:
            patched.setattr(Edf, "_refuses", lambda *_: True)
            with pytest.raises(Overloaded, match="channel 'alarm': with what waits already, an answer would"):
                tm.submit(["dog"], channel="alarm").result(TIMEOUT)
        stream = tm._pipelined[False, "alarm"]._sent
        assert tm.submit(["dog"], channel="alarm").result(TIMEOUT) == [8]
        assert tm._pipelined[False, "alarm"]._sent is stream
        for ask in (
            lambda: tm.submit(["dog"], channel="alarms").result(TIMEOUT),
            lambda: tm.match_many([["dog"]], channel="alarms"),
            lambda: tm.publish([["dog"]], channel="alarms"),
        ):
            with pytest.raises(InvalidValueError, match="there is no channel 'alarms'; there is 'alarm', 'bulk'"):
                ask()


def test_a_service_without_channels() -> None:
    with remote() as (_, tm), pytest.raises(InvalidValueError, match="there is no channel 'alarm'; there is none"):
        tm.submit(["dog"], channel="alarm").result(TIMEOUT)


def test_gateways_take_the_channel_from_a_property() -> None:
    assert row_of(Incoming([("tag", "fr"), ("channel", "alarm")], b""), "properties").channel == "alarm"
    assert row_of(Incoming([("tag", "fr")], b""), "properties").channel is None


# -- what says so ------------------------------------------------------------------------------------------------------


def test_configuration(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        f"""[index]
path = "{tmp_path / "new.index"}"
create = true
device = "cpu"
order = "edf"

[[channel]]
name = "alarm"
deadline = "5ms"
priority = 1

[[channel]]
name = "bulk"
deadline = 2
latency_budget = "100ms"
expiry = "1min"
""",
    )
    config = read_config(path)
    assert [each.channel for each in config.channel] == [
        Channel("alarm", 0.005, 1),
        Channel("bulk", 2, latency_budget=0.1, expiry=60),
    ]
    more = with_arguments(config, None, None, None, [channel_of("alarm:1ms"), channel_of("spare")], "dfgs")
    assert [(each.channel.name, each.channel.due) for each in more.channel] == [
        ("alarm", 0.001),
        ("bulk", 2.0),
        ("spare", float("inf")),
    ]
    assert more.index.order == "dfgs"
    with opened(config) as tm:
        assert list(tm.stats()["channels"]) == ["alarm", "bulk"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[[channel]]\nname = "a"\ndeadline = "5 parsecs"',
            r":3: deadline must be a number and one of us, ms, s, min, h",
        ),
        ('[[channel]]\nname = "a"\n\nlatency_budget = 3\ndeadline = 2', r":4: latency_budget must be less than"),
        ('[[channel]]\nname = "a"\ndeadline = 0', r":3: deadline must be from 1e-09"),
        ('[[channel]]\nname = "a"\npriority = "high"', r":3: priority must be an integer"),
        ("[[channel]]\ndeadline = 1", r":1: \[channel\] needs 'name'"),
        ('[[channel]]\nname = "a"\nexpire = 1', r":3: \[channel\] has no 'expire'; is 'expiry' meant"),
        ('[[channel]]\nname = "a"\n[[channel]]\nname = "a"', r":4: name of \[\[channel\]\] in line 4 is 'a', as is"),
        ('[index]\norder = "lifo"', r":2: order must be one of 'fifo', 'edf', 'dfgs'"),
    ],
)
def test_mistakes_name_their_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config(written(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("alarm:5", r"channel 'alarm': deadline must be a number and one of us, ms, s, min, h, such as 5ms, not '5'"),
        ("alarm:5ms:high", r"channel 'alarm': priority must be an integer, not 'high'"),
        ("alarm:5ms:1:2", r"a channel must be NAME:DEADLINE:PRIORITY, such as alarm:5ms:1, not 'alarm:5ms:1:2'"),
        (":5ms", r"the name of a channel must not be empty"),
    ],
)
def test_channels_that_cannot_be_read(text: str, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        channel_of(text)


def test_the_command_line(tmp_path: Path) -> None:
    config = written(tmp_path, '[index]\ncreate = true\ndevice = "cpu"\n[metrics]\nenabled = false\n')
    process = Served(
        tmp_path / "new.index", "--config", config, "--port", 0,
        "--channel", "alarm:5s:1", "--channel", "bulk:60s", "--order", "edf",
    )  # fmt: skip
    with connect(process.url) as tm:
        tm.add_set(["smoke"], 7)
        tm.consolidate()
        assert tm.submit(["smoke"], channel="alarm").result(TIMEOUT) == [7]
        assert list(tm.stats()["channels"]) == ["alarm", "bulk"]
    process.process.terminate()
    assert process.end()[0] == 0


FIRST_MESSAGE = """
import sys
import pyarrow as pa
from numba.core.dispatcher import Dispatcher
from tagmatch import Channel, TagMatch
from tagmatch.broker.running import make_ready

def kernels():
    ours = [module for name, module in sys.modules.items() if name.startswith("tagmatch.")]
    found = {each for module in ours for each in vars(module).values() if isinstance(each, Dispatcher)}
    return {(each.__module__, each.__name__, *map(str, signature)) for each in found for signature in each.overloads}

with TagMatch.open(sys.argv[1], channels=[Channel("alarm", 60.0)], order="edf") as tm:
    make_ready(tm)
    ready = kernels()
    assert ready
    assert tm.match_many(pa.table({"tags": [["a", "b", "c"]]}), channel="alarm").to_pylist() == [[1]]
    print(*kernels() - ready, sep="\\n", end="")
"""


def test_nothing_is_compiled_or_loaded_for_the_first_message(tmp_path: Path) -> None:
    """In a channel, what takes so long once would be taken for what each message takes: the next ones were refused."""
    with TagMatch(tmp_path / "index") as tm:
        tm.add_sets([["a", "b"], ["d"]], [1, 2])
        tm.consolidate()
    command = [sys.executable, "-c", FIRST_MESSAGE, str(tmp_path / "index")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
