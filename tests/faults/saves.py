"""Operations that change an index on disk, and at each of their points the states that the disk may be in then.

Each is a function here, named in `OPERATIONS`. It makes what there is before, has `Run.start` watch from then on, and
makes each change in a `Run.step`, which says what the indexes have afterwards.
"""

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, get_args
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from faults.disk_states import Disk, State
from faults.work import Work
from oracle import Oracle
from support.command import as_json_lines, done
from support.older_forms import stored_as_before
from support.segments import segments_stay

from tagmatch import TagMatch, Where, backup, restore, upgrade
from tagmatch.model.columns import tag_lists
from tagmatch.model.options import Layout
from tagmatch.model.storage.byte_store import Written
from tagmatch.model.storage.repository import Repository, location_of
from tagmatch.model.storage.tables import manifest_of, segment_entry, table_file, tables_of, write_deletions
from tagmatch.model.tables import Snapshot
from tagmatch.partitioner.consolidation import StagedChanges, consolidated

#: The sets of an index, or `None` without an index
Contents = dict[frozenset[str], tuple[Any, ...]] | None
#: Under which contents have where clients are: key, longitude and latitude of each, in order
CLIENTS = frozenset(["where clients are"])
#: Under which they have the data of keys: key and name of each, in order
DATA = frozenset(["the data of keys"])
SYNCED = "the synced operations"
_OPTIONS: dict[str, Any] = {"threads": 1, "device": "cpu", "durability": "none"}
#: Steps before an operation begins
_FIRST = 10


class Moment(NamedTuple):
    """A state that a disk may be in: how many of the operations it has, and the steps acknowledged and begun then.

    Some come right after a step began or was acknowledged (`at_mark`).
    """

    kind: str
    state: State
    acknowledged: int
    begun: int
    at_mark: bool


class Run:
    """An operation that runs; `path` is the folder in which all that it changes is.

    `moments` are at each point, none twice, and some by chance. `contents` are those of each index, or snapshot of
    one as `index@2`, by its name: before, and after each step. `staged` is whether staged changes count in them.
    """

    def __init__(self, path: Path, rounds: int = 0, rng: random.Random | None = None, ignored: int = 0) -> None:
        self.path, self.rounds, self.rng, self._ignored = path, rounds, rng or random.Random(0), ignored
        self.path.mkdir()
        self.contents: list[dict[str, Contents]] = []
        self.found: dict[Any, Moment] = {}
        self._watched = ExitStack()
        self.acknowledged = self.begun = 0

    def start(self, contents: dict[str, Contents], key_type: str = "integer", *, staged: bool = False) -> None:
        """Assume that the present files are safe, and have these contents; watch all operations from now on."""
        self.key_type, self.staged = key_type, staged
        self.contents.append(contents)
        self.disk = Disk(self.path, self._look, self._ignored)
        self._look(at_mark=True)
        self._watched.enter_context(self.disk.watched())

    @contextmanager
    def step(self, contents: dict[str, Contents]) -> Iterator[None]:
        """The block gives these indexes these contents, and is sure of them at its end."""
        self.contents.append({**self.contents[-1], **contents})
        number = len(self.contents) - 1
        self._mark(begun=number)
        yield
        self.disk.scan()
        self._mark(acknowledged=number)

    def _mark(self, *, begun: int = 0, acknowledged: int = 0) -> None:
        self.begun, self.acknowledged = max(self.begun, begun), max(self.acknowledged, acknowledged)
        self._look(at_mark=True)

    def _look(self, *, at_mark: bool = False) -> None:
        disk, steps = self.disk, (self.acknowledged, self.begun)
        kinds = {
            SYNCED: [disk.synced()], "the written operations": [disk.written()],
            "one change more than synced": disk.one_more(),
            "one change less than written": disk.one_less(),
            "a mixture": (disk.mixed(self.rng) for _ in range(self.rounds)),
        }  # fmt: skip
        for kind, states in kinds.items():
            for state in states:
                self.found.setdefault((frozenset(state.items()), *steps), Moment(kind, state, *steps, at_mark))

    def end(self) -> list[Moment]:
        self._watched.close()
        return list(self.found.values())


def _sets(seed: int, count: int) -> tuple[list[list[str]], list[int]]:
    """Sets with keys: tables of some kilobytes, so of several sectors."""
    rng = random.Random(seed)
    sets = [[f"tag {rng.randrange(60)}" for _ in range(rng.randrange(5))] for _ in range(count)]
    return sets, [rng.randrange(2**50) for _ in sets]


STORED, ADDED = _sets(1, 100), _sets(2, 60)


def _store(database: Any) -> None:
    database.add_sets(*STORED)
    database.consolidate()


def _stage(database: Any) -> None:
    database.add_sets(*ADDED)
    database.remove_sets(STORED[0][::2], STORED[1][::2])


def _add(database: Any) -> None:
    database.add_sets(*ADDED)


def _contents(*changes: Callable[[Any], object]) -> dict[frozenset[str], tuple[Any, ...]]:
    oracle = Oracle()
    for change in changes:
        change(oracle)
        oracle.consolidate()
    return dict(oracle)


def _stored_index(path: Path, **options: Any) -> TagMatch[Any]:
    tm: TagMatch[Any] = TagMatch(path, **_OPTIONS, **options)
    _store(tm)
    return tm


def first_consolidation(run: Run) -> None:
    """Make the folders of an index, and save the first sets to it."""
    path = "some/new/index"
    run.start({path: None})
    with TagMatch(run.path / path, **_OPTIONS) as tm:
        tm.add_sets(*STORED)
        with run.step({path: _contents(_store)}):
            tm.consolidate()


def consolidations(run: Run) -> None:
    """Change an index, and change it back: the last snapshot has the name of the first."""
    with _stored_index(run.path / "index") as tm:
        run.start({"index": _contents(_store)})
        _stage(tm)
        with run.step({"index": _contents(_store, _stage)}):
            tm.consolidate()
        tm.remove_sets(*ADDED)
        tm.add_sets(*STORED)
        with run.step({"index": _contents(_store)}):
            tm.consolidate()


def integer_keys(run: Run) -> None:
    _work(run, "integer", 7)


def string_keys(run: Run) -> None:
    _work(run, "string", 200_000)


def _work(run: Run, key_type: Any, size: int) -> None:
    """Any changes, each synced, in segments that are merged; then more in the other layout."""
    work, oracle = Work(str(run.rng.random()), key_type), Oracle()
    with TagMatch(run.path / "index", key_type=key_type, **_OPTIONS) as tm:
        for database in (tm, oracle):
            for place in range(_FIRST):
                work.step(place).do(database)
            database.consolidate()
    run.start({"index": dict(oracle)}, key_type, staged=True)
    with segments_stay(), patch("tagmatch.partitioner.consolidation._RATIO", 100):
        for number, each in enumerate(get_args(Layout)):
            options = {"key_type": key_type, "layout": each, "max_partition_size": size, "durability": "fsync"}
            with TagMatch(run.path / "index", **_OPTIONS | options) as tm:
                for place in range(_FIRST + 8 * number, _FIRST + 8 * number + 8):
                    step = work.step(place)
                    step.do(oracle)
                    with run.step({"index": dict(oracle.staged_again())}):
                        step.do(tm)
                    if step.name.startswith("consolidate"):
                        with run.step({}):
                            tm._engine.changing.merge()


def positions(run: Run) -> None:
    """Save where clients are, before there is an index; consolidate, which saves them first; save others and none."""
    path = "new/index"

    def at(*places: tuple[int, float, float]) -> Contents:
        return {**_contents(_store), CLIENTS: places}

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


def puts(run: Run) -> None:
    """Put keys in place of what they had, with data, put them again with other data alone, and delete some."""
    path, keys = "index", [*dict.fromkeys(STORED[1])][:40]
    oracle = Oracle()

    def put(database: Any, name: str) -> None:
        rows = [(key, [f"tag {key % 7}"], None, None, None, {"name": name}) for key in keys]
        if isinstance(database, Oracle):
            database.put_many(rows)
        else:
            table = {"key": [row[0] for row in rows], "tags": [row[1] for row in rows], "name": [name] * len(rows)}
            database.put_many(pa.table(table))

    def contents() -> Contents:
        data = {key: record[2] for key, record in oracle.records().items() if record[2]}
        return {
            **dict(oracle),
            **({DATA: tuple(sorted((key, own["name"]) for key, own in data.items()))} if data else {}),
        }

    with _stored_index(run.path / path, data={"name": "string"}) as tm:
        _store(oracle)
        run.start({path: contents()})
        for change in (
            lambda each: put(each, "first"), lambda each: put(each, "second"), lambda each: each.delete_many(keys[:20]),
        ):  # fmt: skip
            for database in (tm, oracle):
                change(database)
            oracle.consolidate()
            with run.step({path: contents()}):
                tm.consolidate()


def upgraded(run: Run) -> None:
    """Give conditions that were added one by one the form of one, and those of a record the form of today."""
    path = run.path / "index"
    with _stored_index(path, data={"name": "string"}) as tm, stored_as_before("alternatives.folded"):
        for value in (1, 2):
            tm.add_set(["both"], 7, where=f"x = {value}")
        tm.put(8, ["put"], where="x = 1 or x = 2", data={"name": "eight"})
        tm.consolidate()
    before, after = (
        {frozenset([tag, Where(text)]): (key,) for tag, key in (("both", 7), ("put", 8)) for text in texts}
        for texts in (("x = 1", "x = 2"), ("x in {1, 2}",))
    )
    always = {**_contents(_store), DATA: ((8, "eight"),)}
    run.start({"index": {**always, **before}}, staged=True)
    with run.step({"index": {**always, **after}}):
        upgrade(path)


def copied_positions(run: Run) -> None:
    """Back up an index with positions, to a new place; they come right after the copy."""
    with _stored_index(run.path / "index") as tm:
        tm.move([7], 5, 6)
        tm.save_positions()
        run.start({"copy": None})
        with run.step({"copy": _contents(_store)}), run.step({"copy": {**_contents(_store), CLIENTS: ((7, 5, 6),)}}):
            backup(run.path / "index", run.path / "copy")


def save_over_another(run: Run) -> None:
    _stored_index(run.path / "index").close()
    with TagMatch(run.path / "other", **_OPTIONS) as tm:
        _stage(tm)
        tm.consolidate()
        run.start({"index": _contents(_store), "other": _contents(_stage)})
        with run.step({"index": _contents(_stage)}):
            tm.save(run.path / "index")


def build_command(run: Run) -> None:
    """Let `tagmatch build` write a new index, and another one in its place."""
    run.start({"index": None})
    for (sets, keys), change in ((STORED, _store), (ADDED, _add)):
        file = run.path.with_name("sets.jsonl")
        file.write_bytes(as_json_lines([{"tags": tags, "key": key} for tags, key in zip(sets, keys, strict=True)]))
        with run.step({"index": _contents(change)}):
            done("build", file, run.path / "index", "--overwrite", "--threads", 1)


def save_as_jobs_do(run: Run) -> None:
    """Save to a new index, in whose folder a job on several machines has had its files."""
    path = "some/new/index"
    with TagMatch(**_OPTIONS) as tm:
        _store(tm)
        run.start({path: None})
        with run.step({path: _contents(_store)}), location_of(str(run.path / path), "path").scratch():
            tm.save(run.path / path)


def append_as_jobs_do(run: Run) -> None:
    """Append a snapshot that has the segment of an index and a new one, in the midst of a job."""
    location, base, snapshot = _appended(run)
    with run.step({"index": _contents(_store, _add)}), location.scratch():
        location.append(snapshot, base, {})


def append_files_of_tasks(run: Run) -> None:
    """Switch to a snapshot whose new files, tables and deletions, tasks of a job have written."""
    location, base, snapshot = _appended(run)
    kept, new = snapshot.segments
    assert kept.deletions is not None
    with run.step({"index": _contents(_store, _add)}), location.scratch() as files:
        written = {}
        for table, columns in tables_of(new):
            whole = table_file(table, columns)
            for number in range(whole.parts):
                with files.new(whole.part_name(number)) as path:
                    written[whole.part_name(number)] = whole.write(number, path)
        with files.new("deletions") as path:
            deleted = write_deletions(kept.deletions, len(kept), path)
        entry = segment_entry(written, len(new), len(new.vocabulary), new.vocabulary.seed)
        segments = [{**location.manifest()["segments"][0], "deleted": deleted}, entry]
        names = {f"{entry['name']}/{name}": name for name in written} | {deleted["name"]: "deletions"}
        location.switch(manifest_of(segments, new.options, "integer"), base, Written(files, names))


def _appended(run: Run) -> tuple[Repository, str | None, Snapshot]:
    """Store an index and begin; gives its place, its snapshot's name, and the snapshot that has two segments then."""
    _stored_index(run.path / "index").close()
    location, staged = location_of(str(run.path / "index"), "path"), StagedChanges()
    staged.extend(tag_lists(ADDED[0], "tags", stored=True), np.array(ADDED[1], np.uint64), removed=False)
    stored = location.open()
    with patch("tagmatch.partitioner.consolidation.FEW_SETS", 0):
        snapshot, _ = consolidated(stored, staged.changes(), stored.only.options, now=0)
    assert len(snapshot.segments) == 2
    run.start({"index": _contents(_store)})
    return location, stored.name, snapshot


def kept_snapshots(run: Run) -> None:
    """Change an index that keeps earlier snapshots: one more is kept, then the first one no longer, then none."""
    changes: list[Callable[[Any], None]] = [
        _stage, lambda database: database.add_set(["more"], 1), lambda database: database.remove_set(["more"], 1),
    ]  # fmt: skip
    first, second, third, fourth = (_contents(_store, *changes[:count]) for count in range(4))
    path = run.path / "index"
    _stored_index(path, keep_snapshots=1).close()
    run.start({"index": first, "index@1": first, "index@2": None, "index@3": None})
    for change, keep, after in (
        (changes[0], 1, {"index": second, "index@2": second}),
        (changes[1], 1, {"index": third, "index@3": third, "index@1": None}),
        (changes[2], 0, {"index": fourth, "index@2": None, "index@3": None}),
    ):
        with TagMatch(path, **_OPTIONS, keep_snapshots=keep) as tm:
            change(tm)
            with run.step(after):
                tm.consolidate()


def backups(run: Run) -> None:
    """Back up an index with staged changes, and over that again: with more staged, and with them consolidated."""
    path, target = run.path / "index", "some/backup"
    _stored_index(path).close()
    with TagMatch(path, **_OPTIONS | {"durability": "fsync"}) as tm:
        tm.add_sets(*ADDED)
        run.start({target: None}, staged=True)
        with run.step({target: _contents(_store, _add)}):
            backup(path, run.path / target)
        tm.add_set(["more"], 1)
        for change in (lambda: None, tm.consolidate):
            change()
            with run.step({target: {**_contents(_store, _add), frozenset(["more"]): (1,)}}):
                backup(path, run.path / target)


def restores(run: Run) -> None:
    """Restore a backup, with its staged changes, over an index that has others staged, and to a new place."""
    path, new = run.path / "index", "new/index"
    _stored_index(path).close()
    with TagMatch(path, **_OPTIONS | {"durability": "fsync"}) as tm:
        _stage(tm)
        backup(path, run.path / "backup")
        tm.consolidate()
        tm.remove_sets(*STORED)
    backed_up = _contents(_store, _stage)
    run.start({"index": _contents(_store, _stage, lambda each: each.remove_sets(*STORED)), new: None}, staged=True)
    with run.step({"index": backed_up}):
        restore(run.path / "backup", path, replace=True)
    with run.step({new: backed_up}):
        restore(run.path / "backup", run.path / new)


def killed_and_again(run: Run) -> None:
    """Make an index, where programs that had begun to were killed: before the first sync, the second one, and so on."""
    path = "new/index"
    run.start({path: None})
    for number in itertools.count():
        step = run.step({path: _contents(_store)})
        with run.disk.killed_before(number) as killed, step, TagMatch(run.path / path, **_OPTIONS) as tm:
            _store(tm)
        if not killed:
            return


OPERATIONS: tuple[Callable[[Run], None], ...] = (
    first_consolidation, consolidations, integer_keys, string_keys, positions, puts, copied_positions,
    save_over_another, build_command, save_as_jobs_do, append_as_jobs_do, append_files_of_tasks, kept_snapshots,
    backups, restores, upgraded, killed_and_again,
)  # fmt: skip
