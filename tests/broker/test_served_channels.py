"""Channels of a service: over the wire, and for publishers."""

import asyncio
import subprocess
import sys

import pytest
from support.agreement import index_of
from support.service import NO_METRICS, remote, value

from tagmatch import DeadlineMissed, InvalidValueError, Overloaded, connect
from tagmatch.broker.config import ChannelOptions, Config, ServerOptions
from tagmatch.broker.service import serving
from tagmatch.pipeline.run.orders import Edf

TIMEOUT = 60
CHANNELS = (ChannelOptions("alarm", "5s", 1), ChannelOptions("bulk", 60))


@pytest.fixture
def served():
    options = {"threads": 2, "device": "cpu", "channels": [each.channel for each in CHANNELS], "order": "edf"}
    index = index_of([["cat", "fr"], ["dog"]], [7, 8], **options)
    config = Config(ServerOptions(port=0), metrics=NO_METRICS, channel=CHANNELS)
    with index, serving(index, config) as service, connect(service.url) as tm:
        yield service, tm


def test_messages_of_channels(served):
    service, tm = served
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


def asking(tm, channel):
    return [
        lambda: tm.submit(["dog"], channel=channel).result(TIMEOUT),
        lambda: tm.match_many([["dog"]] * 3, channel=channel),
        lambda: tm.publish([["dog"]], channel=channel),
    ]


def test_errors_keep_their_class_and_the_stream_goes_on(served, monkeypatch):
    service, tm = served
    with monkeypatch.context() as patched:
        patched.setattr(Edf, "_too_late", lambda *_: True)
        for ask in asking(tm, "alarm"):
            with pytest.raises(DeadlineMissed, match="channel 'alarm', whose deadline is 5 seconds: dropped"):
                ask()
        hub = service.subscribers.stats()["hub"]
        assert (hub["in"], hub["dropped"], hub["failed"]) == (1, 1, 0)
    with monkeypatch.context() as patched:
        patched.setattr(Edf, "_refuses", lambda *_: True)
        with pytest.raises(Overloaded, match="channel 'alarm': the messages that wait already would"):
            tm.submit(["dog"], channel="alarm").result(TIMEOUT)
    stream = tm._engine._singles[False, "alarm", 0, None]._stream
    assert tm.submit(["dog"], channel="alarm").result(TIMEOUT) == [8]
    assert tm._engine._singles[False, "alarm", 0, None]._stream is stream
    for ask in asking(tm, "alarms"):
        with pytest.raises(InvalidValueError, match="unknown channel 'alarms'; known: 'alarm', 'bulk'"):
            ask()
    with (
        remote() as (_, other),
        pytest.raises(InvalidValueError, match="unknown channel 'alarm'; give some as `channels`"),
    ):
        other.submit(["dog"], channel="alarm").result(TIMEOUT)


FIRST_MESSAGE = """
import sys
import pyarrow as pa
from numba.core.dispatcher import Dispatcher
from tagmatch import Channel, TagMatch
from tagmatch.broker.service import make_ready

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


@pytest.mark.slow
def test_nothing_is_compiled_or_loaded_for_the_first_message(tmp_path):
    """In a channel, what takes so long once would be taken for what each message takes: the next ones were refused."""
    index_of([["a", "b"], ["d"]], [1, 2], tmp_path / "index").close()
    command = [sys.executable, "-c", FIRST_MESSAGE, str(tmp_path / "index")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
