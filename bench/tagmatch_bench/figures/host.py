"""What a packet for a CUDA device costs the host, without a device."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from tagmatch.model.columns import tag_lists
from tagmatch.model.options import MatchOptions
from tagmatch_bench.harness.idle_driver import idle_driver
from tagmatch_bench.harness.timing import Samples, rates
from tagmatch_bench.systems.catalogue import OURS
from tagmatch_bench.systems.tagmatch import build_index

if TYPE_CHECKING:
    from collections.abc import Callable

    from tagmatch.model.arrays import TagLists
    from tagmatch.model.options import Layout
    from tagmatch.pipeline.matcher import Matcher
    from tagmatch_bench.harness.bench import Bench
    from tagmatch_bench.harness.results import Result

#: Queries of a packet
PACKETS = (1, 64, 4096, 1 << 17)

_MOST_PACKETS = 1 << 16


def host(bench: Bench) -> Result:
    """Time of the host for packets of several sizes, with a CUDA driver that does nothing."""
    sets = bench.sets()
    result = bench.result(
        "host",
        "Host time of packets for CUDA devices",
        f"""{bench.in_words(sets)}. One thread takes packets, one after the other, through all stages of a matcher on a
        CUDA device. Its driver does nothing: kernels, copies and allocations take no time, and there are no answers,
        so that what is measured is the Python and the copies within host memory that each packet takes. With a
        device there come beside it what Numba takes to launch a kernel, and the copies of answers.""",
        packets=PACKETS,
    )
    a_packet = result.panel("a packet", "queries of a packet", "µs", "lines")
    a_query = result.panel("a query", "queries of a packet", "µs", "lines")
    workload = bench.workload(sets)
    (queries,) = tag_lists(workload.queries, "queries")
    with ExitStack() as built:
        segments = {
            name: built.enter_context(
                build_index(workload.sets, layout=name, threads=bench.options.threads, device="cpu")
            ).snapshot.segments[0]
            for name in OURS
        }
        built.enter_context(idle_driver())
        from tagmatch.pipeline.cuda.matcher import CudaMatcher

        works: dict[tuple[Layout, int], Callable[[int], None]] = {}
        for layout, segment in segments.items():
            matcher = CudaMatcher(segment, MatchOptions(threads=bench.options.threads))
            works |= {(layout, size): partial(_match, matcher, queries, size) for size in PACKETS}
        options = bench.options
        with bench.doing("host: matching"):
            found = rates(
                {f"{layout}, {size}": work for (layout, size), work in works.items()},
                _MOST_PACKETS,
                rounds=options.rounds,
                seconds=options.seconds,
            )
    for layout, size in works:
        seconds = [1 / rate for rate in found[f"{layout}, {size}"].values]
        a_packet.add(layout, float(size), Samples(tuple(1e6 * each for each in seconds)))
        a_query.add(layout, float(size), Samples(tuple(1e6 * each / size for each in seconds)))
    return result


def _match(matcher: Matcher, queries: TagLists, size: int, packets: int) -> None:
    for _ in range(packets):
        matcher.preprocess(queries, 0, size).subset_match().key_lookup()
