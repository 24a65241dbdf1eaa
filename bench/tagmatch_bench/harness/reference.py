"""The right answers, by brute force: NumPy compares every stored set, or constraint, with every message.

Nothing here hashes, indexes or signs, and no compared system is asked, so that each can be found wrong.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import BoolArray, I64Array, offsets_of
from tagmatch.model.arrow import numpy_type
from tagmatch.model.parallel import run
from tagmatch_bench.systems.matcher import COMPARED


def right_answers(sets: pa.Table, queries: pa.ListArray, *, unique: bool = False, threads: int = 1) -> list[list[int]]:
    """Return the keys of the stored sets that are contained in each query."""
    asked = queries.flatten().unique()
    possible = run(lambda batch: batch.filter(all_tags_in(batch["tags"], asked)), sets.to_batches(), threads)
    numbered = [pc.index_in(batch["tags"].flatten(), value_set=asked).to_numpy() for batch in possible]
    numbers = np.concatenate([np.zeros(0, np.int32), *numbered])
    stored = pa.Table.from_batches(possible, sets.schema)
    offsets = offsets_of(np.concatenate([np.zeros(0, np.int64), *(_lengths(batch["tags"]) for batch in possible)]))
    keys = stored["key"].to_numpy()

    def answer(query: list[str]) -> list[int]:
        present = np.zeros(len(asked), np.bool_)
        present[pc.index_in(pa.array(query, asked.type), value_set=asked).to_numpy()] = True
        rows = np.flatnonzero(all_true(present[numbers], offsets))
        pairs = {(frozenset(numbers[offsets[row] : offsets[row + 1]].tolist()), int(keys[row])) for row in rows}
        found = [key for _, key in pairs]
        return sorted(set(found)) if unique else sorted(found)

    return run(answer, queries.to_pylist(), threads)


def _lengths(sets: pa.ListArray) -> I64Array:
    return np.asarray(sets.value_lengths().to_numpy(zero_copy_only=False), np.int64)


def all_tags_in(sets: pa.ListArray, tags: pa.Array) -> pa.Array:
    """Which sets have no other tags than these."""
    known = pc.is_in(sets.flatten(), value_set=tags).to_numpy(zero_copy_only=False)
    return pa.array(all_true(known, offsets_of(_lengths(sets))))


def all_true(flags: BoolArray, offsets: I64Array) -> BoolArray:
    """Whether all flags of each list are set; those of list `i` are `flags[offsets[i]:offsets[i + 1]]`."""
    unset = offsets_of((~flags).astype(np.int64))
    every: BoolArray = unset[offsets[1:]] == unset[offsets[:-1]]
    return every


_OF_TEXTS: Mapping[str, Callable[[str, str], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "prefix": str.startswith,
    "contains": operator.contains,
}


def satisfied_rows(subscriptions: pa.Table, messages: pa.Table) -> list[I64Array]:
    """Return the rows of the subscriptions that each message satisfies."""
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
    # Each text that is asked for: by its attribute, the operator and its place
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
                holds[at] &= COMPARED[name](asked, numbers[at])
        for attribute in asked_of.keys() & message.keys():
            if message[attribute] is not None:
                for name, text, at in asked_of[attribute]:
                    holds[at] = _OF_TEXTS[name](message[attribute], text)
        return np.flatnonzero(all_true(holds, offsets))

    return [satisfied(message) for message in messages.to_pylist()]
