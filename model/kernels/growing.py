"""Arrays of which a kernel learns only as it goes how long they have to be."""

from __future__ import annotations

import numpy as np

from tagmatch.model.kernels.jit import kernel


@kernel
def with_room(array, used, more):
    """The array, or a longer copy with room for `more` after the first `used`."""
    if used + more <= len(array):
        return array
    longer = np.empty(max(2 * len(array), used + more), array.dtype)
    longer[:used] = array[:used]
    return longer
