"""TagMatch's figures with the paper's 212 million sets, in steps whose files the next ones need."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import pyarrow as pa

from tagmatch import DeviceError, TagMatch, TagMatchError
from tagmatch.model.kernels.hashing import signatures_of
from tagmatch.model.options import Layout, LayoutOptions
from tagmatch.model.tables import KeyTable, Snapshot
from tagmatch.partitioner.balanced_partitioning import balanced_partitions
from tagmatch.partitioner.consolidation import in_layout
from tagmatch.pipeline.cuda import devices
from tagmatch.workloads.queries import Extender, QueryOptions, StoredSets
from tagmatch_bench.figures import published
from tagmatch_bench.figures.figure import PARTS
from tagmatch_bench.harness.bench import Bench
from tagmatch_bench.harness.report import facts_by_panel, join, percent, result_of, write_json
from tagmatch_bench.harness.results import Result, Row
from tagmatch_bench.harness.shards import DrawnKeys, Oracle, Shards
from tagmatch_bench.harness.timing import seconds_of
from tagmatch_bench.systems.catalogue import OURS, OURS_ON_GPU, Build, some, tagmatch

if TYPE_CHECKING:
    from tagmatch_bench.systems.tagmatch import Tagmatch


class _Rates(NamedTuple):
    """What a step takes for each set."""

    alone_us: float  # microseconds of one thread
    shared_us: float  # microseconds of one core, in any number of threads
    memory: int  # bytes
    disk: int


#: Measured with 8 million sets on 2 cores, and 100 million on 16
_GENERATED = _Rates(0.1, 2.2, 40, 21)
_BUILT = {"rarest": _Rates(0.9, 2.8, 300, 83), "balanced": _Rates(0.9, 3.2, 360, 83)}
#: A measured place of a figure: seconds of one system, and bytes of a set in memory, and in that of a device
_PLACE_S, _MEASURED_BYTES, _DEVICE_BYTES = 12.0, 260, 90
_LEAST_S = 3.0
#: Memory that does not depend on the number of sets
_FIXED_BYTES = 4 << 30
_STEP_S = 600
_GIGA = 1e9

#: Shares of the sets whose largest partition is tried in Figure 7
_PARTITIONS = (0.0005, 0.002, 0.02, 0.2)
_EXTRA_TAGS = range(1, 11)
#: Places that a system is measured at, in some steps
_PLACES = {"table1": 2, "fig2": len(_EXTRA_TAGS), "fig7": 2 * len(_PARTITIONS)}
#: Steps that are done for each share; others for the largest
_BY_SIZE = ("build", "table1")
_MILLION = 1e6


@dataclass(frozen=True, slots=True)
class ScaleSizes:
    """What is measured, and where files are between steps."""

    folder: Path = Path("paper-scale")
    layouts: tuple[Layout, ...] = ("rarest", "balanced")
    shares: tuple[int, ...] = (10, 20, 100)  # of the sets, percent
    parts: tuple[str, ...] = PARTS["paper-scale"]


def paper_scale(bench: Bench, sizes: ScaleSizes) -> Result:
    """Do the wanted steps; the result is all that this and earlier steps found."""
    steps = _Steps(bench, sizes)
    steps.tell_costs()
    for part in sizes.parts:
        with bench.doing(f"paper-scale: {part}"):
            steps.do(part)
    return steps.joined()


class _Looks(NamedTuple):
    """How panels of `match` and `match-unique` look."""

    end: str  # of their titles
    label: str
    style: Literal["bars", "lines"]
    published: tuple[list[Row], list[Row]] = ([], [])


class _Steps:
    """The steps. Each writes the values that it found to the folder."""

    def __init__(self, bench: Bench, sizes: ScaleSizes) -> None:
        self._bench, self._sizes = bench, sizes
        self._sets, self._threads = bench.sets(), bench.options.threads
        self._shards = Shards(sizes.folder / "sets", self._sets, bench.options.seed, self._threads)
        self._asked = lru_cache(maxsize=3)(self._make_queries)

    # -- what it takes -------------------------------------------------------------------------------------------------

    def tell_costs(self) -> None:
        """Print what each step will take; raises if it does not fit this machine."""
        there = {
            "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "disk": shutil.disk_usage(_there(self._sizes.folder)).free,
            "device memory": _device_bytes(),
        }
        lines, faults, written = [f"{self._sets:,} sets, {self._threads} threads"], list[str](), 0.0
        for what, (seconds, *needs) in self._costs():
            long = f"; more than {_STEP_S} s: do it in parts" if seconds > _STEP_S else ""
            needed = dict(zip(there, needs, strict=True))
            sizes = ", ".join(f"{each / _GIGA:.1f} GB of {kind}" for kind, each in needed.items() if each)
            lines.append(f"{what}: {seconds:,.0f} s, {sizes}{long}")
            written += needed["disk"]
            for kind, each in (needed | {"disk": written}).items():
                if each > there[kind] and (kind != "device memory" or there[kind]):
                    faults.append(
                        f"{what} needs {each / _GIGA:.1f} GB of {kind}, and there are {there[kind] / _GIGA:.1f}"
                    )
        print(*lines, sep="\n", file=sys.stderr, flush=True)
        if faults:
            raise TagMatchError(f"this does not fit here: {'; '.join(faults)}. Ask for fewer sets with --sets")

    def _costs(self) -> Iterator[tuple[str, tuple[float, ...]]]:
        """Of each step that is not done: seconds, and bytes of memory, of disk, and of the device's memory."""
        parts, keys = self._sizes.parts, self._bench.options.keys_per_set
        if "generate" in parts and self._shards.missing:
            yield "generate", _cost(_GENERATED, self._sets, self._threads)
        sets = self._sets_in(max(self._sizes.shares))
        key_bytes = sets * 4 * keys if keys > 1 else 0
        for layout in self._sizes.layouts:
            for share in self._sizes.shares if "build" in parts else ():
                if not self._index(layout, share).exists():
                    yield f"build {layout}, {share} %", _cost(_BUILT[layout], self._sets_in(share), self._threads)
            memory = _FIXED_BYTES + sets * _MEASURED_BYTES + key_bytes
            device = sets * _DEVICE_BYTES + key_bytes if _device_bytes() else 0
            for part in parts:
                if places := _PLACES.get(part, 0) * (len(self._sizes.shares) if part in _BY_SIZE else 1):
                    seconds = places * _PLACE_S * len(self._systems(layout))
                    if part == "fig7":
                        if layout != "balanced":
                            continue
                        again, more, *_ = _cost(_BUILT[layout], sets, self._threads)
                        seconds, memory = seconds + len(_PARTITIONS) * again, memory + more
                    yield f"{part} {layout}", (seconds, memory, 0.0, device)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def do(self, part: str) -> None:
        """Do one step, for each layout, and write what it found each time: a time limit loses little."""
        if part == "generate":
            self._keep(part, self._generate)
            return
        step: Callable[..., None] = {
            "build": self._build, "table1": self._table1, "fig2": self._fig2, "fig7": self._fig7,
        }[part]  # fmt: skip
        keys = "" if part == "build" else f"-{self._bench.options.keys_per_set:g}"
        shares = self._sizes.shares if part in _BY_SIZE else (max(self._sizes.shares),)
        for layout in self._sizes.layouts:
            for share in shares if part != "fig7" or layout == "balanced" else ():
                self._keep(f"{part}-{layout}-{share:03}{keys}", partial(step, layout=layout, share=share))

    def _keep(self, name: str, step: Callable[[Result], None]) -> None:
        """Write what a step finds over what it found before."""
        path, now = self._results / f"{name}.json", self._new_result()
        step(now)
        if now.panels or now.lines:
            before = [result_of(json.loads(path.read_text()))] if path.exists() else []
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(facts_by_panel(join(self._new_result(), [*before, now])), path)

    @property
    def _results(self) -> Path:
        return self._sizes.folder / "results"

    def joined(self) -> Result:
        """All that steps have found, each at its time."""
        steps = {path.stem: json.loads(path.read_text()) for path in sorted(self._results.glob("*.json"))}
        whole = join(self._new_result(), map(result_of, steps.values()))
        whole.parameters["measured"] = {name: facts["circumstances"]["date"] for name, facts in steps.items()}
        return whole

    def _new_result(self) -> Result:
        return self._bench.result(
            "paper-scale",
            "TagMatch's figures at the paper's size",
            f"""{self._sets:,} distinct sets. With one key a set, that is a user whose interest it is. With more, their
            numbers are those of the workload's sets, but which users they are is drawn for each set alone, and the
            keys take the place of the one key in a built index: 10 billion changes would not fit the machine. A build
            is `add_sets` and `consolidate` from files; *Algorithm 1 alone* begins with signatures.""",
        )

    def _generate(self, result: Result) -> None:
        missing = self._shards.missing
        seconds = seconds_of(self._shards.write)
        if missing:
            result.add(f"{missing} files of sets generated", seconds, "s")
            result.add("generated", self._sets / seconds / _MILLION, "million sets/s")

    def _build(self, result: Result, layout: Layout, share: int) -> None:
        if (path := self._index(layout, share)).exists():
            return
        sets, adding = self._sets_in(share), 0.0
        _most_memory()
        with TagMatch(layout=layout, threads=self._threads, device="cpu") as index:
            begin = time.perf_counter()
            for table in self._shards.tables(sets):
                adding += seconds_of(partial(index.add_sets, table["tags"], table["key"]))
            reading = time.perf_counter() - begin - adding
            consolidating = seconds_of(index.consolidate)
            saving = seconds_of(partial(index.save, path))
            alone = self._algorithm1(index.snapshot) if layout == "balanced" else None
        name, millions = OURS[layout], sets / _MILLION
        panel = result.panel("build", "million sets", "s", "lines", published=published.FIG8)
        parts = {"added": adding, "consolidated": consolidating, "read": reading, "saved": saving}
        for what, seconds in parts.items():
            panel.add(f"{name}: {what}", millions, seconds)
        panel.add(f"{name}, whole build", millions, adding + consolidating)
        if alone is not None:
            panel.add("Algorithm 1 alone", millions, alone)
        result.add(f"{name}, {share} %: most memory of the process", _most_memory() / _GIGA, "GB")
        result.add(f"{name}, {share} %: on disk", _bytes_below(path) / _GIGA, "GB")

    def _algorithm1(self, snapshot: Snapshot) -> float:
        segment = snapshot.only
        words = signatures_of(segment.tagsets.ranks, segment.vocabulary.hashes, threads=self._threads)
        most = LayoutOptions().max_partition_size
        return seconds_of(lambda: balanced_partitions(words, 0, most, threads=self._threads))

    def _table1(self, result: Result, layout: Layout, share: int) -> None:
        """Measure a place of Table 1 and Figure 4, and the memory of Figure 9."""
        place = percent(share / 100)
        ((_, queries, right),) = self._asked(share, (None,))
        with self._bench.built(self._systems(layout), self._with_keys(self._opened(layout, share)), result) as matchers:
            found = [*published.TABLE1, *published.FIG4_MATCH], published.FIG4_MATCH_UNIQUE
            self._both(result, _Looks("", "database", "bars", found), place, matchers, (queries, right))
            memory = result.panel(self._title("memory"), "database", "GB", log=False)
            for name, matcher in matchers.items():
                stats = cast("Tagmatch", matcher).index.stats()
                memory.add(f"{name}: keys", place, stats["key_bytes"] / _GIGA)
                memory.add(f"{name}: all else", place, (stats["index_bytes"] - stats["key_bytes"]) / _GIGA)

    def _both(self, result: Result, looks: _Looks, x: str | float, matchers: Any, asked: Any) -> None:
        """Measure `match` and `match-unique` at one place, each in a panel."""
        for what, values in zip(("match", "match-unique"), looks.published, strict=True):
            panel = result.panel(self._title(what + looks.end), looks.label, "queries/s", looks.style, published=values)
            where, unique = f"{panel.title}, {x}", what != "match"
            rates = self._bench.throughput(result, where, matchers, asked[1], asked[0], unique=unique)
            panel.add_all({name: rate.queries for name, rate in rates.items()}, x)

    def _fig2(self, result: Result, layout: Layout, share: int) -> None:
        """Measure Figures 2 and 3."""
        given = result.panel(self._title("match-unique, input"), "additional tags", "queries/s")
        output = result.panel(self._title("match-unique, output"), "additional tags", "keys/s")
        with self._bench.built(self._systems(layout), self._with_keys(self._opened(layout, share)), result) as matchers:
            for extra, queries, right in self._asked(share, tuple(_EXTRA_TAGS)):
                where = f"{given.title}, {extra}"
                found = self._bench.throughput(result, where, matchers, right, queries, unique=True)
                given.add_all({name: rate.queries for name, rate in found.items()}, str(extra))
                output.add_all({name: rate.keys for name, rate in found.items()}, str(extra))

    def _fig7(self, result: Result, layout: Layout, share: int) -> None:
        """Measure Figure 7: the sets of the index are laid out anew for each size of partitions."""
        ((_, queries, right),) = self._asked(share, (None,))
        opened = self._opened(layout, share)
        for part in _PARTITIONS:
            most = max(1, round(part * self._sets_in(share)))
            options = LayoutOptions(layout, max_partition_size=most)
            snapshot = self._with_keys(in_layout(opened, options, now=0, threads=self._threads))
            systems = {name: tagmatch(name, max_partition_size=most) for name in self._systems(layout)}
            with self._bench.built(systems, snapshot, result) as matchers:
                looks = _Looks(" by MAX_P", "MAX_P", "lines")
                self._both(result, looks, float(most), matchers, (queries, right))

    # -- what they need ------------------------------------------------------------------------------------------------

    def _title(self, what: str) -> str:
        keys = self._bench.options.keys_per_set
        return what if keys == 1 else f"{what}, {keys:g} keys a set"

    def _sets_in(self, share: int) -> int:
        return max(1, round(share / 100 * self._sets))

    def _index(self, layout: Layout, share: int) -> Path:
        return self._sizes.folder / f"{layout}-{share}.index"

    def _systems(self, layout: Layout) -> dict[str, Build]:
        on_gpu = [OURS_ON_GPU[layout]] if _device_bytes() else []
        return some(self._bench.wanted([OURS[layout], *on_gpu]))

    def _opened(self, layout: Layout, share: int) -> Snapshot:
        """The snapshot that a build has saved."""
        path = self._index(layout, share)
        if not path.exists():
            raise TagMatchError(f"{path} is missing; run --part build --layout {layout} --share {share} first")
        with TagMatch.open(path, device="cpu", threads=self._threads) as index:
            return index.snapshot

    def _with_keys(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with as many keys as are wanted."""
        return snapshot if self._drawn is None else with_keys(snapshot, self._drawn)

    @cached_property
    def _drawn(self) -> DrawnKeys | None:
        options = self._bench.options
        if options.keys_per_set == 1:
            return None
        return DrawnKeys(self._sets, options.keys_per_set, options.seed, options.threads)

    def _make_queries(self, share: int, extras: Sequence[int | None]) -> list[tuple[int | None, pa.ListArray, Oracle]]:
        """Queries with a number of tags more than a set, or 2 to 4; and the right answers to the first queries."""
        options, count = self._bench.options, self._sets_in(share)
        sample = self._shards.sample(count)
        stored = StoredSets.learn(sample["tags"].chunks, sample=len(sample), threads=options.threads)
        extenders = [
            Extender(stored, QueryOptions(options.seed, *((2, 4) if each is None else (each, each)))) for each in extras
        ]
        made = [each.queries(0, self._bench.queries, threads=options.threads) for each in extenders]
        checked = [queries[: options.checked] for queries in made]
        tags = pa.chunked_array([queries.flatten() for queries in checked]).unique()
        possible = self._shards.possible(count, tags)
        oracles = [Oracle(possible, queries, self._drawn, options.threads) for queries in checked]
        return list(zip(extras, made, oracles, strict=True))


def with_keys(snapshot: Snapshot, drawn: DrawnKeys) -> Snapshot:
    """The snapshot with other keys of its sets."""
    segments = (
        replace(segment, keys=KeyTable(drawn.of_tables(segment.tagsets.ranks, segment.vocabulary.hashes)))
        for segment in snapshot.segments
    )
    return Snapshot(tuple(segments))


@cache
def _device_bytes() -> float:
    """Memory of the CUDA device, 0 without one."""
    try:
        devices()
    except DeviceError:
        return 0
    from numba import cuda

    return float(cuda.current_context().get_memory_info().total)


def _cost(rates: _Rates, sets: int, threads: int) -> tuple[float, float, float, float]:
    """Seconds, and bytes of memory, of disk, and of the device's memory."""
    seconds = _LEAST_S + (rates.alone_us + rates.shared_us / threads) * sets / 1e6
    return seconds, _FIXED_BYTES + rates.memory * sets, rates.disk * sets, 0.0


def _most_memory() -> int:
    """The most memory that this process had since the last call, or since its start where Linux does not say."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/status").read_text().splitlines()
        most = next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), most)
        Path("/proc/self/clear_refs").write_text("5")
    return most * 1024


def _there(path: Path) -> Path:
    """The path, or the folder above it that is there."""
    return next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())


def _bytes_below(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
