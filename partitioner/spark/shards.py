"""Step 1: rows become shards, each with its distinct sets, the keys of each, and the tags that occur in them.

Equal sets meet in one shard, as rows are shuffled by a hash of the set; whether they are equal is decided on the tags.
A shard is what the local partitioner makes of its rows.
"""

from __future__ import annotations

import decimal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import I64Array, Strings, U8Array, U32Array, U64Array
from tagmatch.model.arrow import from_lists, from_strings, from_tag_lists, to_lists, to_numbers, to_strings
from tagmatch.model.columns import KEY_CHECKS, tag_lists
from tagmatch.model.input.conditions import (
    have_mistakes,
    reject_mistakes,
    with_conditions,
)
from tagmatch.model.kernels.hashing import hash_tags
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.lists import sort_values
from tagmatch.model.layouts import empty_segment
from tagmatch.model.options import LayoutOptions
from tagmatch.model.tables import LONG_AGO, Vocabulary
from tagmatch.model.tag_order import by_hash
from tagmatch.partitioner.local import Changes, HeldSets, distinct_sets, held_by
from tagmatch.partitioner.spark.batches import (
    SERIALIZED,
    Batches,
    Serializer,
    deserialized,
    gathered,
    groups_by_hash,
    labels_for_all,
    number_of_task,
    one_row,
    rows_at,
)
from tagmatch.partitioner.spark.keys import ShardKeys
from tagmatch.partitioner.staged import StagedChanges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: What can be wrong with a row; the first that is counts
PROBLEMS = (
    "tags is null",
    "a tag is null",
    "key is null",
    "key is negative",
    "key is 2**64 or more",
    "where has a mistake",
)

_KEY_LIMIT = pa.scalar(decimal.Decimal(2**64), pa.decimal128(20, 0))

# Numbers of batches: rows, and how many there were of each problem
_ROWS, _PROBLEMS = 0, 1

# Of rows that have conditions
_WHERE, *_ = _CONDITIONS = "where", "constraints", "area"

_SENT_BYTES, _RECEIVED_BYTES = 1 << 25, 1 << 22

_SHARD = "shard long, sets long, rows long, problems array<long>"


@dataclass(frozen=True, slots=True)
class Shards:
    """What step 1 made."""

    numbers: tuple[int, ...]  # Of the shards with sets
    sets: int  # Distinct sets of all shards
    rows: int  # Rows that these are of
    problems: dict[str, int]  # Rows that were left out, by what is wrong with them
    other_rows: int = 0  # Rows of tables that the index has beside these sets


def make_shards(rows: DataFrame, keys: ShardKeys, *, skip_invalid: bool) -> Shards:
    """Make shards of columns `tags`, array<string>, and `key`, string or an integer or decimal.

    Rows may also have `where`, `constraints` and `area` (see `TagMatch.add_subscriptions`).
    """
    clean = rows.mapInArrow(partial(_clean, labels_for_all(rows.sparkSession), skip_invalid=skip_invalid), SERIALIZED)
    made = clean.repartition("label").mapInArrow(partial(_write_shard, keys), _SHARD).collect()
    counts = np.sum([np.zeros(len(PROBLEMS), np.int64), *(np.array(shard.problems) for shard in made)], axis=0)
    return Shards(
        tuple(sorted(shard.shard for shard in made if shard.sets)),
        sum(shard.sets for shard in made),
        sum(shard.rows for shard in made),
        {problem: int(count) for problem, count in zip(PROBLEMS, counts, strict=True) if count},
    )


@kernel
def _set_hashes(offsets, hashes, out):
    """Sum the different hashes of each row, which are sorted in place."""
    for row in range(len(out)):
        first, last = offsets[row], offsets[row + 1]
        sort_values(hashes, first, last)
        total = np.uint64(0)
        for i in range(first, last):
            if i == first or hashes[i] != hashes[i - 1]:
                total += hashes[i]
        out[row] = total


def _clean(labels: I64Array, batches: Batches, *, skip_invalid: bool = False) -> Iterator[pa.RecordBatch]:
    """Rows that can be stored, by a hash of their set; of the others how many there are of each kind."""
    found = np.zeros(len(PROBLEMS), np.int64)
    for batch in gathered(batches, _SENT_BYTES):
        problems = _problems(batch["tags"], batch["key"])
        if _WHERE in batch.schema.names:
            if skip_invalid:
                problems[have_mistakes(batch[_WHERE], plane=False) & (problems == 0)] = len(PROBLEMS)
            else:
                reject_mistakes(batch[_WHERE], plane=False)
        found += np.bincount(problems, minlength=len(PROBLEMS) + 1)[1:]
        good = batch if not problems.any() else batch.filter(pa.array(problems == 0))
        asked = {name: good[name] for name in _CONDITIONS if name in good.schema.names}
        (rows,), sources = with_conditions(tag_lists(good["tags"], "tags", stored=True), asked, plane=False)
        tags = from_tag_lists(rows) if asked else good["tags"]
        keys = good["key"] if _are_strings(good["key"]) else good["key"].cast(pa.uint64())
        if sources is not None:
            keys = keys.take(pa.array(sources))
        hashes = np.empty(len(rows), np.uint64)
        _set_hashes(rows.offsets, hash_tags(rows), hashes)
        serializer = Serializer()
        records = pa.record_batch([tags, keys], ["tags", "key"])
        serializer.scatter(
            groups_by_hash(hashes, len(labels)), labels, np.full(len(labels), _ROWS), partial(rows_at, records)
        )
        yield from serializer.take()
    if found.any():
        serializer = Serializer()
        serializer.add(int(labels[0]), _PROBLEMS, pa.record_batch([pa.array(found)], ["rows"]))
        yield from serializer.take()


def _problems(tags: pa.ListArray, keys: pa.Array) -> U8Array:
    """For each row 0, or one more than the place in `PROBLEMS` of what is wrong with it."""
    problems = np.zeros(len(tags), np.uint8)
    if pa.types.is_decimal(keys.type):
        problems[pc.fill_null(pc.greater_equal(keys, _KEY_LIMIT), False).to_numpy(zero_copy_only=False)] = 5
    if not _are_strings(keys):
        problems[pc.fill_null(pc.less(keys, 0), False).to_numpy(zero_copy_only=False)] = 4
    problems[keys.is_null().to_numpy(zero_copy_only=False)] = 3
    values = tags.flatten()
    if values.null_count:
        parents = pc.list_parent_indices(tags).to_numpy()
        problems[parents[values.is_null().to_numpy(zero_copy_only=False)]] = 2
    problems[tags.is_null().to_numpy(zero_copy_only=False)] = 1
    return problems


def _are_strings(keys: pa.Array) -> bool:
    return bool(pa.types.is_string(keys.type) or pa.types.is_large_string(keys.type))


def _write_shard(keys: ShardKeys, batches: Batches) -> Iterator[pa.RecordBatch]:
    staged = StagedChanges()
    problems = np.zeros(len(PROBLEMS), np.int64)

    def rows() -> Iterator[pa.RecordBatch]:
        for number, records in deserialized(batches):
            if number == _ROWS:
                yield records
            else:
                np.add(problems, records["rows"].to_numpy(), out=problems)

    for some in gathered(rows(), _RECEIVED_BYTES):
        staged.extend(tag_lists(some["tags"], "tags"), KEY_CHECKS[keys.type].many(some["key"], "key"), removed=False)
    if not (len(staged) or problems.any()):
        return
    shard, rows_of_shard = number_of_task(), len(staged)
    # No sets, but they say of what type keys are
    none = held_by(empty_segment(LayoutOptions(), keys.type))
    sets = write_shard(keys, shard, [none], staged.changes())
    yield one_row(shard=shard, sets=sets, rows=rows_of_shard, problems=problems)


def write_shard(keys: ShardKeys, shard: int, held: Sequence[HeldSets], changes: Changes, now: int = LONG_AGO) -> int:
    """Leave what stored sets are after changes as a shard (see `distinct_sets`); returns how many sets that are.

    Its tags are in the order of their hashes, as the next step takes them.
    """
    sets = distinct_sets(held, changes, order=_hash_order, now=now)
    if len(sets.ranks):
        keys.scratch.write(
            "shard",
            shard,
            tags=from_strings(sets.vocabulary.tags),
            hashes=pa.array(sets.vocabulary.hashes),
            frequencies=pa.array(sets.vocabulary.frequencies),
            ranks=from_lists(sets.ranks),
            **keys.columns(sets.keys),
        )
    return len(sets.ranks)


def held_by_shard(keys: ShardKeys, shard: int) -> HeldSets:
    """The sets of a shard."""
    tags, hashes, frequencies, ranks = (
        keys.scratch.read("shard", shard, name) for name in ("tags", "hashes", "frequencies", "ranks")
    )
    vocabulary = Vocabulary(to_strings(tags), to_numbers(hashes), to_numbers(frequencies))
    return HeldSets(vocabulary, to_lists(ranks), keys.of_shard(shard))


def _hash_order(tags: Strings, hashes: U64Array, frequencies: U32Array, threads: int) -> U32Array:  # noqa: ARG001
    return by_hash(tags, hashes)
