"""Brokers of messages with deadlines in plain Python, moment by moment: slow, and easy to follow."""

import itertools
from dataclasses import dataclass, replace
from fractions import Fraction

from hypothesis import strategies as st

#: When a message is answered that never is
NEVER = -1


@dataclass(frozen=True)
class Asked:
    """What a channel asks for; `tasks` are pairs: what each takes for one message, and for one more of a batch."""

    deadline: int
    expiry: int
    priority: int
    longest: int
    tasks: tuple[tuple[int, int], ...]

    def alone(self, first: int = 0) -> int:
        return sum(alone for alone, _ in self.tasks[first:])


@dataclass(frozen=True)
class Sent:
    """A message; `pace` is how long it takes for 1 expected."""

    arrival: int
    channel: int
    pace: Fraction

    def takes(self, expected: int) -> int:
        return max(1, int(expected * self.pace))


Scenario = tuple[list[Sent], list[Asked]]

#: Scenarios of an example, all alike: what tells orders apart is rare in each
EACH = 10


@st.composite
def scenarios(draw: st.DrawFn, most_tasks: int) -> list[Scenario]:
    """What scenarios are like is drawn; their numbers are random, so that few of them are small."""
    rng = draw(st.randoms(use_true_random=False, note_method_calls=False))
    most_channels, longest_gap = draw(st.integers(1, 3)), draw(st.integers(0, 12))
    exact, expiry, most = draw(st.booleans()), draw(st.sampled_from([0, 0, 5, 30])), draw(st.integers(1, most_tasks))

    def channel() -> Asked:
        tasks = tuple((alone := rng.randint(1, 6), rng.randint(1, alone)) for _ in range(rng.randint(1, most)))
        deadline = max(1, sum(alone for alone, _ in tasks) + rng.randint(-1, 40))
        return Asked(deadline, deadline + expiry, rng.randint(0, 1), rng.randint(1, 15), tasks)

    def scenario() -> Scenario:
        channels = [channel() for _ in range(rng.randint(1, most_channels))]
        arrivals = itertools.accumulate(rng.randint(0, longest_gap) for _ in range(rng.randint(0, 30)))
        paces = (Fraction(1) if exact else Fraction(rng.randint(1 << 15, 1 << 17), 1 << 16) for _ in itertools.count())
        return [Sent(at, rng.randrange(len(channels)), next(paces)) for at in arrivals], channels

    return [scenario() for _ in range(EACH)]


def fifo(sent: list[Sent], channels: list[Asked], cores: int) -> list[int]:
    """Round robin; each core has one whole message after the other."""
    ends, free = [NEVER] * len(sent), [0] * cores
    for m, message in sorted(enumerate(sent), key=lambda each: each[1].arrival):
        whole = sum(message.takes(alone) for alone, _ in channels[message.channel].tasks)
        ends[m] = free[m % cores] = max(free[m % cores], message.arrival) + whole
    return ends


def edf(sent: list[Sent], channels: list[Asked], cores: int, most: int) -> list[int]:
    """Earliest deadline first, one queue for all cores; drops what would expire."""
    ends: list[int | None] = [None] * len(sent)
    waiting: set[tuple[int, int]] = set()  # messages, each with the task that it waits for
    running: list[tuple[list[int], int, int] | None] = [None] * cores
    now = 0
    while None in ends:
        for core in range(cores):
            job = running[core]
            if job is not None and job[2] == now:
                for m in job[0]:
                    if job[1] + 1 == len(channels[sent[m].channel].tasks):
                        ends[m] = now
                    else:
                        waiting.add((m, job[1] + 1))
                running[core] = None
        waiting |= {(m, 0) for m, message in enumerate(sent) if message.arrival == now}
        for core in range(cores):
            while running[core] is None and waiting:

                def urgency(each: tuple[int, int]) -> tuple[int, int, int]:
                    asked = channels[sent[each[0]].channel]
                    return sent[each[0]].arrival + asked.deadline, -asked.priority, each[0]

                m, task = min(waiting, key=urgency)
                waiting.remove((m, task))
                asked, arrival = channels[sent[m].channel], sent[m].arrival
                if now + asked.alone(task) > arrival + asked.expiry:
                    ends[m] = NEVER
                    continue
                batch, expected = [m], asked.tasks[task][0]
                for other in sorted(each for each, its in waiting if its == task):
                    if sent[other].channel != sent[m].channel:
                        continue
                    longer = expected + asked.tasks[task][1]
                    in_time = now + longer + asked.alone(task + 1) <= arrival + asked.deadline
                    if len(batch) == most or longer > asked.longest or not in_time:
                        break
                    waiting.remove((other, task))
                    batch.append(other)
                    expected = longer
                running[core] = (batch, task, now + sent[m].takes(expected))
        now += 1
    return [end for end in ends if end is not None]


@dataclass
class Core:
    """A core with its queue of tasks, each a message and a number, and the task that runs: when it ends, and should."""

    queue: list[tuple[int, int]]
    running: tuple[int, int] | None = None
    ends: int = 0
    expected: int = 0


def dfgs(
    sent: list[Sent], channels: list[Asked], ways: list[list[bool]], *, fine: bool, smart: bool, keep_head: bool
) -> list[int]:
    """Algorithms 3 and 4; `ways` says by channel and core where a channel has one."""
    if not fine:
        channels = [replace(asked, tasks=((asked.alone(), 1),)) for asked in channels]
    cores = [Core([]) for _ in ways[0]]
    ends: list[int | None] = [None] * len(sent)
    now = 0

    def begin_next(core: Core) -> None:
        if core.running is None and core.queue:
            m, task = core.running = core.queue.pop(0)
            expected = channels[sent[m].channel].tasks[task][0]
            core.ends, core.expected = now + sent[m].takes(expected), now + expected

    def due(m: int) -> int:
        return sent[m].arrival + channels[sent[m].channel].deadline

    def time_of(tasks: list[tuple[int, int]]) -> int:
        return sum(channels[sent[m].channel].tasks[task][0] for m, task in tasks)

    def inserted(m: int, core: Core) -> bool:
        block = [(m, task) for task in range(len(channels[sent[m].channel].tasks))]
        start = now if core.running is None else max(now, core.expected)
        queue = core.queue
        mark = 0 if keep_head and queue else -1
        for i in range(len(queue)):
            fails = start + time_of([*queue[:i], *block, queue[i]]) > due(queue[i][0])
            if fails or sent[queue[i][0]].channel == sent[m].channel or not fine:
                mark = i
        if start + time_of([*queue[: mark + 1], *block]) > due(m):
            return False
        core.queue[mark + 1 : mark + 1] = block
        return True

    while None in ends:
        for core in cores:
            if core.running is not None and core.ends == now:
                m, task = core.running
                if task + 1 == len(channels[sent[m].channel].tasks):
                    ends[m] = now
                core.running = None
        for core in cores:
            begin_next(core)
        for m, message in enumerate(sent):
            if message.arrival != now:
                continue
            asked = [core for core in range(len(cores)) if ways[message.channel][core]]
            if not smart:  # the next one from the core whose turn it is
                asked = sorted(asked, key=lambda core: (core - m) % len(cores))[:1]
            for number in asked:
                if inserted(m, cores[number]):
                    begin_next(cores[number])
                    break
            else:
                ends[m] = NEVER
        now += 1
    return [end for end in ends if end is not None]
