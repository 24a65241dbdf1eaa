"""Dates of Elasticsearch: their formats, missing parts, and date math, as in `2026-11-28||+1M/d`."""

from __future__ import annotations

import re
from calendar import monthrange
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tagmatch.importing.conditions import Place
from tagmatch.model.where.types import EPOCH, typed_of

DEFAULT_FORMAT = "strict_date_optional_time||epoch_millis"

_SECOND = 10**9
_ZONE = r"(?P<zone>Z|[+-]\d\d(?::?\d\d)?)"
_ISO = re.compile(
    r"(?P<year>\d{4})(?:-(?P<month>\d\d)(?:-(?P<day>\d\d)(?:T(?:(?P<hour>\d\d)(?::(?P<minute>\d\d)(?::(?P<second>\d\d)"
    rf"(?:[.,](?P<fraction>\d{{1,9}}))?)?)?)?{_ZONE}?)?)?)?",
    re.ASCII,
)
_NAMED = {
    "date": "yyyy-MM-dd",
    "year_month_day": "yyyy-MM-dd",
    "basic_date": "yyyyMMdd",
    "year_month": "yyyy-MM",
    "year": "yyyy",
    "date_hour_minute_second": "yyyy-MM-dd'T'HH:mm:ss",
}
_ISO_NAMES = frozenset(
    {"date_optional_time", "date_optional_time_nanos", "iso8601", "date_time", "date_time_no_millis"}
)
MILLISECOND = 10**6
EPOCHS = {"epoch_millis": MILLISECOND, "epoch_second": _SECOND}
_LETTERS = {
    "y": ("year", r"\d{4}"), "u": ("year", r"\d{4}"), "M": ("month", r"\d{1,2}"), "d": ("day", r"\d{1,2}"),
    "H": ("hour", r"\d{1,2}"), "m": ("minute", r"\d{1,2}"), "s": ("second", r"\d{1,2}"), "S": ("fraction", r"\d{1,9}"),
}  # fmt: skip
_PIECES = re.compile(r"'([^']*)'|([yuMdHmsS])\2*|([XxZ])\3*|(.)")
#: The values of missing parts: of the begin, and of the end
_MISSING = {"month": (1, 1), "day": (1, 1), "hour": (0, 23), "minute": (0, 59), "second": (0, 59)}
_STEP = re.compile(r"([+-])(\d{0,9})([yMwdhHms])|/([yMwdhHms])")
_SECONDS = {"h": 3600, "H": 3600, "m": 60, "s": 1}
# Months and years as the Gregorian calendar has them on average
_OF_NOW = {"y": 31_556_952, "M": 2_629_746, "w": 604_800, "d": 86_400, **_SECONDS}
_LONGEST = {**_OF_NOW, "y": 366 * 86_400, "M": 31 * 86_400}
# How rounding may move the bounds of a range: down, or up, by less than the unit
_ROUNDED = {"gte": -1, "lte": 1}


class Instant(int):
    """Nanoseconds since 1970, UTC."""


def text_of_time(nanoseconds: int) -> str:
    """An instant as texts have it."""
    seconds, fraction = divmod(nanoseconds, _SECOND)
    at = EPOCH + timedelta(seconds=seconds)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{fraction:09}Z".zfill(30)


def time_of(nanoseconds: int) -> Any:
    """The operand for an instant."""
    return typed_of("timestamp", text_of_time(nanoseconds))


def instant(given: Any, form: str, zone: object, place: Place, *, up: bool) -> Instant:
    """The first nanosecond that a date means, or the last one (`up`)."""
    if isinstance(given, bool) or not isinstance(given, str | int):
        raise place.refused(f"a date must be here, not {given!r:.60}")
    anchor, _, steps = str(given).partition("||")
    at, fraction = _read(anchor, form, _zone(zone, place), place, up=up)
    rest = steps
    try:
        while rest:
            found = _STEP.match(rest)
            if found is None:
                raise place.refused(f"{steps!r:.40} is no date math, such as +1d/d")
            sign, count, unit, rounded = found.groups()
            if rounded:
                at, fraction = _floor(at, rounded), 0
                if up:
                    # The last nanosecond of the unit
                    at, fraction = _moved(at, rounded, 1) - timedelta(seconds=1), _SECOND - 1
            else:
                at = _moved(at, unit, int(count or 1) * (1 if sign == "+" else -1))
            rest = rest[found.end() :]
        return Instant((at - EPOCH) // timedelta(seconds=1) * _SECOND + fraction)
    except (OverflowError, ValueError):
        raise place.refused(f"{given!r:.60} is out of the years 1 to 9999") from None


def after_now(text: str, bound: str, place: Place) -> int:
    """How many nanoseconds later than the message's time a date such as `now-7d` is, as a bound of a range."""
    rest, seconds, units, is_rounded = text.removeprefix("now"), 0, "", False
    while rest:
        found = _STEP.match(rest)
        if found is None:
            raise place.refused(f"{text!r:.40} is no date math, such as now-7d")
        sign, count, unit, rounded = found.groups()
        if rounded:
            is_rounded, seconds = True, seconds + _ROUNDED.get(bound, 0) * _LONGEST[rounded]
        else:
            seconds, units = seconds + int(count or 1) * _OF_NOW[unit] * (1 if sign == "+" else -1), units + unit
        rest = rest[found.end() :]
    has_months = bool({*"yM"} & {*units})
    if is_rounded or has_months:
        seconds = round(seconds / _OF_NOW["d"]) * _OF_NOW["d"] if has_months else seconds
        unit = next(each for each in "dhms" if seconds % _OF_NOW[each] == 0)
        other = f"now{seconds // _OF_NOW[unit]:+}{unit}" if seconds else "now"
        why = "in days, the nearest" if has_months else "which takes at least as much"
        taken = "now is taken with weeks, days, hours, minutes and seconds, not rounded"
        raise place.refused(f"{text!r:.40}: {taken}; give {other!r}, {why}")
    return seconds * _SECOND


def _zone(given: object, place: Place) -> tzinfo:
    if given is None:
        return UTC
    text = place.text_of(given)
    try:
        return _offset(text) or ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError):
        raise place.refused(f"{text!r:.60} is no time zone, such as +01:00 or Europe/Paris") from None


def _offset(text: str) -> tzinfo | None:
    if text == "Z":
        return UTC
    found = re.fullmatch(r"([+-])(\d\d):?(\d\d)?", text, re.ASCII)
    if found is None:
        return None
    minutes = 60 * int(found[2]) + int(found[3] or 0)
    return timezone(timedelta(minutes=minutes if found[1] == "+" else -minutes))


def _read(text: str, form: str, zone: tzinfo, place: Place, *, up: bool) -> tuple[datetime, int]:
    """A date by the first format that fits: a time to the second, and the nanoseconds after it."""
    for each in form.split("||"):
        name = each.removeprefix("strict_")
        if name in EPOCHS:
            if re.fullmatch(r"-?\d+", text, re.ASCII):
                last = EPOCHS[name] - 1 if up and name == "epoch_second" else 0
                try:
                    seconds, fraction = divmod(int(text) * EPOCHS[name], _SECOND)
                    return EPOCH + timedelta(seconds=seconds), fraction + last
                except (OverflowError, ValueError):
                    raise place.refused(f"{text!r:.60} is out of the years 1 to 9999") from None
            continue
        found = (_ISO if name in _ISO_NAMES else _pattern(_NAMED.get(name, each), place)).fullmatch(text)
        if found is not None:
            parts = {name: value for name, value in found.groupdict().items() if value is not None}
            filled = {name: int(parts.get(name, missing[up])) for name, missing in _MISSING.items()}
            fraction = int(parts.get("fraction", "9" * 9 if up else "0").ljust(9, "0"))
            try:
                own = _offset(parts["zone"]) if "zone" in parts else None
                return datetime(int(parts["year"]), **filled, tzinfo=own or zone), fraction
            except ValueError:
                break
    raise place.refused(f"{text!r:.60} is no date of the format {form}")


@lru_cache(256)
def _compiled(form: str) -> re.Pattern[str] | None:
    made, seen = "", set()
    for literal, letter, zone, other in _PIECES.findall(form):
        name, digits = _LETTERS.get(letter, ("zone", ""))
        if (letter or zone) and name in seen:
            return None
        if letter:
            made += f"(?P<{name}>{digits})"
        elif zone:
            made += _ZONE
        elif other.isalpha():
            return None
        else:
            made += re.escape(literal or other)
            continue
        seen.add(name)
    return re.compile(made, re.ASCII) if "year" in seen else None


def _pattern(form: str, place: Place) -> re.Pattern[str]:
    found = _compiled(form)
    if found is None:
        raise place.refused(f"the format {form!r:.60} of dates is not taken")
    return found


def _floor(at: datetime, unit: str) -> datetime:
    if unit in "yMwd":
        day = at.replace(hour=0, minute=0, second=0)
        if unit == "w":
            return day - timedelta(days=day.weekday())
        return day.replace(day=1, month=1) if unit == "y" else day.replace(day=1) if unit == "M" else day
    seconds = _SECONDS[unit]
    return at - timedelta(seconds=(at.minute * 60 + at.second) % seconds)


def _moved(at: datetime, unit: str, count: int) -> datetime:
    if unit in "yM":
        months = at.year * 12 + at.month - 1 + count * (12 if unit == "y" else 1)
        year, month = divmod(months, 12)
        return at.replace(year=year, month=month + 1, day=min(at.day, monthrange(year, month + 1)[1]))
    if unit in "wd":  # as a clock on the wall shows it
        return at + timedelta(days=count * (7 if unit == "w" else 1))
    return (at.astimezone(UTC) + timedelta(seconds=count * _SECONDS[unit])).astimezone(at.tzinfo)
