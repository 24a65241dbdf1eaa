"""Users with a filter: what they see and change of an index, over every call."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyarrow import flight
from support.service import command, config, options

from tagmatch import AccessError, ConfigError, FilterError, TagMatch, connect
from tagmatch.broker.answers import ACTIONS, EXCHANGES, LIMITED, PUTS
from tagmatch.broker.client import RemoteTagMatch
from tagmatch.broker.config import User
from tagmatch.broker.config_file import read_config, token_sha256
from tagmatch.broker.service import Service, serving

DATA = {"tenant": "string", "rank": "int64"}
USERS = (
    User("root", token_sha256("root"), "admin"),
    User("acme", token_sha256("acme"), "write", filter='tenant = "acme"'),
    User("bob", token_sha256("bob"), "write", filter='tenant = "bob"'),
)


class Sides(NamedTuple):
    service: Service
    root: RemoteTagMatch[Any]
    acme: RemoteTagMatch[Any]
    bob: RemoteTagMatch[Any]


@pytest.fixture(params=["integer", "string"])
def sides(request) -> Iterator[Sides]:
    index = TagMatch(threads=1, device="cpu", data=DATA, key_type=request.param)
    with index, serving(index, config(USERS)) as service:
        root, acme, bob = (connect(service.url, token=user.name) for user in USERS)
        with root, acme, bob:
            yield Sides(service, root, acme, bob)


def keys(sides: Sides, *numbers: int) -> list[Any]:
    return [str(number) if sides.service.key_type == "string" else number for number in numbers]


def filled(sides: Sides) -> list[Any]:
    """Keys of acme, of bob, and without data, all in one set."""
    one, two, three = keys(sides, 1, 2, 3)
    sides.acme.put(one, ["a"], data={"tenant": "acme", "rank": 1})
    sides.bob.put(two, ["a"], data={"tenant": "bob", "rank": 2})
    sides.root.add_set(["a"], three)
    sides.root.add_set(["secret"], three, where="x = 1")
    sides.root.consolidate()
    return [one, two, three]


def test_each_sees_only_its_keys(sides):
    one, two, three = filled(sides)
    assert sorted(sides.root.match(["a"])) == [one, two, three]
    for tm, own, other in ((sides.acme, one, two), (sides.bob, two, one)):
        assert tm.match(["a"]) == [own]
        assert tm.match_unique(["a"]) == {own}
        assert tm.match_many([["a"], []]).to_pylist() == [[own], []]
        assert (tm.match_count(["a"]), tm.match_exists(["secret"], {"x": 1})) == (1, False)
        assert tm.match_best([["a"]], limit=5, order_by="rank").to_pylist() == [[own]]
        best = tm.match_best([["a"]], limit=5, order_by="rank", columns=["tenant"]).to_pylist()
        assert best == [[{"key": own, "tenant": "acme" if own == one else "bob"}]]
        assert [each["key"] for each in tm.match_highlights([["a"]]).to_pylist()[0]] == [own]
        assert tm.match(["a"], columns=["tenant"])[0]["key"] == own
        assert tm.submit(["a"]).result(60) == [own]
        assert dict(tm) == {frozenset(["a"]): (own,)}
        row = {"tags": ["a"], "key": own, "tenant": "acme" if own == one else "bob", "rank": 1 if own == one else 2}
        assert tm.to_arrow().to_pylist() == [row]
        assert (list(tm.records), len(tm), tm.stats()["keys"]) == ([own], 1, 1)
        assert (tm.get(other), tm.get(three), other in tm.records) == (None, None, False)
        assert tm.get(own).data["rank"] == (1 if own == one else 2)
        assert (["a"] in tm, ["secret"] in tm) == (True, False)
        assert tm.explain(["a"]) == [(frozenset(["a"]), (own,))]
        assert tm.explain(["a"], key=other).alternatives == ()
        for more in ({"details": True}, {"positions": 1}):
            with pytest.raises(AccessError, match="not for users with a filter"):
                tm._engine.act("stats", more)


def test_a_client_cannot_widen_its_filter(sides):
    one, _, _ = filled(sides)
    for only in ('tenant = "bob" or rank = 1', 'not tenant = "x"', "exists(tenant) or not exists(tenant)"):
        assert sides.acme.match(["a"], only=only) == [one]
        assert sides.acme.match_many([["a"]], only=only).to_pylist() == [[one]]
    assert sides.acme.match(["a"], only='tenant = "bob"') == []
    with pytest.raises(FilterError, match="only: column"):
        sides.acme.match(["a"], only='rank = 1) or (tenant = "bob"')


def test_each_changes_only_its_keys(sides):
    one, two, three = filled(sides)
    four, five = keys(sides, 4, 5)
    refused = 'must satisfy tenant = "acme"'
    for data in ({"tenant": "bob"}, {"rank": 1}, {}):
        with pytest.raises(AccessError, match=refused):
            sides.acme.put(four, ["a"], data=data)
    with pytest.raises(AccessError, match=refused):
        sides.acme.put_many(pa.table({"key": [four, five], "tags": [["a"], ["a"]], "tenant": ["acme", "bob"]}))
    for foreign in (two, three):
        with pytest.raises(AccessError, match="belongs to another user"):
            sides.acme.put(foreign, ["a"], data={"tenant": "acme"})
        with pytest.raises(AccessError, match="belongs to another user"):
            sides.acme.delete_many([one, foreign])
    assert sides.root.stats()["staged"] == 0
    table = pa.table({"key": [one, four, four], "tags": [["b"], ["b"], ["c"]], "tenant": ["acme", "acme", None]})
    assert sides.acme.put_many(table) == 3
    assert sides.acme.delete(five) == 1  # it has no sets
    sides.acme.put(five, [], where="x = 1 or y = 1", data={"tenant": "acme"})
    sides.acme.consolidate()
    assert sorted(sides.acme.match(["b", "c"], {"y": 1})) == [one, four, four, five]
    assert sides.bob.match(["a", "b", "c"], {"y": 1}) == [two]
    sides.acme.delete_many([one, four, five])
    sides.acme.consolidate()
    assert (list(sides.acme.records), sorted(sides.root.records)) == ([], [two, three])


def test_what_others_have_staged_is_theirs(sides):
    one, two, three, four = keys(sides, 1, 2, 3, 4)
    sides.bob.put(one, ["a"], data={"tenant": "bob"})
    sides.root.put_many(pa.table({"key": [two], "tags": [["a"]], "tenant": ["bob"]}))
    sides.root.add_set(["a"], three)
    for foreign in (one, two, three):
        with pytest.raises(AccessError, match="belongs to another user"):
            sides.acme.put(foreign, ["a"], data={"tenant": "acme"})
        with pytest.raises(AccessError, match="belongs to another user"):
            sides.acme.delete(foreign)
    sides.acme.put(four, ["a"], data={"tenant": "acme"})
    sides.root.add_set(["b"], four)
    sides.acme.put(four, ["c"], data={"tenant": "acme"})
    sides.bob.delete(two)
    sides.root.consolidate()
    assert (sides.acme.match(["a", "b", "c"]), sides.bob.match(["a"])) == ([four], [one])


def test_all_other_calls_are_refused(sides):
    """Those that see or change more than keys do: a new call is, unless it is said to see only these."""
    given = options("acme")
    with flight.FlightClient(sides.service.url) as client:
        for name in {*ACTIONS} - LIMITED - {"health"}:
            if ACTIONS[name].role != "admin":
                with pytest.raises(flight.FlightUnauthorizedError, match="not for users with a filter"):
                    list(client.do_action(flight.Action(name, b"{}"), given))
        schema = pa.schema({"tags": pa.list_(pa.string())})
        for name in {*EXCHANGES} - LIMITED:
            _see_that_it_is_refused(*client.do_exchange(command(command=name), given), schema)
        for name in {*PUTS} - LIMITED:
            _see_that_it_is_refused(*client.do_put(command(command=name), schema, given))
    assert {"add", "remove", "move", "publish", "notify", "reload", "save_positions"}.isdisjoint(LIMITED)


def _see_that_it_is_refused(writer: Any, reader: Any, schema: pa.Schema | None = None) -> None:
    def ask() -> None:
        with writer:
            if schema is not None:
                writer.begin(schema)
            writer.done_writing()
            reader.read_chunk() if schema is not None else reader.read()

    with pytest.raises(flight.FlightUnauthorizedError, match="not for users with a filter"):
        ask()


def test_filters_that_cannot_be(tmp_path):
    token = token_sha256("t")
    path = tmp_path / "tagmatch.toml"
    for text, message in (
        ('filter = \'tenant = "a"\'\nrole = "admin"', "toml:4: filter goes with the roles"),
        ("filter = 'tenant = '", "toml:4: filter: column 10"),
        ("filter = 7", "toml:4: filter must be a text"),
    ):
        path.write_text(f'[[users]]\nname = "u"\ntoken_sha256 = "{token}"\n{text}\n')
        with pytest.raises(ConfigError, match=message):
            read_config(path)
    asked = config((User("u", token, filter='tenannt = "a"'),))
    with (
        TagMatch(device="cpu", data=DATA) as index,
        pytest.raises(ConfigError, match="of user 'u': only: there is no column 'tenannt'; is 'tenant' meant"),
        serving(index, asked),
    ):
        pass


def test_a_configuration_names_columns_of_data(tmp_path):
    path = tmp_path / "tagmatch.toml"
    path.write_text('[index]\npath = "x"\ncreate = true\n[index.data]\ntenant = "dictionary"\n')
    assert read_config(path).index.data == {"tenant": "dictionary"}
