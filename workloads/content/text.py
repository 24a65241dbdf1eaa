"""The workload as text: filters as expressions, rows as JSON Lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.files.json_lines import concatenated, json_values, text_of
from tagmatch.workloads.content.generate import SUBSCRIPTIONS_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Sequence

#: What `with_where` adds
WHERE = pa.field("where", pa.string())
#: Subscriptions with their filters also as text
WHERE_SCHEMA = SUBSCRIPTIONS_SCHEMA.append(WHERE)


def where_texts(constraints: pa.ListArray) -> pa.Array:
    """Return each filter as an expression, such as `a1 = 5 and a7 between 2 and 8 and a9 prefix "4"`.

    Parameters
    ----------
    constraints
        Column `constraints` of the workload: their texts have no quotes, which would have to be escaped.

    Returns
    -------
    pyarrow.LargeStringArray
    """
    flat = constraints.flatten()
    attributes, operators, values, uppers, texts = flat.flatten()
    numbers = pc.if_else(uppers.is_valid(), concatenated(values, " and ", uppers), values.cast(pa.large_string()))
    operands = pc.if_else(texts.is_valid(), concatenated('"', texts, '"'), numbers)
    each = concatenated(attributes, " ", operators, " ", operands)
    lists = pa.ListArray.from_arrays(pc.subtract(constraints.offsets, constraints.offsets[0]), each)
    return pc.binary_join(lists, pa.scalar(" and ", pa.large_string()))


def with_where(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return subscriptions with one more column, `where`."""
    return batch.append_column(WHERE, where_texts(batch["constraints"]).cast(WHERE.type))


def subscription_lines(batch: pa.RecordBatch) -> memoryview:
    """Return subscriptions as JSON Lines in UTF-8, with `key`, `tags` and `where`."""
    return object_lines(subscription_members(batch))


def subscription_members(batch: pa.RecordBatch) -> list[pa.Array]:
    """Return the members of `object_lines` that subscriptions have in JSON Lines."""
    where = pc.replace_substring(where_texts(batch["constraints"]), '"', '\\"')
    return [*value_members(batch.select(["key", "tags"])), concatenated('"where":"', where, '"')]


def message_lines(batch: pa.RecordBatch) -> memoryview:
    """Return messages as JSON Lines in UTF-8, with the attributes that a message has."""
    return object_lines(value_members(batch))


def value_members(batch: pa.RecordBatch) -> list[pa.Array]:
    """Return the members of `object_lines` of each column."""
    return [
        concatenated(f'"{name}":', json_values(column)) for name, column in zip(batch.schema.names, batch, strict=True)
    ]


def object_lines(members: Sequence[pa.Array]) -> memoryview:
    """Return a JSON object a row, of columns of members such as `"a":1`; a row has none of those that are null."""
    joined = pc.binary_join_element_wise(*members, pa.scalar(",", pa.large_string()), null_handling="skip")
    return text_of(concatenated("{", joined, "}\n"))
