"""What every system looks like that keeps sets on disk and takes changes, and their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Protocol, cast

from tagmatch_bench.systems.matcher import Matcher

if TYPE_CHECKING:
    import pyarrow as pa
else:  # what a protocol inherits from exists when the program runs
    pa = Any

#: Columns of all tables here. No two rows have the same key, so that a row can be named by it
COLUMNS = ("tags", "key")


class OnDisk(Matcher["pa.ListArray"], Protocol):
    """A matcher at a path, which it makes if nothing is there.

    One thread changes it at a time, but for what `adder` returns.

    Attributes
    ----------
    visible_at_once : bool
        Whether queries see a row as soon as an adder has returned; if not, `tend` makes them see it.
    """

    visible_at_once: bool

    def change(self, added: pa.Table, removed: pa.Table | None = None) -> None:
        """Remove and add rows; when this returns, queries see that, and it is saved as the system saves by default."""

    def adder(self) -> Callable[[list[str], int], object]:
        """Return what adds one row, for one of several threads."""

    def tend(self) -> None:
        """Do what is to be done after many small additions; other threads may go on to add rows."""


@dataclass(frozen=True, slots=True)
class SystemOnDisk:
    """A system, imported when it is opened.

    Attributes
    ----------
    where : str
        Module in this folder and class, `"module:Class"`; the class takes a path and `threads`.
    """

    where: str

    def __call__(self, path: Path, threads: int, **more: Any) -> OnDisk:
        """Make the system at a path, or open what it has made there, with further options.

        Raises
        ------
        UnavailableError
            It cannot run here.
        """
        return cast("OnDisk", resolve_name(f"{__package__}.{self.where}")(path, threads=threads, **more))


TAGMATCH = "tagmatch"
DUCKDB = "DuckDB"
LANCEDB = "LanceDB"

SYSTEMS_ON_DISK: Mapping[str, SystemOnDisk] = {
    TAGMATCH: SystemOnDisk("tagmatch:TagmatchOnDisk"),
    DUCKDB: SystemOnDisk("duckdb_lists:DuckDBFile"),
    LANCEDB: SystemOnDisk("lancedb_table:LanceDBTable"),
}
