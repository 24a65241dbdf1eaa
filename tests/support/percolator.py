"""What queries of Elasticsearch match, as its documentation says, in plain Python; nothing of tagmatch."""

import calendar
import ipaddress
import itertools
import math
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

Document = dict[str, Any]
MILLISECOND = timedelta(milliseconds=1)
#: The time of documents
NOW = datetime(2026, 3, 16, tzinfo=UTC)


class Percolator:
    """Says which documents a query matches; fields have the types of a mapping, by their whole names."""

    def __init__(self, properties: dict[str, Any]) -> None:
        self.types: dict[str, dict[str, Any]] = {}
        self._add(properties, "")

    def _add(self, properties: dict[str, Any], prefix: str) -> None:
        for name, own in properties.items():
            self.types[prefix + name] = own
            self._add(own.get("properties", {}), f"{prefix}{name}.")
            self._add(own.get("fields", {}), f"{prefix}{name}.")

    def matches(self, query: dict[str, Any], document: Document) -> bool:
        ((kind, body),) = query.items()
        return bool(getattr(self, f"_{kind}")(body, document))

    # -- compound queries ----------------------------------------------------------------------------------------------

    def _bool(self, body: dict[str, Any], document: Document) -> bool:
        def hold(name: str) -> list[bool]:
            clauses = body.get(name) or []
            clauses = clauses if isinstance(clauses, list) else [clauses]
            return [self.matches(clause, document) for clause in clauses]

        must, should = hold("must") + hold("filter"), hold("should")
        least = 0 if must or not should else 1
        if should and "minimum_should_match" in body:
            least = max(least, minimum(body["minimum_should_match"], len(should)))
        return all(must) and not any(hold("must_not")) and sum(should) >= least

    def _dis_max(self, body: dict[str, Any], document: Document) -> bool:
        return any(self.matches(query, document) for query in body["queries"])

    def _constant_score(self, body: dict[str, Any], document: Document) -> bool:
        return self.matches(body["filter"], document)

    def _boosting(self, body: dict[str, Any], document: Document) -> bool:
        return self.matches(body["positive"], document)

    def _function_score(self, body: dict[str, Any], document: Document) -> bool:
        return self.matches(body.get("query", {"match_all": {}}), document)

    def _match_all(self, _: object, __: Document) -> bool:
        return True

    def _match_none(self, _: object, __: Document) -> bool:
        return False

    # -- one field -----------------------------------------------------------------------------------------------------

    def values(self, name: str, document: Document) -> list[Any]:
        """The values that are indexed for a field: none for null and []."""
        own = self.types[name]
        if own.get("type") == "alias":
            return self.values(own["path"], document)
        found: Any = document
        parts = name.split(".")
        for part in parts:
            if isinstance(found, dict):
                found = found.get(part)
        found = found if isinstance(found, list) else [found]
        found = [each for each in found if each is not None]
        return [word for text in found for word in words(text, own)] if own["type"] == "text" else found

    def type_of(self, name: str) -> str:
        own = self.types[name]
        return self.type_of(own["path"]) if own["type"] == "alias" else str(own["type"])

    def _term(self, body: dict[str, Any], document: Document) -> bool:
        ((name, given),) = body.items()
        if not isinstance(given, dict):
            return self.equals(name, given, document)
        return self.equals(name, given["value"], document, case_insensitive=given.get("case_insensitive", False))

    def equals(self, name: str, given: Any, document: Document, *, case_insensitive: bool = False) -> bool:
        kind = self.type_of(name)
        if kind == "date":
            return self._range({name: {"gte": given, "lte": given}}, document)
        if case_insensitive:
            return self.has_whole(name, re.escape(given), {"case_insensitive": True}, document)
        values = self.values(name, document)
        if kind == "ip":
            network = ipaddress.ip_network(given)
            return any(ipaddress.ip_address(value) in network for value in values)
        return any(made(kind, value) == made(kind, given) for value in values)

    def _terms(self, body: dict[str, Any], document: Document) -> bool:
        ((name, given),) = ((name, given) for name, given in body.items() if name != "boost")
        return any(self.equals(name, each, document) for each in given)

    def _terms_set(self, body: dict[str, Any], document: Document) -> bool:
        ((name, given),) = body.items()
        terms = list(dict.fromkeys(given["terms"]))
        script = given.get("minimum_should_match_script")
        text = script["source"] if isinstance(script, dict) else script
        least = given.get("minimum_should_match", len(terms) if text == "params.num_terms" else text)
        return sum(self.equals(name, each, document) for each in terms) >= minimum(least, len(terms))

    def _range(self, body: dict[str, Any], document: Document) -> bool:
        ((name, given),) = body.items()
        kind = self.type_of(name)
        holds = {
            "gt": lambda value, bound: value > bound, "gte": lambda value, bound: value >= bound,
            "lt": lambda value, bound: value < bound, "lte": lambda value, bound: value <= bound,
        }  # fmt: skip

        def bound(sign: str) -> Any:
            if kind != "date":
                return made(kind, given[sign])
            form = given.get("format", self.types[name].get("format", ""))
            return date(given[sign], form, given.get("time_zone"), up=sign in ("gt", "lte"))

        # As clients of Java write them
        for old, option, sign in (("from", "include_lower", "gt"), ("to", "include_upper", "lt")):
            given = {**given, sign + "e" * given.get(option, True): given[old]} if old in given else given
        bounds = {sign: bound(sign) for sign in holds if given.get(sign) is not None}
        return any(
            all(holds[sign](value, bound) for sign, bound in bounds.items())
            for value in (made(kind, each) for each in self.values(name, document))
        )

    def _exists(self, body: dict[str, Any], document: Document) -> bool:
        name = body["field"]
        if "properties" in self.types[name]:
            return any(self._exists({"field": f"{name}.{each}"}, document) for each in self.types[name]["properties"])
        return bool(self.values(name, document))

    def _prefix(self, body: dict[str, Any], document: Document) -> bool:
        ((name, given),) = body.items()
        text = given["value"] if isinstance(given, dict) else given
        return self.has_whole(name, re.escape(text) + ".*", given, document)

    def _wildcard(self, body: dict[str, Any], document: Document) -> bool:
        ((name, given),) = body.items()
        pattern = given.get("value", given.get("wildcard")) if isinstance(given, dict) else given
        signs = {"*": ".*", "?": "."}
        expression = "".join(
            re.escape(escaped) if escaped else signs.get(other) or re.escape(other)
            for escaped, other in re.findall(r"\\(.)|(.)", pattern)
        )
        return self.has_whole(name, expression, given, document)

    def _regexp(self, body: dict[str, Any], document: Document) -> bool:
        ((name, given),) = body.items()
        return self.has_whole(name, given["value"] if isinstance(given, dict) else given, given, document)

    def has_whole(self, name: str, expression: str, given: Any, document: Document) -> bool:
        any_case = isinstance(given, dict) and given.get("case_insensitive")
        flags = re.DOTALL | re.ASCII | (re.IGNORECASE if any_case else re.DOTALL)
        return any(re.fullmatch(expression, str(value), flags) for value in self.values(name, document))

    # -- words ---------------------------------------------------------------------------------------------------------

    def _match(self, body: dict[str, Any], document: Document) -> bool:
        ((name, given),) = body.items()
        return self.has_words(name, given if isinstance(given, dict) else {"query": given}, document)

    def has_words(self, name: str, given: dict[str, Any], document: Document) -> bool:
        own = self.types[name]
        if own["type"] != "text":
            return self.equals(name, given["query"], document)
        wanted = list(dict.fromkeys(words(given["query"], own)))
        if not wanted:
            return bool(given.get("zero_terms_query") == "all")
        there = [word in self.values(name, document) for word in wanted]
        if given.get("operator", "or").lower() == "and":
            return all(there)
        return sum(there) >= max(1, minimum(given.get("minimum_should_match", 1), len(wanted)))

    def _match_phrase(self, body: dict[str, Any], document: Document) -> bool:
        ((name, given),) = body.items()
        return self.has_phrase(name, given if isinstance(given, dict) else {"query": given}, document)

    def has_phrase(self, name: str, given: dict[str, Any], document: Document) -> bool:
        own = self.types[name]
        if own["type"] != "text":
            return self.equals(name, given["query"], document)
        wanted, there = words(given["query"], own), self.values(name, document)
        return any(there[at : at + len(wanted)] == wanted for at in range(len(there)))

    def _multi_match(self, body: dict[str, Any], document: Document) -> bool:
        holds = self.has_phrase if body.get("type") == "phrase" else self.has_words
        return any(holds(name.partition("^")[0], body, document) for name in body["fields"])

    # -- places --------------------------------------------------------------------------------------------------------

    def _geo_distance(self, body: dict[str, Any], document: Document) -> bool:
        units = {"km": 1000, "mi": 1609.344, "nmi": 1852, "m": 1, "": 1}
        number, unit = re.fullmatch(r"([\d.]+) *([a-z]*)", str(body["distance"])).groups()  # type: ignore[union-attr]
        lon, lat = map(math.radians, point(body["place"]))
        for each in self.values("place", document):
            x, y = math.radians(each["lon"]), math.radians(each["lat"])
            half = math.sin((y - lat) / 2) ** 2 + math.cos(lat) * math.cos(y) * math.sin((x - lon) / 2) ** 2
            if 2 * 6_371_008.7714 * math.asin(math.sqrt(half)) <= float(number) * units[unit]:
                return True
        return False

    def _geo_polygon(self, body: dict[str, Any], document: Document) -> bool:
        ring = [*map(point, body["place"]["points"])]
        return self._in_rings([[[*ring, ring[0]]]], document)

    def _geo_shape(self, body: dict[str, Any], document: Document) -> bool:
        given = body["place"]
        holds = self._in_shape(given["shape"], document)
        return not holds and bool(self.values("place", document)) if given.get("relation") == "disjoint" else holds

    def _in_shape(self, shape: Any, document: Document) -> bool:
        if isinstance(shape, str):
            if shape.startswith("BBOX"):
                return self._geo_bounding_box({"place": {"wkt": shape}}, document)
            rings = [[each.split() for each in ring.split(",")] for ring in re.findall(r"\(([^()]+)\)", shape)]
            is_line = shape.startswith("LINESTRING")
            shape = {"type": "LineString" if is_line else "polygon", "coordinates": rings[0] if is_line else rings}
        kind, coordinates = shape["type"].lower(), shape.get("coordinates")
        match kind:
            case "geometrycollection":
                return any(self._in_shape(each, document) for each in shape["geometries"])
            case "circle":
                return self._geo_distance({"distance": shape["radius"], "place": coordinates}, document)
            case "point" | "multipoint" | "linestring" | "multilinestring":
                lines = (
                    coordinates if kind == "multilinestring" else [[coordinates] if kind == "point" else coordinates]
                )
                places = [(each["lon"], each["lat"]) for each in self.values("place", document)]
                return any(place in [*map(point, line)] for line in lines for place in places)  # only ends are asked
            case "envelope":
                corners = dict(zip(("top_left", "bottom_right"), coordinates, strict=True))
                return self._geo_bounding_box({"place": corners}, document)
        parts = coordinates if kind == "multipolygon" else [coordinates]
        return self._in_rings([[[*map(point, ring)] for ring in part] for part in parts], document)

    def _in_rings(self, parts: list[Any], document: Document) -> bool:
        places = [(each["lon"], each["lat"]) for each in self.values("place", document)]
        return any(
            _on_one_side(part[0], *place) and not any(_on_one_side(hole, *place) for hole in part[1:])
            for part in parts
            for place in places
        )

    def _geo_bounding_box(self, body: dict[str, Any], document: Document) -> bool:
        given = body["place"]
        if "wkt" in given:
            west, east, north, south = map(float, re.findall(r"[-\d.]+", given["wkt"]))
        elif "top" in given:
            west, east, north, south = (float(given[side]) for side in ("left", "right", "top", "bottom"))
        elif "top_left" in given:
            (west, north), (east, south) = point(given["top_left"]), point(given["bottom_right"])
        else:
            (east, north), (west, south) = point(given["top_right"]), point(given["bottom_left"])
        return any(
            south <= each["lat"] <= north
            and (west <= each["lon"] <= east if west <= east else each["lon"] >= west or each["lon"] <= east)
            for each in self.values("place", document)
        )


def _on_one_side(ring: list[tuple[float, float]], lon: float, lat: float) -> bool:
    """Whether a ring has a place, of a map: none of those asked is near an edge."""
    sides = ((ax - lon, ay - lat, bx - lon, by - lat) for (ax, ay), (bx, by) in itertools.pairwise(ring))
    return sum((ay > 0) != (by > 0) and (ax * by - ay * bx > 0) == (by > ay) for ax, ay, bx, by in sides) % 2 == 1


def point(given: Any) -> tuple[float, float]:
    if isinstance(given, dict):
        lon, lat = given["coordinates"] if "coordinates" in given else (given["lon"], given["lat"])
    elif isinstance(given, str):
        first, second = re.findall(r"[-\d.]+", given)
        lon, lat = (first, second) if given.startswith("POINT") else (second, first)
    else:
        lon, lat = given
    return float(lon), float(lat)


def words(text: Any, own: dict[str, Any]) -> list[str]:
    """Of plain English, for which the standard analyzer makes words of letters and digits."""
    if own.get("analyzer") == "whitespace":
        return str(text).split()
    return re.findall(r"\w+", str(text).lower())


def minimum(given: int | str, count: int) -> int:
    text = str(given)
    if "<" in text:
        least = str(count)
        for part in text.split():
            above, _, then = part.partition("<")
            if count > int(above):
                least = then
        return minimum(least, count)
    number = int(text.rstrip("%"))
    if text.endswith("%"):
        return count * number // 100 if number >= 0 else count - count * -number // 100
    return number if number >= 0 else count + number


def made(kind: str, value: Any) -> Any:
    """A value as a type has it, in its order."""
    if kind in ("integer", "long", "short", "double", "half_float"):
        return (
            float(value)
            if isinstance(value, str) and not value.isdigit()
            else int(value)
            if isinstance(value, str)
            else value
        )
    if kind == "boolean":
        return value in (True, "true")
    if kind == "date":
        return date(value, "", None, up=False)
    if kind == "ip":
        return int(ipaddress.ip_address(value))
    if kind == "version":
        return tuple(int(part) for part in value.split(".")) + (0,) * (3 - len(value.split(".")))
    return str(value).lower() if isinstance(value, bool) else str(value)


_FORMS = {
    "yyyy/MM/dd HH:mm:ss": ("%Y/%m/%d %H:%M:%S", timedelta(seconds=1)), "yyyy/MM/dd": ("%Y/%m/%d", timedelta(days=1)),
    "dd/MM/yyyy": ("%d/%m/%Y", timedelta(days=1)), "yyyy": ("%Y", timedelta(days=1)),
}  # fmt: skip
_ISO = [
    ("%Y-%m-%dT%H:%M:%S.%f", None), ("%Y-%m-%dT%H:%M:%S", timedelta(seconds=1)), ("%Y-%m-%d", timedelta(days=1)),
    # Without a day or a month, the first one
    ("%Y-%m", timedelta(days=1)), ("%Y", timedelta(days=1)),
]  # fmt: skip


def date(given: Any, form: str, zone: str | None, *, up: bool) -> datetime:
    """A date with date math, to the millisecond; rounded up, its last millisecond."""
    if isinstance(given, datetime):
        return given
    anchor, _, rest = str(given).partition("||")
    if anchor.startswith("now"):
        at, rest = NOW, anchor.removeprefix("now")
    elif re.fullmatch(r"\d{6,}", anchor):
        unit = timedelta(seconds=1) if form == "epoch_second" else MILLISECOND
        at = datetime(1970, 1, 1, tzinfo=UTC) + int(anchor) * unit
    else:
        at = _read(anchor, form, zone, up=up)
    for sign, count, unit_of, rounded in re.findall(r"([+-])(\d*)(\w)|/(\w)", rest):
        if rounded:
            at = floor(at, rounded)
            at = plus(at, rounded, 1) - MILLISECOND if up else at
        else:
            at = plus(at, unit_of, int(count or 1) * (1 if sign == "+" else -1))
    return at.astimezone(UTC)


def _read(anchor: str, form: str, zone: str | None, *, up: bool) -> datetime:
    offset = re.search(r"(?:Z|[+-]\d\d:\d\d)$", anchor) if "T" in anchor else None
    text = anchor[: offset.start()] if offset else anchor
    own: Any = UTC if zone is None else timezone(timedelta(hours=2)) if zone == "+02:00" else ZoneInfo(zone)
    if offset and offset[0] != "Z":
        own = timezone(timedelta(hours=int(offset[0][:3])))
    for pattern, step in [_FORMS[each] for each in form.split("||") if each in _FORMS] or _ISO:
        try:
            at = datetime.strptime(text, pattern).replace(tzinfo=own)
        except ValueError:
            continue
        return at + step - MILLISECOND if up and step else at
    raise AssertionError(anchor)


def floor(at: datetime, unit: str) -> datetime:
    at = at.replace(microsecond=0)
    if unit in "yMwdhm":
        at = at.replace(second=0)
    if unit in "yMwdh":
        at = at.replace(minute=0)
    if unit in "yMwd":
        at = at.replace(hour=0)
    if unit == "w":
        at -= timedelta(days=at.weekday())
    if unit in "yM":
        at = at.replace(day=1)
    return at.replace(month=1) if unit == "y" else at


def plus(at: datetime, unit: str, count: int) -> datetime:
    if unit not in "yM":
        names = {"w": "weeks", "d": "days", "h": "hours", "H": "hours", "m": "minutes", "s": "seconds"}
        return at + timedelta(**{names[unit]: count})
    month = at.month - 1 + (count if unit == "M" else 12 * count)
    year, month = at.year + month // 12, month % 12 + 1
    return at.replace(year=year, month=month, day=min(at.day, calendar.monthrange(year, month)[1]))
