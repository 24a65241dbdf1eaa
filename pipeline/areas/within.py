"""What answers messages that are for the clients within an area: of the keys found, those whose client is there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tagmatch.model.arrays import I64Array, Lists, TagLists, U32Array, U64Array
from tagmatch.model.arrow_input import strings_in
from tagmatch.model.kernels.area_shapes import BOX, TO_PLANE
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.locations import Locations, locations_in, locations_of
from tagmatch.model.kernels.sphere import is_in_box, is_near, limit_of, point_of
from tagmatch.pipeline.areas.positions import Clients
from tagmatch.pipeline.cpu.one_query import MATCHES, add_counts
from tagmatch.pipeline.matcher import (
    Keys,
    Matched,
    Matcher,
    OneQuery,
    PacketSize,
    Preprocessed,
    Single,
    Space,
    no_space,
)


class WithinAreas:
    """A matcher whose answers to messages that have an area are the keys of clients within it.

    Parameters
    ----------
    matcher : Matcher
    clients : Clients
    plane : bool
    """

    by_partition = None

    def __init__(self, matcher: Matcher, clients: Clients, *, plane: bool) -> None:
        self._matcher, self._clients, self._plane = matcher, clients, plane
        self.devices, self.notes = matcher.devices, matcher.notes
        self.packet_size: PacketSize = matcher.packet_size

    @property
    def one_query(self) -> OneQuery | None:
        """As of `Matcher`."""
        one = self._matcher.one_query
        return None if one is None else _OneWithin(one, self)

    @property
    def keys(self) -> Keys:
        """As of `Matcher`."""
        return self._matcher.keys

    def __len__(self) -> int:
        return len(self._matcher)

    @property
    def nbytes(self) -> int:
        """As of `Matcher`."""
        return self._matcher.nbytes

    @property
    def matched_by(self) -> dict[str, int]:
        """As of `Matcher`."""
        return self._matcher.matched_by

    def memory(self, count: int) -> U64Array | None:
        """As of `Matcher`."""
        return self._matcher.memory(count)

    def preprocess(self, tags: TagLists, first: int, last: int) -> Preprocessed:
        """As of `Matcher`."""
        queries, locations = self._matcher.preprocess(tags, first, last), locations_of(tags, first, last)
        if locations is None or not locations.kinds.any():
            return queries
        return _Preprocessed(queries, self, locations)

    def set_ids(self, tags: TagLists, first: int, last: int) -> Lists:
        """As of `Matcher`: sets of which no client need be within the area."""
        return self._matcher.set_ids(tags, first, last)

    def kept(self, found: Lists, locations: Locations) -> Lists:
        """Of keys that were found, those whose clients are within the area of their message, if it has one."""
        column = self.keys.column(found.values)
        keys = column.to_numpy() if column.type == "uint64" else strings_in(column)
        lon, lat = self._clients.where(keys)
        ends, out = np.zeros(len(found) + 1, np.int64), np.empty(len(found.values), found.values.dtype)
        used = _keep(found.offsets, found.values, lon, lat, locations.kinds, locations.values, self._plane, ends, out)
        return Lists(ends, out[:used])


class _OneWithin:
    """Answers single messages as another one does, but for keys whose clients are elsewhere."""

    def __init__(self, one: OneQuery, matcher: WithinAreas) -> None:
        self._one, self._matcher = one, matcher

    def keys(self, query: Single, unique: bool, counts: I64Array) -> U64Array:
        """As of `OneQuery`."""
        own = np.zeros(len(counts), np.int64)
        return self._kept(self._one.keys(query, unique, own), query, own, counts)

    def brief_keys(self, query: Single, unique: bool, counts: I64Array) -> U64Array | None:
        """As of `OneQuery`."""
        own = np.zeros(len(counts), np.int64)
        found = self._one.brief_keys(query, unique, own)
        return None if found is None else self._kept(found, query, own, counts)

    def _kept(self, found: U64Array, query: Single, own: I64Array, counts: I64Array) -> U64Array:
        if len(found):
            found = self._matcher.kept(Lists(np.array([0, len(found)]), found), locations_in(query.place)).values
        own[MATCHES] = len(found)
        add_counts(counts, own)
        return found

    def set_ids(self, query: Single) -> U32Array:
        """As of `WithinAreas`."""
        return self._one.set_ids(query)


@kernel
def _keep(offsets, values, lon, lat, kinds, shapes, plane, ends, out):
    used = 0
    for message in range(len(ends) - 1):
        shape, kind = shapes[message], kinds[message]
        is_box = kind == BOX or kind == BOX + TO_PLANE
        x, y, z = point_of(shape[0], shape[1], plane)
        limit = limit_of(shape[2], plane)
        for i in range(offsets[message], offsets[message + 1]):
            if kind == 0:
                has = True
            elif np.isnan(lon[i]):
                has = False
            elif is_box:
                has = is_in_box(shape[0], shape[2], shape[1], shape[3], lon[i], lat[i], plane)
            else:
                px, py, pz = point_of(lon[i], lat[i], plane)
                has = is_near(x, y, z, limit, px, py, pz, plane)
            if has:
                out[used] = values[i]
                used += 1
        ends[message + 1] = used
    return used


@dataclass(frozen=True, slots=True, eq=False)
class _Preprocessed:
    queries: Preprocessed
    matcher: WithinAreas
    locations: Locations

    def subset_match(self) -> _Matched:
        return _Matched(self.queries.subset_match(), self.matcher, self.locations)


@dataclass(frozen=True, slots=True, eq=False)
class _Matched:
    matched: Matched
    matcher: WithinAreas
    locations: Locations

    @property
    def found(self) -> int:
        return self.matched.found

    @property
    def rejected(self) -> int:
        return self.matched.rejected

    def key_lookup(self, space: Space = no_space) -> Lists:
        kept = self.matcher.kept(self.matched.key_lookup(), self.locations)
        memory = space(len(kept.values))
        if memory is None:
            return kept
        memory[:] = kept.values
        return Lists(kept.offsets, memory)
