"""What the tasks of a job leave for those of the next step: Arrow files in a folder that all machines see."""

from __future__ import annotations

import os
import socket
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tagmatch.errors import TagMatchError


@dataclass(frozen=True, slots=True)
class Scratch:
    """Columns of tables, by the table's name and number, each in a file of its own.

    A task may run twice, after a failure or beside a slow twin: a file appears whole and under its name in one step,
    and what a task writes depends on its input alone, so that it does not matter whose file stays.

    Attributes
    ----------
    folder : Path
    """

    folder: Path

    def write(self, name: str, number: int, **columns: pa.Array) -> None:
        """Write the columns of a table, which may differ in length.

        Raises
        ------
        TagMatchError
            This machine does not have the folder.
        """
        if not self.folder.is_dir():
            raise TagMatchError(
                f"{socket.gethostname()} has no folder {self.folder}, which the driver has made: an index must be "
                "where all machines mount the same folder"
            )
        for column, values in columns.items():
            file = self._file(name, number, column)
            part = file.with_name(f"{file.name}.{uuid.uuid4().hex}")
            schema = pa.schema([(column, values.type)])
            with pa.OSFile(str(part), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
                writer.write_batch(pa.record_batch([values], schema=schema))
            os.replace(part, file)

    def read(self, name: str, number: int, column: str) -> pa.Array:
        """Return a column of a table, memory-mapped."""
        return pa.ipc.open_file(pa.memory_map(str(self._file(name, number, column)))).get_batch(0).column(0)

    def new_array(self, length: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return an array in a file, for columns that need not fit the memory of one task."""
        if length == 0:
            return np.zeros(0, dtype)
        return np.memmap(self.folder / f"array-{uuid.uuid4().hex}", dtype, "w+", shape=(length,))

    def _file(self, name: str, number: int, column: str) -> Path:
        return self.folder / f"{name}-{number}.{column}.arrow"
