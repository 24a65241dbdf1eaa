"""Hypothesis strategies for tags, sets, queries, keys and changes."""

import operator
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

#: few enough that one set is often contained in another; among them all kinds of tags that could be confused
COMMON_TAGS = (
    "", "a", "b", "A", "ab", "abc", "a b", "é", "e\u0301", "\0", "a\0", "日本語", "🙂", "x" * 70, "x" * 71,
)  # fmt: skip
NUMBERED_TAGS = tuple(f"n{i}" for i in range(5_000))

BOUNDARY_KEYS = (0, 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1)

#: in no order; among them a key that is the beginning of another, and a fox that in UTF-16, not in UTF-8, comes
#: before the wide tilde
COMMON_NAMES = (
    "bob", "alice", "", "🦊", "～", "alic", "Alice", "é", "日本", "x" * 70, "b\0", "b",
    "3f2b8c1e-0000-4000-8000-7d1e5a9b0c44",
)  # fmt: skip

layouts = st.sampled_from(["rarest", "balanced"])


def fewer(part: int = 4) -> settings:
    """For a test that is repeated with several engines or paths, a part of the examples each."""
    return settings(max_examples=max(2, settings().max_examples // part))


common_tags = st.sampled_from(COMMON_TAGS)
long_tags = st.builds(operator.mul, st.text(min_size=1, max_size=3), st.integers(1, 5_000))
#: what begins as constraints do is reserved
tags = (common_tags | st.text(max_size=20) | long_tags).filter(lambda tag: tag[:2] not in ("\0+", "\0-", "\0="))


#: 1 to 300 tags, overlapping
large_sets = st.builds(
    lambda start, size: list(NUMBERED_TAGS[start : start + size]), st.integers(0, 20), st.integers(1, 300)
)
#: may repeat tags
tag_sets = st.lists(common_tags, max_size=6) | st.lists(tags, max_size=6) | large_sets

huge_queries = st.lists(tags, max_size=6).map(lambda others: [*others, *NUMBERED_TAGS])
queries = st.lists(common_tags, max_size=2 * len(COMMON_TAGS)) | tag_sets | huge_queries
query_lists = st.lists(queries, max_size=6)

keys = st.integers(0, 5) | st.sampled_from(BOUNDARY_KEYS) | st.integers(0, 2**64 - 1)
names = st.sampled_from(COMMON_NAMES) | st.text(max_size=20)
pairs = st.tuples(tag_sets, keys)
named_pairs = st.tuples(tag_sets, names)


@st.composite
def changes(
    draw: st.DrawFn, pairs: st.SearchStrategy[tuple[list[str], Any]] = pairs
) -> list[tuple[bool, list[str], Any]]:
    """Additions (true) and removals of few different pairs, so that removals often meet additions."""
    pool = draw(st.lists(pairs, min_size=1, max_size=12))
    added = st.sampled_from([True, True, False])
    return [(draw(added), *pair) for pair in draw(st.lists(st.sampled_from(pool), max_size=2 * len(pool)))]
