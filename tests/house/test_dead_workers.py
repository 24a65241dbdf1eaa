"""A test that ends its process fails, by its name, and the run ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SETTINGS = Path(__file__).parents[2] / "pyproject.toml"


@pytest.mark.slow
def test_the_run_ends(tmp_path):
    (tmp_path / "test_dies.py").write_text("import os\ndef test_before(): pass\ndef test_dies(): os._exit(3)\n")
    (tmp_path / "test_sound.py").write_text("def test_sound(): pass\n")
    command = [sys.executable, "-m", "pytest", "-c", SETTINGS, "--rootdir", tmp_path, "-n1", "--dist=loadfile", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "crashed while running 'test_dies.py::test_dies'" in done.stdout
