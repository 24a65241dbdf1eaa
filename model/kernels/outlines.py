"""Which places polygons and corridors have, on the sphere and on the plane, in float64.

Each ring of a polygon on the sphere lies within less than half of the globe. From the middle of that half, places are
seen on a plane that touches the sphere there: great circles are straight lines on it, edges those of a plain polygon,
and poles and the anti-meridian are places as any others. A place is within a ring if a line from it crosses an
odd number of edges; an edge counts that begins below the place and does not end there, or the other way round, which
comparisons decide without an error. What lies on an edge, or so near that rounding may hide it (`_ROUNDED`, by the
distance from the middle), belongs to the polygon, for outlines and holes alike.

A corridor is all within a distance of an edge: along the ground by the sine of the angle to its great circle, and
from its ends by chords, as circles are (`tagmatch.model.kernels.sphere`).

Numbers of an outline as it is tested: of a polygon on the sphere the unit vector of the middle and those of both axes,
on the plane the middle and what it is multiplied by; of a corridor on the sphere the greatest chord, squared, and the
greatest sine, squared, on the plane the same as of a polygon and the radius. Then those of the payload
(`tagmatch.model.where.outlines`), with places as they are seen, for corridors on the sphere as unit vectors.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tagmatch.model.arrays import BoolArray, F64Array, I64Array, U8Array
from tagmatch.model.kernels.jit import inlined, kernel, lent
from tagmatch.model.kernels.sphere import BOX, CIRCLE, EARTH, is_in_area, limit_of, unit_vector

#: Letters of outlines on the sphere (see `sphere.CIRCLE`)
POLYGON, CORRIDOR = tuple(b"pl")

#: What may be wrong with an outline: nothing; it is not written as it should be; it is not within half of the globe
SOUND, UNSOUND, TOO_WIDE = range(3)

# How far from an edge of a polygon a place belongs to it, for a radius of one
_ROUNDED = 2.0**-48
# Cosine of the widest angle from the middle to a corner; sine of the same to the border of a corridor
_LEAST_COSINE = 1 / 64
# By how much a circle around an outline is wider, as a part and in metres: rounding is less
_WIDER, _MARGIN = 1e-9, 0.001
_POLE = 0.9
# A sum of directions that is shorter has none
_SHORTEST = 1e-12


class Outlines(NamedTuple):
    """Outlines as kernels take them."""

    places: I64Array  # Where the numbers of each begin
    numbers: F64Array


class Areas(NamedTuple):
    """Areas of all kinds that stay, as kernels take them."""

    kinds: U8Array  # Letters, as on the sphere
    values: F64Array  # [n, 4]; numbers of circles and boxes, and of the circles, or boxes, around outlines
    places: I64Array  # Both (see `Outlines`)
    numbers: F64Array


# -- whether one has a place -------------------------------------------------------------------------------------------


@lent
def _rings_have(numbers, at, x, y):
    """Whether a polygon whose count of parts is at a place has a point: as seen, around a middle."""
    tolerance = _ROUNDED * (1 + x * x + y * y)
    parts = np.int64(numbers[at])
    at += 1
    found = False
    for _ in range(parts):
        rings = np.int64(numbers[at])
        at += 1
        inside = True
        for ring in range(rings):
            count = np.int64(numbers[at])
            at += 1
            odd = False
            ax, ay = numbers[at + 2 * count - 2], numbers[at + 2 * count - 1]
            for corner in range(count):
                bx, by = numbers[at + 2 * corner], numbers[at + 2 * corner + 1]
                if (ay > y) != (by > y) or (abs(ay - y) <= tolerance or abs(by - y) <= tolerance):
                    dx, dy = bx - ax, by - ay
                    # Positive to the left of the edge
                    side = dx * (y - ay) - dy * (x - ax)
                    if (ay > y) != (by > y) and (side > 0) == (dy > 0):
                        odd = not odd
                    along, length = dx * (x - ax) + dy * (y - ay), dx * dx + dy * dy
                    if along <= 0:
                        away = (x - ax) * (x - ax) + (y - ay) * (y - ay)
                    elif along >= length:
                        away = (x - bx) * (x - bx) + (y - by) * (y - by)
                    else:
                        away = side * side / length
                    if away <= tolerance * tolerance:
                        return True
                ax, ay = bx, by
            if ring == 0:
                inside = odd
            elif odd:
                inside = False
            at += 2 * count
        found = found or inside
    return found


@lent
def _lines_are_near(numbers, at, x, y, z, limit, sine, plane):
    """Whether a point is near one of the lines whose number is at a place."""
    lines, axes = np.int64(numbers[at]), 2 if plane else 3
    at += 1
    for _ in range(lines):
        count = np.int64(numbers[at])
        at += 1
        for point in range(count):
            here = at + axes * point
            px, py, pz = x - numbers[here], y - numbers[here + 1], 0.0 if plane else z - numbers[here + 2]
            if px * px + py * py + pz * pz <= limit:
                return True
            if point + 1 == count:
                break
            nx, ny = numbers[here + axes] - numbers[here], numbers[here + axes + 1] - numbers[here + 1]
            if plane:
                along, length, side = nx * px + ny * py, nx * nx + ny * ny, nx * py - ny * px
                if along >= 0 and along <= length and side * side <= limit * length:
                    return True
                continue
            nz = numbers[here + 5] - numbers[here + 2]
            mx, my, mz = numbers[here] + nx / 2, numbers[here + 1] + ny / 2, numbers[here + 2] + nz / 2
            # Of the great circle: the cross product of the middle of the chord and its direction
            ox, oy, oz = my * nz - mz * ny, mz * nx - mx * nz, mx * ny - my * nx
            side, length = px * ox + py * oy + pz * oz, ox * ox + oy * oy + oz * oz
            if side * side > sine * length:
                continue
            # Between both ends: the point, seen along the chord, is so as well, as both are on the sphere
            along = (x - mx) * nx + (y - my) * ny + (z - mz) * nz
            reach = (nx * nx + ny * ny + nz * nz) / 2
            height = x * mx + y * my + z * mz
            if height > 0 and abs(along) * (mx * mx + my * my + mz * mz) <= reach * height:
                return True
        at += axes * count
    return False


@lent
def outline_has(kind, bounds, numbers, at, lon, lat, plane):
    """Whether an outline has a place; `bounds` are the numbers of the circle, or the box, around it."""
    if not is_in_area(BOX if plane else CIRCLE, bounds, lon, lat, plane):
        return False
    if plane:
        x, y = (lon - numbers[at]) * numbers[at + 2], (lat - numbers[at + 1]) * numbers[at + 2]
        if kind == POLYGON:
            return _rings_have(numbers, at + 3, x, y)
        return _lines_are_near(numbers, at + 4, x, y, 0.0, numbers[at + 3], 0.0, True)
    px, py, pz = unit_vector(lon, lat)
    if kind == CORRIDOR:
        return _lines_are_near(numbers, at + 2, px, py, pz, numbers[at], numbers[at + 1], False)
    x, y, seen = _seen(numbers, at, px, py, pz)
    return seen and _rings_have(numbers, at + 9, x, y)


@lent
def area_has(areas, number, lon, lat, plane):
    """Whether an area, not `near`, has a place, which may be NaN."""
    kind, values = areas.kinds[number], areas.values[number]
    if np.isnan(lon):
        return False
    if kind in (POLYGON, CORRIDOR):
        return outline_has(kind, values, areas.numbers, areas.places[number], lon, lat, plane)
    return is_in_area(kind, values, lon, lat, plane)


@lent
def _seen(numbers, at, px, py, pz):
    """A point of the sphere as it is seen from its middle, and whether it is."""
    height = numbers[at] * px + numbers[at + 1] * py + numbers[at + 2] * pz
    if height <= 0:
        return 0.0, 0.0, False
    # Differences to the middle lose fewer digits
    px, py, pz = px - numbers[at], py - numbers[at + 1], pz - numbers[at + 2]
    x = numbers[at + 3] * px + numbers[at + 4] * py + numbers[at + 5] * pz
    y = numbers[at + 6] * px + numbers[at + 7] * py + numbers[at + 8] * pz
    return x / height, y / height, True


# -- how they are made ready -------------------------------------------------------------------------------------------


@lent
def _is_whole(numbers, begin, end, kind):
    """How many places a payload has; -1 if it is not sound."""
    at, places = begin, np.int64(0)
    for place in range(begin, end):
        if not np.isfinite(numbers[place]):
            return -1
    if kind == CORRIDOR:
        if end - at < 2 or not numbers[at] >= 0:
            return -1
        at += 1
    if at >= end or not (numbers[at] >= 1 and numbers[at] <= end - at):
        return -1
    groups = np.int64(numbers[at])
    at += 1
    for _ in range(groups):
        rings = np.int64(1)
        if kind == POLYGON:
            if at >= end or not (numbers[at] >= 1 and numbers[at] <= end - at):
                return -1
            rings = np.int64(numbers[at])
            at += 1
        for _ in range(rings):
            if at >= end or not (numbers[at] >= 1 and 2 * numbers[at] < end - at):
                return -1
            count = np.int64(numbers[at])
            at += 1 + 2 * count
            places += count
    return places if at == end else -1


@lent
def _room_of(kind, places, length, plane):
    """How many numbers an outline has as it is tested, of `length` numbers of a payload."""
    if plane:
        return length + 3
    return length + 9 if kind == POLYGON else length + 1 + places


@inlined
def _positions(numbers, begin, end, kind):
    """Where each place of a payload stands."""
    out, used = np.empty((end - begin) // 2 + 1, np.int64), 0
    at = begin + (1 if kind == CORRIDOR else 0)
    groups = np.int64(numbers[at])
    at += 1
    for _ in range(groups):
        rings = np.int64(1)
        if kind == POLYGON:
            rings = np.int64(numbers[at])
            at += 1
        for _ in range(rings):
            count = np.int64(numbers[at])
            at += 1
            for _ in range(count):
                out[used] = at
                used += 1
                at += 2
    return out[:used]


@lent
def _least_cosine(numbers, positions, middle):
    """The cosine of the widest angle from a middle to a place; zero if that is no direction."""
    length = math.sqrt(middle[0] * middle[0] + middle[1] * middle[1] + middle[2] * middle[2])
    if not length > _SHORTEST:
        return 0.0
    least = 1.0
    for position in positions:
        x, y, z = unit_vector(numbers[position], numbers[position + 1])
        least = min(least, (x * middle[0] + y * middle[1] + z * middle[2]) / length)
    return least


@lent
def _between(numbers, positions):
    """The middle of the box around places in space."""
    low, high = (2.0, 2.0, 2.0), (-2.0, -2.0, -2.0)
    for position in positions:
        x, y, z = unit_vector(numbers[position], numbers[position + 1])
        low = (min(low[0], x), min(low[1], y), min(low[2], z))
        high = (max(high[0], x), max(high[1], y), max(high[2], z))
    return (low[0] + high[0]) / 2, (low[1] + high[1]) / 2, (low[2] + high[2]) / 2


@lent
def _around(numbers, positions):
    """What rings go around, by the sum of their cross products, on the side where places are."""
    x = y = z = sx = sy = sz = 0.0
    first = 0
    for i in range(len(positions)):
        following = i + 1
        if following == len(positions) or positions[following] != positions[i] + 2:
            following, first = first, i + 1
        ax, ay, az = unit_vector(numbers[positions[i]], numbers[positions[i] + 1])
        bx, by, bz = unit_vector(numbers[positions[following]], numbers[positions[following] + 1])
        x, y, z = x + ay * bz - az * by, y + az * bx - ax * bz, z + ax * by - ay * bx
        sx, sy, sz = sx + ax, sy + ay, sz + az
    sign = -1.0 if x * sx + y * sy + z * sz < 0 else 1.0
    return sign * x, sign * y, sign * z


@lent
def _frame_on_sphere(numbers, positions, out):
    """Write the middle of places, and axes there; the least cosine of an angle to one of them."""
    middle, other = _between(numbers, positions), _around(numbers, positions)
    least, of_other = _least_cosine(numbers, positions, middle), _least_cosine(numbers, positions, other)
    if of_other > least:
        middle, least = other, of_other
    if least < _LEAST_COSINE:
        return least
    x, y, z = middle
    length = math.sqrt(x * x + y * y + z * z)
    x, y, z = x / length, y / length, z / length
    # East of the middle, or along x at a pole
    ex, ey, ez = (-y, x, 0.0) if abs(z) < _POLE else (1 - x * x, -x * y, -x * z)
    length = math.sqrt(ex * ex + ey * ey + ez * ez)
    ex, ey, ez = ex / length, ey / length, ez / length
    out[0], out[1], out[2] = x, y, z
    out[3], out[4], out[5] = ex, ey, ez
    out[6], out[7], out[8] = y * ez - z * ey, z * ex - x * ez, x * ey - y * ex
    return least


@lent
def _farthest(numbers, positions, x, y, z):
    """The longest chord from a point to places, squared."""
    most = 0.0
    for position in positions:
        px, py, pz = unit_vector(numbers[position], numbers[position + 1])
        most = max(most, (px - x) * (px - x) + (py - y) * (py - y) + (pz - z) * (pz - z))
    return most


@inlined
def _on_sphere(numbers, begin, kind, positions, bounds, out, at):
    """Write an outline of the sphere; see above. Whether it is within half of the globe."""
    frame = np.empty(9)
    least = _frame_on_sphere(numbers, positions, frame)
    if least < _LEAST_COSINE:
        return TOO_WIDE
    radius = 2 * math.asin(min(1.0, math.sqrt(_farthest(numbers, positions, frame[0], frame[1], frame[2])) / 2)) * EARTH
    radius += radius * _WIDER + _MARGIN
    if kind == CORRIDOR:
        metres = numbers[begin]
        radius += metres * (1 + _WIDER)
        if not radius < math.acos(_LEAST_COSINE) * EARTH:
            return TOO_WIDE
        out[at], sine = limit_of(metres, False), math.sin(metres / EARTH)
        out[at + 1] = sine * sine
        at += 2
    else:
        for i in range(9):
            out[at + i] = frame[i]
        at += 9
    # An arcsine would lose half of the digits at a pole
    bounds[0] = math.degrees(math.atan2(frame[1], frame[0]))
    bounds[1] = math.degrees(math.atan2(frame[2], math.hypot(frame[0], frame[1])))
    bounds[2], bounds[3] = radius, 0.0
    read = begin + (1 if kind == CORRIDOR else 0)
    for position in positions:
        while read < position:
            out[at] = numbers[read]
            read, at = read + 1, at + 1
        px, py, pz = unit_vector(numbers[position], numbers[position + 1])
        if kind == CORRIDOR:
            out[at], out[at + 1], out[at + 2] = px, py, pz
            at += 3
        else:
            out[at], out[at + 1], _ = _seen(frame, 0, px, py, pz)
            at += 2
        read += 2
    return SOUND


@lent
def _on_plane(numbers, begin, kind, positions, bounds, out, at):
    """Write an outline of the plane."""
    west = south = np.inf
    east = north = -np.inf
    for position in positions:
        west, east = min(west, numbers[position]), max(east, numbers[position])
        south, north = min(south, numbers[position + 1]), max(north, numbers[position + 1])
    x, y, wide = west / 2 + east / 2, south / 2 + north / 2, max(east / 2 - west / 2, north / 2 - south / 2)
    metres = numbers[begin] if kind == CORRIDOR else 0.0
    wide = max(wide, metres)
    # A power of two, so that nothing is lost
    by = math.ldexp(1.0, -math.frexp(max(wide, 2.0**-1000))[1])
    out[at], out[at + 1], out[at + 2] = x, y, by
    at += 3
    if kind == CORRIDOR:
        # Where lows and highs are rounded the circles around ends must not be cut
        more = metres + (abs(x) + abs(y) + wide) * _WIDER
        west, east, south, north = west - more, east + more, south - more, north + more
        out[at] = (metres * by) * (metres * by)
        at += 1
    bounds[0], bounds[1], bounds[2], bounds[3] = west, south, east, north
    read = begin + (1 if kind == CORRIDOR else 0)
    for position in positions:
        while read < position:
            out[at] = numbers[read]
            read, at = read + 1, at + 1
        out[at], out[at + 1] = (numbers[position] - x) * by, (numbers[position + 1] - y) * by
        read, at = read + 2, at + 2
    return SOUND


@kernel
def _prepared(kinds, numbers, offsets, plane, bounds, states):
    """Make outlines ready, and write a circle, or a box, around each: where the numbers of each begin, and all."""
    count, room = len(kinds), 0
    places = np.zeros(count, np.int64)
    for i in range(count):
        states[i] = SOUND
        if kinds[i] != POLYGON and kinds[i] != CORRIDOR:
            continue
        found = _is_whole(numbers, offsets[i], offsets[i + 1], kinds[i])
        if found < 0:
            states[i] = UNSOUND
            continue
        places[i] = room
        room += _room_of(kinds[i], found, offsets[i + 1] - offsets[i], plane)
    out = np.zeros(room)
    for i in range(count):
        if states[i] != SOUND or (kinds[i] != POLYGON and kinds[i] != CORRIDOR):
            continue
        begin, end = offsets[i], offsets[i + 1]
        positions = _positions(numbers, begin, end, kinds[i])
        if plane:
            states[i] = _on_plane(numbers, begin, kinds[i], positions, bounds[i], out, places[i])
        else:
            states[i] = _on_sphere(numbers, begin, kinds[i], positions, bounds[i], out, places[i])
    return places, out


@kernel
def _areas_have(areas, numbers, lon, lat, plane, out):
    for i in range(len(out)):
        out[i] = area_has(areas, numbers[i], lon[i], lat[i], plane)


def areas_have(areas: Areas, numbers: I64Array, lon: F64Array, lat: F64Array, *, plane: bool) -> BoolArray:
    """Whether the area of number `numbers[i]` has place `i`."""
    out = np.empty(len(lon), np.bool_)
    _areas_have(areas, numbers, lon, lat, plane, out)
    return out


def around_outlines(kinds: U8Array, *, plane: bool) -> U8Array:
    """The same kinds, except for outlines: of the circle, or box, around each."""
    is_outline = (kinds == POLYGON) | (kinds == CORRIDOR)
    return np.where(is_outline, np.uint8(BOX if plane else CIRCLE), kinds)


def prepared(
    kinds: U8Array, numbers: F64Array, offsets: I64Array, bounds: F64Array, *, plane: bool
) -> tuple[Outlines, U8Array]:
    """Outlines as they are tested, and the fault of each; `bounds` gets the circles, or boxes, around them.

    Of other kinds than `POLYGON` and `CORRIDOR` there are no numbers.
    """
    states = np.zeros(len(kinds), np.uint8)
    places, out = _prepared(kinds, numbers, offsets, plane, bounds, states)
    return Outlines(places, out), states


# -- rings that cross --------------------------------------------------------------------------------------------------


@lent
def _turn(ax, ay, bx, by, cx, cy):
    return (bx - ax) * (cy - ay) - (by - ay) * (cx - ax)


@kernel
def _crossing(ends, parts, order):
    """Two edges that cross each other, of those of one part, or none; edges come in order of their least x."""
    for i in range(len(order)):
        one = order[i]
        ax, ay, bx, by = ends[one, 0], ends[one, 1], ends[one, 2], ends[one, 3]
        most = max(ax, bx)
        for j in range(i + 1, len(order)):
            other = order[j]
            cx, cy, dx, dy = ends[other, 0], ends[other, 1], ends[other, 2], ends[other, 3]
            if min(cx, dx) > most:
                break
            if parts[one] != parts[other] or min(cy, dy) > max(ay, by) or max(cy, dy) < min(ay, by):
                continue
            # What only touches does not cross: one of these is zero then, or within rounding
            of_c, of_d = _turn(ax, ay, bx, by, cx, cy), _turn(ax, ay, bx, by, dx, dy)
            of_a, of_b = _turn(cx, cy, dx, dy, ax, ay), _turn(cx, cy, dx, dy, bx, by)
            least = 2.0**-46 * (abs(ax) + abs(bx) + abs(cx) + abs(dx) + abs(ay) + abs(by) + abs(cy) + abs(dy))
            long_one, long_other = math.hypot(bx - ax, by - ay), math.hypot(dx - cx, dy - cy)
            if min(abs(of_c), abs(of_d)) <= least * long_one or min(abs(of_a), abs(of_b)) <= least * long_other:
                continue
            if (of_c > 0) != (of_d > 0) and (of_a > 0) != (of_b > 0):
                return one, other
    return -1, -1


def crossing(outlines: Outlines, *, plane: bool) -> tuple[int, int] | None:
    """Two edges of one part of the only polygon that cross, counted from 0 over all of its rings; `None` if none do."""
    numbers, at = outlines.numbers, int(outlines.places[0]) + (3 if plane else 9)
    edges, owners = [], []
    parts = int(numbers[at])
    at += 1
    for part in range(parts):
        rings = int(numbers[at])
        at += 1
        for _ in range(rings):
            count = int(numbers[at])
            ring = numbers[at + 1 : at + 1 + 2 * count].reshape(-1, 2)
            edges.append(np.hstack([ring, np.roll(ring, -1, axis=0)]))
            owners.append(np.full(count, part))
            at += 1 + 2 * count
    ends = np.ascontiguousarray(np.vstack(edges))
    one, other = _crossing(ends, np.concatenate(owners), np.argsort(ends[:, ::2].min(axis=1), kind="stable"))
    return None if one < 0 else (int(one), int(other))
