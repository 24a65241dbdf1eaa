"""The command `tagmatch` as a process of its own, and files for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

COMMAND = Path(sys.executable).parent / "tagmatch"

Record = dict[str, Any]


def tagmatch(*arguments: object, stdin: bytes = b"", code: int = 0) -> str:
    """Run the command; returns its standard output, or the one line of standard error if it is to fail."""
    done = subprocess.run([COMMAND, *map(str, arguments)], input=stdin, capture_output=True, timeout=120)
    stdout, stderr = done.stdout.decode(), done.stderr.decode()
    assert done.returncode == code, stderr
    assert "Traceback" not in stderr
    if code == 0:
        assert stderr == ""
        return stdout
    if code == 1:
        assert len(stderr.splitlines()) == 1, stderr
    return stderr


def as_json_lines(records: list[Record]) -> bytes:
    return b"".join(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records)


def write(path: Path, records: list[Record], schema: pa.Schema | None = None) -> Path:
    """A file of these records, in the format of its suffix."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(records, schema), path, row_group_size=300)
    else:
        path.write_bytes(as_json_lines(records))
    return path


def read(path: Path) -> list[Record]:
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    return from_json_lines(path.read_text())


def from_json_lines(text: str) -> list[Record]:
    return [json.loads(line) for line in text.splitlines()]
