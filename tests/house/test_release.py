"""What is compared before a release notices what it is for; and what type checkers make of a user's program.

The whole is `make release-check`.
"""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support.documents import ROOT

RELEASE = ROOT / "release"
CLIENT = Path(__file__).parent / "client" / "client.py"


def run(*command: object, folder: Path | None = None, code: int = 0) -> str:
    words = [sys.executable, *map(str, command)]
    done = subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == code, done.stdout
    return done.stdout


@pytest.mark.slow
def test_the_public_interface_is_the_recorded_one() -> None:
    run(RELEASE / "api.py")


@pytest.mark.nightly
def test_a_changed_interface_is_noticed(tmp_path: Path) -> None:
    """An option that is gone, an argument that is new, and a method with another default."""
    for name in ("api.py", "api.txt"):
        (tmp_path / name).write_bytes((RELEASE / name).read_bytes())
    recorded = (tmp_path / "api.txt").read_text()
    changed = recorded.replace("$ tagmatch match --unique\n", "$ tagmatch match --distinct\n")
    changed = changed.replace("full: 'bool' = False", "full: 'bool' = True")
    (tmp_path / "api.txt").write_text(changed)
    found = run(tmp_path / "api.py", code=1)
    assert {"-$ tagmatch match --distinct", "+$ tagmatch match --unique"} <= set(found.splitlines())
    assert found.count("tagmatch.TagMatch.consolidate(") == 2
    assert "--accept" in found
    run(tmp_path / "api.py", "--accept")
    assert (tmp_path / "api.txt").read_text() == recorded


def test_files_of_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(RELEASE))
    import contents

    modules = list(contents._modules())
    assert {"tagmatch/index.py", "tagmatch/pipeline/service.py", "tagmatch/broker/mqtt.py"} <= set(modules)
    info = [f"tagmatch-1.dist-info/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt")]
    own = ["tagmatch-1.dist-info/licenses/LICENSE", "tagmatch/py.typed", "pyspark_tagmatch/__init__.py"]
    own.append("tagmatch/broker/console/index.html")
    right, missing = {*modules, *info, *own}, ["tagmatch/py.typed", "tagmatch/pipeline/service.py"]
    wrong = (right - {*missing} | {"secret.pem"}, ["+ secret.pem", *map("- {}".format, missing)])
    for names, faults in ((right, []), wrong):
        with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
            for name in names:
                wheel.writestr(name, "")
        assert contents.wheel_faults(tmp_path / "a.whl") == faults


# An error that is marked as expected but does not come is an error in both: strict mypy says so by itself


@pytest.mark.nightly
def test_mypy(tmp_path: Path) -> None:
    (tmp_path / "mypy.ini").touch()
    assert "Success" in run("-m", "mypy", "--strict", CLIENT, folder=tmp_path)


@pytest.mark.nightly
def test_pyright(tmp_path: Path) -> None:
    settings = {
        "include": [str(CLIENT)],
        "typeCheckingMode": "strict",
        "reportUnnecessaryTypeIgnoreComment": "error",
        "enableTypeIgnoreComments": False,
        # pyarrow, which `match_many` returns arrays of, has no types
        "reportUnknownMemberType": False,
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    assert "0 errors" in run("-m", "basedpyright", "--pythonpath", sys.executable, folder=tmp_path)
