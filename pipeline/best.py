"""The best of each message's keys: those with the least ranks, kept in heaps; and how many keys are of each group."""

from __future__ import annotations

import numpy as np

from tagmatch.model.arrays import BoolArray, I64Array, Lists, U32Array
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.lists import sort_values


@kernel
def _keep_best(ends, rows, key_offsets, ranks, heaps, sizes):
    """Keep the least ranks of the keys of each message's rows, each once: in heaps, the greatest of them first."""
    limit = heaps.shape[1]
    for message in range(len(ends) - 1):
        heap, size = heaps[message], sizes[message]
        for i in range(ends[message], ends[message + 1]):
            row = rows[i]
            for place in range(key_offsets[row], key_offsets[row + np.uint32(1)]):
                rank = ranks[place]
                if size == limit and rank >= heap[0]:
                    continue
                known = False
                for at in range(size):
                    known |= heap[at] == rank
                if known:
                    continue
                if size < limit:
                    at = size
                    size += 1
                    while at > 0 and heap[(at - 1) >> 1] < rank:
                        heap[at] = heap[(at - 1) >> 1]
                        at = (at - 1) >> 1
                else:
                    at = 0
                    while True:
                        child = 2 * at + 1
                        if child >= size:
                            break
                        if child + 1 < size and heap[child + 1] > heap[child]:
                            child += 1
                        if heap[child] <= rank:
                            break
                        heap[at] = heap[child]
                        at = child
                heap[at] = rank
        sizes[message] = size


@kernel
def _in_order(heaps, sizes, ends, out):
    """Write the ranks of each message, ascending."""
    used = 0
    for message in range(len(sizes)):
        sort_values(heaps[message], 0, sizes[message])
        for at in range(sizes[message]):
            out[used] = heaps[message, at]
            used += 1
        ends[message + 1] = used


def best_keys(rows: Lists, key_offsets: I64Array, ranks: U32Array, limit: int) -> Lists:
    """The least ranks, ascending and each once, of the keys of each message's rows.

    Row `i` has the keys with the ranks `ranks[key_offsets[i]:key_offsets[i + 1]]`.
    """
    heaps, sizes = np.empty((len(rows), limit), np.uint32), np.zeros(len(rows), np.int64)
    _keep_best(rows.offsets.astype(np.int64, copy=False), rows.values, key_offsets, ranks, heaps, sizes)
    ends, out = np.zeros(len(sizes) + 1, np.int64), np.empty(int(sizes.sum()), np.uint32)
    _in_order(heaps, sizes, ends, out)
    return Lists(ends, out)


@kernel
def _count_groups(ends, ranks, groups, counts, out):
    """Count the keys of each message by group."""
    new_ends, found, values = out
    used = np.int64(0)
    for message in range(len(ends) - 1):
        count = np.int64(0)
        for i in range(ends[message], ends[message + 1]):
            group = groups[ranks[i]]
            if counts[group] == 0:
                found[count] = group
                count += 1
            counts[group] += np.uint64(1)
        sort_values(found, 0, count)
        for group in found[:count]:
            values[used], values[used + 1] = group, counts[group]
            counts[group] = 0
            used += 2
        new_ends[message + 1] = used


def counts_in(ranks: Lists, groups: U32Array, count: int) -> Lists:
    """The groups that each message's keys are of, ascending, each with how many keys are of it behind it.

    `ranks` are the keys of each message, and `groups` the group of each rank, below `count`.
    """
    ends, values = np.zeros(len(ranks) + 1, np.int64), np.empty(2 * len(ranks.values), np.uint64)
    offsets, out = ranks.offsets.astype(np.int64, copy=False), (ends, np.empty(count, np.uint32), values)
    _count_groups(offsets, ranks.values, groups, np.zeros(count, np.uint64), out)
    return Lists(ends, values[: ends[-1]])


@kernel
def _each_once(ends, ranks, seen, new_ends, out):
    """Write the different ranks of each message, in their order."""
    used = np.int64(0)
    for message in range(len(ends) - 1):
        for i in range(ends[message], ends[message + 1]):
            out[used] = ranks[i]
            used += np.int64(seen[ranks[i]] != message + 1)
            seen[ranks[i]] = message + 1
        new_ends[message + 1] = used


def each_once(ranks: Lists, count: int) -> Lists:
    """The different ranks of each message, which are below `count`, in their order."""
    # One more may be written before it is known that it was there
    ends, out = np.zeros(len(ranks) + 1, np.int64), np.empty(len(ranks.values) + 1, np.uint32)
    offsets = ranks.offsets.astype(np.int64, copy=False)
    _each_once(offsets, ranks.values, np.zeros(count, np.uint32), ends, out)
    return Lists(ends, out[: ends[-1]])


@kernel
def _least_of_each(ends, values, ranks, limit, chosen):
    """Choose the least values of each list, and of equal ones those with the least ranks."""
    for each in range(len(ends) - 1):
        begin, end = ends[each], ends[each + 1]
        if end - begin <= limit:
            for i in range(begin, end):
                chosen[i] = True
            continue
        last = np.partition(values[begin:end], limit - 1)[limit - 1]
        left, equal, used = np.int64(limit), np.empty(end - begin, np.uint32), np.int64(0)
        for i in range(begin, end):
            left -= np.int64(values[i] < last)
            equal[used] = ranks[i]
            used += np.int64(values[i] == last)
        last_rank = np.partition(equal[:used], left - 1)[left - 1]
        for i in range(begin, end):
            chosen[i] = values[i] < last or (values[i] == last and ranks[i] <= last_rank)


def least_of_each(ranks: Lists, values: I64Array, limit: int) -> BoolArray:
    """Which ranks are those of the least values of their list, at most `limit`; of equal ones, the least ranks."""
    chosen = np.empty(len(values), np.bool_)
    _least_of_each(ranks.offsets.astype(np.int64, copy=False), values, ranks.values, limit, chosen)
    return chosen
