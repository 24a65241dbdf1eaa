"""Logs whose disk fails, or whose program is interrupted, at every place; and many threads that wait for one disk."""

import errno
import itertools
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from faults.failing import Interrupt, interrupted
from support.journals import CALLS as SOME
from support.journals import (
    FIRST,
    ROWS,
    acquired,
    append,
    bulk,
    changes_in,
    changes_of,
    journal_in,
    peek,
    single,
    write_all,
)

from tagmatch import StagedChangesWarning, TagMatchError
from tagmatch.model.columns import rows_of_tags

LARGE = bulk([rows_of_tags([row] * 40) for row in ROWS], [row for row in ROWS for _ in range(40)], list(range(120)))
CALLS = [*SOME[:3], LARGE, SOME[3]]


class Disk:
    """Functions of `os` as the module under test calls them; call number `at`, counted from 1, fails, or all from it.

    A write that fails may have written some bytes before.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.work()
        for name in ("pwritev", "fsync", "ftruncate"):
            monkeypatch.setattr(os, name, self._counted(name, getattr(os, name)))

    def fail(self, at: int, code: int, *, on: bool = False, short: int = 0) -> None:
        self.calls.clear()
        self._failing, self._code, self._short = range(at, 10**9 if on else at + 1), code, short

    def work(self) -> None:
        self._failing = range(0)

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(descriptor: int, *arguments: Any) -> Any:
            self.calls.append(name)
            if len(self.calls) in self._failing:
                if name == "pwritev" and self._short:
                    pieces, offset = arguments
                    call(descriptor, [b"".join(pieces)[: self._short]], offset)
                raise OSError(self._code, os.strerror(self._code))
            return call(descriptor, *arguments)

        return called


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def logs(folder: Path) -> list[Path]:
    return sorted(folder.glob("staged-*"))


@contextmanager
def told(code: int) -> Iterator[list[str]]:
    """Errors of the block: the system's reason, or that the log takes no more."""
    messages: list[str] = []
    try:
        yield messages
    except TagMatchError as error:
        messages.append(str(error))
    assert all(os.strerror(code) in message or "consolidate()" in message for message in messages)


@pytest.mark.slow
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("on", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_whatever_fails_a_call_changes_all_or_nothing(tmp_path, disk, durability, code, on):
    """All written changes are replayed, synced or not; a log is begun, or it is not."""
    for at, short in itertools.product(range(1, 40), (0, 1, 50, 64, 100)):
        folder = tmp_path / f"{at} {short}"
        journal = journal_in(folder)
        disk.fail(at, code, on=on, short=short)
        written, refused = [], 0
        for i, call in enumerate(CALLS):
            before = journal.position
            with told(code) as errors:
                append(journal, call.record, durability)
            refused += len(errors)
            written += [call] * (journal.position - before)
            if i == 2:
                begun, generation = len(logs(folder)), FIRST
                with told(code) as errors:
                    generation = journal.rotate()
                refused += len(errors)
                assert generation - FIRST == len(logs(folder)) - begun == (not errors and bool(begun))
        failed = len(disk.calls) >= at
        disk.work()
        assert failed or not refused
        journal.close()
        assert acquired(folder) == changes_of(written)
        if not failed:
            assert written == CALLS
            return
    raise AssertionError("every run had a failing call")


def test_a_log_that_cannot_be_truncated_takes_nothing_until_it_can_or_another_is_begun(tmp_path, disk):
    journal = journal_in(tmp_path)
    append(journal, CALLS[0].record, "os")
    good = logs(tmp_path)[0].stat().st_size
    disk.fail(1, errno.EIO, on=True, short=70)
    for call in (CALLS[3], CALLS[4]):
        with pytest.raises(TagMatchError, match="Input/output error"):
            append(journal, call.record, "os")
    assert disk.calls == ["pwritev", "ftruncate", "ftruncate"]
    assert logs(tmp_path)[0].stat().st_size == good + 70
    assert peek(tmp_path, FIRST).torn_bytes == 70
    disk.work()
    append(journal, CALLS[4].record, "os")
    disk.fail(1, errno.EIO, on=True, short=70)
    with pytest.raises(TagMatchError):
        append(journal, CALLS[3].record, "os")
    disk.work()
    assert journal.rotate() == FIRST + 1
    append(journal, CALLS[1].record, "os")
    journal.close()
    assert acquired(tmp_path) == changes_of([CALLS[0], CALLS[4], CALLS[1]])


def test_writes_of_some_bytes_only_go_on(tmp_path, monkeypatch):
    write, rows = os.pwritev, [[f"t{i}"] for i in range(3_000)]
    many = bulk([rows_of_tags([row]) for row in rows], rows, list(range(3_000)))
    journal = journal_in(tmp_path)
    append(journal, many.record, "os")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", lambda fd, pieces, at: write(fd, [b"".join(pieces)[:7]], at))
        for call in CALLS:
            append(journal, call.record, "os")
        patch.setattr(os, "pwritev", lambda *_: 0)
        with pytest.raises(TagMatchError, match="no more bytes"):
            append(journal, CALLS[1].record, "os")
    journal.close()
    assert acquired(tmp_path) == changes_of([many, *CALLS])


def test_after_a_sync_that_failed_nothing_is_acknowledged_before_another_log_is_begun(tmp_path, disk):
    """And what the disk did not take is a torn tail, though another log follows."""
    journal = journal_in(tmp_path)
    append(journal, CALLS[0].record, "fsync")
    on_disk, size = journal.position, logs(tmp_path)[0].stat().st_size
    early, late = (journal.write(call.record) for call in CALLS[1:3])
    disk.fail(1, errno.EIO)
    with pytest.raises(TagMatchError, match="Input/output error"):
        journal.sync(late)
    disk.work()  # Linux tells an error once

    def refused(use: Callable[[], object]) -> None:
        with pytest.raises(TagMatchError, match=r"consolidate\(\)"):
            use()

    for durability in ("fsync", "os"):
        refused(lambda durability=durability: append(journal, CALLS[3].record, durability))
    for begun in (False, True):
        for lost in (early, late):
            refused(lambda lost=lost: journal.sync(lost))
        journal.sync(on_disk)
        if not begun:
            assert journal.rotate() == FIRST + 1
            append(journal, CALLS[4].record, "fsync")
    journal.close()
    assert acquired(tmp_path) == changes_of([*CALLS[:3], CALLS[4]])
    os.truncate(logs(tmp_path)[0], size + 90)
    with pytest.warns(StagedChangesWarning, match="90 bytes"):
        assert acquired(tmp_path) == changes_of([CALLS[0], CALLS[4]])
    assert acquired(tmp_path) == changes_of([CALLS[0], CALLS[4]])


def test_logs_are_on_disk_before_the_next_one_is_begun_and_after_a_torn_tail_is_cut(tmp_path, monkeypatch):
    write_all(tmp_path, CALLS)
    (log,) = logs(tmp_path)
    os.truncate(log, log.stat().st_size - 1)
    good, synced, fsync = peek(tmp_path, FIRST).nbytes, [], os.fsync

    def noted(descriptor: int) -> None:
        synced.append((os.readlink(f"/proc/self/fd/{descriptor}"), len(logs(tmp_path)), os.fstat(descriptor).st_size))
        fsync(descriptor)

    monkeypatch.setattr("os.fsync", noted)
    with pytest.warns(StagedChangesWarning, match="bytes"):
        journal = journal_in(tmp_path)
    assert changes_in(journal.replay()) == changes_of(CALLS[:-1])
    assert (str(log), 1, good) in synced
    append(journal, CALLS[0].record, "os")
    synced.clear()
    journal.rotate()
    old, new = logs(tmp_path)
    assert [each[:2] for each in synced] == [(str(old), 1), (str(new), 2), (str(tmp_path), 2)]
    journal.close()


@contextmanager
def open_files_are_closed() -> Iterator[None]:
    """A file that an interruption lets go of is closed by Python, which warns of that."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "what", ["first fsync", "first os", "fsync", "os", "rotate", "drop", "close", "back_to", "acquire"]
)
def test_ctrl_c_at_every_place_leaves_a_call_whole_or_undone(tmp_path, what):
    for at in itertools.count(1):
        folder = tmp_path / f"{at}"
        journal = journal_in(folder)
        *first, durability = what.split("-")
        expected = [] if first else CALLS[:2]
        for call in expected:
            append(journal, call.record, "os")
        before, opened, interrupt = journal.position, journal, Interrupt(at)
        calls: dict[str, Callable[[], object]] = {
            "rotate": journal.rotate,
            "drop": lambda journal=journal: journal.drop(FIRST),
            "close": journal.close,
            "back_to": lambda journal=journal: journal.back_to(1),
            "acquire": lambda folder=folder: journal_in(folder),
        }
        act = calls.get(what, lambda journal=journal, how=durability: append(journal, CALLS[2].record, how))
        if what == "acquire":
            journal.close()
            opened = None
        try:
            with open_files_are_closed(), interrupted(interrupt):
                found = act()
                opened = found if what == "acquire" else journal
        except KeyboardInterrupt:
            if what not in calls and at % 2:
                journal.back_to(before)
        journal = opened or journal_in(folder)
        if what == "close":
            with open_files_are_closed():
                journal.close()
            journal = journal_in(folder)
        elif what == "back_to":
            expected = expected[: journal.position]
        elif what not in calls:
            expected = [*expected, *[CALLS[2]] * (journal.position - before)]
            assert interrupt.count >= at or journal.position > before
        append(journal, CALLS[4].record, "fsync")
        assert changes_in(journal.replay()) == changes_of([*expected, CALLS[4]])
        journal.close()
        assert acquired(folder) == changes_of([*expected, CALLS[4]])
        if interrupt.count < at:
            return


class Ordered:
    """Syncs that take a while, and what the file had at the beginning of each that has ended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.covered = 0
        self.count = 0
        fsync = os.fsync

        def slow(descriptor: int) -> None:
            size = os.fstat(descriptor).st_size
            fsync(descriptor)
            time.sleep(seconds)
            self.count += 1
            self.covered = max(self.covered, size)

        monkeypatch.setattr("os.fsync", slow)


@pytest.mark.slow
def test_threads_share_syncs_and_none_returns_before_the_one_that_covers_it(tmp_path, monkeypatch):
    journal = journal_in(tmp_path)
    append(journal, single(["first"], 0).record, "fsync")
    ordered, lock, orders = Ordered(monkeypatch, 0.0005), threading.Lock(), [single(["first"], 0)]

    def work(thread: int) -> None:
        for i in range(200):
            call = single([f"of {thread}"], thread * 1_000 + i)
            with lock:
                position = journal.write(call.record)
                orders.append(call)
                end = logs(tmp_path)[0].stat().st_size
            journal.sync(position)
            assert ordered.covered >= end

    with ThreadPoolExecutor(16) as threads:
        assert len([*threads.map(work, range(16))]) == 16
    assert 0 < ordered.count < 16 * 200 / 2
    journal.close()
    assert acquired(tmp_path) == changes_of(orders)


def test_one_thread_syncs_each_record_once(tmp_path, monkeypatch):
    """A change that replaces one taken back is not on disk before it is synced."""
    journal = journal_in(tmp_path)
    append(journal, CALLS[0].record, "fsync")
    begin = logs(tmp_path)[0].stat().st_size
    append(journal, CALLS[3].record, "fsync")
    journal.back_to(1)
    ordered = Ordered(monkeypatch, 0)
    for call in [CALLS[1], *(single(["a"], i) for i in range(10))]:
        append(journal, call.record, "fsync")
        assert ordered.covered == logs(tmp_path)[0].stat().st_size
        journal.sync(journal.position)
    assert ordered.count == 11
    journal.close()
    claim = logs(tmp_path)[0].read_bytes()[begin + 24 : begin + 32]
    assert int.from_bytes(claim, "little") <= begin


def test_all_threads_are_told_when_the_sync_that_they_wait_for_fails(tmp_path, monkeypatch):
    journal = journal_in(tmp_path)
    append(journal, CALLS[0].record, "fsync")
    fail, fsync = threading.Event(), os.fsync

    def failing_once(_: int) -> None:
        fail.wait(60)
        monkeypatch.setattr("os.fsync", fsync)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("os.fsync", failing_once)
    positions = [journal.write(single(["a"], i).record) for i in range(8)]
    with ThreadPoolExecutor(8) as threads:
        syncs = [threads.submit(journal.sync, position) for position in positions]
        fail.set()
    assert [type(each.exception()) for each in syncs] == [TagMatchError] * 8
    journal.close()
