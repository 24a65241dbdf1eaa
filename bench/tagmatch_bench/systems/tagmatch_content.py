"""tagmatch itself, seen as one of the systems that match constraints on attributes."""

from __future__ import annotations

from copy import copy
from functools import cache
from typing import TYPE_CHECKING, Any, Self

from tagmatch import DeviceError, TagMatch
from tagmatch.messages import messages_in
from tagmatch.model.arrays import Lists
from tagmatch.model.kernels.lists import join_lists
from tagmatch.pipeline.tags import merge_all
from tagmatch_bench.systems.key_answers import list_array
from tagmatch_bench.systems.matcher import CallSize, UnavailableError
from tagmatch_bench.systems.tagmatch import open_index, packets_for_all

if TYPE_CHECKING:
    import pyarrow as pa

    from tagmatch.model.arrays import TagLists
    from tagmatch.pipeline.matcher import Matcher, Preprocessed


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
