"""Options that `tagmatch-bench pcm` and `ccm` share."""

from __future__ import annotations

from typing import Annotated

import typer

MOST_CONSTRAINTS = 100_000_000

Constraints = Annotated[
    int,
    typer.Option(min=400, max=MOST_CONSTRAINTS, help="Of the default scenario, about; figures have up to ten times."),
]
Events = Annotated[int, typer.Option(min=1, max=1_000_000, help="Events that come one by one.")]


def _skippable(names: list[str] | None) -> list[str] | None:
    from tagmatch_bench.harness.content import ALL

    for name in names or ():
        if name not in ALL:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(map(repr, ALL))}")
    return names


SkipContent = Annotated[
    list[str] | None,
    typer.Option("--skip", metavar="SYSTEM", callback=_skippable, help="Leave out a system.", show_default=False),
]
