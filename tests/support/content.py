"""Filters of constraints on attributes in plain Python: the oracle of the content-based workload's matchers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

HOLDS: dict[str, Callable[[Any, Any, Any], bool]] = {
    "=": lambda x, value, _: x == value, "!=": lambda x, value, _: x != value, "<": lambda x, value, _: x < value,
    ">": lambda x, value, _: x > value, "between": lambda x, value, upper: value <= x <= upper,
    "prefix": lambda x, text, _: x.startswith(text), "contains": lambda x, text, _: text in x,
}  # fmt: skip


def holds(constraint: Mapping[str, Any], message: Mapping[str, Any]) -> bool:
    """Whether a constraint, as in column `constraints` of subscriptions, holds for the message's attribute."""
    x = message.get(constraint["attr"])
    operand = constraint["value"] if constraint.get("text") is None else constraint["text"]
    return x is not None and HOLDS[constraint["op"]](x, operand, constraint.get("upper"))


def matching_keys(subscriptions: Iterable[Mapping[str, Any]], messages: Iterable[Mapping[str, Any]]) -> list[list[int]]:
    """Keys of the filters that match each message, once for each filter, ascending."""
    stored: Sequence[Mapping[str, Any]] = list(subscriptions)
    return [
        sorted(row["key"] for row in stored if all(holds(constraint, message) for constraint in row["constraints"]))
        for message in messages
    ]
