"""Short forms of the programs that have other programs killed, or several work at an index at once."""

from __future__ import annotations

from typing import get_args

from faults.kills import MERGING

from tagmatch.pipeline.filters.index import Path


def test_what_a_killed_program_had_done_has_lasted(report_of):
    report = report_of("kills", rounds=60)
    outcomes = report["outcomes"]
    assert report["cases"] == 60
    assert outcomes["lost calls"] == 0
    assert outcomes["acknowledged changes"] > 1000
    assert outcomes[f"kills in {MERGING}"] > 3
    print(outcomes)


def test_several_writers_at_once(report_of):
    report = report_of("writers", rounds=60)
    assert report["cases"] == 60
    assert report["outcomes"]["lost"] == 0
    assert report["outcomes"]["found by their conditions"] == 2 * 20


def test_each_answer_is_of_one_snapshot_while_another_program_writes(report_of):
    report = report_of("readers", rounds=25)
    assert report["kinds"] == {"readers": 8, "consolidations": 25}
    outcomes = report["outcomes"]
    assert (outcomes["mixed"], outcomes["errors"]) == (0, 0)
    assert outcomes["merges"] > 5
    assert all(outcomes[f"sets found by {way}"] > 1000 for way in get_args(Path))
    assert outcomes["reloads of a newer snapshot"] > 8
    print(outcomes)
