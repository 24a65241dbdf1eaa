"""`tagmatch-bench follow`: how long after a commit those who follow an index answer from it."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.fs

from tagmatch import TagMatch
from tagmatch.broker.config import FOLLOW_S, Config, IndexOptions
from tagmatch.broker.replicas import Copies
from tagmatch.broker.service import opened
from tagmatch_bench.harness.bench import Bench
from tagmatch_bench.harness.results import Result, Target
from tagmatch_bench.harness.timing import Samples

#: Sets of each commit, commits of a round, and the seconds in which each has to arrive
SETS, COMMITS, PROMISED = 10, 20, 1.0
_LOOK_S, _PAUSE_S, _BEGINS_S = 0.005, 0.1, 60.0


def following(bench: Bench) -> Result:
    """Commit small changes, and wait for each with who follows the folder, and a copy of it."""
    result = bench.result(
        "follow",
        "Following an index",
        f"""{bench.in_words(bench.sets())} in a folder. {SETS} sets are added and consolidated, {COMMITS} times a round;
        each time, it is measured how long after `consolidate` has returned those who follow the index, every
        {FOLLOW_S:g} s, answer with these sets: in its folder, in a copy in another folder of the same disk, and in a
        copy in an S3 (moto, which runs in another Python process). The next commit comes {_PAUSE_S:g} s after all
        have it.""",
        commits=COMMITS,
    )
    workload = bench.workload(bench.sets())
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        writer = stack.enter_context(TagMatch(folder / "index", device="cpu", threads=bench.options.threads))
        with bench.doing("follow: building the index"):
            writer.add_sets(workload.sets["tags"], workload.sets["key"])
            writer.consolidate()
        places = {"its folder": str(folder / "index"), "a copy in a folder": str(folder / "copy")}
        if (store := _store(stack)) is not None:
            places["a copy in S3"] = store
        with bench.doing("follow: copying the index"):
            for place in [*places.values()][1:]:
                copies = stack.enter_context(Copies(places["its folder"], place))
                copies.copy()
        found = {
            name: stack.enter_context(opened(Config(index=IndexOptions(place, follow=True, device="cpu"))))
            for name, place in places.items()
        }
        taken: dict[str, list[float]] = {name: [] for name in found}
        for number in range(bench.options.rounds):
            with bench.doing(f"follow: round {number + 1} of {bench.options.rounds}"):
                for commit in range(COMMITS):
                    _commit(writer, number * COMMITS + commit, found, taken)
    panel = result.panel("from a commit to its answers", "", "s")
    for name, seconds in taken.items():
        panel.add(name, "median", Samples(tuple(seconds)))
        panel.add(name, "longest", max(seconds))
        late = sum(each > PROMISED for each in seconds)
        result.add(
            f"{name}: of {len(seconds)} commits, came after {PROMISED:g} s", late, "commits", Target(0, at_most=True)
        )
    return result


def _commit(writer: TagMatch, number: int, found: dict[str, TagMatch], taken: dict[str, list[float]]) -> None:
    tag = f"commit {number}"
    writer.add_sets([[tag]] * SETS, range(number * SETS, (number + 1) * SETS))
    writer.consolidate()
    began, waiting = time.perf_counter(), dict(found)
    while waiting:
        for name, tm in list(waiting.items()):
            if len(tm.match([tag])) == SETS:
                taken[name].append(time.perf_counter() - began)
                del waiting[name]
        time.sleep(_LOOK_S)
    time.sleep(_PAUSE_S)


def _store(stack: ExitStack) -> str | None:
    """The URI of an index in an S3 of this machine; `None` if moto is not installed."""
    if find_spec("moto") is None:
        return None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", where.rpartition(":")[2]]
    store = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    stack.callback(store.wait)
    stack.callback(store.terminate)
    end = time.monotonic() + _BEGINS_S
    while True:
        try:
            urllib.request.urlopen(f"http://{where}/moto-api/").close()
            break
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(_PAUSE_S)
    pyarrow.fs.S3FileSystem(
        access_key="someone", secret_key="secret", endpoint_override=where, scheme="http", region="us-east-1",
        allow_bucket_creation=True,
    ).create_dir("bucket")  # fmt: skip
    return f"s3://someone:secret@bucket/index?endpoint_override={where}&scheme=http&region=us-east-1"
