"""A WebSocket has the notifications of a session, and takes acknowledgements, keys and messages."""

import contextlib
import json
import os
import pickle
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from support.service import USERS
from support.waiting import wait_until
from test_flight_security import EXPIRED, VALID
from test_http import served
from test_http_connections import nothing_is_told
from test_http_notifications import AT_LEAST_ONCE, both, published  # noqa: F401 - a fixture
from test_http_security import ends
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.sync.client import ClientConnection, connect

from tagmatch.broker.config import User
from tagmatch.broker.config_file import token_sha256
from tagmatch.broker.service import Service


@contextlib.contextmanager
def connected(service: Service, query: str, token: str | None = None, **more: Any) -> Iterator[ClientConnection]:
    assert service.http is not None
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    url = f"ws://127.0.0.1:{service.http.port}/notifications?{query}"
    with connect(url, additional_headers={**headers, **more.pop("headers", {})}, proxy=None, **more) as found:
        yield found


def event(client: ClientConnection) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(client.recv(timeout=30))
    return found


def say(client: ClientConnection, **request: Any) -> None:
    client.send(json.dumps(request))


def refused(service: Service, query: str, **more: Any) -> tuple[int, dict[str, Any]]:
    with pytest.raises(InvalidStatus) as caught, connected(service, query, **more):
        pass
    return caught.value.response.status_code, json.loads(caught.value.response.body)


def test_notifications_and_messages_go_both_ways(both):  # noqa: F811
    service, client = both
    with connected(service, AT_LEAST_ONCE) as ws:
        assert event(ws) == {"event": "session", "data": {"session": "s", "resumed": False}}
        say(ws, follow=[7])
        wait_until(lambda: service.subscribers.sessions.stats()["keys"] == 1)
        say(ws, publish={"tags": ["cat"], "id": "m1", "payload": "é"})
        found = [event(ws) for _ in range(2)]
        found.sort(key=lambda each: each["event"])
        assert found[1] == {"event": "published", "data": {"messages": 1, "matched": 1}}
        data = {"offset": 1, "redelivered": False, "keys": [7], "id": "m1", "payload": "é"}
        assert found[0] == {"event": "message", "id": found[0]["id"], "data": data}
        say(ws, publish=[{"tags": ["dog"]}, {"tags": ["x"]}])
        assert event(ws)["data"] == {"messages": 2, "matched": 0}
        say(ws, publish={"tag": ["cat"]})
        assert "no field 'tag'" in event(ws)["data"]["message"]
        say(ws, unfollow=[7], acknowledge=found[0]["id"])
        wait_until(lambda: service.subscribers.sessions.stats()["delivered"] == 1)
        wait_until(lambda: service.subscribers.sessions.stats()["keys"] == 0)
    wait_until(lambda: service.limits.stats()["calls"] == 0)
    assert len(client.ask("GET", "/sessions")[2]["sessions"]) == 1


def test_a_client_that_is_killed_misses_none(both):  # noqa: F811
    service, client = both
    with connected(service, f"{AT_LEAST_ONCE}&keys=7") as ws:
        event(ws)
    count, seen, last = 300, list[int](), ""
    publisher = threading.Thread(target=lambda: [published(client, range(n, n + 10)) for n in range(0, count, 10)])
    publisher.start()
    while len({*seen}) < count:
        with connected(service, AT_LEAST_ONCE + (f"&after={last}" if last else "")) as ws:
            event(ws)
            for _ in range(41):
                found = event(ws)
                seen.append(json.loads(found["data"]["payload"])["n"])
                if len(seen) % 7:
                    last = found["id"]
                if len(seen) % 10 == 0:
                    say(ws, acknowledge=last)
                if len({*seen}) == count:
                    say(ws, acknowledge=found["id"])
                    wait_until(lambda: service.subscribers.sessions.stats()["waiting"] == 0)
                    break
            ws.socket.shutdown(socket.SHUT_RDWR)
    publisher.join()
    assert sorted({*seen}) == [*range(count)]
    figures = service.subscribers.sessions.stats()
    assert (figures["offered"], figures["delivered"], figures["dropped"]) == (count, count, 0)


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ("[", "JSON"), ("[1]", "JSON object"), ('{"akcnowledge": 1}', "acknowledge"), ('{"follow": 7}', "list"),
        ('{"follow": ["x"]}', "keys"), ('{"acknowledge": "x"}', "as 12-"), ('{"acknowledge": 99}', "acknowledged"),
        ('{"acknowledge": null}', "as 12-"), ('{"follow": [null]}', "keys"), ("é", "JSON"),
    ],
)  # fmt: skip
def test_a_wrong_request_ends_the_stream_with_an_error(both, said, wrong):  # noqa: F811
    service, _ = both
    with connected(service, AT_LEAST_ONCE) as ws:
        event(ws)
        ws.send(said)
        found = event(ws)
        assert found["event"] == "error"
        assert wrong in found["data"]["message"]
        with pytest.raises(ConnectionClosed):
            event(ws)
    wait_until(lambda: service.limits.stats()["calls"] == 0)


def test_rights():
    few = User("few", token_sha256("few"), "write", filter="size = 1")
    with served((*USERS, EXPIRED, VALID, few)) as (service, _):
        for token in (None, "wrong", "token-late"):
            assert refused(service, "session=s", token=token)[0] == 401
        assert refused(service, "session=s", token="few")[0] == 403
        assert refused(service, "session=", token="token-read")[0] == 400
        for token in ("token-read", None):
            protocols: Any = None if token else ["tagmatch", "bearer.token-read"]
            with connected(service, "session=s", token=token, subprotocols=protocols) as ws:
                assert ws.subprotocol == (None if token else "tagmatch")
                event(ws)
                say(ws, publish={"tags": []})
                found = event(ws)
                assert (found["event"], found["data"]["error"]) == ("refused", "AccessError")
        with (
            connected(service, "session=s", token="token-read"),
            pytest.raises(InvalidStatus),
            connected(service, "session=s", token="token-write"),
        ):
            pass
        assert service.subscribers.hub.stats()["in"] == 0


def test_pages_of_other_sites_may_not_connect_without_a_token(both):  # noqa: F811
    service, _ = both
    assert refused(service, "session=s", headers={"Origin": "https://evil.example"})[0] == 403
    with connected(service, "session=s", headers={"Origin": f"http://127.0.0.1:{service.http.port}"}) as ws:
        event(ws)
    with served(USERS) as (service, _):
        origin = {"Origin": "https://shop.example"}
        with connected(service, "session=s", token="token-read", headers=origin) as ws:
            event(ws)


def test_other_paths_have_no_sockets(both):  # noqa: F811
    service, _ = both
    for path in ("match", "healthz", "nothing"):
        with pytest.raises(InvalidStatus) as caught, connect(f"ws://127.0.0.1:{service.http.port}/{path}", proxy=None):
            pass
        assert caught.value.response.status_code in (404, 405)


def test_a_token_that_expires_and_a_drain_end_it(monkeypatch):
    with served((*USERS, VALID), drain_seconds=20) as (service, client):
        client.ask("PUT", "/subscriptions/7", {"tags": ["cat"]})
        with connected(service, "session=t&every_key=true", token="token-read") as ws:
            event(ws)
            published(client, range(50))
            service.drain()
            names = [event(ws)["event"] for _ in range(51)]
            assert names == ["message"] * 50 + ["draining"]
            with pytest.raises(ConnectionClosed) as caught:
                event(ws)
            assert caught.value.rcvd is not None
            assert caught.value.rcvd.code == 1001
        assert service.end()
    with served((*USERS, VALID)) as (service, _), connected(service, "session=s", token="token-early") as ws:
        event(ws)
        monkeypatch.setattr(User, "has_expired", lambda _: True)
        found = event(ws)
        assert (found["event"], found["data"]["error"]) == ("error", "AccessError")
        with pytest.raises(ConnectionClosed):
            event(ws)


def test_a_client_that_does_not_read_is_bounded(both):  # noqa: F811
    service, client = both
    with connected(service, "session=s&keys=7&when_full=drop_oldest") as ws:
        event(ws)
        for _ in range(40):
            assert client.ask("POST", "/publish", [{"tags": ["cat"], "payload": "x" * 10_000}] * 50)[0] == 200
        figures = service.subscribers.sessions.stats()
        assert figures["bytes"] <= service.subscribers.sessions.options.max_bytes
        assert figures["offered"] == figures["delivered"] + figures["dropped"] + figures["waiting"] == 2000
        offsets = list[int]()
        while not offsets or offsets[-1] < 2000:
            offsets.append(event(ws)["data"]["offset"])
        assert len(offsets) == len({*offsets}) == 2000 - service.subscribers.sessions.stats()["dropped"]


HANDSHAKE = {
    "Host": "localhost", "Connection": "keep-alive, Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
}  # fmt: skip


@contextlib.contextmanager
def raw_socket(service: Service, more: bytes = b"", **changed: str | None) -> Iterator[socket.socket]:
    assert service.http is not None
    headers = {**HANDSHAKE, **{name.replace("_", "-"): value for name, value in changed.items()}}
    head = ["GET /notifications?session=r HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items() if value)]
    with socket.create_connection(("127.0.0.1", service.http.port), timeout=30) as raw:
        raw.sendall("\r\n".join([*head, "", ""]).encode() + more)
        yield raw


def sent(opcode: Opcode, data: bytes, *, fin: bool = True, is_packed: bool = False) -> bytes:
    found = bytearray(Frame(opcode, data, fin=fin).serialize(mask=True))
    found[0] |= is_packed << 6
    return bytes(found)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Sec-WebSocket-Key", None),
        ("Sec-WebSocket-Key", "x"),
        ("Sec-WebSocket-Version", "12"),
        ("Connection", "Upgrade"),
    ],
)
def test_a_handshake_that_is_wrong_is_a_problem(both, name, value):  # noqa: F811
    service, _ = both
    with raw_socket(service, **{name.replace("-", "_"): value}) as raw:
        if name == "Connection":  # which is right
            assert raw.recv(1000).startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
            return
        found = ends(raw)
    assert found.startswith(b"HTTP/1.1 400 ")
    problem = json.loads(found.partition(b"\r\n\r\n")[2])
    assert name in problem["detail"]


def deflated(size: int) -> bytes:
    coder = zlib.compressobj(9, zlib.DEFLATED, -15)
    return (coder.compress(b" " * size) + coder.flush(zlib.Z_SYNC_FLUSH))[:-4]


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (sent(Opcode.TEXT, b'{"foll', fin=False) + sent(Opcode.PING, b"p") + sent(Opcode.CONT, b'ow": []}'), None),
        (sent(Opcode.CONT, b"x"), 1002),
        (sent(Opcode.TEXT, b"{}", is_packed=True), 1002),
        (b"\x81\x02{}", 1002),  # it is not masked
        (b"\x81\xff" + (1 << 40).to_bytes(8, "big") + b"mask", 1009),
        (sent(Opcode.CLOSE, b""), 1005),
    ],
    ids=["in parts", "of none", "packed", "not masked", "too long", "closed"],  # frames are masked at random
)
def test_frames_that_are_odd(both, frames, code):  # noqa: F811
    """Good frames are answered, also with the handshake; bad ones close the connection."""
    service, _ = both
    with raw_socket(service, frames) as raw:
        found = b""
        if code is None:
            while b"\x8a\x01p" not in found:
                found += raw.recv(1000) or pytest.fail("the connection is closed")
            raw.sendall(sent(Opcode.CLOSE, b"\x03\xe8"))
        found += ends(raw)
    assert found.startswith(b"HTTP/1.1 101 ")
    close = b"\x88\x00" if code == 1005 else (code or 1000).to_bytes(2, "big")
    assert close in found
    wait_until(lambda: service.limits.stats()["calls"] == 0)


def test_what_is_said_after_the_end_is_dropped(both, caplog):  # noqa: F811
    service, _ = both
    with nothing_is_told(service, caplog), raw_socket(service, sent(Opcode.TEXT, b"[")) as raw:
        found = b""
        while b"\x88\x02\x03\xf0" not in found:  # closed, with the code 1008
            found += raw.recv(1000)
        for frame in (sent(Opcode.TEXT, b"{}"), sent(Opcode.PING, b"p"), sent(Opcode.CLOSE, b"\x03\xe8")):
            raw.sendall(frame)
            time.sleep(0.05)  # so that each is read alone
        ends(raw)


def test_compressed_frames_are_bounded_when_they_are_decompressed():
    with served(max_message_bytes=1 << 20) as (service, _):
        offer = {"Sec_WebSocket_Extensions": "permessage-deflate"}
        with raw_socket(service, **offer) as raw:
            assert b"permessage-deflate" in raw.recv(1000)
            raw.sendall(sent(Opcode.TEXT, deflated(100), is_packed=True))  # spaces: no JSON
            assert b"\x88" in ends(raw)
        with raw_socket(service, **offer) as raw:
            raw.recv(1000)
            raw.sendall(sent(Opcode.TEXT, deflated(1 << 26), is_packed=True))
            assert (1009).to_bytes(2, "big") in ends(raw)
        wait_until(lambda: service.limits.stats()["calls"] == 0)


def test_a_client_that_answers_no_ping_is_cut_and_one_that_does_stays(both, monkeypatch):  # noqa: F811
    service, _ = both
    monkeypatch.setattr("tagmatch.broker.http.notifications.PULSE_S", 0.0)
    monkeypatch.setattr("tagmatch.broker.http.sockets._PONG_S", 1.0)
    with connected(service, "session=alive") as ws, raw_socket(service) as raw:
        event(ws)
        found = ends(raw)
        assert b"\x89\x00" in found
        say(ws, publish={"tags": []})
        assert event(ws)["event"] == "published"
    wait_until(lambda: service.limits.stats()["calls"] == 0)


def test_a_client_that_sends_much_and_reads_nothing_is_bounded(both):  # noqa: F811
    service, _ = both
    with raw_socket(service) as raw:
        raw.recv(1000)
        (connection,) = [each for each in service.http.app.connections if each._socket is not None]
        raw.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            for _ in range(50):
                raw.sendall(sent(Opcode.PING, os.urandom(100)) * 1000 + sent(Opcode.TEXT, b'{"follow": []}') * 1000)
        assert connection._socket._unread < 2 << 20
        assert connection.transport.get_write_buffer_size() < 2 << 20
    wait_until(lambda: service.limits.stats()["calls"] == 0)


def test_a_client_that_closes_it_reads_what_was_sent_before(both, caplog):  # noqa: F811
    """Also if much waits to be written: nothing is told, and the connection is not cut."""
    service, client = both
    with nothing_is_told(service, caplog), raw_socket(service) as raw:
        raw.recv(1000)
        raw.sendall(sent(Opcode.TEXT, b'{"follow": [7]}'))
        wait_until(lambda: service.subscribers.sessions.stats()["keys"] == 1)
        (connection,) = [each for each in service.http.app.connections if each._socket is not None]
        while connection.may_write is None:
            assert client.ask("POST", "/publish", [{"tags": ["cat"], "payload": "x" * 10_000}] * 50)[0] == 200
        raw.sendall(sent(Opcode.CLOSE, b"\x03\xe8"))
        time.sleep(1)
        assert ends(raw).endswith(b"\x88\x02\x03\xe8")


def test_all_messages_are_published_of_a_client_that_does_not_wait_for_answers(both, caplog):  # noqa: F811
    service, _ = both
    with nothing_is_told(service, caplog):
        with connected(service, "session=s") as ws:
            for number in range(20):
                say(ws, publish={"tags": ["cat"], "id": f"m{number}"})
        wait_until(lambda: service.limits.stats()["calls"] == 0)
    assert service.subscribers.hub.stats()["in"] == 20


def test_a_client_that_has_gone_waits_for_no_rate(caplog, monkeypatch):
    """Its call ends at once, not when the rate allows all of these keys."""
    monkeypatch.setattr("tagmatch.broker.http.notifications.PULSE_S", 1000.0)
    with served(rate=10.0) as (service, _), nothing_is_told(service, caplog), raw_socket(service) as raw:
        raw.recv(1000)
        raw.sendall(sent(Opcode.TEXT, b'{"follow": [%b]}' % b",".join(b"%d" % key for key in range(3000))))
        time.sleep(0.5)
        raw.sendall(sent(Opcode.CLOSE, b"\x03\xe8"))


def test_a_client_whose_texts_wait_to_be_read_may_answer_a_ping_later(monkeypatch):
    monkeypatch.setattr("tagmatch.broker.http.notifications.PULSE_S", 0.1)
    monkeypatch.setattr("tagmatch.broker.http.sockets._PONG_S", 0.3)
    with served(rate=100.0) as (service, _), connected(service, "session=s") as ws:
        event(ws)
        say(ws, follow=[*range(500)])  # for which the rate has room in some seconds
        ws.send('{"unfollow": []}' + " " * 100_000)
        say(ws, publish={"tags": []})
        assert event(ws)["event"] in ("published", "refused")


def test_empty_frames_take_no_memory(both):  # noqa: F811
    service, _ = both
    with raw_socket(service) as raw:
        raw.recv(1000)
        (connection,) = [each for each in service.http.app.connections if each._socket is not None]
        raw.sendall(sent(Opcode.TEXT, b'{"publish"', fin=False) + sent(Opcode.CONT, b"", fin=False) * 100_000)
        raw.sendall(sent(Opcode.PING, b"p"))
        assert raw.recv(1000) == b"\x8a\x01p"
        assert len(pickle.dumps(connection._socket._part)) < 1000
        raw.sendall(sent(Opcode.CONT, b': {"tags": []}}'))
        assert b"published" in raw.recv(1000)
