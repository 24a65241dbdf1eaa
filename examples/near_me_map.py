"""Alerts "near me" on a map: the cities whose news reach readers, and how many.

Writes a picture, `near_me.png` or the file that is named: python examples/near_me_map.py docs/near_me.png
Needs matplotlib: `pip install matplotlib`.
"""

import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from matplotlib.figure import Figure

from tagmatch import TagMatch

ALERTS = 100_000
DATA = Path(__file__).parent / "data" / "cities.parquet"

cities = pq.read_table(DATA)  # GeoNames, CC BY 4.0
random = np.random.default_rng(1)
people = cities["population"].to_numpy()

# Somebody in a city, drawn by how many live there, wants news from within 2 to 50 km about places of some size
homes = random.choice(len(cities), ALERTS, p=people / people.sum())
radii = random.uniform(2_000, 50_000, ALERTS)
areas = pa.StructArray.from_arrays(
    [cities["lon"].take(homes).combine_chunks(), cities["lat"].take(homes).combine_chunks(), pa.array(radii)],
    ["lon", "lat", "metres"],
)
where = [f"population >= {least}" for least in random.integers(100_000, 5_000_000, ALERTS)]
news = pa.table(
    {
        "population": cities["population"],
        "location": pa.StructArray.from_arrays(
            [cities["lon"].combine_chunks(), cities["lat"].combine_chunks()], ["lon", "lat"]
        ),
    }
)

with TagMatch() as tm:
    tm.add_subscriptions(pa.table({"key": np.arange(ALERTS), "where": where, "area": areas}))
    tm.consolidate()
    tm.match_many(news)  # compiles, the first time
    begin = time.perf_counter()
    keys = tm.match_many(news)
    seconds = time.perf_counter() - begin
reached = np.diff(keys.offsets.to_numpy())
print(f"{len(news):,} messages reach {reached.sum():,} of {ALERTS:,} alerts in {1e3 * seconds:.1f} ms")

figure = Figure(figsize=(10, 4.1), layout="constrained")
axes = figure.add_subplot(facecolor="#f7f7f4")
lon, lat = cities["lon"].to_numpy(), cities["lat"].to_numpy()
unread = reached == 0
axes.scatter(lon[unread], lat[unread], s=1, color="#c9c9c4", label="no reader asks for news from here")
order = np.argsort(reached)[np.count_nonzero(unread) :]
found = axes.scatter(
    lon[order], lat[order], s=3 + 60 * reached[order] / reached.max(), c=reached[order], cmap="viridis_r", norm="log"
)
axes.set(xlim=(-180, 180), ylim=(-60, 80), xticks=[], yticks=[], aspect="equal")
axes.set_title(f"{ALERTS:,} alerts near cities: how many each city's news reach", fontsize=11)
axes.legend(loc="lower left", fontsize=8, frameon=False)
figure.colorbar(found, ax=axes, label="alerts", shrink=0.8)
path = Path(sys.argv[1] if len(sys.argv) > 1 else "near_me.png")
figure.savefig(path, dpi=110)
print(f"the map is in {path}")
