"""Output to disks that are full and pipes that are closed or take no more: it is whole, or there is an error.

`python -m faults.full_disks --rounds 120 --seed 7`, in `tests`, prints what was tried and what went wrong.
"""

from __future__ import annotations

import fcntl
import os
import random
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from faults.command_files import make_files
from faults.disk import small_files
from faults.rounds import Attempt, Report, in_turn, main_of
from support.command import COMMAND, started, tagmatch_alone
from support.index_files import contents_as_first, contents_of

from tagmatch import TagMatch

_HANGS_S = 120
_FULL = Path("/dev/full")
WHOLE, ERROR = "whole", "an error"
_FORMATS = ("jsonl", "jsonl.gz", "parquet")

# Give a command a small disk of its own, which is gone with it, and what is on it in the end to a folder
_ON_A_SMALL_DISK = """
mount -t tmpfs -o size="$1" tmpfs "$2" || exit 99
disk="$2" copy="$3" output="$4"
shift 4
"$@" > "$output"
code=$?
cp -r "$disk/." "$copy" || exit 98
exit $code
"""
_UNSHARED = ("unshare", "--map-root-user", "--mount", "sh", "-c", _ON_A_SMALL_DISK, "sh")


def may_mount() -> bool:
    """Return whether this machine lets a small disk be mounted."""
    with tempfile.TemporaryDirectory() as disk, tempfile.TemporaryDirectory() as copy:
        command = [*_UNSHARED, "64k", disk, copy, "/dev/null", "true"]
        return shutil.which("unshare") is not None and not subprocess.run(command, capture_output=True).returncode


class Cases:
    """What is tried; each returns whether the output is whole or there was an error, and raises if it was neither."""

    def __init__(self, folder: Path) -> None:
        self.files = make_files(folder)
        self._answers: dict[str, bytes] = {}
        for form in _FORMATS:
            answers = folder / f"answers.{form}"
            tagmatch_alone("match", self.files.index, self.files.queries, "-o", answers)
            self._answers[form] = answers.read_bytes()
        self.attempts: list[Attempt] = [
            self.full_device, self.full_device_for_messages_too, self.stream_to_a_limited_file, self.limited_file,
            self.limited_copy_of_a_stream, self.closed_pipe, self.pipe_that_does_not_block, self.limited_index,
        ]  # fmt: skip
        if may_mount():
            self.attempts += [
                self.stream_to_a_small_disk, self.file_on_a_small_disk, self.index_on_a_small_disk,
                self.changes_on_a_disk_that_becomes_full,
            ]  # fmt: skip

    # -- streams -----------------------------------------------------------------------------------------------------

    def full_device(self, _: Path, rng: random.Random) -> str:
        match = ["match", self.files.index, self.files.queries, "--output-format", rng.choice(_FORMATS)]
        others = [["check", self.files.index], ["info", self.files.index], ["--help"]]
        arguments = rng.choice([match, [*match, "-o", _FULL], *others])
        with _FULL.open("wb") as full:
            code, said, _output = ended(begin(rng, *arguments, stdout=full))
        return outcome(code, said, b"", b"all that", expect=False)

    def full_device_for_messages_too(self, _: Path, rng: random.Random) -> str:
        arguments = rng.choice([["match", self.files.index, self.files.queries], ["check", self.files.index]])
        with _FULL.open("wb") as full:
            code, _said, _output = ended(begin(rng, *arguments, stdout=full, stderr=full))
        assert code == 1, f"exit code {code}"
        return ERROR

    def stream_to_a_limited_file(self, folder: Path, rng: random.Random) -> str:
        form, expected, limit = self._any_answers(rng)
        output = folder / "answers"
        with output.open("wb") as file, small_files(limit):
            process = begin(rng, *self._match(form), stdout=file)
        code, said, _ = ended(process)
        return outcome(code, said, output.read_bytes(), expected, expect=limit >= len(expected))

    def closed_pipe(self, _: Path, rng: random.Random) -> str:
        """Some of the bytes are read; as many as the pipe holds may have been written beyond them."""
        form, expected, wanted = self._any_answers(rng)
        reader, writer = os.pipe()
        holds = fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        process = begin(rng, *self._match(form), stdout=writer)
        os.close(writer)
        output = b"".join(parts_of(reader, wanted, rng))
        os.close(reader)
        code, said, _ = ended(process)
        assert said == "", said
        assert expected.startswith(output), "other bytes than those of the answers"
        if code == 0:
            assert len(expected) <= len(output) + holds, f"exit code 0 after {len(output)} of {len(expected)} bytes"
            return WHOLE
        assert code == 1, f"exit code {code}"
        assert len(output) < len(expected), "an error after all bytes"
        return ERROR

    def pipe_that_does_not_block(self, _: Path, rng: random.Random) -> str:
        form, expected, _limit = self._any_answers(rng)
        if rng.random() < 0.3:
            reader, writer = (each.detach() for each in socket.socketpair())
        else:
            reader, writer = os.pipe()
        os.set_blocking(writer, False)
        process = begin(rng, *self._match(form), stdout=writer)
        os.close(writer)
        output = b"".join(parts_of(reader, 2 * len(expected), rng))
        os.close(reader)
        code, said, _ = ended(process)
        return outcome(code, said, output, expected, expect=True)

    def limited_copy_of_a_stream(self, _: Path, rng: random.Random) -> str:
        """Parquet that comes through a pipe is copied to a file first."""
        queries = self.files.parquet_queries.read_bytes()
        limit = limit_near(len(queries), rng)
        with small_files(limit):
            arguments = ["match", self.files.index, "-", "--format", "parquet"]
            process = begin(rng, *arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        code, said, output = ended(process, queries)
        return outcome(code, said, output, self._answers["jsonl"], expect=limit >= len(queries))

    # -- files -------------------------------------------------------------------------------------------------------

    def limited_file(self, folder: Path, rng: random.Random) -> str:
        form, expected, limit = self._any_answers(rng)
        output = folder / f"answers.{form}"
        old = rng.choice([None, b"old"])
        if old is not None:
            output.write_bytes(old)
        with small_files(limit):
            process = begin(rng, *self._match(form), "-o", output)
        code, said, _ = ended(process)
        return outcome_of_file(code, said, output, expected, old, expect=limit >= len(expected))

    def limited_index(self, folder: Path, rng: random.Random) -> str:
        limit, path, old = limit_near(max(map(len, self.files.built.values())), rng), folder / "index", None
        if rng.random() < 0.5:
            shutil.copytree(self.files.index, path)
            old = contents_of(path)
        with small_files(limit):
            process = begin(rng, "build", self.files.sets, path, "--overwrite")
        code, said, _ = ended(process)
        enough = limit >= max(map(len, self.files.built.values()))
        return self._outcome_of_index(code, said, path, old, expect=enough)

    # -- small disks -------------------------------------------------------------------------------------------------

    def stream_to_a_small_disk(self, folder: Path, rng: random.Random) -> str:
        form, expected, limit = self._any_answers(rng)
        code, said, copy = on_a_small_disk(folder, limit, "answers", *self._match(form))
        return outcome(code, said, (copy / "answers").read_bytes(), expected)

    def file_on_a_small_disk(self, folder: Path, rng: random.Random) -> str:
        form, expected, limit = self._any_answers(rng)
        name = f"answers.{form}"
        code, said, copy = on_a_small_disk(folder, limit, None, *self._match(form), "-o", folder / "disk" / name)
        return outcome_of_file(code, said, copy / name, expected, None)

    def index_on_a_small_disk(self, folder: Path, rng: random.Random) -> str:
        limit = limit_near(sum(map(len, self.files.built.values())), rng)
        code, said, copy = on_a_small_disk(folder, limit, None, "build", self.files.sets, folder / "disk" / "index")
        return self._outcome_of_index(code, said, copy / "index", None)

    def changes_on_a_disk_that_becomes_full(self, folder: Path, rng: random.Random) -> str:
        """As `small_disk` says; here only whether any call has failed."""
        python = [sys.executable, "-m", "faults.small_disk", folder / "disk", rng.random()]
        code, said, copy = on_a_small_disk(folder, 4 << 20, "failed", command=python)
        assert code == 0, said
        return ERROR if int((copy / "failed").read_text()) else WHOLE

    # -- inside ------------------------------------------------------------------------------------------------------

    def _any_answers(self, rng: random.Random) -> tuple[str, bytes, int]:
        """Return a format, the answers in it, and a number of bytes that may or may not do for them."""
        form = rng.choice(_FORMATS)
        return form, self._answers[form], limit_near(len(self._answers[form]), rng)

    def _match(self, form: str) -> list[object]:
        return ["match", self.files.index, self.files.queries, "--output-format", form]

    def _outcome_of_index(
        self, code: int, said: str, path: Path, old: dict[str, bytes] | None, *, expect: bool | None = None
    ) -> str:
        """As `outcome`; after an error, the index is as it was, or was not."""
        found = contents_of(path) if path.exists() else None
        ending = outcome(code, said, b"", b"", expect=expect)
        if ending == ERROR:
            assert found == old, f"an error has left {list(found or ())}"
            return ending
        assert contents_as_first(path) == self.files.built, "not the index that was to be built"
        with TagMatch.open(path, threads=1, device="cpu") as tm:
            tm.check()
        return ending


def limit_near(size: int, rng: random.Random) -> int:
    """Return a number of bytes: more than `size`, nearly as many, or any number below."""
    return rng.choice([size, size - 1, size + rng.randrange(size), rng.randrange(size), int(size ** rng.random())])


def begin(rng: random.Random, *arguments: object, **options: Any) -> subprocess.Popen[bytes]:
    """Start the command, with or without buffers in Python."""
    return started(*arguments, environment=rng.choice([{}, {"PYTHONUNBUFFERED": "1"}]), **options)


def ended(process: subprocess.Popen[bytes], stdin: bytes | None = None) -> tuple[int, str, bytes]:
    """Wait for the command to end; returns its exit code, standard error and standard output."""
    try:
        output, said = process.communicate(stdin, timeout=_HANGS_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise AssertionError("the command hangs") from None
    return process.returncode, (said or b"").decode(), output or b""


def parts_of(reader: int, size: int, rng: random.Random) -> Iterator[bytes]:
    """Read so many bytes, or until there are no more, a few or many at once, sometimes slowly."""
    most = rng.choice([5_000, 100_000])
    while size:
        if rng.random() < 0.1:
            time.sleep(0.01 * rng.random())
        ready, _, _ = select.select([reader], [], [], _HANGS_S)
        assert ready, "the command hangs"
        part = os.read(reader, min(size, rng.randrange(1, most)))
        if not part:
            return
        yield part
        size -= len(part)


def on_a_small_disk(
    folder: Path, size: int, output: str | None, *arguments: object, command: Sequence[object] = (COMMAND,)
) -> tuple[int, str, Path]:
    """Run a command with a disk of `size` bytes at `folder / "disk"`, where its standard output may go to a file.

    Returns its exit code, standard error, and a folder with what is on the disk in the end.
    """
    disk, copy = folder / "disk", folder / "copy"
    disk.mkdir()
    copy.mkdir()
    stdout = disk / output if output else Path("/dev/null")
    unshared = [*_UNSHARED, size // 4096 * 4096 or 4096, disk, copy, stdout, *command, *arguments]
    done = subprocess.run([*map(str, unshared)], stderr=subprocess.PIPE, timeout=_HANGS_S)
    return done.returncode, done.stderr.decode(), copy


def outcome(code: int, said: str, output: bytes, expected: bytes, *, expect: bool | None = None) -> str:
    """Return what the command says of its output; raises if that is wrong, or its error is none.

    `expect` is whether there was room for all of it, where that is known.
    """
    assert code in (0, 1), f"exit code {code}: {said}"
    if code == 0:
        assert output == expected, f"exit code 0 with {len(output)} of {len(expected)} bytes"
        assert said == "", said
    else:
        assert said.startswith("tagmatch: "), said
        assert said.count("\n") == 1, f"not one line: {said}"
        assert expected.startswith(output), "other bytes than those of the output"
    assert expect in (None, code == 0), f"exit code {code}, though there was {'' if expect else 'no '}room: {said}"
    return ERROR if code else WHOLE


def outcome_of_file(
    code: int, said: str, file: Path, expected: bytes, old: bytes | None, *, expect: bool | None = None
) -> str:
    """As `outcome`; a file is whole, or is as it was, or was not."""
    found = file.read_bytes() if file.exists() else None
    others = [entry.name for entry in file.parent.iterdir() if entry != file]
    assert not others, f"left behind: {others}"
    ending = outcome(code, said, b"", b"", expect=expect)
    assert found == (expected if ending == WHOLE else old), f"{ending}, and {found and len(found)} bytes in the file"
    return ending


def run(rounds: int, seed: int) -> Report:
    """Try every kind in turn; returns what there was, and what went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        return in_turn(Cases(Path(folder)).attempts, rounds, seed)


def main() -> None:
    main_of("Write to full disks and closed pipes.", run, 120)


if __name__ == "__main__":
    main()
