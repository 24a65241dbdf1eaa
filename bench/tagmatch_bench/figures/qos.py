"""`tagmatch-bench qos`: Table 1 and Figures 6 to 12 of "Pub/Sub on Stream" in the simulator, channel by channel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tagmatch.model.options import Channel
from tagmatch_bench.figures import published_qos as published
from tagmatch_bench.figures.qos_figures import PARTS, THREE, Runs, figures
from tagmatch_bench.harness.results import Row
from tagmatch_bench.qos.channels import Flow
from tagmatch_bench.qos.kernels import EXACT, Messages
from tagmatch_bench.qos.options import QosOptions
from tagmatch_bench.qos.simulator import POLICIES, ChannelResult, run, simulate, work_of

if TYPE_CHECKING:
    from tagmatch_bench.harness.bench import Bench
    from tagmatch_bench.harness.results import Result


@dataclass(frozen=True, slots=True)
class QosSizes:
    """How much is simulated, and what is wanted; see the command's help."""

    messages: int = 20_000
    seeds: int = 10
    parts: tuple[str, ...] = PARTS


def qos(bench: Bench, sizes: QosSizes) -> Result:
    """Simulate all parts that are wanted."""
    result = bench.result(
        "qos",
        "Messages with deadlines, simulated",
        f"""Table 1 and Figures 6 to 12 of "Pub/Sub on Stream" (Wang et al., DEBS 2012) in an event-driven simulator,
        whose kernels have the published algorithms, and times in whole nanoseconds: nothing here is timed by a clock.
        Two channels have the paper's periods, processing times and deadlines (Table 2). A message of channel 1 is an
        H phase and one SubC phase, one of channel 2 an H phase and ten; the paper does not say how many it had. *Fail*
        are messages that are answered late, deserted or dropped, of each channel and of all together: channel 1 has
        nine of ten messages, so that all together hides channel 2. *QoS-ignorant* has cores take messages in turn,
        each of them whole. *DFGS* is Algorithm 3 with cores in turn, *Smart Dispatch* is Algorithm 4 with indivisible
        messages. What Algorithm 3 calls the head of a queue, behind which tasks go, is the running task, which is
        better for it; in *head waits* it is the first task that waits. *EDF* has one queue for all cores, takes the
        task of the message with the earliest deadline, and drops messages that are or would be late. *Periodic*
        messages come once a period from a random time on, as the paper's; *Poisson* are as many at random. Values are
        means of {sizes.seeds} seeds with about {sizes.messages:,} messages each. Of its lines the paper prints few
        values; those stand beside.""",
        messages=sizes.messages,
        seeds=sizes.seeds,
        parts=sizes.parts,
    )
    simulation = Simulation(sizes.messages, range(bench.options.seed, bench.options.seed + sizes.seeds))
    works: dict[str, Callable[[], object]] = {"table1": partial(_table1, result), **figures(simulation, result)}
    for part in PARTS:
        if part in sizes.parts:
            with bench.doing(f"qos: simulating {part}"):
                works[part]()
    result.add("messages simulated, each of them answered or dropped", simulation.messages, "messages")
    return result


class Simulation(Runs):
    """Simulates scenarios, and counts messages."""

    def __init__(self, each: int, seeds: Sequence[int]) -> None:
        super().__init__(seeds)
        self._each = each
        self.messages = 0

    def once(self, options: QosOptions, policy: str, seed: int) -> list[ChannelResult]:
        """What becomes of the channels' messages."""
        results = simulate(replace(options, messages=self._each, seed=seed), POLICIES[policy])
        self.messages += sum(each.offered for each in results)
        return results


def _table1(result: Result) -> None:
    """Simulate one message alone, with Table 1's times, and how these are shared out to tasks."""
    time = result.panel("Table 1: a message alone", "subscriptions", "ms", log=False)
    share = result.panel("Table 1: share of the H phase", "subscriptions", "%", log=False)
    alone = Messages(*(np.array([value], np.int64) for value in (0, 0, EXACT)))
    for subscriptions, (milliseconds, h_share) in published.TABLE1.items():
        at = f"{subscriptions:,}"
        flow = Flow(Channel(at, 1.0), 1.0, milliseconds / 1e3, h_share / 100, parts=10)
        for name in THREE:
            time.add(name, at, run(alone, work_of([flow]), 1, POLICIES[name])[0] / 1e6)
        share.add("simulated", at, 100 * flow.tasks[0] / sum(flow.tasks))
        time.published.append(Row("a message", milliseconds, "ms", x=at))
        share.published.append(Row("H phase", h_share, "%", x=at))
