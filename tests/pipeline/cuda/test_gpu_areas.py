"""Areas and clients that a device finds, against brute force, and with all other work of a device."""

import gc
import random
import threading
import weakref
from typing import Any

import numba.cuda
import numpy as np
import pyarrow as pa
import pytest
from support.agreement import index_of
from support.finders import *  # noqa: F403
from support.finders import Finders, Modelled, both
from support.pipelines import together
from support.places import Circle, Place, lists_of, places_of, random_place, rows_of, shapes_of
from support.simulator import SIMULATED

from tagmatch import Circle as CircleArea
from tagmatch import CudaOptions, Near, TagMatch
from tagmatch.model.errors import DeviceError, DeviceMemoryError
from tagmatch.pipeline import devices
from tagmatch.pipeline.areas.clients import ClientCells, MoveLog
from tagmatch.pipeline.areas.fixed import FixedAreas
from tagmatch.pipeline.combined import Beside
from tagmatch.pipeline.cuda.areas import CudaClients, CudaFixedAreas
from tagmatch.pipeline.devices import break_even_of_areas  # as it is before a fixture puts another one in its place

# Small tables make small grids on purpose
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*Grid size")]

cuda: Any = numba.cuda
HERE = (9.0, 45.0)
AROUND = {"west": 8.0, "south": 44.0, "east": 10.0, "north": 46.0}


@pytest.fixture
def finders() -> Finders:
    return Finders(CudaFixedAreas, CudaClients)


def words_of(place: Place, plane: bool) -> Any:
    fixed = FixedAreas.of(np.zeros(1, np.int64), 1, shapes_of([Circle(*place, 0.0)]), plane=plane)
    return fixed.circles.words[:48:16]


@both
def test_on_edges_the_device_says_what_the_cpu_says(rng: random.Random, plane: bool) -> None:
    """Radii are distances, or the numbers next to them: only rounding decides."""
    circles, places = [], []
    for _ in range(200 if SIMULATED else 3000):
        middle, place = random_place(rng, plane), random_place(rng, plane)
        reach = float(np.sqrt(((words_of(middle, plane) - words_of(place, plane)) ** 2).sum()))
        metres = reach if plane else 2 * 6371008.8 * float(np.arcsin(min(1.0, reach / 2)))
        for _ in range(rng.randrange(4)):
            metres = float(np.nextafter(metres, rng.choice([0.0, np.inf])))
        circles.append(Circle(*middle, metres))
        places.append(place)
    columns = places_of(places), lists_of([[group] for group in range(len(places))])
    fixed = FixedAreas.of(np.arange(len(circles)), len(circles), shapes_of(circles), plane=plane)
    found = CudaFixedAreas(fixed).find(*columns)
    assert rows_of(found) == rows_of(fixed.find(*columns))
    assert 0 < len(found.values) < len(circles)


def test_packets_between_moves() -> None:
    """Each packet sees the moves before it, few of a client or many, none of them twice."""
    modelled = Modelled([(0, c, 0.5) for c in range(6)], 1, [(0.0, 0.0)] * 6, plane=True, finder=CudaClients)
    for moves in ([3, 4, 3, 5, 3], [3], [1, 3, 1], [], [5, 5], [0] * 9, [3]):
        modelled.move([(client, (float(place), 7.0)) for place, client in enumerate(moves)])
        asked: list[Place] = [(0.0, 0.0), *((float(place), 7.0) for place in range(9))]
        assert modelled.assert_found([(None, place, [0]) for place in asked]) == 6


def test_cells_that_are_made_anew(rng: random.Random) -> None:
    """The device follows the CPU, whose cells change as clients gather."""
    count = 2000
    entries = [(0, client, 0.01) for client in range(count)]
    modelled = Modelled(entries, 1, [(3.0, 4.0)] * count, plane=True, finder=CudaClients)
    before = modelled.cells.now
    for _ in range(2):
        modelled.move([(c, (rng.uniform(0, 1), rng.uniform(0, 1))) for c in range(count)])
        modelled.assert_found([(None, (rng.uniform(0, 1), rng.uniform(0, 1)), [0]) for _ in range(3)])
    assert modelled.cells.now is not before


def test_nobody_is_lost_while_others_move(seed: int) -> None:
    """Clients jump between two places; a message that has both in reach finds each client exactly once."""
    count, asks = (40, 15) if SIMULATED else (5000, 300)
    clients, at = np.arange(count), np.zeros(count)
    cells = ClientCells(np.zeros(count, np.int64), 1, clients, np.full(count, 3000.0), (at, at), plane=True)
    there, stop = CudaClients(cells), threading.Event()

    def jump(number: int) -> None:
        rng = np.random.default_rng([seed, number])
        while not stop.is_set():
            some = rng.choice(clients[number::2], 50)
            cells.move(some, 1000.0 * rng.integers(0, 2, len(some)), rng.random(len(some)))

    with together([lambda: jump(0), lambda: jump(1)]):
        try:
            for _ in range(asks):
                for row in rows_of(there.find(places_of([(500.0, 0.0)] * 2), lists_of([[0], [0]]))):
                    assert sorted(row) == clients.tolist()
        finally:
            stop.set()


def test_what_a_device_had_is_given_back() -> None:
    none, at = np.zeros(1, np.int64), np.zeros(1)
    cells = ClientCells(none, 1, none, np.ones(1), (at, at), plane=True)
    gone = weakref.ref(CudaClients(cells))
    gc.collect()
    assert gone() is None
    cells.move(np.zeros(1, np.int64), *np.zeros((2, 1)))
    cells.tell(log := MoveLog(1))
    assert len(cells._logs) == 1
    assert log.take() is None


def failing(error: Exception) -> Any:
    """What fails, as a method."""

    def fail(*_: Any) -> Any:
        raise error

    return fail


def test_moves_that_failed_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Are made later, with all others."""
    modelled = Modelled([(0, 0, 1.0), (0, 1, 1.0)], 1, [(0.0, 0.0)] * 2, plane=True, finder=CudaClients)
    modelled.move([(0, (5.0, 5.0))])
    with monkeypatch.context() as patched:
        patched.setattr(modelled.finder, "_arrange", failing(DeviceMemoryError("too small")))
        with pytest.raises(DeviceMemoryError):
            modelled.finder.find(places_of([(0.0, 0.0)]), lists_of([[0]]))
    modelled.move([(1, (7.0, 7.0))])
    asked: list[tuple[None, Place, list[int]]] = [(None, (x, x), [0]) for x in (0.0, 5.0, 7.0)]
    assert modelled.assert_found(list(asked)) == 2


def index(layout: Any = "rarest", **cuda: Any) -> TagMatch:
    """Sets 0 to 2 are anywhere here, 3 and 4 near clients, but only 3 is here; 5 is without an area."""
    sets, area = [*[()] * 3, *[["a"]] * 2, ["a", "b"]], [*[CircleArea(*HERE, 10)] * 3, *[Near(10)] * 2, None]
    tm = index_of(sets, range(6), area=area, device="cuda", layout=layout, cuda=CudaOptions(**cuda), threads=1)
    tm.move([3, 5], *HERE)
    return tm


def ask(tm: TagMatch, count: int) -> None:
    asked = pa.table({"tags": [["a"]] * count, "location": [list(HERE)] * count})
    assert [sorted(keys) for keys in tm.match_many(asked).to_pylist()] == [[0, 1, 2, 3]] * count


def test_areas_beside_a_device(layout: Any) -> None:
    with index(layout, fewest_queries=1) as tm:
        assert isinstance(tm._engine.changing.answering.matcher, Beside)
        assert tm.stats()["devices"][0].startswith("cuda")
        location, within = [list(HERE), None, list(HERE)], [None, AROUND, AROUND]
        asked = pa.table({"tags": [["a", "b"], ["a"], ["a", "b"]], "location": location, "within": within})
        found = [sorted(keys) for keys in tm.match_many(asked).to_pylist()]
        assert found == [[0, 1, 2, 3, 5], [3], [3, 5]]
        assert tm.stats()["matched_by"]["cuda"] == 6
        assert sorted(tm.match(["a", "b"], location=HERE)) == found[0]
        tm.remove_set(["a"], 3, area=Near(10))
        tm.consolidate()
        tm.move([4, 5], [HERE[0], 20], [HERE[1], 0])
        assert [sorted(keys) for keys in tm.match_many(asked).to_pylist()] == [[0, 1, 2, 4, 5], [4], [4]]


def test_small_packets_are_the_cpus() -> None:
    with index(fewest_queries=3) as tm:
        ask(tm, 2)
        assert tm.stats()["matched_by"] == {"cuda": 0, "cpu": 4}
        ask(tm, 3)
        assert tm.stats()["matched_by"] == {"cuda": 6, "cpu": 4}
        assert any("areas are matched on the CPU for packets of fewer than 3" in n for n in tm.stats()["device_notes"])


def test_closing_gives_back_what_areas_have() -> None:
    tm = index(fewest_queries=1)
    there = weakref.ref(tm._engine.changing.answering.matcher.finder.device.areas)  # type: ignore[attr-defined]
    assert there() is not None
    tm.close()
    del tm
    gc.collect()
    assert there() is None


@pytest.mark.parametrize("error", [DeviceMemoryError, DeviceError])
def test_the_cpu_goes_on(monkeypatch: pytest.MonkeyPatch, error: type[DeviceError]) -> None:
    """With a packet that finds too much for the device, or with all if it has failed."""
    with index(fewest_queries=1) as tm:
        with monkeypatch.context() as patched:
            patched.setattr(CudaFixedAreas, "find", failing(error("cannot")))
            ask(tm, 2)
        before = tm.stats()["matched_by"]
        ask(tm, 2)
        after = tm.stats()["matched_by"]
        # Sets without areas stay with the device
        wanted = {"cuda": 4, "cpu": 0} if error is DeviceMemoryError else {"cuda": 2, "cpu": 2}
        assert {name: after[name] - before[name] for name in after} == wanted


def test_no_memory_for_areas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaFixedAreas, "__init__", failing(DeviceMemoryError("no room")))
    with pytest.warns(match="no room; the CPU matches areas"):
        tm = index(fewest_queries=1)
    with tm:
        ask(tm, 2)
        assert any("the CPU matches areas" in note for note in tm.stats()["device_notes"])


def test_break_even_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """With messages in stored areas, or near clients."""
    found: list[int] = []
    monkeypatch.setattr(devices, "_MOST_QUERIES", 4)
    monkeypatch.setattr(devices, "break_even_of_areas", lambda *each: found.append(break_even_of_areas(*each)) or 2)
    with index(fewest_queries=None) as tm:
        assert tm._engine.changing.answering.matcher.finder.fewest_messages == 2  # type: ignore[attr-defined]
    assert [each in (1, 2, 4) for each in found] == [True]
