"""Logs, spans and metrics: lines that cannot be forged, without secrets, and strangers at the port."""

import contextlib
import json
import logging
import socket
import subprocess
import sys
import threading
import urllib.error

import pytest
from support.service import USERS, config, fetched
from support.waiting import wait_until

from tagmatch import AccessError, TagMatch, TagMatchError, connect
from tagmatch.broker import observe
from tagmatch.broker.config import LogOptions, MetricsOptions
from tagmatch.broker.observe import (
    LOG,
    MAX_CONNECTIONS,
    MAX_REQUEST,
    HttpEndpoint,
    JsonLog,
    TextLog,
    set_up_logs,
    spans,
)
from tagmatch.broker.service import serving


@pytest.fixture
def logs(monkeypatch):
    """What `set_up_logs` changes is as before afterwards."""
    root, ours = logging.getLogger(), logging.getLogger("tagmatch")
    before = root.level, ours.level
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    yield
    root.setLevel(before[0])
    ours.setLevel(before[1])
    logging.captureWarnings(False)


def test_log_lines():
    record = logging.LogRecord("x", logging.WARNING, "", 0, "refused %s", ("it",), None)
    record.fields = {"user": "ana"}
    found = json.loads(JsonLog().format(record))
    assert (found["level"], found["message"], found["user"]) == ("warning", "refused it", "ana")
    assert TextLog().format(record).endswith("warning refused it user='ana'")
    error = ValueError("x")
    failed = LOG.makeRecord("x", logging.ERROR, "", 0, "failed", (), (ValueError, error, None))
    assert "ValueError: x" in json.loads(JsonLog().format(failed))["traceback"]
    assert "\n    ValueError: x" in TextLog().format(failed)


@pytest.mark.usefixtures("logs")
@pytest.mark.parametrize("form", ["json", "text"])
def test_every_line_of_the_log_is_one_of_the_logger(form, capsys):
    """What gateways, libraries and threads say has a time and a level, and cannot look like two lines."""
    forged = '1\n{"level": "error"}\r\x1b[31m\u2028\x85\ud800'
    set_up_logs(LogOptions(form, "warning"))
    for name in ("tagmatch.gateways", "tagmatch.subscribers", "tagmatch.broker", "nats.aio.client"):
        logging.getLogger(name).info("left out")
        logging.getLogger(name).warning("of %s: %s", name, forged, extra={"fields": {"topic": forged}})
    ended = threading.Thread(target=lambda: 1 // 0)
    ended.start()
    ended.join()
    lines = capsys.readouterr().err.splitlines()
    whole = [line for line in lines if not line.startswith("    ")]
    levels = [json.loads(line)["level"] if form == "json" else line.split()[1] for line in whole]
    assert (len(levels), {*levels}) == (5, {"warning", "error"})
    assert any("ZeroDivisionError" in line for line in lines)


@pytest.mark.usefixtures("logs")
def test_the_level_of_the_log_holds_for_gateways():
    for level, of_libraries in (("error", "ERROR"), ("debug", "WARNING")):
        set_up_logs(LogOptions("text", level))
        found = [logging.getLogger(name).getEffectiveLevel() for name in ("tagmatch.gateways", LOG.name, "nats")]
        assert list(map(logging.getLevelName, found)) == [level.upper(), level.upper(), of_libraries]


def test_logs_name_users_and_reasons_and_no_tokens(caplog):
    caplog.set_level(logging.DEBUG, LOG.name)
    with TagMatch(threads=1, device="cpu") as index, serving(index, config(USERS)) as service:
        with connect(service.url, token="token-read") as tm, pytest.raises(AccessError):
            tm.add_set(["a"], 1)
        with pytest.raises(AccessError):
            connect(service.url, token="something else")
    records = [record for record in caplog.records if hasattr(record, "fields")]
    text = json.dumps([{**record.fields, "message": record.getMessage()} for record in records])
    words = ("user-read", "is unknown", "token-read", "something else")
    assert [word in text for word in words] == [True, True, False, False]


def test_each_call_is_a_span(monkeypatch):
    seen = []

    def span(name, user, _):
        seen.append((name, user))
        return contextlib.nullcontext()

    monkeypatch.setattr("tagmatch.broker.service.spans", lambda **_: span)
    with TagMatch(threads=1, device="cpu") as index, serving(index) as service, connect(service.url) as tm:
        tm.match_many([["a"]])
        tm.consolidate()
    assert seen == [("info", "anyone"), ("match", "anyone"), ("consolidate", "anyone")]


_SPAN = """
from tagmatch.broker.observe import spans
for to_console in (False, True):
    span = spans(to_console=to_console)("match", "ana", "127.0.0.1:5")
    assert (span is not None) == to_console
    if span is not None:
        with span:
            pass
"""


def test_spans_with_and_without_opentelemetry(monkeypatch):
    done = subprocess.run([sys.executable, "-c", _SPAN], capture_output=True, text=True, timeout=600, check=True)
    span = json.loads(done.stderr)
    assert (span["name"], span["attributes"]) == ("tagmatch.match", {"user": "ana", "peer": "127.0.0.1:5"})
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert spans(to_console=False)("match", "ana", "127.0.0.1:5") is None
    with pytest.raises(TagMatchError, match=r"tagmatch\[trace\]"):
        spans(to_console=True)


BEGUN = b"GET /livez HTTP/1.1\r\nHost: x\r\nX: "


@pytest.fixture
def endpoint(monkeypatch):
    monkeypatch.setattr(observe, "MAX_SECONDS", 1.5)
    found = HttpEndpoint(MetricsOptions(port=0), lambda: b"metrics 1\n" * 1_000_000, lambda: (True, b"ready\n"))
    with contextlib.closing(found):
        yield found


def _connected(endpoint: HttpEndpoint, begun: bytes = BEGUN) -> socket.socket:
    found = socket.create_connection(("127.0.0.1", int(endpoint.url.rpartition(":")[2])), 60)
    found.sendall(begun)
    return found


def _has_ended(one: socket.socket) -> bool:
    one.setblocking(False)
    try:
        one.send(b"a")
        return one.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


@pytest.mark.slow
def test_few_slow_connections_are_open_at_once(endpoint):
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(_connected(endpoint)) for _ in range(3 * MAX_CONNECTIONS)]
        wait_until(lambda: all(map(_has_ended, slow[: 2 * MAX_CONNECTIONS])))
        wait_until(lambda: len(endpoint.open) <= MAX_CONNECTIONS)
        assert fetched(endpoint.url + "/livez") == "alive\n"
        wait_until(lambda: all(map(_has_ended, slow)))  # they have had their time
    wait_until(lambda: not endpoint.open)


# Nothing, a letter, headers, and an answer that is not read
@pytest.mark.slow
@pytest.mark.parametrize("begun", [b"", b"G", BEGUN, b"GET /metrics HTTP/1.1\r\nConnection: keep-alive\r\n\r\n"])
def test_a_connection_has_its_time(endpoint, begun):
    with _connected(endpoint, begun):
        wait_until(lambda: len(endpoint.open) == 1)
        wait_until(lambda: not endpoint.open)
    assert fetched(endpoint.url + "/readyz") == "ready\n"


def test_a_request_is_short(endpoint):
    with contextlib.suppress(ConnectionError), _connected(endpoint, BEGUN + b"a" * MAX_REQUEST) as one:
        while one.recv(1 << 16):
            pass
    wait_until(lambda: not endpoint.open)
    assert fetched(endpoint.url + "/metrics").startswith("metrics 1\n")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        fetched(endpoint.url + "/")
