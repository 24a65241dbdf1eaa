"""Damage to the files of an index on disk: it is always noticed, whatever it is and wherever.

`python -m faults.damage --rounds 5000 --seed 7`, in `tests`, prints what was tried and what went wrong.
"""

from __future__ import annotations

import functools
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from faults.full_index import NOTICED, TAGS, FullIndex, make_index, notice
from faults.rounds import Report, main_of
from faults.sweep import Report as Trials
from faults.sweep import run_isolated
from support.command import tagmatch_alone

from tagmatch.model.options import KeyType, Layout

_HANGS_S = 60
_ROUNDS_OF_AN_INDEX = 200
_LAYOUTS = get_args(Layout)


def _not_empty(files: list[Path]) -> list[Path]:
    return [file for file in files if file.stat().st_size]


def flip_a_byte(files: list[Path], rng: random.Random) -> None:
    file = rng.choice(_not_empty(files))
    data = bytearray(file.read_bytes())
    data[rng.randrange(len(data))] ^= rng.randrange(1, 256)
    file.write_bytes(data)


def cut_short(files: list[Path], rng: random.Random) -> None:
    file = rng.choice(_not_empty(files))
    size = file.stat().st_size
    with file.open("r+b") as opened:
        opened.truncate(rng.choice([0, size - 1, rng.randrange(size)]))


def append_bytes(files: list[Path], rng: random.Random) -> None:
    with rng.choice(files).open("ab") as opened:
        opened.write(rng.choice([b"\0", b"\n", b" ", rng.randbytes(rng.randrange(1, 5_000))]))


def remove_a_file(files: list[Path], rng: random.Random) -> None:
    rng.choice(files).unlink()


def swap_two_files(files: list[Path], rng: random.Random) -> None:
    one, other = rng.sample(files, 2)
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def zero_a_block(files: list[Path], rng: random.Random) -> None:
    """Overwrite a block of the file system by zeros, as a crash may leave it."""
    file = rng.choice(_not_empty(files))
    data = bytearray(file.read_bytes())
    first = rng.randrange(0, len(data), 4096)
    data[first : first + 4096] = bytes(len(data[first : first + 4096]))
    file.write_bytes(data)


Damage = Callable[[list[Path], random.Random], None]
DAMAGES: tuple[Damage, ...] = (flip_a_byte, cut_short, append_bytes, remove_a_file, swap_two_files, zero_a_block)
# May end a log in its last call, but no sooner
_OF_SOME_BYTES = (flip_a_byte, append_bytes)


def new_index(folder: Path, rng: random.Random) -> FullIndex:
    """Make an index of a random kind and size."""
    key_type, count = rng.choice([*get_args(KeyType), "integer"]), rng.choice([5, 300, 3_000])
    keys: list[Any] = [rng.randrange(2**40) for _ in range(count)]
    if key_type == "string":
        keys = [f"key {key}" for key in keys]
    options = {"layout": rng.choice(_LAYOUTS), "key_type": key_type, "max_partition_size": rng.choice([1, 7, 200_000])}
    return make_index(folder / "index", [(rng.sample(TAGS, rng.randrange(6)), key) for key in keys], rng, **options)


def notices(index: FullIndex, damage: Damage, name: str, outcomes: Path) -> bool:
    """Damage a copy of the index, and open it; adds what became of that to a file.

    What the locks have in them does not matter, nor is it damage to overwrite zeros by zeros.
    """
    rng = random.Random(name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "index")
        shutil.copytree(index.path, path)
        damage(sorted(file for file in path.rglob("*") if file.is_file()), rng)
        options = {"layout": rng.choice(_LAYOUTS)} if rng.random() < 0.5 else {}
        calls = len(index.changes) - 1
        outcome = notice(index, path, fewest=calls - 1 if damage in _OF_SOME_BYTES else 0, **options)
        with outcomes.open("a") as out:
            print(outcome, file=out)
    return outcome == NOTICED


def command_notices(index: FullIndex, name: str) -> bool:
    """Damage a table in a copy of the index, and have the command open it."""
    rng = random.Random(name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "index")
        shutil.copytree(index.path, path)
        flip_a_byte(sorted(path.rglob("*.arrow*")), rng)
        tagmatch_alone(rng.choice(["check", "info"]), path, code=1)
    return True


def run(rounds: int, seed: int) -> Report:
    """Damage indexes, in processes that are forked off; returns what there was, and what went wrong."""
    report = Report()
    for first in range(0, rounds, _ROUNDS_OF_AN_INDEX):
        rng = random.Random(f"{seed}/{first}")
        with tempfile.TemporaryDirectory() as folder:
            index, outcomes = new_index(Path(folder), rng), Path(folder, "outcomes")
            outcomes.touch()
            trials = [(f"command {seed}/{first}", functools.partial(command_notices, index, f"{seed}/{first}"))]
            for number in range(first, min(first + _ROUNDS_OF_AN_INDEX, rounds)):
                damage, name = rng.choice(DAMAGES), f"{seed}/{number}"
                report.kinds[damage.__name__] += 1
                trials.append((f"{damage.__name__} {name}", functools.partial(notices, index, damage, name, outcomes)))
            done = Trials("damage", len(trials))
            run_isolated(trials, done, hangs_s=_HANGS_S)
            report.problems += done.problems
            report.outcomes.update(outcomes.read_text().splitlines())
    return report


def main() -> None:
    main_of("Damage indexes on disk.", run, 5_000)


if __name__ == "__main__":
    main()
