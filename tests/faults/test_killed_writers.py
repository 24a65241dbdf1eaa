"""A short form of `python -m faults.writers`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_killed_writers_and_several_at_once(seed):
    command = [sys.executable, "-m", "faults.writers", "--kills", "20", "--changes", "60", "--seed", str(seed)]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=280)
    assert done.stdout, done.stderr[-2000:]
    report = json.loads(done.stdout)
    assert not report["problems"], "\n".join(report["problems"])
    assert report["counts"]["kills"] == 20
    assert report["counts"]["changes by several writers"] == 60
