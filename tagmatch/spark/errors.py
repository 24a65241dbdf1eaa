"""Errors of tagmatch that are raised in Spark's workers, and that become errors of tagmatch again."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from pyspark.errors import PySparkException

import tagmatch.model.errors
from tagmatch.model.errors import InvalidValueError, TagMatchError
from tagmatch.model.storage.location import Location

_RAISED = re.compile(r"^(?:.*\s)?tagmatch\.(\w+): (.+)$", re.MULTILINE)


@contextlib.contextmanager
def errors_of_workers() -> Iterator[None]:
    """Raise an error of tagmatch, which Spark has made part of the message of its own, instead of Spark's."""
    try:
        yield
    except PySparkException as error:
        raised = _RAISED.search(str(error))
        kind = getattr(tagmatch.model.errors, raised[1], None) if raised else None
        if raised is None or not (isinstance(kind, type) and issubclass(kind, TagMatchError)):
            raise
        raise kind(raised[2].strip()) from error


def on_plane(index: Location) -> InvalidValueError:
    """What is wrong with an index that is on the plane."""
    return InvalidValueError(
        f"the index {index} is on the plane, but on Spark locations and areas are lon and lat in degrees; "
        "ask it by match_many of TagMatch.open(index, plane=True)"
    )
