"""Damage to every file of an index on disk, one after the other: it is noticed when the index is opened.

A round is so many of the first and last bytes of the files of each index, so many bytes anywhere, and so many times
that a whole file is cut, removed, swapped with another one, longer, or zeros in part.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from faults.driver import Case, Length, Program
from faults.full_index import NOTICED, TAGS, FullIndex, make_index, notice
from support.command import tagmatch_alone
from support.index_files import files_of
from support.parts import cut_every

from tagmatch.model.options import KeyType, Layout

_HEAD, _FOOT = 256, 1024
_FLIPS_OF_A_CASE = 32
_SIZES, _MORE_SIZES = (200,), (200, 5, 3_000)
_LONG = 1_000
_BLOCK = 4096

#: Damages a copy of an index; returns the first call that may be lost, of those that have staged changes
Damage = Callable[[FullIndex, Path, random.Random], int]


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
            outcome = _noticed(index, copy, rng, fewest=len(index.changes) - 2)
        except Exception as error:
            raise AssertionError(f"byte {place}: {error!r}") from error
        found[outcome] += 1
        if outcome != NOTICED:
            shutil.rmtree(copy)
            shutil.copytree(index.path, copy)
    return found


def _noticed(index: FullIndex, copy: Path, rng: random.Random, *, fewest: int) -> str:
    layout = {"layout": rng.choice(get_args(Layout))} if rng.random() < 0.5 else {}
    return notice(index, copy, fewest=fewest, **layout)


def cut(name: Path, size: int, _: FullIndex, copy: Path, __: random.Random) -> int:
    with (copy / name).open("r+b") as opened:
        opened.truncate(size)
    return 0


def remove(name: Path, _: FullIndex, copy: Path, __: random.Random) -> int:
    (copy / name).unlink()
    return 0


def swap(name: Path, other: Path, _: FullIndex, copy: Path, __: random.Random) -> int:
    one, two = (copy / name).read_bytes(), (copy / other).read_bytes()
    (copy / name).write_bytes(two)
    (copy / other).write_bytes(one)
    return 0


def append(name: Path, index: FullIndex, copy: Path, rng: random.Random) -> int:
    with (copy / name).open("ab") as opened:
        opened.write(rng.choice([b"\0", b"\n", b" ", rng.randbytes(rng.randrange(1, 5_000))]))
    return len(index.changes) - 2


def zero_a_block(name: Path, _: FullIndex, copy: Path, rng: random.Random) -> int:
    """Overwrite a block of the file system by zeros, as a crash may leave it."""
    data = bytearray((copy / name).read_bytes())
    first = rng.randrange(0, len(data), _BLOCK)
    data[first : first + _BLOCK] = bytes(len(data[first : first + _BLOCK]))
    (copy / name).write_bytes(data)
    return 0


def command_opens(_: FullIndex, copy: Path, rng: random.Random) -> Counter[str]:
    """Damage a table, and have the command open the index."""
    name = rng.choice(sorted(copy.rglob("*.arrow*")))
    data = bytearray(name.read_bytes())
    data[rng.randrange(len(data))] ^= rng.randrange(1, 256)
    name.write_bytes(data)
    tagmatch_alone(rng.choice(["check", "info"]), copy, code=1)
    return Counter([NOTICED])


def whole_files(sizes: Sequence[tuple[Path, int]]) -> Iterator[tuple[str, str, Damage]]:
    """Damages by which a whole file is another, with their kinds and names."""
    for name, size in sizes:
        yield "removed", f"{name}", functools.partial(remove, name)
        yield "longer", f"{name}", functools.partial(append, name)
        yield "zeros", f"{name}", functools.partial(zero_a_block, name)
        for length in sorted({0, 1, 8, size // 2, size - 8, size - 1}):
            yield "cut", f"{name} to {length}", functools.partial(cut, name, length)
    for (name, _), (other, _) in itertools.combinations(sizes, 2):
        yield "swapped", f"{name} and {other}", functools.partial(swap, name, other)


def flips(places: Sequence[tuple[Path, int]]) -> Iterator[tuple[str, Callable[..., Counter[str]]]]:
    """Damages of these bytes, several in each, of one file."""
    for name, group in itertools.groupby(sorted(places), lambda place: place[0]):
        found = [place for _, place in group]
        for first in range(0, len(found), _FLIPS_OF_A_CASE):
            some = found[first : first + _FLIPS_OF_A_CASE]
            yield f"{name} from {some[0]} on", functools.partial(flip, name, some)


def _in_a_copy(
    index: FullIndex, damaged: Callable[..., Counter[str]], folder: Path, rng: random.Random
) -> Counter[str]:
    return damaged(index, shutil.copytree(index.path, folder / "index"), rng)


def _whole(damage: Damage, index: FullIndex, copy: Path, rng: random.Random) -> Counter[str]:
    return Counter([_noticed(index, copy, rng, fewest=damage(index, copy, rng))])


def _cases(rounds: int, folder: Path, rng: random.Random) -> Iterator[Case]:
    for index in indexes(folder, _MORE_SIZES if rounds >= _LONG else _SIZES, rng):
        sizes = [(file.relative_to(index.path), file.stat().st_size) for file in files_of(index.path)]
        edges = [(name, place) for name, size in sizes for place in range(size) if not _HEAD <= place < size - _FOOT]
        anywhere = rng.choices(sizes, [size for _, size in sizes], k=rounds)
        found: list[tuple[str, str, Any]] = [
            *(("first and last bytes", *each) for each in flips(rng.sample(edges, min(rounds, len(edges))))),
            *(("any bytes", *each) for each in flips([(name, rng.randrange(size)) for name, size in anywhere])),
        ]
        whole = [(kind, name, functools.partial(_whole, damage)) for kind, name, damage in whole_files(sizes)]
        found += rng.sample(whole, min(rounds, len(whole)))
        for kind, name, damaged in found:
            yield Case(kind, f"{index.path.name}: {name}", functools.partial(_in_a_copy, index, damaged))
    yield Case("command", "", functools.partial(_in_a_copy, index, command_opens))


PROGRAM = Program(_cases, Length(30, 500, 5_000), wanted=(NOTICED,), in_a_process=20)
