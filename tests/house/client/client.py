"""A user's program, as type checkers see it; `tests/house/test_release.py` has them check it."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import assert_type

from tagmatch import CudaOptions, Overloaded, PipelineOptions, TagMatch, TagMatchError


def changes(tm: TagMatch, sets: Iterable[Iterable[str]]) -> None:
    tm.add_set({"cat", "fr"}, 7)
    tm.add_sets(sets, range(3))
    tm.consolidate()
    assert_type(tm.reload(), bool)
    tm.save(Path("copy.index"))
    tm.add_set(7, ["cat"])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    tm.remove_set(["cat"], "7")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    tm.consolidate(True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def questions(tm: TagMatch, unique: bool) -> int:
    assert_type(tm.match(["cat"]), list[int])
    assert_type(tm.match_unique(["cat"]), set[int])
    assert_type(tm.submit(["cat"]), Future[list[int]])
    assert_type(tm.submit(["cat"], unique=False, block=False), Future[list[int]])
    assert_type(tm.submit(["cat"], unique=True, timeout=0.5), Future[set[int]])
    assert_type(tm.submit(["cat"], unique=unique), Future[list[int]] | Future[set[int]])
    assert_type(tm.explain(["cat"]), list[tuple[frozenset[str], tuple[int, ...]]])
    for tags, keys in tm:
        assert_type(tags, frozenset[str])
        assert_type(keys, tuple[int, ...])
    assert_type(["cat"] in tm, bool)
    tm.to_arrow()
    tm.match_many([["cat"], ["dog"]], unique=unique)
    tm.match_unique(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    return len(tm) + sum(tm.submit(["cat"]).result())


async def awaited(tm: TagMatch, unique: bool) -> None:
    assert_type(await tm.amatch(["cat"]), list[int])
    assert_type(await tm.amatch(["cat"], unique=True), set[int])
    assert_type(await tm.amatch(["cat"], unique=unique), list[int] | set[int])


def main() -> None:
    pipeline, cuda = PipelineOptions(max_queries=5), CudaOptions(devices=(0,))
    try:
        with TagMatch("interests.index", layout="balanced", flush_timeout=None, pipeline=pipeline, cuda=cuda) as tm:
            assert_type(tm, TagMatch)
            changes(tm, [["cat"]])
        with TagMatch.open("interests.index", layout="rarest", exact=False, threads=2, max_partition_size=7) as tm:
            questions(tm, True)
    except Overloaded as error:
        assert_type(error, Overloaded)
    except TagMatchError:
        raise
    TagMatch.open("interests.index", layout="rearest")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    TagMatch.open("interests.index", thread=2)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    names = TagMatch(key_type="string", threads=2)
    assert_type(names, TagMatch[str])
    names.add_set(["cat"], "alice")
    names.add_set(["cat"], 7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(names.match(["cat"]), list[str])
    assert_type(names.submit(["cat"], unique=True), Future[set[str]])
    assert_type(TagMatch.open("names.index", key_type="string").match_unique(["cat"]), set[str])
