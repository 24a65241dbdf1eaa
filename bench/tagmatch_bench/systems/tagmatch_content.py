"""tagmatch itself, seen as one of the systems that match constraints, or tags, and areas."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Self, cast

import pyarrow as pa

from tagmatch import DeviceError, TagMatch
from tagmatch.locations import locations_of_table, without_locations
from tagmatch.messages import messages_in
from tagmatch.model.arrays import Lists
from tagmatch.model.kernels.lists import join_lists
from tagmatch.pipeline.areas.area_finder import AreaFinder, Sought, groups_of
from tagmatch.pipeline.tags import merge_all
from tagmatch_bench.systems.matcher import CallSize, UnavailableError, list_array
from tagmatch_bench.systems.tagmatch import open_index, packets_for_all

if TYPE_CHECKING:
    from tagmatch.model.arrays import TagLists
    from tagmatch.pipeline.matcher import Matcher, Preprocessed
    from tagmatch.pipeline.segment import CpuMatcher, SegmentQueries


class TagmatchContent:
    """An index of a table of subscriptions, as `TagMatch.add_subscriptions` takes it, asked with tables of messages.

    Parameters
    ----------
    subscriptions : pyarrow.Table
    threads : int
    plane : bool
        Whether areas are on the plane.
    """

    exact = True

    def __init__(self, subscriptions: pa.Table, *, threads: int = 1, plane: bool = False) -> None:
        self.index: TagMatch = TagMatch(threads=threads, device="cpu", plane=plane)
        self.index.add_subscriptions(subscriptions)
        self.index.consolidate()

    def again(self, **options: Any) -> Self:
        """The same tables in an index with other options of `TagMatch`.

        Raises
        ------
        UnavailableError
            The device is not there.
        """
        other = copy(self)
        try:
            other.index = open_index(lambda _: self.index.snapshot, **options)
        except DeviceError as error:
            raise UnavailableError(str(error)) from error
        return other

    def prepare(self, messages: pa.Table) -> pa.Table:
        """Messages are taken as they are, in one piece."""
        return messages.combine_chunks()

    def match_many(self, messages: pa.Table, *, unique: bool = False) -> pa.ListArray:
        """Return the keys of the subscriptions that each message satisfies."""
        return self.index.match_many(messages, unique=unique)

    @property
    def call_size(self) -> CallSize:
        """So many messages that all threads have packets."""
        return packets_for_all(self.index)

    def nbytes(self) -> int:
        """Bytes of memory, with the stored rows and keys."""
        return int(self.index.stats()["index_bytes"])

    @property
    def matcher(self) -> Matcher:
        """What answers."""
        return self.index._engine.current.matcher

    def close(self) -> None:
        """Close the index."""
        self.index.close()


class TagmatchOneByOne:
    """The same index, asked by `match_unique`, or `match`, for one message after the other."""

    exact = True

    def __init__(self, whole: TagmatchContent) -> None:
        self._whole = whole

    def prepare(self, messages: pa.Table) -> list[dict[str, Any]]:
        """Convert messages to what callers have: the attributes of each, by name."""
        return [
            {name: value for name, value in message.items() if value is not None} for message in messages.to_pylist()
        ]

    def match_many(self, messages: list[dict[str, Any]], *, unique: bool = False) -> list[list[int]]:
        """Return the keys of the subscriptions that each message satisfies."""
        ask = self._whole.index.match_unique if unique else self._whole.index.match
        return [list(ask((), attributes=message)) for message in messages]

    def nbytes(self) -> int:
        """Bytes of memory, with the stored rows and keys."""
        return self._whole.nbytes()

    def close(self) -> None:
        """Leave the index open, which is not this one's."""


class EncodedMessages:
    """Messages as ranks and codes, in packets, of which any number of the first ones can be had; made when asked for.

    Parameters
    ----------
    matcher : Matcher
    rows : TagLists
    """

    def __init__(self, matcher: Matcher, rows: TagLists) -> None:
        size = matcher.packet_size.fewest

        @cache
        def packet(first: int, last: int) -> Preprocessed:
            return matcher.preprocess(rows, first, last)

        def some(count: int) -> list[Preprocessed]:
            return [packet(first, min(first + size, count)) for first in range(0, count, size)]

        self._some = cache(some)
        self._count = len(rows)
        self.packet_size = size

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, rows: slice) -> list[Preprocessed]:
        """Return the packets of the first messages."""
        first, last, step = rows.indices(self._count)
        if (first, step) != (0, 1):
            raise IndexError("only the first messages can be had")
        return self._some(last)


class TagmatchMatching:
    """The same index on one thread, asked with messages whose attributes are codes already, as SFF and OCM are.

    What is left are subset match, key lookup, and where keys are to be unique, merging.
    """

    exact = True

    def __init__(self, whole: TagmatchContent) -> None:
        self._matcher = whole.matcher

    def prepare(self, messages: pa.Table) -> EncodedMessages:
        """Encode messages."""
        (rows,) = messages_in(messages.combine_chunks())
        return EncodedMessages(self._matcher, rows)

    def match_many(self, messages: list[Preprocessed], *, unique: bool = False) -> pa.ListArray:
        """Return the keys of the subscriptions that each message satisfies."""
        found = [packet.subset_match().key_lookup() for packet in messages]
        return list_array(_joined([merge_all(keys) for keys in found] if unique else found))

    def nbytes(self) -> int:
        """Bytes of memory, without the stored rows and keys."""
        return self._matcher.nbytes

    def close(self) -> None:
        """Leave the index open, which is not this one's."""


def _joined(parts: list[Lists]) -> Lists:
    return join_lists(parts, parts[0].values.dtype, 1)


#: What a message has beside attributes
_TAGS, _LOCATION = "tags", "location"


def areas_of_plane(subscriptions: pa.Table) -> pa.Table:
    """Name the numbers of areas as `TagMatch` does, which has `lon`, `lat` and `metres` on the plane, too."""
    area = subscriptions["area"].combine_chunks()
    named = pa.StructArray.from_arrays(area.flatten(), ["lon", "lat", "metres"])
    return subscriptions.set_column(subscriptions.column_names.index("area"), "area", named)


class TagmatchLocated(TagmatchContent):
    """An index of subscriptions with an area, asked with tables of messages that say where they are.

    Parameters
    ----------
    subscriptions : pyarrow.Table
        As `tagmatch.workloads.location` makes them, on the plane or on the sphere.
    threads : int
    """

    def __init__(self, subscriptions: pa.Table, *, threads: int = 1) -> None:
        self.plane = "x" in (field.name for field in subscriptions.schema.field("area").type)
        super().__init__(areas_of_plane(subscriptions), threads=threads, plane=self.plane)


class LocatedOneByOne:
    """The same index, asked by `match_unique` for one message after the other, from Python."""

    exact = True

    def __init__(self, whole: TagmatchLocated) -> None:
        self._whole = whole

    def prepare(self, messages: pa.Table) -> list[tuple[list[str], dict[str, Any], tuple[float, float]]]:
        """Convert messages to what callers have: the tags, the attributes by name, and the place of each."""
        rows = []
        for message in messages.to_pylist():
            tags, location = message.pop(_TAGS, []), message.pop(_LOCATION)
            attributes = {name: value for name, value in message.items() if value is not None}
            rows.append((tags, attributes, tuple(location.values())))
        return rows

    def match_many(
        self, messages: list[tuple[list[str], dict[str, Any], tuple[float, float]]], *, unique: bool = False
    ) -> list[list[int]]:
        """Return the keys of the subscriptions that each message satisfies."""
        ask = self._whole.index.match_unique if unique else self._whole.index.match
        return [list(ask(tags, attributes, location=place)) for tags, attributes, place in messages]

    def nbytes(self) -> int:
        """Bytes of memory, with the stored rows and keys."""
        return self._whole.nbytes()

    def close(self) -> None:
        """Leave the index open, which is not this one's."""


@dataclass(frozen=True, slots=True)
class Packet:
    """Some messages, encoded: their tags as ranks and values as codes; where they are; and what is not about areas."""

    queries: SegmentQueries

    @property
    def areas(self) -> tuple[AreaFinder, Sought]:
        """The finder of areas, and what it has prepared."""
        return next((finder, ready) for finder, ready in self.queries.prepared if isinstance(finder, AreaFinder))

    def __len__(self) -> int:
        return len(self.areas[1])


class Packets:
    """Packets of messages, of which any number of the first messages can be had."""

    def __init__(self, matcher: CpuMatcher, rows: TagLists) -> None:
        size = matcher.packet_size.fewest

        @cache
        def packet(first: int, last: int) -> Packet:
            return Packet(matcher.preprocess(rows, first, last))

        def some(count: int) -> list[Packet]:
            return [packet(first, min(first + size, count)) for first in range(0, count, size)]

        self._some = cache(some)
        self._count = len(rows)
        self.packet_size = size

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, rows: slice) -> list[Packet]:
        """Return the packets of the first messages."""
        first, last, step = rows.indices(self._count)
        if (first, step) != (0, 1):
            raise IndexError("only the first messages can be had")
        return self._some(last)


class LocatedMatching:
    """The same index on one thread, asked with messages that are encoded already, as CLCB's are.

    What is left: which groups a message looks in, which areas of these have its place, whose sets ask no more than it
    has, key lookup, and where keys are to be unique, merging. A packet of messages goes through each of these together.
    """

    exact = True

    def __init__(self, whole: TagmatchLocated) -> None:
        self._plane = whole.plane
        self._matcher = cast("CpuMatcher", whole.matcher)

    def prepare(self, messages: pa.Table) -> Packets:
        """Encode messages."""
        table = messages.combine_chunks()
        places = locations_of_table(table, plane=self._plane)
        (rows,) = messages_in(without_locations(table))
        return Packets(self._matcher, replace(rows, locations=None if places is None else places[0]))

    def match_many(self, packets: list[Packet], *, unique: bool = False) -> pa.ListArray:
        """Return the keys of the subscriptions that each message satisfies."""
        return list_array(_joined([self.keys(self.areas(each, self.groups(each)), unique) for each in packets]))

    @staticmethod
    def groups(packet: Packet) -> Lists:
        """The groups whose areas each message is looked for in: contents that it has, and tokens."""
        finder, sought = packet.areas
        return groups_of(finder.index, sought.queries, sought.messages)

    @staticmethod
    def areas(packet: Packet, groups: Lists) -> Any:
        """The sets of these groups that each message is in the area of, and what else these ask."""
        finder, sought = packet.areas
        others = [each for each in packet.queries.prepared if each[0] is not finder]
        return replace(packet.queries, prepared=[*others, (finder, replace(sought, groups=groups))]).subset_match()

    @staticmethod
    def keys(found: Any, unique: bool) -> Lists:
        """Their keys."""
        keys: Lists = found.key_lookup()
        return merge_all(keys) if unique else keys

    def nbytes(self) -> int:
        """Bytes of memory, without the stored rows and keys."""
        return self._matcher.nbytes

    def close(self) -> None:
        """Leave the index open, which is not this one's."""
