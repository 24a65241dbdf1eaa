"""`tagmatch backup | restore`: safety copies of an index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tagmatch.backups import backup as back_up
from tagmatch.backups import restore as bring_back
from tagmatch.cli.arguments import Index, KeepSnapshots, SnapshotNumber, location_argument
from tagmatch.cli.progress import status
from tagmatch.model.errors import IndexExistsError

if TYPE_CHECKING:
    from tagmatch.model.storage.copies import Copied

_Target = Annotated[
    str, location_argument("TARGET", "Folder for the copy, or URI on a store; new, empty, or an earlier backup.")
]
_Backup = Annotated[str, location_argument("BACKUP", "Folder of the backup (or of any index), or its URI on a store.")]


def backup(index: Index, target: _Target, keep_snapshots: KeepSnapshots = None) -> None:
    """Copy an index, with the changes that are staged, to a folder or a store; programs may change it meanwhile.

    Files that an earlier backup there has are not copied again. The copy is an index, too.
    """
    with status("copying"):
        copied = back_up(index, target, keep_snapshots=keep_snapshots)
    _tell(target, copied)


def restore(
    backup: _Backup,
    index: Index,
    snapshot: SnapshotNumber = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace an index that is there, with what is staged in it.")
    ] = False,
) -> None:
    """Make an index of a backup: all of it, with the checksums that it was written with, or nothing."""
    try:
        with status("copying"):
            copied = bring_back(backup, index, snapshot=snapshot, replace=replace)
    except IndexExistsError as error:
        raise IndexExistsError(str(error).replace("`replace`", "--replace")) from None
    _tell(index, copied)


def _tell(address: str, copied: Copied) -> None:
    from tagmatch.model.storage.location import location_of

    staged = f", {copied.staged} staged {'change' if copied.staged == 1 else 'changes'}" if copied.staged else ""
    typer.echo(
        f"{location_of(address, 'INDEX')}: snapshot {copied.number}, {copied.sets} sets{staged}; "
        f"{copied.new_bytes} bytes copied, {copied.old_bytes} there already"
    )
