"""The first answer of a computer: programs that are done once, with nothing compiled before."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping

from tagmatch_bench.figures.figure import PARTS
from tagmatch_bench.harness.bench import Bench
from tagmatch_bench.harness.results import Result, Target
from tagmatch_bench.harness.timing import Samples

_WITH = "import tempfile\nfrom tagmatch import Circle, TagMatch\nwith TagMatch(tempfile.mkdtemp() + '/index') as tm:\n"

# What a first program asks, its code, and how many seconds of a processor it should take at most
_PROGRAMS: Mapping[str, tuple[str, float]] = {
    "tags": ("add_set(['en'], 1); tm.consolidate(); assert tm.match(['en', 'fr']) == [1]", 3.0),
    "conditions": (
        "add_sets([['en'], ['en']], [1, 2], where=[None, 'price < 9']); tm.consolidate()\n"
        "    assert sorted(tm.match(['en'], {'price': 5})) == [1, 2]\n"
        "    assert tm.match_many([['en'], ['fr']]).to_pylist() == [[1], []]",
        5.0,
    ),
    "areas": (
        "add_set(['en'], 1, where='price < 9', area=Circle(1, 2, 5)); tm.consolidate()\n"
        "    assert tm.match(['en'], {'price': 5}, location=(1, 2)) == [1]",
        6.0,
    ),
}
_WARM_UP = Target(60.0, at_most=True)


def first(bench: Bench, *, parts: tuple[str, ...] = PARTS["first"]) -> Result:
    """Seconds of processors that first programs take, from their begin to their end, with an empty cache."""
    result = bench.result(
        "first",
        "First answers, with an empty cache of kernels",
        """Each program begins with an empty cache of kernels, makes an index of one or two sets in a folder, and asks
        it. Seconds are those of all its threads and processes, from the begin of the interpreter to its end.""",
        parts=parts,
    )
    for name in filter(_PROGRAMS.__contains__, parts):
        code, most = _PROGRAMS[name]
        samples = [_seconds_of(f"{_WITH}    tm.{code}") for _ in range(bench.options.rounds)]
        result.add(f"first answer: {name}", Samples(tuple(samples)), "s", Target(most, at_most=True))
    if "warmup" in parts:
        result.add("tagmatch warmup", _seconds_of("import tagmatch; tagmatch.warm_up()"), "s", _WARM_UP)
    return result


def _seconds_of(code: str) -> float:
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "XDG_CACHE_HOME": cache, "NUMBA_CACHE_DIR": ""}
        before = _of_children()
        subprocess.run([sys.executable, "-c", code], env=environment, check=True)
        return _of_children() - before


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
