"""Services that answer from an index that another one saves: soon, wholly, and through failures of it and the disk."""

import json
import random
import re
import threading
import time
from dataclasses import replace

import pytest
from support.agreement import index_of
from support.brokers import free_port
from support.command import started
from support.service import config, fetched, written
from support.waiting import wait_until

from tagmatch import InvalidValueError, TagMatch, TagMatchError, connect
from tagmatch.broker.config import IndexOptions
from tagmatch.broker.config_file import read_config
from tagmatch.broker.replicas import Copies, first_of
from tagmatch.broker.service import opened, serving
from tagmatch.model.storage import tables
from tagmatch.model.storage.folders import ArrowFolder
from tagmatch.model.storage.format import MANIFEST

pytest_plugins = ["support.s3_bucket"]

#: A bound far above the promised second, for busy machines; counts tell which snapshots came, not times
LONG = 60
WRITER = "grpc://writer:8815"


def follower(path, **options):
    given = IndexOptions(str(path), follow=True, device="cpu", threads=1, auto_reload=0.01, **options)
    return replace(config(), index=given)


def commit(tm, tag, key):
    tm.add_set([tag], key)
    tm.consolidate()


def test_changes_are_refused_by_the_name_of_the_writer(tmp_path):
    index_of([["cat"]], [7], tmp_path / "index").close()
    given = follower(tmp_path / "index", writer=WRITER)
    with opened(given) as index, serving(index, given) as service, connect(service.url) as tm:
        calls = [
            lambda of: of.add_set(["dog"], 8),
            lambda of: of.add_sets([["dog"]], [8]),
            lambda of: of.remove_sets([["cat"]], [7]),
            lambda of: of.put(8, ["dog"]),
            lambda of: of.delete(7),
        ]
        for of in (index, tm):
            for call in calls:
                with pytest.raises(InvalidValueError, match=f"only follows the index; make changes at {WRITER}"):
                    call(of)
            assert (of.match(["cat"]), of.stats()["staged"]) == ([7], 0)
    with pytest.raises(InvalidValueError, match="make changes at the service that saves it"):
        opened(follower(tmp_path / "index")).add_set(["dog"], 8)


def test_who_follows_leaves_staged_changes_and_files_alone(tmp_path):
    with TagMatch(tmp_path / "index", device="cpu") as writer:
        commit(writer, "cat", 7)
        writer.add_set(["dog"], 8)
    before = sorted(each.name for each in (tmp_path / "index").iterdir())
    with opened(follower(tmp_path / "index")) as index:
        assert (index.match(["cat", "dog"]), index.stats()["staged"]) == ([7], 0)
    assert sorted(each.name for each in (tmp_path / "index").iterdir()) == before
    with TagMatch(tmp_path / "index", device="cpu") as writer:
        writer.consolidate()
        assert sorted(writer.match(["cat", "dog"])) == [7, 8]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"follow": True, "create": True}, "create is for the service that changes the index"),
        ({"follow": True, "copy_to": "x"}, "copy_to is for the service that changes the index"),
    ],
)
def test_options_that_contradict_each_other(options, told, tmp_path):
    with pytest.raises(InvalidValueError, match=told):
        IndexOptions("index", **options)
    text = "\n".join(f"{name} = {json.dumps(value)}" for name, value in options.items())
    with pytest.raises(TagMatchError, match=r"service.toml:[123]: .*" + told[:20]):
        read_config(written(tmp_path, f"[index]\n{text}"))


def test_only_new_segments_are_read(tmp_path, monkeypatch):
    """So that how long it takes is a matter of the changes, not of the index."""
    index_of([[f"t{i}"] for i in range(50_000)], range(50_000), tmp_path / "index").close()
    read, check_file = [], tables.check_file
    with TagMatch(tmp_path / "index", device="cpu") as writer, opened(follower(tmp_path / "index")) as index:
        writer._engine.changing.merging.end()
        monkeypatch.setattr(
            tables, "check_file", lambda of, name, *more, **how: (read.append(name), check_file(of, name, *more, **how))
        )
        for number in range(10):
            before = {each.name for each in index.snapshot.segments}
            read.clear()
            writer.remove_set([f"t{number}"], number)
            commit(writer, f"t{number}", 50_000 + number)
            wait_until(lambda number=number: index.match([f"t{number}"]) == [50_000 + number], LONG)
            known = {each.name for each in index.snapshot.segments} & before
            assert known
            assert read
            assert not [name for name in read if name.split("/")[-2] in known]
        index.check()


def test_rows_that_come_back_are_read_again(tmp_path):
    """A snapshot with the same tables and fewer deleted rows, as `save` of an earlier one makes it."""
    with TagMatch(tmp_path / "index", device="cpu", keep_snapshots=3) as writer:
        writer.add_sets([["t"]] * 20_000, range(20_000), where=[f"price = {i}" for i in range(20_000)])
        writer.consolidate()
        writer._engine.changing.merging.end()
        writer.remove_set(["t"], 1, where="price = 1")
        writer.consolidate()
        number = writer.stats()["number"]
    with opened(follower(tmp_path / "index")) as index:
        assert (index.match(["t"], {"price": 1}), index.stats()["deleted"]) == ([], 1)
        with TagMatch.open(tmp_path / "index", snapshot=number - 1) as earlier:
            earlier.save(tmp_path / "index")
        wait_until(lambda: index.stats()["number"] > number, LONG)
        assert (index.match(["t"], {"price": 1}), index.stats()["deleted"]) == ([1], 0)
        index.check()


def test_a_newer_format_waits_for_a_newer_program(tmp_path):
    """Writers are upgraded last; should one be first, followers answer from what they have, and say why."""
    path = tmp_path / "index"
    index_of([["cat"]], [7], path).close()
    with opened(follower(path)) as index, serving(index, follower(path)) as service:
        text = (path / MANIFEST).read_bytes()
        newer = re.sub(rb'"format": *\d+', b'"format": 99', text)
        assert newer != text
        (path / MANIFEST).write_bytes(newer)
        wait_until(lambda: "IndexVersionError" in str(index.stats()["reload_error"]), LONG)
        lines = service.metrics.text().decode().splitlines()
        assert "tagmatch_reload_failed 1.0" in lines
        assert (index.match(["cat"]), service.is_ready) == ([7], True)
        (path / MANIFEST).write_bytes(text)
        index_of([["cat"]], [8]).save(path)
        wait_until(lambda: index.match(["cat"]) == [8], LONG)
        assert index.stats()["reload_error"] is None
        (path / MANIFEST).write_bytes(newer)
        with pytest.raises(TagMatchError, match="99"):
            first_of(lambda: opened(follower(path)))


def test_lag_is_shown(tmp_path):
    path = tmp_path / "index"
    index_of([["cat"]], [7], path).close()
    given = follower(path)
    with TagMatch.open(path) as plain, opened(given) as index, serving(index, given) as service:
        assert plain.stats()["lag"] is None
        with connect(service.url) as tm:
            assert {*tm.stats()["lag"]} == {"behind_seconds", "snapshot_seconds"}
        away = path.with_name("away")
        path.rename(away)
        wait_until(lambda: index.stats()["reload_error"] is not None, LONG)
        behind = index.stats()["lag"]["behind_seconds"]
        wait_until(lambda: index.stats()["lag"]["behind_seconds"] > behind + 0.1, LONG)
        names = {line.split()[0] for line in service.metrics.text().decode().splitlines()}
        assert {"tagmatch_behind_seconds", "tagmatch_snapshot_seconds", "tagmatch_snapshot_number"} <= names
        away.rename(path)
        wait_until(lambda: index.stats()["lag"]["behind_seconds"] < behind + 0.1, LONG)


@pytest.mark.slow
def test_alive_but_not_ready_until_the_first_snapshot(tmp_path):
    metrics, path = free_port(), tmp_path / "shared" / "index"
    process = started(
        "serve", path, "--follow", "--port", 0,
        "--config", written(tmp_path, f"[metrics]\nport = {metrics}\n[http]\nenabled = false\n"), stdout=-1,
    )  # fmt: skip

    def answer(of):
        try:
            return fetched(f"http://127.0.0.1:{metrics}/{of}")
        except OSError as error:
            return str(error)

    wait_until(lambda: answer("livez") == "alive\n", LONG)
    assert "503" in answer("readyz")
    path.mkdir(parents=True)
    (path / MANIFEST).write_text("half")
    time.sleep(0.5)
    assert ("503" in answer("readyz"), process.poll()) == (True, None)
    (path / MANIFEST).unlink()
    index_of([["cat"]], [7], path).close()
    line = process.stdout.readline().decode()
    assert line.startswith("tagmatch: listening on ")
    wait_until(lambda: answer("readyz") == "ready\n", LONG)
    with connect(line.split()[3].rstrip(",")) as tm:
        assert tm.match(["cat"]) == [7]
    process.terminate()
    process.communicate(timeout=LONG)
    assert process.returncode == 0


# -- a store ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("place", ["folder", "store"])
def test_every_commit_arrives_whole_though_old_snapshots_go(place, tmp_path, uri):
    """Answers are always those of a state that was committed, never older than one seen before; the last one comes."""
    target, seed = str(tmp_path / "copy") if place == "folder" else uri, random.randrange(2**32)
    print("seed", seed)
    draw = random.Random(seed)
    states: list[frozenset[int]] = []  # the keys that ["a", "b"] gets, after each commit
    with TagMatch(tmp_path / "index", device="cpu", durability="none") as writer:
        commit(writer, "a", 0)
        states.append(frozenset([0]))
        with Copies(str(tmp_path / "index"), target) as copies:
            index = first_of(lambda: opened(follower(target)))
            seen, wrong, ended = [0], [], threading.Event()

            def ask():
                while not ended.is_set():
                    keys = frozenset(index.match(["a", "b"]))
                    later = [at for at in range(seen[-1], len(states)) if states[at] == keys]
                    if later:
                        seen.append(later[0])
                    elif keys != states[seen[-1]]:
                        wrong.append(keys)
                    time.sleep(0.002)

            asking = threading.Thread(target=ask)
            asking.start()
            for number in range(1, 40 if place == "folder" else 12):
                keys = (
                    states[-1] | {number} if draw.random() < 0.8 or not states[-1] else states[-1] - {min(states[-1])}
                )
                for key in states[-1] - keys:
                    writer.remove_sets([["a"], ["b"]], [key, key])
                for key in keys - states[-1]:
                    writer.add_set([draw.choice("ab")], key)
                states.append(keys)  # before it is committed: an answer from it cannot come earlier
                writer.consolidate()
                if draw.random() < 0.3:
                    wait_until(lambda: seen[-1] >= len(states) - 2, LONG)
            wait_until(lambda: frozenset(index.match(["a", "b"])) == states[-1], LONG)
            wait_until(lambda: copies.behind() == 0.0, LONG)
            ended.set()
            asking.join()
            print(f"{len(states)} states, {len({*seen})} of them seen, {len(seen)} answers")
            assert (wrong, index.stats()["reload_error"]) == ([], None)
            index.check()
            index.close()


@pytest.mark.slow
def test_a_snapshot_that_is_half_there(tmp_path, uri):
    """As of a copy by other means, in any order: what there was answers, and the whole one when it has come."""
    with TagMatch(tmp_path / "index", device="cpu") as writer:
        commit(writer, "cat", 7)
        with Copies(str(tmp_path / "index"), uri):
            pass
        with opened(follower(uri)) as index:
            commit(writer, "cat", 8)
            with Copies(str(tmp_path / "index"), uri.replace("/folder/", "/other/")):
                pass
            whole, half = ArrowFolder.at(uri.replace("/folder/", "/other/")), ArrowFolder.at(uri)
            half.write(MANIFEST, whole.read(MANIFEST))
            wait_until(lambda: "lacks a file" in str(index.stats()["reload_error"]), LONG)
            assert index.match(["cat"]) == [7]
            for name in whole.names():
                for file in whole.folder(name).names():
                    half.folder(name).write(file, whole.folder(name).read(file))
            wait_until(lambda: sorted(index.match(["cat"])) == [7, 8], LONG)
            wait_until(lambda: index.stats()["reload_error"] is None, LONG)


def test_a_place_that_cannot_be_written_for_a_while(tmp_path):
    """The writer goes on, says by how much the copy is behind, and copies again by itself."""
    target = tmp_path / "copy"
    with TagMatch(tmp_path / "index", device="cpu") as writer:
        commit(writer, "cat", 7)
        target.write_text("in the way")
        with Copies(str(tmp_path / "index"), str(target)) as copies:
            wait_until(lambda: copies.behind() > 0.1, LONG)
            commit(writer, "cat", 8)
            target.unlink()
            wait_until(lambda: copies.behind() == 0.0, LONG)
        with TagMatch.open(target) as copy:
            assert sorted(copy.match(["cat"])) == [7, 8]
    again = TagMatch.open(tmp_path / "index")
    with Copies(str(tmp_path / "index"), str(target)):  # a writer that starts again
        pass
    assert again.stats()["number"] == TagMatch.snapshots(target)[-1].number
    again.close()
