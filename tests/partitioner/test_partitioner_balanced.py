"""Algorithm 1 of the paper, written down literally, against the partitioner."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagmatch.partitioner.balanced_partitioning import balanced_partitions

Signature = frozenset[int]


def algorithm_1(database: list[Signature], max_size: int) -> list[tuple[frozenset[int], list[Signature]]]:
    """Partitions, masks first; the halves with the pivot bit clear come before those with it set."""
    table = []

    def visit(mask: frozenset[int], sets: list[Signature], used: frozenset[int]) -> None:
        if not sets:
            return
        unused = [bit for bit in range(192) if bit not in used]
        if (len(sets) <= max_size and mask) or not unused:
            table.append((mask, sets))
            return
        pivot = min(unused, key=lambda bit: (abs(2 * sum(bit in one for one in sets) - len(sets)), bit))
        visit(mask, [one for one in sets if pivot not in one], used | {pivot})
        visit(mask | {pivot}, [one for one in sets if pivot in one], used | {pivot})

    visit(frozenset(), database, frozenset())
    return table


def words(bits: frozenset[int]) -> tuple[int, ...]:
    text = "".join("1" if bit in bits else "0" for bit in range(192))
    return tuple(int(text[start : start + 64], 2) for start in (0, 64, 128))


signatures = st.one_of(
    st.frozensets(st.integers(0, 191), min_size=1, max_size=40),
    st.frozensets(st.sampled_from([0, 1, 63, 64, 190, 191]), min_size=1),
)


def compare(database: list[Signature], max_size: int, threads: int) -> None:
    matrix = np.array([(0, 0, 0), *map(words, database)], np.uint64)
    table, order, signatures = balanced_partitions(matrix.copy(), 1, max_size, threads=threads)
    assert order[0] == 0
    assert (signatures == matrix[order]).all()
    assert sorted(order.tolist()) == list(range(len(database) + 1))
    rows = [tuple(row) for row in matrix[order].tolist()]
    ends = table.first_rows.tolist()
    assert ends[0] == 1
    got = [(tuple(mask), rows[a:b]) for mask, a, b in zip(table.masks.tolist(), ends[:-1], ends[1:], strict=True)]
    assert got == [(words(mask), sorted(map(words, sets))) for mask, sets in algorithm_1(database, max_size)]
    ties = [(row, int(place)) for row, place in zip(rows, order, strict=True)]
    assert all(ties[a:b] == sorted(ties[a:b]) for a, b in itertools.pairwise(ends))


@given(st.lists(signatures, max_size=60), st.sampled_from([1, 2, 7, 200_000]), st.sampled_from([1, 4]))
def test_partitions_are_those_of_algorithm_1(database, max_size, threads):
    compare(database, max_size, threads)


@pytest.mark.parametrize("max_size", [1, 5, 100])
@pytest.mark.parametrize("threads", [1, 4])
def test_large_nodes_are_split_by_all_threads_together(max_size, threads):
    rng = np.random.default_rng(11)
    database = [frozenset(rng.integers(0, 192, 12).tolist()) for _ in range(400)]
    compare(database, max_size, threads)


@pytest.mark.parametrize("bits", [{0}, {191}, {5, 70, 100}, set(range(192))])
@pytest.mark.parametrize("max_size", [1, 4, 10])
def test_sets_that_share_all_bits_end_in_one_partition(bits, max_size):
    compare([frozenset(bits)] * 5, max_size, 1)
