"""The oracle itself, against a literal reading of the definition."""

import ast
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from oracle import Oracle, evaluate
from support import distances, filters, strategies
from support.conditions import Expression


@given(rounds=st.lists(strategies.changes(), max_size=3), query=strategies.queries)
def test_definition(rounds, query):
    built, pairs = Oracle(), set()
    for changes in rounds:
        for added, tags, key in changes:
            (built.add_set if added else built.remove_set)(tags, key)
        assert len(built) == len({tags for tags, _ in pairs})
        built.consolidate()
        for added, tags, key in changes:
            (pairs.add if added else pairs.discard)((frozenset(tags), key))
    matching = {(tags, key) for tags, key in pairs if all(tag in query for tag in tags)}
    assert len(built) == len({tags for tags, _ in pairs})
    assert built.match(query) == sorted(key for _, key in matching)
    assert built.match_unique(query) == {key for _, key in matching}
    explained = built.explain(query)
    assert {(tags, key) for tags, keys in explained for key in keys} == matching
    assert len({tags for tags, _ in explained}) == len(explained)


@given(stored=st.lists(st.tuples(st.sets(filters.tags), filters.trees), max_size=4), data=st.data())
def test_expressions(stored, data):
    """A key is an answer if its expression holds, as a whole; a removed one is no longer one."""
    built, spelling = Oracle(), data.draw(filters.spellings)
    expressions = [Expression.of(tree, spelling) for _, tree in stored]
    built.add_sets([tags for tags, _ in stored], range(len(stored)), where=expressions)
    built.consolidate()
    for _, tree in stored:
        tags, attributes = data.draw(filters.messages(tree))
        found = {key for key, (own, of) in enumerate(stored) if own <= tags and evaluate(of, tags, attributes)}
        assert built.match_unique(tags, attributes) == found
    for key, (tags, _) in enumerate(stored):
        built.remove_set(tags, key, where=expressions[key])
    built.consolidate()
    assert dict(built) == {}


def test_imports_only_the_standard_library():
    """And what it takes from the tests' own modules imports no more."""
    own = {"support.distances": distances}
    for module in (sys.modules[Oracle.__module__], *own.values()):
        tree = ast.parse(Path(module.__file__).read_text())
        modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        modules |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
        assert {name.partition(".")[0] for name in modules - own.keys()} <= sys.stdlib_module_names
