"""What the tasks of a job leave for those of the next step: Arrow files that all machines see."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tagmatch.model.storage.shared_files import Files
from tagmatch.model.storage.table_files import OpenFile, checked_columns, read_table_file


@dataclass(frozen=True, slots=True)
class Scratch:
    """Columns of tables, by the table's name and number, each in a file of its own.

    A task may run twice, after a failure or beside a slow twin: a file appears whole and under its name in one step,
    and what a task writes depends on its input alone, so that it does not matter whose file stays.

    Attributes
    ----------
    files : Files
    """

    files: Files

    def write(self, name: str, number: int, **columns: pa.Array) -> None:
        """Write the columns of a table, which may differ in length."""
        for column, values in columns.items():
            schema = pa.schema([(column, values.type)])
            with (
                self.files.new(_file_name(name, number, column)) as path,
                pa.OSFile(str(path), "wb") as sink,
                pa.ipc.new_file(sink, schema) as writer,
            ):
                writer.write_batch(pa.record_batch([values], schema=schema))

    def read(self, name: str, number: int, column: str, *, keep: bool = False) -> pa.Array:
        """Return a column of a table, memory-mapped; `keep` if other tasks on this machine read it, too."""
        return pa.ipc.open_file(self.files.map(_file_name(name, number, column), keep=keep)).get_batch(0).column(0)

    def read_table(self, name: str, files: Iterable[str]) -> dict[str, pa.Array]:
        """The columns of the table of this name in these files, memory-mapped, as other tasks on this machine do."""
        return checked_columns(name, read_table_file([OpenFile.at(self.files.kept(file)) for file in files]))

    def new_array(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An array in a file of this machine that is removed with it; it takes no room but for what is written."""
        if 0 in shape:
            return np.zeros(shape, dtype)
        file = self.files.local_folder() / f"array-{uuid.uuid4().hex}"
        array = np.memmap(file, dtype, "w+", shape=shape)
        file.unlink()  # it stays as long as the array does
        return array


def _file_name(name: str, number: int, column: str) -> str:
    return f"{name}-{number}.{column}.arrow"
