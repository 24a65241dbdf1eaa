"""Where a message's tasks go among those that wait (Z. Wang et al., "Pub/Sub on Stream", DEBS 2012)."""

from __future__ import annotations

from tagmatch.model.kernels.jit import inlined


@inlined
def goes_behind(end, block, due, same_channel):
    """Whether a block of tasks must stand behind a task (Algorithm 3, lines 4 to 11).

    So it is where the task, which would end at `end`, would be late if all of `block` went before it, and where it is
    of the same channel, whose messages stay in order.
    """
    return end + block > due or same_channel
