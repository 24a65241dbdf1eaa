"""Sets whose content hardly another one has: their areas come first, and their contents are verified afterwards.

To find each of a message's contents would then take longer than to find the areas that have its place. These sets are
in groups by the least likely token of each (`tagmatch.pipeline.filters.asked`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from tagmatch.model.arrays import BoolArray, F64Array, I64Array, Lists, U32Array, frozen
from tagmatch.model.kernels.jit import kernel, with_room
from tagmatch.pipeline.areas.packing import Candidates, Hits, found_in
from tagmatch.pipeline.filters.asked import Asked, Cells, cells_of, records_of, verified
from tagmatch.pipeline.filters.index import Requirements
from tagmatch.pipeline.filters.trie import most_room, tokens_of

# To find a content takes as long as to verify so many sets whose areas have been found
_WORTH = 4
# With so few areas of a content at a place, areas come first, whatever else is asked
_CLEARLY = 1e-3

_NONE = -1


class GroupedSets(NamedTuple):
    """What sets in groups ask, as kernels take it."""

    of_rows: I64Array  # Of each row of the segment, its number here; -1 for those that are not in these groups
    record_offsets: I64Array  # int64 and uint32[n, 3] arrays: what a set asks of a message (see `Records`)
    records: U32Array
    constraints: tuple[Any, ...]  # Those that are more than an interval


class MessageTable(NamedTuple):
    """Messages by the ranks of their tags and by their attributes, as kernels take them."""

    rank_offsets: I64Array
    ranks: U32Array
    offsets: I64Array
    attributes: U32Array
    codes: U32Array


@dataclass(frozen=True, slots=True, eq=False)
class TokenGroups:
    """Groups of sets by a token, and what each of these sets asks."""

    # The number of the group of sets without a token, which all messages have; that of token `i` is `first + i`
    first: int
    count: int  # How many groups there are
    cells: Cells  # The tokens by which sets are grouped, and no others
    sets: GroupedSets

    @property
    def of_tokens(self) -> tuple[Any, ...]:
        """As `write_groups` takes them."""
        cells = self.cells
        return cells.first_cells, cells.bits, cells.levels, cells.tokens, cells.first_tag

    @property
    def nbytes(self) -> int:
        """Bytes of memory, without those of constraints."""
        return self.cells.nbytes + sum(array.nbytes for array in self.sets[:3])

    def groups(self, contents: Lists, every: U32Array, messages: MessageTable) -> Lists:
        """The groups of each message, behind its contents and what `every` message has."""
        ends = np.zeros(len(messages.offsets), np.int64)
        lists = contents.offsets, contents.values
        out = write_groups(lists, every, np.int64(self.first), messages, self.of_tokens, ends)
        return Lists(ends, out[: ends[-1]])

    def kept(self, found: Candidates, attributes: int, messages: MessageTable) -> Lists:
        """What was found without what asks more than the messages have."""
        out = Hits(np.empty(len(found.values), np.uint32), np.zeros(len(found.offsets), np.int64))
        keep_asked(found, self.sets, messages, np.zeros(attributes, np.uint32), out)
        return found_in(out)


def areas_come_first(required: Requirements, at_a_place: F64Array) -> BoolArray:
    """For which contents it takes less time to find areas first."""
    first: BoolArray = at_a_place < _CLEARLY
    unsure = ~first & (at_a_place < _WORTH)
    if unsure.any():
        first[unsure] = at_a_place[unsure] < _WORTH * _with_all(required.only(unsure))
    return first


def _with_all(required: Requirements) -> F64Array:
    """Of messages that have a content's least likely token, the part that probably has its others, too.

    Messages are taken to be as sets are, and all but the least likely token not to depend on each other.
    """
    asked, likely = required.asked, required.likely
    _, tokens, _ = cells_of(asked, required.constraints, likely, required.attributes.count, required.ranks)
    owners = asked.owners[likely.has_token]
    # Tokens are numbered from the least likely one on
    least = np.full(len(asked), np.iinfo(np.uint32).max, np.uint32)
    np.minimum.at(least, owners, tokens)
    of_least = least[owners]
    pairs = of_least.astype(np.uint64) << np.uint64(32) | tokens
    _, number_of, counts = np.unique(pairs, return_inverse=True, return_counts=True)
    _, group_of, sizes = np.unique(least, return_inverse=True, return_counts=True)
    found = np.ones(len(asked))
    np.multiply.at(found, owners, np.minimum(counts[number_of] / sizes[group_of[owners]], 1.0))
    return found


def token_groups(required: Requirements, first: int, of_rows: I64Array) -> tuple[TokenGroups, I64Array]:
    """Group sets, and number groups from `first` on; and the group of each set.

    `of_rows` has the number of the set of each row of the segment, and -1 for others.
    """
    asked, likely = required.asked, required.likely
    least = np.full(len(asked), _NONE)
    _least_likely(asked.owners, likely.has_token, likely.chances, least)
    some = np.flatnonzero(least >= 0)
    things = least[some]
    only_least = Asked(asked.rows[some], np.arange(len(some)), asked.ranks[things], asked.numbers[things])
    of_least = replace(likely, has_token=np.ones(len(some), np.bool_), chances=likely.chances[things])
    cells, tokens, count = cells_of(
        only_least, required.constraints, of_least, required.attributes.count, required.ranks
    )
    groups = np.full(len(asked), first)
    groups[some] += tokens.astype(np.int64)
    records = records_of(asked, required.tests, likely.chances, np.arange(len(asked)))
    sets = GroupedSets(
        frozen(of_rows), frozen(records.offsets), frozen(records.values), required.tests.complexes.arrays
    )
    return TokenGroups(first, count + 1, cells, sets), groups


@kernel
def _least_likely(owners, has_token, chances, least):
    """Write which thing of each owner has the least likely token."""
    for i in range(len(owners)):
        if has_token[i] and (least[owners[i]] < 0 or chances[i] < chances[least[owners[i]]]):
            least[owners[i]] = i


@kernel
def write_groups(contents, every, first, messages, cells, ends):
    """Return the contents of each message, what every message has, and the groups of its tokens; where each's end."""
    content_offsets, content_values = contents
    rank_offsets, ranks, offsets, attributes, codes = messages
    out, used = np.empty(16 * len(ends), np.uint32), np.int64(0)
    for message in range(len(ends) - 1):
        ranks_begin, ranks_end = rank_offsets[message], rank_offsets[message + 1]
        values_begin, values_end = offsets[message], offsets[message + 1]
        begin, end = content_offsets[message], content_offsets[message + 1]
        more = (end - begin) + len(every) + most_room(ranks_end - ranks_begin, values_end - values_begin)
        out = with_room(out, used, more)
        for place in range(begin, end):
            out[used] = content_values[place]
            used += 1
        for place in range(len(every)):
            out[used] = every[place]
            used += 1
        begin = used
        of_message = (attributes, codes, values_begin, values_end, ranks, ranks_begin, ranks_end)
        used, _ = tokens_of(of_message, cells, out, used)
        for place in range(begin, used):
            out[place] += np.uint32(first)
        ends[message + 1] = used
    return out


@kernel
def keep_asked(found, sets, messages, first_codes, out):
    """Write what was found of each message of which it has what the row asks, and where each's end.

    Returns how many there are. Rows that are in no group ask no more.
    """
    (offsets, values, rows), (of_rows, record_offsets, records, constraints) = found, sets
    (rank_offsets, ranks, message_offsets, attributes, codes), (kept, ends) = messages, out
    count, used, touched = len(values), np.int64(0), np.uint32(0)
    begins, stops = np.empty(count, np.int64), np.empty(count, np.int64)
    # Each miss of the cache in a loop of its own: the processor then waits for many at once
    for i in range(count):
        begins[i] = of_rows[np.int64(rows[i])]
    for i in range(count):
        number = begins[i]
        begins[i] = record_offsets[max(number, 0)]
        stops[i] = record_offsets[number + 1] if number >= 0 else begins[i]
    for i in range(count):
        touched ^= records[min(begins[i], len(records) - 1), 0]
    for message in range(len(ends) - 1):
        begin, end = message_offsets[message], message_offsets[message + 1]
        if offsets[message] < offsets[message + 1]:
            own = (attributes, codes, begin, end, ranks, rank_offsets[message], rank_offsets[message + 1])
            several = False
            for i in range(begin, end):
                several |= first_codes[attributes[i]] != 0
                first_codes[attributes[i]] = codes[i]
            for i in range(offsets[message], offsets[message + 1]):
                kept[used] = values[i]
                used += np.int64(verified(begins[i], stops[i], records, own, first_codes, several, constraints))
            for i in range(begin, end):
                first_codes[attributes[i]] = 0
        ends[message + 1] = used
    return used, touched
