"""Settings of a session that tests share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def settings_of(spark: Any, settings: Mapping[str, str]) -> Iterator[None]:
    """Set some for a while. Unset after it, they would be as Spark has them, not as the tests' configuration has."""
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
