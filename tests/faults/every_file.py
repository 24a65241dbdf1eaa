"""Damage to every file of an index, one after the other: it is noticed when the index is opened.

`python -m faults.every_file --rounds 10000 --seed 7`, in `tests`, flips each of the first and last bytes of each file
(or so many of these, if an index has more), and so many bytes of all indexes anywhere; it cuts each file, removes it
and swaps it with each other. It prints what was tried and what went wrong.
"""

from __future__ import annotations

import functools
import itertools
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import get_args

from faults.rounds import Report, main_of
from faults.sweep import Report as Trials
from faults.sweep import run_isolated
from support.agreement import loaded
from support.index_files import files_of

from tagmatch import IndexCorruptError, IndexNotFoundError, IndexVersionError, TagMatch
from tagmatch.model.options import KeyType, Layout

_KINDS = [*itertools.product(get_args(Layout), get_args(KeyType))]
_HEAD, _FOOT = 256, 1024
_HANGS_S = 60
_FLIPS_OF_A_TRIAL = 64


def indexes(folder: Path, rng: random.Random) -> Iterator[Path]:
    """Make indexes that together have every kind of file."""
    for layout, key_type in _KINDS:
        path = folder / f"{layout} {key_type}"
        keys = [rng.randrange(2**40) for _ in range(200)]
        pairs = [
            ([f"tag {rng.randrange(90)}" for _ in range(5)], str(key) if key_type == "string" else key) for key in keys
        ]
        tm, _ = loaded(
            pairs, path=path, layout=layout, key_type=key_type, max_partition_size=20, threads=1, device="cpu"
        )
        tm.close()
        yield path


def notice(path: Path) -> None:
    """Open a damaged index, which must raise an error that names it."""
    said = ""
    try:
        TagMatch.open(path, threads=1, device="cpu").close()
    except (IndexCorruptError, IndexNotFoundError, IndexVersionError) as error:
        said = str(error)
    assert said, "the damage was not noticed"
    assert str(path) in said, f"the message does not name the index: {said}"


def in_a_copy(index: Path, damage: Callable[[Path], None]) -> bool:
    """Damage a copy of an index."""
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(index, Path(folder, "index"))
        damage(copy)
    return True


def flip(name: Path, places: Sequence[tuple[int, int]], copy: Path) -> None:
    """Flip bits of a byte of a file, and of others, one by one."""
    file = copy / name
    right = file.read_bytes()
    for place, bits in places:
        wrong = bytearray(right)
        wrong[place] ^= bits
        file.write_bytes(wrong)
        try:
            notice(copy)
        except Exception as error:
            raise AssertionError(f"byte {place}: {error!r}") from error


def cut(name: Path, size: int, copy: Path) -> None:
    with (copy / name).open("r+b") as opened:
        opened.truncate(size)
    notice(copy)


def remove(name: Path, copy: Path) -> None:
    (copy / name).unlink()
    notice(copy)


def swap(name: Path, other: Path, copy: Path) -> None:
    one, two = (copy / name).read_bytes(), (copy / other).read_bytes()
    (copy / name).write_bytes(two)
    (copy / other).write_bytes(one)
    notice(copy)


Damage = tuple[str, Callable[[Path], None], int]


def whole_files(index: Path) -> Iterator[Damage]:
    """Damages by which a whole file is another, with how many there are in each."""
    sizes = [(file.relative_to(index), file.stat().st_size) for file in files_of(index)]
    for name, size in sizes:
        yield f"{name} removed", functools.partial(remove, name), 1
        for length in sorted({0, 1, 8, size // 2, size - 8, size - 1}):
            yield f"{name} cut to {length}", functools.partial(cut, name, length), 1
    for (name, _), (other, _) in itertools.combinations(sizes, 2):
        yield f"{name} and {other} swapped", functools.partial(swap, name, other), 1


def flips(places: Sequence[tuple[Path, int]], rng: random.Random) -> Iterator[Damage]:
    """Damages of these bytes, several in each, of one file."""
    for name, group in itertools.groupby(sorted(places), lambda place: place[0]):
        found = [(place, rng.randrange(1, 256)) for _, place in group]
        for first in range(0, len(found), _FLIPS_OF_A_TRIAL):
            chosen = found[first : first + _FLIPS_OF_A_TRIAL]
            yield f"bytes of {name} from {chosen[0][0]} on flipped", functools.partial(flip, name, chosen), len(chosen)


def damages(index: Path, rounds: int, rng: random.Random) -> Iterator[tuple[str, Damage]]:
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
        for index in list(indexes(Path(folder), rng)):
            trials = []
            for kind, (name, damage, count) in damages(index, rounds, rng):
                report.kinds[kind] += count
                trials.append((f"{index.name}: {name}", functools.partial(in_a_copy, index, damage)))
            done = Trials(index.name, len(trials))
            run_isolated(trials, done, hangs_s=_HANGS_S)
            report.problems += done.problems
            report.outcomes["trials in which all was noticed"] += done.failed
    return report


def main() -> None:
    main_of("Damage every file of indexes on disk.", run, 10_000)


if __name__ == "__main__":
    main()
