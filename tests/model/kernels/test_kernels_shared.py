"""Kernels that several folders use, compared with plain Python: hashes, signatures, sorting, lists, circles."""

import gc
import math
import random
from functools import partial
from itertools import chain

import numba
import numpy as np
import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st
from support.distances import HALF_WAY, Place, within_on_plane, within_on_sphere
from support.hashes import words_of
from support.places import lists_of, rows_of

from tagmatch.model.arrays import Lists, Strings
from tagmatch.model.input.places import NO_OUTLINES
from tagmatch.model.kernels.hashing import hash_strings, signatures_of, siphash
from tagmatch.model.kernels.interpreted import compiling_at_once
from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch.model.kernels.lists import join_lists, side_by_side, sort_hashes
from tagmatch.model.kernels.outlines import Areas, areas_have
from tagmatch.model.kernels.sphere import CIRCLE, points


def as_strings(values: list[bytes], width: type = np.int32) -> Strings:
    offsets = np.cumsum([0, *map(len, values)]).astype(width)
    return Strings(offsets, np.frombuffer(b"".join(values), np.uint8))


@inlined
def _doubled(values):
    twice = np.empty(len(values), np.int64)
    for i in range(len(values)):
        twice[i] = 2 * values[i]
    return twice


@kernel
def _total(values, first):
    return _doubled(values).sum() + np.arange(first, 3).sum()


def test_numba_is_as_before_once_a_kernel_is_compiled_or_does_not_compile():
    """Python cannot call parts of kernels, but functions that users compile call the same helpers, and NumPy."""
    with compiling_at_once():
        with pytest.raises(numba.TypingError, match="_total"):
            _total("text", 0)
        assert gc.isenabled()
        assert _total(np.array([1, 2]), 1) == 9
    own = numba.njit(lambda values: _doubled(values).sum() + np.arange(1, 3).sum() + len(np.empty(3, np.int64)))
    assert own(np.array([1, 2])) == 12
    assert gc.isenabled()


@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1])
def test_every_length_up_to_200_and_some_beyond_is_as_the_reference(seed):
    values = [random.Random(length).randbytes(length) for length in [*range(201), 255, 1000, 4096, 100_003]]
    expected = [xxhash.xxh64_intdigest(value, seed) for value in values]
    for width in (np.int32, np.int64):
        assert hash_strings(as_strings(values, width), seed=seed).tolist() == expected


def test_a_range_of_many_strings_on_several_threads():
    values = [b"tag%d" % i for i in range(100_000)]
    got = hash_strings(as_strings(values), threads=4, first=17, last=99_990)
    assert got.tolist() == [xxhash.xxh64_intdigest(value) for value in values[17:99_990]]


MASK = 2**64 - 1
words = st.integers(0, MASK)

# From the paper (appendix A) and from its authors' test vectors: of the bytes 0, 1, 2, ... with the key 0, 1, ..., 15
VECTORS = {
    0: "310e0edd47db6f72", 1: "fd67dc93c539f874", 2: "5a4fa9d909806c0d", 3: "2d7efbd796666785",
    7: "37d1018bf50002ab", 8: "6224939a79f5f593", 15: "e545be4961ca29a1", 63: "724506eb4c328a95",
}  # fmt: skip


def hashed(data: bytes, key0: int, key1: int) -> int:
    # As a part of a column
    column = np.frombuffer(b"before" + data + b"behind", np.uint8)
    return int(siphash(column, 6, 6 + len(data), np.uint64(key0), np.uint64(key1)))


def expected(data: bytes, key0: int, key1: int) -> int:
    def rotl(x: int, bits: int) -> int:
        return (x << bits | x >> (64 - bits)) & MASK

    def rounds(count: int, a: int, b: int, c: int, d: int) -> tuple[int, int, int, int]:
        for _ in range(count):
            a, c = (a + b) & MASK, (c + d) & MASK
            b, d = rotl(b, 13) ^ a, rotl(d, 16) ^ c
            a = rotl(a, 32)
            c, a = (c + b) & MASK, (a + d) & MASK
            b, d = rotl(b, 17) ^ c, rotl(d, 21) ^ a
            c = rotl(c, 32)
        return a, b, c, d

    a, b, c, d = (
        half ^ int.from_bytes(text, "big")
        for half, text in zip((key0, key1) * 2, (b"somepseu", b"dorandom", b"lygenera", b"tedbytes"), strict=True)
    )
    whole = len(data) // 8 * 8
    blocks = [data[at : at + 8] for at in range(0, whole, 8)]
    blocks.append(data[whole:].ljust(7, b"\0") + bytes([len(data) % 256]))
    for word in map(partial(int.from_bytes, byteorder="little"), blocks):
        a, b, c, d = rounds(2, a, b, c, d ^ word)
        a ^= word
    a, b, c, d = rounds(4, a, b, c ^ 0xFF, d)
    return a ^ b ^ c ^ d


@pytest.mark.parametrize("length", VECTORS)
def test_vectors_of_the_authors(length):
    key0, key1 = np.frombuffer(bytes(range(16)), np.uint64).tolist()
    data = bytes(range(length))
    vector = int.from_bytes(bytes.fromhex(VECTORS[length]), "little")
    assert hashed(data, key0, key1) == expected(data, key0, key1) == vector


@given(st.binary(max_size=300), words, words)
def test_any_string_and_key(data, key0, key1):
    assert hashed(data, key0, key1) == expected(data, key0, key1)


def bits_of(tag_hash: int) -> set[int]:
    """The published definition, in plain integers."""
    lo, hi = tag_hash % 2**32, (tag_hash >> 32) | 1
    return {((lo + i * hi) % 2**32) * 192 >> 32 for i in range(7)}


@given(st.lists(st.lists(st.integers(0, 19), unique=True)), st.integers(0, 5))
@example([[row % 20, (row + 1) % 20] for row in range(300)], 0)  # rows of several batches
@example([[], [*range(20)] * 40, [3], *[[4]] * 80, [*range(20)] * 90], 0)  # rows that are longer than those before
def test_signatures_are_as_published(rows, salt):
    hashes = np.array([xxhash.xxh64_intdigest(f"{salt}-{rank}".encode()) for rank in range(20)], np.uint64)
    offsets = np.cumsum([0, *map(len, rows)])
    values = np.array([rank for row in rows for rank in row], np.uint32)
    bits = [set().union(*(bits_of(int(hashes[rank])) for rank in row)) for row in rows]
    expected = words_of([sum(1 << 191 - bit for bit in each) for each in bits]).tolist()
    for threads in (1, 4):
        assert signatures_of(Lists(offsets, values), hashes, threads=threads).tolist() == expected


LARGEST = 2**64 - 1
EVEN = st.lists(st.integers(0, LARGEST), max_size=300)
# Hashes with one beginning, or one end, more of them than are sorted one by one
MADE = st.lists(st.sampled_from([0, 1, 7 << 40, 3 << 62, LARGEST]) | st.integers(0, 9), min_size=30, max_size=300)


@given(EVEN | MADE)
@example([5] * 40 + [3] * 40)
@example([LARGEST - i for i in range(100)])
def test_places_are_those_of_a_stable_sort(hashes: list[int]) -> None:
    expected = sorted(range(len(hashes)), key=hashes.__getitem__)
    assert sort_hashes(np.array(hashes, np.uint64)).tolist() == expected


Rows = list[list[int]]
NUMBERS = {np.dtype(np.uint32): 2**32 - 1, np.dtype(np.uint64): 2**64 - 1}


@st.composite
def columns(draw: st.DrawFn, rows: int | None = None) -> tuple[Rows, np.dtype[np.unsignedinteger]]:
    dtype = draw(st.sampled_from(list(NUMBERS)))
    row = st.lists(st.integers(0, NUMBERS[dtype]), max_size=4)
    sizes = {} if rows is None else {"min_size": rows, "max_size": rows}
    return draw(st.lists(row, **sizes)), dtype


@given(st.lists(columns(), max_size=5), st.sampled_from([1, 3]))
def test_joined_lists_are_those_of_the_parts_which_are_let_go_of(parts, threads):
    lists = [lists_of(*part) for part in parts]
    joined = join_lists(lists, np.dtype(np.uint64), threads)
    assert rows_of(joined) == [row for rows, _ in parts for row in rows]
    assert joined.values.dtype == np.uint64
    assert lists == []


@given(st.integers(0, 4).flatmap(lambda rows: st.lists(columns(rows), min_size=1, max_size=3)))
def test_lists_side_by_side_have_what_the_parts_have(parts):
    """Also if some parts have numbers of 32 bits and others of 64."""
    found = rows_of(side_by_side([lists_of(*part) for part in parts]))
    assert found == [list(chain.from_iterable(rows)) for rows in zip(*(rows for rows, _ in parts), strict=True)]


_any = st.floats(allow_nan=False, allow_infinity=False)
_near_zero = st.floats(-1e-150, 1e-150)
_huge = st.floats(1e150, allow_infinity=False) | st.floats(max_value=-1e150, allow_infinity=False)


def has(middle: Place, place: Place, metres: float, *, plane: bool) -> bool:
    lon, lat = (np.array([value]) for value in place)
    circle = Areas(np.array([CIRCLE], np.uint8), np.array([[*middle, metres, 0.0]]), *NO_OUTLINES)
    return bool(areas_have(circle, np.zeros(1, np.int64), lon, lat, plane=plane)[0])


@pytest.mark.parametrize("left_out", [10, 1, 0.05, 0.01, 1e-6, math.ulp(HALF_WAY)])
@pytest.mark.parametrize("place", [(0.0, 0.0), (-123.4375, 33.3), (45.0, -45.0), (10.0, 90.0), (179.5, 89.99999)])
def test_an_antipode_is_left_out(place: Place, left_out: float) -> None:
    lon, lat = place
    antipode = (lon - math.copysign(180, lon), -lat)
    assert not has(place, antipode, HALF_WAY - left_out, plane=False)
    assert has(place, antipode, HALF_WAY, plane=False)
    if left_out > 1e-5:  # and no more than that
        degrees = math.degrees(left_out / 6371008.8)
        for part, expected in ((0.99, False), (1.01, True)):
            up = -part * degrees if antipode[1] > 0 else part * degrees
            assert has(place, (antipode[0], antipode[1] + up), HALF_WAY - left_out, plane=False) is expected


@given(
    st.tuples(st.floats(-180, 180), st.floats(-90, 90)),
    st.floats(-1, 1) | st.floats(-1e-6, 1e-6),
    st.floats(-1, 1) | st.floats(-1e-6, 1e-6),
    st.sampled_from([0.0, 1.0, HALF_WAY / 2, HALF_WAY]),
    st.floats(-1, 1) | st.floats(-1e5, 1e5),
)
def test_circles_of_the_sphere(place: Place, east: float, north: float, metres: float, more: float) -> None:
    """Of places near each other, a quarter and half of the way around."""
    lon, lat = place
    lon, lat = {0.0: (lon, lat), 1.0: (lon, lat), HALF_WAY / 2: (lon + 90, 0.0)}.get(metres, (lon + 180, -lat))
    lon, lat = lon + east, max(-90.0, min(90.0, lat + north))
    lon = lon - 360 if lon > 180 else lon + 360 if lon < -180 else lon
    metres = max(metres + more, 0.0)
    expected = within_on_sphere(place, (lon, lat), metres)
    assert expected is None or has(place, (lon, lat), metres, plane=False) is expected


@given(st.floats(-180, 180), st.floats(-90, 90))
def test_antipodes_are_opposite(lon: float, lat: float) -> None:
    other = lon - math.copysign(180, lon)
    if other + math.copysign(180, lon) == lon:
        one, two = (np.array(points(np.array([x]), np.array([y]), plane=False)) for x, y in ((lon, lat), (other, -lat)))
        assert (one == -two).all()


SQUARES = [(1.4e154, 1.5e154), (1e200, 1e250), (1e200, 1e100), (1e308, -1.7e308), (1e-170, 1e-165), (0.0, 5e-324)]


@pytest.mark.parametrize(("radius", "x"), SQUARES)
def test_squares_that_are_no_doubles(radius: float, x: float) -> None:
    for middle, place in (((0.0, 0.0), (x, 0.0)), ((0.0, x), (0.0, 0.0)), ((-x / 2, 1.0), (x / 2, 1.0))):
        expected = within_on_plane(middle, place, radius)
        assert has(middle, place, radius, plane=True) is expected


@given(st.sampled_from([_any, _near_zero, _huge]).flatmap(lambda drawn: st.lists(drawn, min_size=5, max_size=5)))
def test_circles_of_the_plane(numbers: list[float]) -> None:
    x, y, radius, at_x, at_y = numbers
    for reach in (abs(radius), math.hypot(x - at_x, y - at_y), abs(x), 0.0):
        expected = within_on_plane((x, y), (at_x, at_y), reach)
        if expected is not None:
            assert has((x, y), (at_x, at_y), reach, plane=True) is expected
