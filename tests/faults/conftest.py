from typing import Any

import pytest
from faults.driver import figures_of, program_of
from support.servers import needs

_OF_GATEWAYS = {"mosquitto": "mosquitto", "nats-server": "nats-server", "cc": "gcc libc6-dev"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test of `figures` is one for each of the PROGRAMS of its module, which are short; nightly, they are longer."""
    if "figures" in metafunc.fixturenames:
        names, marks = metafunc.module.PROGRAMS, [pytest.mark.nightly, pytest.mark.timeout(1800)]
        short = [pytest.param((name, "test"), id=name) for name in names if program_of(name).rounds.test]
        long = [pytest.param((name, "nightly"), id=f"{name}, longer", marks=marks) for name in names]
        metafunc.parametrize("figures", [*short, *long], indirect=True)


@pytest.fixture
def figures(request: pytest.FixtureRequest, seed: int) -> dict[str, Any]:
    name, length = request.param
    for needed, package in _OF_GATEWAYS.items() if name == "gateways" else ():  # where a skip does not reach the test
        needs(needed, package)
    return figures_of(name, getattr(program_of(name).rounds, length), seed, forks=False)
