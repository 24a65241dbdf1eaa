"""A short form of `python -m faults.writers`."""

from __future__ import annotations


def test_killed_writers_and_several_at_once(report_of):
    counts = report_of("writers", kills=20, changes=60)["counts"]
    assert counts["kills"] == 20
    assert counts["changes by several writers"] == 60
