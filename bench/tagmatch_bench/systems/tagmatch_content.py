"""tagmatch itself, seen as one of the systems that match constraints, or tags, and areas."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from functools import cache
from typing import Any, Self

import pyarrow as pa

from tagmatch import DeviceError, TagMatch
from tagmatch.model.arrays import Lists, TagLists
from tagmatch.model.input.messages import messages_in
from tagmatch.model.input.places import without_locations
from tagmatch.model.kernels.lists import join_lists
from tagmatch.pipeline.areas.finder import AreaFinder, groups_of
from tagmatch.pipeline.combined import Beside
from tagmatch.pipeline.segment import Matcher, Preprocessed
from tagmatch.pipeline.unique import merge_all
from tagmatch_bench.systems.matcher import Plain, UnavailableError, list_array
from tagmatch_bench.systems.tagmatch import Indexed, open_index

#: Parts of a message besides attributes
_TAGS, _LOCATION = "tags", "location"


class TagmatchContent(Indexed):
    """An index of a table of subscriptions, as `TagMatch.add_subscriptions` takes it, asked with tables of messages."""

    def __init__(self, subscriptions: pa.Table, *, threads: int = 1, plane: bool = False) -> None:
        self.index = TagMatch(threads=threads, device="cpu", plane=plane)
        self.index.add_subscriptions(subscriptions)
        self.index.consolidate()

    def again(self, **options: Any) -> Self:
        """The same tables in an index with other options of `TagMatch`; UnavailableError: the device is not there."""
        other = copy(self)
        try:
            other.index = open_index(lambda _: self.index.snapshot, **options)
        except DeviceError as error:
            raise UnavailableError(str(error)) from error
        return other

    def prepare(self, messages: pa.Table) -> pa.Table:
        """Messages are taken as they are, in one piece."""
        return messages.combine_chunks()

    @property
    def matcher(self) -> Matcher:
        """What answers."""
        return self.index._engine.changing.answering.matcher


class TagmatchLocated(TagmatchContent):
    """An index of subscriptions with an area, as `workloads.location` makes them, on the plane or sphere."""

    def __init__(self, subscriptions: pa.Table, *, threads: int = 1) -> None:
        area = subscriptions["area"].combine_chunks()
        self.plane = "x" in (field.name for field in area.type)
        # `TagMatch` names the numbers so on the plane, too
        named = pa.StructArray.from_arrays(area.flatten(), ["lon", "lat", "metres"])
        subscriptions = subscriptions.set_column(subscriptions.column_names.index("area"), "area", named)
        super().__init__(subscriptions, threads=threads, plane=self.plane)


class _AskedOtherwise(Plain):
    """An index that others use, and close, asked in another way."""

    def __init__(self, whole: Any) -> None:
        self._whole = whole
        self._matcher = whole.matcher

    def nbytes(self) -> int:
        """Bytes of memory, with the stored rows and keys."""
        return int(self._whole.nbytes())


class TagmatchOneByOne(_AskedOtherwise):
    """The same index, asked by `match_unique`, or `match`, for one message after the other."""

    def prepare(self, messages: pa.Table) -> list[dict[str, Any]]:
        """Convert messages to what callers have: the attributes of each, by name."""
        return [
            {name: value for name, value in message.items() if value is not None} for message in messages.to_pylist()
        ]

    def match_many(self, messages: list[dict[str, Any]], *, unique: bool = False) -> list[list[int]]:
        """Return the keys of the subscriptions that each message satisfies."""
        ask = self._whole.index.match_unique if unique else self._whole.index.match
        return [list(ask((), attributes=message)) for message in messages]


class LocatedOneByOne(_AskedOtherwise):
    """The same with tags and places."""

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


class EncodedMessages:
    """Messages as ranks and codes, in packets; any number of the first ones can be had, and is made when asked for."""

    def __init__(self, matcher: Matcher, rows: TagLists) -> None:
        size = matcher.packet_size.queries  # as one thread takes them

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


class TagmatchMatching(_AskedOtherwise):
    """The same index on one thread, asked with messages whose attributes are codes already, as SFF and OCM are.

    Subset match and key lookup are left, and merging if keys must be unique.
    """

    def prepare(self, messages: pa.Table) -> EncodedMessages:
        """Encode messages."""
        (rows,) = messages_in(messages.combine_chunks().to_batches())
        return EncodedMessages(self._matcher, rows)

    def match_many(self, messages: list[Any], *, unique: bool = False) -> pa.ListArray:
        """Return the keys of the subscriptions that each message satisfies."""
        parts = [self.keys(packet.subset_match(), unique) for packet in messages]
        return list_array(join_lists(parts, parts[0].values.dtype, 1))

    @staticmethod
    def keys(found: Any, unique: bool) -> Lists:
        """The keys of the sets that a packet has found."""
        keys: Lists = found.key_lookup()
        return merge_all(keys) if unique else keys

    def nbytes(self) -> int:
        """Bytes of memory, without the stored rows and keys."""
        return int(self._matcher.about().nbytes)


class LocatedMatching(TagmatchMatching):
    """The same with areas, whose messages are encoded, as CLCB's are; a packet goes through each step together.

    What is left, too: which groups a message looks in, and which areas of these have its place. On a device, the sets
    without areas have another matcher, which has no part in this.
    """

    def prepare(self, messages: pa.Table) -> EncodedMessages:
        """Encode messages."""
        (batch,) = messages.combine_chunks().to_batches()
        batch, place = without_locations(batch, plane=self._whole.plane)
        (rows,) = messages_in([batch], [place])
        matcher = self._matcher.located if isinstance(self._matcher, Beside) else self._matcher
        return EncodedMessages(matcher, rows)

    def match_many(self, messages: list[Any], *, unique: bool = False) -> pa.ListArray:
        """Return the keys of the subscriptions that each message satisfies."""
        parts = [self.keys(self.areas(packet, self.groups(packet)), unique) for packet in messages]
        return list_array(join_lists(parts, parts[0].values.dtype, 1))

    @staticmethod
    def groups(packet: Any) -> Lists:
        """The groups whose areas each message is looked for in: contents that it has, and tokens."""
        finder, sought = _of_areas(packet)
        return groups_of(finder.index, sought.messages)

    @staticmethod
    def areas(packet: Any, groups: Lists) -> Any:
        """The sets of these groups that each message is in the area of, and what else these ask."""
        finder, sought = _of_areas(packet)
        changed = [
            (each, sought._replace(groups=groups) if each is finder else ready) for each, ready in packet.prepared
        ]
        return replace(packet, prepared=changed).subset_match()


def _of_areas(packet: Any) -> tuple[AreaFinder, Any]:
    """The finder of areas, and what it has prepared of a packet."""
    found: tuple[AreaFinder, Any] = next(each for each in packet.prepared if isinstance(each[0], AreaFinder))
    return found
