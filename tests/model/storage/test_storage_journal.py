import itertools
import multiprocessing
import shutil
import signal
import tempfile
import time
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.journals import CALLS, FIRST, acquired, append, changes_in, changes_of, journal_in, peek, single, write_all

from tagmatch import ClosedError, IndexCorruptError, IndexLockedError, IndexVersionError, StagedChangesWarning
from tagmatch.model.errors import InvalidValueError, TagMatchError
from tagmatch.model.storage.log_records import LOG_HEADER_BYTES, LOG_VERSION, LogHeader


def log(folder: Path, generation: int = FIRST) -> Path:
    return folder / f"staged-{generation:08d}.log"


def records_in(folder: Path, made: list) -> list[bytes]:
    data = log(folder).read_bytes()
    ends = list(itertools.accumulate((64 + call.record.nbytes for call in made), initial=LOG_HEADER_BYTES))
    assert ends[-1] == len(data)
    return [data[begin:end] for begin, end in itertools.pairwise([0, *ends])]


def outcome(folder: Path) -> tuple[list, bool] | None:
    """The contents that an index opens with, and whether it warns of losses; None if it is damaged."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = acquired(folder)
        except IndexCorruptError:
            for opening in (journal_in, peek):
                with pytest.raises(IndexCorruptError, match=r"staged-0000000\d.log .*\(byte \d+\); restore"):
                    opening(folder, FIRST)
            return None
    assert all(each.category is StagedChangesWarning for each in caught)
    return found, bool(caught)


@pytest.mark.slow
def test_every_prefix_of_a_log_has_a_prefix_of_its_changes_and_warns(tmp_path):
    write_all(tmp_path, CALLS)
    ends = list(itertools.accumulate(map(len, records_in(tmp_path, CALLS))))
    good = log(tmp_path).read_bytes()
    for size in range(len(good)):
        log(tmp_path).write_bytes(good[:size])
        whole = sum(end <= size for end in ends[1:])
        torn = size - max([0, *(end for end in ends if end <= size)])
        staged = peek(tmp_path, FIRST)
        assert (staged.records, staged.changes) == (whole, len(changes_of(CALLS[:whole])))
        assert staged.torn_bytes == torn
        assert staged.torn_records == (torn >= 64 and size > ends[0])
        assert log(tmp_path).read_bytes() == good[:size]
        assert outcome(tmp_path) == (changes_of(CALLS[:whole]), size not in ends)
        assert outcome(tmp_path) == (changes_of(CALLS[:whole]), False)


@pytest.mark.slow
@pytest.mark.parametrize("is_last", [True, False])
def test_every_changed_byte_is_noticed(tmp_path, is_last):
    """Also in a log that another follows, which has no torn tail."""
    write_all(tmp_path, CALLS)
    *_, last = records_in(tmp_path, CALLS)
    made = CALLS[:-1]
    if not is_last:
        journal = journal_in(tmp_path)
        journal.rotate()
        append(journal, CALLS[0].record, "os")
        journal.close()
    good = log(tmp_path).read_bytes()
    for place in range(len(good)):
        for value in {0 if is_last else good[place], good[place] ^ 1 << place % 8} - {good[place]}:
            bad = bytearray(good)
            bad[place] = value
            log(tmp_path).write_bytes(bad)
            is_torn = is_last and place >= len(good) - len(last)
            assert outcome(tmp_path) == ((changes_of(made), True) if is_torn else None), place
    if not is_last:
        for size in range(len(good)):
            log(tmp_path).write_bytes(good[:size])
            assert outcome(tmp_path) is None, size
        log(tmp_path).unlink()
        assert outcome(tmp_path) is None
    log(tmp_path).write_bytes(good)
    assert outcome(tmp_path) == (changes_of(CALLS if is_last else [*CALLS, CALLS[0]]), False)


def test_records_that_are_swapped_repeated_left_out_or_of_another_log_are_noticed(tmp_path):
    for name in ("one", "other"):
        write_all(tmp_path / name, CALLS)
    start, *records = records_in(tmp_path / "one", CALLS)
    foreign, *others = records_in(tmp_path / "other", CALLS)

    def of(*pieces: bytes) -> tuple[list, bool] | None:
        log(tmp_path / "one").write_bytes(b"".join(pieces))
        return outcome(tmp_path / "one")

    for i, j in itertools.combinations(range(len(records)), 2):
        swapped = records.copy()
        swapped[i], swapped[j] = swapped[j], swapped[i]
        assert of(start, *swapped) is None
    for i, record in enumerate(records):
        wrong = [[*records[: i + 1], *records[i:]], [*records, record]]
        if i < len(records) - 1:
            wrong += [[*records[:i], *more, *records[i + 1 :]] for more in ([], [others[i]])]
        assert [of(start, *each) for each in wrong] == [None] * len(wrong)
        assert of(start, *records[:i], *others[i:]) == (changes_of(CALLS[:i]), True)
    assert of(foreign, *records) == ([], True)
    assert of(start, *records) == (changes_of(CALLS), False)
    # Under the name of another generation, or in its place
    for generation in (FIRST + 1, FIRST):
        shutil.copy(log(tmp_path / "other"), log(tmp_path, generation))
    assert outcome(tmp_path) is None
    log(tmp_path).unlink()
    assert outcome(tmp_path) is None


def test_a_record_that_claims_more_changes_than_it_has_bytes_is_damage_before_it_is_decoded(tmp_path):
    write_all(tmp_path, [single(["a"], 1), replace(CALLS[0], record=CALLS[0].record._replace(rows=2**63))])
    assert outcome(tmp_path) is None


@given(st.binary(max_size=200), st.integers(1, len(CALLS)))
def test_anything_behind_the_records_is_a_torn_tail(waste, count):
    with tempfile.TemporaryDirectory() as name:
        write_all(Path(name), CALLS[:count])
        with log(Path(name)).open("ab") as file:
            file.write(waste)
        assert outcome(Path(name)) == (changes_of(CALLS[:count]), waste != b"")


def holed(folder: Path, durability: str) -> tuple[int, list]:
    """A log, which a crash could leave so: a block that was not written, and sound records behind it."""
    made = [single([f"tag number {i}"], i) for i in range(40)]
    journal = journal_in(folder)
    for call in made[:-1]:
        append(journal, call.record, "os")
    append(journal, made[-2].record, durability)
    append(journal, made[-1].record, "os")
    journal.close()
    data = log(folder).read_bytes()
    log(folder).write_bytes(data[:1024] + bytes(512) + data[1536:])
    return sum(end <= 1024 for end in itertools.accumulate(64 + call.record.nbytes for call in made)), made


def test_a_block_that_was_not_written_before_a_crash_is_a_torn_tail(tmp_path):
    before, made = holed(tmp_path / "os", "os")
    staged = peek(tmp_path / "os", FIRST)
    assert staged.torn_records > 20
    with pytest.warns(StagedChangesWarning, match=f"{staged.torn_bytes} bytes .* {staged.torn_records} calls"):
        assert acquired(tmp_path / "os") in (changes_of(made[:before]), changes_of(made[: before - 1]))
    assert log(tmp_path / "os").stat().st_size == staged.nbytes
    holed(tmp_path / "fsync", "fsync")
    assert outcome(tmp_path / "fsync") is None


def _hold(folder: Path, durability: str, ready) -> None:
    journal = journal_in(folder)
    for call in CALLS:
        append(journal, call.record, durability)
    ready.set()
    time.sleep(600)


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_another_program_has_the_log_until_it_is_killed(tmp_path, durability):
    fork = multiprocessing.get_context("fork")
    ready = fork.Event()
    program = fork.Process(target=_hold, args=(tmp_path, durability, ready))
    program.start()
    assert ready.wait(60)
    for _ in range(2):
        with pytest.raises(IndexLockedError, match="close it there"):
            journal_in(tmp_path)
    assert peek(tmp_path, FIRST).records == len(CALLS)
    program.kill()
    program.join()
    assert program.exitcode == -signal.SIGKILL
    assert acquired(tmp_path) == changes_of(CALLS)


def test_the_child_of_a_fork_neither_writes_nor_keeps_the_lock(tmp_path):
    journal = journal_in(tmp_path)
    append(journal, CALLS[0].record, "os")
    fork = multiprocessing.get_context("fork")
    has_let_go, goes_on = fork.Event(), fork.Event()

    def work() -> None:
        with pytest.raises(ClosedError):
            append(journal, CALLS[1].record, "os")
        journal.close()
        has_let_go.set()
        goes_on.wait(60)

    child = fork.Process(target=work)
    child.start()
    append(journal, CALLS[2].record, "os")
    journal.close()
    assert has_let_go.wait(60)
    assert acquired(tmp_path) == changes_of([CALLS[0], CALLS[2]])
    goes_on.set()
    child.join()
    assert child.exitcode == 0


@pytest.mark.parametrize("damage", [b"", b"x" * 100, LogHeader(FIRST, 1, 0, LOG_VERSION + 1).packed()])
def test_the_lock_is_let_go_when_the_log_cannot_be_had(tmp_path, damage):
    log(tmp_path).write_bytes(damage)
    if damage[:1] not in (b"", b"x"):
        for opening in (journal_in, peek):
            with pytest.raises(IndexVersionError, match="upgrade"):
                opening(tmp_path, FIRST)
    else:
        with pytest.raises((StagedChangesWarning, IndexCorruptError)):
            journal_in(tmp_path)
    log(tmp_path).unlink(missing_ok=True)
    assert acquired(tmp_path) == []


def test_a_closed_journal_says_so_and_a_file_is_no_folder(tmp_path):
    journal = journal_in(tmp_path)
    journal.close()
    journal.close()
    write, replay = lambda: append(journal, CALLS[0].record, "os"), lambda: list(journal.replay())
    for use in (write, replay, lambda: journal.sync(1), lambda: journal.drop(9), journal.rotate):
        with pytest.raises(ClosedError):
            use()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(TagMatchError, match="cannot write the index"):
        journal_in(tmp_path / "file")
    staged = peek(tmp_path / "none", FIRST)
    assert (staged.changes, staged.records, staged.nbytes, staged.torn_bytes) == (0, 0, 0, 0)
    assert not (tmp_path / "none").exists()


def test_no_file_is_made_before_the_first_record_and_none_without_records_stays(tmp_path):
    journal = journal_in(tmp_path)
    assert journal.rotate() == FIRST
    journal.close()
    assert [file.name for file in tmp_path.iterdir()] == ["WRITER"]
    journal = journal_in(tmp_path)
    for number, call in enumerate(CALLS, 1):
        append(journal, call.record, "os")
        assert journal.rotate() == journal.rotate() == FIRST + number
    assert log(tmp_path, FIRST + 4).stat().st_size == LOG_HEADER_BYTES
    journal.close()
    log(tmp_path).write_bytes(b"damaged, but it no longer counts" * 9)
    assert peek(tmp_path, FIRST + 2).records == 2
    journal = journal_in(tmp_path, FIRST + 2)
    assert changes_in(journal.replay()) == changes_of(CALLS[2:])
    assert [log(tmp_path, FIRST + i).exists() for i in range(5)] == [False, False, True, True, False]
    journal.close()


_steps = [st.sampled_from(["fsync", "os"]), st.sampled_from(["", "rotate", "drop", "reopen"]), st.integers(0, 4)]


@given(st.lists(st.tuples(st.sampled_from(CALLS), *_steps), max_size=8))
def test_generations_that_are_dropped_are_gone_and_no_others(steps):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        journal = journal_in(folder)
        first = generation = FIRST
        kept: dict[int, list] = {}
        for call, durability, step, more in steps:
            append(journal, call.record, durability)
            kept.setdefault(generation, []).append(call)
            if step == "rotate":
                assert journal.rotate() == generation + 1
                generation += 1
            if step == "drop":
                journal.drop(first + more)
                first = min(first + more, generation)
            if step == "reopen":
                journal.close()
                first = min(first + more, generation)
                journal = journal_in(folder, first)
            kept = {number: some for number, some in kept.items() if number >= first}
            expected = changes_of(call for some in kept.values() for call in some)
            assert changes_in(journal.replay()) == expected
            assert peek(folder, first).changes == len(expected)
        journal.close()


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_the_last_record_can_be_taken_back(tmp_path, durability):
    journal = journal_in(tmp_path)

    def refused(position: int) -> None:
        with pytest.raises(InvalidValueError, match="back"):
            journal.back_to(position)

    append(journal, CALLS[0].record, "os")
    before = journal.position
    journal.back_to(before)
    append(journal, CALLS[1].record, durability)
    journal.back_to(before)
    refused(before - 1)
    journal.back_to(before)
    assert changes_in(journal.replay()) == changes_of(CALLS[:1])
    refused(before + 1)
    append(journal, CALLS[2].record, durability)
    append(journal, CALLS[3].record, durability)
    refused(before)
    journal.rotate()
    refused(journal.position - 1)
    journal.close()
    assert acquired(tmp_path) == changes_of([CALLS[0], *CALLS[2:]])
