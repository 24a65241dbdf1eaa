"""Rows that groups have, and those whose other areas say yes, too."""

from __future__ import annotations

import numpy as np

from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.sphere import is_in_box, is_near, limit_of, point_of
from tagmatch.pipeline.areas.shapes import BOX


@kernel
def spread_rows(offsets, values, group_offsets, groups, ends, out):
    """Write the rows of all groups of each message, if there is room, and where each message's end; how many."""
    used = 0
    for message in range(len(ends) - 1):
        for i in range(group_offsets[message], group_offsets[message + 1]):
            for place in range(offsets[np.int64(groups[i])], offsets[np.int64(groups[i]) + 1]):
                if len(out):
                    out[used] = values[place]
                used += 1
        ends[message + 1] = used
    return used


@kernel
def keep_tested(offsets, values, rows, of_rows, test_offsets, kinds, shapes, negated, lon, lat, plane, ends, out):
    """Write the values of each message, whose rows are these, for which all tests of their rows hold; how many.

    The tests are those of `Tests`.
    """
    used = 0
    for message in range(len(ends) - 1):
        for i in range(offsets[message], offsets[message + 1]):
            number, holds = of_rows[np.int64(rows[i])], True
            if number >= 0:
                for test in range(test_offsets[number], test_offsets[number + 1]):
                    shape = shapes[test]
                    if np.isnan(lon[message]):
                        has = False
                    elif kinds[test] == BOX:
                        has = is_in_box(shape[0], shape[2], shape[1], shape[3], lon[message], lat[message], plane)
                    else:
                        x, y, z = point_of(shape[0], shape[1], plane)
                        px, py, pz = point_of(lon[message], lat[message], plane)
                        has = is_near(x, y, z, limit_of(shape[2], plane), px, py, pz, plane)
                    holds &= has != negated[test]
            if holds:
                out[used] = values[i]
                used += 1
        ends[message + 1] = used
    return used
