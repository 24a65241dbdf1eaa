"""Tokens: what a message must have for a constraint to hold, and how likely messages have it.

Every constraint that asks for a value implies a token: the name of its attribute, or the cell of a value at the level
as wide as the constraint. A tag is a token, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tagmatch.model.arrays import BoolArray, F64Array, I64Array, U32Array, U64Array
from tagmatch.pipeline.filters.asked import Asked
from tagmatch.pipeline.filters.attributes import Attributes, Constraints

# A cell is worth a token more in every message where it tells much apart, or where the name tells nothing
_TELLING, _TELLING_COMMON, _COMMON = 5, 2, 0.25


@dataclass(frozen=True, slots=True, eq=False)
class Likelihoods:
    """Which token each constraint implies, and how likely messages have it.

    Attributes
    ----------
    has_token : bool array
        Of each thing that sets ask.
    chances : float64 array
        Of each thing; 1 where it has no token.
    celled : bool array
        Of each constraint: whether its token is a cell.
    depths : int64 array
        Of each constraint, the level of its cell; 0 where it has none.
    bits : int64 array
        Codes of each attribute have so many; 0 for those without values.
    """

    has_token: BoolArray
    chances: F64Array
    celled: BoolArray
    depths: I64Array
    bits: I64Array

    def of(self, things: BoolArray) -> Likelihoods:
        """Those of some of the things."""
        return replace(self, has_token=self.has_token[things], chances=self.chances[things])


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
    some, (lows, highs) = constraints.some, constraints.hulls
    is_tag = asked.is_tag
    has_token = is_tag | some[asked.numbers]
    bits = attributes.constants.bits.copy()
    bits[len(attributes.names) :] = 0
    of_attribute = constraints.attributes
    widths = np.ceil(np.log2(highs.astype(np.float64) - lows + 1)).astype(np.int64)
    depths = bits[of_attribute] - widths
    celled = some & (bits[of_attribute] > 0)
    celled &= (depths >= _TELLING) | (depths >= _TELLING_COMMON) & (presence[of_attribute] > _COMMON)
    depths = np.where(celled, depths, 0)
    cells = np.where(depths == bits[of_attribute], 1.0, 2.0) / np.exp2(depths)
    likely = presence[of_attribute] * np.where(celled, cells, 1.0)
    chances = np.where(is_tag, np.minimum(frequencies[asked.ranks] / max(len(asked), 1), 1.0), likely[asked.numbers])
    return Likelihoods(has_token, np.where(has_token, chances, 1.0), celled, depths, bits)


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
    places = np.where(asked.is_tag, first_tag + asked.ranks, token_at[asked.numbers])[has_token]
    different, first_use = np.unique(places, return_index=True)
    order = different[np.argsort(likely.chances[has_token][first_use], kind="stable")]
    tokens = np.zeros(first_tag + ranks, np.uint32)
    tokens[order] = np.arange(1, len(order) + 1, dtype=np.uint32)
    return Cells(first_cells, bits, levels, tokens, first_tag), tokens[places], len(order)
