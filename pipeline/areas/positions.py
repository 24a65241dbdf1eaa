"""Where clients are: state beside all snapshots, which moves change at once."""

from __future__ import annotations

import threading
import weakref

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import F64Array, I64Array, Strings, U64Array
from tagmatch.model.arrow import from_strings
from tagmatch.model.arrow_input import strings_in
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.tag_table import UNKNOWN, TagInterner, find_all
from tagmatch.model.kernels.xxh64 import hash_strings, xxh64
from tagmatch.model.storage.positions import Positions
from tagmatch.pipeline.areas.clients import ClientCells

_KEY_BYTES = 8
_FEWEST = 1024


@kernel
def _look_up(offsets, data, slots, known_offsets, known_data, all_lon, all_lat, lon, lat):
    """Write where clients with these names are, NaN for those that are not known."""
    hashes, numbers = np.empty(len(lon), np.uint64), np.empty(len(lon), np.uint32)
    for i in range(len(lon)):
        hashes[i] = xxh64(data, offsets[i], offsets[i + 1], np.uint64(0))
    find_all(hashes, offsets, data, 0, slots, known_offsets, known_data, numbers)
    for i in range(len(lon)):
        is_known = numbers[i] != UNKNOWN
        number = np.int64(numbers[i]) if is_known else 0
        lon[i] = all_lon[number] if is_known else np.nan
        lat[i] = all_lat[number] if is_known else np.nan


class Clients:
    """Positions of clients by key, and what follows them. Any number of threads may share it.

    Parameters
    ----------
    has_strings : bool
        Whether keys are strings.

    Attributes
    ----------
    lock : threading.RLock
        Held by who changes positions, one at a time.
    """

    def __init__(self, *, has_strings: bool) -> None:
        self.lock = threading.RLock()
        self.version = 0
        self._has_strings = has_strings
        self._numbers = TagInterner()
        self._lon, self._lat = np.full(_FEWEST, np.nan), np.full(_FEWEST, np.nan)
        # How many clients each knows
        self._followers: weakref.WeakKeyDictionary[ClientCells, int] = weakref.WeakKeyDictionary()

    def __len__(self) -> int:
        """How many clients have a position."""
        with self.lock:
            return int(np.count_nonzero(~np.isnan(self._lon)))

    def move(self, keys: U64Array | Strings, lon: F64Array, lat: F64Array) -> None:
        """Have clients be elsewhere, one after the other; NaN: nowhere. In effect when this returns."""
        strings = self._strings(keys)
        with self.lock:
            numbers = self._known(strings)
            self._lon[numbers], self._lat[numbers] = lon, lat
            self.version += 1
            for cells, known in list(self._followers.items()):
                some = numbers < known
                if some.all():
                    cells.move(numbers, lon, lat)
                else:
                    cells.move(numbers[some], lon[some], lat[some])

    def place(self, positions: Positions) -> None:
        """Have clients be where they were."""
        keys = positions.keys
        self.move(strings_in(keys) if self._has_strings else keys.to_numpy(), positions.lon, positions.lat)

    def cells_of(
        self, keys: pa.Array, groups: I64Array, group_count: int, metres: F64Array, *, plane: bool
    ) -> ClientCells:
        """What finds clients by where they are, and follows them: an entry for each of some keys, in groups.

        Moves wait until it is there.
        """
        strings = self._strings(keys.to_numpy() if not self._has_strings else strings_in(keys.cast(pa.large_string())))
        with self.lock:
            numbers = self._known(strings)
            known = len(self._numbers)
            cells = ClientCells.of(
                groups, group_count, numbers, metres, self._lon[:known].copy(), self._lat[:known].copy(), plane=plane
            )
            self._followers[cells] = known
        return cells

    def where(self, keys: U64Array | Strings) -> tuple[F64Array, F64Array]:
        """Where clients are: `lon` and `lat`, NaN where that is not known; all at one time."""
        strings = self._strings(keys)
        lon, lat = np.empty(len(strings)), np.empty(len(strings))
        with self.lock:
            known = self._numbers.strings()
            _look_up(
                strings.offsets, strings.data, self._numbers.slots, known.offsets, known.data, self._lon, self._lat,
                lon, lat,
            )  # fmt: skip
        return lon, lat

    def positions(self) -> Positions:
        """Where all clients are that are anywhere."""
        with self.lock:
            there = np.flatnonzero(~np.isnan(self._lon[: len(self._numbers)]))
            lon, lat, names = self._lon[there], self._lat[there], self._numbers.strings()
        if self._has_strings:
            keys = from_strings(names).cast(pa.large_string()).take(pa.array(there))
        else:
            keys = pa.array(names.data.copy().view(np.uint64)[there])
        return Positions(keys, lon, lat)

    def _known(self, strings: Strings) -> I64Array:
        """The numbers of clients; those that are new get one, and are nowhere."""
        numbers = self._numbers.intern(strings, hash_strings(strings)).astype(np.int64)
        if len(self._numbers) > len(self._lon):
            room = np.full(max(len(self._numbers), 2 * len(self._lon)) - len(self._lon), np.nan)
            self._lon, self._lat = np.concatenate([self._lon, room]), np.concatenate([self._lat, room])
        return numbers

    @staticmethod
    def _strings(keys: U64Array | Strings) -> Strings:
        """Keys as what an interner numbers: integers as their bytes."""
        if isinstance(keys, Strings):
            return keys
        whole = np.ascontiguousarray(keys, np.uint64)
        return Strings(_KEY_BYTES * np.arange(len(whole) + 1), whole.view(np.uint8))
