"""What a layout has to say for itself."""

from __future__ import annotations

from typing import Any, Protocol

import pyarrow as pa

from tagmatch.model.arrays import I64Array, IntArray, U64Array
from tagmatch.model.options import LayoutOptions
from tagmatch.model.tables import Partitions, Segment


class Rules(Protocol):
    """A layout: the order of sets in the tagset table, and the table of partitions.

    Attributes
    ----------
    table : type
        Of its table of partitions.
    compares_tags : bool
        Whether answers are exact also without `exact`.
    """

    table: type[Any]
    compares_tags: bool

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

    def check(self, segment: Segment) -> None:
        """Verify the order of sets and the table; raises `InvariantError`."""
