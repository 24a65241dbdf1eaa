from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from faults.driver import figures_of, program_of, under
from faults.preloads import compiled, preloading
from support.servers import needs

_BROKERS = (("mosquitto", "mosquitto"), ("nats-server", "nats-server"))
_NEEDS = {"fuzz_gateways": _BROKERS, "gateways": (*_BROKERS, ("cc", "gcc libc6-dev"))}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test of `figures` is one for each of the PROGRAMS of its module, which are short; nightly, they are longer."""
    if "figures" in metafunc.fixturenames:
        programs = metafunc.module.PROGRAMS
        short = [pytest.param((name, "test"), id=name) for name in programs if program_of(name).rounds.test]
        long = [
            pytest.param(
                (name, "nightly"), id=f"{name}, longer", marks=[pytest.mark.nightly, pytest.mark.timeout(1800)]
            )
            for name in programs
        ]
        metafunc.parametrize("figures", [*short, *long], indirect=True)


@pytest.fixture
def figures(request: pytest.FixtureRequest, seed: int) -> dict[str, Any]:
    """What a program prints."""
    name, length = request.param
    program = program_of(name)
    for needed, package in _NEEDS.get(name, ()):  # where a skip does not reach the test
        needs(needed, package)
    if program.library or program.alone:
        return _under(program.library, request.module.PROGRAMS, length, seed)[name]
    return figures_of(name, getattr(program.rounds, length), seed)


@cache
def _under(library: str, programs: tuple[str, ...], length: str, seed: int) -> dict[str, dict[str, Any]]:
    """Those of these programs that run under a library, in one process: it takes seconds to start."""
    some = {name: program_of(name) for name in programs}
    names = [name for name, each in some.items() if each.library == library and getattr(each.rounds, length)]
    names = [name for name in names if library or some[name].alone]
    return {each["program"]: each for each in under(library, *names, "--length", length, "--seed", seed)}


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process in which allocations can fail."""
    return preloading(compiled("failing_malloc.c", tmp_path_factory.mktemp("failing_malloc")))
