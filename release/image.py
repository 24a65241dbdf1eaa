"""The steps of the Dockerfile as commands, in a separate folder, with the packages of the image."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path

#: Steps that make users, and folders for them, which only an image should have
_OF_USERS = ("useradd", "install -d -o")
#: Until the service is well; the image has as long
_START_S, _STOP_S, _LOOK_S = 300.0, 60.0, 1.0


class StepError(Exception):
    """A step of the image ended badly, with its output."""


def run_image(dockerfile: str, source: Path, folder: Path, files: Mapping[str, str]) -> int:
    """Do the steps of a Dockerfile in `folder`; how many commands ran, with that of the image and its health check.

    `source` is an archive of what `COPY . .` copies. The places `/opt` and `/var/lib` of the image are folders in
    `folder`, as are those of `files`, texts by their paths in the image. The command of the image runs until its health
    check passes, and is then asked to end. Raises StepError.
    """
    places = {place: folder / place.strip("/") for place in ("/opt", "/var/lib", *files)}

    def here(text: str) -> str:
        return re.sub(
            "|".join(map(re.escape, sorted(places, key=len, reverse=True))), lambda at: str(places[at[0]]), text
        )

    for place, path in places.items():
        (path.parent if place in files else path).mkdir(parents=True, exist_ok=True)
    for place, text in files.items():
        places[place].write_text(here(text))
    with tarfile.open(source) as archive:
        archive.extractall(folder / "src", filter="data")
    variables, check, ran = dict(os.environ), "", 0
    variables.pop("PYTHONPATH", None)
    for line in dockerfile.splitlines():
        step, _, rest = line.partition(" ")
        if step == "ENV":
            for name, value in (pair.split("=", 1) for pair in shlex.split(rest)):
                variables[name] = here(value).replace("$PATH", variables["PATH"])
        elif step == "RUN" and not rest.startswith(_OF_USERS):
            _run(["sh", "-ec", here(rest)], folder / "src", variables)
            ran += 1
        elif step == "HEALTHCHECK":
            check = rest.partition("CMD ")[2]
        elif step == "CMD":
            _serve([here(each) for each in json.loads(rest)], json.loads(check), folder, variables)
            ran += 2
    return ran


def _run(command: list[str], folder: Path, variables: dict[str, str]) -> None:
    done = subprocess.run(
        command, cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise StepError(f"{command[-1]}: exit code {done.returncode}\n{done.stdout[-2000:]}")


def _serve(command: list[str], check: list[str], folder: Path, variables: dict[str, str]) -> None:
    """Start the command of the image, and end it when its check has passed."""
    with (folder / "log").open("w+") as log:
        service = subprocess.Popen(command, cwd=folder, env=variables, stdout=log, stderr=log)
        try:
            until = time.monotonic() + _START_S
            while subprocess.run(check, env=variables, capture_output=True).returncode:
                if service.poll() is not None or time.monotonic() > until:
                    raise StepError(f"{shlex.join(command)}: not well\n{(folder / 'log').read_text()[-2000:]}")
                time.sleep(_LOOK_S)
            service.send_signal(signal.SIGTERM)
            if code := service.wait(_STOP_S):
                raise StepError(f"{shlex.join(command)}: exit code {code}\n{(folder / 'log').read_text()[-2000:]}")
        finally:
            service.kill()
            service.wait()
