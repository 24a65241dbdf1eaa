"""Files that another program cuts short or writes over while an index is open: nothing wrong is answered, or saved."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch

import pytest
from support.index_files import contents_of
from support.waiting import wait_until

from tagmatch import IndexCorruptError, TagMatch
from tagmatch.model.options import Layout

OPTIONS: dict[str, Any] = {"device": "cpu", "threads": 1}
SETS = [[f"tag {i}", "all"] for i in range(60)]
KEYS = [f"key {i}" for i in range(60)]
QUERY = ["all", *(f"tag {i}" for i in range(60)), "new"]


@pytest.fixture(params=get_args(Layout))
def index(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    path = tmp_path / "index"
    with TagMatch(path, layout=request.param, key_type="string", max_partition_size=9, **OPTIONS) as tm:
        tm.add_sets(SETS, KEYS, expires=timedelta(days=999))
        tm.consolidate()
    shutil.copytree(path, tmp_path / "copy")
    return path


def cut(file: Path) -> None:
    """Not to nothing: who reads behind the last page is ended by the system."""
    os.truncate(file, file.stat().st_size // 2)


def overwrite(file: Path) -> None:
    size = file.stat().st_size
    with file.open("r+b") as opened:
        opened.write(bytes(size))


def cut_and_filled(file: Path) -> None:
    """As of a program that writes files anew in place: `cp`, `rsync --inplace`."""
    size = file.stat().st_size
    os.truncate(file, 0)
    os.truncate(file, size)


def tables(path: Path) -> list[Path]:
    return sorted(path.glob("segment-*/*.arrow"))


@pytest.mark.parametrize("damage", [cut, overwrite, cut_and_filled])
@pytest.mark.parametrize("full", [False, True])
def test_nothing_is_saved_from_files_that_have_changed(
    index: Path, tmp_path: Path, damage: Callable[[Path], None], full: bool
) -> None:
    def others() -> dict[str, bytes]:
        return {name: contents for name, contents in contents_of(path).items() if "staged-" not in name}

    for number in range(6):
        path = Path(shutil.copytree(index, tmp_path / "damaged"))
        with TagMatch.open(path, **OPTIONS) as tm:
            tm.add_set(["new"], "staged")
            file = tables(path)[number]
            damage(file)
            before = others()
            for save in (lambda tm=tm: tm.consolidate(full=full), lambda tm=tm: tm.save(tmp_path / "saved")):
                with pytest.raises(IndexCorruptError, match=rf"{file.name} was overwritten or cut short"):
                    save()
            assert not (tmp_path / "saved").exists()
            assert others() == before
        shutil.rmtree(path)


CALLS: list[Callable[[TagMatch[Any]], object]] = [
    lambda tm: tm.match(QUERY), lambda tm: tm.match_many([QUERY]), lambda tm: tm.submit(QUERY).result(),
    lambda tm: tm.explain(QUERY), lambda tm: tm.to_arrow(), list, lambda tm: SETS[0] in tm, lambda tm: tm.check(),
    lambda tm: tm.stats(),
]  # fmt: skip


def is_told(tm: TagMatch[Any]) -> bool:
    try:
        tm.stats()
    except IndexCorruptError:
        return True
    return False


@pytest.mark.parametrize("damage", [cut, overwrite])
def test_it_is_told_and_goes_on_when_the_files_are_back(index: Path, damage: Callable[[Path], None]) -> None:
    with TagMatch.open(index, **OPTIONS) as tm:
        tm.add_set(["new"], "staged")
        for file in tables(index):
            right = file.read_bytes()
            damage(file)
            wait_until(lambda: is_told(tm))
            for call in CALLS:
                with pytest.raises(IndexCorruptError, match="was overwritten or cut short"):
                    call(tm)
            assert "60 sets" in repr(tm)
            file.unlink()
            file.write_bytes(right)
            assert tm.reload()
            assert sorted(tm.match(QUERY)) == sorted(KEYS)
            os.utime(file)  # one that is only touched is good
        tm.consolidate()
        for file in tables(index):
            file.unlink()  # one that is removed, too
        assert sorted(tm.match(QUERY)) == sorted([*KEYS, "staged"])
        tm.check()


@pytest.fixture
def segments_stay() -> Iterator[None]:
    with patch("tagmatch.partitioner.consolidation.FEW_SETS", 0), patch("tagmatch.merging.Merging.begin"):
        yield


@pytest.mark.usefixtures("segments_stay")
def test_segments_are_not_merged_from_files_that_have_changed(index: Path) -> None:
    with TagMatch.open(index, **OPTIONS) as tm:
        old = tables(index)
        tm.add_sets([["new", f"tag {i}"] for i in range(50)], KEYS[:50])
        tm.consolidate()
        assert tm.stats()["to_merge"] > 1
        cut(next(file for file in old if file.name == "keys.arrow"))
        with pytest.raises(IndexCorruptError, match=r"keys.arrow was overwritten or cut short"):
            tm._engine.changing.merge()
        assert len(list(index.glob("segment-*"))) == 2


@pytest.mark.usefixtures("segments_stay")
def test_a_commit_sees_that_files_that_stay_are_whole(index: Path) -> None:
    """Replaced by others, so that the mapped ones stay good, but the next program would not find these."""
    with TagMatch.open(index, **OPTIONS) as tm:
        tm.add_set(["new"], "staged")
        file = tables(index)[0]
        right = file.read_bytes()
        copy = index.parent / "copy" / file.relative_to(index)
        for replaced, says in (
            (lambda: file.write_bytes(right[:-8]), "has"),
            (lambda: file.symlink_to(copy), "is a link"),
            (lambda: file.write_bytes(right), None),
        ):
            file.unlink()
            replaced()
            with pytest.raises(IndexCorruptError, match=f"{file.name} {says}") if says else nullcontext():
                tm.consolidate()
        assert sorted(tm.match(QUERY)) == sorted([*KEYS, "staged"])
