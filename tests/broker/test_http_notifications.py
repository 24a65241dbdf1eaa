"""Notifications over HTTP are those of sessions: counted, resumed, bounded, and cut where a right ends."""

import contextlib
import dataclasses
import http.client
import json
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.brokers import Proxy
from support.documents import ROOT
from support.service import USERS, config, value
from support.waiting import wait_until
from test_flight_security import VALID
from test_http import ARROW, NDJSON, Http, lines, served, stream

from tagmatch import TagMatch
from tagmatch.broker.config import HttpOptions, SessionOptions, User
from tagmatch.broker.http import notifications
from tagmatch.broker.service import Service, serving

Event = tuple[str, str, Any]


class Followed:
    """A stream of events, which `events` reads one by one: the id, the name, and the data."""

    def __init__(self, service: Service, query: str, token: str | None = None, last: str | None = None) -> None:
        assert service.http is not None
        self.connection = http.client.HTTPConnection("127.0.0.1", service.http.port, timeout=30)
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        if last is not None:
            headers["Last-Event-ID"] = last
        self.connection.request("GET", f"/notifications?{query}", headers=headers)
        self.answer = self.connection.getresponse()
        self.last = last
        self.events = self._events()
        if self.answer.status == 200:
            assert self.answer.headers["content-type"] == "text/event-stream"
            _, name, self.session = next(self.events)
            assert name == "session"
        else:
            self.problem = json.load(self.answer)

    def _events(self) -> Iterator[Event]:
        found: dict[str, str] = {}
        for raw in self.answer:
            name, _, text = raw.decode().rstrip("\n").partition(": ")
            if name:
                found[name] = text
                continue
            if "data" in found:
                self.last = found.get("id", self.last)
                yield found.get("id", ""), found.get("event", "message"), json.loads(found["data"])
            found = {}

    def close(self) -> None:
        self.connection.close()


@contextlib.contextmanager
def followed(*given: Any, **more: Any) -> Iterator[Followed]:
    with contextlib.closing(Followed(*given, **more)) as found:
        yield found


@pytest.fixture
def both():
    with served() as found:
        _, client = found
        for key in (7, 8):
            assert client.ask("PUT", f"/subscriptions/{key}", {"tags": ["cat"]})[0] == 200
        yield found


AT_LEAST_ONCE = "session=s&guarantee=at_least_once&linger=60"


def published(client: Http, numbers: Any) -> None:
    rows = [{"tags": ["cat"], "id": f"m{number}", "payload": {"n": number}} for number in numbers]
    assert client.ask("POST", "/publish", rows)[::2] == (200, {"messages": len(rows), "matched": len(rows)})


def test_what_is_published_comes_with_the_keys_that_are_followed(both):
    service, client = both
    with followed(service, "session=s&keys=7") as stream, followed(service, "session=t&every_key=true") as other:
        assert stream.session == {"session": "s", "resumed": False}
        published(client, [1])
        mark, name, found = next(stream.events)
        assert (name, found) == (
            "message",
            {"offset": 1, "redelivered": False, "keys": [7], "id": "m1", "payload": '{"n": 1}'},
        )
        assert mark.startswith("1-")
        assert sorted(next(other.events)[2]["keys"]) == [7, 8]
    wait_until(lambda: not any(each["connected"] for each in client.ask("GET", "/sessions")[2]["sessions"]))


def test_a_client_that_is_killed_between_events_misses_none(both):
    service, client = both
    with followed(service, f"{AT_LEAST_ONCE}&keys=7"):
        pass
    count, seen, again, last = 400, list[int](), 0, None
    publisher = threading.Thread(target=lambda: [published(client, range(n, n + 10)) for n in range(0, count, 10)])
    publisher.start()
    while len({*seen}) < count:
        with followed(service, AT_LEAST_ONCE, last=last) as stream:
            assert stream.session["resumed"] is (last is not None)
            for _ in range(37):
                mark, name, found = next(stream.events)
                assert name == "message"
                seen.append(json.loads(found["payload"])["n"])
                again += found["redelivered"]
                if len(seen) % 5:  # the last ones before a kill were not dealt with
                    last = mark
                if len({*seen}) == count:
                    break
    publisher.join()
    assert sorted({*seen}) == [*range(count)]
    assert len(seen) - count <= again
    assert client.ask("POST", "/acknowledge", {"session": "s", "after": stream.last})[2] == {"acknowledged": True}
    figures = service.subscribers.sessions.stats()
    assert (figures["offered"], figures["delivered"], figures["waiting"]) == (count, count, 0)
    assert figures["dropped"] == figures["expired"] == 0


def test_an_id_of_another_session_acknowledges_nothing(both):
    service, client = both
    with followed(service, f"{AT_LEAST_ONCE}&keys=7") as stream:
        published(client, [1])
        old, _, _ = next(stream.events)
    assert client.ask("DELETE", "/sessions/s")[2] == {"ended": True}
    assert client.ask("DELETE", "/sessions/s")[2] == {"ended": False}
    assert client.ask("POST", "/acknowledge", {"session": "s", "after": old})[2]["kind"] == "SessionError"
    with followed(service, f"{AT_LEAST_ONCE}&keys=7") as stream:
        published(client, [2, 3])
        next(stream.events)
        assert client.ask("POST", "/acknowledge", {"session": "s", "after": old})[2] == {"acknowledged": False}
    with followed(service, AT_LEAST_ONCE, last=old) as stream:
        assert stream.session["resumed"] is False
        assert [json.loads(next(stream.events)[2]["payload"])["n"] for _ in range(2)] == [2, 3]
    with followed(service, f"{AT_LEAST_ONCE}&after=1") as stream:
        assert json.loads(next(stream.events)[2]["payload"])["n"] == 3


@pytest.mark.parametrize(
    ("query", "wrong"),
    [
        ("", "name of a session"), ("session=s&keys=x", "keys of this index are integers"),
        ("session=s&keys=7&every_key=true", "give no keys"), ("session=s&guarantee=once", "guarantee"),
        ("session=s&linger=x", "must be a number"), ("session=s&linger=1e9", "at most"), ("session=s&keyz=1", "keys"),
        ("session=s&form=xml", "form"), ("session=s&after=x", "as 12-"), ("session=s&after=-1", "as 12-"),
        ("session=s&when_full=never", "when_full"), (f"{AT_LEAST_ONCE}&after=99", "cannot be acknowledged"),
        ("session=s&session=t", "once"), ("session=s&after=" + "9" * 30, "as 12-"), ("session=s&linger=nan", "linger"),
    ],
)  # fmt: skip
def test_wrong_options_are_told(both, query, wrong):
    service, client = both
    with followed(service, query) as stream:
        assert stream.answer.status == 400, stream.answer.status
        assert wrong in stream.problem["detail"]
    assert client.ask("HEAD", "/notifications?session=s")[0] == 405
    wait_until(lambda: service.limits.stats()["calls"] == 0)


# -- publishing --------------------------------------------------------------------------------------------------------

EVENT = {"specversion": "1.0", "id": "e1", "source": "/shop", "type": "order", "price": "9", "data": {"tags": ["cat"]}}


@pytest.mark.parametrize("mode", ["structured", "binary", "batch"])
def test_cloudevents_are_published_and_come_as_cloudevents(both, mode):
    service, client = both
    put = client.ask("PUT", "/subscriptions/9", {"tags": ["cat"], "where": 'type = "order" and price < 10'})
    assert put[0] == 200
    with followed(service, "session=s&keys=9&form=cloudevents") as stream:
        if mode == "binary":
            given: dict[str, str] = {f"ce-{name}": str(text) for name, text in EVENT.items() if name != "data"}
            status = client.ask("POST", "/publish", EVENT["data"], Content_Type="application/json", **given)[0]
        else:
            body, kind = ([EVENT], "cloudevents-batch") if mode == "batch" else (EVENT, "cloudevents")
            status = client.ask("POST", "/publish", body, Content_Type=f"application/{kind}+json; charset=utf-8")[0]
        assert status == 200
        _, _, found = next(stream.events)
    kinds = {"datacontenttype": "application/json"} if mode == "binary" else {}
    assert found == {**EVENT, **kinds, "matchedkeys": "[9]"}


def test_what_is_no_event_becomes_one(both):
    service, client = both
    with followed(service, f"{AT_LEAST_ONCE}&keys=7&form=cloudevents") as stream:
        for payload in ({"n": 1}, "plain", "1e400", None):  # the third one is a number that JSON cannot say again
            client.ask("POST", "/publish", {"tags": ["cat"], "payload": payload})
        found = [next(stream.events) for _ in range(4)]
    for mark, _, event in found:
        assert (event["id"], event["source"], event["type"]) == (mark, "/tagmatch/sessions/s", "tagmatch.notification")
    assert [event.get("data") for _, _, event in found] == [{"n": 1}, "plain", "1e400", None]
    with followed(service, f"{AT_LEAST_ONCE}&form=cloudevents") as stream:  # the same ones again
        assert [next(stream.events) for _ in range(4)] == found


def test_messages_are_published_in_each_form(both):
    service, client = both
    row = {"tags": ["cat"], "attributes": {"p": 1}, "location": [9, 45], "id": "x", "payload": "é", "expires_in": 60}
    table = pa.table({"tags": pa.array([["cat"], ["dog"]], pa.list_(pa.string())), "payload": ["a", "b"]})
    with followed(service, "session=s&keys=7") as stream_:
        for body, kind, count in [
            (row, "application/json", 1), ([row, row], "", 2), (lines([row] * 3), NDJSON, 3),
            (stream(table), ARROW, 2),
        ]:  # fmt: skip
            headers = {"Content_Type": kind} if kind else {}
            status, _, found = client.ask("POST", "/publish", body, **headers)
            assert (status, found) == (200, {"messages": count, "matched": min(count, 3) if kind != ARROW else 1}), kind
        for _ in range(6):
            _, _, found = next(stream_.events)
            assert (found["payload"], found["id"]) == ("é", "x")
            assert "expires" in found
        assert next(stream_.events)[2]["payload"] == "a"


@pytest.mark.parametrize(
    ("body", "kind", "wrong"),
    [
        ({"tag": ["a"]}, "application/json", "no field 'tag'"), ([1], "application/json", "must be a JSON object"),
        (b"{", "application/json", "JSON"), (b"", "application/json", "JSON"), (b"x", "text/plain", "Content-Type"),
        ({"tags": "a"}, "application/json", "tags"), ({"channel": 1}, "application/json", "channel"),
        ({"channel": "none"}, "application/json", "channel"),
        ([{"tags": ["a"]}, {"tags": ["a"], "channel": "none"}], "application/json", "channel"),
        ({"expires_in": -1}, "application/json", "expires_in"),
        ({"expires_in": True}, "application/json", "expires_in"), ({"location": 1}, "application/json", "location"),
        ({"attributes": [1]}, "application/json", "attributes"), (b"[]x", NDJSON, "line 1"),
        ({}, "application/cloudevents+json", "needs attribute 'id'"),
        (EVENT, "application/cloudevents-batch+json", "list"),
        ({**EVENT, "specversion": "0.3"}, "application/cloudevents+json", "1.0"),
        (b'{"tags": ["cat"], "payload": {"n": 1e400}}', "application/json", "too large"),
        (json.dumps(EVENT).encode().replace(b'["cat"]', b"1e400"), "application/cloudevents+json", "too large"),
    ],
)  # fmt: skip
def test_wrong_messages_are_told(both, body, kind, wrong):
    service, client = both
    status, _, problem = client.ask("POST", "/publish", body, Content_Type=kind)
    assert status in (400, 415)
    assert wrong in problem["detail"]
    assert service.subscribers.hub.stats()["in"] == 0


# -- rights and bounds -------------------------------------------------------------------------------------------------


def test_sessions_of_others_are_out_of_reach():
    with served((*USERS, VALID)) as (service, client):
        with followed(service, "session=s&guarantee=at_least_once&linger=60&every_key=true", token="token-read"):
            pass
        client.token = "token-write"
        with followed(service, AT_LEAST_ONCE, token="token-write") as stream:
            assert (stream.answer.status, stream.problem["kind"]) == (409, "SessionError")
        for asked in [("POST", "/acknowledge", {"session": "s", "after": "0"}), ("DELETE", "/sessions/s", None)]:
            _, _, found = client.ask(*asked)
            assert found.get("kind") == "SessionError" or found == {"ended": False}
        client.token = "token-read"
        assert len(client.ask("GET", "/sessions")[2]["sessions"]) == 1
        assert client.ask("POST", "/publish", {"tags": []})[0] == 403


def test_a_token_that_expires_ends_the_stream(monkeypatch):
    with served((*USERS, VALID)) as (service, _), followed(service, "session=s", token="token-early") as stream:
        monkeypatch.setattr(User, "has_expired", lambda _: True)
        _, name, found = next(stream.events)
        assert (name, found["error"]) == ("error", "AccessError")
        assert "expired" in found["message"]
        assert next(stream.events, None) is None
        wait_until(lambda: service.limits.stats()["calls"] == 0)


def test_another_connection_takes_the_session_over(both):
    service, client = both
    with followed(service, "session=s&keys=7") as old, followed(service, "session=s") as new:
        assert next(old.events)[1] == "error"
        published(client, [1])
        assert next(new.events)[2]["id"] == "m1"


def test_a_service_that_drains_ends_streams_after_what_waits():
    with served(USERS, drain_seconds=20) as (service, client):
        client.ask("PUT", "/subscriptions/7", {"tags": ["cat"]})
        query = "session=s&guarantee=at_least_once&every_key=true"
        with followed(service, query, token="token-read") as stream:
            published(client, range(100))
            service.drain()
            found = [next(stream.events) for _ in range(101)]
            assert [name for _, name, _ in found] == ["message"] * 100 + ["draining"]
            assert stream.last == found[99][0]
            assert next(stream.events, None) is None
            client.token = "token-read"
            assert client.ask("POST", "/acknowledge", {"session": "s", "after": stream.last})[0] in (200, 409)
        assert service.end()


def test_a_client_that_does_not_read_holds_no_more_than_its_outbox(monkeypatch):
    options = SessionOptions(max_notifications=100_000, max_bytes=1 << 20)
    with served() as (service, client):
        monkeypatch.setattr(service.subscribers.sessions, "options", options)
        client.ask("PUT", "/subscriptions/7", {"tags": ["cat"]})
        with followed(service, "session=s&keys=7&when_full=drop_oldest") as stream:
            for _ in range(40):
                rows = [{"tags": ["cat"], "payload": "x" * 10_000}] * 50
                assert client.ask("POST", "/publish", rows)[0] == 200
            figures = service.subscribers.sessions.stats()
            assert figures["bytes"] <= 1 << 20
            assert figures["dropped"] > 0
            assert figures["offered"] == figures["delivered"] + figures["dropped"] + figures["waiting"]
            offsets = list[int]()
            while not offsets or offsets[-1] < 2000:
                offsets.append(next(stream.events)[2]["offset"])
            assert offsets == sorted({*offsets})
            assert len(offsets) == 2000 - service.subscribers.sessions.stats()["dropped"]


def test_events_are_not_compressed(both):
    """What compresses may keep the last events back."""
    service, _ = both
    given = {"Accept-Encoding": "gzip, zstd"}
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", service.http.port, timeout=30)) as connection:
        connection.request("GET", "/notifications?session=s&keys=7", headers=given)
        answer = connection.getresponse()
        assert (answer.headers["content-encoding"], answer.headers["cache-control"]) == (None, "no-store")
        assert answer.readline() == b"event: session\n"


def test_a_silent_stream_has_a_pulse(both, monkeypatch):
    service, _ = both
    monkeypatch.setattr(notifications, "PULSE_S", 0.0)
    with followed(service, "session=s") as stream:
        assert stream.answer.readline() == b": \n"


def test_streams_that_have_ended_leave_no_thread(both):
    service, client = both
    for number in range(20):
        with followed(service, f"session=s{number}&keys=7"):
            pass
    wait_until(lambda: service.limits.stats()["calls"] == 0)
    wait_until(lambda: service.subscribers.sessions.stats()["connected"] == 0)
    assert value(service, "tagmatch_calls_total", call="notify") >= 20
    assert client.ask("POST", "/match", {"tags": ["cat"]})[0] == 200


# -- JavaScript --------------------------------------------------------------------------------------------------------

EXAMPLE = ROOT / "examples" / "http_client.mjs"


def node(script: Path, *arguments: str) -> subprocess.Popen[str]:
    command = ["node", str(script), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
def test_the_example_in_javascript():
    with served(USERS) as (service, _):
        done = node(EXAMPLE, service.http.url, "token-write")
        printed, errors = done.communicate(timeout=120)
    assert (done.returncode, errors) == (0, "")
    assert printed.splitlines() == ["{ keys: [ 7 ] }", '[ 7 ] {"text": "miaow"}']


def following(folder: Path, port: int) -> subprocess.Popen[str]:
    """The example's function `follow`, whose notifications are printed."""
    begin, _, _ = EXAMPLE.read_text().partition('await call("PUT"')
    script = folder / "follow.mjs"
    script.write_text(begin + 'for await (const each of follow("js", [7])) console.log(each.offset, each.payload);\n')
    return node(script, f"http://127.0.0.1:{port}")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
def test_the_example_in_javascript_goes_on_after_a_lost_connection(both, tmp_path):
    service, client = both
    with contextlib.closing(Proxy(service.http.port)) as proxy, following(tmp_path, proxy.port) as run:
        assert run.stdout is not None
        seen = list[int]()
        try:
            wait_until(lambda: service.subscribers.sessions.stats()["connected"] == 1)
            for part in range(3):
                published(client, range(20 * part, 20 * part + 20))
                while len({*seen}) < 20 * part + 20:
                    seen.append(json.loads(run.stdout.readline().split(" ", 1)[1])["n"])
                proxy.cut()
        finally:
            run.kill()
    assert sorted({*seen}) == [*range(60)]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
def test_the_example_in_javascript_goes_on_with_a_service_that_begins_again(tmp_path):
    """It asks while the service ends, and is told so; while nothing listens; and the next service."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = dataclasses.replace(config(), http=HttpOptions(port=port))
    with TagMatch(threads=1, device="cpu") as index, following(tmp_path, port) as run:
        index.add_set(["a"], 7)
        index.consolidate()
        try:
            for part in range(2):
                with serving(index, own) as service, contextlib.closing(Http(service)) as client:
                    wait_until(lambda: service.subscribers.sessions.stats()["connected"] == 1)
                    assert client.ask("POST", "/publish", {"tags": ["a"], "payload": f"part {part}"})[0] == 200
                    assert run.stdout is not None
                    assert run.stdout.readline() == f"1 part {part}\n"
                    service.drain()
                    wait_until(lambda: value(service, "tagmatch_errors_total", kind="UnavailableError") > 0)
        finally:
            run.kill()
