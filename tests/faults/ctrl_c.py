"""Ctrl-C at any moment of the command: it ends as interrupted, or it has done all that it was to do.

`python -m faults.ctrl_c --rounds 90 --seed 7`, in `tests`, prints what was tried and what went wrong.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from faults.command_files import make_files
from faults.rounds import Attempt, Report, in_turn, main_of
from support.command import INTERRUPTED, begun, tagmatch_alone
from support.index_files import contents_as_first, contents_of

_HANGS_S = 120
_ENDINGS = {0: "finished", 130: "interrupted"}
_MANIFEST = "MANIFEST.json"


class Cases:
    """What is tried; each returns whether the command has finished or was interrupted, and raises if it was neither."""

    def __init__(self, folder: Path) -> None:
        self.files = make_files(folder)
        self._index = contents_of(self.files.index)
        self._answers = tagmatch_alone("match", self.files.index, self.files.queries)
        start = time.monotonic()
        self._checked = tagmatch_alone("check", self.files.index)
        # Commands take longer while others run
        self._longest_s = 2 * (time.monotonic() - start)
        self.attempts: list[Attempt] = [
            self.match, self.match_a_stream, self.match_a_stream_that_waits, self.match_to_a_file, self.check,
            self.build, self.build_from_a_stream, self.build_over_an_index, self.impatience,
        ]  # fmt: skip

    def match(self, _: Path, rng: random.Random) -> str:
        process = begun("match", self.files.index, self.files.queries)
        return self._read_only(*self._at_any_moment(rng, process), self._answers)

    def match_a_stream(self, _: Path, rng: random.Random) -> str:
        process, queries = begun("match", self.files.index, "-"), self.files.queries.read_text()
        return self._read_only(*self._at_any_moment(rng, process, queries), self._answers)

    def match_a_stream_that_waits(self, _: Path, rng: random.Random) -> str:
        """As the stream does not end, the command does not either."""
        process = begun("match", self.files.index, "-")
        assert process.stdin is not None
        process.stdin.writelines(self.files.queries.read_text().splitlines(keepends=True)[:10])
        process.stdin.flush()
        time.sleep(self._longest_s * rng.random())
        process.send_signal(signal.SIGINT)
        code, answers = ended(process)
        assert code == 130, f"exit code {code}"
        return self._read_only(code, answers, self._answers)

    def match_to_a_file(self, folder: Path, rng: random.Random) -> str:
        output = folder / "answers.jsonl"
        process = begun("match", self.files.index, self.files.queries, "-o", output)
        code, said = self._while_it_writes(rng, process, folder)
        found = {file.name: file.read_text() for file in folder.iterdir()}
        whole = {output.name: self._answers}
        assert found in ([whole] if code == 0 else [whole, {}]), f"left behind: {list(found)}"
        return self._read_only(code, said, "")

    def check(self, _: Path, rng: random.Random) -> str:
        return self._read_only(*self._at_any_moment(rng, begun("check", self.files.index)), self._checked)

    def build(self, folder: Path, rng: random.Random) -> str:
        path = folder / "index"
        code, _ = self._while_it_writes(rng, begun("build", self.files.sets, path), folder)
        return self._built(path, {}, code)

    def build_from_a_stream(self, folder: Path, rng: random.Random) -> str:
        path = folder / "index"
        code, _ = self._at_any_moment(rng, begun("build", "-", path), self.files.sets.read_text())
        return self._built(path, {}, code)

    def build_over_an_index(self, folder: Path, rng: random.Random) -> str:
        path = folder / "index"
        shutil.copytree(self.files.index, path)
        code, _ = self._while_it_writes(rng, begun("build", self.files.sets, path, "--overwrite"), path)
        return self._built(path, self._index, code)

    def impatience(self, folder: Path, rng: random.Random) -> str:
        """Ctrl-C twice ends a build at once, so that it may leave files; the next one removes them."""
        path = folder / "index"
        shutil.copytree(self.files.index, path)
        process = begun("build", self.files.sets, path, "--overwrite")
        wait_for_files(process, path)
        time.sleep(0.03 * rng.random())
        process.send_signal(signal.SIGINT)
        time.sleep(0.01 * rng.random())
        process.send_signal(signal.SIGINT)
        code, _ = ended(process)
        return self._built(path, self._index, code, may_leave="unfinished-")

    # -- inside ------------------------------------------------------------------------------------------------------

    def _at_any_moment(
        self, rng: random.Random, process: subprocess.Popen[str], stdin: str | None = None
    ) -> tuple[int, str]:
        try:
            process.communicate(stdin, timeout=self._longest_s * rng.random())
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
        return ended(process)

    def _while_it_writes(self, rng: random.Random, process: subprocess.Popen[str], folder: Path) -> tuple[int, str]:
        """Interrupt the command at any moment, or soon after the first change in a folder."""
        if rng.random() < 0.3:
            return self._at_any_moment(rng, process)
        wait_for_files(process, folder)
        time.sleep(0.05 * rng.random() ** 2)
        process.send_signal(signal.SIGINT)
        return ended(process)

    def _read_only(self, code: int, output: str, expected: str) -> str:
        assert output == expected if code == 0 else expected.startswith(output), "not the output that it should be"
        assert contents_of(self.files.index) == self._index, "the index has changed"
        return _ENDINGS[code]

    def _built(self, path: Path, old: dict[str, bytes], code: int, *, may_leave: str = "segment-") -> str:
        """See that the index is as it was, or as it should be; the next build removes what this one has left."""
        found, new = contents_as_first(path), self.files.built
        if code == 0:
            assert found == new, "not the index that was to be built"
        kept = new if found.get(_MANIFEST) == new[_MANIFEST] else old
        assert found.get(_MANIFEST) == kept.get(_MANIFEST), "the manifest is neither the old one nor the new one"
        assert found.items() >= kept.items(), "the index is not whole"
        left = {name for name in found.keys() - kept.keys() if not name.startswith(("segment-", may_leave))}
        assert not left, f"left behind: {left}"
        if kept:
            tagmatch_alone("check", path)
        if found != kept:
            tagmatch_alone("build", self.files.sets, path, "--overwrite")
            assert contents_as_first(path) == new, "the next build has not removed what this one has left"
        return _ENDINGS[code]


def wait_for_files(process: subprocess.Popen[str], folder: Path) -> None:
    """Wait until there is a file more or less in the folder, or the command ends."""
    before = sorted(folder.iterdir())
    deadline = time.monotonic() + _HANGS_S
    while process.poll() is None and sorted(folder.iterdir()) == before and time.monotonic() < deadline:
        time.sleep(0.0005)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for the command to end; returns its exit code and standard output."""
    try:
        output, said = process.communicate(timeout=_HANGS_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise AssertionError("the command hangs") from None
    assert said == {0: "", 130: INTERRUPTED}.get(process.returncode), f"exit code {process.returncode}: {said}"
    return process.returncode, output


def run(rounds: int, seed: int) -> Report:
    """Interrupt every command in turn; returns what there was, and what went wrong."""
    # Where this runs in the background, Ctrl-C is ignored, and would be by the commands
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as folder:
        return in_turn(Cases(Path(folder)).attempts, rounds, seed)


def main() -> None:
    main_of("Press Ctrl-C while commands run.", run, 90)


if __name__ == "__main__":
    main()
