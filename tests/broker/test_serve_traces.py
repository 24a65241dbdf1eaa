"""Spans and logs of the service: one for each call, and nothing of what is secret."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest
from support.service import USERS, config

from tagmatch import AccessError, TagMatch, TagMatchError, connect
from tagmatch.broker.logs import LOG
from tagmatch.broker.running import serving
from tagmatch.broker.tracing import no_span, spans


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


def test_spans_of_opentelemetry():
    done = subprocess.run([sys.executable, "-c", _SPAN], capture_output=True, text=True, timeout=60, check=True)
    (span,) = [json.loads(done.stderr)]
    assert (span["name"], span["attributes"]) == ("tagmatch.match", {"user": "ana"})


def test_without_opentelemetry(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert spans(to_console=False) is no_span
    with pytest.raises(TagMatchError, match=r"tagmatch\[trace\]"):
        spans(to_console=True)


def test_logs_name_users_and_reasons_and_no_tokens(caplog):
    caplog.set_level(logging.DEBUG, LOG.name)
    with TagMatch(threads=1, device="cpu") as index, serving(index, config(USERS)) as service:
        with connect(service.url, token="token-read") as tm, pytest.raises(AccessError):
            tm.add_set(["a"], 1)
        with pytest.raises(AccessError):
            connect(service.url, token="something else")
    text = json.dumps(
        [{**record.fields, "message": record.getMessage()} for record in caplog.records if hasattr(record, "fields")]
    )
    assert "user-read" in text
    assert "not known" in text
    assert "token-read" not in text
    assert "something else" not in text
