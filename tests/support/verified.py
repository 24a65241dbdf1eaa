"""What Hypothesis draws of tests that are verified: patterns, and comparisons of attributes."""

import re
from datetime import datetime, timedelta
from typing import Any

from hypothesis import strategies as st
from oracle import AtLeast, Compared, Not, Test, Tree, values_of
from support import filters
from support.filters import Drawn

# -- patterns, which Python's `re` has, too ----------------------------------------------------------------------------

# Few letters, so that patterns are often found; some have more bytes than one, and two differ in their case only
_LETTERS = "ab1_ \néÉ日"
#: Texts to look at
searched = st.text(_LETTERS, max_size=8)
likes = st.text("%%_ab\\é", max_size=6).filter(lambda text: not re.search(r"(?<!\\)(\\\\)*\\\Z", text))

_sets = st.builds(
    "[{}{}]".format,
    st.sampled_from(["", "^"]),
    st.text(_LETTERS, min_size=1, max_size=3).map(re.escape) | st.sampled_from(["a-z", "0-é", r"\--é"]),
)
_atoms = st.sampled_from(_LETTERS).map(re.escape) | _sets | st.just(".")
_of_ascii = st.sampled_from([r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", r"[\da]", r"[^\w]", r"\b"])
_TIMES = ("*", "+", "?", "*?", "{2}", "{1,3}", "{2,}")


def _larger(parts: Drawn) -> Drawn:
    several = st.lists(parts, min_size=1, max_size=3)
    ways = several.map(lambda some: f"(?:{'|'.join(some)})")
    return several.map("".join) | ways | st.builds("(?:{}){}".format, parts, st.sampled_from(_TIMES))


_ways = st.recursive(_atoms | _of_ascii, _larger, max_leaves=6)
_in_any_case = st.recursive(_atoms, _larger, max_leaves=6)
#: Regular expressions
expressions = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "(?s)", "(?m)"]),
    st.sampled_from(["", "", "^", r"\A"]),
    _ways,
    st.sampled_from(["", "", "$", r"\z"]),
) | _in_any_case.map("(?i){}".format)

_classes = st.sampled_from(
    [r"\pL", r"\p{Lu}", r"\P{Ll}", r"\p{^N}", r"\p{Greek}", r"\P{Han}", r"[\p{Latin}\d]", r"[^\p{L}_]"]
)
#: Expressions with classes of Unicode, which Python does not have
of_unicode = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "(?i)"]),
    st.sampled_from(["", "^"]),
    st.recursive(_classes | _atoms, _larger, max_leaves=4),
    st.sampled_from(["", "$"]),
)

# -- tests -------------------------------------------------------------------------------------------------------------

_LATER = (0, 0, 1, -1, 7_200, -604_800, 10**11)
_later = st.sampled_from(_LATER).map(lambda seconds: timedelta(seconds=seconds)) | st.timedeltas(
    timedelta(-500), timedelta(500)
)
_sides = filters.attribute_names | st.just("now()")
compared = st.builds(
    Compared, _sides, st.sampled_from(["=", "!=", "<", "<=", ">", ">="]), _sides, st.just(timedelta()) | _later
).filter(lambda test: {test.left, test.right} != {"now()"})
_patterns = st.builds(Test, filters.attribute_names, st.just("like"), st.tuples(likes)) | st.builds(
    Test, filters.attribute_names, st.just("matches"), st.tuples(expressions)
)
tests = compared | _patterns
_leaves = tests | filters.leaves


def _larger_trees(parts: Drawn) -> Drawn:
    return filters.joined(parts) | st.lists(parts, min_size=1, max_size=4).flatmap(
        lambda some: st.builds(AtLeast, st.integers(1, len(some)), st.just(tuple(some)))
    )


#: With tests that are verified at all places
trees = tests | tests.map(Not) | st.recursive(_leaves, _larger_trees, max_leaves=8)


def _parts(tree: Tree) -> list[Tree]:
    parts = getattr(tree, "parts", ()) or ([tree.part] if isinstance(tree, Not) else [])
    return [tree, *(each for part in parts for each in _parts(part))]


@st.composite
def messages(draw: st.DrawFn, tree: Tree) -> tuple[set[str], dict[str, Any]]:
    """As those of `filters`, with texts in which patterns may be found, alike values on both sides, and their time."""
    tags, attributes = draw(filters.messages(tree))
    now = draw(st.sampled_from([each for each in filters.TIMES if isinstance(each, datetime)]))
    attributes["now()"] = draw(st.just(now) | st.just(now) | st.lists(filters.times, min_size=1, max_size=2))
    for part in _parts(tree):
        if isinstance(part, Test) and part.operator in ("like", "matches"):
            some = st.lists(searched | filters.values, max_size=3) | searched
            attributes[part.attribute] = draw(searched | some)
        if isinstance(part, Compared):
            one: Any = draw(filters.values) if part.right != "now()" else now
            near = [one, *filters.neighbours(one)] if one == one else [one]
            near += [now + part.later] if part.right == "now()" else []
            drawn = st.sampled_from(near) | filters.values
            if part.left != "now()":
                attributes[part.left] = draw(drawn | st.lists(drawn, max_size=3) | st.none())
            if part.right != "now()":
                attributes[part.right] = draw(drawn | st.lists(drawn, max_size=2))
    # Without one, its time is that of the call, which no oracle knows
    attributes["now()"] = values_of(attributes, "now()") or now
    return tags, attributes
