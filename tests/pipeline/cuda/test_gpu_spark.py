"""Joins on Spark whose workers match on the device, without a JVM; a machine with a GPU may lack Spark."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark import TaskContext
from pyspark.errors import PythonException
from pyspark.resource import ResourceInformation
from support import tasks
from support.constrained import all_by
from support.index_files import make_index

from tagmatch import InvalidValueError
from tagmatch.spark import ship, subset_join

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*Grid size")]

SETS = [([f"a{key % 3}", f"b{key % 5}"][: key % 4], key) for key in range(40)]
QUERIES = [(number, [f"a{number % 4}", f"b{number % 6}", f"b{number % 2}"]) for number in range(30)]


@pytest.fixture
def index(tmp_path: Path) -> Path:
    make_index(tmp_path / "index", SETS)
    return tmp_path / "index"


@pytest.fixture
def queries(seed: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Queries; the device answers each batch, however small."""
    monkeypatch.setattr("tagmatch.pipeline.devices.break_even", lambda *_: 1)
    with tasks.session(seed) as spark:
        yield spark.createDataFrame(QUERIES, "n long, tags array<string>")


def given(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Spark gives these GPUs to each task."""
    found = {"gpu": ResourceInformation("gpu", [*addresses])} if addresses else {}
    monkeypatch.setattr(TaskContext, "resources", lambda _: found)


def expected(tags: list[str]) -> list[int]:
    return sorted(key for wanted, key in SETS if {*wanted} <= {*tags})


@pytest.mark.parametrize("addresses", [(), ("0",)])
def test_answers(index: Path, queries: Any, monkeypatch: pytest.MonkeyPatch, addresses: tuple[str, ...]) -> None:
    given(monkeypatch, *addresses)
    joined = subset_join(queries, index, device="cuda", output="lists").select("n", "keys")
    assert sorted((number, sorted(keys)) for number, keys in joined.collect()) == [
        (number, expected(tags)) for number, tags in QUERIES
    ]
    ((_, opened),) = ship._opened.values()
    assert all_by(opened, "cuda")


def test_a_worker_takes_the_devices_of_its_next_task(
    index: Path, queries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it has the index open on those of the last one."""
    joined = subset_join(queries, index, device="cuda", output="counts")
    assert len(joined.collect()) == len(QUERIES)
    for addresses, why in (
        (["0", "97"], "there is no CUDA device 97"),
        (["GPU-a1"], "has given this task the GPUs GPU-a1"),
    ):
        given(monkeypatch, *addresses)
        with pytest.raises(PythonException, match=why):
            joined.collect()


def test_a_shuffle_is_matched_on_the_cpu(index: Path, queries: Any) -> None:
    with pytest.raises(InvalidValueError, match="strategy 'shuffle' matches on the CPU, not on 'cuda'; use 'ship'"):
        subset_join(queries, index, device="cuda", strategy="shuffle")
    assert len(subset_join(queries, index, device="cuda", ship_limit=0, output="exists").collect()) == len(QUERIES)
    assert len(ship._opened) == 1
    ship._opened.popitem()[1][1].close()
    queries.sparkSession.conf.set("spark.tagmatch.device", "cuda")
    assert len(subset_join(queries, index, strategy="shuffle", output="exists").collect()) == len(QUERIES)
    assert not ship._opened
