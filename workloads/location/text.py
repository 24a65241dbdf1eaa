"""The workload of areas as JSON Lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from tagmatch.files.json_lines import concatenated
from tagmatch.workloads.content.text import object_lines, subscription_members, value_members

if TYPE_CHECKING:
    from collections.abc import Sequence

_TEXT = pa.large_string()


def subscription_lines(batch: pa.RecordBatch) -> memoryview:
    """Return subscriptions as JSON Lines in UTF-8: `key`, `tags`, `area`, and constraints as an expression `where`."""
    return object_lines([*subscription_members(batch), _numbers_member("area", batch["area"])])


def message_lines(batch: pa.RecordBatch) -> memoryview:
    """Return messages, or moves, as JSON Lines in UTF-8, with the attributes that a message has."""
    others = [name for name in batch.schema.names if name != "location"]
    return object_lines([*value_members(batch.select(others)), _numbers_member("location", batch["location"])])


def _numbers_member(name: str, structs: pa.StructArray) -> pa.Array:
    """A member whose value is an object of numbers."""
    fields: Sequence[pa.Field] = list(structs.type)
    parts: list[pa.Array | str] = []
    for field, column in zip(fields, structs.flatten(), strict=True):
        parts += [f'{"," if parts else ""}"{field.name}":', column.cast(_TEXT)]
    return concatenated(f'"{name}":{{', *parts, "}")
