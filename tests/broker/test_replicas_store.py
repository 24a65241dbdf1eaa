"""An index that is copied to a store, and followed there: the requests to the store, and the effects of its faults."""

import errno
import random
import threading
from collections import Counter
from dataclasses import replace

import pytest
from support.agreement import index_of
from support.service import config
from support.waiting import wait_until

from tagmatch import TagMatch, TagMatchError
from tagmatch.broker.config import IndexOptions
from tagmatch.broker.replicas import Copies
from tagmatch.broker.service import opened
from tagmatch.model.storage.folders import ArrowFolder
from tagmatch.model.storage.format import MANIFEST

pytest_plugins = ["support.s3_bucket"]

LONG = 60
FILES = ["keys.arrow", "partitions.arrow", "tagsets.arrow", "vocabulary.arrow"]


@pytest.fixture
def writer(tmp_path):
    index_of([[f"t{i}"] for i in range(20_000)], range(20_000), tmp_path / "index").close()
    with TagMatch.open(tmp_path / "index", device="cpu", threads=1) as writer:
        writer._engine.changing.merging.end()
        yield writer


def commit(writer, tag, key):
    writer.add_set([tag], key)
    writer.consolidate()


def together(count, method, *names):
    """Lets requests for these names go on as soon as `count` of them wait: one after the other, they would fail."""
    barrier = threading.Barrier(count)

    def fault(asked, path):
        if asked == method and path.endswith(names):
            barrier.wait(LONG)

    return fault


def settled(copies):
    """Wait until nothing is removed any more of what a newer copy does not need."""
    wait_until(lambda: all(each.done() for each in copies._store._going_on.values()), LONG)


def files_of(log, method):
    return sorted(path.rpartition("/")[2] for asked, path in log if asked == method)


def test_what_a_commit_asks_the_store(writer, tmp_path, uri, asked):
    """The writer has two rounds: all files at once, then the manifest. A replica has two for these each."""
    copies = Copies(str(tmp_path / "index"), uri)
    there = uri.replace("&scheme=http&region=us-east-1", "&region=us-east-1&scheme=http")  # for another process
    copies.copy()
    with TagMatch.open(there, device="cpu", threads=1) as replica:
        for number in range(3):
            commit(writer, f"new {number}", number)
            settled(copies)
            asked.forget()
            asked.fault = together(5, "PUT", *FILES, f"{MANIFEST.removesuffix('.json')}-{number + 1}.json")
            copies.copy()
            log = asked.log[: asked.log.index(("PUT", f"folder/index/{MANIFEST}")) + 1]
            assert Counter(method for method, _ in log) == {"HEAD": 1, "PUT": 6}, log
            settled(copies)
            asked.forget()
            asked.fault = together(4, "GET", *FILES)
            assert replica.reload()
            assert files_of(asked.log, "HEAD") == files_of(asked.log, "GET") == sorted([MANIFEST, *FILES])
            assert replica.match([f"new {number}"]) == [number]
            asked.forget()
            assert not replica.reload()
            assert asked.log == [("HEAD", f"folder/index/{MANIFEST}")]


def test_two_writers_do_not_take_turns(writer, tmp_path, uri):
    """The one that began last goes on: what answers never changes between two indexes."""
    first = Copies(str(tmp_path / "index"), uri)
    first.copy()
    other = index_of([["other"]], [7], tmp_path / "other")
    second = Copies(str(tmp_path / "other"), uri)
    second.copy()
    commit(writer, "lost", 8)
    for _ in range(2):
        with pytest.raises(TagMatchError, match=r"another program copies an index to s3a://.*/folder/index, too"):
            first.copy()
        assert first.behind() > 0
    commit(other, "new", 9)
    second.copy()
    with TagMatch.open(uri, device="cpu") as replica:
        assert (replica.match(["other", "new"]), replica.match(["lost"])) == ([7, 9], [])
    other.close()


def test_a_copy_that_was_removed_is_made_anew(writer, tmp_path, uri, bucket):
    copies = Copies(str(tmp_path / "index"), uri)
    copies.copy()
    bucket[0].delete_dir("folder/index")
    commit(writer, "new", 8)
    with pytest.raises(TagMatchError, match="was removed; it is made anew"):
        copies.copy()
    copies.copy()
    with TagMatch.open(uri, device="cpu") as replica:
        assert sorted(replica.match(["new", "t3"])) == [3, 8]
        replica.check()


def follower(uri):
    """Of a replica in another process, which knows nothing of what this one has read."""
    there = uri.replace("&scheme=http&region=us-east-1", "&region=us-east-1&scheme=http")
    return opened(replace(config(), index=IndexOptions(there, follow=True, device="cpu", threads=1, auto_reload=0.01)))


@pytest.mark.slow
def test_a_store_that_fails_now_and_then(writer, tmp_path, uri, asked):
    """It answers late, by 503, or with half a body: each answer is that of a commit, and the last commit comes."""
    seed = random.randrange(2**32)
    print("seed", seed)
    draw, wrong, committed = random.Random(seed), [], 0
    with Copies(str(tmp_path / "index"), uri) as copies:
        copies.copy()
        with follower(uri) as index:
            asked.fail_now_and_then(draw, 0.3)
            for number in range(1, 16):
                writer.remove_set(["state"], number - 1)
                commit(writer, "state", number)
                committed, until = number, number + 1
                for _ in range(20):
                    keys = index.match(["state"])
                    if len(keys) > 1 or not set(keys) <= set(range(until)):
                        wrong.append(keys)
                    if keys == [number]:
                        break
                    threading.Event().wait(0.02)
            failed = asked.failed
            asked.forget()
            wait_until(lambda: index.match(["state"]) == [committed], LONG)
            wait_until(lambda: copies.behind() == 0.0 and index.stats()["reload_error"] is None, LONG)
            index.check()
    print(f"{committed} commits, {failed} requests failed, {len(wrong)} wrong")
    assert (wrong, failed > 20) == ([], True)
    with TagMatch.open(uri, device="cpu") as copy:
        copy.check()


def test_what_a_replica_reads_may_be_removed(writer, tmp_path, uri, asked):
    """While it waits for files, newer snapshots come until these files are gone: it takes over the newest one."""
    copies, waits, goes_on = Copies(str(tmp_path / "index"), uri), threading.Event(), threading.Event()
    copies.copy()
    before = set(copies._store.names())
    with follower(uri) as index:
        commit(writer, "new", 1)

        def fault(method, path):
            if method == "HEAD" and path.endswith(tuple(FILES)):
                waits.set()
                goes_on.wait(LONG)

        asked.fault = fault
        copies.copy()
        assert waits.wait(LONG)
        first = set(copies._store.names()) - before
        assert any(name.startswith("segment-") for name in first)
        for number in range(2, 8):
            commit(writer, "new", number)
            copies.copy()
        settled(copies)
        assert {name for name in first if name.startswith("segment-")}.isdisjoint(copies._store.names())
        assert index.match(["new"]) == []
        goes_on.set()
        wait_until(lambda: sorted(index.match(["new"])) == [*range(1, 8)], LONG)
        assert index.stats()["reload_error"] is None
        index.check()


def test_the_disk_of_a_replica_is_full(writer, tmp_path, uri, monkeypatch):
    """It goes on with what it has, says why, leaves no half of a file, and follows when there is room."""
    copies, full = Copies(str(tmp_path / "index"), uri), threading.Event()
    copies.copy()
    with follower(uri) as index:
        fetch = ArrowFolder.fetch

        def fetched(store, name, file):
            if full.is_set():
                file.write_bytes(b"half")
                raise OSError(errno.ENOSPC, "No space left on device")
            fetch(store, name, file)

        monkeypatch.setattr(ArrowFolder, "fetch", fetched)
        full.set()
        commit(writer, "new", 1)
        copies.copy()
        wait_until(lambda: "No space left" in str(index.stats()["reload_error"]), LONG)
        assert "the variable TMPDIR names the folder" in index.stats()["reload_error"]
        assert (index.match(["new"]), index.match(["t3"])) == ([], [3])
        folder = index._engine.changing._location.files._copies
        assert not [file for file in folder.rglob("*") if file.is_file() and file.read_bytes() == b"half"]
        full.clear()
        wait_until(lambda: index.match(["new"]) == [1], LONG)
        assert index.stats()["reload_error"] is None
