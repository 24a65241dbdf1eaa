"""The beginning and the end of a service: nothing that it has taken is lost, and clients find it again."""

import contextlib
import json
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from types import SimpleNamespace

import pytest
from pyarrow import flight
from support.agreement import index_of
from support.brokers import Proxy
from support.command import tagmatch
from support.service import Served, Slowed, command, config, fetched, messages, options, remote, value, written
from support.waiting import wait_until as until
from test_http_security import ends

from tagmatch import ClosedError, Overloaded, TagMatch, TagMatchError, UnavailableError, connect
from tagmatch.broker.config import MetricsOptions
from tagmatch.broker.observe import HttpEndpoint
from tagmatch.broker.service import Service, serving


@pytest.fixture
def path(tmp_path):
    index_of([["cat"], ["dog"]], [7, 8], tmp_path / "cats.index").close()
    return tmp_path / "cats.index"


@pytest.mark.slow
def test_a_whole_life(path, tmp_path):
    """At SIGTERM, all earlier messages are answered, or fail with an error that says so; later ones, too."""
    config = written(tmp_path, "[metrics]\nport = 0\n[log]\nlevel = 'info'")
    channels = ["--channel", "alarm:5s:1", "--channel", "bulk:60s", "--order", "edf"]
    served = Served(path, "--config", config, "--port", 0, *channels)
    assert fetched(f"{served.metrics}/readyz") == "ready\n"
    with connect(served.url) as tm:
        assert tm.stats()["queries"] == 2  # its own, which were matched before it said that it listens
        assert list(tm.stats()["channels"]) == ["alarm", "bulk"]
        assert tm.match_many([["cat"]] * 100, channel="alarm").to_pylist() == [[7]] * 100
        tm.add_set(["cow"], 9)
        lines = fetched(f"{served.metrics}/metrics").splitlines()
        assert {"tagmatch_messages_total 100.0", "tagmatch_keys_total 100.0", "tagmatch_staged_changes 1.0"} <= {*lines}
        futures = [tm.submit(["cat", "x"]) for _ in range(10_000)]
        assert futures[0].result(60) == [7]
        served.process.send_signal(signal.SIGTERM)
        errors = [each.exception(60) for each in futures]
        assert all(isinstance(each, UnavailableError) for each in errors if each is not None)
        assert all(each.result() == [7] for each in futures if each.exception() is None)
        code, log = served.end()
        assert (code, json.loads(log.splitlines()[-1])["answered_all"]) == (0, True)
        with pytest.raises(UnavailableError):
            tm.match(["cat"])


def test_all_that_was_taken_is_answered_within_one_process(monkeypatch):
    index = index_of([["a"]], [1], threads=1, device="cpu")
    with index, serving(index, config()) as service, ThreadPoolExecutor(1) as thread:
        slow = Slowed(index, monkeypatch)
        with connect(service.url) as tm:
            futures = [tm.submit(["a"]) for _ in range(100)]
            until(lambda: value(service, "tagmatch_messages_total") == 100)
            ending = thread.submit(service.end)
            until(lambda: service.is_draining)
            assert not service.is_ready
            with pytest.raises(UnavailableError, match="ends"):
                tm.match_many([["a"]])
            slow.let.set()
            assert [each.result(60) for each in futures] == [[1]] * 100
            ending.result(60)
            assert value(service, "tagmatch_answers_total") == 100


def test_a_client_of_flight_alone_is_told_of_the_end():
    with TagMatch(threads=1, device="cpu") as index, serving(index, config(drain_seconds=0.2)) as service:
        client = flight.connect(service.url)
        writer, reader = client.do_exchange(command(command="match"), options())
        writer.begin(messages([]).schema)
        writer.write_batch(messages([["a"]]))
        assert reader.read_chunk().data.num_rows == 1
        service.drain()
        chunk = reader.read_chunk()
        assert (chunk.data, json.loads(chunk.app_metadata.to_pybytes())) == (None, {"draining": True})
        writer.write_batch(messages([["a"], ["b"]]))
        assert reader.read_chunk().data.num_rows == 2
        assert service.end() is False
        assert service.limits.wait_until_idle(30)
        with pytest.raises(flight.FlightUnavailableError):
            writer.close()
        client.close()


def test_a_client_of_flight_that_never_pauses_is_told_of_the_end():
    with index_of([["a"]], [1], threads=1, device="cpu") as index, serving(index, config()) as service:
        client, asked = flight.connect(service.url), messages([["a"]])
        writer, reader = client.do_exchange(command(command="match"), options())
        writer.begin(asked.schema)
        writer.write_batch(asked)
        assert reader.read_chunk().data.num_rows == 1
        writer.write_batch(asked)  # so that one is always on its way
        service.drain()
        for _ in range(2_000):  # an answer, then what it is told
            writer.write_batch(asked)
            if (chunk := reader.read_chunk()).data is None:
                break
        assert (chunk.data, json.loads(chunk.app_metadata.to_pybytes())) == (None, {"draining": True})
        writer.done_writing()
        assert len(reader.read_all()) == 2  # those that it had asked are still answered
        assert service.end()
        writer.close()
        client.close()


POST = "POST {} HTTP/1.1\r\nHost: localhost\r\n{}\r\n\r\n"
ASK = POST.format("/match_many", "Content-Length: 17") + '[{"tags": ["a"]}]'
CHUNKED = "Transfer-Encoding: chunked\r\nContent-Type: "
HALVES = {
    "a brief body": POST.format("/match", "Content-Length: 15") + '{"tags',
    "a long body": POST.format("/match", "Content-Length: 100000") + '{"tags',
    "JSON Lines": POST.format("/match_many", f"{CHUNKED}application/x-ndjson") + '5\r\n{"tag\r\n',
    "Arrow": POST.format("/match_many", f"{CHUNKED}application/vnd.apache.arrow.stream") + "4\r\n\xff\xff\xff\xff\r\n",
    "changes": POST.format("/subscriptions", f"{CHUNKED}application/x-ndjson") + '5\r\n{"key\r\n',
    "no body yet": POST.format("/match", "Content-Length: 15\r\nExpect: 100-continue"),
    "a head": "POST /match HT",
}


def sent(service: Service, data: str) -> socket.socket:
    assert service.http is not None
    raw = socket.create_connection(("127.0.0.1", service.http.port), timeout=60)
    raw.sendall(data.encode("latin-1"))
    return raw


def is_told(raw: socket.socket) -> None:
    """Sees that all that comes is an answer that the service ends."""
    with raw:
        head, _, body = ends(raw).removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n").partition(b"\r\n\r\n")
    first, *headers = head.decode().split("\r\n")
    assert first.startswith("HTTP/1.1 503 ")
    assert {"connection: close", "retry-after: 1", "content-type: application/problem+json"} <= {*headers}
    assert json.loads(body)["kind"] == "UnavailableError"


@pytest.mark.parametrize("half", HALVES.values(), ids=HALVES)
def test_a_client_of_http_that_still_sends_is_told_of_the_end(half):
    """Also one that reads only when it has sent more than connections hold."""
    with TagMatch(threads=1, device="cpu") as index, serving(index, config(drain_seconds=0.1)) as service:
        some, other, idle = sent(service, half), sent(service, half), sent(service, "")
        until(lambda: sum(each._head_bytes > 0 for each in service.http.app.connections) == 2)
        with ThreadPoolExecutor(1) as thread:
            ending = thread.submit(service.end)
            is_told(some)
            with contextlib.suppress(ConnectionError):
                other.sendall(b"1\r\n \r\n" * 200_000)
            is_told(other)
            with idle:
                assert ends(idle) == b""
            ending.result(60)


def test_requests_that_http_has_taken_are_answered(monkeypatch):
    """Later ones are refused; each answer says that it is the last one of its connection."""
    with index_of([["a"]], [1], threads=1, device="cpu") as index, serving(index) as service:
        slow = Slowed(index, monkeypatch)
        taken, later = sent(service, ASK), sent(service, "")
        assert slow.began.wait(30)
        service.drain()
        later.sendall(ASK.encode())
        is_told(later)
        slow.let.set()
        with taken:
            found = ends(taken)
        assert b"connection: close" in found
        assert b'[{"keys":[1]}' in found


def test_one_that_is_not_answered_in_time_is_told_so(monkeypatch):
    with index_of([["a"]], [1], threads=1, device="cpu") as index:
        slow = Slowed(index, monkeypatch)
        with serving(index, config(drain_seconds=0.1)) as service:
            raw = sent(service, ASK)
            assert slow.began.wait(30)
        is_told(raw)
        slow.let.set()


def test_an_answer_is_read_whole_though_the_service_ends():
    keys, ask = [*range(1_000_000)], POST.format("/match", "Content-Length: 15") + '{"tags": ["a"]}'
    with (
        index_of([["a"]] * len(keys), keys, threads=1, device="cpu") as index,
        serving(index) as service,
        socket.socket() as raw,
        ThreadPoolExecutor(1) as thread,
    ):
        raw.settimeout(30)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # so that the service keeps most of it
        raw.connect(("127.0.0.1", service.http.port))
        raw.sendall(ask.encode())
        found = raw.recv(1)
        until(lambda: service.limits.stats()["calls"] == 0)
        ending = thread.submit(service.http.stop)
        time.sleep(0.5)  # which it would have used to cut the connection
        found += ends(raw)
        ending.result(60)
    assert sorted(json.loads(found.partition(b"\r\n\r\n")[2])["keys"]) == keys


def test_a_service_that_ends_gives_subscribers_what_waits():
    with index_of([["a"]], [1]) as index, serving(index) as service, connect(service.url) as other:
        phone = other.subscriber("phone", [1])
        until(lambda: service.subscribers.stats()["sessions"]["connected"] == 1)
        other.publish([["a"]] * 1_000, [b"%d" % row for row in range(1_000)])
        service.drain()
        assert [int(each.payload) for each in phone] == list(range(1_000))  # and the iteration ends
        phone.close()
        assert service.limits.wait_until_idle(60)
        with pytest.raises(UnavailableError):
            other.publish([["a"]])


class _Slow:
    """A gateway that needs a while to send what it has, for which there have to be sessions."""

    is_ready, condition, options = True, "connected", SimpleNamespace(session="slow")

    def __init__(self, service: Service) -> None:
        self._service, self.has_sent, self.seconds = service, False, 0.0

    def stop_receiving(self, _: float) -> None: ...

    def stop(self, seconds: float) -> bool:
        self.seconds = seconds
        time.sleep(0.5)
        self._service.subscribers.sessions.connect("slow", "ana", keys=[1])  # an error if they have ended
        self.has_sent = True
        return True

    def stats(self) -> dict[str, int]:
        return {}


def test_a_service_that_ends_waits_for_its_gateways(monkeypatch):
    """As long as for calls, though there are none."""
    monkeypatch.setattr("tagmatch.broker.service._LAST_S", 0.05)
    with index_of([["a"]], [1]) as index, serving(index) as service:
        service.subscribers.gateways.append(slow := _Slow(service))
    assert (slow.has_sent, slow.seconds) == (True, service.config.server.drain_seconds)


@pytest.mark.slow
def test_kill_9_of_the_server_and_a_new_one_at_its_place(path):
    # HTTP would have the next port, which another test may take
    config = written(path.parent, "[metrics]\nenabled = false\n[http]\nenabled = false")
    served, stop = Served(path, "--port", 0, "--config", config), threading.Event()
    with connect(served.url) as tm, ThreadPoolExecutor(1) as thread, contextlib.ExitStack() as ending:
        ending.callback(stop.set)
        found = []

        def ask():
            while not stop.is_set() and len(found) < 100_000:
                error = tm.submit(["cat"]).exception(60)
                found.append(type(error))
                if error is not None:
                    time.sleep(0.01)

        asking = thread.submit(ask)
        until(lambda: len(found) > 100)
        served.kill()
        until(lambda: found[-1] is UnavailableError)
        again = Served(path, "--port", served.url.rpartition(":")[2], "--config", config)
        until(lambda: found[-1] is type(None))
        stop.set()
        asking.result(60)
        assert {*found} == {type(None), UnavailableError}
        assert tm.match_many([["dog"]]).to_pylist() == [[8]]
        again.kill()


def test_a_client_that_vanishes_leaves_nothing_under_way():
    with (
        index_of([["cat"]], [7]) as index,
        serving(index) as service,
        contextlib.closing(Proxy(service.port)) as proxy,
    ):
        for number in range(1, 3):
            with connect(f"grpc://127.0.0.1:{proxy.port}") as client:
                futures = [client.submit(["cat"] * 20) for _ in range(5_000)]
                until(lambda most=1000 * number: value(service, "tagmatch_messages_total") > most)
                proxy.pause()  # so that it cannot come back
                proxy.cut()
                until(lambda: service.limits.wait_until_idle(1))
                until(
                    lambda: value(service, "tagmatch_messages_in_flight") == service.limits.stats()["connections"] == 0
                )
                proxy.resume()
                wait(futures, 60)
        with connect(service.url) as other:
            assert other.match(["cat"]) == [7]


def test_closing_a_client():
    for drain in (True, False):
        with remote(index_of([["a"]], [1])) as (_, tm):
            futures = [tm.submit(["a"]) for _ in range(5000)]
            tm.close(drain=drain)
            assert all(each.done() for each in futures)
            assert not drain or all(each.result() == [1] for each in futures)
            tm.close()
            for call in (lambda: tm.match(["a"]), lambda: tm.match_many([["a"]]), tm.stats, lambda: tm.add_set([], 1)):
                with pytest.raises(ClosedError):
                    call()
            assert "closed" in repr(tm)


def test_closing_a_client_in_the_callback_of_a_future():
    with remote() as (_, tm):
        futures, ended = [tm.submit(["a"]) for _ in range(100)], threading.Event()
        futures[50].add_done_callback(lambda _: (tm.close(), ended.set()))
        assert ended.wait(30)
        assert [each.result(30) for each in futures] == [[]] * 100


def test_more_messages_than_may_be_on_their_way(monkeypatch):
    with remote() as (index, tm):
        slow = Slowed(index, monkeypatch)
        monkeypatch.setattr("tagmatch.broker.client._MOST_IN_FLIGHT", 10)
        futures = [tm.submit(["a"]) for _ in range(10)]
        for given in ({"block": False}, {"timeout": 0.05}):
            with pytest.raises(Overloaded, match="10 messages"):
                tm.submit(["a"], **given)
        slow.let.set()
        assert [each.result(30) for each in (*futures, tm.submit(["a"]))] == [[]] * 11


@pytest.mark.slow
def test_a_port_that_is_taken(path):
    with TagMatch(threads=1, device="cpu") as index, serving(index) as service:
        taken = replace(config(), server=replace(config().server, port=service.port))
        with pytest.raises(TagMatchError, match="cannot listen: Address already in use"), serving(index, taken):
            pass
        with pytest.raises(TagMatchError, match="metrics"):
            HttpEndpoint(MetricsOptions(port=service.port), lambda: b"", lambda: (True, b""))
        assert "cannot listen" in tagmatch("serve", path, "--port", service.port, code=1)
