"""Files and messages that are damaged, or that a stranger has made."""

from __future__ import annotations

PROGRAMS = ("damage", "crafted", "fuzz_ipc", "fuzz_files")


def test_nothing_goes_wrong(figures):
    print({name: figures[name] for name in ("cases", "kinds", "outcomes")})
    assert not figures["problems"], "\n".join(figures["problems"])
