"""What every system looks like that keeps sets on disk and takes changes, and their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Protocol, cast

from tagmatch.workloads.systems.matcher import Matcher

if TYPE_CHECKING:
    import pyarrow as pa
else:  # what a protocol inherits from exists when the program runs
    pa = Any

#: Columns of all tables here. No two rows have the same key, so that a row can be named by it
COLUMNS = ("tags", "key")


class OnDisk(Matcher["pa.ListArray"], Protocol):
    """A matcher at a path, which it makes if nothing is there.

    One thread changes it at a time, but for what `adder` returns.
    """

    def change(self, added: pa.Table, removed: pa.Table | None = None) -> None:
        """Remove and add rows; when this returns, queries see that, and it is saved as the system saves by default."""

    def adder(self) -> Callable[[list[str], int], object]:
        """Return what adds one row, for one of several threads; queries may see it only after the next `tend`."""

    def tend(self) -> None:
        """Do what the system wants to be done from time to time, beside other threads that add rows."""


@dataclass(frozen=True, slots=True)
class SystemOnDisk:
    """A system, imported when it is opened.

    Attributes
    ----------
    where : str
        Module in this folder and class, `"module:Class"`; the class takes a path and `threads`.
    options : mapping
        More arguments of the class.
    """

    where: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, path: Path, threads: int) -> OnDisk:
        """Make the system at a path, or open what it has made there.

        Raises
        ------
        UnavailableError
            It cannot run here.
        """
        return cast("OnDisk", resolve_name(f"{__package__}.{self.where}")(path, threads=threads, **self.options))


TAGMATCH = "tagmatch"
DUCKDB = "DuckDB"
LANCEDB = "LanceDB"

SYSTEMS_ON_DISK: Mapping[str, SystemOnDisk] = {
    TAGMATCH: SystemOnDisk("tagmatch:TagmatchOnDisk"),
    DUCKDB: SystemOnDisk("duckdb_lists:DuckDBFile"),
    LANCEDB: SystemOnDisk("lancedb_table:LanceDBTable"),
}
