"""What is compared before a release notices what it is for. The whole is `make release-check`."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

RELEASE = Path(__file__).parents[2] / "release"


def run(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True)


@pytest.mark.slow
def test_the_public_interface_is_the_recorded_one() -> None:
    found = run(RELEASE / "api.py")
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.slow
def test_a_changed_interface_is_noticed(tmp_path: Path) -> None:
    """An option that is gone, an argument that is new, and a method with another default."""
    for name in ("api.py", "api.txt"):
        (tmp_path / name).write_bytes((RELEASE / name).read_bytes())
    recorded = (tmp_path / "api.txt").read_text()
    changed = recorded.replace("$ tagmatch match --unique\n", "$ tagmatch match --distinct\n").replace(
        "full: 'bool' = False", "full: 'bool' = True"
    )
    (tmp_path / "api.txt").write_text(changed)
    found = run(tmp_path / "api.py")
    assert found.returncode == 1
    assert {"-$ tagmatch match --distinct", "+$ tagmatch match --unique"} <= set(found.stderr.splitlines())
    assert found.stderr.count("tagmatch.TagMatch.consolidate(") == 2
    assert "--accept" in found.stderr
    assert run(tmp_path / "api.py", "--accept").returncode == 0
    assert (tmp_path / "api.txt").read_text() == recorded


def test_files_of_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(RELEASE))
    import contents

    modules = list(contents._modules())
    assert {"tagmatch/interface.py", "tagmatch/pipeline/service.py", "tagmatch/broker/gateways/mqtt.py"} <= set(modules)
    info = [f"tagmatch-1.dist-info/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt")]
    right = [*modules, *info, "tagmatch-1.dist-info/licenses/LICENSE", "tagmatch/py.typed"]
    right.append("pyspark_tagmatch/__init__.py")

    def faults(names: list[str]) -> list[str]:
        with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
            for name in names:
                wheel.writestr(name, "")
        return contents.wheel_faults(tmp_path / "a.whl")

    assert faults(right) == []
    wrong = [name for name in right if name not in ("tagmatch/py.typed", "tagmatch/pipeline/service.py")]
    assert faults([*wrong, "secret.pem"]) == ["+ secret.pem", "- tagmatch/py.typed", "- tagmatch/pipeline/service.py"]
