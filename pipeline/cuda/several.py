"""Several devices: each with all tables, taking packets in turn, or each with some of the sets (§3.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, TypeAlias

import numpy as np

from tagmatch.model.arrays import Lists, TagLists
from tagmatch.model.kernels.lists import side_by_side
from tagmatch.model.layouts import rules_of
from tagmatch.model.options import MatchOptions
from tagmatch.model.parallel import even_ranges
from tagmatch.model.tables import Snapshot, TagsetTable
from tagmatch.pipeline.backend import Backend, Matches, Owned, PacketSize

#: Gets a snapshot, options, and the number of a device
MakeBackend: TypeAlias = Callable[[Snapshot, MatchOptions, int], Backend]


class _Several:
    """What is common: the sets of a snapshot on several devices.

    Parameters
    ----------
    snapshot : Snapshot
    backends : list of Backend
        One for each device, of the whole snapshot or of a part.
    notes : tuple of str
        Beside those of the devices.
    """

    by_partition = None

    def __init__(self, snapshot: Snapshot, backends: list[Backend], notes: tuple[str, ...] = ()) -> None:
        self.snapshot = snapshot
        self._backends = backends
        self.packet_size: PacketSize = backends[0].packet_size
        self.devices = tuple(name for backend in backends for name in backend.devices)
        self.notes = (*notes, *(note for backend in backends for note in backend.notes))

    @property
    def nbytes(self) -> int:
        """Bytes of the snapshot, and of memory on all devices."""
        return self.snapshot.nbytes + sum(backend.nbytes - backend.snapshot.nbytes for backend in self._backends)


class Replicated(_Several):
    """Devices with the same tables, which take packets in turn."""

    def __init__(self, snapshot: Snapshot, options: MatchOptions, devices: Sequence[int], make: MakeBackend) -> None:
        super().__init__(snapshot, [make(snapshot, options, device) for device in devices])
        size = self.packet_size
        if size.at_once is not None and size.per_device:
            self.packet_size = replace(size, at_once=size.at_once * len(devices))
        self._turns = count()

    def ranks(self, tags: TagLists, first: int, last: int) -> Owned:
        """Copy queries `first` to `last` to the device whose turn it is, and look their tags up."""
        backend = self._backends[next(self._turns) % len(self._backends)]
        return Owned(backend, backend.ranks(tags, first, last))

    def subset_match(self, replica: Owned) -> Matches:
        """Sets that each query contains."""
        matches = replica.backend.subset_match(replica.work)
        return Matches(Owned(replica.backend, matches.lists), matches.found, matches.rejected)

    def look_up_keys(self, replica: Owned) -> Lists:
        """Keys of each query's sets."""
        return replica.backend.look_up_keys(replica.work)

    def set_ids(self, tags: TagLists, first: int, last: int) -> Lists:
        """Ids of the sets that each of queries `first` to `last` contains."""
        return self._backends[0].set_ids(tags, first, last)


class Split(_Several):
    """Devices with about as many sets each; every packet goes to all of them.

    Parameters
    ----------
    snapshot : Snapshot
    options : MatchOptions
    devices : sequence of int
    make : callable
        Makes the backend of one device.
    notes : tuple of str
        Why the sets are split, where one could expect otherwise.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        options: MatchOptions,
        devices: Sequence[int],
        make: MakeBackend,
        *,
        notes: tuple[str, ...] = (),
    ) -> None:
        rows = even_ranges(len(snapshot), len(devices)) or [(0, 0)]
        self._first_rows = [first for first, _ in rows]
        backends = [
            make(rows_of(snapshot, *part), options, device) for part, device in zip(rows, devices, strict=False)
        ]
        super().__init__(snapshot, backends, notes)

    def ranks(self, tags: TagLists, first: int, last: int) -> list[Any]:
        """Copy queries `first` to `last` to all devices and look their tags up."""
        return [backend.ranks(tags, first, last) for backend in self._backends]

    def subset_match(self, packets: list[Any]) -> Matches:
        """Sets that each query contains."""
        parts = [backend.subset_match(packet) for backend, packet in zip(self._backends, packets, strict=True)]
        return Matches([part.lists for part in parts], sum(p.found for p in parts), sum(p.rejected for p in parts))

    def look_up_keys(self, packets: list[Any]) -> Lists:
        """Keys of each query's sets."""
        return side_by_side(
            [backend.look_up_keys(packet) for backend, packet in zip(self._backends, packets, strict=True)]
        )

    def set_ids(self, tags: TagLists, first: int, last: int) -> Lists:
        """Ids of the sets that each of queries `first` to `last` contains."""
        parts = [backend.set_ids(tags, first, last) for backend in self._backends]
        return side_by_side(
            [
                Lists(part.offsets, part.values + np.uint32(row))
                for part, row in zip(parts, self._first_rows, strict=True)
            ]
        )


def rows_of(snapshot: Snapshot, first: int, last: int) -> Snapshot:
    """The snapshot with only the sets of some rows; its tables share the memory of the whole."""
    signatures, partitions = snapshot.tagsets.signatures, snapshot.partitions
    edges = np.clip(partitions.first_rows, first, last) - first
    return replace(
        snapshot,
        tagsets=TagsetTable(
            None if signatures is None else signatures[first:last], _some(snapshot.tagsets.ranks, first, last)
        ),
        keys=replace(snapshot.keys, keys=_some(snapshot.keys.keys, first, last)),
        partitions=rules_of(snapshot.options).of_rows(partitions, edges),
    )


def _some(lists: Lists, first: int, last: int) -> Lists:
    offsets = lists.offsets[first : last + 1]
    return Lists(offsets - offsets[0], lists.values[offsets[0] : offsets[-1]])
