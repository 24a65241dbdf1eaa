"""Commands that write to a full disk, or are interrupted while they write: their output is whole, or as it was before.

What they write to pipes and devices, and Ctrl-C before they write, is in `tests/cli`.
"""

import itertools
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from faults.driver import Case, Length, Program
from faults.failing import small_files
from support.command import COMMAND, INTERRUPTED, as_json_lines, begun, done, started, tagmatch_alone
from support.index_files import MANIFEST, contents_as_first, contents_of

from tagmatch import TagMatch

_HANGS_S = 120
WHOLE, ERROR, STOPPED = "whole", "an error", "interrupted"
_TARGETS = ("stream", "file", "index")
_FORMATS = ("jsonl", "jsonl.gz", "parquet")
_QUERIES = 2_000
#: Commands end sooner
_LONGEST_S = 4

# Give a command its own small disk, which goes with it, and copy its contents at the end to a folder
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
    with tempfile.TemporaryDirectory() as disk, tempfile.TemporaryDirectory() as copy:
        command = [*_UNSHARED, "64k", disk, copy, "/dev/null", "true"]
        return shutil.which("unshare") is not None and not subprocess.run(command, capture_output=True).returncode


class Commands:
    """An index, queries that have 3 MB of answers, and sets; and the commands tried with these."""

    def __init__(self, folder: Path) -> None:
        self.index, self.queries, self.sets = folder / "index", folder / "queries.jsonl", folder / "sets.jsonl"
        with TagMatch(self.index, durability="none") as tm:
            # Of half of all queries the price is less
            where = [None, "price < 10 or exists(sale)"] * 100
            tm.add_sets([["many"]] * 200, range(1_000_000, 1_000_200), where=where)
            tm.consolidate()
        self._old = contents_of(self.index)
        queries = [{"tags": ["many", f"n{n % 7}"], "attributes": {"price": float(n % 20)}} for n in range(_QUERIES)]
        self.queries.write_bytes(as_json_lines(queries))
        sets: list[dict[str, Any]] = [{"tags": ["a", f"b{key}"], "key": key} for key in range(10_000)]
        with_conditions = [each | {"where": f"price < {each['key'] % 50}"} for each in sets[:1_000]]
        self.sets.write_bytes(as_json_lines(with_conditions) + as_json_lines(sets[1_000:]))
        done("build", self.sets, folder / "built")
        self._built = contents_of(folder / "built")
        self._answers = {}
        for form in _FORMATS:
            done("match", self.index, self.queries, "-o", folder / f"answers.{form}")
            self._answers[form] = (folder / f"answers.{form}").read_bytes()

    def attempts(self) -> dict[str, Attempt]:
        ways = [("file", False), ("index", False), *([(each, True) for each in _TARGETS] if may_mount() else [])]
        full = {
            f"{each}, {'a small disk' if disk else 'limited'}": partial(self.full, each, disk) for each, disk in ways
        }
        return full | {each.__name__: each for each in (self.match, self.build, self.rebuild)}

    def full(self, target: str, on_disk: bool, folder: Path, rng: random.Random) -> str:
        """Write to a file that may not grow so large, or to a small disk: a file, standard output or an index."""
        form, place = rng.choice(_FORMATS), folder / ("disk" if on_disk else "own")
        place.mkdir()
        is_index, add = target == "index", sum if on_disk else max
        most = add(map(len, self._built.values())) if is_index else len(self._answers[form])
        limit, output, old = limit_near(most, rng), place / ("index" if is_index else f"answers.{form}"), None
        if is_index:
            command = ["build", self.sets, output, "--overwrite"]
        else:
            command = [*self._match(form), *(["-o", output] if target == "file" else [])]
        if not on_disk and rng.random() < 0.5:
            old = self._old if is_index else {output.name: b"old"}
            for name, contents in old.items():
                file = output / name if is_index else output
                file.parent.mkdir(exist_ok=True, parents=True)
                file.write_bytes(contents)
        if on_disk:
            ending, place = on_a_small_disk(folder, limit, output if target == "stream" else None, *command)
            output = place / output.name
        else:
            with small_files(limit):
                process = started(*command)
            said = process.communicate(timeout=_HANGS_S)[1].decode()
            ending = outcome(process.returncode, said, expect=limit >= most)
        if target == "stream":
            written, expected = output.read_bytes(), self._answers[form]
            assert written == expected if ending == WHOLE else expected.startswith(written), "not the answers"
        elif ending == WHOLE:
            found = contents_as_first(output) if is_index else contents_of(place)
            assert found == (self._built if is_index else {output.name: self._answers[form]}), "not the expected output"
        else:
            found = contents_of(output if is_index else place) if output.exists() else None
            assert found == old, f"an error has left {list(found or ())}"
        return ending

    # -- Ctrl-C ------------------------------------------------------------------------------------------------------

    def match(self, folder: Path, rng: random.Random) -> str:
        output = folder / "answers.jsonl"
        ending = interrupted(begun(*self._match("jsonl"), "-o", output), folder, rng)
        found = {file.name: file.read_bytes() for file in folder.iterdir()}
        whole = {output.name: self._answers["jsonl"]}
        assert found in ([whole] if ending == WHOLE else [whole, {}]), f"left behind: {list(found)}"
        assert contents_of(self.index) == self._old, "the index has changed"
        return ending

    def build(self, folder: Path, rng: random.Random) -> str:
        """From a file, or from a stream."""
        path, stdin = folder / "index", rng.choice([None, self.sets.read_text()])
        process = begun("build", "-" if stdin else self.sets, path)
        return self._interrupted_index(path, {}, interrupted(process, None if stdin else folder, rng, stdin))

    def rebuild(self, folder: Path, rng: random.Random) -> str:
        """Over an index. Ctrl-C twice ends a build at once, so that it may leave files; the next one removes them."""
        path, twice = shutil.copytree(self.index, folder / "index"), rng.random() < 0.5
        ending = interrupted(begun("build", self.sets, path, "--overwrite"), path, rng, twice=twice)
        return self._interrupted_index(path, self._old, ending, may_leave="unfinished-" if twice else "segment-")

    # -- inside ------------------------------------------------------------------------------------------------------

    def _match(self, form: str) -> list[object]:
        return ["match", self.index, self.queries, "--output-format", form]

    def _interrupted_index(self, path: Path, old: dict[str, bytes], ending: str, *, may_leave: str = "segment-") -> str:
        """See that the index is as it was, or as it should be; the next build removes what this one has left."""
        found, new = contents_as_first(path), self._built
        if ending == WHOLE:
            assert found == new, "not the index that was to be built"
        kept = new if found.get(MANIFEST) == new[MANIFEST] else old
        assert found.get(MANIFEST) == kept.get(MANIFEST), "the manifest is neither the old one nor the new one"
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


def on_a_small_disk(folder: Path, size: int, output: Path | None, *arguments: object) -> tuple[str, Path]:
    """Run the command with a disk of `size` bytes at `folder / "disk"`, where its standard output may go to a file.

    Returns how it ended, and a folder with the contents of the disk at the end.
    """
    copy = folder / "copy"
    copy.mkdir()
    disk = size // 4096 * 4096 or 4096, folder / "disk"
    unshared = [*_UNSHARED, *disk, copy, output or "/dev/null", COMMAND, *arguments]
    ended = subprocess.run([*map(str, unshared)], stderr=subprocess.PIPE, timeout=_HANGS_S)
    return outcome(ended.returncode, ended.stderr.decode()), copy


def interrupted(
    process: Any, folder: Path | None, rng: random.Random, stdin: str | None = None, *, twice: bool = False
) -> str:
    """Interrupt a command at any moment, or soon after the first change in a folder; returns how it ended."""
    if folder is None or (rng.random() < 0.3 and not twice):
        try:
            process.communicate(stdin, timeout=_LONGEST_S * rng.random() ** 2)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
    else:
        before, deadline = sorted(folder.iterdir()), time.monotonic() + _HANGS_S
        while process.poll() is None and sorted(folder.iterdir()) == before and time.monotonic() < deadline:
            time.sleep(0.0005)
        for _ in range(1 + twice):
            time.sleep(0.05 * rng.random() ** 2)
            process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=_HANGS_S)
    assert said == {0: "", 130: INTERRUPTED}.get(process.returncode), f"exit code {process.returncode}: {said}"
    return STOPPED if process.returncode else WHOLE


def _cases(rounds: int, folder: Path, rng: random.Random) -> Iterator[Case]:
    """Make the attempts in any order, one after the other and again from the first on."""
    attempts = list(Commands(folder).attempts().items())
    order = rng.sample(attempts, len(attempts))
    for number, (name, attempt) in zip(range(rounds), itertools.cycle(order), strict=False):
        yield Case(name, str(number), attempt)


PROGRAM = Program(_cases, Length(4, 44), hangs_s=240, in_a_process=1)
