"""The five things that tagmatch does, on real data, with timings: tags, constraints, areas, updates and a service.

Tags of 29,795 packages of Debian; 10,000 cities of GeoNames (CC BY 4.0). Writes a chart of the timings, `demo.png` or
the file that is named: python examples/demo.py chart.png
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from matplotlib.figure import Figure
from rich.console import Console

import tagmatch
from tagmatch import TagMatch
from tagmatch.broker.service import serving
from tagmatch.calls import another_process

DATA = Path(__file__).parent / "data"
ALERTS = 100_000
SINGLE = 20_000


class Timing(NamedTuple):
    """How many a second."""

    what: str
    unit: str
    rate: float


def main(chart: Path) -> None:
    """Run the demonstration."""
    console = Console(highlight=False, soft_wrap=True)
    begin = time.perf_counter()
    timings: list[Timing] = []
    with (
        console.status("compiling kernels (once per machine) and matching"),
        another_process(f"import runpy; runpy.run_path({__file__!r})['rehearse']()"),
    ):
        for part in PARTS:
            for line in part(timings):
                console.print(line)
            console.print()
    draw(timings, chart)
    console.print(f"The timings as a chart: {chart}. All this took {time.perf_counter() - begin:.0f} seconds.")


def tags(timings: list[Timing]) -> list[str]:
    """Find, for each package, the packages whose tags are all among its own."""
    packages = pq.read_table(DATA / "debian_tags.parquet")
    names, queries, answers = packages["package"], packages["tags"], {}
    for name in ("rarest", "balanced"):
        with TagMatch(layout=name, max_partition_size=1_000) as tm:
            tm.add_sets(queries, packages["key"])
            tm.consolidate()
            answers[name] = tm.match_many(queries, unique=True)
            took = seconds(lambda tm=tm: tm.match_many(queries, unique=True))
            timings.append(Timing(f"tags, layout {name}", "packages", len(queries) / took))
            query = queries[pc.index(names, "wordpress").as_py()].as_py()
            sets = sorted(tm.explain(query), key=lambda pair: (-len(pair[0]), pair[1]))
    if not answers["rarest"].equals(answers["balanced"]):
        sys.exit("the layouts disagree")
    found = len(answers["rarest"].values)
    shown = [
        f"  {{{', '.join(sorted(tags))}}}: {', '.join(names.take(keys[:3]).to_pylist())}" for tags, keys in sets[:3]
    ]
    return [
        f"[bold]Tags.[/] For each of {len(queries):,} Debian packages, those whose tags are all among its own:",
        f"{found:,} answers, the same in both layouts. {len(sets)} sets of tags are among wordpress's:",
        *shown,
    ]


def constraints(timings: list[Timing]) -> list[str]:
    """Find, for each city, the subscriptions that ask for such a one."""
    cities = pq.read_table(DATA / "cities.parquet")
    random = np.random.default_rng(1)
    countries = random.choice(cities["country"].to_numpy(zero_copy_only=False), ALERTS).tolist()
    least = random.integers(15_000, 2_000_000, ALERTS).tolist()
    such = f'country = "{countries[0]}" and population >= {least[0]}'
    # A set may have that text; columns need no parser
    asked = [
        [{"attr": "country", "op": "=", "text": country}, {"attr": "population", "op": ">=", "value": few}]
        for country, few in zip(countries, least, strict=True)
    ]
    with TagMatch() as tm:
        tm.add_subscriptions(pa.table({"key": np.arange(ALERTS), "constraints": asked}))
        tm.consolidate()
        found = tm.match_many(cities.select(["country", "population"]))
        took = seconds(lambda: tm.match_many(cities.select(["country", "population"])))
    timings.append(Timing("constraints", "messages", len(cities) / took))
    return [
        f"[bold]Constraints.[/] {ALERTS:,} subscriptions such as {such}:",
        f"the {len(cities):,} cities are {len(found.values):,} answers, in {1e3 * took:.1f} ms.",
    ]


def areas(timings: list[Timing]) -> list[str]:
    """Find the clients near each city, and have all of them move."""
    cities = pq.read_table(DATA / "cities.parquet")
    random = np.random.default_rng(1)
    people = cities["population"].to_numpy()
    homes = random.choice(len(cities), ALERTS, p=people / people.sum())
    clients = np.arange(ALERTS)
    lon, lat = cities["lon"].to_numpy()[homes], cities["lat"].to_numpy()[homes]
    places = pa.StructArray.from_arrays([cities[name].combine_chunks() for name in ("lon", "lat")], ["lon", "lat"])
    news = pa.table({"location": places})
    with TagMatch() as tm:
        near = pa.StructArray.from_arrays([pa.array(random.uniform(2_000, 50_000, ALERTS))], ["metres"])
        tm.add_subscriptions(pa.table({"key": clients, "area": near}))
        tm.consolidate()
        tm.move(clients, lon, lat)
        moving = seconds(lambda: tm.move(clients, lon, lat))
        found = tm.match_many(news)
        took = seconds(lambda: tm.match_many(news))
    timings.append(Timing("areas", "messages", len(news) / took))
    timings.append(Timing("areas: clients that move", "moves", ALERTS / moving))
    return [
        f"[bold]Areas.[/] {ALERTS:,} clients with alerts from within 2 to 50 km of their places: news from cities",
        f"are {len(found.values):,} answers, in {1e3 * took:.1f} ms; all clients moved in {1e3 * moving:.1f} ms.",
    ]


def updates(timings: list[Timing]) -> list[str]:
    """Change packages of an index on the disk."""
    packages = pq.read_table(DATA / "debian_tags.parquet")
    changed = packages.slice(0, 1_000)
    with TemporaryDirectory() as folder, TagMatch(f"{folder}/debian.index") as tm:
        tm.add_sets(packages["tags"], packages["key"])
        tm.consolidate()
        begin = time.perf_counter()
        tm.remove_sets(changed["tags"], changed["key"])
        tm.add_sets(changed["tags"], pc.add(changed["key"], 1_000_000))
        tm.consolidate()
        took = time.perf_counter() - begin
    timings.append(Timing("updates, on the disk", "changes", 2 * len(changed) / took))
    return [
        f"[bold]Updates.[/] {2 * len(changed):,} changes of an index in a folder were in effect, and on the disk,",
        f"after {1e3 * took:.0f} ms.",
    ]


def service(timings: list[Timing]) -> list[str]:
    """Ask over a connection, message by message."""
    rows = pq.read_table(DATA / "debian_tags.parquet")["tags"].to_pylist()[:SINGLE]
    sets = sorted({tuple(sorted(row)) for row in rows})
    with TagMatch() as tm:
        tm.add_sets(sets, np.arange(len(sets)))
        tm.consolidate()
        with serving(tm) as running, tagmatch.connect(running.url) as client:

            def ask() -> int:
                return sum(len(each.result()) for each in [client.submit(row) for row in rows])

            found = ask()
            took = seconds(ask)
    timings.append(Timing("the service, message by message", "messages", SINGLE / took))
    return [
        f"[bold]A service.[/] {SINGLE:,} messages, one by one over Arrow Flight, got {found:,} keys in",
        f"{took:.2f} seconds.",
    ]


PARTS = (tags, constraints, areas, updates, service)


def rehearse() -> None:
    """Compile the kernels of the last part first, while another process compiles those of the first part."""
    for part in reversed(PARTS):
        part([])


def seconds(call: Callable[[], Any]) -> float:
    """How long it takes, at best of two."""

    def once() -> float:
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin

    return min(once() for _ in range(2))


def draw(timings: list[Timing], path: Path) -> None:
    """Bars of how many a second."""
    figure = Figure(figsize=(9, 0.6 + 0.45 * len(timings)), layout="constrained")
    axes = figure.add_subplot()
    rates = [each.rate for each in timings]
    bars = axes.barh([each.what for each in timings], rates, color="#4c78a8")
    axes.bar_label(bars, [f"{each.rate:,.0f} {each.unit}" for each in timings], padding=4, fontsize=9)
    axes.set(xscale="log", xlabel="a second", xlim=(min(rates) / 3, max(rates) * 20))
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo.png"))
