"""Short forms of the programs that `make torture` runs for so many rounds."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("name", "rounds", "endings"),
    [
        ("damage", 400, {"noticed", "nothing changed"}),
        ("full_disks", 12, {"whole", "an error"}),
        ("ctrl_c", 9, {"interrupted"}),
        ("crafted", 60, {"IndexCorruptError"}),
    ],
)
def test_a_few_rounds(report_of, name, rounds, endings):
    report = report_of(name, rounds=rounds)
    assert report["cases"] == rounds
    assert set(report["outcomes"]) >= endings


def test_damage_to_every_file_is_noticed(report_of):
    report = report_of("every_file", rounds=100)
    kinds = report["kinds"]
    assert kinds.pop("whole files") >= 4 * 4 * 6
    assert kinds == {"first and last bytes": 400, "any bytes": 100}


def test_rows_of_files_are_used_or_refused_as_other_readers_say(report_of):
    report = report_of("fuzz_files", mutations=150)
    assert report["kinds"] == {"jsonl": 150, "csv": 150, "parquet": 150}
    assert set(report["outcomes"]) >= {"jsonl whole", "jsonl rows skipped", "csv rows skipped", "parquet refused"}


def test_arrow_messages_are_refused_or_can_be_used(report_of):
    report = report_of("fuzz_ipc", mutations=2_000)
    assert report["cases"] == 2_000
    assert set(report["outcomes"]) == {"refused", "taken"}


def test_messages_of_gateways_are_matched_or_dead_letters(report_of):
    report = report_of("fuzz_gateways", messages=1_000)
    kinds, outcomes = report["kinds"], report["outcomes"]
    assert kinds["mqtt properties"] == kinds["mqtt json"] == kinds["nats properties"] == kinds["nats json"] == 250
    assert min(kinds[f"{kind} through a broker"] for kind in ("mqtt", "nats")) >= 10
    assert min(outcomes[name] for name in ("matched", "unmatched", "refused", "sent", "unsendable")) > 20


def test_a_service_bears_any_arrow_messages(report_of):
    report = report_of("fuzz_flight", mutations=500)
    assert report["cases"] == 500
    assert report["outcomes"]["OK"] > 0
