"""Programs that some tests need and pip does not install: without one a test is skipped; if `CI` is set, it fails."""

import functools
import glob
import os
import re
import shutil
import subprocess

import pytest

# Debian keeps servers' programs out of the path of users; of two Javas, Spark takes that of JAVA_HOME
_JAVA_HOME = [f"{home}/bin"] if (home := os.environ.get("JAVA_HOME")) else []
_PATH = os.pathsep.join([*_JAVA_HOME, os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
_JAVA, _JAVA_PACKAGE = "Java 17 or newer", "openjdk-17-jre-headless"


def needs(program: str, package: str, *, called: str | None = None) -> str:
    """Return the path of a program; skip the test without it, or the file, as that comes to be imported.

    It is asked for by its name, or a pattern of absolute paths, such as "/usr/lib/postgresql/*/bin/pg_ctl"; the message
    names what to install in Debian, and may have another name, `called`.
    """
    found = shutil.which(program, path=_PATH) if "/" not in program else max(glob.glob(program), default=None)
    return found or _lacking(called or program, package)


def needs_java() -> str:
    """Return the path of a Java that Spark runs on; without one as `needs`."""
    java = needs("java", _JAVA_PACKAGE, called=_JAVA)
    return java if _java_version(java) >= 17 else _lacking(_JAVA, _JAVA_PACKAGE)


@functools.cache
def _java_version(java: str) -> int:
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    version = re.search(r'version "(\d+)', told.stderr)
    return int(version[1]) if version else 0


def _lacking(program: str, package: str) -> str:
    reason = f"needs {program}: apt-get install {package}"
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason, allow_module_level=True)
