"""Examples that are files run as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
def test_the_map_is_drawn(tmp_path: Path) -> None:
    script = str(EXAMPLES / "near_me_map.py")
    ran = subprocess.run([sys.executable, script, "map.png"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "10,000 messages reach 71," in ran.stdout
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
