"""Operations that change an index on disk, to be recorded: `python -m faults.saves FOLDER [NAME...]`, under
`recorder.c`.

Each is a function here, named in `OPERATIONS`. It makes what there is before, has `Run.start` record from then on, and
makes each change in a `Run.step`, which says what the indexes have afterwards.
"""

from __future__ import annotations

import os
import pickle
import random
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from faults.recording import CLIENTS, Contents, Run
from oracle import Oracle
from support.command import as_json_lines, done
from support.conditions import any_expression

from tagmatch import TagMatch, backup, restore
from tagmatch.model.columns import tag_lists
from tagmatch.model.storage.location import Location, location_of
from tagmatch.model.storage.segment_files import segment_entry, table_file, tables_of, write_deletions
from tagmatch.model.storage.shared_files import Written
from tagmatch.model.storage.snapshots import manifest_of
from tagmatch.model.tables import Snapshot
from tagmatch.partitioner.consolidation import consolidated
from tagmatch.partitioner.staging import StagedChanges

_OPTIONS: dict[str, Any] = {"threads": 1, "device": "cpu", "durability": "none"}
#: Exit codes; any other is a number of syncs
_ENDED, _FAILED = 254, 255


def _sets(seed: int, count: int) -> tuple[list[list[str]], list[int]]:
    """Sets with keys: tables of some kilobytes, so of several sectors."""
    rng = random.Random(seed)
    sets = [[f"tag {rng.randrange(60)}" for _ in range(rng.randrange(5))] for _ in range(count)]
    return sets, [rng.randrange(2**50) for _ in sets]


STORED, ADDED = _sets(1, 100), _sets(2, 60)


def _as(key_type: str, sets: tuple[list[list[str]], list[int]]) -> tuple[list[list[str]], list[Any]]:
    return sets[0], list(map(str, sets[1])) if key_type == "string" else list(sets[1])


def _store(database: Any, key_type: str) -> None:
    database.add_sets(*_as(key_type, STORED))
    database.consolidate()


def _stage(database: Any, key_type: str) -> None:
    database.add_sets(*_as(key_type, ADDED))
    tags, keys = _as(key_type, STORED)
    database.remove_sets(tags[::2], keys[::2])


def _contents(key_type: str, *changes: Callable[[Any, str], None]) -> Contents:
    oracle = Oracle()
    for change in changes:
        change(oracle, key_type)
        oracle.consolidate()
    return dict(oracle)


def _stored_index(path: Path, **options: Any) -> TagMatch[Any]:
    tm: TagMatch[Any] = TagMatch(path, **_OPTIONS, **options)
    _store(tm, options.get("key_type", "integer"))
    return tm


def first_consolidation(run: Run) -> None:
    """Make the folders of an index, and save the first sets to it."""
    path = "some/new/index"
    run.start({path: None})
    with TagMatch(run.path / path, **_OPTIONS) as tm:
        tm.add_sets(*STORED)
        with run.step({path: _contents("integer", _store)}):
            tm.consolidate()


def consolidations(run: Run) -> None:
    """Change an index, and change it back: the last snapshot has the name of the first."""
    before, after = _contents("integer", _store), _contents("integer", _store, _stage)
    with _stored_index(run.path / "index") as tm:
        run.start({"index": before})
        _stage(tm, "integer")
        with run.step({"index": after}):
            tm.consolidate()
        tm.remove_sets(*ADDED)
        tm.add_sets(*STORED)
        with run.step({"index": before}):
            tm.consolidate()


def staged_changes(run: Run) -> None:
    """Stage changes, which must be staged still; consolidate them, and stage more."""
    _in_steps(
        run,
        lambda database: database.add_sets(*ADDED),
        lambda database: database.remove_sets(STORED[0][::2], STORED[1][::2]),
        lambda database: database.add_set(["more"], 1),
        None,
        lambda database: database.remove_set(["more"], 1),
        lambda database: database.add_set(["other"], 2),
    )


def conditions(run: Run) -> None:
    """Stage sets with conditions, which must be staged still; consolidate them; remove them, so that none has any."""
    rng = random.Random(7)
    where = [any_expression(rng, tags or ["more"]) for tags in ADDED[0]]
    _in_steps(
        run,
        lambda database: database.add_sets(*ADDED, where=where),
        lambda database: database.add_set(["more"], 1, where=where[0]),
        None,
        lambda database: database.remove_sets(*ADDED, where=where),
        lambda database: database.remove_set(["more"], 1, where=where[0]),
        None,
    )


def _in_steps(run: Run, *changes: Callable[[Any], None] | None) -> None:
    """Store an index; have each of the changes be staged, or, without one, consolidate."""
    oracle = Oracle()
    _store(oracle, "integer")
    _stored_index(run.path / "index").close()
    run.start({"index": dict(oracle)}, staged=True)
    with TagMatch(run.path / "index", **_OPTIONS | {"durability": "fsync"}) as tm:
        for change in changes:
            if change is not None:
                change(oracle)
                oracle.consolidate()
            with run.step({"index": dict(oracle)}):
                change(tm) if change is not None else tm.consolidate()


def positions(run: Run) -> None:
    """Save where clients are, before there is an index; consolidate, which saves them first; save others and none."""
    path = "new/index"

    def at(*places: tuple[int, float, float]) -> Contents:
        return {**(_contents("integer", _store) or {}), CLIENTS: places}

    run.start({path: None})
    with TagMatch(run.path / path, **_OPTIONS) as tm:
        tm.move([1], 1, 2)
        with run.step({}):  # no index, as nothing is consolidated
            tm.save_positions()
        tm.move([1, 7], [3, 5], [4, 6])
        tm.add_sets(*STORED)
        with run.step({path: at((1, 3, 4), (7, 5, 6))}):
            tm.consolidate()
        for number in range(3):
            tm.move([1], number, 0)
            with run.step({path: at((1, number, 0), (7, 5, 6))}):
                tm.save_positions()


def copied_positions(run: Run) -> None:
    """Back up an index with positions, to where nothing is; they come right after the copy."""
    stored = _contents("integer", _store) or {}
    with _stored_index(run.path / "index") as tm:
        tm.move([7], 5, 6)
        tm.save_positions()
        run.start({"copy": None})
        with run.step({"copy": stored}), run.step({"copy": {**stored, CLIENTS: ((7, 5, 6),)}}):
            backup(run.path / "index", run.path / "copy")


def segments(run: Run) -> None:
    """Change a few sets, which makes a segment and deletions; merge the segments, and lay all out anew."""
    stored, few = _contents("integer", _store), ([["more"], STORED[0][0], ["another"]], [1, 2, 3])
    oracle = Oracle()
    for add in (lambda: oracle.add_sets(*STORED), lambda: oracle.add_sets(*few)):
        add()
        oracle.consolidate()
    changed = dict(oracle)
    oracle.remove_set(["more"], 1)
    oracle.consolidate()
    with (
        patch("tagmatch.partitioner.consolidation.FEW_SETS", 0),
        patch("tagmatch.partitioner.consolidation._RATIO", 100),
        patch("tagmatch.merging.Merging.begin"),
        _stored_index(run.path / "index") as tm,
    ):
        run.start({"index": stored})
        tm.add_sets(*few)
        with run.step({"index": changed}):
            tm.consolidate()
        assert tm.stats()["segments"] == 2
        with run.step({"index": changed}):
            assert tm._engine.changing.merge()
        tm.remove_set(["more"], 1)
        with run.step({"index": dict(oracle)}):
            tm.consolidate()
        assert (tm.stats()["segments"], tm.stats()["deleted"]) == (1, 1)
        with run.step({"index": dict(oracle)}):
            tm.consolidate(full=True)


def save_over_another(run: Run) -> None:
    """Save an index to where there is another one."""
    before, after = _contents("integer", _store), _contents("integer", _stage)
    _stored_index(run.path / "index").close()
    with TagMatch(run.path / "other", **_OPTIONS) as tm:
        _stage(tm, "integer")
        tm.consolidate()
        run.start({"index": before, "other": after})
        with run.step({"index": after}):
            tm.save(run.path / "index")


def other_layout(run: Run) -> None:
    """Consolidate an index in the other layout, with no change."""
    contents = {"index": _contents("integer", _store)}
    _stored_index(run.path / "index").close()
    run.start(contents)
    with TagMatch(run.path / "index", layout="balanced", max_partition_size=20, **_OPTIONS) as tm, run.step(contents):
        tm.consolidate()


def string_keys(run: Run) -> None:
    """Save sets with string keys to a new index, and change it."""
    key_type = "string"
    run.start({"index": None}, key_type)
    with TagMatch(run.path / "index", key_type="string", **_OPTIONS) as tm:
        with run.step({"index": _contents(key_type, _store)}):
            _store(tm, key_type)
        _stage(tm, key_type)
        with run.step({"index": _contents(key_type, _store, _stage)}):
            tm.consolidate()


def build_command(run: Run) -> None:
    """Have `tagmatch build` write a new index, and another one in its place."""
    for name, (sets, keys) in {"stored": STORED, "added": ADDED}.items():
        lines = as_json_lines([{"tags": tags, "key": key} for tags, key in zip(sets, keys, strict=True)])
        run.path.with_name(f"{name}.jsonl").write_bytes(lines)
    run.start({"index": None})
    with run.step({"index": _contents("integer", _store)}):
        done("build", run.path.with_name("stored.jsonl"), run.path / "index", "--threads", 1)
    with run.step({"index": _contents("integer", lambda oracle, _: oracle.add_sets(*ADDED))}):
        done("build", run.path.with_name("added.jsonl"), run.path / "index", "--overwrite", "--threads", 1)


def save_as_jobs_do(run: Run) -> None:
    """Save to a new index, in whose folder a job on several machines has had its files."""
    path = "some/new/index"
    with TagMatch(**_OPTIONS) as tm:
        _store(tm, "integer")
        run.start({path: None})
        with run.step({path: _contents("integer", _store)}), location_of(str(run.path / path), "path").scratch():
            tm.save(run.path / path)


def append_as_jobs_do(run: Run) -> None:
    """Prepare a snapshot that has the segment of an index and a new one, and switch to it, in the midst of a job."""
    location, base, snapshot, after = _appended(run)
    with run.step({"index": after}), location.scratch():
        location.switch(location.prepare(snapshot, location.manifest()["segments"]), base)


def append_files_of_tasks(run: Run) -> None:
    """Switch to a snapshot of which tasks of a job have written the new files: tables, and deletions."""
    location, base, snapshot, after = _appended(run)
    kept, new = snapshot.segments
    assert kept.deletions is not None
    with run.step({"index": after}), location.scratch() as files:
        written = {}
        for table, columns in tables_of(new):
            whole = table_file(table, columns)
            for number in range(whole.parts):
                with files.new(whole.part_name(number)) as path:
                    written[whole.part_name(number)] = whole.write(number, path)
        with files.new("deletions") as path:
            deleted = write_deletions(kept.deletions, len(kept), path)
        entry = segment_entry(written, len(new), len(new.vocabulary), new.vocabulary.seed)
        manifest = manifest_of(
            [{**location.manifest()["segments"][0], "deleted": deleted}, entry], new.options, "integer"
        )
        names = {f"{entry['name']}/{name}": name for name in written} | {deleted["name"]: "deletions"}
        location.switch(manifest, base, Written(files, names))


def _appended(run: Run) -> tuple[Location, str | None, Snapshot, Contents]:
    """Store an index and begin; gives its place and snapshot, the one that has two segments then, and its contents."""
    before = _contents("integer", _store)
    after = _contents("integer", _store, lambda oracle, _: oracle.add_sets(*ADDED))
    _stored_index(run.path / "index").close()
    location, staged = location_of(str(run.path / "index"), "path"), StagedChanges()
    staged.extend(tag_lists(ADDED[0], "tags", stored=True), np.array(ADDED[1], np.uint64), removed=False)
    stored = location.open()
    with patch("tagmatch.partitioner.consolidation.FEW_SETS", 0):
        snapshot, _ = consolidated(stored, staged.changes(), stored.only.options, now=0)
    assert len(snapshot.segments) == 2
    run.start({"index": before})
    return location, stored.name, snapshot, after


def kept_snapshots(run: Run) -> None:
    """Change an index that keeps earlier snapshots: one more is kept, then the first one no longer, then none."""
    oracle, states = Oracle(), []
    changes: list[Callable[[Any], None]] = [
        lambda database: _stage(database, "integer"),
        lambda database: database.add_set(["more"], 1),
        lambda database: database.remove_set(["more"], 1),
    ]
    for change in (lambda database: database.add_sets(*STORED), *changes):
        change(oracle)
        oracle.consolidate()
        states.append(dict(oracle))
    first, second, third, fourth = states
    path = run.path / "index"
    _stored_index(path, keep_snapshots=1).close()
    run.start({"index": first, "index@1": first, "index@2": None, "index@3": None})
    with TagMatch(path, **_OPTIONS) as tm:
        changes[0](tm)
        with run.step({"index": second, "index@2": second}):
            tm.consolidate()
        changes[1](tm)
        with run.step({"index": third, "index@3": third, "index@1": None}):
            tm.consolidate()
    with TagMatch(path, **_OPTIONS, keep_snapshots=0) as tm:
        changes[2](tm)
        with run.step({"index": fourth, "index@2": None, "index@3": None}):
            tm.consolidate()


def backups(run: Run) -> None:
    """Back up an index with what is staged, and over that again: with more staged, and with that consolidated."""
    path, target = run.path / "index", "some/backup"
    _stored_index(path).close()
    added = _contents("integer", _store, lambda oracle, _: oracle.add_sets(*ADDED))
    assert added is not None
    more = added | {frozenset(["more"]): (1,)}
    with TagMatch(path, **_OPTIONS | {"durability": "fsync"}) as tm:
        tm.add_sets(*ADDED)
        run.start({target: None}, staged=True)
        with run.step({target: added}):
            backup(path, run.path / target)
        tm.add_set(["more"], 1)
        with run.step({target: more}):
            backup(path, run.path / target)
        tm.consolidate()
        with run.step({target: more}):
            backup(path, run.path / target)


def restores(run: Run) -> None:
    """Restore a backup, with what was staged, over an index that has something else staged, and to a new place."""
    path, new = run.path / "index", "new/index"
    _stored_index(path).close()
    with TagMatch(path, **_OPTIONS | {"durability": "fsync"}) as tm:
        _stage(tm, "integer")
        backup(path, run.path / "backup")
        tm.consolidate()
        tm.remove_sets(*STORED)
    backed_up = _contents("integer", _store, _stage)
    before = _contents("integer", _store, _stage, lambda oracle, _: oracle.remove_sets(*STORED))
    run.start({"index": before, new: None}, staged=True)
    with run.step({"index": backed_up}):
        restore(run.path / "backup", path, replace=True)
    with run.step({new: backed_up}):
        restore(run.path / "backup", run.path / new)


class _KilledError(Exception):
    pass


def _syncs_of(save: Callable[[], None], end_before: int | None = None) -> int:
    """Have another process do this; returns how often it synced, or raises if it was ended before one more."""
    count, sync = 0, os.fsync

    def counted(descriptor: int) -> None:
        nonlocal count
        if count == end_before:
            os._exit(_ENDED)
        count += 1
        sync(descriptor)

    program = os.fork()
    if not program:
        code = _FAILED
        try:
            with patch("os.fsync", counted):
                save()
            code = count
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    assert code != _FAILED
    if code == _ENDED:
        raise _KilledError
    return code


def killed_and_again(run: Run) -> None:
    """Make an index, where programs that had begun to were killed: before one of the first syncs, or of the last."""
    path = "new/index"

    def save(folder: Path) -> None:
        with TagMatch(folder / path, **_OPTIONS) as tm:
            _store(tm, "integer")

    with tempfile.TemporaryDirectory() as folder:
        syncs = _syncs_of(lambda: save(Path(folder)))
    run.start({path: None})
    for ended_before in (0, 1, 2, syncs - 4, syncs - 3, None):
        with suppress(_KilledError), run.step({path: _contents("integer", _store)}):
            _syncs_of(lambda: save(run.path), ended_before)


OPERATIONS: tuple[Callable[[Run], None], ...] = (
    first_consolidation, consolidations, segments, staged_changes, conditions, positions, copied_positions,
    save_over_another, other_layout, string_keys, build_command, save_as_jobs_do, append_as_jobs_do,
    append_files_of_tasks, kept_snapshots,
    backups, restores, killed_and_again,
)  # fmt: skip


def main() -> None:
    folder, wanted = Path(sys.argv[1]), sys.argv[2:]
    for operation in OPERATIONS:
        name = operation.__name__
        if name in wanted or not wanted:
            run = Run(folder, name)
            operation(run)
            (folder / f"{name}.pickle").write_bytes(pickle.dumps(run.end()))


if __name__ == "__main__":
    main()
