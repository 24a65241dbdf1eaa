"""Systems in C++ give the oracle's answers; and `tagmatch-bench peers`."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bench import at, is_told, measured, run, spoil
from support.servers import needs
from support.strategies import BOUNDARY_KEYS
from support.tables import answers, right_answers, table_of, tag_rows

from tagmatch.workloads.twitter import Twitter, TwitterOptions
from tagmatch_bench.figures.figure import PARTS
from tagmatch_bench.harness.data import extend
from tagmatch_bench.systems.catalogue import CPP, CPP_BLOCKS, GRID, LIMIT, PEERS, PYTHON_DICT, RAREST, TT_JOIN, System
from tagmatch_bench.systems.native import CppRarest, _library
from tagmatch_bench.systems.tagmatch import dictionary_encoded

DATA = PARTS["peers"][:-1]
SMALL = ("--scale", 0.0005, "--queries", 60, "--rounds", 2, "--seconds", 0.001)

LONG = "a tag of more than sixteen bytes"
TAGS = st.sampled_from([*"abcdefgh", "", "é", "e\u0301", LONG]) | st.text("abé", max_size=9)
ROWS = st.lists(st.tuples(st.lists(TAGS, max_size=7), st.integers(0, 3) | st.sampled_from(BOUNDARY_KEYS)), max_size=25)
QUERIES = st.lists(st.lists(TAGS | st.text("xyz", min_size=1, max_size=2), max_size=12), max_size=6)


@pytest.fixture(autouse=True, scope="module")
def compiler() -> None:
    needs("g++", "g++")


@pytest.fixture(params=PEERS, scope="module")
def system(request: pytest.FixtureRequest) -> System:
    return PEERS[request.param]


@given(rows=ROWS, asked=QUERIES)
def test_small_tables(system: System, rows: list[tuple[list[str], int]], asked: list[list[str]]) -> None:
    """With strings, with dictionaries, and one query after the other; also of slices."""
    distinct = list({(frozenset(tags), key): (tags, key) for tags, key in rows}.values())
    sets, queries = table_of(distinct), tag_rows(asked)
    right, matcher = right_answers(sets, queries), system(sets, 1)
    prepared = matcher.prepare(queries)
    for part in (slice(None), slice(1, None), slice(0, 2), slice(0, 0)):
        assert answers(matcher, prepared[part]) == right[part]
    assert [sorted(keys) for keys in matcher.match_many(prepared, unique=True).to_pylist()] == [*map(sorted, right)]
    if isinstance(matcher, CppRarest):
        assert answers(matcher, dictionary_encoded(queries)) == right
        assert [sorted(matcher.match(query)) for query in asked] == [sorted(keys.elements()) for keys in right]
    matcher.close()


def test_twitter_like_sets(system: System) -> None:
    """More than a block of queries, whose answers outgrow their first memory, and are kept while others are made."""
    sets = Twitter(TwitterOptions(hashtags=200)).sets(0, 200).slice(3, 6000)
    sets = sets.set_column(1, "key", [list(range(len(sets)))])
    queries = extend(sets, 700, 2, 4, seed=1)
    matcher = system(sets, 1)
    first = matcher.match_many(matcher.prepare(queries))
    second = matcher.match_many(matcher.prepare(queries[:300]))
    assert first[:300].to_pylist() == second.to_pylist()
    assert answers(matcher, matcher.prepare(queries)) == right_answers(sets, queries)
    assert len(first.flatten()) > 5000


def test_peers(tmp_path: Path) -> None:
    found = measured("peers", tmp_path, *SMALL)
    systems = {RAREST, CPP, CPP_BLOCKS, TT_JOIN, LIMIT, PYTHON_DICT, f"{RAREST}, unique"}
    systems |= {f"{each}, dictionary-encoded" for each in (RAREST, CPP, CPP_BLOCKS)}
    systems |= {f"{each}, one query" for each in (RAREST, CPP, PYTHON_DICT)}
    places = found.places("queries")
    assert places.keys() == systems
    assert all(data == {*DATA} - ({"large"} if name in (TT_JOIN, LIMIT) else set()) for name, data in places.items())
    assert all(value > 0 for value in found.values("queries").values())
    assert found.compared("brute force").keys() >= {RAREST, f"{RAREST}, unique", GRID}
    assert found.compared(RAREST) == dict.fromkeys(systems - {RAREST, f"{RAREST}, unique"}, len(DATA)) | {
        TT_JOIN: len(DATA) - 1,
        LIMIT: len(DATA) - 1,
    }
    ratios = sorted(what.rpartition(": ")[2] for what in found.limits if what.startswith("netflix"))
    assert ratios == sorted((
        f"{RAREST} against the sooner C++", f"{RAREST}, dictionary-encoded against the sooner C++",
        f"{RAREST}, one query against {CPP}", f"{RAREST} against {TT_JOIN}", f"{RAREST} against {LIMIT}",
        f"{RAREST}, unique against {RAREST}",
    ))  # fmt: skip
    assert not any("circles" in what for what in found.limits), "there are few"
    areas = {"tagmatch, areas", "tagmatch, end to end", GRID}
    assert found.places("areas, uniform, 0.01 % each: messages") == at(areas, {50, 500})
    assert found.parameters["scale"] == 0.0005


@pytest.mark.parametrize("more", [True, False])
def test_a_system_that_answers_wrongly_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: bool) -> None:
    spoil(monkeypatch, CppRarest, more=more)
    skipped = [option for name in (CPP_BLOCKS, PYTHON_DICT) for option in ("--skip", name)]
    done = run("peers", tmp_path, *SMALL, "--part", "100", "--part", "aol", *skipped)
    is_told(done, tmp_path, "peers", CPP, more=more)


@pytest.fixture
def compiled_anew() -> Iterator[None]:
    _library.cache_clear()
    yield
    _library.cache_clear()


@pytest.mark.parametrize(
    ("name", "told"),
    [("none", "needs a C++ compiler: there is no none"), ("false", "false cannot compile")],
)
@pytest.mark.usefixtures("compiled_anew")
def test_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, told: str) -> None:
    """All systems that need one are left out and named, with the reason."""
    monkeypatch.setenv("CXX", name)
    found = measured("peers", tmp_path, *SMALL, "--part", "100", "--part", "areas")
    assert found.places("queries").keys() >= {RAREST, PYTHON_DICT}
    assert found.unavailable.keys() >= {*PEERS, GRID}
    assert all(told in found.unavailable[name] for name in (*PEERS, GRID))
