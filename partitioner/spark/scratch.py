"""What the tasks of a job leave for those of the next step: Arrow files that all machines see."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tagmatch.model.arrays import IntArray, narrow_offsets
from tagmatch.model.arrow import to_lists, to_strings
from tagmatch.model.storage.shared_files import Files


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

    def joined(
        self, name: str, numbers: Sequence[int], column: str, read: Callable[[pa.Array], Any], dtype: npt.DTypeLike
    ) -> npt.NDArray[Any]:
        """Join a column of several tables, which `read` gives as an array of one or more dimensions.

        The outcome is an array in a file, which need not fit the memory of one task; so are those of `joined_lists`.
        """
        return self._joined([read(self.read(name, number, column)) for number in numbers], dtype)

    def joined_lists(
        self, name: str, numbers: Sequence[int], column: str, dtype: npt.DTypeLike
    ) -> tuple[IntArray, npt.NDArray[Any]]:
        """Join a column of lists or strings of several tables; returns offsets and values."""
        parts = [_offsets_and_values(self.read(name, number, column)) for number in numbers]
        offsets = self._new_array((1 + sum(len(part[0]) - 1 for part in parts),), np.int64)
        row = 0
        for some, _ in parts:
            offsets[row + 1 : row + len(some)] = some[1:].astype(np.int64) + offsets[row]
            row += len(some) - 1
        return narrow_offsets(offsets), self._joined([values[: some[-1]] for some, values in parts], dtype)

    def _joined(self, parts: list[npt.NDArray[Any]], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        rest = parts[0].shape[1:] if parts else ()
        joined = self._new_array((sum(map(len, parts)), *rest), dtype)
        row = 0
        for part in parts:
            joined[row : row + len(part)] = part
            row += len(part)
        return joined

    def _new_array(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        if 0 in shape:
            return np.zeros(shape, dtype)
        file = self.files.local_folder() / f"array-{uuid.uuid4().hex}"
        array = np.memmap(file, dtype, "w+", shape=shape)
        file.unlink()  # it stays as long as the array does
        return array


def _offsets_and_values(array: pa.Array) -> tuple[IntArray, npt.NDArray[Any]]:
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        strings = to_strings(array)
        return strings.offsets, strings.data
    lists = to_lists(array)
    return lists.offsets, lists.values


def _file_name(name: str, number: int, column: str) -> str:
    return f"{name}-{number}.{column}.arrow"
