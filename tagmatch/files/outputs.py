"""Files and streams to write to, by path and format."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from tagmatch.files.formats import is_stream
from tagmatch.files.streams import Output, output_stream
from tagmatch.files.whole import write_whole

Stream = BinaryIO | Output


@contextlib.contextmanager
def open_output(path: str, compression: str | None = None) -> Iterator[Stream]:
    """Open a stream, such as a pipe or standard output (`-`), or a file that appears only when it is whole.

    Raises
    ------
    TagMatchError
        Writing a file fails.
    """
    with output_stream(path) if is_stream(path) else _whole_file(Path(path)) as stream:
        if compression is None:
            yield stream
        else:
            with pa.CompressedOutputStream(pa.PythonFile(stream, "w"), compression) as compressed:
                yield compressed


@contextlib.contextmanager
def _whole_file(path: Path) -> Iterator[BinaryIO]:
    with write_whole(path) as part, part.open("wb") as file:
        yield file
