"""Clients that move while other threads search: each message sees each client exactly once, wherever it is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.places import Box, Circle, lists_of, places_of, shapes_of

from tagmatch.model.arrays import I64Array, Lists, U64Array
from tagmatch.pipeline.areas.clients import ClientCells
from tagmatch.pipeline.areas.shapes import Shapes

THREADS = 8
FAR = 1000.0
EVERYWHERE = 3 * FAR


class Jumping:
    """Clients jump between two far places and others around these, in several threads; others search meanwhile.

    Each moving thread has clients of its own. All searches cover both places.
    """

    def __init__(self, entries: list[tuple[int, int, float]], group_count: int, client_count: int, seed: int) -> None:
        groups, clients = (np.array([entry[i] for entry in entries], np.int64) for i in range(2))
        metres = np.array([metres for _, _, metres in entries], np.float64)
        self.client_count, self.seed = client_count, seed
        self.clients = clients
        rng = np.random.default_rng(seed)
        self.weights = rng.integers(0, 2**64, len(entries), np.uint64)
        self.cells = ClientCells.of(
            groups, group_count, clients, metres, *self._somewhere(rng, client_count), plane=True
        )
        self.moves, self.searches = [0] * THREADS, [0] * THREADS
        self.failures: list[BaseException] = []

    def _somewhere(self, rng: np.random.Generator, count: int) -> tuple[Any, Any]:
        """Half of them around either place; some at the very same."""
        side = rng.integers(0, 2, count) * FAR
        spread = rng.choice([0.0, 1.0, 100.0], count)
        return side + spread * rng.random(count), spread * rng.random(count)

    def _mover(self, number: int, count: int) -> None:
        rng = np.random.default_rng([self.seed, number])
        own = np.arange(number, self.client_count, THREADS)
        while (self.moves[number] < count or 0 in self.searches) and not self.failures:
            clients = rng.choice(own, 50_000)
            self.cells.move(clients, *self._somewhere(rng, len(clients)))
            self.moves[number] += len(clients)

    def run(self, search: Callable[[int], None], moves: int) -> None:
        """So many moves in all, or more, until each thread has searched."""
        stop = threading.Event()

        def guarded(work: Callable[[], None]) -> None:
            try:
                work()
            except BaseException as error:
                self.failures.append(error)

        def searching(number: int) -> None:
            while not stop.is_set() and not self.failures:
                search(number)
                self.searches[number] += 1

        each = moves // THREADS
        movers = [threading.Thread(target=guarded, args=[partial(self._mover, i, each)]) for i in range(THREADS)]
        searchers = [threading.Thread(target=guarded, args=[partial(searching, i)]) for i in range(THREADS)]
        for thread in [*searchers, *movers]:
            thread.start()
        for thread in movers:
            thread.join()
        stop.set()
        for thread in searchers:
            thread.join()
        if self.failures:
            raise self.failures[0]
        assert sum(self.moves) >= moves


def _messages(client_count: int) -> int:
    """So many of a search that it takes longer than to look at what it has found begins to."""
    return max(8, 100_000 // client_count // 2 * 2)


def _assert_each_once(found: Lists, weights: U64Array) -> None:
    """Each message has found all entries, each once: as many, whose weights, drawn at random, have the right sum."""
    assert found.lengths().tolist() == [len(weights)] * len(found)
    sums = weights[found.values].reshape(len(found), -1).sum(axis=1)
    assert (sums == weights.sum()).all()


def _near_everything(jumping: Jumping, groups: list[int], messages: int) -> Callable[[int], None]:
    places, asked = places_of([(FAR / 2, 0.0)] * messages), lists_of([groups] * messages)

    def search(number: int) -> None:  # noqa: ARG001
        _assert_each_once(jumping.cells.near(places, asked), jumping.weights)

    return search


def _areas_with_everything(jumping: Jumping, groups: list[int], messages: int) -> Callable[[int], None]:
    circle, box = Circle(FAR / 2, 0.0, EVERYWHERE), Box(-EVERYWHERE, -EVERYWHERE, EVERYWHERE, EVERYWHERE)
    shapes: Shapes = shapes_of([circle, box] * (messages // 2))
    asked = lists_of([groups] * messages)

    def search(number: int) -> None:  # noqa: ARG001
        _assert_each_once(jumping.cells.inside(shapes, None, asked), jumping.weights)

    return search


sizes = pytest.mark.parametrize(
    ("client_count", "moves"),
    [(300, 800_000), *(pytest.param(count, 4_000_000, marks=pytest.mark.nightly) for count in (20, 1000, 20_000))],
)


@sizes
@pytest.mark.parametrize("way", [_near_everything, _areas_with_everything])
def test_each_client_is_seen_once(seed: int, client_count: int, moves: int, way: Any) -> None:
    """Clients in one group, of which a search sees every one, wherever it jumps meanwhile."""
    jumping = Jumping([(0, client, EVERYWHERE) for client in range(client_count)], 1, client_count, seed)
    jumping.run(way(jumping, [0], _messages(client_count)), moves)
    _near_everything(jumping, [0], 8)(0)


@sizes
def test_both_entries_of_a_client_are_seen_alike(seed: int, client_count: int, moves: int) -> None:
    """Each client has an entry in two groups: a message that asks near one of the places finds both of them or none."""
    entries = [(group, client, FAR / 2) for client in range(client_count) for group in (0, 1)]
    jumping = Jumping(entries, 2, client_count, seed)
    messages = _messages(client_count)
    places = places_of([(50.0, 50.0), (FAR + 50.0, 50.0)] * (messages // 2))
    asked = lists_of([[0, 1], [1, 0]] * (messages // 2))
    clients: I64Array = jumping.clients

    def search(number: int) -> None:  # noqa: ARG001
        found = jumping.cells.near(places, asked)
        message = np.repeat(np.arange(messages), found.lengths())
        assert len(np.unique(message * len(entries) + found.values)) == len(found.values)
        assert set(np.bincount(message * client_count + clients[found.values]).tolist()) <= {0, 2}

    jumping.run(search, moves)
    found = jumping.cells.near(places, asked).lengths()
    assert found[0] + found[1] == len(entries)


def test_each_client_is_seen_once_while_cells_are_made_anew(seed: int) -> None:
    """All begin at one place, in one cell, which tells nothing of where they will be."""
    count = 3000
    jumping = Jumping([(0, client, EVERYWHERE) for client in range(count)], 1, count, seed)
    for _ in range(3):
        jumping.cells.move(np.arange(count), np.zeros(count), np.zeros(count))
    in_one_cell = jumping.cells.nbytes
    jumping.run(_near_everything(jumping, [0], _messages(count)), 800_000)
    assert jumping.cells.nbytes < in_one_cell
