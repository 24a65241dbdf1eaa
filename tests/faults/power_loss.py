"""Power that is lost while an index is changed: all that was acknowledged is there, and nothing is there in part.

Operations are recorded; for each point of each, states are made that the disk may be in then, of which a round is one
by chance. Each must have what it may have, and must be good for another change.
"""

from __future__ import annotations

import functools
import json
import pickle
import random
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.disk_states import Disk
from faults.driver import Case, Length, Program
from faults.preloads import compiled, preloading
from faults.recording import CLIENTS, Contents, Recording, State, at_number, write_state

from tagmatch import IndexNotFoundError, StagedChangesWarning, TagMatch, TagMatchError
from tagmatch.model.storage.format import SCRATCH_PREFIX
from tagmatch.model.storage.location import location_of

#: Rounds below which of each operation only some states are checked
_FEW, _SOME = 10, 2
_SYNCED = "what was synced"
_OPTIONS: dict[str, Any] = {"threads": 1, "device": "cpu", "durability": "none"}
_MORE = frozenset(["one more"])


@dataclass(frozen=True)
class Moment:
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


def moments_of(recording: Recording, rounds: int, rng: random.Random) -> list[Moment]:
    """States of the disk at each point of a recording, none twice; raises if it cannot be replayed."""
    found: dict[Any, Moment] = {}
    disk = Disk(recording.start, recording.root)
    steps = {"acknowledged": 0, "begun": 0}

    def note(kind: str, point: int, state: State) -> None:
        found.setdefault((frozenset(state.items()), *steps.values()), Moment(kind, point, state, **steps))

    def note_all(point: int) -> None:
        note(_SYNCED, point, disk.synced())
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


def check(recording: Recording, case: Moment, folder: Path) -> bool:
    """Write a state to a folder, and see that it is as it must be; returns whether it has what was last begun."""
    write_state(case.state, folder)
    allowed = recording.contents[case.acknowledged : case.begun + 1]
    try:
        # Earlier snapshots first: to consolidate what is staged makes another
        found = {
            name: contents_of(folder / path, number, staged=recording.staged)
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
            _go_on(folder / name, contents, recording.key_type)
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
    names = {part for entry in path.rglob("*") for part in entry.relative_to(path).parts}
    always = {"LOCK", "WRITER", "MANIFEST.json", "POSITIONS.arrow"}
    left = [name for name in names - always if f'"{name}"' not in manifest]
    assert not left, f"wrong: left behind: {left}"


def recordings(folder: Path, *operations: str) -> Iterator[Recording]:
    """Have these operations recorded, or all."""
    done = folder / "recordings"
    done.mkdir()
    command = [sys.executable, "-m", "faults.saves", str(done), *operations]
    environment = preloading(compiled("recorder.c", folder))
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    for file in sorted(done.glob("*.pickle")):
        yield pickle.loads(file.read_bytes())


def _tried(recording: Recording, state: Moment, folder: Path, _: random.Random) -> str:
    return "as after the change" if check(recording, state, folder) else "as before the change"


def _cases(rounds: int, folder: Path, rng: random.Random) -> Iterator[Case]:
    """All states of all operations, or some if there are few rounds."""
    found = list(recordings(folder))
    for recording in found:
        # Loads the kernels, which the processes then have
        steps, place = len(recording.contents) - 1, folder / recording.name
        place.mkdir()
        with suppress(AssertionError):
            check(recording, Moment("what there is", 0, recording.end, steps, steps), place)
        moments = moments_of(recording, rounds, rng)
        if rounds < _FEW:
            # Those that must have what was acknowledged, and some
            marks = {number for number, record in enumerate(recording.records, 1) if record.kind == "mark"}
            sure = [each for each in moments if each.kind == _SYNCED and each.point in marks]
            others = [each for each in moments if each not in sure]
            moments = sure + rng.sample(others, min(_SOME * rounds, len(others)))
        for number, moment in enumerate(moments):
            name = f"{recording.name} at {moment.point}, {number}"
            yield Case(moment.kind, name, functools.partial(_tried, recording, moment))


PROGRAM = Program(_cases, Length(1, 4, 100), wanted=("as before the change", "as after the change"))
