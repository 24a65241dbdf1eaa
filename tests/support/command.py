"""The command `tagmatch` as a process of its own, and files for it."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from support.forked import run_forked
from typer.testing import CliRunner

from tagmatch.cli.app import app

COMMAND = Path(sys.executable).parent / "tagmatch"

#: All that the command says after Ctrl-C
INTERRUPTED = "tagmatch: interrupted\n"
#: And after SIGTERM
TERMINATED = "tagmatch: terminated\n"

Record = dict[str, Any]

# The command, but it writes to a pipe when it has begun to take care of Ctrl-C: before that, Python itself starts
_BEGUN = """
import os
from tagmatch.cli import imports, main

class Telling(imports.NotNeeded):
    def __init__(self):
        super().__init__()
        os.write({descriptor}, b".")

imports.NotNeeded = Telling
main()
"""


def tagmatch(*arguments: object, stdin: bytes | Path = b"", code: int = 0) -> str:
    """Run the command; returns its standard output, or the one line of standard error if it is to fail."""
    return _as_expected(code, ended(*arguments, stdin=stdin))


def ended(*arguments: object, stdin: bytes | Path = b"") -> subprocess.CompletedProcess[str]:
    """Run the command, which may end in any way and say anything."""
    return run_forked(list(map(str, arguments)), stdin)


def tagmatch_alone(*arguments: object, code: int = 0) -> str:
    """As `tagmatch`, but in a process that this one starts: for a process that was forked itself."""
    done = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    return _as_expected(code, done)


def _as_expected(code: int, done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    if code == 0:
        assert done.stderr == ""
        return done.stdout
    if code == 1:
        assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr


def done(*arguments: object) -> str:
    """What the command prints that runs, without an error, in this process, to save time."""
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def started(*arguments: object, environment: dict[str, str] | None = None, **options: Any) -> subprocess.Popen[bytes]:
    """The command, which runs on; standard error is a pipe, unless `options` of `Popen` say otherwise."""
    options = {"stderr": subprocess.PIPE, **options}
    return subprocess.Popen([COMMAND, *map(str, arguments)], env=os.environ | (environment or {}), **options)


def begun(*arguments: object, before: Sequence[str] = ()) -> subprocess.Popen[str]:
    """The command, from its first act on; `before` is what it is an argument of."""
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [*before, sys.executable, "-c", _BEGUN.format(descriptor=writer), *map(str, arguments)],
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


def as_csv(records: list[Record]) -> bytes:
    names = list(records[0])
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(names)
    for record in records:
        tags = "|".join(record["tags"]) or "[]"
        rows.writerow([tags if name == "tags" else record.get(name, "") for name in names])
    return text.getvalue().encode()


def as_parquet(records: list[Record]) -> bytes:
    sink = io.BytesIO()
    key = pa.string() if isinstance(records[0].get("key"), str) else pa.uint64()
    kind = pa.schema({"tags": pa.list_(pa.string()), "key": key}) if "key" in records[0] else None
    pq.write_table(pa.Table.from_pylist(records, kind), sink)
    return sink.getvalue()


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


FORMATS = {
    "jsonl": as_json_lines,
    "jsonl.gz": lambda records: gzip.compress(as_json_lines(records)),
    "jsonl.zst": lambda records: zstd(as_json_lines(records)),
    "csv": as_csv,
    "csv.gz": lambda records: gzip.compress(as_csv(records)),
    "csv.zst": lambda records: zstd(as_csv(records)),
    "parquet": as_parquet,
}


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
