"""Options of a workload that are numbers, each with its limits and what it means."""

from __future__ import annotations

from dataclasses import field, fields
from typing import Any

from tagmatch.model.errors import InvalidTypeError, InvalidValueError


def number(default: float, low: float, high: float, text: str) -> Any:
    """Return a field of a data class: an option from `low` to `high`; `text` is its help, with its source."""
    return field(default=default, metadata={"low": low, "high": high, "text": text})


def check_numbers(options: Any) -> None:
    """Check the fields of a data class that `number` made."""
    for option in fields(options):
        if option.metadata:
            _check(option.name, getattr(options, option.name), option.metadata, whole=option.type == "int")


def _check(name: str, value: object, limits: Any, *, whole: bool) -> None:
    kinds = int if whole else int | float
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise InvalidTypeError(f"{name} must be {'an integer' if whole else 'a number'}, not {value!r}")
    if not limits["low"] <= value <= limits["high"]:
        raise InvalidValueError(f"{name} must be from {limits['low']} to {limits['high']}, not {value!r}")
