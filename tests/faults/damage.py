"""Damage to every file of an index on disk, one after the other: it is noticed when the index is opened.

A round is some of the first and last bytes of the files of each index, some bytes anywhere, and some numbers of
that a whole file is cut, removed, swapped with another one, longer, or zeros in part.
"""

import contextlib
import functools
import itertools
import random
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args
from zlib import crc32

from faults.driver import Case, Length, Program
from oracle import Oracle
from support.command import tagmatch_alone
from support.conditions import any_expression
from support.index_files import contents_of, files_of
from support.segments import cut_every, segments_stay

from tagmatch import IndexCorruptError, IndexNotFoundError, IndexVersionError, StagedChangesWarning, TagMatch
from tagmatch.model.options import KeyType, Layout

TAGS = [f"tag {number}" for number in range(90)]
NOTICED, CUT, NOTHING = "noticed", "cut at the end of the log", "nothing changed"
_OPTIONS: dict[str, Any] = {"threads": 1, "device": "cpu"}
_PARTS = 3
_WHERE = [None, None, None, *(any_expression(random.Random(number), TAGS) for number in range(4))]


def _where_of(key: Any) -> Any:
    """Some sets have conditions: those of some keys."""
    return _WHERE[crc32(str(key).encode()) % len(_WHERE)]


_CALLS_OF_A_LOG = 4


@dataclass
class FullIndex:
    """An index on disk: its contents if none, the first, the first two... of the calls that staged take effect.

    `changes` says how many changes these calls have staged.
    """

    path: Path
    stored: Oracle
    after: list[Oracle]
    changes: list[int]


def make_index(path: Path, pairs: Sequence[tuple[list[str], Any]], rng: random.Random, **options: Any) -> FullIndex:
    """Make an index that has these keys of sets, and others staged in two logs."""
    stored = Oracle()
    with (
        segments_stay(),
        TagMatch(path, **_OPTIONS, **options) as tm,
    ):
        for part in range(_PARTS):
            # Fewer and fewer, so that none is taken into the next; and a key that is taken from the one before
            first, last = len(pairs) - (len(pairs) >> 2 * part), len(pairs) - (len(pairs) >> 2 * part + 2)
            some = pairs[first:] if part == _PARTS - 1 else pairs[first:last]
            for database in (tm, stored):
                wheres = [_where_of(key) for _, key in some]
                expires = None if part else datetime(9000, 1, 1, tzinfo=UTC)
                database.add_sets([tags for tags, _ in some], [k for _, k in some], where=wheres, expires=expires)
                if first:
                    database.remove_set(*pairs[first - 1], where=_where_of(pairs[first - 1][1]))
                database.consolidate()
        index = FullIndex(path, stored, [deepcopy(stored)], [0])
        for number in range(2 * _CALLS_OF_A_LOG):
            if number == _CALLS_OF_A_LOG:
                tm._engine._staging.take()  # as a consolidation does that then fails
            _stage(index, tm, pairs, rng)
    return index


def _stage(index: FullIndex, tm: TagMatch[Any], pairs: Sequence[tuple[list[str], Any]], rng: random.Random) -> None:
    staged, count = deepcopy(index.after[-1]), rng.choice([1, 1, 20])
    some = rng.choices(pairs, k=count)
    is_removal = rng.random() < 0.3
    for database in (tm, staged):
        sets, keys = [tags if is_removal else [*tags, "staged"] for tags, _ in some], [key for _, key in some]
        where = [_where_of(key) for key in keys]
        if count == 1:
            (database.remove_set if is_removal else database.add_set)(sets[0], keys[0], where=where[0])
        else:
            (database.remove_sets if is_removal else database.add_sets)(sets, keys, where=where)
    changes = staged.staged
    staged.consolidate()
    index.after.append(staged)
    index.changes.append(index.changes[-1] + changes)


def notice(index: FullIndex, path: Path, rng: random.Random, *, fewest: int) -> str:
    """Open a damaged copy of an index; returns the outcome.

    An error names the index. Damage to the last log may look as if the program had been killed in its last call: then
    changes are gone that calls from number `fewest` on have staged, with a warning if that leaves a part of a call.
    """
    said, options = "", {"layout": rng.choice(get_args(Layout))} if rng.random() < 0.5 else {}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            with TagMatch.open(path, **_OPTIONS, **options) as tm:
                before, now = contents_of(index.path), contents_of(path)
                staged, stored = tm.stats()["staged"], dict(tm)
                tm.consolidate()
                tm.check()
                in_effect = dict(tm)
        except (IndexCorruptError, IndexNotFoundError, IndexVersionError) as error:
            said = str(error)
    if said:
        assert contents_of(index.path) != contents_of(path), f"an error without damage: {said}"
        assert str(path) in said, f"the message does not name the index: {said}"
        return NOTICED
    damaged = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
    assert all(name.startswith("staged-") for name in damaged), f"the damage was not noticed: {damaged}"
    assert staged in index.changes, f"{staged} changes are staged, which no calls have staged"
    calls = index.changes.index(staged)
    assert stored == dict(index.stored), "wrong sets"
    if not damaged:
        assert calls == len(index.changes) - 1
        return NOTHING
    assert calls >= fewest, f"only {calls} calls of {len(index.changes) - 1} are left"
    assert in_effect == dict(index.after[calls]), "not the sets of the calls that are left"
    is_warned = any(each.category is StagedChangesWarning for each in warned)
    sizes = {name: len(contents) for name, contents in now.items() if name in damaged}
    assert is_warned or not sizes or _ends_with_a_call(before, sizes), "changes are cut without a warning"
    return CUT


def _ends_with_a_call(before: dict[str, bytes], sizes: dict[str, int]) -> bool:
    """Whether logs have been cut between two calls, which nothing can show."""
    return all(before[name][size : size + 4] in (b"TMr1", b"") and size >= 40 for name, size in sizes.items())


_HEAD, _FOOT = 256, 1024
_FLIPS_OF_A_CASE = 32
_SIZES, _MORE_SIZES = (200,), (200, 5, 3_000)
_LONG = 1_000
_BLOCK = 4096

#: The contents that a file gets, or `None` if it goes; of it and another one
Damage = Callable[[bytes, bytes, random.Random], bytes | None]


def indexes(folder: Path, sizes: Sequence[int], rng: random.Random) -> Iterator[FullIndex]:
    """Make indexes that together have every kind of file."""
    for size, layout, key_type in itertools.product(sizes, get_args(Layout), get_args(KeyType)):
        keys: list[Any] = [rng.randrange(2**40) for _ in range(size)]
        pairs = [(rng.sample(TAGS, rng.randrange(6)), str(key) if key_type == "string" else key) for key in keys]
        path = folder / f"{layout} {key_type} {size}"
        # Tables are cut into parts in one layout, and whole in the other
        cut = {"balanced": cut_every}.get(layout, contextlib.nullcontext)
        most = 20 if size == _SIZES[0] else rng.choice([1, 7, 200_000])
        with cut():
            index = make_index(path, pairs, rng, layout=layout, key_type=key_type, max_partition_size=most)
        if size == _SIZES[0]:
            assert any(path.glob("segment-*/*.arrow.0*")) == (cut is cut_every)
            kinds = ("deleted-*", "segment-*") if key_type == "integer" else ("segment-*",)
            assert all(len(list(path.glob(kind))) > (key_type == "integer") for kind in kinds)
            # Two, and one more where conditions come into a log of the format before them
            assert len(list(path.glob("staged-*"))) in (2, 3)
        yield index


def flip(name: Path, places: Sequence[int], index: FullIndex, copy: Path, rng: random.Random) -> Counter[str]:
    """Flip bits of a byte of a file, and of others, one by one. Of a log, that may only end the last call."""
    file, found = copy / name, Counter[str]()
    right = file.read_bytes()
    for place in places:
        wrong = bytearray(right)
        wrong[place] ^= rng.randrange(1, 256)
        file.write_bytes(wrong)
        try:
            outcome = notice(index, copy, rng, fewest=len(index.changes) - 2)
        except Exception as error:
            raise AssertionError(f"byte {place}: {error!r}") from error
        found[outcome] += 1
        if outcome != NOTICED:
            shutil.rmtree(copy)
            shutil.copytree(index.path, copy)
    return found


def _zero_a_block(data: bytes, _: bytes, rng: random.Random) -> bytes:
    """As a crash may leave it."""
    first = rng.randrange(0, len(data), _BLOCK)
    return data[:first] + bytes(len(data[first : first + _BLOCK])) + data[first + _BLOCK :]


def _longer(data: bytes, _: bytes, rng: random.Random) -> bytes:
    return data + rng.choice([b"\0", b"\n", b" ", rng.randbytes(rng.randrange(1, 5_000))])


DAMAGES: dict[str, Damage] = {
    "cut": lambda data, _, rng: data[: rng.choice([0, 1, 8, len(data) // 2, len(data) - 8, len(data) - 1])],
    "removed": lambda *_: None,
    "swapped": lambda _, other, __: other,
    "zeros": _zero_a_block,
    "longer": _longer,
}


def damaged(kind: str, name: Path, other: Path, index: FullIndex, copy: Path, rng: random.Random) -> Counter[str]:
    """A whole file is another."""
    before = [(copy / each).read_bytes() for each in (name, other)]
    contents = DAMAGES[kind](*before, rng)
    (copy / name).unlink()
    if contents is not None:
        (copy / name).write_bytes(contents)
    if kind == "swapped":
        (copy / other).write_bytes(before[0])
    return Counter([notice(index, copy, rng, fewest=len(index.changes) - 2 if kind == "longer" else 0)])


def command_opens(_: FullIndex, copy: Path, rng: random.Random) -> Counter[str]:
    """Damage a table, and have the command open the index."""
    name = rng.choice(sorted(copy.rglob("*.arrow*")))
    data = bytearray(name.read_bytes())
    data[rng.randrange(len(data))] ^= rng.randrange(1, 256)
    name.write_bytes(data)
    tagmatch_alone(rng.choice(["check", "info"]), copy, code=1)
    return Counter([NOTICED])


def _in_a_copy(index: FullIndex, do: Callable[..., Counter[str]], folder: Path, rng: random.Random) -> Counter[str]:
    return do(index, shutil.copytree(index.path, folder / "index"), rng)


def _cases(rounds: int, folder: Path, rng: random.Random) -> Iterator[Case]:
    for index in indexes(folder, _MORE_SIZES if rounds >= _LONG else _SIZES, rng):
        sizes = [(file.relative_to(index.path), file.stat().st_size) for file in files_of(index.path)]
        edges = [(name, place) for name, size in sizes for place in range(size) if not _HEAD <= place < size - _FOOT]
        places = {
            "first and last bytes": rng.sample(edges, min(rounds, len(edges))),
            "any bytes": [(n, rng.randrange(size)) for n, size in rng.choices(sizes, [s for _, s in sizes], k=rounds)],
        }
        found: list[tuple[str, str, Any]] = []
        for kind, chosen in places.items():
            for name, group in itertools.groupby(sorted(chosen), lambda place: place[0]):
                some = [place for _, place in group]
                for first in range(0, len(some), _FLIPS_OF_A_CASE):
                    bytes_ = some[first : first + _FLIPS_OF_A_CASE]
                    found.append((kind, f"{name} from {bytes_[0]} on", functools.partial(flip, name, bytes_)))
        for number in range(rounds):
            kind, (name, other) = rng.choice([*DAMAGES]), rng.sample([name for name, _ in sizes], 2)
            text = f"{number}: {name}" + (f" and {other}" if kind == "swapped" else "")
            found.append((kind, text, functools.partial(damaged, kind, name, other)))
        for kind, text, do in found:
            yield Case(kind, f"{index.path.name}: {text}", functools.partial(_in_a_copy, index, do))
    yield Case("command", "", functools.partial(_in_a_copy, index, command_opens))


PROGRAM = Program(_cases, Length(30, 500), wanted=(NOTICED,), in_a_process=20)
