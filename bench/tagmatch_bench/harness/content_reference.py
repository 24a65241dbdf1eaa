"""The filters that messages satisfy, by brute force: NumPy compares every constraint with every message.

Nothing here is shared with the compared systems, so that each of them can be found wrong.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import offsets_of
from tagmatch.model.arrow import numpy_type
from tagmatch_bench.harness.reference import all_true

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tagmatch.model.arrays import BoolArray, I64Array

_COMPARED: Mapping[str, Callable[[Any, Any], BoolArray]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
_OF_TEXTS: Mapping[str, Callable[[str, str], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "prefix": str.startswith,
    "contains": operator.contains,
}


def satisfied_rows(subscriptions: pa.Table, messages: pa.Table) -> list[I64Array]:
    """Return the rows of the subscriptions that each message satisfies.

    Parameters
    ----------
    subscriptions : pyarrow.Table
        Column `constraints`, as SFF and OCM take it.
    messages : pyarrow.Table
        Not many; a column for each attribute, null where a message does not have it.
    """
    lists = subscriptions["constraints"].combine_chunks()
    offsets = offsets_of(pc.list_value_length(lists).to_numpy(zero_copy_only=False).astype(np.int64))
    flat = lists.flatten()
    names, operators, values, uppers = (pc.struct_field(flat, name) for name in ("attr", "op", "value", "upper"))
    encoded = names.dictionary_encode()
    attribute_of = encoded.indices.to_numpy()
    kind = numpy_type(values.type)
    numbers, highest = (each.fill_null(0).to_numpy(zero_copy_only=False) for each in (values, uppers))
    texts = pc.struct_field(flat, "text") if "text" in flat.type.names else pa.nulls(len(flat), pa.string())
    of_numbers = texts.is_null().to_numpy(zero_copy_only=False)
    places = {
        each: np.flatnonzero(pc.equal(operators, each).to_numpy(zero_copy_only=False) & of_numbers)
        for each in operators.unique().to_pylist()
    }
    places = {name: at for name, at in places.items() if len(at)}
    # Of each text that is asked for: by its attribute, the operator and where it is
    asked_of: dict[str, list[tuple[str, str, I64Array]]] = {}
    named = pa.table({"attr": names, "op": operators, "text": texts, "at": np.arange(len(flat))}).filter(
        texts.is_valid()
    )
    for row in named.group_by(["attr", "op", "text"]).aggregate([("at", "list")]).to_pylist():
        asked_of.setdefault(row["attr"], []).append((row["op"], row["text"], np.array(row["at_list"], np.int64)))

    def satisfied(message: Mapping[str, Any]) -> I64Array:
        given = [message.get(name) for name in encoded.dictionary.to_pylist()]
        there = np.array([value is not None for value in given], np.bool_)
        x = np.array([0 if value is None or isinstance(value, str) else value for value in given], kind)
        holds = there[attribute_of]
        for name, at in places.items():
            asked = x[attribute_of[at]]
            if name == "between":
                holds[at] &= (numbers[at] <= asked) & (asked <= highest[at])
            else:
                holds[at] &= _COMPARED[name](asked, numbers[at])
        for attribute in asked_of.keys() & message.keys():
            if message[attribute] is not None:
                for name, text, at in asked_of[attribute]:
                    holds[at] = _OF_TEXTS[name](message[attribute], text)
        return np.flatnonzero(all_true(holds, offsets))

    return [satisfied(message) for message in messages.to_pylist()]
