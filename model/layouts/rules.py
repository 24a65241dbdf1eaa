"""What a layout has to say for itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from tagmatch.model.arrays import I64Array, IntArray, Lists, U64Array, UIntArray
from tagmatch.model.options import LayoutOptions
from tagmatch.model.tables import Partitions, Segment


@dataclass(frozen=True, slots=True)
class Implementations:
    """Where the layers above have what they do for a layout: names as `pkgutil.resolve_name` takes them.

    By name, as imports run one way, and as some need what may not be installed.

    Attributes
    ----------
    lay_out : str
        Brings sets into the layout: `LayOut` of `tagmatch.partitioner.local`.
    plan : str
        Says how the Spark job does: a class as `LayoutPlan` of `tagmatch.partitioner.spark.plan`.
    subset_match : str
        Makes the subset match of a segment: `MakeSubsetMatch` of `tagmatch.pipeline.cpu.matcher`.
    cuda : str
        Makes that of a segment on a CUDA device: `MakeLayoutMatch` of `tagmatch.pipeline.cuda.matcher`.
    """

    lay_out: str
    plan: str
    subset_match: str
    cuda: str


class Rules(Protocol):
    """A layout: the order of sets in the tagset table, and the table of partitions.

    Attributes
    ----------
    table : type
        Of its table of partitions.
    compares_tags : bool
        Whether answers are exact also without `exact`.
    implementations : Implementations
        What lays sets out, and matches them.
    """

    table: type[Any]
    compares_tags: bool
    implementations: Implementations

    def same_tables(self, one: LayoutOptions, other: LayoutOptions) -> bool:
        """Whether a snapshot has the same tables with these options of the layout as with those."""

    def no_signatures(self) -> U64Array | None:
        """Signatures of no sets; `None` if snapshots in memory need none."""

    def no_partitions(self) -> Partitions:
        """The table for no sets."""

    def to_arrow(self, table: Any) -> dict[str, pa.Array]:
        """Columns of the table, as `partitions.arrow` has them."""

    def from_arrow(self, columns: dict[str, pa.Array], sets: int) -> Partitions:
        """The table of these columns, of a snapshot with `sets` sets."""

    def of_rows(self, table: Any, edges: IntArray) -> Partitions:
        """The table of some consecutive sets; `edges` are `first_rows`, clipped to these and counted from the first."""

    def sets_by_rarest_tag(self, segment: Segment) -> I64Array:
        """How many sets have the tag of each rank as their rarest."""

    def saying_rarest_tags(self, segment: Segment) -> tuple[IntArray | UIntArray, ...]:
        """The columns that `sets_by_rarest_tag` looks at."""

    def rows_of(self, segment: Segment, sets: Lists) -> I64Array:
        """The row of each set, given as the ascending ranks of its tags; -1 where no row has it."""

    def check(self, segment: Segment) -> None:
        """Verify the order of sets and the table; raises `InvariantError`."""
