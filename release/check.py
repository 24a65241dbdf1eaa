"""What has to hold before a release: builds it, looks at it, installs it as users do, and asks what others know of it.

    make release-check
    make release-check SKIP=audit      # where the service that knows vulnerabilities cannot be reached

Prints a line for each check, and ends with 1 if any failed. If none did, the wheel, the source distribution, the list
of packages and their checksums are in `dist/`. Versions of Python that are not on the machine are not tried.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib import metadata
from pathlib import Path

from api import differences, public
from contents import ROOT, sdist_faults, wheel_faults
from image import StepError, run_image
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

#: A wheel is no larger, in KB of 1,000 bytes. The aim was 700; modules alone, without comments and docstrings, have 734
MOST_KB = 1_150
#: Versions of Python that a release is tried with, if they are installed
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
#: Extras that users may install; all that they bring has one of the licences below. Benchmarks and tests ship nothing.
EXTRAS = ("spark", "mqtt", "nats", "kafka", "cuda", "serve", "trace")
#: Parts of the names of licences that an Apache-2.0 package may depend on, and those of NVIDIA's libraries
LICENCES = "Apache;BSD;Eclipse Distribution;ISC;MIT;Mozilla Public License;MPL-2.0;NVIDIA;Python;PSF;Zlib"
#: What newcomers read first, and can follow without extras
FIRST_PAGES = ("docs/index.md", "docs/tutorials/near_me.md")
#: The list of packages that an installation brings
BILL = "tagmatch.cdx.json"
#: Names other packages and has no files, so that it says no licence
METAPACKAGES = ("cuda-toolkit",)


class FailedError(Exception):
    """What is wrong."""


class NotTriedError(Exception):
    """Why not."""


def built(folder: Path) -> tuple[Path, Path]:
    """The wheel and the source distribution, built anew."""
    _run([sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)])
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def check_contents(wheel: Path, sdist: Path) -> str:
    """Both have the files that are expected."""
    if faults := [*wheel_faults(wheel), *sdist_faults(sdist)]:
        raise FailedError("\n".join([*faults, "if they are meant: edit release/wheel.txt, release/sdist.txt"]))
    sizes = [file.stat().st_size / 1000 for file in (wheel, sdist)]
    if sizes[0] > MOST_KB:
        raise FailedError(f"{wheel.name} has {sizes[0]:,.0f} KB, more than {MOST_KB}; leave out what users do not need")
    return f"{wheel.name}, {sizes[0]:,.0f} KB; {sdist.name}, {sizes[1]:,.0f} KB"


def check_interface() -> str:
    """The public interface is the one that was decided."""
    lines = public()
    if found := differences(lines):
        raise FailedError("\n".join([*found, "if it is meant: python release/api.py --accept"]))
    return f"{len(lines)} lines as in release/api.txt"


def check_changelog(wheel: Path) -> str:
    """The version of the wheel has a section that says what changed."""
    version = wheel.name.split("-")[1]
    section = re.search(
        rf"^## {re.escape(version)}\b.*\n(?P<text>(?:(?!^## ).*\n)*)", _text("CHANGELOG.md"), re.MULTILINE
    )
    if section is None or "\n- " not in f"\n{section['text']}":
        raise FailedError(f"CHANGELOG.md has no section with entries for {version}")
    if (cited := re.search(r"^version: (.*)$", _text("CITATION.cff"), re.MULTILINE)) is None or cited[1] != version:
        raise FailedError(f"CITATION.cff is of another version than {version}")
    return f"{version} has {section['text'].count(chr(10) + '- ') + 1} entries"


def check_install(wheel: Path, folder: Path, version: str, *versions: str) -> str:
    """It works for a Python that has nothing else; of what it needs, those versions may be given."""
    python = _environment(folder, version)
    _run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel), *versions])
    _run([python, "-m", "pip", "check", "--disable-pip-version-check"])
    # Elsewhere, so that it is not the checkout that is imported
    _run([python, str(ROOT / "release" / "smoke.py")], cwd=folder)
    for page in FIRST_PAGES:
        _run([python, str(ROOT / "tests" / "support" / "documents.py"), page], cwd=folder)
    return f"{len(_installed(python))} packages, without extras; {', '.join(FIRST_PAGES)}"


def check_image(folder: Path) -> str:
    """The steps of the service's image can be done, and it is well then."""
    source = folder.with_suffix(".tar")
    _run(["git", "-C", str(ROOT), "archive", "--output", str(source), "HEAD"])
    config = {"/etc/tagmatch/service.toml": _text("deploy/container.toml")}
    try:
        return f"{run_image(_text('Dockerfile'), source, folder, config)} commands"
    except StepError as error:
        raise FailedError(str(error)) from None


def check_licences() -> str:
    """What tagmatch and its extras bring has a licence that users can live with."""
    names = sorted(_brought())
    command = [sys.executable, "-m", "piplicenses", "--partial-match", "--allow-only", LICENCES]
    _run([*command, "--ignore-packages", *METAPACKAGES, "--packages", *names])
    return f"{len(names)} packages"


def check_vulnerabilities(folder: Path) -> str:
    """No vulnerability of the installed packages is known."""
    site = next(folder.glob("lib/python*/site-packages"))
    try:
        found = _run([sys.executable, "-m", "pip_audit", "--path", str(site), "--progress-spinner", "off"], both=True)
    except FailedError as error:
        if "requests.exceptions." in str(error):
            raise FailedError(
                "not audited, as the service that knows vulnerabilities does not answer: check the network; "
                "SKIP=audit leaves it out"
            ) from None
        raise
    # It leaves out what its service does not know, and ends well
    unknown = re.findall(r"^(\S+) +Dependency not found", found, re.MULTILINE)
    if unknown := [name for name in unknown if name != "tagmatch"]:
        raise FailedError(
            f"not audited, as the service, or what stands between, does not know them: {', '.join(unknown)}; "
            "SKIP=audit leaves it out"
        )
    return "none known"


def check_bill(folder: Path, bill: Path) -> str:
    """All that an installation brings is listed as CycloneDX describes it."""
    wanted = ["--output-reproducible", "--validate", "--of", "JSON", "-o", str(bill)]
    _run([sys.executable, "-m", "cyclonedx_py", "environment", *wanted, str(folder / "bin" / "python")])
    listed = {canonicalize_name(each["name"]) for each in json.loads(bill.read_text())["components"]}
    needed = {
        canonicalize_name(Requirement(text).name)
        for text in metadata.requires("tagmatch") or ()
        if "extra ==" not in text
    }
    if missing := {"tagmatch", *needed} - listed:
        raise FailedError(f"{bill.name} does not list {', '.join(sorted(missing))}")
    return f"{len(listed)} packages in {bill.name}"


def kept(files: list[Path], output: Path) -> str:
    """Copy the released files, and write their checksums, which `sha256sum --check` reads."""
    output.mkdir(parents=True, exist_ok=True)
    sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    for file in files:
        shutil.copy(file, output)
    (output / "SHA256SUMS").write_text("".join(sums))
    return f"{len(files)} files and SHA256SUMS in {output}"


def oldest() -> list[str]:
    """The oldest version of each package that tagmatch needs, as its bounds have it: `numpy==2.0.*`."""
    needed = [Requirement(text) for text in metadata.requires("tagmatch") or () if "extra ==" not in text]
    bounds = [(each.name, bound.version) for each in needed for bound in each.specifier if bound.operator == ">="]
    return [f"{name}=={version}{'.*' if version.count('.') < 2 else ''}" for name, version in bounds]


def _brought() -> set[str]:
    """Packages that tagmatch and its extras need, and what those need, as they are installed here."""
    found: set[str] = set()
    waiting = [("tagmatch", extra) for extra in ("", *EXTRAS)]
    done: set[tuple[str, str]] = set()
    while waiting:
        name, extra = pair = waiting.pop()
        if pair in done:
            continue
        done.add(pair)
        for text in metadata.requires(name) or ():
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                found.add(needed.name)
                waiting += [(needed.name, each) for each in ("", *needed.extras)]
    return found


def _environment(folder: Path, version: str) -> str:
    """An empty virtual environment; its Python."""
    installed = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    programs = [shutil.which(f"python{version}"), *map(str, installed.glob(f"{version}.*/bin/python"))]
    for program in filter(None, programs):
        # Where versions are switched by small programs, such a program may be there without the version
        if not subprocess.run([program, "--version"], capture_output=True).returncode:
            _run([program, "-m", "venv", str(folder)])
            return str(folder / "bin" / "python")
    raise NotTriedError("it is not on this machine")


def _installed(python: str) -> list[str]:
    return _run([python, "-m", "pip", "list", "--format", "freeze", "--disable-pip-version-check"]).split()


def _text(name: str) -> str:
    return (ROOT / name).read_text()


def _run(command: list[str], *, cwd: Path | None = None, both: bool = False) -> str:
    # The installed package is tried, and not a checkout
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=variables)
    if ran.returncode:
        last = "\n".join((ran.stdout + ran.stderr).strip().splitlines()[-15:])
        raise FailedError(f"{' '.join(command[:6])} …: exit code {ran.returncode}\n{last}")
    return ran.stdout + (ran.stderr if both else "")


def _checks(folder: Path, wheel: Path, sdist: Path, skipped: str) -> Iterator[tuple[str, Callable[[], str]]]:
    yield "files", partial(check_contents, wheel, sdist)
    yield "public interface", check_interface
    yield "changelog", partial(check_changelog, wheel)
    for version in PYTHONS:
        yield f"Python {version}", partial(check_install, wheel, folder / version, version)
    versions = oldest()
    named = f"Python {PYTHONS[0]}, {' '.join(versions)}"
    yield named, partial(check_install, wheel, folder / "oldest", PYTHONS[0], *versions)
    yield "image", partial(check_image, folder / "image")
    own = folder / f"{sys.version_info[0]}.{sys.version_info[1]}"
    yield "bill of materials", partial(check_bill, own, folder / BILL)
    yield "licences", check_licences
    if skipped != "audit":
        yield "vulnerabilities", partial(check_vulnerabilities, own)


def main() -> None:
    """Make all checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--skip", choices=["", "audit"], default="")
    skipped = parser.parse_args().skip
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        try:
            wheel, sdist = built(Path(folder))
        except FailedError as error:
            sys.exit(f"FAILED  build, so that nothing else can be checked: {error}")
        for name, check in _checks(Path(folder), wheel, sdist, skipped):
            try:
                print(f"ok      {name}: {check()}", flush=True)
            except NotTriedError as error:
                print(f"not tried  {name}: {error}", flush=True)
            except FailedError as error:
                failed += 1
                print(f"FAILED  {name}: {error}", flush=True)
        if not failed:
            print(f"kept    {kept([wheel, sdist, Path(folder) / BILL], ROOT / 'dist')}")
    if skipped:
        print(f"skipped {skipped}")
    sys.exit(f"{failed} of the checks failed" if failed else 0)


if __name__ == "__main__":
    main()
