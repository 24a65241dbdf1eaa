"""One call of a client: who it is from, and what of the service it needs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tagmatch.broker.access import require
from tagmatch.broker.config import Role, User

if TYPE_CHECKING:
    from tagmatch.broker.limits import Memory
    from tagmatch.broker.service import Service
    from tagmatch.broker.transport import Rpc


# Seconds between looks whether a call that waits may go on
_LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class Call:
    """One call.

    Attributes
    ----------
    service : Service
    user : User
    role : str
        What it needs.
    what : str
        What it does, for messages.
    rpc : Rpc
        The way to its client.
    memory : Memory
        Where it counts the bytes that it keeps.
    """

    service: Service
    user: User
    role: Role
    what: str
    rpc: Rpc
    memory: Memory

    def require(self) -> None:
        """See that the right is still there; errors as `access.require`."""
        require(self.user, self.role, self.what)

    def keep_to_rate(self, rows: int) -> None:
        """Wait until these rows are within the rate of the user, or the service ends.

        Raises
        ------
        GoneError
            The client has gone; the rows do not count then.
        UnauthenticatedError
            The token has expired.
        """
        limits, began = self.service.limits, time.monotonic()
        if (seconds := limits.wait_for(self.user.name, rows)) <= 0:
            return
        try:
            while (left := began + seconds - time.monotonic()) > 0 and not self.service.is_draining:
                self.rpc.wait(min(left, _LOOK_S))
                self.require()
        except BaseException:
            limits.give_back(self.user.name, rows)
            raise
        finally:
            self.service.metrics.throttled.inc(time.monotonic() - began)
