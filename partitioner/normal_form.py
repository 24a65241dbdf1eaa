"""Sets of a key whose conditions, as an older version stored them, are fewer in the form of today."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tagmatch.model.arrays import BoolArray, I64Array, Lists, Strings, TagLists, U8Array, U64Array, offsets_of
from tagmatch.model.arrow import from_tag_lists
from tagmatch.model.change_counts import ADD, REMOVE
from tagmatch.model.columns import KEY_CHECKS, rows_of_tags
from tagmatch.model.kernels.hashing import hash_strings
from tagmatch.model.kernels.lists import gather
from tagmatch.model.kernels.tag_table import constraints_among
from tagmatch.model.tables import NEVER, Segment, Snapshot
from tagmatch.model.where.alternatives import Term, every, expression_of, folded, rows_for
from tagmatch.model.where.constraints import PARTS
from tagmatch.model.where.values import is_reserved
from tagmatch.partitioner.replacing import number_of_sets

_Tags = frozenset[str]


@dataclass(frozen=True, slots=True)
class Upgraded:
    """What happened to an index.

    Attributes
    ----------
    number : int
        Of its snapshot.
    sets_before, sets : int
        Stored sets, before and now.
    rewritten : int
        Keys whose conditions are stored in another form than before.
    """

    number: int
    sets_before: int
    sets: int
    rewritten: int


class Rewriting(NamedTuple):
    """Changes after which sets have the conditions of today: columns with an entry for each key of a set."""

    rows: TagLists
    keys: U64Array | Strings
    kinds: U8Array  # what each does
    expires: I64Array
    rewritten: int  # how many keys have other sets then


class _Pairs(NamedTuple):
    """Keys of sets with conditions, without those that have a record: these are in the form of today."""

    keys: U64Array  # the key, or the hash of its name
    plain: U64Array  # a number made of the plain tags
    may_shrink: BoolArray  # whether conditions of the set are about one attribute, or have parts
    segments: I64Array
    rows: I64Array
    places: I64Array  # in the values of the key table


def rewriting(snapshot: Snapshot) -> Rewriting | None:
    """The sets to rewrite: sets of a key with the same plain tags are alternatives; `None` if all have the new form."""
    rows, keys, kinds, expires, rewritten = list[list[str]](), list[Any](), list[int](), list[int](), set[Any]()
    for (key, plain), stored in _alternatives(snapshot):
        by_time: dict[int, set[_Tags]] = defaultdict(set)
        for conditions, time in stored.items():
            by_time[time].add(conditions)
        for time, own in by_time.items():
            new = _in_normal_form(own)
            if new == own or any(_may_expire_otherwise(each, time, stored) for each in new):
                continue
            rewritten.add(key)
            for kind, some in ((REMOVE, own - new), (ADD, new - own)):
                for conditions in sorted(some, key=sorted):
                    rows.append(sorted({*plain, *conditions}))
                    kinds.append(kind)
                    expires.append(NEVER if kind == REMOVE else time)
            keys += [key] * (len(rows) - len(keys))
    if not rows:
        return None
    checked = KEY_CHECKS[snapshot.key_type].many(keys, "keys")
    return Rewriting(rows_of_tags(rows), checked, np.array(kinds, np.uint8), np.array(expires), len(rewritten))


def _in_normal_form(alternatives: set[_Tags]) -> set[_Tags]:
    rows = [row for tags in alternatives for row in rows_for(every([expression_of(tag) for tag in sorted(tags)]))]
    terms = folded(frozenset[Term]([*row.tags, *row.constraints]) for row in rows)
    return {frozenset(term if isinstance(term, str) else term.tag for term in row) for row in terms}


def _may_expire_otherwise(row: _Tags, time: int, stored: dict[_Tags, int]) -> bool:
    """Whether a row of tags and conditions may be stored for the key until another time."""
    return stored.get(row, time) != time or (time != NEVER and not all(map(is_reserved, row)))


def _alternatives(snapshot: Snapshot) -> Iterator[tuple[tuple[Any, tuple[str, ...]], dict[_Tags, int]]]:
    """Keys and plain tags of sets that may be rewritten; of each, the conditions of its sets, and when these expire."""
    found = [_pairs(number, segment) for number, segment in enumerate(snapshot.segments)]
    pairs = _Pairs(*map(np.concatenate, zip(*found, strict=True)))
    order = np.lexsort((pairs.plain, pairs.keys))
    keys, plain = pairs.keys[order], pairs.plain[order]
    begins = np.flatnonzero(np.append(True, (keys[1:] != keys[:-1]) | (plain[1:] != plain[:-1]))[: len(order)])
    counts = np.diff(np.append(begins, len(order)))
    wanted = (counts > 1) | (
        np.add.reduceat(pairs.may_shrink[order].astype(np.int64), begins) > 0 if len(begins) else 0
    )
    chosen = np.sort(order[np.repeat(wanted, counts)])
    groups: dict[tuple[Any, tuple[str, ...]], dict[_Tags, int]] = defaultdict(dict)
    for number, segment in enumerate(snapshot.segments):
        own = chosen[pairs.segments[chosen] == number]
        tags = from_tag_lists(segment.sets(pairs.rows[own].astype(np.uint32))).to_pylist()
        table, places = segment.keys, pairs.places[own]
        times = [NEVER] * len(own) if table.expires is None else table.expires[places].tolist()
        for key, row, time in zip(table.listed(table.keys.values[places]), tags, times, strict=True):
            ordinary = tuple(sorted(tag for tag in row if not is_reserved(tag)))
            groups[key, ordinary][frozenset(filter(is_reserved, row))] = time
    yield from groups.items()


def _pairs(number: int, segment: Segment) -> _Pairs:
    tags, table = segment.vocabulary.tags, segment.keys
    is_condition = constraints_among(tags)
    rows = segment.live_rows(0, len(segment))
    ranks = gather(segment.tagsets.ranks, rows.astype(np.uint32))
    before = offsets_of(is_condition[ranks.values])[ranks.offsets]
    has_some = np.diff(before) > 0
    rows = rows[has_some]
    ranks = gather(segment.tagsets.ranks, rows.astype(np.uint32))
    # Seeds of segments differ, if old versions wrote them
    hashes = np.where(is_condition, np.uint64(0), hash_strings(tags))[ranks.values]
    plain, may_shrink = number_of_sets(hashes, ranks.offsets), _may_shrink(segment, ranks, is_condition)
    lengths = table.keys.lengths()[rows]
    of_row = np.repeat(np.arange(len(rows)), lengths)
    firsts = table.keys.offsets[rows].astype(np.int64) - offsets_of(lengths)[:-1]
    places = firsts[of_row] + np.arange(len(of_row))
    if segment.records is not None:
        without = segment.records.places_of(table.keys.values[places]) < 0
        of_row, places = of_row[without], places[without]
    values = table.keys.values[places]
    keys = values.astype(np.uint64) if table.names is None else hash_strings(table.names)[values]
    return _Pairs(keys, plain[of_row], may_shrink[of_row], np.full(len(places), number), rows[of_row], places)


def _may_shrink(segment: Segment, ranks: Lists, is_condition: BoolArray) -> BoolArray:
    """Whether two conditions of each row are about the same attribute, or one has parts."""
    attributes: dict[str, int] = {}
    about = np.full(len(is_condition), -1)
    numbers = np.flatnonzero(is_condition).astype(np.uint32)
    vocabulary = TagLists(np.array([0, len(numbers)]), segment.vocabulary.tags, numbers)
    for rank, tag in zip(numbers.tolist(), from_tag_lists(vocabulary).to_pylist()[0], strict=True):
        about[rank] = attributes.setdefault(tag[2:].partition("\0")[0], len(attributes))
    has_parts = about == attributes.get(PARTS, -2)
    own, of_row = about[ranks.values], np.repeat(np.arange(len(ranks)), ranks.lengths())
    order = np.lexsort((own, of_row))
    same = (own[order][1:] == own[order][:-1]) & (of_row[order][1:] == of_row[order][:-1]) & (own[order][1:] >= 0)
    found = np.zeros(len(ranks), np.bool_)
    found[of_row[order][1:][same]] = True
    found[of_row[has_parts[ranks.values]]] = True
    return found
