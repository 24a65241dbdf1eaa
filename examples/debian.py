"""Find the Debian packages all of whose tags another package has, too.

Builds an index of all packages in both layouts, asks for every package which packages' tags are contained in its own,
checks that the layouts agree, and shows three answers.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from tagmatch import TagMatch

DATA = Path(__file__).parent / "data" / "debian_tags.parquet"
SHOWN = ("frozen-bubble", "wordpress", "python3-numpy")
SETS_SHOWN = 4


def main() -> None:
    """Run the demonstration."""
    packages = pq.read_table(DATA)
    tags, keys = packages["tags"], packages["key"]
    console = Console()
    console.print(f"{len(packages):,} Debian packages from {DATA.name}")

    figures = Table("layout", "sets", "vocabulary", "partitions", "queries/s", "matches/query", box=None)
    for column in figures.columns:
        column.justify = "right"
    answers = {}
    for each in ("rarest", "balanced"):
        tm = TagMatch(layout=each, max_partition_size=1_000)
        with tm, console.status(f"{each}: compiling (once per machine) and matching"):
            tm.add_sets(tags, keys)
            tm.consolidate()
            tm.match_many(tags.slice(0, 1_000), unique=True)
            start = time.perf_counter()
            answers[each] = tm.match_many(tags, unique=True)
            rate = len(tags) / (time.perf_counter() - start)
            stats = tm.stats()
            found = len(answers[each].values) / len(tags)
            figures.add_row(
                each,
                f"{stats['sets']:,}",
                f"{stats['tags']:,}",
                f"{stats['partitions']:,}",
                f"{rate:,.0f}",
                f"{found:,.1f}",
            )
            if each == "rarest":
                examples = [(package, *_example(tm, packages, package)) for package in SHOWN]
    console.print(figures)
    if not answers["rarest"].equals(answers["balanced"]):
        sys.exit("the layouts disagree")
    console.print(f"Both layouts give the same {len(answers['rarest'].values):,} answers.\n")

    names = packages["package"].to_pylist()
    for name, query, sets in examples:
        console.print(f"[bold]{name}[/] has the tags {', '.join(sorted(query))}.", highlight=False, soft_wrap=True)
        console.print(f"{len(sets)} stored tag sets are contained in them:", highlight=False, soft_wrap=True)
        for found_tags, found_keys in sorted(sets, key=lambda pair: (-len(pair[0]), pair[1]))[:SETS_SHOWN]:
            listed = ", ".join(names[key] for key in found_keys[:3])
            more = f" and {len(found_keys) - 3:,} more" if len(found_keys) > 3 else ""
            console.print(f"  {{{', '.join(sorted(found_tags))}}}: {listed}{more}", highlight=False, soft_wrap=True)
        console.print()


def _example(tm: TagMatch, packages, name: str):
    """Return a package's tags and `explain`'s answer to them."""
    row = pc.index(packages["package"], name).as_py()
    query = packages["tags"][row].as_py()
    return query, tm.explain(query)


if __name__ == "__main__":
    main()
