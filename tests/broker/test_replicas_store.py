"""An index that is copied to a store, and followed there: what the store is asked, and what becomes of its faults."""

import threading
from collections import Counter

import pytest
from support.agreement import index_of
from support.waiting import wait_until

from tagmatch import TagMatch, TagMatchError
from tagmatch.broker.replicas import Copies
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
    """Lets requests for these names go on as soon as so many wait: one after the other, they would fail."""
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
