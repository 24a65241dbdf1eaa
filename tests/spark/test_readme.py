"""README's example of Spark runs as printed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tagmatch import TagMatch


def test_example(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    section = readme.partition("## On Spark")[2]
    code = section.partition("```python\n")[2].partition("```")[0]
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == "[(1, 7), (1, 8)]"
    with TagMatch.open(tmp_path / "interests-by-spark.index") as tm:
        assert sorted(tm.match(["cat", "fr"])) == [7, 8]
