"""Counts of the last long runs, which the page *How we test* shows."""

import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "docs" / "site" / "runs.json"


def record(run: str, *, tried: int, skipped: int, failed: int) -> None:
    """Write the counts of a run, `nightly` or `torture`, in place of those of the one before."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    counts = {"tried": tried, "skipped": skipped, "failed": failed}
    found = json.loads(RUNS.read_text())
    found[run] = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "commit": commit.stdout.strip(), **counts}
    RUNS.write_text(json.dumps(found, indent=2) + "\n")
