"""What the constraints of a segment ask of messages: attributes, and intervals of the codes of their values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tagmatch.model.arrays import BoolArray, I64Array, Strings, U32Array, U64Array, offsets_of
from tagmatch.model.kernels.hashing import hash_strings
from tagmatch.model.kernels.tag_table import UNKNOWN, TagInterner, find_all
from tagmatch.pipeline.filters.codes import Constants
from tagmatch.pipeline.filters.cuts import codes_of_cuts
from tagmatch.pipeline.filters.parsing import BETWEEN, CONTAINS, SUFFIX, WITHOUT_TAG, Parsed, parts_of
from tagmatch.pipeline.filters.patterns import Patterns, patterns_of

#: Codes of an attribute that is there, whatever its value; also of one that stands for a pattern or for a tag
ANY = 0xFFFFFFFF


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

    def numbers(self, strings: Strings) -> U32Array:
        """The number of each of some strings; `UNKNOWN` for those that are none of the names."""
        numbers = np.full(len(strings), UNKNOWN, np.uint32)
        if len(self):
            find_all(hash_strings(strings), strings.offsets, strings.data, 0, *self.arrays, numbers)
        return numbers

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
    def has_texts(self) -> bool:
        """Whether constraints ask for texts, or for what is in them."""
        return len(self.constants.texts) > 0 or self.first_tag > len(self.names)

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

    def __len__(self) -> int:
        return len(self.attributes)

    @property
    def some(self) -> BoolArray:
        """Those that ask for a value: not negated, and with intervals."""
        return ~self.negated & (np.diff(self.offsets) > 0)

    @property
    def hulls(self) -> tuple[U32Array, U32Array]:
        """The least and the greatest code of each of `some`, and zeros."""
        some = self.some
        lows, highs = np.zeros(len(self), np.uint32), np.zeros(len(self), np.uint32)
        lows[some] = self.lows[self.offsets[:-1][some]]
        highs[some] = self.highs[self.offsets[1:][some] - 1]
        return lows, highs

    def only(self, chosen: BoolArray) -> Constraints:
        """Some of them."""
        sizes = np.diff(self.offsets)
        kept = np.repeat(chosen, sizes)
        offsets = offsets_of(sizes[chosen])
        return Constraints(self.attributes[chosen], self.negated[chosen], offsets, self.lows[kept], self.highs[kept])


def attributes_of(tags: Strings, found: Parsed) -> tuple[Attributes, Constraints]:
    """What the constraint tags of a vocabulary ask, and the constraints themselves."""
    names, name_of = Names.of(parts_of(tags.data, found.names))
    is_pattern = (found.kinds == SUFFIX) | (found.kinds == CONTAINS)
    # From the kind on: what differs in its sign only is one pattern
    pattern_at = np.flatnonzero(is_pattern)
    whole = found.payloads[pattern_at]
    whole[:, 0] = found.names[pattern_at, 0] - 1
    patterns, pattern_of = Names.of(parts_of(tags.data, whole))
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
    constants, codes = codes_of_cuts(tags.data, found.keys, found.sides, of_cut, count)
    lows, highs = codes[::2], codes[1::2] - np.uint32(1)
    owners = np.repeat(np.arange(len(found)), np.diff(found.cut_offsets) // 2)
    some = lows <= highs
    if not some.all():
        lows, highs, owners = lows[some], highs[some], owners[some]
    # Patterns, and tags that must not be there, are there with any code
    others = np.flatnonzero(found.kinds != BETWEEN)
    if len(others):
        owners = np.concatenate([owners, others])
        order = np.argsort(owners, kind="stable")
        lows = np.concatenate([lows, np.ones(len(others), np.uint32)])[order]
        highs = np.concatenate([highs, np.full(len(others), ANY - 1, np.uint32)])[order]
    offsets = offsets_of(np.bincount(owners, minlength=len(found)))
    return (
        Attributes(names, absent, count, constants, automata),
        Constraints(attributes, found.negated, offsets, lows, highs),
    )
