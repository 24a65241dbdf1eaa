"""Sets that share their rarest tag, and the tags after it, found without reading each of them."""

import itertools
import random
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import Oracle

from tagmatch import TagMatch
from tagmatch.pipeline import rarest

KNOWN = [f"t{i}" for i in range(14)]
SOME = st.sets(st.sampled_from(KNOWN), min_size=1, max_size=7)
ASKED = st.lists(st.sampled_from([*KNOWN, "unknown"]), max_size=40)


@pytest.fixture(autouse=True, params=["walked", "scanned", "directly"])
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Walk large clusters, or scan them as those of fewer than thousands of rows; or all, as of a small segment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rarest, "FEW_QUERIES", 0)
        if request.param != "directly":
            patch.setattr(rarest, "FEW_BYTES", -1)
        if request.param == "walked":
            patch.setattr(rarest, "WALK_ROWS", rarest.SCAN_ROWS)
        yield


def answers(sets: list[list[str]], queries: list[list[str]]) -> None:
    """Compare what each query finds, alone and with the others, with the oracle's answer."""
    oracle = Oracle()
    oracle.add_sets(sets, range(len(sets)))
    oracle.consolidate()
    wanted = [sorted(oracle.match(query)) for query in queries]
    with TagMatch(device="cpu", threads=1) as tm:
        tm.add_sets(sets, range(len(sets)))
        tm.consolidate()
        assert [sorted(tm.match(query)) for query in queries] == wanted
        assert [sorted(keys) for keys in tm.match_many(queries).to_pylist()] == wanted
    numbers(sets, queries, wanted)


def numbers(sets: list[list[str]], queries: list[list[str]], found: list[list[int]]) -> None:
    """Count keys, one of some sets and two of others, also those that are left of them; blocks come behind each other.

    `found` are the sets that each query contains.
    """
    count, rows = len(sets), [*range(len(sets)), *range(0, len(sets), 3)]
    keys, cuts = range(len(rows)), (0, count // 20, count // 2)  # all are left, few are deleted, half are laid out anew
    table = pa.table({"tags": [sets[row] for row in rows], "key": pa.array(keys, pa.uint64()), "n": rows})
    with TagMatch(device="cpu", threads=1, data={"n": "int64"}) as tm:
        for first, last in ((0, count), (count, len(rows))):
            tm.put_many(table.slice(first, last - first))
            tm.consolidate()
            for least in cuts:
                only = f"n >= {least}" if least else None
                of_sets = Counter(row for row in rows[:last] if row >= least)
                wanted = [sum(of_sets[row] for row in each) for each in found]
                assert tm.match_counts(queries, only=only).to_pylist() == wanted
                many, times = [*queries, *[["unknown"]] * 60] * 4, range(4)
                exist = [*(each > 0 for each in wanted), *[[] in (sets[row] for row in of_sets)] * 60]
                assert tm.match_exists_many(many, only=only).to_pylist() == [each for _ in times for each in exist]


def test_long_sets_and_many_keys() -> None:
    """Queries lack one tag, at each place of sets of each length, which have one key and many."""
    sets = [KNOWN[first : first + size] for size in range(1, 15) for first in range(15 - size)]
    repeated = [tags for place, tags in enumerate(sets) for _ in range(place % 20 + 1)]
    answers(repeated, [[tag for tag in KNOWN if tag != left_out] for left_out in ["", *KNOWN]])


@settings(max_examples=30)
@given(st.lists(SOME, min_size=1, max_size=20), st.lists(ASKED, min_size=1, max_size=10), st.booleans())
def test_any_sets_of_few_tags(some: list[set[str]], queries: list[list[str]], has_empty: bool) -> None:
    """All subsets of some sets: clusters of up to 64 rows and more, in which most rows begin as the one before."""
    subsets = {
        tags for each in some for size in range(1, len(each) + 1) for tags in itertools.combinations(sorted(each), size)
    }
    answers([list(tags) for tags in sorted(subsets)] + [[]] * has_empty, [*queries, KNOWN, []])


def test_hundreds_of_rows_that_fail_at_one_tag() -> None:
    """Rows behind one that failed are passed over until their ranks differ, wherever in the row that is."""
    rng = random.Random(1)
    behind = [f"b{i}" for i in range(12)]
    sets = [["rare", first, *rest] for first in ("x", "y", "z") for rest in itertools.combinations(behind, 4)]
    sets += [[tag, f"other{i}"] for tag in (*behind, "x", "y", "z") for i in range(2000)]
    queries = [["rare", *rng.sample(behind, 6), *rng.sample(("x", "y", "z"), k)] for k in (0, 1, 1, 2, 3)]
    answers(sets, [*queries, ["rare", *behind, "z"], ["rare"], ["x", *behind]])


@pytest.mark.parametrize("length", [250, 256, 400])
def test_rows_that_share_hundreds_of_tags(length: int) -> None:
    """As many ranks that rows share as a byte counts, and more."""
    long = [f"l{i:03}" for i in range(length)]
    sets = [[*long[: length - cut], f"end{i}"] for cut in (0, 1, 3) for i in range(20)] + [long, long[:-2]]
    sets += [[f"end{i}", f"other{j}"] for i in range(20) for j in range(70)]  # so that these are not the rarest
    queries = [[*long, "end3"], [*long[:-1], "end3", "end19"], long, long[:-2], [*long[1:], "end3"], long[::-1] * 2]
    answers(sets, queries)


def test_tags_that_a_query_has_several_times() -> None:
    """Rows of small clusters and of large ones are found once each; tags that no set has are not among those."""
    large = [["rare", *some] for some in itertools.combinations("abcdefgh", 3)] + [["rare"]]
    sets = [*large, *([tag, f"other{i}"] for tag in "abcdefgh" for i in range(70)), ["few", "a"], ["few"], []]
    queries = [[*"abc", "rare", "few"] * 2, ["rare", *"ab", "x", "few", "y", "x", "few"], ["few", "few"], ["x", "x"]]
    answers(sets, [*queries, [tag for _ in range(40) for tag in ("few", "rare", *"hgfa")], ["rare", "rare"]])


def test_a_call_of_more_queries_than_a_byte_has_numbers() -> None:
    """A query's ranks are stamped with its number, which comes again; a second call goes on."""
    rng = random.Random(2)
    sets = [rng.sample(KNOWN, rng.randint(1, 4)) for _ in range(60)] + [[]]
    asked = [rng.sample([*KNOWN, "unknown"], rng.randint(0, 6)) for _ in range(700)]
    oracle = Oracle()
    oracle.add_sets(sets, range(len(sets)))
    oracle.consolidate()
    with TagMatch(device="cpu", threads=1) as tm:
        tm.add_sets(sets, range(len(sets)))
        tm.consolidate()
        for queries in (asked[:300], asked[300:]):
            found = tm.match_many(queries).to_pylist()
            assert [sorted(keys) for keys in found] == [sorted(oracle.match(query)) for query in queries]


def test_rows_of_some_and_of_many_tags() -> None:
    """Short rows are looked at rank by rank, up to 128 at once; those that have hundreds of ranks, one by one."""
    rng = random.Random(3)
    sets = [["rare", *rng.sample(KNOWN, rng.randint(0, 7))] for _ in range(300)]
    sets += [["rare", *(f"long{i}" for i in range(size)), KNOWN[0]] for size in (100, 200, 700)]
    sets += [[tag, f"other{i}"] for tag in KNOWN for i in range(400)]
    sets += [[f"long{i}", f"other{j}"] for i in range(700) for j in range(2)]
    queries = [["rare", *rng.sample(KNOWN, size)] for size in (0, 3, 10, 14)]
    answers(sets, [*queries, [*KNOWN, "rare", *(f"long{i}" for i in range(300))], ["rare", "rare"]])


def test_ranks_that_share_a_bit() -> None:
    """A query alone has fewer bits than an index ranks: the rows that these let through are compared exactly."""
    rng = random.Random(1)
    firsts, seconds = [f"first{i}" for i in range(5000)], [f"second{i}" for i in range(60)]
    small = [[tag, rng.choice(firsts)] for tag in (f"a{i}" for i in range(3000))]
    large = [["rare", tag] for tag in seconds] + [[tag, f"other{i}"] for tag in seconds for i in range(60)]
    queries = [["rare", *rng.sample(firsts, 15)] for _ in range(100)]
    queries += [[tag for pair in rng.sample(small, 16) for tag in rng.sample(pair, 1)] for _ in range(600)]
    answers([*small, *large, *([tag, "end"] for tag in firsts)], [*queries, ["rare", "second7", "second9"]])
