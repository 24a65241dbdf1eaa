"""Which tags and tests of subscriptions held: the answers to many messages with what their sets ask for.

A set is found if all that it asks for holds. So its content is what held; where messages or clients are decides about
single keys of a set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.contents import TAGS, tags_and_tests, take_lists
from tagmatch.model.arrays import BoolArray, F64Array, I64Array, Lists, TagLists, offsets_of
from tagmatch.model.arrow import to_strings
from tagmatch.model.errors import ResultTooLargeError
from tagmatch.model.input.places import Locations, locations_of
from tagmatch.model.input.subscriptions import nears_of
from tagmatch.model.kernels.sphere import CIRCLE, LOWER, areas_have
from tagmatch.model.kernels.tag_table import has_reserved
from tagmatch.model.options import MatchOptions
from tagmatch.model.parallel import even_ranges, run
from tagmatch.model.tables import Segment, Snapshot
from tagmatch.model.where.constraints import Where
from tagmatch.pipeline.areas.positions import Clients
from tagmatch.pipeline.segment import Matcher

Result = TypeVar("Result")
#: Messages, of which some from a first one to a last one are meant
MessagePart: TypeAlias = tuple[TagLists, int, int]

# Messages of a packet, and tags of one array of lists
_MESSAGES, _MOST_TAGS = 1024, 2**31 - 1


def highlight_type(keys: pa.DataType) -> pa.DataType:
    """The type of highlights, of keys of a type."""
    return pa.list_(pa.struct({"key": keys, "tags": TAGS, "tests": TAGS}))


def highlights_of(
    snapshot: Snapshot, matcher: Matcher, clients: Clients, chunks: Sequence[TagLists], options: MatchOptions
) -> pa.ListArray:
    """The keys of each message with the tags and tests of their sets; ResultTooLargeError."""

    def some(_: MessagePart, ids: Lists, asked: Whereabouts | None) -> pa.ListArray:
        return _highlighted(snapshot, ids, asked)

    found = of_sets_found(some, matcher, clients, chunks, options, _MESSAGES)
    if sum(len(each.values.field(name).values) for each in found for name in ("tags", "tests")) > _MOST_TAGS:
        raise ResultTooLargeError(
            f"highlights have at most {_MOST_TAGS:,} tags and tests; ask with fewer queries at a time"
        )
    return pa.concat_arrays(found) if found else pa.array([], highlight_type(_key_type(snapshot)))


def of_sets_found(
    do: Callable[[MessagePart, Lists, Whereabouts | None], Result],
    matcher: Matcher,
    clients: Clients,
    chunks: Sequence[TagLists],
    options: MatchOptions,
    size: int,
) -> list[Result]:
    """What a function returns for some messages at once: for these, the ids of the sets of each, and where they are."""

    def some(part: MessagePart) -> Result:
        locations, ids = locations_of(*part), matcher.set_ids(*part)
        return do(part, ids, None if locations is None else Whereabouts(locations, clients, options.plane))

    parts = [(rows, *ends) for rows in chunks for ends in even_ranges(len(rows), 1 + len(rows) // size)]
    return run(some, parts, options.threads)


def _key_type(snapshot: Snapshot) -> pa.DataType:
    return snapshot.segments[0].keys.column(np.zeros(0, np.uint32)).type


class Whereabouts:
    """Where messages are, and the clients that their keys are of."""

    def __init__(self, locations: Locations, clients: Clients, plane: bool) -> None:
        self._locations, self._clients, self._has_area = locations, clients, partial(areas_have, plane=plane)

    def kept(self, messages: I64Array, keys: pa.Array, metres: F64Array) -> BoolArray:
        """Whether each key is an answer to its message; the client must be at most so near, which may be infinite."""
        lons, lats = self._clients.where(keys.to_numpy() if keys.type == pa.uint64() else to_strings(keys))
        nowhere, locations, kept = np.isnan(lons), self._locations, np.ones(len(keys), np.bool_)
        if len(locations.kinds):
            kinds = locations.kinds[messages]
            there = self._has_area(kinds | LOWER, locations.values[messages], lons, lats) & ~nowhere
            kept &= (kinds == 0) | there
        lon, lat = locations.lon[messages], locations.lat[messages]
        asked = np.flatnonzero(np.isfinite(metres) & ~np.isnan(lon))
        around = np.stack([lon, lat, metres, np.zeros(len(keys))], axis=1)[asked]
        kept[asked] &= self._has_area(np.full(len(asked), CIRCLE, np.uint8), around, lons[asked], lats[asked])
        kept[asked] &= ~nowhere[asked]
        return kept


def _highlighted(snapshot: Snapshot, ids: Lists, asked: Whereabouts | None) -> pa.ListArray:
    """The highlights of the sets with these ids of each message."""
    messages, kind = np.repeat(np.arange(len(ids)), ids.lengths()), highlight_type(_key_type(snapshot))
    parts, owners, first = [], [], 0
    for segment in snapshot.segments:
        chosen = np.flatnonzero((ids.values >= first) & (ids.values < first + len(segment)))
        rows = ids.values[chosen].astype(np.int64) - first
        first += len(segment)
        owner, values = _in_segment(segment, messages[chosen], rows, asked)
        parts.append(pa.StructArray.from_arrays(values, fields=list(kind.value_type)))
        owners.append(owner)
    together = np.concatenate(owners)
    values = pa.concat_arrays(parts).take(pa.array(np.argsort(together, kind="stable")))
    ends = offsets_of(np.bincount(together, minlength=len(ids))).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), values, type=kind)


def _in_segment(
    segment: Segment, messages: I64Array, rows: I64Array, asked: Whereabouts | None
) -> tuple[I64Array, list[pa.Array]]:
    """For messages and rows that they satisfy: the message, the key, the tags and the tests of each answer."""
    own = take_lists(segment.keys.keys, rows)
    lengths = pc.list_value_length(own).to_numpy()
    different, places = np.unique(rows, return_inverse=True)
    tags, tests = tags_and_tests(segment, different, has_conditions=has_reserved(segment.vocabulary.tags))
    if tests is None:
        tests = pa.array([[]] * len(different), TAGS)
    keys = segment.keys.column(own.flatten().to_numpy())
    messages, places = np.repeat(messages, lengths), np.repeat(places, lengths)
    if asked is not None and len(keys):
        kept = asked.kept(messages, keys, metres_of(tests)[places])
        messages, places, keys = messages[kept], places[kept], keys.filter(pa.array(kept))
    chosen = pa.array(places)
    return messages, [keys, tags.take(chosen), tests.take(chosen)]


def metres_of(tests: pa.ListArray) -> F64Array:
    """How near the client of each set must be, infinite if it need not be near."""
    encoded, found = tests.flatten().dictionary_encode(), np.full(len(tests), np.inf)
    metres = [min(nears_of([Where(text)]), default=np.inf) for text in encoded.dictionary.to_pylist()]
    owners = np.repeat(np.arange(len(tests)), pc.list_value_length(tests).to_numpy())
    np.minimum.at(found, owners, np.array(metres)[encoded.indices.to_numpy()] if metres else np.zeros(0))
    return found
