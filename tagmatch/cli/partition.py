"""The command line `tagmatch-partition`: the offline job."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from tagmatch.cli.shared import IgnoreColumns, argument, note, option, run
from tagmatch.files.columns import EVERY_OTHER
from tagmatch.files.formats import JSON_SUFFIXES
from tagmatch.model.errors import IndexExistsError
from tagmatch.model.options import LAYOUT_DEFAULTS, MAX_PARTITION_SIZE, Layout
from tagmatch.subscriptions import COLUMNS


def partition(
    sets: Annotated[
        str,
        argument(
            "SETS",
            "Any path or URI that Spark reads, with columns `tags` (array of strings), `key` (long or string) and "
            "optionally `where` (expressions).",
        ),
    ],
    index: Annotated[str, argument("INDEX", "Folder that all machines mount, or URI of a store.")],
    layout: Annotated[
        Layout | None,
        option("How stored sets are grouped and ordered.", default=f"{LAYOUT_DEFAULTS.layout}, or as the index has it"),
    ] = None,
    max_partition_size: Annotated[
        int | None,
        option(
            "Most sets in a partition (layout balanced).",
            default=f"{LAYOUT_DEFAULTS.max_partition_size}, or as the index has it",
            min=1,
            max=MAX_PARTITION_SIZE,
        ),
    ] = None,
    format: Annotated[  # noqa: A002
        str | None, option("Spark's name of the format of SETS.", default="by suffix, else parquet")
    ] = None,
    master: Annotated[
        str | None, option("local[2], spark://…, or sc://… for Spark Connect.", default="as Spark is configured")
    ] = None,
    sets_per_task: Annotated[int, option("Sets that a task has in memory, about.", min=1)] = 1 << 20,
    ignore_columns: IgnoreColumns = None,
    skip_invalid: Annotated[
        bool, option("Leave out rows that cannot be stored, and tell how many.", "--skip-invalid")
    ] = False,
    overwrite: Annotated[bool, option("Replace an index that is there already.", "--overwrite")] = False,
    append: Annotated[bool, option("Add the sets to an index that is there already.", "--append")] = False,
) -> None:
    """Build an index on Spark from any table of sets, or add them to one."""
    if append and overwrite:
        raise typer.BadParameter("an index is replaced (--overwrite) or added to (--append), not both")
    logging.basicConfig(format="%(message)s")
    logging.getLogger("tagmatch.partitioner").setLevel(logging.INFO)
    from tagmatch.spark.join import partition as run_job
    from tagmatch.spark.session import location_in, read_table, spark_session

    if format is None:
        format = "json" if Path(sets).suffix.lower() in JSON_SUFFIXES else "parquet"  # noqa: A001
    spark = spark_session("tagmatch-partition", master)
    try:
        location = location_in(spark, index, "INDEX")
        if location.has_index() and not (overwrite or append):
            raise IndexExistsError(
                f"there is an index at {location} already; give --overwrite to replace it, or --append to add to it"
            )
        made = run_job(
            _without(read_table(spark, sets, format), ignore_columns),
            index,
            mode="append" if append else "overwrite",
            layout=layout,
            max_partition_size=max_partition_size,
            sets_per_task=sets_per_task,
            skip_invalid=skip_invalid,
        )
    finally:
        spark.stop()
    for problem, count in made.skipped.items():
        typer.echo(f"tagmatch-partition: skipped rows: {problem}: {count}", err=True)
    manifest = location.manifest()
    note(
        f"{location}: {manifest['sets']} sets, layout {manifest['layout']}; "
        f"made one segment with {made.sets} sets, {made.keys} keys, {made.tags} tags"
    )


def _without(sets: Any, ignored: tuple[str, ...] | None) -> Any:
    """The table without columns that are to be left aside."""
    if ignored is None:
        return sets
    others = [name for name in sets.columns if name not in COLUMNS]
    return sets.drop(*(others if ignored == EVERY_OTHER else ignored))


def main() -> None:
    """Entry point of the command `tagmatch-partition`."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(partition)
    run(app)
