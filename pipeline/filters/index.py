"""The sets of a segment that have constraints, reached by the least likely tokens of each.

Every constraint implies a token that a message must have: the name of its attribute, or the cell of a value at the
level as wide as the constraint. A tag is a token, too. A set's tokens, least likely first, are a path in a static trie;
what is at its end is scanned by signature and then verified.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tagmatch.model.arrays import BoolArray, I64Array, Strings, U32Array, U64Array, offsets_of
from tagmatch.model.kernels.tag_table import TagInterner
from tagmatch.model.kernels.xxh64 import hash_strings
from tagmatch.model.tables import Segment
from tagmatch.pipeline.filters.codes import LEAST, Constants, codes_of_cuts
from tagmatch.pipeline.filters.parsing import (
    BETWEEN,
    CONTAINS,
    SUFFIX,
    WITHOUT_TAG,
    Parsed,
    constraint_ranks,
    parsed,
    parts_of,
)
from tagmatch.pipeline.filters.patterns import Patterns, patterns_of
from tagmatch.pipeline.filters.trie import Trie, trie_of

#: Codes of an attribute that is there, whatever its value; also of one that stands for a pattern or for a tag
ANY = 0xFFFFFFFF
#: What stands for the attribute in the record of a tag, and of a constraint that is more than an interval
TAG, COMPLEX = np.uint32(0xFFFFFFFF), np.uint32(0xFFFFFFFE)

# A cell is worth a token more in every message where it tells much apart, or where the name tells nothing
_TELLING, _TELLING_COMMON, _COMMON = 5, 2, 0.25

_TOKENS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Names:
    """Names, each with a number, and where they are looked up."""

    strings: Strings
    slots: U64Array

    @classmethod
    def of(cls, strings: Strings) -> tuple[Names, U32Array]:
        """The different ones among these, and the number of each."""
        interner = TagInterner()
        numbers = interner.intern(strings, hash_strings(strings))
        return cls(interner.strings(), interner.slots), numbers

    def __len__(self) -> int:
        return len(self.strings)

    @property
    def arrays(self) -> tuple[U64Array, I64Array, np.ndarray]:
        """Slots, offsets and bytes, as `find` takes them."""
        return self.slots, self.strings.offsets.astype(np.int64), self.strings.data


@dataclass(frozen=True, slots=True, eq=False)
class Attributes:
    """What a segment's constraints ask of messages.

    Attributes
    ----------
    names : Names
        Of attributes, which have the first numbers. Then come one for each pattern, and for each tag that must not be
        there; messages have these attributes where the pattern is found and the tag is there.
    absent_tags : Names
    count : int
        Of all attributes.
    constants : Constants
    patterns : Patterns
    """

    names: Names
    absent_tags: Names
    count: int
    constants: Constants
    patterns: Patterns

    @property
    def first_tag(self) -> int:
        """The attribute of the first tag that must not be there."""
        return self.count - len(self.absent_tags)


@dataclass(frozen=True, slots=True, eq=False)
class Constraints:
    """The constraints of a segment, as intervals of codes.

    Attributes
    ----------
    attributes : int64 array
    negated : bool array
    offsets : int64 array, length n + 1
    lows, highs : uint32 arrays
        The intervals of each, none empty.
    """

    attributes: I64Array
    negated: BoolArray
    offsets: I64Array
    lows: U32Array
    highs: U32Array

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """As the kernels take them."""
        return self.attributes, self.negated, self.offsets, self.lows, self.highs


def _attributes(tags: Strings, found: Parsed) -> tuple[Attributes, Constraints]:
    names, name_of = Names.of(parts_of(tags.data, found.names))
    is_pattern = (found.kinds == SUFFIX) | (found.kinds == CONTAINS)
    # From the kind on: what differs in its sign only is one pattern
    whole = found.payloads.copy()
    whole[:, 0] = found.names[:, 0] - 1
    pattern_at = np.flatnonzero(is_pattern)
    patterns, pattern_of = Names.of(parts_of(tags.data, whole[pattern_at]))
    firsts = pattern_at[np.unique(pattern_of, return_index=True)[1]]
    absent_at = np.flatnonzero(found.kinds == WITHOUT_TAG)
    absent, absent_of = Names.of(parts_of(tags.data, found.payloads[absent_at]))

    attributes = name_of.astype(np.int64)
    attributes[pattern_at] = len(names) + pattern_of.astype(np.int64)
    attributes[absent_at] = len(names) + len(patterns) + absent_of.astype(np.int64)
    count = len(names) + len(patterns) + len(absent)
    automata = patterns_of(
        len(names),
        name_of[firsts].astype(np.int64),
        parts_of(tags.data, found.payloads[firsts]),
        found.kinds[firsts] == SUFFIX,
        len(names) + np.arange(len(patterns), dtype=np.int64),
    )

    of_cut = np.repeat(attributes, np.diff(found.cut_offsets))
    constants, codes = codes_of_cuts(of_cut, count, parts_of(tags.data, found.keys), found.sides)
    lows, highs = codes[::2], codes[1::2] - np.uint32(1)
    owners = np.repeat(np.arange(len(found)), np.diff(found.cut_offsets) // 2)
    some = lows <= highs
    lows, highs, owners = lows[some], highs[some], owners[some]
    # Patterns, and tags that must not be there, are there with any code
    others = np.flatnonzero(found.kinds != BETWEEN)
    owners = np.concatenate([owners, others])
    order = np.argsort(owners, kind="stable")
    lows = np.concatenate([lows, np.ones(len(others), np.uint32)])[order]
    highs = np.concatenate([highs, np.full(len(others), ANY - 1, np.uint32)])[order]
    offsets = offsets_of(np.bincount(owners, minlength=len(found)))
    return (
        Attributes(names, absent, count, constants, automata),
        Constraints(attributes, found.negated, offsets, lows, highs),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Which tokens the values of an attribute are: its name, and cells of values at some levels.

    Attributes
    ----------
    first_cells : int64 array, length attributes + 1
        Where the cells of each attribute begin among all tokens.
    bits : int64 array
        Codes of the attribute have so many; 0 for those without values.
    levels : uint64 array
        A bit for each level at which a set has a cell of the attribute.
    tokens : uint32 array
        Of attributes, cells and ranks of tags, in this order: the number by which the token is known, from 1 on, least
        likely first; 0 for those that no set has.
    first_tag : int
        Where the ranks of tags begin.
    """

    first_cells: I64Array
    bits: I64Array
    levels: U64Array
    tokens: U32Array
    first_tag: int

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.first_cells.nbytes + self.bits.nbytes + self.levels.nbytes + self.tokens.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class FilterIndex:
    """The sets of a segment that have constraints.

    Attributes
    ----------
    attributes, constraints, cells
        See the classes.
    trie : Trie
        Over the tokens of each set.
    rows : uint32 array
        The segment's row of each set, in the order of the trie.
    record_offsets : uint32 or int64 array
    records : uint32[n, 3] array
        What a set asks of a message, likely to fail first: attribute, least code, and how many more. For a tag `TAG`
        and its rank, for what is more than an interval `COMPLEX` and the number of the constraint.
    """

    attributes: Attributes
    constraints: Constraints
    cells: Cells
    trie: Trie
    rows: U32Array
    record_offsets: I64Array
    records: U32Array

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        arrays = (*self.constraints.arrays, self.rows, self.record_offsets, self.records)
        return (
            sum(array.nbytes for array in arrays)
            + self.attributes.constants.nbytes
            + self.attributes.patterns.nbytes
            + self.cells.nbytes
            + self.trie.nbytes
        )


def has_constraints(segment: Segment) -> bool:
    """Whether a segment has sets with constraints."""
    return bool(constraint_ranks(segment.vocabulary.tags).any())


def filter_index(segment: Segment) -> FilterIndex:
    """Index the sets of a segment that have constraints."""
    tags, ranks = segment.vocabulary.tags, segment.tagsets.ranks
    found = parsed(tags)
    attributes, constraints = _attributes(tags, found)
    is_constraint = constraint_ranks(tags)
    sizes = ranks.lengths()
    of_values = np.repeat(np.arange(len(ranks)), sizes)
    filters = np.flatnonzero(np.bincount(of_values[is_constraint[ranks.values]], minlength=len(ranks)) > 0)
    sizes = sizes[filters]
    starts = offsets_of(sizes)
    places = np.arange(int(starts[-1])) + np.repeat(ranks.offsets[filters] - starts[:-1], sizes)
    values = ranks.values[places]
    owners = np.repeat(np.arange(len(filters)), sizes)

    number_of = np.full(len(tags), -1, np.int64)
    number_of[found.ranks] = np.arange(len(found))
    numbers = number_of[values]
    known = (numbers >= 0) | ~is_constraint[values]
    if not known.all():  # what only begins like a constraint never holds: its sets have no way to match
        lost = np.unique(owners[~known])
        keep = ~np.isin(owners, lost)
        filters = np.delete(filters, lost)
        values, numbers, owners = values[keep], numbers[keep], owners[keep]
        owners = np.unique(owners, return_inverse=True)[1]
    return _index(segment, attributes, constraints, is_constraint, filters, values, numbers, owners)


def _index(
    segment: Segment,
    attributes: Attributes,
    constraints: Constraints,
    is_constraint: BoolArray,
    filters: I64Array,
    values: U32Array,
    numbers: I64Array,
    owners: I64Array,
) -> FilterIndex:
    sizes = np.diff(constraints.offsets)
    simple = ~constraints.negated & (sizes == 1)
    some = ~constraints.negated & (sizes > 0)
    lows, highs = np.zeros(len(sizes), np.uint32), np.zeros(len(sizes), np.uint32)
    lows[some] = constraints.lows[constraints.offsets[:-1][some]]
    highs[some] = constraints.highs[constraints.offsets[1:][some] - 1]

    # All values but those of one interval: what is beyond the last code counts as before the first
    firsts, lasts = constraints.offsets[:-1][sizes == 2], constraints.offsets[1:][sizes == 2] - 1
    around = np.zeros(len(sizes), np.bool_)
    around[sizes == 2] = (constraints.lows[firsts] == LEAST) & (
        constraints.highs[lasts] == attributes.constants.last_codes[constraints.attributes[sizes == 2]]
    )
    around &= ~constraints.negated
    least, spans = lows.copy(), highs - lows
    least[around] = constraints.lows[constraints.offsets[1:][around] - 1]
    spans[around] = constraints.highs[constraints.offsets[:-1][around]] - least[around]
    simple |= around

    is_tag = numbers < 0
    has_token = is_tag | some[numbers]
    asked = np.bincount(constraints.attributes[numbers[~is_tag & some[numbers]]], minlength=attributes.count)
    # Nothing is known of messages yet: they are taken to be as sets are
    frequencies = segment.vocabulary.frequencies
    most = max(len(filters), 1)
    presence = np.minimum(asked / most, 1.0)

    bits = attributes.constants.bits.copy()
    bits[len(attributes.names) :] = 0
    of_attribute = constraints.attributes
    widths = np.ceil(np.log2(highs.astype(np.float64) - lows + 1)).astype(np.int64)
    depths = bits[of_attribute] - widths
    celled = some & (bits[of_attribute] > 0)
    celled &= (depths >= _TELLING) | (depths >= _TELLING_COMMON) & (presence[of_attribute] > _COMMON)
    depths = np.where(celled, depths, 0)
    first_cells = attributes.count + np.concatenate([[0], np.cumsum(np.where(bits > 0, np.int64(2) << bits, 0))])
    token_at = np.where(
        celled,
        first_cells[of_attribute] + (np.int64(1) << depths) + (lows.astype(np.int64) >> (bits[of_attribute] - depths)),
        of_attribute,
    )
    cells = np.where(depths == bits[of_attribute], 1.0, 2.0) / np.exp2(depths)
    likely = presence[of_attribute] * np.where(celled, cells, 1.0)
    levels = np.zeros(attributes.count, np.uint64)
    np.bitwise_or.at(levels, of_attribute[celled], np.uint64(1) << depths[celled].astype(np.uint64))

    first_tag = int(first_cells[-1])
    place = np.where(is_tag, first_tag + values, token_at[numbers])
    chance = np.where(is_tag, np.minimum(frequencies[values] / most, 1.0), likely[numbers])
    used, first_use = np.unique(place[has_token], return_index=True)
    order = used[np.argsort(chance[has_token][first_use], kind="stable")]
    tokens = np.zeros(first_tag + len(is_constraint), np.uint32)
    tokens[order] = np.arange(1, len(order) + 1, dtype=np.uint32)

    trie, in_order = trie_of(_paths(tokens[place[has_token]], owners[has_token], len(filters)), len(order))
    by_chance = np.lexsort((np.where(has_token, chance, 1.0), owners))
    records = np.empty((len(values), 3), np.uint32)
    which = numbers[by_chance]
    records[:, 0] = np.where(is_tag[by_chance], TAG, np.where(simple[which], of_attribute[which], COMPLEX))
    records[:, 1] = np.where(is_tag[by_chance], values[by_chance], np.where(simple[which], least[which], which))
    records[:, 2] = np.where(simple[which], spans[which], 0)
    counts = np.bincount(owners, minlength=len(filters))
    starts = offsets_of(counts)
    record_offsets = offsets_of(counts[in_order])
    moved = np.arange(len(records)) + np.repeat(starts[:-1][in_order] - record_offsets[:-1], counts[in_order])
    return FilterIndex(
        attributes,
        constraints,
        Cells(first_cells, bits, levels, tokens, first_tag),
        trie,
        filters[in_order].astype(np.uint32),
        record_offsets,
        records[moved],
    )


def _paths(tokens: U32Array, owners: I64Array, count: int) -> U32Array:
    """The tokens of each set, least likely first, each once, and zeros after them."""
    order = np.lexsort((tokens, owners))
    tokens, owners = tokens[order], owners[order]
    keep = np.ones(len(tokens), np.bool_)
    keep[1:] = (tokens[1:] != tokens[:-1]) | (owners[1:] != owners[:-1])
    tokens, owners = tokens[keep], owners[keep]
    starts = offsets_of(np.bincount(owners, minlength=count))
    place = np.arange(len(tokens)) - starts[owners]
    paths = np.zeros((count, _TOKENS), np.uint32)
    few = place < _TOKENS
    paths[owners[few], place[few]] = tokens[few]
    return paths
