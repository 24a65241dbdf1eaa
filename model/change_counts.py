"""What changes do, and what happened to them."""

from __future__ import annotations

from typing import NamedTuple

#: What a staged change does: it adds a key to a set or removes it; or all sets of the key lose it first, and it is then
#: put into none, or into a first set, which further ones follow
ADD, REMOVE, DELETE, PUT, ALSO_PUT = range(5)


class ChangeCounts(NamedTuple):
    """What happened to changes, each of one key of one set, in order.

    Attributes
    ----------
    added : int
        Additions of keys that the sets did not have.
    already_there : int
        Additions of keys that the sets had. When such a key expires may have changed.
    removed : int
        Removals of keys that the sets had; and additions of such keys until a time that is past.
    missing : int
        Removals of keys that the sets did not have, which change nothing; and additions of such keys until a time that
        is past.

    Examples
    --------
    >>> from tagmatch import TagMatch
    >>> tm = TagMatch()
    >>> tm.add_sets([["cat"], ["dog"]], [7, 8])
    2
    >>> tm.remove_set(["cow"], 9)
    1
    >>> tm.consolidate()
    ChangeCounts(added=2, already_there=0, removed=0, missing=1)
    """

    added: int = 0
    already_there: int = 0
    removed: int = 0
    missing: int = 0

    def and_also(self, others: ChangeCounts) -> ChangeCounts:
        """These and others.

        Returns
        -------
        ChangeCounts
            The sums of each count.
        """
        return ChangeCounts(*(one + other for one, other in zip(self, others, strict=True)))

    def __str__(self) -> str:
        """As the command line says it: what there is, such as `2 added, 1 already there`."""
        counted = ((count, name.replace("_", " ")) for name, count in zip(self._fields, self, strict=True))
        return ", ".join(f"{count} {name}" for count, name in counted if count) or "no changes"
