"""What users call for safety copies: `backup` and `restore`. It imports nothing heavy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tagmatch.model.options import StagingOptions

if TYPE_CHECKING:
    import os

    from tagmatch.model.storage.copies import Copied


def backup(
    path: str | os.PathLike[str], target: str | os.PathLike[str], *, keep_snapshots: int | None = None
) -> Copied:
    """Copy the index at `path`, with the changes that are staged in its log, to `target`; and where clients are.

    Programs may change the index meanwhile: the copy has what it had at one moment, with all changes of calls that have
    returned before this one began, but for those with `durability="none"`, which are nowhere but in memory. The copy is
    an index, in which these changes are staged, with the positions of clients that were last saved. When this returns,
    it survives a crash of the machine; until then, `target` has what it had before, wholly. Files that an earlier
    backup there has are not copied again: in a folder, their checksums are verified; on a store, their sizes.

    Parameters
    ----------
    path, target : str or Path
        Folders, or URIs on a store, as for `TagMatch.open`. At `target` there is nothing, or an earlier backup. Stores
        have no locks: let one program at a time write to an index there.
    keep_snapshots : int, optional
        How many earlier backups stay at `target`, from now on, to be opened or restored by their numbers: what was
        stored then, but not what was staged. Default: as many as until now, at first none.

    Returns
    -------
    Copied
        `number`, `sets` and `staged` of the copy; `new_bytes` that were copied, `old_bytes` that were there already.

    Raises
    ------
    IndexNotFoundError, IndexCorruptError, IndexVersionError
        There is no index at `path`, it is damaged, or a newer version wrote it.
    IndexExistsError
        At `target` is something else than a backup, or one that was changed.
    IndexLockedError
        A program has changes staged at `target`.
    InvalidTypeError, InvalidValueError
        An argument cannot be used.
    TagMatchError
        A file cannot be read or written.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from tagmatch import TagMatch
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> with TagMatch(folder / "animals.index") as tm:
    ...     tm.add_set(["cat"], 7)
    ...     tm.consolidate()
    ...     tm.add_set(["dog"], 8)
    ...     copied = backup(folder / "animals.index", folder / "animals.backup")
    1
    ChangeCounts(added=1, already_there=0, removed=0, missing=0)
    1
    >>> copied.sets, copied.staged
    (1, 1)
    >>> restored = restore(folder / "animals.backup", folder / "restored.index")
    >>> with TagMatch.open(folder / "restored.index") as tm:
    ...     tm.consolidate()
    ...     sorted(tm.match(["cat", "dog"]))
    ChangeCounts(added=1, already_there=0, removed=0, missing=0)
    [7, 8]
    """
    from tagmatch.model.storage import copies
    from tagmatch.model.storage.repository import location_of

    keep = StagingOptions(keep_snapshots=keep_snapshots).keep_snapshots
    return copies.backup(location_of(path, "path"), location_of(target, "target"), keep)


def restore(
    backup: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    snapshot: int | None = None,
    replace: bool = False,
) -> Copied:
    """Make the index at `path` that of which `backup` is a copy, with the changes that were staged, and positions.

    First, all files of a backup in a folder are read, and must have the checksums that they were written with; those on
    a store, as they are copied. Then `path` has the copy, in one step, as its next snapshot. Programs that have the
    index open go on with what they have; `TagMatch.reload` takes the copy over.

    Parameters
    ----------
    backup, path : str or Path
        Folders, or URIs on a store, as for `TagMatch.open`. `backup` may be any index, also the one at `path`.
    snapshot : int, optional
        Number of the snapshot to restore, of those that `TagMatch.snapshots` lists, without what was staged then, or
        where clients were.
        Default: the current one.
    replace : bool
        Take the place of an index that is at `path`, with what is staged in it; damaged ones, too.

    Returns
    -------
    Copied
        The same as for `backup`.

    Raises
    ------
    IndexNotFoundError, IndexCorruptError, IndexVersionError
        There is no index at `backup`, it is damaged, or a newer version wrote it.
    IndexExistsError
        At `path` is an index, and `replace` is not given, or something else.
    IndexLockedError
        A program has changes staged for the index at `path`.
    InvalidTypeError, InvalidValueError
        An argument cannot be used.
    TagMatchError
        A file cannot be read or written.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from tagmatch import TagMatch
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> with TagMatch(folder / "animals.index") as tm:
    ...     tm.add_set(["cat"], 7)
    ...     tm.consolidate()
    ...     copied = backup(folder / "animals.index", folder / "animals.backup")
    ...     tm.remove_set(["cat"], 7)  # a mistake
    ...     tm.consolidate()
    1
    ChangeCounts(added=1, already_there=0, removed=0, missing=0)
    1
    ChangeCounts(added=0, already_there=0, removed=1, missing=0)
    >>> restored = restore(folder / "animals.backup", folder / "animals.index", replace=True)
    >>> with TagMatch.open(folder / "animals.index") as tm:
    ...     tm.match(["cat"])
    [7]
    """
    from tagmatch.model.storage import copies
    from tagmatch.model.storage.repository import location_of

    return copies.restore(location_of(backup, "backup", snapshot), location_of(path, "path"), replace=replace)
