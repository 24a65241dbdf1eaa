"""Commands, services and gateways to which all kinds of things happen."""

from __future__ import annotations

PROGRAMS = ("commands", "fuzz_flight", "fuzz_gateways", "gateways")


def test_nothing_goes_wrong(figures):
    print({name: figures[name] for name in ("cases", "kinds", "outcomes")})
    assert not figures["problems"], "\n".join(figures["problems"])
