"""What is compared before a release notices what it is for; and what type checkers make of a user's program.

The whole is `make release-check`.
"""

import hashlib
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml
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


def test_files_that_are_released_have_checksums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(RELEASE))
    import check

    (tmp_path / "a.whl").write_bytes(b"wheel")
    assert check.kept([tmp_path / "a.whl"], tmp_path / "dist").startswith("1 files")
    assert (tmp_path / "dist/a.whl").read_bytes() == b"wheel"
    assert (tmp_path / "dist/SHA256SUMS").read_text() == f"{hashlib.sha256(b'wheel').hexdigest()}  a.whl\n"


def test_a_large_wheel_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(RELEASE))
    import check

    monkeypatch.setattr(check, "wheel_faults", lambda _: [])
    monkeypatch.setattr(check, "sdist_faults", lambda _: [])
    wheel = tmp_path / "a.whl"
    monkeypatch.setattr(check, "MOST_KB", 700)
    wheel.write_bytes(bytes(700_000))
    assert check.check_contents(wheel, wheel) == "a.whl, 700 KB; a.whl, 700 KB"
    wheel.write_bytes(bytes(701_000))
    with pytest.raises(check.FailedError, match="701 KB, more than 700"):
        check.check_contents(wheel, wheel)


IMAGE = """
FROM python
COPY . .
RUN cp given.txt /opt/given.txt
ENV PATH=/opt/bin:$PATH PLACE=/opt
RUN useradd guest
CHECK
CMD ["sh", "/etc/run.sh"]
"""
WELL = 'HEALTHCHECK --interval=1s CMD ["test", "-e", "STARTED"]'


def test_the_steps_of_an_image_are_run_as_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(RELEASE))
    import image

    (tmp_path / "given.txt").write_text("given")
    with tarfile.open(tmp_path / "source.tar", "w") as archive:
        archive.add(tmp_path / "given.txt", "given.txt")

    def run(name: str, script: str, steps: str = IMAGE) -> int:
        folder = tmp_path / name
        text = steps.replace("CHECK", WELL.replace("STARTED", str(folder / "opt" / "started")))
        return image.run_image(text, tmp_path / "source.tar", folder, {"/etc/run.sh": script})

    waits = "trap 'exit 0' TERM; cat /opt/given.txt > $PLACE/started; while :; do sleep 0.1; done"
    assert run("well", waits) == 3
    assert (tmp_path / "well/opt/started").read_text() == "given"
    with pytest.raises(image.StepError, match=r"not well\ngone"):
        run("ends", "echo gone")
    with pytest.raises(image.StepError, match="exit code 3"):
        run("fails", waits.replace("exit 0", "exit 3"))
    with pytest.raises(image.StepError, match="cp missing"):
        run("lacks", waits, IMAGE.replace("cp given.txt", "cp missing.txt"))


def workflow_faults(text: str) -> list[str]:
    """Actions without a commit, and jobs or workflows that may do more than read without saying so."""
    loose = [line.strip() for line in text.splitlines() if re.search(r"uses:(?!.*@[0-9a-f]{40} # v\d)", line)]
    return loose if re.search(r"^permissions: \{\}$", text, re.MULTILINE) else [*loose, "permissions"]


def test_workflows_have_least_rights_and_pinned_actions() -> None:
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        assert workflow_faults(path.read_text()) == [], path
        for job in yaml.safe_load(path.read_text())["jobs"].values():
            assert {name for name, right in job["permissions"].items() if right != "read"} <= {
                "attestations",
                "id-token",
            }
    assert workflow_faults("on: push\n  - uses: actions/checkout@v4\n") == [
        "- uses: actions/checkout@v4",
        "permissions",
    ]


# -- Linux, and other systems ------------------------------------------------------------------------------------------

#: What Python has on Linux only, or not on macOS
LINUX = r"""\b(os|fcntl|mmap|select|signal|socket)\.(O_(?:PATH|DIRECT|TMPFILE|RSYNC|NOATIME)|fdatasync|sched_[sg]et\w+|
    memfd_create|eventfd\w*|pidfd_open|posix_fa\w+|copy_file_range|splice|setns|unshare|epoll|[lfs]?[gs]etxattr|accept4|
    F_(?:\w+PIPE_SZ|OFD_\w+)|MADV_(?:HUGEPAGE|POPULATE\w+|DONTFORK)|MAP_POPULATE|MAP_NORESERVE|pthread_setname_np|
    sig(?:timed)?waitinfo|SO_(?:PEERCRED|INCOMING_CPU)|TCP_(?:USER_TIMEOUT|QUICKACK|CORK|DEFER_ACCEPT)|AF_(?:NETLINK|VSOCK))\b"""


def linux_only(text: str) -> list[str]:
    """Calls that only Linux has, and its folders, in a program that does not say what it does without the call."""
    calls = {(module, name) for module, name in re.findall("".join(map(str.strip, LINUX.splitlines())), text)}
    spared = "suppress(AttributeError"
    unasked = [f"{a}.{b}" for a, b in calls if f'hasattr({a}, "{b}")' not in text and spared not in text]
    return sorted(unasked) + (re.findall(r'"/(?:proc|sys)/[^"]*', text) if "hasattr(os" not in text else [])


def test_other_systems_stay_possible() -> None:
    """Each call that macOS lacks has something in its place; whether all works there is not tested."""
    read = 0
    for folder in ("broker", "model", "partitioner", "pipeline", "pyspark_tagmatch", "tagmatch", "workloads"):
        for path in (ROOT / folder).rglob("*.py"):
            assert linux_only(path.read_text()) == [], path
            read += 1
    assert read > 150
    assert linux_only("os.fdatasync(1)\nos.O_PATH") == ["os.O_PATH", "os.fdatasync"]
    assert linux_only('open("/proc/self/maps")') == ['"/proc/self/maps']
    assert linux_only('if hasattr(os, "memfd_create"):\n    os.memfd_create("a")') == []


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
