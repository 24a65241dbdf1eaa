"""Settings of Spark that bound the memory of workers are compared with what an index takes."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from tagmatch.spark.session import WORKER_NBYTES, warn_of_memory


def session(**settings: str) -> Any:
    given = {f"spark.executor.{name.replace('_', '.')}": text for name, text in settings.items()}
    return SimpleNamespace(conf=SimpleNamespace(getAll=given))


@pytest.mark.parametrize("given", ["20g", "20480", "20480m", "", "many"])
def test_enough(given: str, caplog: pytest.LogCaptureFixture) -> None:
    warn_of_memory(session(pyspark_memory=given, cores="2"), (10 << 30) - WORKER_NBYTES)
    warn_of_memory(None, 1 << 50)
    assert not caplog.messages


@pytest.mark.parametrize("given", ["20479m", "20479", "19G"])
def test_too_little(given: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        warn_of_memory(session(pyspark_memory=given, cores="2"), (10 << 30) - WORKER_NBYTES)
    (message,) = caplog.messages
    assert f"is {given} for 2 workers" in message
    assert "index of 6144 MiB" in message
    assert message.endswith("leave it out, or set 20480m")
