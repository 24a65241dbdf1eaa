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


def _at_random(count: int, seed: int) -> Places:
    return Places(*np.random.default_rng(seed).random((2, count)))


@pytest.fixture(scope="module", params=[1, 2000], ids=["one-group", "many-groups"])
def group_count(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def messages(group_count: int) -> tuple[Places, Lists]:
    """10,000, of which each asks for the only group, or for ten of them."""
    asked = min(10, group_count)
    groups = np.random.default_rng(4).integers(0, group_count, (_MESSAGES, 1)) + np.arange(asked)
    lists = Lists(np.arange(_MESSAGES + 1) * asked, (groups % group_count).ravel().astype(np.uint32))
    return _at_random(_MESSAGES, 5), lists


@pytest.fixture(scope="module")
def clients(group_count: int) -> ClientCells:
    everyone, at = np.arange(_AREAS), _at_random(_AREAS, 6)
    radii = np.full(_AREAS, _RADIUS)
    return ClientCells.of(everyone % group_count, group_count, everyone, radii, at.lon, at.lat, plane=True)


def test_fixed_areas(benchmark: BenchmarkFixture, group_count: int, messages: tuple[Places, Lists]) -> None:
    at = _at_random(_AREAS, 6)
    values = np.column_stack([at.lon, at.lat, np.full(_AREAS, _RADIUS), np.zeros(_AREAS)])
    shapes = Shapes(np.full(_AREAS, CIRCLE, np.uint8), values)
    areas = FixedAreas.of(np.arange(_AREAS) % group_count, group_count, shapes, plane=True)
    assert len(benchmark(areas.holding, *messages).values)


def test_clients_near(benchmark: BenchmarkFixture, clients: ClientCells, messages: tuple[Places, Lists]) -> None:
    assert len(benchmark(clients.near, *messages).values)


def test_moves(benchmark: BenchmarkFixture, clients: ClientCells) -> None:
    """100,000 moves to anywhere."""
    at = _at_random(_MOVES, 8)
    benchmark(clients.move, np.random.default_rng(7).integers(0, _AREAS, _MOVES), at.lon, at.lat)
