"""A million areas, and clients that move: `pytest tests/benchmarks/test_kernels_areas.py --benchmark-only`."""

from __future__ import annotations

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tagmatch.model.arrays import Lists
from tagmatch.pipeline.areas.clients import ClientCells
from tagmatch.pipeline.areas.fixed import FixedAreas
from tagmatch.pipeline.areas.shapes import CIRCLE, Places, Shapes

_AREAS, _MESSAGES, _MOVES = 1_000_000, 10_000, 100_000
#: Each circle covers so much of the unit square
_RADIUS = float(np.sqrt(1e-4 / np.pi))

Column = np.ndarray[tuple[int], np.dtype[np.float64]]


def _at_random(count: int, seed: int) -> tuple[Column, Column]:
    rng = np.random.default_rng(seed)
    return rng.random(count), rng.random(count)


@pytest.fixture(scope="module", params=[1, 2000], ids=["one-group", "many-groups"])
def group_count(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def messages(group_count: int) -> tuple[Places, Lists]:
    """Each asks for the only group, or for ten of them."""
    asked = min(10, group_count)
    groups = np.random.default_rng(4).integers(0, group_count, (_MESSAGES, 1)) + np.arange(asked)
    lists = Lists(np.arange(_MESSAGES + 1) * asked, (groups % group_count).ravel().astype(np.uint32))
    return Places(*_at_random(_MESSAGES, 5)), lists


@pytest.fixture(scope="module")
def clients(group_count: int) -> ClientCells:
    everyone = np.arange(_AREAS)
    radii = np.full(_AREAS, _RADIUS)
    return ClientCells.of(everyone % group_count, group_count, everyone, radii, *_at_random(_AREAS, 6), plane=True)


def test_fixed_areas(benchmark: BenchmarkFixture, group_count: int, messages: tuple[Places, Lists]) -> None:
    """10,000 messages."""
    lon, lat = _at_random(_AREAS, 6)
    values = np.column_stack([lon, lat, np.full(_AREAS, _RADIUS), np.zeros(_AREAS)])
    shapes = Shapes(np.full(_AREAS, CIRCLE, np.uint8), values)
    areas = FixedAreas.of(np.arange(_AREAS) % group_count, group_count, shapes, plane=True)
    found = benchmark(areas.holding, *messages)
    assert len(found.values)


def test_clients_near(benchmark: BenchmarkFixture, clients: ClientCells, messages: tuple[Places, Lists]) -> None:
    """10,000 messages."""
    found = benchmark(clients.near, *messages)
    assert len(found.values)


def test_moves(benchmark: BenchmarkFixture, clients: ClientCells) -> None:
    """100,000 moves to anywhere."""
    who = np.random.default_rng(7).integers(0, _AREAS, _MOVES)
    benchmark(clients.move, who, *_at_random(_MOVES, 8))
