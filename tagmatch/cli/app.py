"""The command line `tagmatch`.

Commands import what they need when they run, so that help comes at once.
"""

from __future__ import annotations

from tagmatch.cli.arguments import command_line
from tagmatch.cli.backups import backup, restore
from tagmatch.cli.changes import add, build, remove
from tagmatch.cli.contents import check, export, info
from tagmatch.cli.progress import status
from tagmatch.cli.queries import explain, match
from tagmatch.cli.serving import serve, token

app = command_line("Exact subset matching: the keys of every stored tag set that is contained in a query set.")


def warmup() -> None:
    """Compile all kernels now, not when they are first used: for images of containers."""
    from tagmatch.warmup import warm_up

    with status("compiling kernels, once, about a minute"):
        warm_up()


for command in (build, add, remove, match, explain, export, info, check, backup, restore, serve, token, warmup):
    app.command()(command)
# As database programs call it
app.command("dump", help="Another name of `export`.")(export)
