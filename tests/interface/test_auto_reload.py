"""Readers that take up newer snapshots by themselves: wholly, soon, and until they are closed."""

import gc
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from support.agreement import index_of
from support.waiting import wait_until

from tagmatch import TagMatch
from tagmatch.model.parallel import GivenUpError, unless
from tagmatch.model.storage.folders import LocalFolder
from tagmatch.model.storage.repository import Repository, location_of

pytest_plugins = ["support.s3_bucket"]

SOON = 0.005
AGES = 1e9
TIMEOUT = 60

TAGS = [f"t{i}" for i in range(30)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save(tmp_path / "index", 0)
    return tmp_path / "index"


def save(path: Path, key: int, **options: Any) -> None:
    with TagMatch(path, device="cpu", durability="none", **options) as tm:
        for tags, keys in tm:
            tm.remove_sets([tags] * len(keys), keys)
        tm.add_sets([[tag] for tag in TAGS], [key] * len(TAGS))
        tm.consolidate()


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "tagmatch-reload"]


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    yield
    gc.collect()
    wait_until(lambda: not threads())


@pytest.fixture
def looks() -> Iterator[Callable[[], None]]:
    """Waits for a reading of the manifest by a thread in the background that begins from then on to end."""
    with patch.object(Repository, "manifest", autospec=True, side_effect=Repository.manifest) as read:

        def wait() -> None:
            before = read.call_count
            wait_until(lambda: read.call_count > before + 2)

        yield wait


@pytest.mark.parametrize("seconds", [None, AGES])
def test_never_by_default_nor_before_its_time(path: Path, seconds: float | None) -> None:
    with TagMatch.open(path, auto_reload=seconds) as tm, TagMatch.open(path, auto_reload=SOON) as other:
        assert len(threads()) == (1 if seconds is None else 2)
        save_over(path, 1)
        wait_until(lambda: other.match(["t1"]) == [1])
        assert tm.match(["t1"]) == [0]


def test_only_the_manifest_is_read_where_nothing_is_new(path: Path, looks: Any, monkeypatch: Any) -> None:
    with TagMatch(path, auto_reload=SOON) as tm:
        snapshot = tm.snapshot
        monkeypatch.setattr(Repository, "open", None)
        looks()
        assert tm.snapshot is snapshot
        for key in range(1, 10):
            tm.add_set(["t1"], key)
            tm.consolidate()
        looks()
        assert (sorted(tm.match(["t1"])), tm.stats()["reload_error"]) == ([*range(10)], None)


def test_queries_do_not_wait(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, go_on, opened = threading.Event(), threading.Event(), Repository.open

    def slow(folder: Repository, *earlier: Any) -> Any:
        entered.set()
        assert go_on.wait(TIMEOUT)
        return opened(folder, *earlier)

    with TagMatch.open(path, device="cpu", auto_reload=SOON) as tm:
        monkeypatch.setattr(Repository, "open", slow)
        save_over(path, 1)
        assert entered.wait(TIMEOUT)
        assert tm.match(["t1"]) == tm.match_many([["t1"]])[0].as_py() == tm.submit(["t1"]).result(TIMEOUT) == [0]
        go_on.set()
        wait_until(lambda: tm.match(["t1"]) == [1])


def test_no_thread_stays(path: Path) -> None:
    """Of one that is closed, or that is never closed, for which the fixture looks."""
    with TagMatch.open(path, auto_reload=SOON):
        assert len(threads()) == 1
    assert threads() == []
    TagMatch.open(path, auto_reload=SOON)


def test_what_is_being_opened_is_given_up(path: Path, uri: str) -> None:
    """So that `close` does not wait for all bytes of an index to be read, or copied."""
    with TagMatch.open(path) as tm:
        tm.save(uri)
    for place in (str(path), uri):
        with unless(lambda: True), pytest.raises(GivenUpError):
            location_of(place, "path").open()


def test_an_index_that_is_away_for_a_while(path: Path, looks: Any, caplog: Any) -> None:
    """It is told once, what there was goes on answering, and the index is followed again when it is back."""
    away = path.with_name("away")
    with caplog.at_level(logging.INFO), TagMatch.open(path, auto_reload=SOON) as tm:
        assert tm.stats()["reload_error"] is None
        path.rename(away)
        told = f"IndexNotFoundError: there is no index at {path}: no such folder"
        wait_until(lambda: tm.stats()["reload_error"] == told)
        looks()
        assert (tm.match(["t1"]), tm.stats()["reload_error"]) == ([0], told)
        assert [told for name, _, told in caplog.record_tuples if name == "tagmatch.background"] == [
            f"a newer snapshot is not taken over: {told}"
        ]
        caplog.clear()
        save(away, 1)
        away.rename(path)
        wait_until(lambda: tm.match(["t1"]) == [1])
        wait_until(lambda: tm.stats()["reload_error"] is None)
        assert "tagmatch.background" not in {name for name, *_ in caplog.record_tuples}


def test_an_index_that_comes_back_while_it_is_looked_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder without a manifest is told of one that was moved here between two looks."""
    away, kind = path.with_name("away"), LocalFolder.kind
    path.rename(away)

    def comes_back(files: LocalFolder, name: str = "") -> Any:
        if away.exists():
            away.rename(path)
        return kind(files, name)

    monkeypatch.setattr(LocalFolder, "kind", comes_back)
    with TagMatch.open(path) as tm:
        assert tm.match(["t1"]) == [0]


@pytest.mark.parametrize("durability", ["os", "none"])
def test_staged_changes_stay_staged(path: Path, durability: Any) -> None:
    """As with `reload`: they come on top of what another program has saved."""
    with TagMatch(path, auto_reload=SOON, durability=durability) as tm:
        tm.add_set(["t1"], 100)
        save_over(path, 1)
        wait_until(lambda: tm.match(["t1"]) == [1])
        assert tm.stats()["staged"] == 1
        tm.consolidate()
        assert sorted(tm.match(["t1"])) == [1, 100]


def save_over(path: Path, key: int) -> None:
    """As `save`, where another program has changes staged: what it has logged is left alone."""
    with index_of([[tag] for tag in TAGS], [key] * len(TAGS), device="cpu") as other:
        other.save(path)


@pytest.mark.slow
def test_an_index_on_a_store(path: Path, uri: str, bucket: Any) -> None:
    with TagMatch.open(path) as tm:
        tm.save(uri)
    with TagMatch.open(uri, auto_reload=SOON) as reader:
        save(path, 1)
        with TagMatch.open(path) as tm:
            tm.save(uri)
        wait_until(lambda: reader.match(["t1"]) == [1])
        bucket[0].delete_file("folder/index/MANIFEST.json")
        wait_until(lambda: "it has no MANIFEST.json" in str(reader.stats()["reload_error"]))
        assert reader.match(["t1"]) == [1]
        with TagMatch.open(path) as tm:
            tm.save(uri)
        wait_until(lambda: reader.stats()["reload_error"] is None)


PARENT = """
import os, sys
from tagmatch import TagMatch
from tagmatch.model.storage import byte_store

def forked(end):
    child = os.fork()
    if not child:
        end()
    assert os.waitpid(child, 0)[1] == 0

def follow():  # when the parent's copies are gone
    import shutil
    shutil.rmtree(byte_store.folder_for_copies())
    assert len(TagMatch.open(sys.argv[1], device="cpu")) == 1
    sys.exit()

tm = TagMatch.open(sys.argv[1], device="cpu")
with byte_store.temporary_folder() as folder:
    forked(sys.exit)  # handlers of exit run, as in a worker of a server that forks
    assert folder.is_dir()
forked(follow)
assert tm.match(["a"]) == [1]
print(*byte_store._made)
"""


@pytest.mark.slow
def test_the_end_of_a_child_leaves_the_copies_of_its_parent(uri: str) -> None:
    index_of([["a"]], [1], device="cpu").save(uri)
    done = subprocess.run([sys.executable, "-c", PARENT, uri], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()
    assert not [folder for folder in done.stdout.split() if Path(folder).exists()], "it leaves them behind"
