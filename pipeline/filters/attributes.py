"""What the constraints of a segment ask of messages: attributes, intervals of the codes of their values, patterns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tagmatch.model.arrays import BoolArray, I64Array, Strings, U8Array, U32Array, U64Array, offsets_of
from tagmatch.model.columns import strings_of
from tagmatch.model.kernels.hashing import hash_strings
from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch.model.kernels.tag_table import UNKNOWN, TagInterner, find_all
from tagmatch.model.where.tag_columns import CONTAINS, RANGES, SUFFIX, WITHOUT_TAG, Parsed, parts_of
from tagmatch.pipeline.filters.codes import Constants, codes_of_cuts

#: Code of an attribute that is present, for any value; also of an attribute made of a pattern or of a tag
ANY = 0xFFFFFFFF

_U = np.uint64

# Names of columns that are remembered
_MOST_ASKED = 1 << 14


@dataclass(frozen=True, slots=True, eq=False)
class Names:
    """Names, each with a number, and the hash table to look them up."""

    strings: Strings
    slots: U64Array
    asked_before: dict[str, int] = field(default_factory=dict)  # Numbers that `numbers_of` has looked up

    @classmethod
    def of(cls, strings: Strings) -> tuple[Names, U32Array]:
        """The different ones among these, and the number of each."""
        if len(strings) == 0:
            return _NO_NAMES, np.zeros(0, np.uint32)
        interner = TagInterner()
        numbers, found = interner.intern(strings, hash_strings(strings)), interner.strings()
        return cls(Strings(found.offsets.astype(np.int64), found.data), interner.slots), numbers

    def __len__(self) -> int:
        return len(self.strings)

    def numbers(self, strings: Strings) -> U32Array:
        """The number of each of some strings; `UNKNOWN` for those that are not any of the names."""
        numbers = np.full(len(strings), UNKNOWN, np.uint32)
        if len(self):
            find_all(hash_strings(strings), strings.offsets, strings.data, 0, *self.arrays, numbers)
        return numbers

    def numbers_of(self, texts: Sequence[str]) -> list[int]:
        """The same of columns' names, which are nearly always those of the messages before."""
        known = self.asked_before
        try:
            return list(map(known.__getitem__, texts))
        except KeyError:
            numbers: list[int] = self.numbers(strings_of(texts)).tolist()
            if len(known) > _MOST_ASKED:
                known.clear()
            known.update(zip(texts, numbers, strict=True))
            return numbers

    @property
    def arrays(self) -> tuple[U64Array, Any, U8Array]:
        """Slots, offsets and bytes, as `find` takes them."""
        return self.slots, self.strings.offsets, self.strings.data


_NO_NAMES = Names(TagInterner().strings(), TagInterner().slots)


@dataclass(frozen=True, slots=True, eq=False)
class Patterns:
    """One automaton for each attribute whose texts are searched for patterns (Aho and Corasick, CACM 1975)."""

    roots: I64Array  # of each attribute; 0 without patterns
    edges: U64Array  # an open hash table: a node and a byte, `node << 8 | byte`, 0 where free
    children: I64Array  # where the edge at the same place leads
    fails: I64Array  # of each node, that of the longest end of its text that is there, too
    outputs: I64Array  # of each node, it or the nearest one along `fails` at which patterns end; 0 without one
    firsts: I64Array  # the first pattern that ends at each node; -1 for none
    nexts: I64Array  # the next one after each pattern; -1 at the end
    only_at_end: BoolArray  # of each pattern: whether texts must end with it
    attributes: I64Array  # the attribute that a message has where the pattern is found

    def __len__(self) -> int:
        return len(self.nexts)

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """As the kernels take them."""
        return (
            self.roots, self.edges, self.children, self.fails, self.outputs,
            self.firsts, self.nexts, self.only_at_end, self.attributes,
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(array.nbytes for array in self.arrays)


@dataclass(frozen=True, slots=True, eq=False)
class Attributes:
    """What a segment's constraints ask of messages.

    Attributes with names have the first numbers. Then come one for each pattern, and for each tag that must not be
    there; messages have these where the pattern is found and the tag is there.
    """

    names: Names
    absent_tags: Names
    count: int  # of all attributes
    constants: Constants
    patterns: Patterns
    known: tuple[Any, ...] = field(init=False)  # All of it, as kernels that encode messages take it
    asks_for_no_tags: bool = field(init=False)  # Whether there is no tag that must not be there

    def __post_init__(self) -> None:
        object.__setattr__(self, "asks_for_no_tags", len(self.absent_tags) == 0)
        names = self.names.arrays, self.absent_tags.arrays, self.first_tag
        object.__setattr__(self, "known", (*names, self.constants.arrays, self.patterns.arrays))

    @property
    def has_texts(self) -> bool:
        """Whether constraints ask for texts, or for parts of texts."""
        return len(self.constants.texts) > 0 or self.first_tag > len(self.names)

    @property
    def first_tag(self) -> int:
        """The attribute of the first tag that must not be there."""
        return self.count - len(self.absent_tags)


@dataclass(frozen=True, slots=True, eq=False)
class Constraints:
    """The constraints of a segment, as intervals of codes."""

    attributes: I64Array
    negated: BoolArray
    offsets: I64Array  # length n + 1: which intervals each has
    lows: U32Array  # of intervals, which are not empty
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
    first_pattern = len(names)
    first_absent = first_pattern + len(patterns)
    attributes[pattern_at] = first_pattern + pattern_of.astype(np.int64)
    attributes[absent_at] = first_absent + absent_of.astype(np.int64)
    count = first_absent + len(absent)
    automata = patterns_of(
        first_pattern,
        name_of[firsts].astype(np.int64),
        parts_of(tags.data, found.payloads[firsts]),
        found.kinds[firsts] == SUFFIX,
        np.arange(first_pattern, first_absent),
    )

    of_cut = np.repeat(attributes, np.diff(found.cut_offsets))
    constants, codes = codes_of_cuts(tags.data, found.keys, found.sides, of_cut, count)
    lows, highs = codes[::2], codes[1::2] - np.uint32(1)
    owners = np.repeat(np.arange(len(found)), np.diff(found.cut_offsets) // 2)
    some = lows <= highs
    if not some.all():
        lows, highs, owners = lows[some], highs[some], owners[some]
    # Patterns, and tags that must not be there, are there with any code
    others = np.flatnonzero(found.kinds != RANGES)
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


# -- patterns ----------------------------------------------------------------------------------------------------------


@inlined
def _home(edge, edges):
    return ((edge * _U(0x9E3779B97F4A7C15)) >> _U(20)) & _U(len(edges) - 1)


@inlined
def _place(node, byte, edges):
    """Where an edge is, or would be."""
    edge = (_U(node) << _U(8)) | _U(byte)
    at = _home(edge, edges)
    while edges[at] != _U(0) and edges[at] != edge:
        at = (at + _U(1)) & _U(len(edges) - 1)
    return at


@kernel
def _build(owners, texts, roots, table, ends, nodes_of):
    (offsets, data), (edges, children), (firsts, nexts) = texts, table, ends
    parents, letters, of_root = nodes_of
    nodes = 1
    for pattern in range(len(owners)):
        owner = owners[pattern]
        if roots[owner] == 0:
            roots[owner] = nodes
            of_root[nodes] = nodes
            nodes += 1
        node = roots[owner]
        for at in range(offsets[pattern], offsets[pattern + 1]):
            place = _place(node, data[at], edges)
            if edges[place] == _U(0):
                edges[place] = (_U(node) << _U(8)) | _U(data[at])
                children[place] = nodes
                parents[nodes], letters[nodes], of_root[nodes] = node, data[at], of_root[node]
                nodes += 1
            node = children[place]
        nexts[pattern] = firsts[node]
        firsts[node] = pattern
    return nodes


@kernel
def _link(order, table, fails, outputs, firsts, nodes_of):
    """Nodes come by depth, so that those of shorter texts are done."""
    (edges, children), (parents, letters, of_root) = table, nodes_of
    for node in order:
        root = of_root[node]
        if node != root:
            at = fails[parents[node]] if parents[node] != root else 0
            fails[node] = root
            while at != 0:
                place = _place(at, letters[node], edges)
                if edges[place] != _U(0):
                    fails[node] = children[place]
                    break
                at = fails[at] if at != root else 0
        if firsts[node] >= 0:
            outputs[node] = node
        elif node != root:
            outputs[node] = outputs[fails[node]]


@kernel
def _depths(parents, depths):
    for node in range(1, len(depths)):  # parents have smaller numbers
        depths[node] = depths[parents[node]] + 1 if parents[node] else 0


def patterns_of(count: int, owners: I64Array, texts: Strings, only_at_end: BoolArray, attributes: I64Array) -> Patterns:
    """The automata of `count` attributes; `owners` says in which attribute's texts each pattern is looked for."""
    room = int(texts.offsets[-1]) + len(owners) + 2
    size = 1 << max(4, int(np.ceil(np.log2(2 * room))))
    roots, edges, children = np.zeros(count, np.int64), np.zeros(size, np.uint64), np.zeros(size, np.int64)
    fails, outputs, parents, of_root = np.zeros((4, room), np.int64)
    firsts, nexts = np.full(room, -1, np.int64), np.full(len(owners), -1, np.int64)
    letters = np.zeros(room, np.uint8)
    table, nodes_of = (edges, children), (parents, letters, of_root)
    nodes = _build(owners, (texts.offsets, texts.data), roots, table, (firsts, nexts), nodes_of)
    depths = np.zeros(nodes, np.int64)
    _depths(parents, depths)
    order = np.argsort(depths, kind="stable")[1:]
    _link(order, table, fails, outputs, firsts, nodes_of)
    return Patterns(
        roots, edges, children, fails[:nodes].copy(), outputs[:nodes].copy(), firsts[:nodes].copy(), nexts,
        only_at_end, attributes,
    )  # fmt: skip


@inlined
def step(node, root, byte, edges, children, fails):
    """The node after one more byte."""
    while True:
        place = _place(node, byte, edges)
        if edges[place] != _U(0):
            return children[place]
        if node == root:
            return root
        node = fails[node]
