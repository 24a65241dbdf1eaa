import itertools
import os
import random
import secrets
import signal
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import settings
from support.agreement import assert_agree, loaded
from support.runs import record
from support.segments import segments_stay

from tagmatch.engine import LocalEngine
from tagmatch.model import parallel
from tagmatch.model.kernels import interpreted
from tagmatch.model.options import Layout
from tagmatch.pipeline.service import Pipeline

settings.register_profile("dev", max_examples=25, deadline=None, print_blob=True)
settings.register_profile("quick", settings.get_profile("dev"), max_examples=5)
settings.register_profile("ci", settings.get_profile("dev"), max_examples=50)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

# Where the tests run in the background, Ctrl-C is ignored, and would be by the programs that they start
signal.signal(signal.SIGINT, signal.default_int_handler)

# One for all processes that share the tests
SEED = int(os.environ.get("TEST_SEED") or secrets.randbits(32))
os.environ["TEST_SEED"] = str(SEED)

# What this run is recorded as, not those that its tests begin
_RUN = os.environ.pop("RECORD_RUN", "")

# Several threads work together on the few rows of tests, too
parallel._FEWEST_ROWS = 4

# Kernels are compiled, however little they have to do
interpreted.compile_at_once()

#: `rarest` reads no `max_partition_size`
_SIZES: dict[str, tuple[dict[str, int], ...]] = {"balanced": ({"max_partition_size": 1}, {"max_partition_size": 7}, {})}
ENGINES = [
    {"layout": layout, "threads": threads, **size}
    for layout, threads in itertools.product(get_args(Layout), (1, 4))
    for size in _SIZES.get(layout, ({},))
]


def _name(options: dict[str, Any]) -> str:
    return "{layout}-threads{threads}-size{}".format(options.get("max_partition_size", "default"), **options)


@pytest.fixture(scope="session", params=ENGINES, ids=_name)
def engine(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Options of `TagMatch` that must not change any answer."""
    return request.param


@pytest.fixture(scope="session", params=get_args(Layout))
def layout(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def compiled() -> None:
    """Kernels that build and match in either layout are compiled, in one thread, before a test counts seconds."""
    for each in get_args(Layout):
        tm, oracle = loaded([(["a"], 1), (["a", "b"], 2), ([], 3)], layout=each, threads=1, max_partition_size=1)
        with tm:
            assert_agree(tm, oracle, [["a", "b"], ["c"], []])
            tm.remove_set(["a"], 1)
            tm.consolidate()
            assert tm.submit(["a"]).result() == [3]


@pytest.fixture(scope="session")
def seed() -> int:
    """Starts every random workload; shown after a failure."""
    return SEED


@pytest.fixture
def through_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """No query is brief: those that are submitted go through the stages, as do those with many tags or answers."""
    monkeypatch.setattr(Pipeline, "_brief_answer", lambda *_: None)
    monkeypatch.setattr(LocalEngine, "_entered", lambda *_: None)


@pytest.fixture(name="segments_stay")
def _segments_stay() -> Iterator[None]:
    with segments_stay():
        yield


@pytest.fixture
def rng(seed: int) -> random.Random:
    return random.Random(seed)


# Where several processes share the tests, none is left waiting for the longest files
_FIRST = ("test_main_path", "test_cuda_simulator", "test_cuda_simulator_areas", "test_cuda_ptx", "test_memory")
_FIRST += ("test_pipeline_oracle", "test_pipeline_load")

# Files with Spark that take half of the time of all of them
_SLOW_SPARK = ("test_append", "test_bench_spark", "test_drivers", "test_main_path", "test_stores")


def _shares_spark(config: pytest.Config, file: str) -> bool:
    """Whether the tests of a file share a JVM with others, as they do at night."""
    return "tests/spark/" in file and config.option.markexpr.startswith("nightly")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with files that take long or need no kernels; Spark's tests that need its JVM for themselves come last."""
    places = {name: place for place, name in enumerate(_FIRST)}

    def place(item: pytest.Item) -> tuple[int, bool]:
        first = -1 if _shares_spark(config, str(item.path)) else places.get(item.path.stem, len(places))
        return first, "free_jvm" in getattr(item, "fixturenames", ())

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file for each process. At night two have those that share a Spark, which takes long to start and to warm up."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            if not _shares_spark(config, file):
                return file
            return "spark, slow files" if Path(file).stem in _SLOW_SPARK else "spark"

    return Scheduling(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than cores, as tests often wait; more than four would wait for each other's threads."""
    return min(4, (os.cpu_count() or 1) + 1)


# -- what tests may cost ----------------------------------------------------------------------------------------------

_MOST_TEST_S, _MOST_FILE_S = 30, 60
# Processes that share cores and caches make each other slower by so much; with `CI`, there are twice as many examples
_SHARING = 3.0 if os.environ.get("CI") else 1.5
_cost_by_test: Counter[str] = Counter()
_cost_by_file: Counter[str] = Counter()
_cost_before = [0.0]


def _cost() -> float:
    """Seconds of CPU that this process had, and processes that it started and that have ended."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Seconds of the clock would measure what else the machine does, so reports have seconds of CPU."""
    report = yield
    cost, _cost_before[0] = _cost() - _cost_before[0], _cost()
    # A process that has just ended may have worked before
    cost = min(cost, report.duration * (os.cpu_count() or 1))
    report.cost = cost if item.get_closest_marker("nightly") is None else 0.0
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    cost = getattr(report, "cost", 0.0)  # a worker that died has no cost
    _cost_by_test[report.nodeid] += cost
    _cost_by_file[report.nodeid.partition("::")[0]] += cost


def _too_long() -> list[str]:
    limits = ((_cost_by_test, _MOST_TEST_S), (_cost_by_file, _MOST_FILE_S))
    return [
        f"{name} takes {cost:.0f} s of CPU, and may take {most}: shorten it, or mark its long part with `nightly`"
        for costs, most in limits
        for name, cost in costs.most_common()
        if cost > most * _SHARING
    ]


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if exitstatus == pytest.ExitCode.OK and _too_long():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in _too_long():
        terminalreporter.write_line(line, red=True)
    skipped = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", ())]
    if _RUN:
        passed, failed, errors = (len(terminalreporter.stats.get(each, ())) for each in ("passed", "failed", "error"))
        record(_RUN, tried=passed + failed + errors, skipped=len(skipped), failed=failed + errors)
    if lacking := sum("needs " in reason and "apt-get install" in reason for reason in skipped):
        terminalreporter.write_line(
            f"{lacking} tests or files were skipped, as programs that they need are not installed"
        )
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.write_line(f"repeat these random workloads with TEST_SEED={SEED}")
