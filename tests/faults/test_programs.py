"""Programs that are killed, lose power, or write and read at once."""

from __future__ import annotations

PROGRAMS = ("kills", "writers", "readers", "power_loss")


def test_nothing_goes_wrong(figures):
    print({name: figures[name] for name in ("cases", "kinds", "outcomes")})
    assert not figures["problems"], "\n".join(figures["problems"])
