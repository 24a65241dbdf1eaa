"""The beginning and the end of a service: nothing that it has taken is lost, and clients find it again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from dataclasses import replace

import pytest
from pyarrow import flight
from support.command import tagmatch
from support.service import Served, command, config, messages, options, remote, value, written
from support.waiting import wait_until as until

from tagmatch import ClosedError, Overloaded, TagMatch, TagMatchError, UnavailableError, connect
from tagmatch.broker.config import MetricsOptions
from tagmatch.broker.http import HttpEndpoint
from tagmatch.broker.running import end, serving, started


@pytest.fixture
def path(tmp_path):
    with TagMatch(tmp_path / "cats.index") as tm:
        tm.add_sets([["cat"], ["dog"]], [7, 8])
        tm.consolidate()
    return tmp_path / "cats.index"


def fetched(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class Slow:
    """Has an index match when it is let."""

    def __init__(self, index, monkeypatch):
        self.let, self._match_many = threading.Event(), index.match_many
        monkeypatch.setattr(index, "match_many", self)

    def __call__(self, queries, *, unique=False):
        assert self.let.wait(60)
        return self._match_many(queries, unique=unique)


@pytest.mark.slow
def test_a_whole_life(path, tmp_path):
    """At SIGTERM, whatever was sent before is answered, or fails with an error that says so; what comes later, too."""
    config = written(tmp_path, "[metrics]\nport = 0\n[log]\nlevel = 'info'")
    channels = ["--channel", "alarm:5s:1", "--channel", "bulk:60s", "--order", "edf"]
    served = Served(path, "--config", config, "--port", 0, *channels)
    assert served.metrics
    assert fetched(f"{served.metrics}/livez") == (200, "alive\n")
    assert fetched(f"{served.metrics}/readyz") == (200, "ready\n")
    assert fetched(f"{served.metrics}/x")[0] == 404
    with connect(served.url) as tm:
        assert tm.stats()["queries"] == 2  # its own, which were matched before it said that it listens
        assert list(tm.stats()["channels"]) == ["alarm", "bulk"]
        assert tm.match_many([["cat"]] * 100, channel="alarm").to_pylist() == [[7]] * 100
        tm.add_set(["cow"], 9)
        status, text = fetched(f"{served.metrics}/metrics")
        assert status == 200
        for line in ("tagmatch_messages_total 100.0", "tagmatch_keys_total 100.0", "tagmatch_staged_changes 1.0"):
            assert line in text
        futures = [tm.submit(["cat", "x"]) for _ in range(10_000)]
        assert futures[0].result(60) == [7]
        served.process.send_signal(signal.SIGTERM)
        answered = 0
        for each in futures:
            try:
                assert each.result(60) == [7]
                answered += 1
            except UnavailableError:
                pass
        code, log = served.end()
        assert code == 0
        assert json.loads(log.splitlines()[-1])["answered_all"] is True
        assert answered > 0
        with pytest.raises(UnavailableError):
            tm.match(["cat"])


def test_all_that_was_taken_is_answered_within_one_process(monkeypatch):
    """A drain while messages wait to be matched: those that are in are answered before the stream ends."""
    with TagMatch(threads=1, device="cpu") as index:
        index.add_set(["a"], 1)
        index.consolidate()
        service, slow = started(index, config()), Slow(index, monkeypatch)
        with connect(service.url) as tm:
            futures = [tm.submit(["a"]) for _ in range(100)]
            until(lambda: value(service, "tagmatch_messages_total") == 100)
            ending = threading.Thread(target=end, args=[service])
            ending.start()
            until(lambda: service.is_draining)
            assert not service.is_ready
            with pytest.raises(UnavailableError, match="ends"):
                tm.match_many([["a"]])
            slow.let.set()
            assert [each.result(60) for each in futures] == [[1]] * 100
            ending.join(60)
            assert not ending.is_alive()
            assert value(service, "tagmatch_answers_total") == 100


def test_a_client_of_flight_alone_is_told_of_the_end():
    with TagMatch(threads=1, device="cpu") as index, serving(index) as service:
        client = flight.connect(service.url)
        writer, reader = client.do_exchange(command(command="match"), options())
        writer.begin(messages([]).schema)
        writer.write_batch(messages([["a"]]))
        assert reader.read_chunk().data.num_rows == 1
        service.drain()
        chunk = reader.read_chunk()
        assert chunk.data is None
        assert json.loads(chunk.app_metadata.to_pybytes()) == {"draining": True}
        writer.write_batch(messages([["a"], ["b"]]))  # what is sent still is answered still
        assert reader.read_chunk().data.num_rows == 2
        writer.close()
        assert service.wait_until_idle(30)
        client.close()


def test_a_service_that_ends_gives_subscribers_what_waits():
    with remote() as (index, tm), serving(index) as service, connect(service.url) as other:
        tm.add_set(["a"], 1)
        tm.consolidate()
        phone = other.subscriber("phone", [1])
        until(lambda: service.subscribers.stats()["sessions"]["connected"] == 1)
        other.publish([["a"]] * 1_000, [b"%d" % row for row in range(1_000)])
        service.drain()
        assert [int(each.payload) for each in phone] == list(range(1_000))  # and the iteration ends
        phone.close()
        assert service.wait_until_idle(60)
        with pytest.raises(UnavailableError):
            other.publish([["a"]])


def test_the_end_does_not_wait_for_clients_for_ever():
    with TagMatch(threads=1, device="cpu") as index:
        service = started(index, config(drain_seconds=0.2))
        client = flight.connect(service.url)
        writer, _ = client.do_exchange(command(command="match"), options())
        writer.begin(messages([]).schema)
        writer.write_batch(messages([["a"]]))
        until(lambda: value(service, "tagmatch_answers_total") == 1)
        assert end(service) is False
        assert service.wait_until_idle(30)
        with pytest.raises(flight.FlightUnavailableError):
            writer.close()
        client.close()


@pytest.mark.slow
def test_kill_9_of_the_server_and_a_new_one_at_its_place(path):
    served = Served(path, "--port", 0, "--config", written(path.parent, "[metrics]\nenabled = false"))
    port = served.url.rpartition(":")[2]
    with connect(served.url) as tm:
        assert tm.match(["cat"]) == [7]
        stop, found = threading.Event(), []

        def ask():
            while not stop.is_set() and len(found) < 100_000:
                future = tm.submit(["cat"])
                try:
                    found.append(future.result(60) == [7])
                except TagMatchError as error:
                    found.append(error)
                    time.sleep(0.01)

        thread = threading.Thread(target=ask)
        thread.start()
        until(lambda: len(found) > 100)
        served.kill()
        until(lambda: isinstance(found[-1], UnavailableError))
        again = Served(path, "--port", port, "--config", path.parent / "service.toml")
        until(lambda: found[-1] is True)
        stop.set()
        thread.join(60)
        assert False not in found
        assert all(isinstance(each, UnavailableError) for each in found if each is not True)
        assert tm.match_many([["dog"]]).to_pylist() == [[8]]
        again.kill()


_CLIENT = """
import sys, tagmatch
tm = tagmatch.connect(sys.argv[1])
print("here", flush=True)
while True:
    tm.submit(["cat"] * 20)
"""


@pytest.mark.slow
def test_kill_9_of_clients():
    """A client that vanishes leaves nothing under way, and others go on."""
    with remote() as (index, tm), serving(index) as service:
        tm.add_set(["cat"], 7)
        tm.consolidate()
        for number in range(1, 3):
            client = subprocess.Popen([sys.executable, "-c", _CLIENT, service.url], stdout=subprocess.PIPE, text=True)
            assert client.stdout.readline() == "here\n"
            until(lambda most=1000 * number: value(service, "tagmatch_messages_total") > most)
            client.kill()
            client.communicate(timeout=60)
            until(lambda: service.wait_until_idle(1))
            until(lambda: value(service, "tagmatch_messages_in_flight") == 0)
            assert service.limits.connections == 0
            with connect(service.url) as other:
                assert other.match(["cat"]) == [7]


def test_closing_a_client():
    with remote() as (_, tm):
        tm.add_set(["a"], 1)
        tm.consolidate()
        futures = [tm.submit(["a"]) for _ in range(5000)]
        tm.close()
        assert all(each.result(0) == [1] for each in futures)
        tm.close()
        for call in (lambda: tm.match(["a"]), lambda: tm.match_many([["a"]]), tm.stats, lambda: tm.add_set([], 1)):
            with pytest.raises(ClosedError):
                call()
        assert "closed" in repr(tm)
    with remote() as (_, tm):
        futures = [tm.submit(["a"]) for _ in range(5000)]
        tm.close(drain=False)
        assert all(each.done() for each in futures)


def test_closing_a_client_in_the_callback_of_a_future():
    with remote() as (_, tm):
        ended = threading.Event()

        def close(_):
            tm.close()
            ended.set()

        futures = [tm.submit(["a"]) for _ in range(100)]
        futures[50].add_done_callback(close)
        assert ended.wait(30)
        assert [each.result(30) for each in futures] == [[]] * 100


def test_more_messages_than_may_be_on_their_way(monkeypatch):
    with remote() as (index, tm):
        slow = Slow(index, monkeypatch)
        monkeypatch.setattr(tm._pipelined[False], "_most", 10)
        futures = [tm.submit(["a"]) for _ in range(10)]
        with pytest.raises(Overloaded, match="10 messages"):
            tm.submit(["a"], block=False)
        with pytest.raises(Overloaded):
            tm.submit(["a"], timeout=0.05)
        slow.let.set()
        assert [each.result(30) for each in futures] == [[]] * 10
        assert tm.submit(["a"]).result(30) == []


def test_a_port_that_is_taken(path):
    with TagMatch(threads=1, device="cpu") as index, serving(index) as service:
        with pytest.raises(TagMatchError, match="cannot listen: Address already in use"):
            started(index, replace(config(), server=replace(config().server, port=service.port)))
        with pytest.raises(TagMatchError, match="metrics"):
            HttpEndpoint(MetricsOptions(port=service.port), lambda: b"", lambda: (True, b""))
        assert "cannot listen" in tagmatch("serve", path, "--port", service.port, code=1)
