"""Conditions as older versions have stored them, without these versions."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any
from unittest.mock import patch

from tagmatch.model.where import language


def _each(rows: Any) -> Any:
    """The alternatives of an expression, each for itself."""
    return sorted(rows, key=lambda row: sorted(map(str, row)))


def _one_by_one(expression: Any, _: int) -> Any:
    """The parts of an `and`; those of an `and` among them made their alternatives first."""
    return [*expression.parts]


def _shortened(number: float) -> Any:
    """A number without quotes: the decimal that the nearest double is written as."""
    return Decimal(repr(float(number)))


#: What was made otherwise, by the names of today's functions
OLDER: dict[str, Callable[..., Any]] = {
    "alternatives.folded": _each, "alternatives._joined": _one_by_one, "declared.exact_decimal": _shortened,
}  # fmt: skip


@contextmanager
def stored_as_before(*names: str) -> Iterator[None]:
    """Store conditions, in the block, as before these functions were as they are."""
    patches = [patch(f"tagmatch.model.where.{name}", OLDER[name]) for name in names]
    language._stored_rows.cache_clear()
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()
        language._stored_rows.cache_clear()
