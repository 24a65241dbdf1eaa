"""Tokens: what a message must have for a constraint to hold, and how likely messages have it, counted as they come.

Every constraint that asks for a value implies a token: the name of its attribute, or the cell of a value at the level
as wide as the constraint. A tag is a token, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tagmatch.model.arrays import BoolArray, F64Array, I64Array, Strings, U32Array, U64Array, offsets_of
from tagmatch.model.input.values import NO_PLACES
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.lists import leading_zeros
from tagmatch.pipeline.filters.asked import Asked
from tagmatch.pipeline.filters.attributes import Attributes, Constraints, Names

# A cell is worth a token more in every message where it tells much apart, or where the name tells nothing
_TELLING, _TELLING_COMMON, _COMMON = 5, 2, 0.25
# Of fewer messages nothing is learned
_ENOUGH = 1_000
# Stands for how likely a token is where there is none
_NO_TOKEN = -1.0

_U = np.uint64


@dataclass(frozen=True, slots=True, eq=False)
class Likelihoods:
    """Which token each constraint implies, and how likely messages have it."""

    has_token: BoolArray  # of each thing that sets ask
    chances: F64Array  # of each thing; 1 where it has no token
    celled: BoolArray  # of each constraint: whether its token is a cell
    depths: I64Array  # of each constraint, the level of its cell; 0 where it has none
    bits: I64Array  # codes of each attribute have so many; 0 for those without values

    def of(self, things: BoolArray) -> Likelihoods:
        """Those of some of the things."""
        if things.all():
            return self
        return replace(self, has_token=self.has_token[things], chances=self.chances[things])


@kernel
def _implied(constraints, bits, presence, celled, depths, likely):
    """Write of each constraint whether its token is a cell, at which level, and how likely it is; -1 if it has none."""
    attributes, negated, offsets, lows, highs = constraints
    for i in range(len(attributes)):
        begin, end = offsets[i], offsets[i + 1]
        if negated[i] or begin == end:
            likely[i] = _NO_TOKEN
            continue
        of_attribute, likely[i] = bits[attributes[i]], presence[attributes[i]]
        span = _U(highs[end - 1] - lows[begin])
        depth = of_attribute - (64 - np.int64(leading_zeros(span)) if span else 0)
        tells = depth >= _TELLING or (depth >= _TELLING_COMMON and presence[attributes[i]] > _COMMON)
        if of_attribute > 0 and tells:
            celled[i], depths[i] = True, depth
            likely[i] *= (1.0 if depth == of_attribute else 2.0) / np.float64(_U(1) << _U(depth))


@kernel
def _of_things(numbers, ranks, frequencies, sets, likely, has_token, chances):
    for i in range(len(numbers)):
        if numbers[i] < 0:
            chances[i] = min(frequencies[ranks[i]] / sets, 1.0)
        elif likely[numbers[i]] == _NO_TOKEN:
            has_token[i] = False
        else:
            chances[i] = likely[numbers[i]]


def presence_among(asked: Asked, constraints: Constraints, count: int) -> F64Array:
    """How many of the sets ask for each of `count` attributes: messages are taken to be as sets are."""
    used = asked.numbers[~asked.is_tag]
    wanted = np.bincount(constraints.attributes[used[constraints.some[used]]], minlength=count)
    presence: F64Array = np.minimum(wanted / max(len(asked), 1), 1.0)
    return presence


def likelihoods(
    asked: Asked, constraints: Constraints, attributes: Attributes, presence: F64Array, frequencies: U32Array
) -> Likelihoods:
    """The tokens of what sets ask; `presence` is how likely messages have each attribute, tags have `frequencies`."""
    bits = attributes.constants.bits.copy()
    bits[len(attributes.names) :] = 0
    count = len(constraints)
    celled, depths, likely = np.zeros(count, np.bool_), np.zeros(count, np.int64), np.zeros(count, np.float64)
    _implied(constraints.arrays, bits, presence, celled, depths, likely)
    has_token, chances = np.ones(len(asked.numbers), np.bool_), np.ones(len(asked.numbers), np.float64)
    _of_things(asked.numbers, asked.ranks, frequencies, max(len(asked), 1), likely, has_token, chances)
    return Likelihoods(has_token, chances, celled, depths, bits)


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Which tokens the values of an attribute are: its name, and cells of values at some levels."""

    first_cells: I64Array  # length attributes + 1: where the cells of each attribute begin among all tokens
    bits: I64Array  # codes of the attribute have so many; 0 for those without values
    levels: U64Array  # a bit for each level at which a set has a cell of the attribute
    # Of attributes, cells and ranks of tags, in this order: the number by which the token is known, from 1 on, least
    # likely first; 0 for those that no set has
    tokens: U32Array
    first_tag: int  # where the ranks of tags begin

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.first_cells.nbytes + self.bits.nbytes + self.levels.nbytes + self.tokens.nbytes


def cells_of(
    asked: Asked, constraints: Constraints, likely: Likelihoods, attributes: int, ranks: int
) -> tuple[Cells, U32Array, int]:
    """The tokens of some sets, over so many attributes and ranks; that of each thing that has one; how many.

    `likely` is of these sets.
    """
    of_attribute, bits, depths = constraints.attributes, likely.bits, likely.depths
    used = np.zeros(len(constraints), np.bool_)
    used[asked.numbers[~asked.is_tag]] = True
    used &= likely.celled
    levels = np.zeros(attributes, np.uint64)
    np.bitwise_or.at(levels, of_attribute[used], np.uint64(1) << depths[used].astype(np.uint64))
    first_cells = attributes + np.concatenate([[0], np.cumsum(np.where(levels > 0, np.int64(2) << bits, 0))])
    lows = constraints.hulls[0].astype(np.int64)
    token_at = np.where(
        likely.celled,
        first_cells[of_attribute] + (np.int64(1) << depths) + (lows >> (bits[of_attribute] - depths)),
        of_attribute,
    )
    first_tag = int(first_cells[-1])
    has_token = likely.has_token
    # Tags, of which there may be nothing else, have the number before the first
    of_numbers = np.append(token_at, 0)[asked.numbers]
    places = np.where(asked.is_tag, first_tag + asked.ranks, of_numbers)[has_token]
    different, first_use = np.unique(places, return_index=True)
    order = different[np.argsort(likely.chances[has_token][first_use], kind="stable")]
    tokens = np.zeros(first_tag + ranks, np.uint32)
    tokens[order] = np.arange(1, len(order) + 1, dtype=np.uint32)
    return Cells(first_cells, bits, levels, tokens, first_tag), tokens[places], len(order)


# -- how often messages have attributes --------------------------------------------------------------------------------


@kernel
def count_messages(messages, attributes, since, counts):
    """Count so many messages, which have these attributes in all, in the arrays of a `Seen`."""
    since[0] += messages
    for attribute in attributes:
        if attribute < len(counts):
            counts[attribute] += 1


class Seen:
    """Messages, and those of them that have each attribute, which counts as often as it has values.

    Threads that count at the same time may lose some. What was counted `before`, for other sets, is where it begins.
    """

    def __init__(self, names: Names, before: Sequence[Seen] = ()) -> None:
        self._names = names
        self._before, self._counts = _sums(names, before)
        self._since = np.zeros(1, np.int64)

    @property
    def arrays(self) -> tuple[I64Array, I64Array]:
        """What `count_messages` writes to."""
        return self._since, self._counts

    def count(
        self, messages: int, attributes: U32Array, columns: I64Array = NO_PLACES, sizes: I64Array = NO_PLACES
    ) -> None:
        """Count so many more, which have these attributes, and in columns of other attributes so many values."""
        count_messages(messages, attributes, *self.arrays)
        np.add.at(self._counts, columns, sizes)

    @property
    def _messages(self) -> I64Array:
        """Messages that were seen since each attribute is known."""
        return self._before + self._since

    @property
    def presence(self) -> F64Array:
        """Which part of messages has each attribute; NaN where too few were seen."""
        messages = self._messages
        enough = messages >= _ENOUGH
        presence = np.full(len(enough), np.nan)
        presence[enough] = np.minimum(self._counts[enough] / messages[enough], 1.0)
        return presence


def _sums(names: Names, before: Sequence[Seen]) -> tuple[I64Array, I64Array]:
    """Messages, and those with each attribute, over all that know its name."""
    messages, counts = np.zeros(len(names), np.int64), np.zeros(len(names), np.int64)
    if before:
        strings = [names.strings, *(seen._names.strings for seen in before)]
        offsets = offsets_of(np.concatenate([np.diff(each.offsets) for each in strings]))
        # These names come first, and so have the first numbers
        numbers = Names.of(Strings(offsets, np.concatenate([each.data for each in strings])))[1][len(names) :]
        known = numbers < len(names)
        np.add.at(messages, numbers[known], np.concatenate([seen._messages for seen in before])[known])
        np.add.at(counts, numbers[known], np.concatenate([seen._counts for seen in before])[known])
    return messages, counts
