"""Clients that move while other threads search: each message sees each client exactly once, wherever it is."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.pipelines import together
from support.places import NOWHERE, Box, Circle, lists_of, places_of, shapes_of

from tagmatch.model.arrays import Lists
from tagmatch.pipeline.areas.clients import ClientCells

pytestmark = pytest.mark.slow

THREADS = 8
FAR = 1000.0
EVERYWHERE = 3 * FAR


class Jumping:
    """Clients jump between two far places and others around these, in several threads; others search at the same time.

    Each moving thread has its own clients. All searches cover both places.
    """

    def __init__(self, groups: list[int], metres: float, client_count: int, seed: int) -> None:
        """Each client has an entry in each group."""
        self.client_count, self.seed = client_count, seed
        self.clients = np.repeat(np.arange(client_count), len(groups))
        of = np.tile(np.array(groups, np.int64), client_count)
        rng = np.random.default_rng(seed)
        self.weights = rng.integers(0, 2**64, len(of), np.uint64)
        at, radii = self._somewhere(rng, client_count), np.full(len(of), metres)
        self.cells = ClientCells(of, len(groups), self.clients, radii, at, plane=True)

    def _somewhere(self, rng: np.random.Generator, count: int) -> tuple[Any, Any]:
        """Half of them around either place; some at the very same."""
        side = rng.integers(0, 2, count) * FAR
        spread = rng.choice([0.0, 1.0, 100.0], count)
        return side + spread * rng.random(count), spread * rng.random(count)

    def run(self, search: Callable[[], None], moves: int) -> None:
        """So many moves in all, or more, until each thread has searched."""
        searches, moving, failed = [0] * THREADS, [True] * THREADS, threading.Event()

        def mover(number: int) -> None:
            rng, left = np.random.default_rng([self.seed, number]), moves // THREADS
            own = np.arange(number, self.client_count, THREADS)
            try:
                while (left > 0 or 0 in searches) and not failed.is_set():
                    clients = rng.choice(own, 50_000)
                    self.cells.move(clients, *self._somewhere(rng, len(clients)))
                    left -= len(clients)
            finally:
                moving[number] = False

        def searcher(number: int) -> None:
            try:
                while any(moving):
                    search()
                    searches[number] += 1
            except BaseException:
                failed.set()
                raise

        with together([partial(work, number) for work in (searcher, mover) for number in range(THREADS)]):
            pass


def messages_of(client_count: int) -> int:
    """So many of a search that it takes longer than to look at what it has found begins to."""
    return max(8, 100_000 // client_count // 2 * 2)


def near(jumping: Jumping, messages: int) -> Lists:
    return jumping.cells.find(places_of([(FAR / 2, 0.0)] * messages), lists_of([[0]] * messages))


def within(jumping: Jumping, messages: int) -> Lists:
    circle, box = Circle(FAR / 2, 0.0, EVERYWHERE), Box(-EVERYWHERE, -EVERYWHERE, EVERYWHERE, EVERYWHERE)
    return jumping.cells.find(
        places_of([NOWHERE] * messages), lists_of([[0]] * messages), shapes_of([circle, box] * (messages // 2))
    )


def assert_each_once(jumping: Jumping, way: Callable[[Jumping, int], Lists]) -> None:
    """Each message has found all entries, each once: as many, whose weights, drawn at random, have the right sum."""
    found, weights = way(jumping, messages_of(jumping.client_count)), jumping.weights
    assert found.lengths().tolist() == [len(weights)] * len(found)
    sums = weights[found.values].reshape(len(found), -1).sum(axis=1)
    assert (sums == weights.sum()).all()


sizes = pytest.mark.parametrize(
    ("client_count", "moves"),
    [(300, 800_000), *(pytest.param(count, 4_000_000, marks=pytest.mark.nightly) for count in (20, 1000, 20_000))],
)


@sizes
@pytest.mark.parametrize("way", [near, within])
def test_each_client_is_seen_once(seed: int, client_count: int, moves: int, way: Any) -> None:
    """Clients in one group; a search sees every one, wherever it jumps."""
    jumping = Jumping([0], EVERYWHERE, client_count, seed)
    jumping.run(lambda: assert_each_once(jumping, way), moves)
    assert_each_once(jumping, near)


@sizes
def test_both_entries_of_a_client_are_seen_alike(seed: int, client_count: int, moves: int) -> None:
    """Each client has an entry in two groups: a message that asks near one of the places finds both of them or none."""
    jumping, messages = Jumping([0, 1], FAR / 2, client_count, seed), messages_of(client_count)
    places = places_of([(50.0, 50.0), (FAR + 50.0, 50.0)] * (messages // 2))
    asked = lists_of([[0, 1], [1, 0]] * (messages // 2))

    def search() -> None:
        found = jumping.cells.find(places, asked)
        message = np.repeat(np.arange(messages), found.lengths())
        assert len(np.unique(message * len(jumping.weights) + found.values)) == len(found.values)
        assert set(np.bincount(message * client_count + jumping.clients[found.values]).tolist()) <= {0, 2}

    jumping.run(search, moves)
    found = jumping.cells.find(places, asked).lengths()
    assert found[0] + found[1] == len(jumping.weights)


def test_each_client_is_seen_once_while_cells_are_made_anew(seed: int) -> None:
    """All begin at one place, in one cell, which tells nothing of their later places."""
    count = 3000
    jumping = Jumping([0], EVERYWHERE, count, seed)
    for _ in range(3):
        jumping.cells.move(np.arange(count), np.zeros(count), np.zeros(count))
    in_one_cell = jumping.cells.nbytes
    jumping.run(lambda: assert_each_once(jumping, near), 800_000)
    assert jumping.cells.nbytes < in_one_cell
