"""Layouts: how stored sets are ordered and grouped. What one of them alone knows stands in a module of its own."""

from __future__ import annotations

from tagmatch.model.invariants import fail
from tagmatch.model.layouts.balanced import Balanced
from tagmatch.model.layouts.rarest import Rarest
from tagmatch.model.layouts.rules import Implementations, Rules
from tagmatch.model.options import Layout, LayoutOptions
from tagmatch.model.tables import Segment

LAYOUTS: dict[Layout, Rules] = {"rarest": Rarest(), "balanced": Balanced()}


def rules_of(options: LayoutOptions) -> Rules:
    """The layout that these options name."""
    return LAYOUTS[options.layout]


def implementations_of(options: LayoutOptions) -> Implementations:
    """Where the layers above have what they do for the layout that these options name."""
    return rules_of(options).implementations


def has_tables_for(have: LayoutOptions, want: LayoutOptions) -> bool:
    """Whether a snapshot with these options has the tables that one with those would have."""
    return have.layout == want.layout and rules_of(have).same_tables(have, want)


def check_layout(segment: Segment) -> None:
    """Verify the table of partitions, and the order of sets that goes with it.

    Raises
    ------
    InvariantError
        Names the table, the row and the invariant that is broken.
    """
    rules = rules_of(segment.options)
    if not isinstance(segment.partitions, rules.table):
        found = next(name for name, each in LAYOUTS.items() if isinstance(segment.partitions, each.table))
        fail("partition table", None, f"is of layout {found}, the snapshot of layout {segment.options.layout}")
    rules.check(segment)
