r"""More types of values than numbers, texts and bools: how they are written, and their keys, which are in order.

A value of such a type is never equal to a number or a text, and has no order with one, except a decimal, which is a
number. Its key (see `tagmatch.model.where.values`) is text:

===========  ========================================================================================================
value        key
===========  ========================================================================================================
date, time   `pa`, 16 hexadecimal digits of the seconds since 1970, UTC, plus 2**63, and 8 of the nanoseconds; a date is
             the time when it begins in UTC
version      `pb`; of each number a letter, which says how many digits it has, and these, without zeros at the end; `.`,
             or, before a release, `-`, and for each identifier `0` and a number, or `1`, the text and `!`
IP address   `pc4` and 8 hexadecimal digits, or `pc6` and 32
decimal      that of the greatest integer of 64 bits or double that is at most as great, and, if it is less, a tail:
             the decimal exponent plus 5000, in 4 digits, and the digits; of negative numbers the nine's complement of
             both, and `~`
===========  ========================================================================================================

In texts of messages, the key of such a value follows the byte 255, which UTF-8 does not have.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

from tagmatch.model.errors import InvalidTypeError, InvalidValueError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

#: Begins the keys of typed values, and the byte before their keys in texts of messages
TYPED, MARK = "p", b"\xff"
#: Second letters of keys, one type after the other
TIMES, VERSIONS, ADDRESSES = "abc"
#: What is after all typed values
AFTER_TYPES = "d"

#: The time from which times are counted
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)")
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?"
    r"(?:([Zz])|([+-])(\d\d):?(\d\d)(?::?(\d\d))?)?",
    re.ASCII,
)
_VERSION = re.compile(r"v?(\d+(?:\.\d+){0,9})(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,5})?", re.ASCII)
_DAY = 86_400
_FIRST_DAY, _LAST_DAY = (day.toordinal() - EPOCH.toordinal() for day in (date.min, date.max))
_HEX = 16
# More digits than any double has, and than each of its exponents
_MOST_DIGITS, _SHIFT = 1100, 5000
_COMPLEMENTS = str.maketrans("0123456789", "9876543210")
_LEAST_INTEGER, _GREATEST_INTEGER = -(2**63), 2**63 - 1


@dataclass(frozen=True, slots=True)
class Typed:
    """A time, a version or an IP address, by its key."""

    key: str

    def __str__(self) -> str:
        return _BY_LETTER[self.key[1]].text_of(self.key)


class Version(str):
    """A version, in the order of semantic versions: as an attribute of a message, or an operand.

    It is made of a text: numbers separated by dots (missing ones are 0), perhaps `-` and identifiers before a release,
    and `+` and a build, which does not count. More than three numbers and a `v` in front are taken, too. Python
    compares versions in the same order. InvalidValueError for another text; InvalidTypeError for another type, and for
    a comparison with a text.

    Examples
    --------
    >>> from tagmatch import TagMatch, Version
    >>> tm = TagMatch()
    >>> staged = tm.add_set(["app"], 1, where='release >= version "1.9"')
    >>> changed = tm.consolidate()
    >>> tm.match(["app"], {"release": Version("1.10.0-rc.1")})
    [1]
    >>> tm.close()
    """

    __slots__ = ()

    def __new__(cls, text: str) -> Version:
        """Check the text."""
        if not isinstance(text, str):
            raise InvalidTypeError(f'a version is a text, such as "1.10.0", not {type(text).__name__} {text!r}')
        _version_key(text)
        return super().__new__(cls, text)

    def __repr__(self) -> str:
        return f"Version({str.__repr__(self)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and _version_key(self) == _version_key(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(_version_key(self))

    def __lt__(self, other: object) -> bool:
        return _version_key(self) < _key_beside(other)

    def __le__(self, other: object) -> bool:
        return _version_key(self) <= _key_beside(other)

    def __gt__(self, other: object) -> bool:
        return _version_key(self) > _key_beside(other)

    def __ge__(self, other: object) -> bool:
        return _version_key(self) >= _key_beside(other)


def _key_beside(other: object) -> str:
    """The key of a version that another one is compared with; a text would be compared by its letters."""
    if isinstance(other, Version):
        return _version_key(other)
    raise InvalidTypeError(f"a Version is compared with a Version, not with {type(other).__name__} {other!r}")


@dataclass(frozen=True, slots=True)
class Type:
    """A type, whose values are written as its name and a text."""

    name: str
    example: str  # of the text
    means: str
    key_of: Callable[[str], str]  # of the text; InvalidValueError
    text_of: Callable[[str], str]  # of a key


# -- times -------------------------------------------------------------------------------------------------------------


def _time_key(seconds: int, nanoseconds: int) -> str:
    if not _FIRST_DAY <= seconds // _DAY <= _LAST_DAY:
        raise InvalidValueError("a time must be in the years 1 to 9999 of UTC")
    return f"{TYPED}{TIMES}{seconds + 2**63:016x}{nanoseconds:08x}"


def _date_key(text: str) -> str:
    found = _DATE.fullmatch(text)
    try:
        if found:
            return _of_date(date(*map(int, found.groups())))
    except ValueError:
        pass
    raise InvalidValueError(f'a date is written as in "2026-11-28", not {text!r:.60}')


def _timestamp_key(text: str) -> str:
    found = _TIME.fullmatch(text)
    if found is None:
        raise InvalidValueError(
            f'a timestamp is written as in "2026-11-28T10:00:00+01:00", or with Z for UTC, not {text!r:.60}'
        )
    day, hour, minute, second, fraction, utc, sign, *offset = found.groups()
    if utc is None and sign is None:
        raise InvalidValueError(f"the timestamp {text!r} has no time zone: write Z at its end for UTC, or +01:00")
    try:
        at = datetime.fromisoformat(f"{day}T{hour}:{minute}:{second or '00'}+00:00")
        zone = time.fromisoformat(":".join(part or "00" for part in offset))
    except ValueError:
        raise InvalidValueError(f"the calendar has no time {text!r}") from None
    seconds = (at - EPOCH) // timedelta(seconds=1)
    seconds += (3600 * zone.hour + 60 * zone.minute + zone.second) * (1 if sign == "-" else -1)
    return _time_key(seconds, int((fraction or "0").ljust(9, "0")))


def _of_date(day: date) -> str:
    return _time_key((day.toordinal() - EPOCH.toordinal()) * _DAY, 0)


def _of_datetime(at: datetime) -> str:
    if at != at:  # NaT of pandas
        raise InvalidValueError("the time is NaT, a missing one: leave it out, or give None")
    if at.utcoffset() is None:
        raise InvalidValueError(
            f"the time {at.isoformat()} has no time zone; give one, as in datetime.now(timezone.utc)"
        )
    since = at - EPOCH
    # A timestamp of pandas has nanoseconds, too
    rest = since.microseconds * 1000 + int(getattr(at, "nanosecond", 0))
    return _time_key(since.days * _DAY + since.seconds, rest)


def _time_text(key: str) -> str:
    seconds, nanoseconds = int(key[2 : 2 + _HEX], 16) - 2**63, int(key[2 + _HEX :], 16)
    days, rest = divmod(seconds, _DAY)
    try:
        day = date.fromordinal(EPOCH.toordinal() + days).isoformat()
    except (ValueError, OverflowError):
        raise InvalidValueError(f"no time that can be written has the key {key!r}") from None
    if not rest and not nanoseconds:
        return f'date "{day}"'
    fraction = f".{nanoseconds:09}".rstrip("0").rstrip(".")
    return f'timestamp "{day}T{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}{fraction}Z"'


# -- versions ----------------------------------------------------------------------------------------------------------


def _number(digits: str, text: str) -> str:
    digits = digits.lstrip("0") or "0"
    if len(digits) > 26:
        raise InvalidValueError(f"a number of the version {text!r:.60} has more than 26 digits")
    return chr(ord("a") + len(digits) - 1) + digits


def _version_key(text: str) -> str:
    found = _VERSION.fullmatch(text)
    before = found[2].split(".") if found and found[2] else []
    if found is None or not all(before):
        raise InvalidValueError(f'a version is written as in "1.10.0" or "2.0.0-rc.1", not {text!r:.60}')
    numbers = [_number(each, text) for each in found[1].split(".")]
    while numbers and numbers[-1] == "a0":
        numbers.pop()
    fields = ["0" + _number(each, text) if each.isdigit() else f"1{each}!" for each in before]
    return f"{TYPED}{VERSIONS}{''.join(numbers)}{'-' if fields else '.'}{''.join(fields)}"


def _version_text(key: str) -> str:
    def number(at: int) -> tuple[str, int]:
        end = at + 2 + ord(key[at]) - ord("a")
        return key[at + 1 : end], end

    numbers, at = [], 2
    try:
        while key[at] not in ".-":
            found, at = number(at)
            numbers.append(found)
        fields, at = [], at + 1
        while at < len(key):
            if key[at] == "0":
                found, at = number(at + 1)
            else:
                end = key.index("!", at)
                found, at = key[at + 1 : end], end + 1
            fields.append(found)
    except (IndexError, ValueError):
        raise InvalidValueError(f"no version has the key {key!r}") from None
    numbers += ["0"] * (3 - len(numbers))
    text = ".".join(numbers) + ("-" + ".".join(fields) if fields else "")
    if _version_key(text) != key:
        raise InvalidValueError(f"no version has the key {key!r}")
    return f'version "{text}"'


# -- IP addresses ------------------------------------------------------------------------------------------------------


def _address_key(text: str) -> str:
    try:
        return _of_address(ipaddress.ip_address(text))
    except ValueError:
        raise InvalidValueError(f'an IP address is written as in "10.0.0.1" or "::1", not {text!r:.60}') from None


def _of_address(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    if getattr(address, "scope_id", None):
        raise InvalidValueError(f"the IP address {address} has a scope, which has no order: leave it out")
    return f"{TYPED}{ADDRESSES}{address.version}{int(address):0{address.max_prefixlen // 4}x}"


def _address_in(key: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    is_short = key[2:3] == "4"
    try:
        if len(key) == 3 + (8 if is_short else 32) and key[2] in "46":
            number = int(key[3:], 16)
            return ipaddress.IPv4Address(number) if is_short else ipaddress.IPv6Address(number)
    except ValueError:
        pass
    raise InvalidValueError(f"no IP address has the key {key!r}")


def _address_text(key: str) -> str:
    return f'ip "{_address_in(key)}"'


def network_of(text: str) -> Network:
    """The network that is written so; InvalidValueError."""
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        pass
    try:
        meant = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise InvalidValueError(f'a network is written as in "10.0.0.0/8", not {text!r:.60}') from None
    raise InvalidValueError(f"{text!r} has bits of a host, too: write {str(meant)!r}")


def ends_of_network(network: Network) -> tuple[str, str]:
    """The keys of its first and of its last address."""
    return _of_address(network[0]), _of_address(network[-1])


def network_between(first: str, last: str) -> Network | None:
    """The network whose first and last addresses have these keys, or `None`."""
    try:
        low, high = _address_in(first), _address_in(last)
        length = low.max_prefixlen - (int(low) ^ int(high)).bit_length()
        found = ipaddress.ip_network(f"{low}/{length}")
    except ValueError:
        return None
    return found if found[-1] == high else None


# -- decimals ----------------------------------------------------------------------------------------------------------


def decimal_of(text: str) -> Decimal:
    """The decimal that is written so; InvalidValueError."""
    try:
        if _DECIMAL.fullmatch(text):
            return Decimal(text)
    except InvalidOperation:
        pass
    raise InvalidValueError(f'a decimal is written as in "0.10", not {text!r:.60}')


def below(number: Decimal) -> int | float:
    """The greatest integer of 64 bits or double that is at most as great as a finite decimal; InvalidValueError."""
    is_long = len(str(number)) > _MOST_DIGITS and len(number.as_tuple().digits) > _MOST_DIGITS
    if number and (is_long or abs(number.adjusted()) > _MOST_DIGITS):
        raise InvalidValueError(f"a decimal must have at most {_MOST_DIGITS} digits, before or after the point")
    nearest = float(number)
    if Decimal(nearest) > number:
        nearest = math.nextafter(nearest, -math.inf)
    if number < _LEAST_INTEGER:
        return nearest
    whole = min(math.floor(number), _GREATEST_INTEGER)
    return whole if whole >= nearest else nearest


def tail_of(number: Decimal) -> str:
    """What distinguishes a decimal from others with the same number below."""
    digits, exponent = str(number).upper().partition("E")[0].replace(".", "").strip("-0"), number.adjusted()
    if number > 0:
        return f"{exponent + _SHIFT:04}{digits}"
    return f"{_SHIFT - 1 - exponent:04}{digits.translate(_COMPLEMENTS)}~"


def decimal_in(tail: str) -> Decimal:
    """The decimal that has this tail; InvalidValueError."""
    is_negative = tail.endswith("~")
    exponent, digits = tail[:4], tail[4:].removesuffix("~")
    if not (len(exponent) == 4 and exponent.isdecimal() and digits.isdecimal() and tail.isascii()):
        raise InvalidValueError(f"no decimal has the tail {tail!r}")
    if is_negative:
        digits = digits.translate(_COMPLEMENTS)
    adjusted = _SHIFT - 1 - int(exponent) if is_negative else int(exponent) - _SHIFT
    found = Decimal((int(is_negative), tuple(map(int, digits)), adjusted - len(digits) + 1))
    if tail_of(found) != tail:
        raise InvalidValueError(f"no decimal has the tail {tail!r}")
    return found


# -- the table ---------------------------------------------------------------------------------------------------------

_DATES = Type("date", "2026-11-28", "the time when the day begins in UTC", _date_key, _time_text)
_TIMESTAMPS = Type(
    "timestamp", "2026-11-28T10:00:00+01:00", "a time, to the nanosecond, with its zone", _timestamp_key, _time_text
)
_VERSIONS = Type("version", "1.10.0", "a version, in the order of semantic versions", _version_key, _version_text)
_ADDRESSES = Type("ip", "10.0.0.1", "an IP address, of version 4 or 6", _address_key, _address_text)
#: Those whose keys begin with `p`, by name
TYPES = {own.name: own for own in (_DATES, _TIMESTAMPS, _VERSIONS, _ADDRESSES)}
#: Comes before the text of a decimal
DECIMAL = "decimal"
#: What messages call types, by the second letter of their keys
TYPE_NAMES = {TIMES: "time", VERSIONS: "version", ADDRESSES: "IP address"}
_BY_LETTER = {TIMES: _TIMESTAMPS, VERSIONS: _VERSIONS, ADDRESSES: _ADDRESSES}


def typed_of(name: str, text: str) -> Typed | Decimal:
    """The value that the name of a type and a text write; InvalidValueError.

    >>> print(typed_of("version", "1.10"), typed_of("ip", "::1"), typed_of("decimal", "0.10"))
    version "1.10.0" ip "::1" 0.10
    """
    return decimal_of(text) if name == DECIMAL else Typed(TYPES[name].key_of(text))


def typed_in(key: str) -> Typed:
    """The value that has this key; InvalidValueError."""
    own = _BY_LETTER.get(key[1:2])
    if own is None or key[:1] != TYPED:
        raise InvalidValueError(f"no value has the key {key!r}")
    try:
        own.text_of(key)
    except ValueError:
        raise InvalidValueError(f"no value has the key {key!r}") from None
    return Typed(key)


def key_of_typed(value: Any) -> str | None:
    """The key of a date, a time, a version or an IP address of Python; `None` of others; InvalidValueError."""
    if isinstance(value, Typed):
        return value.key
    if isinstance(value, Version):
        return _version_key(str(value))
    if isinstance(value, datetime):
        return _of_datetime(value)
    if isinstance(value, date):
        return _of_date(value)
    if isinstance(value, ipaddress.IPv4Address | ipaddress.IPv6Address):
        return _of_address(value)
    if isinstance(value, dict) and len(value) == 1:  # as JSON has it
        [(name, text)] = value.items()
        if name in TYPES and isinstance(text, str):
            return TYPES[name].key_of(text)
    return None


def for_json(value: object) -> object:
    """A value as JSON has it, an object if it is typed; also several in a list."""
    if isinstance(value, list | tuple | set | frozenset):
        return list(map(for_json, value))
    if isinstance(value, Decimal):
        return {DECIMAL: str(value)}
    key = key_of_typed(value)
    if key is None:
        return value
    name, _, text = str(Typed(key)).partition(" ")
    return {name: text.strip('"')}
