"""Exact verification: whether an ascending rank list is contained in a query's ascending ranks."""

from __future__ import annotations

from tagmatch.model.kernels.jit import kernel

# Up to this many of the query's ranks walking beats galloping
_FEW_RANKS = 16


@kernel
def seek(query, at, end, rank):
    """First place from `at` on, below `end`, whose rank is not below `rank`; else `end`. Galloping search.

    Its time grows with the logarithm of the distance, so that checking many sets against a query of thousands of
    tags does not walk the query each time.
    """
    step = 1
    while at + step <= end and query[at + step - 1] < rank:
        at += step
        step *= 2
    low, high = at, min(at + step - 1, end)
    while low < high:
        middle = (low + high) >> 1
        if query[middle] < rank:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def contains_ranks(query, at, end, ranks, begin, stop):
    """Whether all of `ranks[begin:stop]` are in `query[at:end]`; both ascending."""
    if end - at > _FEW_RANKS:
        for i in range(begin, stop):
            at = seek(query, at, end, ranks[i])
            if at == end or query[at] != ranks[i]:
                return False
            at += 1
        return True
    for i in range(begin, stop):
        while at < end and query[at] < ranks[i]:
            at += 1
        if at == end or query[at] != ranks[i]:
            return False
        at += 1
    return True
