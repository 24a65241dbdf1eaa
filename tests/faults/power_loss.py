"""Power that is lost while an index is changed: all that was acknowledged is there, and nothing is there in part.

`python -m faults.power_loss --rounds 100 --seed 7`, in `tests`, prints what was tried and what went wrong. Operations
are recorded; for each point of each, states are made that the disk may be in then, so many of them by chance. Each
must have what it may have, and must be good for another change.
"""

from __future__ import annotations

import functools
import json
import os
import pickle
import random
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from faults.disk_states import Disk
from faults.preloads import compiled, preloading
from faults.recording import State, write_state
from faults.rounds import Report, main_of
from faults.runs import CLIENTS, Contents, Recording, at_number
from faults.sweep import Report as Trials
from faults.sweep import run_isolated

from tagmatch import IndexNotFoundError, StagedChangesWarning, TagMatch, TagMatchError
from tagmatch.model.storage.format import SCRATCH_PREFIX
from tagmatch.model.storage.location import location_of

_HANGS_S = 30
#: Where states are written: nothing is to last there
_IN_MEMORY = "/dev/shm"
_OPTIONS: dict[str, Any] = {"threads": 1, "device": "cpu", "durability": "none"}
_MORE = frozenset(["one more"])


@dataclass(frozen=True)
class Case:
    """A state that a disk may be in.

    Attributes
    ----------
    kind : str
        How much of what was done is there.
    point : int
        After so many records of the trace.
    state : State
    acknowledged, begun : int
        Steps.
    """

    kind: str
    point: int
    state: State
    acknowledged: int
    begun: int


def cases_of(recording: Recording, rounds: int, rng: random.Random) -> list[Case]:
    """States of the disk at each point of a recording, none twice; raises if it cannot be replayed."""
    found: dict[Any, Case] = {}
    disk = Disk(recording.start, recording.root)
    steps = {"acknowledged": 0, "begun": 0}

    def note(kind: str, point: int, state: State) -> None:
        found.setdefault((frozenset(state.items()), *steps.values()), Case(kind, point, state, **steps))

    def note_all(point: int) -> None:
        note("what was synced", point, disk.synced())
        note("what was written", point, disk.written())
        for state in disk.one_more():
            note("one change more than synced", point, state)
        for _ in range(rounds):
            note("a mixture", point, disk.mixed(rng))

    def note_one_less(point: int) -> None:
        for state in disk.one_less():
            note("one change less than written", point, state)

    note_all(0)
    writes = False
    for point, record in enumerate(recording.records, 1):
        if writes and record.kind != "write":
            note_one_less(point - 1)
        writes = record.kind == "write"
        if record.kind == "mark":
            step, number = record.path.split()
            steps[step] = max(steps[step], int(number))
        elif not disk.apply(record):
            continue
        note_all(point)
        if not writes:
            note_one_less(point)
    assert disk.written() == recording.end, "the trace lacks something: it does not end with the files that there are"
    return list(found.values())


def with_positions(tm: TagMatch[Any]) -> dict[frozenset[str], tuple[Any, ...]]:
    """The sets of an index and, under a name that none has, where clients are."""
    positions = tm._engine.clients.positions()
    places = zip(positions.keys.to_pylist(), positions.lon.tolist(), positions.lat.tolist(), strict=True)
    return {**dict(tm), **({CLIENTS: tuple(sorted(places))} if len(positions.keys) else {})}


def contents_of(path: Path, number: int | None = None, *, staged: bool = False) -> Contents:
    """What an index has, or a snapshot of it, which must be sound, with the changes that are staged if these count."""
    try:
        with TagMatch.open(path, snapshot=number, **_OPTIONS) as tm:
            if staged and number is None:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", StagedChangesWarning)  # of a call that never returned
                    tm.consolidate()
            tm.check()
            return with_positions(tm)
    except IndexNotFoundError:
        return None


def check(recording: Recording, case: Case) -> bool:
    """See that a state is as it must be; returns whether it has what was last begun."""
    with tempfile.TemporaryDirectory(dir=_IN_MEMORY if os.path.isdir(_IN_MEMORY) else None) as folder:
        write_state(case.state, Path(folder))
        allowed = recording.contents[case.acknowledged : case.begun + 1]
        try:
            # Earlier snapshots first: to consolidate what is staged makes another
            found = {
                name: contents_of(Path(folder, path), number, staged=recording.staged)
                for name in sorted(allowed[0], key=lambda name: at_number(name)[1] is None)
                for path, number in [at_number(name)]
            }
        except TagMatchError as error:
            raise AssertionError(f"wrong: {error}") from error
        if found not in allowed:
            lost = found in recording.contents[: case.acknowledged]
            raise AssertionError("lost: it has what was there before" if lost else f"wrong: {_described(found)}")
        for name, contents in found.items():
            if at_number(name)[1] is not None:
                continue
            try:
                _go_on(Path(folder, name), contents, recording.key_type)
            except TagMatchError as error:
                raise AssertionError(f"wrong: cannot be changed: {error}") from error
        return found == allowed[-1]


def _described(found: dict[str, Contents]) -> str:
    sizes = {name: "no index" if sets is None else f"{len(sets)} sets" for name, sets in found.items()}
    return f"neither what was there nor what was saved: {sizes}"


def _go_on(path: Path, contents: Contents, key_type: Any) -> None:
    """Change an index once more, which leaves no file that it does not name."""
    key: Any = 7 if key_type == "integer" else "7"
    with TagMatch(path, key_type=key_type, **_OPTIONS) as tm:
        tm.add_set(_MORE, key)
        tm.consolidate()
    if any(path.glob(f"{SCRATCH_PREFIX}*")):
        with location_of(str(path), "path").scratch():
            pass  # What a job has left goes with the next one
    found = contents_of(path)
    if contents is None and found is not None:  # clients may be somewhere before there is an index
        found.pop(CLIENTS, None)
    assert found == {**(contents or {}), _MORE: (key,)}, (
        f"wrong: after another change: {_described({path.name: found})}"
    )
    manifest = (path / "MANIFEST.json").read_text()
    # Those of earlier snapshots, which it names, name files, too
    for kept in json.loads(manifest).get("kept", ()):
        manifest += (path / kept["name"]).read_text()
    names = {part for entry in path.rglob("*") for part in entry.relative_to(path).parts} - {
        "LOCK",
        "WRITER",
        "MANIFEST.json",
        "POSITIONS.arrow",
    }
    left = [name for name in names if f'"{name}"' not in manifest]
    assert not left, f"wrong: left behind: {left}"


def recordings(*operations: str) -> Iterator[Recording]:
    """Have these operations recorded, or all."""
    with tempfile.TemporaryDirectory() as folder:
        library = compiled("recorder.c", Path(folder))
        done = Path(folder, "recordings")
        done.mkdir()
        command = [sys.executable, "-m", "faults.saves", str(done), *operations]
        run = subprocess.run(command, env=preloading(library), capture_output=True, text=True, timeout=600)
        assert run.returncode == 0, run.stderr
        for file in sorted(done.glob("*.pickle")):
            yield pickle.loads(file.read_bytes())


def checked(recording: Recording, rounds: int, seed: int) -> Report:
    """Check all states of a recording, in processes that are forked off."""
    report = Report()
    cases = cases_of(recording, rounds, random.Random(f"{seed} {recording.name}"))
    trials = []
    for case in cases:
        report.kinds[case.kind] += 1
        name = f"{recording.name}, {case.kind} at {case.point}"
        trials.append((name, functools.partial(check, recording, case)))
    done = Trials(recording.name, len(trials))
    run_isolated(trials, done, hangs_s=_HANGS_S)
    report.problems += done.problems
    report.outcomes.update({"as after the change": done.failed})
    return report


def run(rounds: int, seed: int) -> Report:
    """Check all states of all operations."""
    report = Report()
    report.outcomes.update({"lost": 0, "wrong": 0})
    found = list(recordings())
    for recording in found:  # loads the kernels, which the processes then have
        steps = len(recording.contents) - 1
        with suppress(AssertionError):
            check(recording, Case("what there is", 0, recording.end, steps, steps))
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("fork")) as pool:
        for one in pool.map(functools.partial(checked, rounds=rounds, seed=seed), found):
            report.kinds.update(one.kinds)
            report.outcomes.update(one.outcomes)
            report.problems += one.problems
    lost = sum(": lost: " in problem for problem in report.problems)
    report.outcomes.update({"lost": lost, "wrong": len(report.problems) - lost})
    return report


def main() -> None:
    main_of("Lose power while indexes are changed.", run, 100)


if __name__ == "__main__":
    main()
