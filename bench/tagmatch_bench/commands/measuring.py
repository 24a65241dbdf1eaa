"""What the commands of `tagmatch-bench` share: options, and how experiments are run."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tagmatch.model.errors import TagMatchError

if TYPE_CHECKING:
    from tagmatch_bench.harness.bench import BenchOptions, Experiment

Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of the workload.")]
AllowChanges = Annotated[
    bool, typer.Option("--allow-changes", help="Record results of code that is not committed; they say so.")
]
Rounds = Annotated[int, typer.Option(min=1, max=1000, help="Measurements; their median counts.")]
Seconds = Annotated[float, typer.Option(min=0.001, max=3600, help="About what one measured call takes.")]
Output = Annotated[
    Path,
    typer.Option("--output", "-o", metavar="FOLDER", file_okay=False, writable=True, help="Where results are written."),
]


def require_committed() -> None:
    """Refuse to record what nobody could measure again.

    Raises
    ------
    TagMatchError
        Code differs from its commit; the message names the files.
    """
    from tagmatch_bench.harness.results import changed_files, commit

    if changed := changed_files():
        raise TagMatchError(
            f"results would name commit {commit()}, but these files differ from it: {', '.join(changed)}; commit them, "
            "or record results that name them with --allow-changes"
        )


def measure_all(experiments: Sequence[Experiment], options: BenchOptions, output: Path, *, allow_changes: bool) -> None:
    """Run experiments and print what they find; refuses to measure for minutes what cannot be drawn or written then."""
    from tagmatch_bench.harness.bench import run as run_experiments
    from tagmatch_bench.harness.report import markdown

    if find_spec("matplotlib") is None:
        raise TagMatchError("plots need matplotlib; install it with: pip install ./bench")
    if not allow_changes:
        require_committed()
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TagMatchError(f"{output}: the folder cannot be made: {error.strerror or error}") from None
    faults = []
    for result in run_experiments(experiments, options, output, Console(stderr=True)):
        typer.echo(markdown(result, images=f"{output}/"))
        faults += result.faults()
    if faults:
        raise TagMatchError("; ".join(faults))
