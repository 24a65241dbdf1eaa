"""How sets are divided into slices, consecutive ranges of the tagset table: what each layout has to say of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import I64Array, Lists, U32Array, U64Array
from tagmatch.model.options import LayoutOptions
from tagmatch.model.storage.table_files import TableFile
from tagmatch.partitioner.balanced_partitioning import Root
from tagmatch.partitioner.spark.scratch import Scratch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Routes(Protocol):
    """To which slice each set belongs."""

    def slices(self, scratch: Scratch, shard: int) -> I64Array:
        """Slice of each set of a shard."""


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The slices of a job.

    Attributes
    ----------
    routes : Routes
    slices : int
        How many there are.
    roots : dict of int to Root
        Of slices that are subtrees of Algorithm 1, where each begins.
    """

    routes: Routes
    slices: int
    roots: dict[int, Root] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class LaidOut:
    """What a layout says of the sets of a slice.

    Attributes
    ----------
    columns : dict of str to Array
        What the slice has beside sets and keys: its partitions or clusters.
    signatures : uint64[n, 3] array
        Of the sets, in their order.
    groups : int
        How many of these there are.
    order : uint32 array, optional
        In which the sets are to come; `None`: as they do.
    first_tag, last_tag : int
        Of clusters, ranks of their tags; -1 where there is none.
    """

    columns: dict[str, pa.Array]
    signatures: U64Array
    groups: int
    order: U32Array | None = None
    first_tag: int = -1
    last_tag: int = -1


class Slices:
    """Numbers of slices in order, and what each has."""

    def __init__(self, rows: Sequence[Any]) -> None:
        def of_each(name: str) -> I64Array:
            return np.array([row[name] for row in rows], np.int64)

        self.numbers = of_each("slice").tolist()
        self.sets, self.empty, self.ranks, self.keys = map(of_each, ("sets", "empty", "ranks", "keys"))
        self.groups, self.first_tags, self.last_tags = map(of_each, ("groups", "first_tag", "last_tag"))
        self.greatest_key = max((int(row.greatest_key) for row in rows), default=0)
        self.some_expire = any(row.some_expire for row in rows)


class LayoutPlan(Protocol):
    """What a layout has to say."""

    def prepare(self, scratch: Scratch, shard: int, ranks: Lists) -> U64Array:
        """Leave what a shard's sets are routed by; returns words, uint64[n, 2], that `plan` gets of all shards."""

    def plan(
        self,
        spark: SparkSession,
        scratch: Scratch,
        shards: Sequence[int],
        ranked: Sequence[Any],
        options: LayoutOptions,
        sets_per_task: int,
    ) -> Plan:
        """Divide the sets; `ranked` has rows (`shard`, `sets`, `empty`, `first`, `second`)."""

    def lay_out(self, ranks: Lists, signatures: U64Array, options: LayoutOptions, root: Root | None) -> LaidOut:
        """Lay out the sets of a slice, which come in the order of their ranks."""

    def partitions(self, scratch: Scratch, slices: Slices, tags: int) -> tuple[TableFile, int]:
        """The table of partitions, or clusters, of all slices, and how many there are."""
