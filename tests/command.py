"""The command `tagmatch` as a process of its own, and files for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

COMMAND = Path(sys.executable).parent / "tagmatch"

#: All that the command says after Ctrl-C
INTERRUPTED = "tagmatch: interrupted\n"

Record = dict[str, Any]

# The command, but it writes to a pipe when it has begun to take care of Ctrl-C: before that, Python itself starts
_BEGUN = """
import os
from tagmatch.cli import interrupt, main

enter = interrupt.interruptible.__enter__

def tell(self):
    enter(self)
    os.write({descriptor}, b".")

interrupt.interruptible.__enter__ = tell
main()
"""


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


def started(*arguments: object, environment: dict[str, str] | None = None, **options: Any) -> subprocess.Popen[bytes]:
    """The command, which runs on; standard error is a pipe, unless `options` of `Popen` say otherwise."""
    options = {"stderr": subprocess.PIPE, **options}
    return subprocess.Popen([COMMAND, *map(str, arguments)], env=os.environ | (environment or {}), **options)


def begun(*arguments: object) -> subprocess.Popen[str]:
    """The command, from its first act on."""
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", _BEGUN.format(descriptor=writer), *map(str, arguments)],
        pass_fds=[writer],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writer)
    assert os.read(reader, 1) == b"."
    os.close(reader)
    return process


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
