"""Logs and spans of the service: one for each call, lines that cannot be forged, and nothing of what is secret."""

import json
import logging
import subprocess
import sys
import threading

import pytest
from support.service import USERS, config

from tagmatch import AccessError, TagMatch, TagMatchError, connect
from tagmatch.broker.config import LogOptions
from tagmatch.broker.logs import LOG, JsonLines, TextLines, set_up_logs
from tagmatch.broker.running import serving
from tagmatch.broker.tracing import no_span, spans


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
    found = json.loads(JsonLines().format(record))
    assert (found["level"], found["message"], found["user"]) == ("warning", "refused it", "ana")
    assert TextLines().format(record).endswith("warning refused it user='ana'")
    error = ValueError("x")
    failed = LOG.makeRecord("x", logging.ERROR, "", 0, "failed", (), (ValueError, error, None))
    assert "ValueError: x" in json.loads(JsonLines().format(failed))["traceback"]
    assert "\n    ValueError: x" in TextLines().format(failed)


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
    words = ("user-read", "not known", "token-read", "something else")
    assert [word in text for word in words] == [True, True, False, False]


def test_each_call_is_a_span(monkeypatch):
    seen = []

    def span(name, attributes):
        seen.append((name, attributes["user"]))
        return no_span(name, attributes)

    monkeypatch.setattr("tagmatch.broker.running.spans", lambda **_: span)
    with TagMatch(threads=1, device="cpu") as index, serving(index) as service, connect(service.url) as tm:
        tm.match_many([["a"]])
        tm.consolidate()
    assert seen == [("tagmatch.info", "anyone"), ("tagmatch.match", "anyone"), ("tagmatch.consolidate", "anyone")]


_SPAN = """
from tagmatch.broker.tracing import spans
for to_console in (False, True):
    with spans(to_console=to_console)("tagmatch.match", {"user": "ana"}):
        pass
"""


def test_spans_with_and_without_opentelemetry(monkeypatch):
    done = subprocess.run([sys.executable, "-c", _SPAN], capture_output=True, text=True, timeout=600, check=True)
    span = json.loads(done.stderr)
    assert (span["name"], span["attributes"]) == ("tagmatch.match", {"user": "ana"})
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert spans(to_console=False) is no_span
    with pytest.raises(TagMatchError, match=r"tagmatch\[trace\]"):
        spans(to_console=True)
