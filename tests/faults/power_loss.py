"""Power that is lost while an index is changed: all that was acknowledged is there, and nothing is there in part.

Operations are watched; at each point of each, states are made that the disk may be in then; a round is one of them by
chance. Each must have what it may have, and must be good for another change.
"""

import functools
import random
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from faults.driver import Case, Length, Program
from faults.saves import CLIENTS, DATA, OPERATIONS, SYNCED, Contents, Moment, Run
from support.index_files import unnamed_in

from tagmatch import IndexNotFoundError, StagedChangesWarning, TagMatch, TagMatchError
from tagmatch.model.storage.format import SCRATCH_PREFIX
from tagmatch.model.storage.repository import location_of

#: Rounds below which of each operation only some states are checked
_FEW, _SOME = 10, 2
_OPTIONS: dict[str, Any] = {"threads": 1, "device": "cpu", "durability": "none"}
_MORE = frozenset(["one more"])


def with_positions(tm: TagMatch[Any]) -> dict[frozenset[str], tuple[Any, ...]]:
    """The sets of an index and, under names that none has, where clients are, and the data of keys."""
    positions = tm._engine.clients.positions()
    places = zip(positions.keys.to_pylist(), positions.lon.tolist(), positions.lat.tolist(), strict=True)
    data = sorted((key, record.data["name"]) for key, record in tm.records.items() if record.data)
    others = {CLIENTS: tuple(sorted(places)), DATA: tuple(data)}
    return {**dict(tm), **{name: found for name, found in others.items() if found}}


def contents_of(folder: Path, name: str, *, staged: bool = False) -> Contents:
    """What an index has, or a snapshot of it, which must be sound, with the changes that are staged if these count."""
    path, _, number = name.partition("@")
    try:
        with TagMatch.open(folder / path, snapshot=int(number) if number else None, **_OPTIONS) as tm:
            if staged and not number:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", StagedChangesWarning)  # of a call that never returned
                    tm.consolidate()
            tm.check()
            return with_positions(tm)
    except IndexNotFoundError:
        return None


def check(run: Run, moment: Moment, folder: Path) -> bool:
    """Write a state to a folder, and check it; returns whether it has the last step begun."""
    folder.mkdir(exist_ok=True)
    for name in sorted(moment.state):
        contents = moment.state[name]
        if contents is None:
            (folder / name).mkdir()
        else:
            (folder / name).write_bytes(contents)
    allowed = run.contents[moment.acknowledged : moment.begun + 1]
    try:
        # Earlier snapshots first: consolidating staged changes makes another
        names = sorted(allowed[0], key=lambda name: "@" not in name)
        found = {name: contents_of(folder, name, staged=run.staged) for name in names}
    except TagMatchError as error:
        raise AssertionError(f"wrong: {error}") from error
    if found not in allowed:
        lost = found in run.contents[: moment.acknowledged]
        raise AssertionError("lost: it has the old contents" if lost else f"wrong: {_described(found)}")
    for name, sets in found.items():
        if "@" not in name:
            try:
                _go_on(folder / name, sets, run.key_type)
            except TagMatchError as error:
                raise AssertionError(f"wrong: cannot be changed: {error}") from error
    return found == allowed[-1]


def _described(found: dict[str, Contents]) -> str:
    sizes = {name: "no index" if sets is None else f"{len(sets)} sets" for name, sets in found.items()}
    return f"neither the old contents nor the saved ones: {sizes}"


def _go_on(path: Path, contents: Contents, key_type: Any) -> None:
    """Change an index once more, which leaves no file that it does not name."""
    key: Any = 7 if key_type == "integer" else "7"
    with TagMatch(path, key_type=key_type, **_OPTIONS) as tm:
        tm.add_set(_MORE, key)
        tm.consolidate()
    if any(path.glob(f"{SCRATCH_PREFIX}*")):
        with location_of(str(path), "path").scratch():
            pass  # What a job has left goes with the next one
    found = contents_of(path.parent, path.name)
    if contents is None and found is not None:  # clients may be somewhere before there is an index
        found.pop(CLIENTS, None)
    assert found == {**(contents or {}), _MORE: (key,)}, (
        f"wrong: after another change: {_described({path.name: found})}"
    )
    left = unnamed_in(path)
    assert not left, f"wrong: left behind: {left}"


def _tried(run: Run, moment: Moment, folder: Path, _: random.Random) -> str:
    return "as after the change" if check(run, moment, folder) else "as before the change"


def _cases(rounds: int, folder: Path, rng: random.Random) -> Iterator[Case]:
    """All states of all operations, or some if there are few rounds."""
    found = []
    for operation in OPERATIONS:
        run = Run(folder / operation.__name__, rounds, rng)
        operation(run)
        found.append((operation.__name__, run, run.end()))
    for name, run, moments in found:
        # Loads the kernels, which the processes then have
        with suppress(AssertionError):
            check(
                run,
                Moment("what there is", run.disk.written(), run.acknowledged, run.begun, True),
                folder / f"{name}, all",
            )
        if rounds < _FEW:
            # Those that must have the acknowledged steps, and some
            sure = [each for each in moments if each.kind == SYNCED and each.at_mark]
            others = [each for each in moments if each not in sure]
            moments = sure + rng.sample(others, min(_SOME * rounds, len(others)))
        for number, moment in enumerate(moments):
            yield Case(moment.kind, f"{name}, {number}", functools.partial(_tried, run, moment))


PROGRAM = Program(_cases, Length(1, 4), wanted=("as before the change", "as after the change"))
