"""A table of a segment's tags, in which those of queries are looked up on the CPU.

A bucket, which is one line of the cache, has three slots: a slot has the key of a tag, which is two words, and its
number. The key of a tag of up to 15 bytes is these bytes and how many they are: a look-up reads one line, and not the
tag's bytes elsewhere. The key of a longer tag is a hash and a mark; equal ones are settled on the bytes. Hashes and
buckets depend on the table's secret, so that those who do not know it cannot make tags that crowd into few buckets.

Some three tags are a group, which has a byte, its pilot: it says in which buckets they are, and is chosen so that each
has room (D. Belazzougui and others, "Hash, displace, and compress", ESA 2009). So nearly all slots are used, and a tag
is in its bucket or nowhere.
"""

from __future__ import annotations

import secrets
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from tagmatch.model.arrays import Strings, U8Array, U32Array, U64Array, frozen
from tagmatch.model.kernels.hashing import read64
from tagmatch.model.kernels.interpreted import instead
from tagmatch.model.kernels.intrinsics import on_stack, trailing_zeros
from tagmatch.model.kernels.jit import kernel, lent
from tagmatch.model.kernels.lists import group_by

_U = np.uint64
_ONE = _U(1)

# Words of a bucket: three keys, and behind them four halves of words, the numbers and UNKNOWN
_BUCKET, _SLOTS, _NUMBERS = _U(8), 3, _U(6)
_HALF, _LOW = _U(32), _U(0xFFFFFFFF)
# Tags in the mean
_TAGS_A_BUCKET, _TAGS_A_GROUP = 2.75, 3
_MOST_IN_GROUP = 64
# Places in the secret, behind the factors and what hashes begin with
_COUNT, _GROUPS = 4, 5
# Tags that are looked up together, so that their cache misses are waited for at once
_BLOCK = 256
_BLOCK_WORDS = 2 * _BLOCK

#: Tags of fewer bytes are their keys; they are read at once if the array has this number of bytes from their begin on
SHORT = 16
_SHORT = _U(SHORT)
# The last byte of a key: the tag's length, or one of these
_LENGTH = _U(56)
_LONG, _FREE = _U(0xFF) << _LENGTH, _U(0x7F) << _LENGTH


class KnownTags(NamedTuple):
    """The table; kernels take it."""

    buckets: U64Array  # and behind them a byte for each group
    # uint64[6]: two factors, which are odd, with what the hash of a long tag begins, and how many buckets and groups
    # there are
    secret: U64Array


@lent
def _mixed(a, b, word, secret):
    a, b = (a ^ word) * secret[0], (b + word) * secret[1]
    return a ^ (a >> _U(32)), b ^ (b >> _U(29))


@lent
def _hash(data, at, length, secret):
    """The key of a long tag. Words in which one half stays as it is, for any secret, leave traces in the other."""
    a, b = secret[2] ^ length, secret[3]
    for i in range(_U(0), length - _U(8), _U(8)):
        a, b = _mixed(a, b, read64(data, at + i), secret)
    a, b = _mixed(a, b, read64(data, at + length - _U(8)), secret)
    return a, _LONG | (b >> _U(8))


@lent
def _mix(first, second, secret):
    """A word of a key, of which its group and its bucket are made."""
    a, b = first * secret[0], second * secret[1]
    return ((a ^ (a >> _U(32))) + (b ^ (b >> _U(29)))) * secret[0]


@lent
def _group(mixed, secret):
    return ((mixed >> _HALF) * secret[_GROUPS]) >> _HALF


@lent
def _home(mixed, pilot, secret):
    """Where the bucket of a key begins whose group has this pilot."""
    mixed ^= pilot * secret[1]
    return _BUCKET * (((((mixed ^ (mixed >> _HALF)) * secret[0]) >> _HALF) * secret[_COUNT]) >> _HALF)


@lent
def _pilot_of(mixed, buckets, secret):
    """The pilot of a key's group."""
    return _byte_at(buckets, (_BUCKET * secret[_COUNT] << _U(3)) + _group(mixed, secret))


def _place_of(context: Any, builder: Any, array: Any, value: Any, at: Any, words: Any) -> Any:
    """The address of some words of an array."""
    place = builder.gep(context.make_array(array)(context, builder, value).data, [at])
    return builder.bitcast(place, words.as_pointer())


def _several(bits: int, count: int) -> Any:
    return ir.VectorType(ir.IntType(bits), count)


def _written(typing: Any, data: Any, at: Any, length: Any, keys: Any, place: Any) -> Any:  # noqa: ARG001
    """Writes the key of a short tag with this number of bytes more behind it; that of a longer one has length 16."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data, at, length, keys, place = arguments
        line, byte = _several(8, SHORT), ir.IntType(8)
        most = length.type(SHORT)
        below = builder.trunc(builder.select(builder.icmp_unsigned("<", length, most), length, most), byte)
        first, nothing = ir.IntType(32)(0), ir.Constant(line, ir.Undefined)
        repeated = builder.insert_element(nothing, below, first)
        repeated = builder.shuffle_vector(repeated, nothing, ir.Constant(_several(32, SHORT), [0] * SHORT))
        own = builder.icmp_unsigned("<", ir.Constant(line, list(range(SHORT))), repeated)
        there = builder.load(_place_of(context, builder, signature.args[0], data, at, line), align=1)
        key = builder.select(own, there, ir.Constant(line, [0] * SHORT))
        key = builder.insert_element(key, below, ir.IntType(32)(SHORT - 1))
        builder.store(key, _place_of(context, builder, signature.args[3], keys, place, line), align=8)
        return context.get_dummy_value()

    return types.void(data, types.intp, types.uint64, keys, types.intp), generate


def _equal(typing: Any, buckets: Any, place: Any, keys: Any, key: Any) -> Any:  # noqa: ARG001
    """In which slots a bucket has a key: of slot `i` bit `2 * i`, of that behind the last always."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        words, pair, word = _several(64, 8), _several(64, 2), ir.IntType(64)
        key = builder.load(_place_of(context, builder, signature.args[2], arguments[2], arguments[3], pair), align=8)
        lanes = ir.Constant(_several(32, 8), [0, 1] * 4)
        key = builder.shuffle_vector(key, ir.Constant(pair, ir.Undefined), lanes)
        there = _place_of(context, builder, signature.args[0], arguments[0], arguments[1], words)
        bucket = builder.load(there, align=8)
        same = builder.zext(builder.bitcast(builder.icmp_unsigned("==", bucket, key), ir.IntType(8)), word)
        both = builder.and_(builder.and_(same, builder.lshr(same, word(1))), word(0b010101))
        return builder.or_(both, word(0b1000000))

    return types.uint64(buckets, types.intp, keys, types.intp), generate


def _part_read(bits: int) -> Any:
    """Reads a part of words, of so many bits."""

    def read(typing: Any, words: Any, part: Any) -> Any:  # noqa: ARG001
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            first, kind = context.get_constant(types.intp, 0), ir.IntType(bits)
            there = _place_of(context, builder, signature.args[0], arguments[0], first, kind)
            return builder.zext(builder.load(builder.gep(there, [arguments[1]])), ir.IntType(64))

        return types.uint64(words, types.intp), generate

    return read


_write: Any = intrinsic(_written)
_slots: Any = intrinsic(_equal)
_half_at: Any = intrinsic(_part_read(32))
_byte_at: Any = intrinsic(_part_read(8))


def _interpreted_write(data: U8Array, at: int, length: int, keys: U64Array, place: int) -> None:
    below = min(int(length), SHORT)
    key = bytes(data[int(at) : int(at) + min(below, SHORT - 1)]).ljust(SHORT - 1, b"\0") + bytes([below])
    keys[int(place) : int(place) + 2] = np.frombuffer(key, np.uint64)


def _interpreted_slots(buckets: U64Array, place: int, keys: U64Array, key: int) -> np.uint64:
    same = (buckets[int(place) : int(place) + 6].reshape(3, 2) == keys[int(key) : int(key) + 2]).all(axis=1)
    return _U(sum(1 << 2 * i for i in range(_SLOTS) if same[i]) | 1 << 2 * _SLOTS)


instead(_write, _interpreted_write)
instead(_slots, _interpreted_slots)
instead(_byte_at, lambda words, byte: (words[int(byte) >> 3] >> _U(8 * (int(byte) & 7))) & _U(0xFF))
instead(_half_at, lambda words, half: (words[int(half) >> 1] >> _U(32 * (int(half) & 1))) & _LOW)


@lent
def _in_slot(buckets, place, slot):
    """The number in a slot of a bucket, or, for the slot behind the last, UNKNOWN."""
    return _half_at(buckets, _U(2) * (place + _NUMBERS) + slot)


@lent
def _number(buckets, place, keys, which):
    """The number that a bucket has for a key; UNKNOWN if it has none. Without branches."""
    return _in_slot(buckets, place, trailing_zeros(_slots(buckets, place, keys, _U(2) * which)) >> _ONE)


@lent
def _write_key(data, at, length, secret, keys, place):
    """Write the key of any tag."""
    if length < _SHORT and at + _SHORT <= _U(len(data)):
        _write(data, at, length, keys, place)
    elif length < _SHORT:
        keys[place], keys[place + _ONE] = _U(0), length << _LENGTH
        for i in range(length):
            keys[place + (i >> _U(3))] |= _U(data[at + i]) << (_U(8) * (i & _U(7)))
    else:
        keys[place], keys[place + _ONE] = _hash(data, at, length, secret)


@kernel
def _mix_all(offsets, data, numbers, secret, mixed, groups):
    """Write what each tag with one of these numbers is mixed to, and its group."""
    key = np.empty(2, np.uint64)
    for i in range(len(numbers)):
        at, end = _U(offsets[numbers[i]]), _U(offsets[numbers[i] + np.uint32(1)])
        _write_key(data, at, end - at, secret, key, _U(0))
        mixed[i] = _mix(key[0], key[1], secret)
        groups[i] = _group(mixed[i], secret)


@kernel
def _find_pilots(mixed, tables, secret, pilots):
    """Find for each group, the large ones first, a pilot with which its buckets have room; whether all have one."""
    firsts, by_size = tables
    used, homes = np.zeros(np.int64(secret[_COUNT]), np.uint8), np.empty(_MOST_IN_GROUP, np.uint64)
    for at in range(len(by_size) - 1, -1, -1):
        group = by_size[at]
        first, last = firsts[group], firsts[group + 1]
        if last - first > len(homes):
            return False
        pilot, placed = _U(0), 0
        while placed < last - first:
            placed = 0
            while placed < last - first:
                home = _home(mixed[first + placed], pilot, secret) >> _U(3)
                if used[home] == _SLOTS:
                    break
                used[home] += 1
                homes[placed] = home
                placed += 1
            if placed < last - first:
                for i in range(placed):
                    used[homes[i]] -= 1
                pilot += _U(1)
                if pilot > _U(0xFF):
                    return False
        pilots[group] = pilot
    return True


@kernel
def _enter(offsets, data, numbers, known, mixed):
    """Put the tags with these numbers, which were mixed to this, into free slots."""
    buckets, secret = known
    key, homes, touched = np.empty(2, np.uint64), np.empty(_BLOCK, np.uint64), _U(0)
    for begin in range(0, len(numbers), _BLOCK):
        count = min(_BLOCK, len(numbers) - begin)
        for i in range(count):
            homes[i] = _home(mixed[begin + i], _pilot_of(mixed[begin + i], buckets, secret), secret)
        for i in range(count):
            touched ^= buckets[homes[i]]
        for i in range(count):
            number, place, slot = numbers[begin + i], homes[i], _U(0)
            at, end = _U(offsets[number]), _U(offsets[number + np.uint32(1)])
            _write_key(data, at, end - at, secret, key, _U(0))
            while buckets[place + _U(2) * slot + _ONE] != _FREE:
                slot += _ONE
            buckets[place + _U(2) * slot], buckets[place + _U(2) * slot + _ONE] = key[0], key[1]
            buckets[place + _NUMBERS + (slot >> _ONE)] ^= (_U(number) ^ _LOW) << (_HALF * (slot & _ONE))
    return touched


@lent
def _is_same(tag, number, known):
    """Whether a long tag is the one with a number."""
    (data, at, length), (offsets, heap) = tag, known
    begin = _U(offsets[number])
    if _U(offsets[number + _ONE]) - begin != length:
        return False
    differs = read64(data, at + length - _U(8)) ^ read64(heap, begin + length - _U(8))
    for i in range(_U(0), length - _U(8), _U(8)):
        differs |= read64(data, at + i) ^ read64(heap, begin + i)
    return differs == _U(0)


@lent
def _of_long(buckets, place, keys, at, tag, known):
    """The number of a long tag."""
    same = _slots(buckets, place, keys, _U(2) * at)
    for slot in range(_U(_SLOTS)):
        if (same >> (_U(2) * slot)) & _ONE:
            number = _in_slot(buckets, place, slot)
            if _is_same(tag, number, known):
                return number
    return _LOW


@lent
def _keys(strings, first, count, secret, keys, some):
    """Write the keys of some tags, two words each."""
    offsets, data = strings
    if _U(offsets[first + count - _ONE]) + _SHORT > _U(len(data)):  # the last ones have few bytes behind them
        for i in range(count):
            at, end = _U(offsets[first + i]), _U(offsets[first + i + _ONE])
            _write_key(data, at, end - at, secret, keys, _U(2) * i)
        return
    long = _U(0)
    for i in range(count):
        at, end = _U(offsets[first + i]), _U(offsets[first + i + _ONE])
        _write(data, at, end - at, keys, _U(2) * i)
        some[long] = i
        long += _U(end - at >= _SHORT)
    for k in range(long):
        which = _U(some[k])
        at, end = _U(offsets[first + which]), _U(offsets[first + which + _ONE])
        keys[_U(2) * which], keys[_U(2) * which + _ONE] = _hash(data, at, end - at, secret)


@kernel
def look_up(offsets, data, first, known, known_offsets, known_data, out):
    """Write to `out` the number of each tag from `first` on, UNKNOWN for those that are not in the table."""
    (buckets, secret), strings, known_strings = known, (offsets, data), (known_offsets, known_data)
    keys, homes = on_stack(np.uint64, _BLOCK_WORDS), on_stack(np.uint64, _BLOCK)
    some = on_stack(np.uint32, _BLOCK)
    touched = _U(0)
    # A loop for each miss of the cache, without a branch on the word that is read: the processor then waits for many
    # misses at once instead of for one after the other.
    for begin in range(_U(0), _U(len(out)), _U(_BLOCK)):
        here, count = _U(first) + begin, min(_U(_BLOCK), _U(len(out)) - begin)
        _keys(strings, here, count, secret, keys, some)
        for i in range(count):  # many at once
            homes[i] = _mix(keys[_U(2) * i], keys[_U(2) * i + _ONE], secret)
        for i in range(count):
            some[i] = np.uint32(_pilot_of(homes[i], buckets, secret))
        for i in range(count):  # many at once
            homes[i] = _home(homes[i], _U(some[i]), secret)
        for i in range(count):
            touched ^= buckets[homes[i]]
        left = _U(0)
        for i in range(count):
            number = _number(buckets, homes[i], keys, i)
            out[begin + i] = np.uint32(number)
            some[left] = i
            left += (keys[_U(2) * i + _ONE] >> _U(63)) & _U(number != _LOW)
        for k in range(left):
            which = _U(some[k])
            tag = data, _U(offsets[here + which]), _U(offsets[here + which + _ONE]) - _U(offsets[here + which])
            out[begin + which] = np.uint32(_of_long(buckets, homes[which], keys, which, tag, known_strings))
    return touched


def known_tags(tags: Strings, numbers: U32Array) -> KnownTags:
    """A table in which the tags with these numbers are, which must differ."""
    numbers, mixed, groups = frozen(numbers), np.empty(len(numbers), np.uint64), np.empty(len(numbers), np.uint32)
    sizes = np.array([len(numbers) / _TAGS_A_BUCKET + 1, len(numbers) / _TAGS_A_GROUP + 1]).astype(np.uint64)
    while True:  # once or, seldom, twice
        drawn = np.frombuffer(secrets.token_bytes(32), np.uint64) | np.array([1, 1, 0, 0], np.uint64)
        secret = frozen(np.concatenate([drawn, sizes]))
        _mix_all(tags.offsets, tags.data, numbers, secret, mixed, groups)
        firsts, in_groups = group_by(groups, int(sizes[1]))
        counts = np.diff(firsts).astype(np.uint32)
        by_size = group_by(counts, int(counts.max()) + 1)[1]
        pilots = np.zeros(-(-int(sizes[1]) // 8) * 8, np.uint8)
        if _find_pilots(mixed[in_groups], (firsts, by_size), secret, pilots):
            break
        sizes += sizes // _U(16) + _ONE
    del groups, firsts, in_groups, counts, by_size
    count, width = int(sizes[0]), int(_BUCKET)
    raw = np.empty((count + 1) * width + len(pilots) // 8, np.uint64)
    skip = -(raw.ctypes.data // raw.itemsize) % width
    buckets = raw[skip : skip + count * width + len(pilots) // 8]
    buckets[: count * width].reshape(count, width)[:] = [_U(0), _FREE] * _SLOTS + [~_U(0)] * 2
    buckets[count * width :] = pilots.view(np.uint64)
    _enter(tags.offsets, tags.data, numbers, (buckets, secret), mixed)
    return KnownTags(frozen(buckets), secret)
