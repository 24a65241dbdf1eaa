"""Where clients are: state outside of all snapshots, which moves change at once.

Of the keys found for a message that is for the clients within an area, those are kept whose client is there.
"""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import F64Array, I64Array, Lists, Strings, TagLists, U32Array, U64Array
from tagmatch.model.arrow import from_strings, to_strings
from tagmatch.model.input.places import Locations, locations_in, locations_of
from tagmatch.model.kernels.hashing import hash_strings, xxh64
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.outlines import area_has
from tagmatch.model.kernels.sphere import CIRCLE, is_near, limit_of, point_of
from tagmatch.model.kernels.tag_table import TagInterner, find_all
from tagmatch.model.storage.positions import Positions
from tagmatch.pipeline.areas.cells import Moves
from tagmatch.pipeline.areas.clients import ClientCells
from tagmatch.pipeline.one import MATCHES, AnswersOne, Single, add_counts
from tagmatch.pipeline.segment import Changed, Matcher, Preprocessed

_KEY_BYTES = 8
_FEWEST = 1024


@kernel
def _look_up(offsets, data, slots, known_offsets, known_data, at, out):
    """Write where clients with these names are, NaN for those that are not known."""
    count = out.shape[1]
    hashes, numbers = np.empty(count, np.uint64), np.empty(count, np.uint32)
    for i in range(count):
        hashes[i] = xxh64(data, offsets[i], offsets[i + 1], np.uint64(0))
    find_all(hashes, offsets, data, 0, slots, known_offsets, known_data, numbers)
    for i in range(count):
        # Unknown ones are beyond, and perhaps some for which there was no more memory
        is_known = np.int64(numbers[i]) < at.shape[1]
        number = np.int64(numbers[i]) if is_known else 0
        for axis in range(2):
            out[axis, i] = at[axis, number] if is_known else np.nan


@dataclass(slots=True)
class _Begun:
    """Moves that have everything they need: the clients' new places, and the work for them."""

    numbers: I64Array
    lon: F64Array
    lat: F64Array
    left: list[tuple[ClientCells, Moves]] = field(default_factory=list)


@kernel
def _put(numbers, lon, lat, at):
    for i in range(len(numbers)):
        at[0, numbers[i]], at[1, numbers[i]] = lon[i], lat[i]


class Clients:
    """Positions of clients by key, and what follows them. Any number of threads may share it."""

    def __init__(self, *, has_strings: bool) -> None:
        self.lock = threading.RLock()
        self.version = 0
        self._has_strings = has_strings
        self._numbers = TagInterner()
        self._at: F64Array = np.full((2, _FEWEST), np.nan)  # lon and lat by a client's number
        # How many clients each knows
        self._followers: weakref.WeakKeyDictionary[ClientCells, int] = weakref.WeakKeyDictionary()
        # What was interrupted
        self._begun: _Begun | None = None
        _all.add(self)

    def __len__(self) -> int:
        """How many clients have a position."""
        with self.lock:
            return int(np.count_nonzero(~np.isnan(self._at[0])))

    def move(self, keys: U64Array | Strings, lon: F64Array, lat: F64Array) -> None:
        """Move clients, one after the other; NaN: nowhere. In effect when this returns.

        Where there is no memory, none moves. If this is interrupted, they move now, or as the next method is called.
        """
        strings = self._strings(keys)
        with self.lock:
            self._finish()
            begun = _Begun(self._known(strings), lon, lat)
            for cells, known in list(self._followers.items()):
                some = begun.numbers < known
                which = slice(None) if some.all() else some
                begun.left.append((cells, cells.ready(begun.numbers[which], lon[which], lat[which])))
            try:
                self._begun = begun
                self._finish()
            except BaseException:
                self._finish()
                raise

    def _finish(self) -> None:
        """Make the moves that have begun. What was done already may be done again, as nothing comes between."""
        begun = self._begun
        if begun is None:
            return
        _put(begun.numbers, begun.lon, begun.lat, self._at)
        self.version += 1
        while begun.left:
            cells, moves = begun.left[-1]
            cells.make(moves)
            begun.left.pop()
        self._begun = None

    def place(self, positions: Positions) -> None:
        """Move clients back."""
        keys = positions.keys
        self.move(to_strings(keys) if self._has_strings else keys.to_numpy(), positions.lon, positions.lat)

    def cells_of(
        self, keys: pa.Array, groups: I64Array, group_count: int, metres: F64Array, *, plane: bool
    ) -> ClientCells:
        """What finds clients by their places, and follows them: an entry for each of some keys, in groups.

        Moves wait until it is there.
        """
        strings = self._strings(keys.to_numpy() if not self._has_strings else to_strings(keys.cast(pa.large_string())))
        with self.lock:
            self._finish()
            numbers = self._known(strings)
            known = len(self._numbers)
            lon, lat = self._at[:, :known]
            cells = ClientCells(groups, group_count, numbers, metres, (lon, lat), plane=plane)
            self._followers[cells] = known
        return cells

    def where(self, keys: U64Array | Strings) -> F64Array:
        """Where clients are, `lon` and `lat` in rows, NaN where that is not known; all at one time."""
        strings = self._strings(keys)
        out = np.empty((2, len(strings)))
        with self.lock:
            self._finish()
            known, slots = self._numbers.strings(), self._numbers.slots
            _look_up(strings.offsets, strings.data, slots, known.offsets, known.data, self._at, out)
        return out

    def positions(self, most: int | None = None) -> Positions:
        """Where all clients are that are anywhere, or `most` of these, spread over all."""
        with self.lock:
            self._finish()
            there = np.flatnonzero(~np.isnan(self._at[0, : len(self._numbers)]))
            if most is not None and len(there) > most:
                there = there[np.arange(most) * len(there) // most]
            (lon, lat), names = self._at[:, there], self._numbers.strings()
        if self._has_strings:
            keys = from_strings(names).cast(pa.large_string()).take(pa.array(there))
        else:
            keys = pa.array(names.data.copy().view(np.uint64)[there])
        return Positions(keys, lon, lat)

    def _known(self, strings: Strings) -> I64Array:
        """The numbers of clients; those that are new get one, and are nowhere."""
        numbers = self._numbers.intern(strings, hash_strings(strings)).astype(np.int64)
        room = self._at.shape[1]
        if len(self._numbers) > room:
            more = np.full((2, max(len(self._numbers), 2 * room) - room), np.nan)
            self._at = np.concatenate([self._at, more], axis=1)
        return numbers

    @staticmethod
    def _strings(keys: U64Array | Strings) -> Strings:
        """Keys as what an interner numbers: integers as their bytes."""
        if isinstance(keys, Strings):
            return keys
        whole = np.ascontiguousarray(keys, np.uint64)
        return Strings(_KEY_BYTES * np.arange(len(whole) + 1), whole.view(np.uint8))


_all: weakref.WeakSet[Clients] = weakref.WeakSet()
# One thread forks at a time, and holds the locks of all these
_forking = threading.Lock()
_held: list[Clients] = []


def _hold() -> None:
    """Wait until no client moves: in a forked child, no thread would finish that, and searches would wait for it."""
    _forking.acquire()
    for clients in list(_all):
        clients.lock.acquire()
        _held.append(clients)


def _let_go() -> None:
    while _held:
        _held.pop().lock.release()
    _forking.release()


def _begin_anew() -> None:
    """Searches of the parent's, which may ask for pauses of moves, do not go on in a child."""
    for clients in _held:
        clients.lock = threading.RLock()
        for cells in list(clients._followers):
            cells.begin_anew()
    _held.clear()
    _forking.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_begin_anew)


class WithinAreas:
    """A matcher that answers messages with an area by the keys of clients within it; sets are found as ever."""

    by_partition = None

    def __init__(self, matcher: Matcher, clients: Clients, *, plane: bool) -> None:
        self._matcher, self._clients, self._plane = matcher, clients, plane
        self.keys, self.memory = matcher.keys, matcher.memory
        self.about, self.packet_size = matcher.about, matcher.packet_size

    @property
    def one_query(self) -> AnswersOne | None:
        """What answers as the other matcher does, except for keys whose clients are elsewhere."""
        one = self._matcher.one_query
        return None if one is None else _OneWithin(one, self)

    def __len__(self) -> int:
        return len(self._matcher)

    def preprocess(self, tags: TagLists, first: int, last: int) -> Preprocessed:
        """Queries, and the areas of those that have one."""
        queries, locations = self._matcher.preprocess(tags, first, last), locations_of(tags, first, last)
        if locations is None or not locations.kinds.any():
            return queries
        return Changed(queries, partial(self.kept, locations=locations))

    def kept(self, found: Lists, locations: Locations) -> Lists:
        """Of keys that were found, those whose clients are within the area of their message, if it has one."""
        column = self.keys.column(found.values)
        keys = column.to_numpy() if column.type == "uint64" else to_strings(column)
        at = self._clients.where(keys)
        ends, out = np.zeros(len(found) + 1, np.int64), np.empty(len(found.values), found.values.dtype)
        used = _keep(found.offsets, found.values, at, locations.areas, self._plane, ends, out)
        return Lists(ends, out[:used])


class _OneWithin:
    """Answers single messages as another one does, except for keys whose clients are elsewhere."""

    def __init__(self, one: AnswersOne, matcher: WithinAreas) -> None:
        self._one, self._matcher = one, matcher

    def keys(self, query: Single, unique: bool, counts: I64Array) -> U64Array:
        """The keys that the other finds, of clients within the area."""
        own = np.zeros(len(counts), np.int64)
        return self._kept(self._one.keys(query, unique, own), query, own, counts)

    def enter(self, tags: object, wanted: int, counts: bytes, attributes: bytes) -> Any:  # noqa: ARG002
        """See `AnswersOne`."""
        return None

    def brief_keys(self, query: Single, unique: bool, counts: I64Array) -> U64Array | None:
        """The same, if the other answers at once."""
        own = np.zeros(len(counts), np.int64)
        found = self._one.brief_keys(query, unique, own)
        return None if found is None else self._kept(found, query, own, counts)

    def _kept(self, found: U64Array, query: Single, own: I64Array, counts: I64Array) -> U64Array:
        if len(found):
            found = self._matcher.kept(Lists(np.array([0, len(found)]), found), locations_in([query.place])).values
        own[MATCHES] = len(found)
        add_counts(counts, own)
        return found

    def set_ids(self, query: Single) -> U32Array:
        """Sets without a client that has to be within the area."""
        return self._one.set_ids(query)


@kernel
def _keep(offsets, values, at, areas, plane, ends, out):
    """Write the values of each message whose clients are in its area, if it has one; how many."""
    used = 0
    for message in range(len(ends) - 1):
        shape, kind = areas.values[message], areas.kinds[message]
        x, y, z = point_of(shape[0], shape[1], plane)
        limit = limit_of(shape[2], plane)
        for i in range(offsets[message], offsets[message + 1]):
            lon, lat = at[0, i], at[1, i]
            if kind == 0:
                has = True
            elif np.isnan(lon):
                has = False
            elif kind != CIRCLE:
                has = area_has(areas, message, lon, lat, plane)
            else:
                px, py, pz = point_of(lon, lat, plane)
                has = is_near(x, y, z, limit, px, py, pz, plane)
            if has:
                out[used] = values[i]
                used += 1
        ends[message + 1] = used
    return used
