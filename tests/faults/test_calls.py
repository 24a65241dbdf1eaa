"""Calls that find no memory or a full disk, or are interrupted, one by one and in random walks."""

from __future__ import annotations

PROGRAMS = ("sweep", "memory_sweep", "machine")


def test_nothing_goes_wrong(figures):
    print({name: figures[name] for name in ("cases", "kinds", "outcomes")})
    assert not figures["problems"], "\n".join(figures["problems"])
