"""Tasks that run twice leave the same files: batches come in another order each time."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from support.collisions import colliding_tags
from support.index_files import contents_of, make_index
from support.strategies import COMMON_NAMES
from support.tasks import session

from tagmatch.spark import partition

NAMES = sorted(COMMON_NAMES, key=str.encode)


@pytest.mark.parametrize(("layout", "kind"), [("rarest", "string"), ("balanced", "long")])
def test_tasks_that_run_twice_leave_the_same_files(
    tmp_path: Path, rng: random.Random, seed: int, layout: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tagmatch.partitioner.consolidation.FEW_SETS", 0)
    monkeypatch.setattr("tagmatch.merging.Merging.begin", lambda *_: None)
    tags, seen = [*(f"t{i}" for i in range(60)), *colliding_tags(20)], dict[Path, bytes]()

    def look() -> bool:
        """What a job has left stays as it is: this job is to run once more."""
        there = {path: path.read_bytes() for path in (tmp_path / "spark").rglob("*") if path.is_file()}
        assert all(there.get(path, contents) == contents for path, contents in seen.items())
        seen.update(there)
        return True

    with session(seed) as spark:
        spark.loses_tasks = look
        spark.conf.set("spark.sql.shuffle.partitions", "6")
        for mode in ("overwrite", "append"):
            key = (lambda: rng.choice(NAMES)) if kind == "string" else (lambda: rng.randrange(50))
            rows = [(rng.sample(tags, rng.randint(0, 4)), key()) for _ in range(300)]
            make_index(tmp_path / "local", rows, layout=layout, max_partition_size=20)
            options = {"layout": layout, "max_partition_size": 20, "mode": mode, "sets_per_task": 20}
            frame = spark.createDataFrame(rows, f"tags array<string>, key {kind}")
            seen.clear()
            partition(frame, tmp_path / "spark", **options)
            assert len(seen) > 20
            assert contents_of(tmp_path / "spark") == contents_of(tmp_path / "local")
