"""Commands that write to a full disk, or are interrupted while they write: their output is whole, or as it was before.

What they write to pipes and devices, and Ctrl-C before they write, is in `tests/cli`.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from faults.disk import small_files
from faults.driver import Case, Length, Program
from support.command import COMMAND, INTERRUPTED, as_json_lines, begun, done, started, tagmatch_alone
from support.index_files import contents_as_first, contents_of

from tagmatch import TagMatch

_HANGS_S = 120
WHOLE, ERROR, STOPPED = "whole", "an error", "interrupted"
_FORMATS = ("jsonl", "jsonl.gz", "parquet")
_MANIFEST = "MANIFEST.json"
_QUERIES = 2_000
#: Commands end sooner
_LONGEST_S = 4

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

#: Tries something in a new folder; returns how it ended, and raises if that is wrong
Attempt = Callable[[Path, random.Random], str]


def may_mount() -> bool:
    """Return whether this machine lets a small disk be mounted."""
    with tempfile.TemporaryDirectory() as disk, tempfile.TemporaryDirectory() as copy:
        command = [*_UNSHARED, "64k", disk, copy, "/dev/null", "true"]
        return shutil.which("unshare") is not None and not subprocess.run(command, capture_output=True).returncode


class Commands:
    """An index, queries that have 3 MB of answers, and sets; and what is tried with these."""

    def __init__(self, folder: Path) -> None:
        self.index, self.queries, self.sets = folder / "index", folder / "queries.jsonl", folder / "sets.jsonl"
        with TagMatch(self.index, durability="none") as tm:
            # Of half of all queries the price is less
            where = [None, "price < 10 or exists(sale)"] * 100
            tm.add_sets([["many"]] * 200, range(1_000_000, 1_000_200), where=where)
            tm.consolidate()
        self._old = contents_of(self.index)
        self.queries.write_bytes(
            as_json_lines(
                [{"tags": ["many", f"n{n % 7}"], "attributes": {"price": float(n % 20)}} for n in range(_QUERIES)]
            )
        )
        sets = [{"tags": ["a", f"b{key}"], "key": key} for key in range(10_000)]
        self.sets.write_bytes(as_json_lines([each | {"where": f"price < {each['key'] % 50}"} for each in sets[:1_000]]))
        with self.sets.open("ab") as more:
            more.write(as_json_lines(sets[1_000:]))
        done("build", self.sets, folder / "built")
        self._built = contents_of(folder / "built")
        self._answers = {}
        for form in _FORMATS:
            done("match", self.index, self.queries, "-o", folder / f"answers.{form}")
            self._answers[form] = (folder / f"answers.{form}").read_bytes()
        self.attempts: list[Attempt] = [
            self.limited_file, self.limited_index, self.match_to_a_file, self.build, self.build_from_a_stream,
            self.build_over_an_index, self.impatience,
        ]  # fmt: skip
        if may_mount():
            self.attempts += [
                self.stream_to_a_small_disk, self.file_on_a_small_disk, self.index_on_a_small_disk,
            ]  # fmt: skip

    # -- disks that are full -----------------------------------------------------------------------------------------

    def limited_file(self, folder: Path, rng: random.Random) -> str:
        form, expected, limit = self._any_answers(rng)
        output, old = folder / f"answers.{form}", rng.choice([None, b"old"])
        if old is not None:
            output.write_bytes(old)
        with small_files(limit):
            process = started(*self._match(form), "-o", output)
        ending = outcome(process.wait(_HANGS_S), _said(process), expect=limit >= len(expected))
        return self._file(ending, output, expected, old)

    def limited_index(self, folder: Path, rng: random.Random) -> str:
        most, path, old = max(map(len, self._built.values())), folder / "index", None
        limit = limit_near(most, rng)
        if rng.random() < 0.5:
            shutil.copytree(self.index, path)
            old = self._old
        with small_files(limit):
            process = started("build", self.sets, path, "--overwrite")
        return self._index(outcome(process.wait(_HANGS_S), _said(process), expect=limit >= most), path, old)

    def stream_to_a_small_disk(self, folder: Path, rng: random.Random) -> str:
        form, expected, limit = self._any_answers(rng)
        ending, copy = on_a_small_disk(folder, limit, "answers", *self._match(form))
        written = (copy / "answers").read_bytes()
        assert written == expected if ending == WHOLE else expected.startswith(written), "not the answers"
        return ending

    def file_on_a_small_disk(self, folder: Path, rng: random.Random) -> str:
        form, expected, limit = self._any_answers(rng)
        name = f"answers.{form}"
        ending, copy = on_a_small_disk(folder, limit, None, *self._match(form), "-o", folder / "disk" / name)
        return self._file(ending, copy / name, expected, None)

    def index_on_a_small_disk(self, folder: Path, rng: random.Random) -> str:
        limit = limit_near(sum(map(len, self._built.values())), rng)
        ending, copy = on_a_small_disk(folder, limit, None, "build", self.sets, folder / "disk" / "index")
        return self._index(ending, copy / "index", None)

    # -- Ctrl-C ------------------------------------------------------------------------------------------------------

    def match_to_a_file(self, folder: Path, rng: random.Random) -> str:
        output = folder / "answers.jsonl"
        ending = interrupted(begun(*self._match("jsonl"), "-o", output), folder, rng)
        found = {file.name: file.read_bytes() for file in folder.iterdir()}
        whole = {output.name: self._answers["jsonl"]}
        assert found in ([whole] if ending == WHOLE else [whole, {}]), f"left behind: {list(found)}"
        assert contents_of(self.index) == self._old, "the index has changed"
        return ending

    def build(self, folder: Path, rng: random.Random) -> str:
        path = folder / "index"
        return self._interrupted_index(path, {}, interrupted(begun("build", self.sets, path), folder, rng))

    def build_from_a_stream(self, folder: Path, rng: random.Random) -> str:
        path = folder / "index"
        ending = interrupted(begun("build", "-", path), None, rng, self.sets.read_text())
        return self._interrupted_index(path, {}, ending)

    def build_over_an_index(self, folder: Path, rng: random.Random) -> str:
        path = shutil.copytree(self.index, folder / "index")
        ending = interrupted(begun("build", self.sets, path, "--overwrite"), path, rng)
        return self._interrupted_index(path, self._old, ending)

    def impatience(self, folder: Path, rng: random.Random) -> str:
        """Ctrl-C twice ends a build at once, so that it may leave files; the next one removes them."""
        path = shutil.copytree(self.index, folder / "index")
        process = begun("build", self.sets, path, "--overwrite")
        _wait_for_files(process, path)
        time.sleep(0.03 * rng.random())
        process.send_signal(signal.SIGINT)
        time.sleep(0.01 * rng.random())
        process.send_signal(signal.SIGINT)
        return self._interrupted_index(path, self._old, _interrupted_ending(process), may_leave="unfinished-")

    # -- inside ------------------------------------------------------------------------------------------------------

    def _any_answers(self, rng: random.Random) -> tuple[str, bytes, int]:
        """Return a format, the answers in it, and a number of bytes that may or may not do for them."""
        form = rng.choice(_FORMATS)
        return form, self._answers[form], limit_near(len(self._answers[form]), rng)

    def _match(self, form: str) -> list[object]:
        return ["match", self.index, self.queries, "--output-format", form]

    def _file(self, ending: str, file: Path, expected: bytes, old: bytes | None) -> str:
        found = file.read_bytes() if file.exists() else None
        others = [entry.name for entry in file.parent.iterdir() if entry != file]
        assert not others, f"left behind: {others}"
        assert found == (expected if ending == WHOLE else old), (
            f"{ending}, and {found and len(found)} bytes in the file"
        )
        return ending

    def _index(self, ending: str, path: Path, old: dict[str, bytes] | None) -> str:
        """See that after an error the index is as it was, or was not."""
        if ending == ERROR:
            found = contents_of(path) if path.exists() else None
            assert found == old, f"an error has left {list(found or ())}"
            return ending
        assert contents_as_first(path) == self._built, "not the index that was to be built"
        return ending

    def _interrupted_index(self, path: Path, old: dict[str, bytes], ending: str, *, may_leave: str = "segment-") -> str:
        """See that the index is as it was, or as it should be; the next build removes what this one has left."""
        found, new = contents_as_first(path), self._built
        if ending == WHOLE:
            assert found == new, "not the index that was to be built"
        kept = new if found.get(_MANIFEST) == new[_MANIFEST] else old
        assert found.get(_MANIFEST) == kept.get(_MANIFEST), "the manifest is neither the old one nor the new one"
        assert found.items() >= kept.items(), "the index is not whole"
        left = {name for name in found.keys() - kept.keys() if not name.startswith(("segment-", may_leave))}
        assert not left, f"left behind: {left}"
        if found != kept:
            tagmatch_alone("build", self.sets, path, "--overwrite")
            assert contents_as_first(path) == new, "the next build has not removed what this one has left"
        return ending


def limit_near(size: int, rng: random.Random) -> int:
    """Return a number of bytes: more than `size`, nearly as many, or any number below."""
    return rng.choice([size, size - 1, size + rng.randrange(size), rng.randrange(size), int(size ** rng.random())])


def _said(process: subprocess.Popen[bytes]) -> str:
    return process.communicate()[1].decode()


def outcome(code: int, said: str, *, expect: bool | None = None) -> str:
    """Return how a command has ended: an error is one line. `expect` is whether there was room, if that is known."""
    assert code in (0, 1), f"exit code {code}: {said}"
    if code:
        assert said.startswith("tagmatch: "), said
        assert said.count("\n") == 1, f"not one line: {said}"
    else:
        assert said == "", said
    assert expect in (None, code == 0), f"exit code {code}, though there was {'' if expect else 'no '}room: {said}"
    return ERROR if code else WHOLE


def on_a_small_disk(folder: Path, size: int, output: str | None, *arguments: object) -> tuple[str, Path]:
    """Run the command with a disk of `size` bytes at `folder / "disk"`, where its standard output may go to a file.

    Returns how it ended, and a folder with what is on the disk in the end.
    """
    disk, copy = folder / "disk", folder / "copy"
    disk.mkdir()
    copy.mkdir()
    stdout = disk / output if output else Path("/dev/null")
    unshared = [*_UNSHARED, size // 4096 * 4096 or 4096, disk, copy, stdout, COMMAND, *arguments]
    ended = subprocess.run([*map(str, unshared)], stderr=subprocess.PIPE, timeout=_HANGS_S)
    return outcome(ended.returncode, ended.stderr.decode()), copy


def interrupted(process: Any, folder: Path | None, rng: random.Random, stdin: str | None = None) -> str:
    """Interrupt a command at any moment, or soon after the first change in a folder; returns how it ended."""
    if folder is None or rng.random() < 0.3:
        try:
            process.communicate(stdin, timeout=_LONGEST_S * rng.random() ** 2)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
    else:
        _wait_for_files(process, folder)
        time.sleep(0.05 * rng.random() ** 2)
        process.send_signal(signal.SIGINT)
    return _interrupted_ending(process)


def _interrupted_ending(process: subprocess.Popen[str]) -> str:
    _, said = process.communicate(timeout=_HANGS_S)
    assert said == {0: "", 130: INTERRUPTED}.get(process.returncode), f"exit code {process.returncode}: {said}"
    return STOPPED if process.returncode else WHOLE


def _wait_for_files(process: subprocess.Popen[str], folder: Path) -> None:
    """Wait until there is a file more or less in the folder, or the command ends."""
    before = sorted(folder.iterdir())
    deadline = time.monotonic() + _HANGS_S
    while process.poll() is None and sorted(folder.iterdir()) == before and time.monotonic() < deadline:
        time.sleep(0.0005)


def _cases(rounds: int, folder: Path, rng: random.Random) -> Iterator[Case]:
    """Make the attempts in any order, one after the other and again from the first on."""
    attempts = Commands(folder).attempts
    order = rng.sample(attempts, len(attempts))
    for number in range(rounds):
        attempt = order[number % len(order)]
        yield Case(attempt.__name__, str(number), attempt)


PROGRAM = Program(_cases, Length(4, 44, 330), hangs_s=240, in_a_process=1)
