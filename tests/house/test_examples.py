"""Examples run as they stand: those of README and docs in an empty folder, a newcomer's pages, and files in examples/.

A newcomer installs tagmatch into a new environment as the start page says. Nothing is replaced: `pip` gets packages
from its configured places, PySpark with them, and builds tagmatch from a copy of the source code.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from support.documents import DOCUMENTS, NEEDS_JAVA, ROOT, blocks_in, download, run
from support.newcomers import ON_SPARK, PAGES, TUTORIALS, Newcomer, how_to_install, needed_for
from support.servers import needs_java

# To have packages may take as long as the network does
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

EXAMPLES = ROOT / "examples"
RUNNER = ROOT / "tests" / "support" / "documents.py"


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name not in PAGES])
def test_document_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    download(DOCUMENTS[name])
    compared = run([block for block in blocks_in(DOCUMENTS[name]) if block.reason is None])
    print(f"{name}: {compared} outputs are as shown")


# -- start page and tutorials ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Newcomer:
    """An environment with tagmatch as the start page installs it, without extras."""
    someone = Newcomer(tmp_path_factory.mktemp("newcomer"))
    someone.follow(how_to_install())
    return someone


def test_what_is_installed_is_what_runs(newcomer: Newcomer, tmp_path: Path) -> None:
    """And none of what this environment has: else a page that does not say what it needs would run all the same."""
    found = newcomer.run(["python", "-c", "import tagmatch; print(tagmatch.__file__)"], tmp_path)
    assert Path(found.strip()).is_relative_to(newcomer.source / ".venv")
    others = newcomer.run(["pip", "list", "--format", "freeze"], tmp_path)
    assert "hypothesis" not in others


@pytest.mark.parametrize("page", PAGES)
def test_page_runs(newcomer: Newcomer, tmp_path: Path, page: str) -> None:
    if page == ON_SPARK:
        needs_java()
    for command in needed_for(page):
        newcomer.run(["bash", "-e", "-c", command], newcomer.source)
    reason = [NEEDS_JAVA] if page == ON_SPARK else []
    for _ in range(2 if page in TUTORIALS else 1):  # and once more, in the same folder, as after a restart
        printed = newcomer.run(["python", str(RUNNER), page, *reason], tmp_path)
        compared = int(printed.rpartition(f"{page}: ")[2].split()[0])
        assert compared >= 3, printed


# -- a web service by two workers --------------------------------------------------------------------------------------


def block(words: str, page: str = "entitlements") -> str:
    """The one block of a tutorial that has these words."""
    (found,) = (each.code for each in blocks_in(ROOT / f"docs/tutorials/{page}.md") if words in each.code)
    return found


@contextlib.contextmanager
def served(folder: Path) -> Iterator[int]:
    """Run what the page says, and give the port when both workers answer."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "app:app", "--workers", "2", "--port", str(port)]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, start_new_session=True)
    try:
        while (folder / "log").read_text().count("Application startup complete") < 2:
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.05)
        yield port
        assert process.poll() is None
        assert "Traceback" not in (folder / "log").read_text()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def listed(port: int, path: str, **user: str) -> list[str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{path}", headers=user)
    with urllib.request.urlopen(request, timeout=600) as answer:
        found: list[str] = json.load(answer)
    return found


def documents(port: int) -> list[str]:
    return listed(port, "documents", token="a1")


def test_two_workers_start_again(tmp_path: Path) -> None:
    """What was revoked stays revoked."""
    programs = {
        "make_rules.py": block('"handbook")'),
        "app.py": block("app = FastAPI()"),
        "change_rules.py": block("changed.consolidate()"),
    }
    for name, code in programs.items():
        (tmp_path / name).write_text(code)
    subprocess.run([sys.executable, "make_rules.py"], cwd=tmp_path, check=True)
    with served(tmp_path) as port:
        assert documents(port) == ["budget", "handbook"]
        subprocess.run([sys.executable, "change_rules.py"], cwd=tmp_path, check=True)
        same = 0
        while same < 8:  # by both workers, as soon as each has looked
            same = same + 1 if documents(port) == ["handbook"] else 0
            time.sleep(0.05)
    with served(tmp_path) as port:
        assert {tuple(documents(port)) for _ in range(8)} == {("handbook",)}


def test_flags_of_two_workers_follow_each_change(tmp_path: Path) -> None:
    programs = {
        "make_flags.py": block("flags.put(", "flags"),
        "app.py": block("app = FastAPI()", "flags"),
        "change_flags.py": block("changed.consolidate()", "flags"),
    }
    for name, code in programs.items():
        (tmp_path / name).write_text(code)
    subprocess.run([sys.executable, "make_flags.py"], cwd=tmp_path, check=True)
    with served(tmp_path) as port:
        assert {tuple(listed(port, "flags", user="ana")) for _ in range(8)} == {("dark_mode", "export")}
        subprocess.run([sys.executable, "change_flags.py"], cwd=tmp_path, check=True)
        same = 0
        while same < 8:  # by both workers, as soon as each has looked
            same = same + 1 if listed(port, "flags", user="ana") == ["export", "new_search"] else 0
            time.sleep(0.05)


def asked(port: int, method: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"token": "a1", "content-type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers, method=method)
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


@contextlib.contextmanager
def service(folder: Path) -> Iterator[None]:
    """The service that the page starts, which is killed at the end."""
    subprocess.run(["bash", "-e", "-c", block("tagmatch serve", "alerts")], cwd=folder, check=True)
    try:
        yield
    finally:
        os.kill(int((folder / "service.pid").read_text()), signal.SIGKILL)


def test_my_alerts_by_two_workers_that_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both see at once each change of the other, and acknowledged changes are there after all were killed."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "first.py").write_text(block('TagMatch("flats.index"', "alerts").partition("sorted(")[0])
    (tmp_path / "app.py").write_text(block("app = FastAPI()", "alerts"))
    subprocess.run([sys.executable, "first.py"], cwd=tmp_path, check=True)
    offer = {"tags": ["lyon", "flat"], "attributes": {"price": 850, "rooms": 1}}
    with service(tmp_path), served(tmp_path) as port:
        for number in range(8):
            asked(port, "PUT", f"/alerts/{number}", {"tags": ["lyon"], "where": f"price < {1000 + number}"})
            [stored] = asked(port, "GET", "/alerts")[f"ana/{number}"]
            assert stored["where"] == f"price < {1000 + number}"
            asked(port, "PUT", f"/alerts/{number}", {"tags": ["lyon"], "where": f"price < {900 + number}"})
        asked(port, "DELETE", "/alerts/0")
    with service(tmp_path), served(tmp_path) as port:
        expected = ["ana/centre", *(f"ana/{number}" for number in range(1, 8))]
        for _ in range(8):
            found = asked(port, "POST", "/flats", offer)
            assert sorted(each["key"] for each in found) == sorted(expected)
            assert {each["email"] for each in found} == {"ana@example.org"}
        [stored] = asked(port, "GET", "/alerts")["ana/7"]
        assert (stored["tags"], stored["where"]) == (["lyon"], "price < 907")
        offer["attributes"] = {"price": 906}
        assert any("price is 906" in line for line in asked(port, "POST", "/alerts/6/why", offer))


# -- files in examples/ ------------------------------------------------------------------------------------------------


def test_programs(tmp_path: Path) -> None:
    def printed(name: str, picture: str) -> str:
        command = [sys.executable, str(EXAMPLES / name), picture]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
        return ran.stdout

    assert "10,000 messages reach 71," in printed("near_me_map.py", "map.png")
    demonstration = printed("demo.py", "a.png")
    parts = ["Tags", "Constraints", "Areas", "Updates", "A service"]
    begun = [line.partition(".")[0] for line in demonstration.splitlines()]
    assert [part for part in begun if part in parts] == parts
    assert "104,649,133 answers, the same in both layouts" in demonstration
    assert "The timings as a chart: a.png." in demonstration


def execute(notebook: Any) -> None:
    """Run all cells in a separate kernel, which imports the tagmatch that this process does."""
    # Without it a kernel that is spawned would import the installed package
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    client = NotebookClient(notebook, timeout=1800, kernel_name="python3", resources={"metadata": {"path": EXAMPLES}})
    client.execute(env={**os.environ, "PYTHONPATH": path})


def shown(cell: Any) -> list[str]:
    """The output of a cell; sets of strings have no order in text, but have one as HTML."""
    return [each.get("text") or each.data.get("text/html", each.data["text/plain"]) for each in cell.outputs]


def test_the_tour_shows_what_it_says() -> None:
    """And a cell that fails is noticed."""
    written, ran = (nbformat.read(EXAMPLES / "tour.ipynb", 4) for _ in range(2))
    execute(ran)
    compared = 0
    for before, after in zip(written.cells, ran.cells, strict=True):
        if before.cell_type != "code":
            continue
        if "varies" in before.metadata.get("tags", []):
            assert shown(after)
        else:
            assert shown(after) == shown(before), before.source
            compared += len(shown(after))
    assert compared >= 8
    wrong = nbformat.v4.new_code_cell("import tagmatch\ntagmatch.nothing_of_that_name")
    with pytest.raises(CellExecutionError, match="nothing_of_that_name"):
        execute(nbformat.v4.new_notebook(cells=[wrong]))
