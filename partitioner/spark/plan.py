"""How sets are divided into slices, consecutive ranges of the tagset table: what each layout has to say of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from tagmatch.model.arrays import I64Array, Lists, U64Array
from tagmatch.model.options import LayoutOptions
from tagmatch.model.tables import Partitions, TagsetTable
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


class Slices:
    """Numbers of slices in order, and what they have."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self.numbers = [int(row.slice) for row in rows]
        self.sets = [int(row.sets) for row in rows]
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

    def partitions(self, scratch: Scratch, slices: Slices, tagsets: TagsetTable, tags: int) -> Partitions:
        """The table of partitions of all slices, whose sets are `tagsets`."""
