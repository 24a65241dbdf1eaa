"""Work on an index on a disk that becomes full, and on which there is room again later.

`python -m faults.small_disk FOLDER SEED` works in a folder of such a disk, which `full_disks` gives it; prints how many
calls failed.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch

from faults.work import Step, Work
from oracle import Oracle
from support.expiring import times_of
from support.index_files import unnamed_in

from tagmatch import TagMatch, TagMatchError
from tagmatch.model.options import Durability, Layout

_OPTIONS: dict[str, Any] = {"threads": 1, "device": "cpu"}
_BLOCK = 4096
_FIRST, _FULL, _LATER = 30, 25, 15


class Index:
    """An index, and what it must have."""

    def __init__(self, path: Path, rng: random.Random) -> None:
        layout, durability = rng.choice(get_args(Layout)), rng.choice([None, *get_args(Durability)])
        self.lasts = durability != "none"
        self.path, self.tm, self.oracle = (
            path,
            TagMatch(path, layout=layout, durability=durability, **_OPTIONS),
            Oracle(),
        )

    def do(self, step: Step) -> bool:
        """Make a call; returns whether it failed, and raises where that has changed anything."""
        said = ""
        try:
            step.do(self.tm)
        except TagMatchError as error:
            said = str(error)
        if not said or "may not be on disk" in said:
            step.do(self.oracle)
        self.tm._engine.changing.merging.wait()
        self.tm.check()
        found = self.tm.stats()["staged"], times_of(self.tm)
        assert found == (self.oracle.staged, self.oracle.times()), f"{step.name} has changed the index: {said}"
        return bool(said)

    def check_files(self) -> None:
        """See that the next program would find all; on another disk, as this one has no room."""
        if self.lasts and self.path.exists():
            with tempfile.TemporaryDirectory() as folder:
                copy = shutil.copytree(self.path, Path(folder, "index"))
                with TagMatch(copy, **_OPTIONS) as tm:
                    tm.consolidate()
                    assert times_of(tm) == self.oracle.staged_again().times(), "the next program does not find all"


def fill(folder: Path, free: int) -> Path:
    """Fill the disk but for about so many bytes; returns the file that does."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        room = shutil.disk_usage(folder).free
        file.write(bytes(max(0, room - free) // _BLOCK * _BLOCK))
    return ballast


def main() -> None:
    """Work with room, without, and with room again."""
    folder, seed = Path(sys.argv[1]), sys.argv[2]
    rng, work = random.Random(seed), Work(seed, "integer")
    warnings.simplefilter("ignore")
    with patch("tagmatch.partitioner.consolidation.FEW_SETS", 0):
        index = Index(folder / "index", rng)
        first = rng.randrange(_FIRST)
        assert not any(index.do(work.step(number)) for number in range(first))
        ballast = fill(folder, int(150_000 * rng.random() ** 2))
        failed = sum(index.do(work.step(number)) for number in range(first, first + _FULL))
        index.check_files()
        ballast.unlink()
        steps = [*map(work.step, range(first + _FULL, first + _FULL + _LATER)), Step("consolidate", ())]
        assert not any(index.do(step) for step in steps), "there is room again"
        index.do(Step("add_set", (["one more"], 1)))
        index.do(Step("consolidate", ()))
        index.check_files()
        index.tm.close()
    left = unnamed_in(index.path)
    assert not left, f"left behind: {left}"
    print(failed)


if __name__ == "__main__":
    main()
