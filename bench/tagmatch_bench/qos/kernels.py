"""The brokers of the simulator, as kernels. Times are whole nanoseconds; each writes when every message is answered."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tagmatch.model.arrays import I64Array
from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch.pipeline.run.orders import goes_behind

#: Times of a message that is never answered, and of one that a broker has lost, which none may
DROPPED, LOST = -1, -2
#: A message's `pace` if it takes as long as is expected
EXACT = 1 << 16

_NEVER = 2**62


class Messages(NamedTuple):
    """Messages in order of arrival: when they come, their channels, and how long they take for `EXACT` expected."""

    arrival: I64Array
    channel: I64Array
    pace: I64Array


class Work(NamedTuple):
    """What channels ask for, and their tasks, one channel's after the other.

    Channel `c` has tasks `first[c]` to `first[c + 1]`. Of a task, `channel` says whose it is, `alone` what it takes for
    one message, `more` for each further message of a batch, `longest` the most time for a batch, and `rest` the time
    left from it on, for one message.
    """

    deadline: I64Array
    expiry: I64Array
    priority: I64Array
    first: I64Array
    channel: I64Array
    alone: I64Array
    more: I64Array
    longest: I64Array
    rest: I64Array


@inlined
def _taken(expected, pace):
    """How long a task takes that is expected to take so long."""
    return max(1, (expected * pace) >> 16)


@kernel
def run_fifo(messages, work, cores, ends):
    """Messages go to the cores in turn, and each core has one after the other, whole."""
    free = np.zeros(cores, np.int64)
    for m in range(len(messages.arrival)):
        core = m % cores
        at = max(free[core], messages.arrival[m])
        channel = messages.channel[m]
        for task in range(work.first[channel], work.first[channel + 1]):
            at += _taken(work.alone[task], messages.pace[m])
        free[core] = at
        ends[m] = at


@inlined
def _push(heap, size, message):
    at = size
    while at > 0 and heap[(at - 1) >> 1] > message:
        heap[at] = heap[(at - 1) >> 1]
        at = (at - 1) >> 1
    heap[at] = message


@inlined
def _pop(heap, size):
    least, last = heap[0], heap[size - 1]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size - 1:
            break
        if child + 1 < size - 1 and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= last:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = last
    return least


@inlined
def _most_urgent(messages, work, heaps, sizes):
    """The task whose first message has the earliest deadline, of equal ones the higher priority, then came first."""
    best, due, priority, message = -1, 0, 0, 0
    for task in range(len(sizes)):
        if sizes[task] == 0:
            continue
        channel, m = work.channel[task], heaps[task, 0]
        at, of = messages.arrival[m] + work.deadline[channel], work.priority[channel]
        if best < 0 or at < due or (at == due and (of > priority or (of == priority and m < message))):
            best, due, priority, message = task, at, of, m
    return best


@kernel
def run_edf(messages, work, cores, most, ends):
    """Messages wait for any core, which takes the most urgent one's next task; what would expire is dropped.

    With `most` over 1, those that wait for the same task share a batch as long as the first is in time and the batch's
    task is not too long. Each task has a heap of those that wait for it, by number, which is by
    deadline as they are of one channel.
    """
    arrival, count, tasks = messages.arrival, len(messages.arrival), work.first[-1]
    heaps, sizes = np.empty((tasks, count), np.int64), np.zeros(tasks, np.int64)
    batches, members = np.empty((cores, most), np.int64), np.zeros(cores, np.int64)
    doing, free = np.zeros(cores, np.int64), np.zeros(cores, np.int64)
    coming = 0
    while True:
        # The next time at which a task ends or a message comes
        now = arrival[coming] if coming < count else _NEVER
        for core in range(cores):
            if members[core]:
                now = min(now, free[core])
        if now == _NEVER:
            return
        for core in range(cores):
            if members[core] and free[core] == now:
                task = doing[core] + 1
                done = task == work.first[work.channel[doing[core]] + 1]
                for i in range(members[core]):
                    if done:
                        ends[batches[core, i]] = now
                    else:
                        _push(heaps[task], sizes[task], batches[core, i])
                        sizes[task] += 1
                members[core] = 0
        while coming < count and arrival[coming] == now:
            task = work.first[messages.channel[coming]]
            _push(heaps[task], sizes[task], coming)
            sizes[task] += 1
            coming += 1
        for core in range(cores):
            while members[core] == 0:
                task = _most_urgent(messages, work, heaps, sizes)
                if task < 0:
                    break
                channel = work.channel[task]
                m = _pop(heaps[task], sizes[task])
                sizes[task] -= 1
                if now + work.rest[task] > arrival[m] + work.expiry[channel]:
                    ends[m] = DROPPED
                    continue
                batches[core, 0], members[core] = m, 1
                expected, later = work.alone[task], work.rest[task] - work.alone[task]
                longest = min(work.longest[task], arrival[m] + work.deadline[channel] - now - later)
                while members[core] < most and sizes[task] and expected + work.more[task] <= longest:
                    batches[core, members[core]] = _pop(heaps[task], sizes[task])
                    sizes[task] -= 1
                    members[core] += 1
                    expected += work.more[task]
                doing[core], free[core] = task, now + _taken(expected, messages.pace[m])


class Queues(NamedTuple):
    """Each core's queue of tasks, and when the task that it runs ends: `free`, and `due` as expected."""

    message: I64Array
    task: I64Array
    length: I64Array
    free: I64Array
    due: I64Array


@inlined
def _run_until(now, core, messages, work, queues, ends):
    """Let a core begin all tasks that it gets to."""
    free, due, begun = queues.free[core], queues.due[core], 0
    while begun < queues.length[core] and free <= now:
        m, task = queues.message[core, begun], queues.task[core, begun]
        due = free + work.alone[task]
        free += _taken(work.alone[task], messages.pace[m])
        if task + 1 == work.first[work.channel[task] + 1]:
            ends[m] = free
        begun += 1
    if begun:
        for i in range(begun, queues.length[core]):
            queues.message[core, i - begun] = queues.message[core, i]
            queues.task[core, i - begun] = queues.task[core, i]
        queues.length[core] -= begun
        queues.free[core], queues.due[core] = free, due


@inlined
def _place(now, core, m, messages, work, queues, fine, keep_head):
    """Algorithm 3: where in a core's queue a message's tasks go; -1 if they would be late."""
    channel = messages.channel[m]
    block = work.rest[work.first[channel]]
    end = now if queues.free[core] <= now else max(now, queues.due[core])
    place, before = 0, end
    for i in range(queues.length[core]):
        task = queues.task[core, i]
        other = work.channel[task]
        end += work.alone[task]
        due = messages.arrival[queues.message[core, i]] + work.deadline[other]
        if not fine or goes_behind(end, block, due, other == channel) or (keep_head and i == 0):
            place, before = i + 1, end
    return place if before + block <= now + work.deadline[channel] else -1


@inlined
def _insert(now, core, place, m, messages, work, queues):
    """Put a message's tasks into a core's queue, from a place on."""
    channel = messages.channel[m]
    first, length = work.first[channel], queues.length[core]
    count = work.first[channel + 1] - first
    if queues.free[core] < now:
        queues.free[core] = now
    for i in range(length - 1, place - 1, -1):
        queues.message[core, i + count] = queues.message[core, i]
        queues.task[core, i + count] = queues.task[core, i]
    for i in range(count):
        queues.message[core, place + i] = m
        queues.task[core, place + i] = first + i
    queues.length[core] = length + count


@inlined
def _wider(queues):
    """Copy queues to some with room for twice as many tasks."""
    cores, room = queues.message.shape
    message, task = np.empty((cores, 2 * room), np.int64), np.empty((cores, 2 * room), np.int64)
    message[:, :room], task[:, :room] = queues.message, queues.task
    return Queues(message, task, queues.length, queues.free, queues.due)


@kernel
def run_dfgs(messages, work, ways, fine, smart, keep_head, ends):
    """Each core has a queue of tasks; a message's tasks go where Algorithm 3 has them, or at the end if not `fine`.

    With `smart`, Algorithm 4 asks each core with a way for the channel, in order; else the cores are asked in turn, one
    for each message. A message that no core that is asked can have in time is deserted. The head of a queue is the
    running task, or with `keep_head` the first that waits, before which then nothing is put.
    """
    cores, count = ways.shape[1], len(messages.arrival)
    widest = np.max(work.first[1:] - work.first[:-1])
    shape = cores, max(16, 2 * widest)
    queues = Queues(
        np.empty(shape, np.int64),
        np.empty(shape, np.int64),
        np.zeros(cores, np.int64),
        np.zeros(cores, np.int64),
        np.zeros(cores, np.int64),
    )
    for m in range(count):
        now = messages.arrival[m]
        for core in range(cores):
            _run_until(now, core, messages, work, queues, ends)
        if np.max(queues.length) + widest > queues.message.shape[1]:
            queues = _wider(queues)
        ends[m] = DROPPED
        for i in range(cores):
            core = i if smart else (m + i) % cores
            if not ways[messages.channel[m], core]:
                continue
            place = _place(now, core, m, messages, work, queues, fine, keep_head)
            if place >= 0:
                ends[m] = LOST  # until its last task is begun
                _insert(now, core, place, m, messages, work, queues)
            if place >= 0 or not smart:
                break
    for core in range(cores):
        _run_until(_NEVER, core, messages, work, queues, ends)
