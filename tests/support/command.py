"""The command `tagmatch` as a process, and files for it."""

import contextlib
import csv
import io
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.forked import run_forked
from typer.testing import CliRunner

from tagmatch.cli.app import app
from tagmatch.cli.shared import run
from tagmatch.files.columns import constraint_lists

COMMAND = Path(sys.executable).parent / "tagmatch"

#: All that the command says after Ctrl-C
INTERRUPTED = "tagmatch: interrupted\n"
#: And after SIGTERM
TERMINATED = "tagmatch: terminated\n"

Record = dict[str, Any]

# The command, but it writes to a pipe when it has begun to take care of Ctrl-C: before that, Python itself starts
_BEGUN = """
import os
from tagmatch import cli

class Telling(cli.NotNeeded):
    def __init__(self):
        super().__init__()
        os.write({descriptor}, b".")

cli.NotNeeded = Telling
cli.main()
"""


def tagmatch(*arguments: object, stdin: bytes | Path = b"", code: int = 0) -> str:
    """Run the command; returns its standard output, or the one line of standard error if it is to fail."""
    return _as_expected(code, ended(*arguments, stdin=stdin))


def ended(*arguments: object, stdin: bytes | Path = b"") -> subprocess.CompletedProcess[str]:
    """Run the command, which may end in any way and say anything."""
    return run_forked(list(map(str, arguments)), stdin)


def tagmatch_alone(*arguments: object, code: int = 0) -> str:
    """As `tagmatch`, but in a process that this one starts: for a process that was forked itself."""
    done = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=600)
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
    with tempfile.TemporaryFile() as printed:
        kept = os.dup(1)
        os.dup2(printed.fileno(), 1)  # rows are written there, for any `sys.stdout`
        try:
            result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
        finally:
            os.dup2(kept, 1)
            os.close(kept)
        printed.seek(0)
        rows = printed.read().decode()
    assert result.exit_code == 0, result.output
    return result.stdout + rows


def refused(*arguments: object) -> str:
    """The line of standard error with which the command fails, which may have waited; in this process, to save time."""
    stderr = io.StringIO()
    command = patch("sys.argv", ["tagmatch", *map(str, arguments)])
    with command, contextlib.redirect_stderr(stderr), pytest.raises(SystemExit) as caught:
        run(app)
    assert caught.value.code == 1
    (line,) = (each for each in stderr.getvalue().splitlines(keepends=True) if "compiling kernels" not in each)
    return line


def started(
    *arguments: object, before: Sequence[str] = (), environment: dict[str, str] | None = None, **options: Any
) -> subprocess.Popen[bytes]:
    """The command, which runs on; standard error is a pipe, unless `options` of `Popen` say otherwise."""
    options = {"stderr": subprocess.PIPE, **options}
    return subprocess.Popen([*before, COMMAND, *map(str, arguments)], env=os.environ | (environment or {}), **options)


def first(code: str) -> list[str]:
    """The beginning of a command line: a new process does this, and then becomes the program that follows.

    Not `preexec_fn`: threads of servers that the tests run in this process must not be forked, and gRPC complains then
    on standard error.
    """
    return [sys.executable, "-ISc", f"import os, resource, signal, sys\n{code}\nos.execv(sys.argv[1], sys.argv[1:])"]


def growing_at_most(size: int) -> list[str]:
    """As `first`: files that the program writes get no larger, as on a disk that is full (bytes)."""
    return first(f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))")


def closing(descriptor: int) -> list[str]:
    """As `first`: the program has no such standard stream."""
    return first(f"os.close({descriptor})")


def begun(*arguments: object, before: Sequence[str] = ()) -> subprocess.Popen[str]:
    """The command, from its first act on; `before` is what it is an argument of."""
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [*before, sys.executable, "-c", _BEGUN.format(descriptor=writer), *map(str, arguments)],
        pass_fds=[writer], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(writer)
    assert os.read(reader, 1) == b"."
    os.close(reader)
    return process


def as_json_lines(records: list[Record]) -> bytes:
    return b"".join(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records)


def as_csv(records: list[Record]) -> bytes:
    """Cells as a program writes them that knows no types; lists and objects are JSON, and plain tags have bars."""
    text, names = io.StringIO(), _names(records)
    rows = csv.writer(text, lineterminator="\n")
    rows.writerows([names, *([_cell(name, record.get(name)) for name in names] for record in records)])
    return text.getvalue().encode()


def _names(records: list[Record]) -> list[str]:
    return list(dict.fromkeys(name for record in records for name in record))


def _cell(name: str, value: Any) -> Any:
    if name == "tags" and value is not None:
        return "|".join(value) or "[]"
    if isinstance(value, list | dict):
        return json.dumps(value)
    return "" if value is None else "1e999" if value == math.inf else value


def as_table(records: list[Record]) -> pa.Table:
    key = pa.string() if isinstance(records[0].get("key"), str) else pa.uint64()
    kinds = {"tags": pa.list_(pa.string()), "key": key, "where": pa.string()}
    columns = {name: [record.get(name) for record in records] for name in _names(records)}
    return pa.table({
        name: constraint_lists(values) if name == "constraints" else pa.array(values, kinds.get(name))
        for name, values in columns.items()
    })  # fmt: skip


def as_parquet(records: list[Record]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(as_table(records), sink)
    return sink.getvalue()


def compressed(data: bytes, codec: str | None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) if codec else sink as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


FORMATS: dict[str, Any] = {
    **{
        name + suffix: lambda records, form=form, codec=codec: compressed(form(records), codec)
        for name, form in {"jsonl": as_json_lines, "csv": as_csv}.items()
        for suffix, codec in {"": None, ".gz": "gzip", ".zst": "zstd"}.items()
    },
    "parquet": as_parquet,
}


def write(path: Path, records: list[Record], schema: pa.Schema | None = None) -> Path:
    """A file of these records, in the format of its suffix; what a record does not have is null, or an empty cell."""
    if path.suffix == ".parquet":
        table = as_table(records) if schema is None else pa.Table.from_pylist(records, schema)
        pq.write_table(table, path, row_group_size=300)
    else:
        path.write_bytes(FORMATS[path.name.partition(".")[2]](records))
    return path


def read(path: Path) -> list[Record]:
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    return from_json_lines(path.read_text())


def from_json_lines(text: str) -> list[Record]:
    return [json.loads(line) for line in text.splitlines()]


def answers(text: str) -> list[list[Any]]:
    """The keys of each answer, sorted."""
    return [sorted(row["keys"]) for row in from_json_lines(text)]


def exported(index: Path) -> list[Record]:
    return sorted(from_json_lines(done("export", index)), key=lambda row: row["key"])
