"""Examples that are files run as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PARTS = ["Tags", "Constraints", "Areas", "Updates", "A service"]


@pytest.mark.slow
def test_the_map_is_drawn(tmp_path: Path) -> None:
    script = str(EXAMPLES / "near_me_map.py")
    ran = subprocess.run([sys.executable, script, "map.png"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "10,000 messages reach 71," in ran.stdout
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_demonstration_shows_the_five_things(tmp_path: Path) -> None:
    script = str(EXAMPLES / "demo.py")
    ran = subprocess.run([sys.executable, script, "a.png"], cwd=tmp_path, capture_output=True, text=True, check=True)
    begun = [line.partition(".")[0] for line in ran.stdout.splitlines() if line.partition(".")[0] in PARTS]
    assert begun == PARTS
    assert "104,649,133 answers, the same in both layouts" in ran.stdout
    assert "The timings as a chart: a.png." in ran.stdout
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
