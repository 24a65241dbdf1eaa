"""Names of places of other brokers: topics of MQTT and subjects of NATS; what filters of them take; keys in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

#: Characters that no broker takes, or not every one: controls, white space, halves of pairs and non-characters
_UNSAFE = "\\x00-\\x1f\\x7f-\\x9f\\ud800-\\udfff\\ufdd0-\\ufdef" + "".join(
    f"\\U{plane:04x}fffe\\U{plane:04x}ffff" for plane in range(17)
)


@dataclass(frozen=True, slots=True)
class Naming:
    r"""How a kind of broker names its places.

    >>> MQTT.level("a/b\n"), MQTT.level(""), NATS.level("a b")
    ('a%2Fb%0A', '%', 'a%20b')
    >>> MQTT.overlap("in/#", "in/+"), MQTT.overlap("$share/group/in/+", "out/+"), NATS.overlap(">", "out.*")
    (True, False, True)
    """

    place: str  # What one is called
    separator: str  # Stands between levels
    one: str  # As a level of a filter: any one level
    rest: str  # As a level of a filter: all levels from there on
    special: str  # What a level cannot have within it, `separator`, `one` and `rest` among it
    rest_is_optional: bool  # Whether `rest` also takes the place that ends before it

    def level(self, key: str) -> str:
        """A key as one level: what a level cannot have, and `%`, is written as `%2F`, `%25`, ...: its UTF-8 so."""
        return _unsafe(self.special).sub(_percent, key) if key else "%"

    def beneath(self, prefix: str) -> str:
        """The filter of the places that are one level below."""
        return f"{prefix}{self.separator}{self.one}"

    def is_usable(self, name: str, *, wildcards: bool) -> bool:
        """Whether a name is one of a place, or a filter of places."""
        levels = self.plain(name).split(self.separator)
        if not wildcards and ({self.one, self.rest} & {*levels} or self.plain(name) != name):
            return False
        if self.rest in levels[:-1] or (not self.rest_is_optional and "" in levels):
            return False
        named = [level for level in levels if level not in (self.one, self.rest)]
        return self.plain(name) != "" and not _unsafe(self.special).search("".join(named).replace("%", ""))

    def plain(self, name: str) -> str:
        """The filter that a shared subscription of MQTT shares; an empty one if it is malformed."""
        if self is not MQTT or not name.startswith("$share/"):
            return name
        _, group, *levels = name.split("/")
        return "/".join(levels) if group and not {*group} & {*"+#"} else ""

    def overlap(self, one: str, other: str) -> bool:
        """Whether there is a place that both filters take."""
        some, others = (self.plain(each).split(self.separator) for each in (one, other))
        if self is MQTT:  # a wildcard at the first level takes no topics of the broker itself
            firsts = {some[0], others[0]}
            if firsts & {self.one, self.rest} and any(first.startswith("$") for first in firsts):
                return False
        for mine, its in zip(some, others, strict=False):
            if self.rest in (mine, its):
                return True
            if self.one not in (mine, its) and mine != its:
                return False
        longer = max(some, others, key=len)[min(len(some), len(others)) :]
        return not longer or (self.rest_is_optional and longer == [self.rest])


MQTT = Naming("topic", "/", "+", "#", "/+#", rest_is_optional=True)
NATS = Naming("subject", ".", "*", ">", ".*>\\s", rest_is_optional=False)


@cache
def _unsafe(special: str) -> re.Pattern[str]:
    return re.compile(f"[%{special}{_UNSAFE}]")


def _percent(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass"))
