"""Damage to every file of an index, one after the other: it is noticed when the index is opened.

`python -m faults.every_file --rounds 10000 --seed 7`, in `tests`, flips each of the first and last bytes of each file
(or so many of these, if an index has more), and so many bytes of all indexes anywhere; it cuts each file, removes it
and swaps it with each other. It prints what was tried and what went wrong.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import get_args

from faults.full_index import NOTICED, TAGS, FullIndex, make_index, notice
from faults.rounds import Report, main_of
from faults.sweep import Report as Trials
from faults.sweep import run_isolated
from support.index_files import files_of
from support.parts import cut_every

from tagmatch.model.options import KeyType, Layout

_KINDS = [*itertools.product(get_args(Layout), get_args(KeyType))]
#: Tables are cut into parts in one layout, and whole in the other
_CUT: dict[Layout, Callable[[], AbstractContextManager[None]]] = {
    "rarest": contextlib.nullcontext,
    "balanced": cut_every,
}
_HEAD, _FOOT = 256, 1024
_HANGS_S = 60
_FLIPS_OF_A_TRIAL = 64

#: Gets an index and a copy of it to damage; gives what becomes of each damage
Damage = Callable[[FullIndex, Path], Iterator[str]]
#: Its name, and how many there are in it
Named = tuple[str, Damage, int]


def indexes(folder: Path, rng: random.Random) -> Iterator[FullIndex]:
    """Make indexes that together have every kind of file."""
    for layout, key_type in _KINDS:
        keys = [rng.randrange(2**40) for _ in range(200)]
        pairs = [(rng.sample(TAGS, 5), str(key) if key_type == "string" else key) for key in keys]
        path = folder / f"{layout} {key_type}"
        cut = _CUT[layout]
        with cut():
            index = make_index(path, pairs, rng, layout=layout, key_type=key_type, max_partition_size=20)
        assert any(path.glob("segment-*/*.arrow.0*")) == (cut is cut_every)
        kinds = ("deleted-*", "segment-*") if key_type == "integer" else ("segment-*",)
        assert all(len(list(path.glob(kind))) > (key_type == "integer") for kind in kinds)
        # Two, and one more where conditions come into a log of the format before them
        assert len(list(path.glob("staged-*"))) in (2, 3)
        yield index


def in_a_copy(index: FullIndex, damage: Damage, outcomes: Path) -> bool:
    """Damage a copy of an index, once or several times; adds what became of that to a file."""
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(index.path, Path(folder, "index"))
        found = list(damage(index, copy))
    with outcomes.open("a") as out:
        print(*found, sep="\n", file=out)
    return set(found) == {NOTICED}


def flip(name: Path, places: Sequence[tuple[int, int]], index: FullIndex, copy: Path) -> Iterator[str]:
    """Flip bits of a byte of a file, and of others, one by one. Of a log, that may only end the last call."""
    file = copy / name
    right = file.read_bytes()
    for place, bits in places:
        wrong = bytearray(right)
        wrong[place] ^= bits
        file.write_bytes(wrong)
        try:
            found = notice(index, copy, fewest=len(index.changes) - 2)
        except Exception as error:
            raise AssertionError(f"byte {place}: {error!r}") from error
        yield found
        if found != NOTICED:
            shutil.rmtree(copy)
            shutil.copytree(index.path, copy)


def cut(name: Path, size: int, index: FullIndex, copy: Path) -> Iterator[str]:
    with (copy / name).open("r+b") as opened:
        opened.truncate(size)
    yield notice(index, copy, fewest=0)


def remove(name: Path, index: FullIndex, copy: Path) -> Iterator[str]:
    (copy / name).unlink()
    yield notice(index, copy, fewest=0)


def swap(name: Path, other: Path, index: FullIndex, copy: Path) -> Iterator[str]:
    one, two = (copy / name).read_bytes(), (copy / other).read_bytes()
    (copy / name).write_bytes(two)
    (copy / other).write_bytes(one)
    yield notice(index, copy, fewest=0)


def whole_files(index: Path) -> Iterator[Named]:
    """Damages by which a whole file is another, with how many there are in each."""
    sizes = [(file.relative_to(index), file.stat().st_size) for file in files_of(index)]
    for name, size in sizes:
        yield f"{name} removed", functools.partial(remove, name), 1
        for length in sorted({0, 1, 8, size // 2, size - 8, size - 1}):
            yield f"{name} cut to {length}", functools.partial(cut, name, length), 1
    for (name, _), (other, _) in itertools.combinations(sizes, 2):
        yield f"{name} and {other} swapped", functools.partial(swap, name, other), 1


def flips(places: Sequence[tuple[Path, int]], rng: random.Random) -> Iterator[Named]:
    """Damages of these bytes, several in each, of one file."""
    for name, group in itertools.groupby(sorted(places), lambda place: place[0]):
        found = [(place, rng.randrange(1, 256)) for _, place in group]
        for first in range(0, len(found), _FLIPS_OF_A_TRIAL):
            chosen = found[first : first + _FLIPS_OF_A_TRIAL]
            yield f"bytes of {name} from {chosen[0][0]} on flipped", functools.partial(flip, name, chosen), len(chosen)


def damages(index: Path, rounds: int, rng: random.Random) -> Iterator[tuple[str, Named]]:
    """Damages of an index, with their kinds."""
    sizes = [(file.relative_to(index), file.stat().st_size) for file in files_of(index)]
    edges = [(name, place) for name, size in sizes for place in range(size) if not _HEAD <= place < size - _FOOT]
    anywhere = rng.choices(sizes, [size for _, size in sizes], k=rounds // len(_KINDS))
    for damage in flips(rng.sample(edges, min(rounds, len(edges))), rng):
        yield "first and last bytes", damage
    for damage in flips([(name, rng.randrange(size)) for name, size in anywhere], rng):
        yield "any bytes", damage
    for damage in whole_files(index):
        yield "whole files", damage


def run(rounds: int, seed: int) -> Report:
    """Damage indexes of all kinds, in processes that are forked off."""
    report, rng = Report(), random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        outcomes = Path(folder, "outcomes")
        outcomes.touch()
        for index in list(indexes(Path(folder), rng)):
            trials = []
            for kind, (name, damage, count) in damages(index.path, rounds, rng):
                report.kinds[kind] += count
                trials.append((f"{index.path.name}: {name}", functools.partial(in_a_copy, index, damage, outcomes)))
            done = Trials(index.path.name, len(trials))
            run_isolated(trials, done, hangs_s=_HANGS_S)
            report.problems += done.problems
        report.outcomes.update(outcomes.read_text().split("\n")[:-1])
    return report


def main() -> None:
    main_of("Damage every file of indexes on disk.", run, 10_000)


if __name__ == "__main__":
    main()
