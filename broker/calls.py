"""One call of a client: who it is from, and what of the service it needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tagmatch.broker.access import require
from tagmatch.broker.config import Role, User

if TYPE_CHECKING:
    from tagmatch.broker.service import Service


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
    peer : str
        Where it comes from.
    """

    service: Service
    user: User
    role: Role
    what: str
    peer: str

    def require(self) -> None:
        """See that the right is still there; errors as `access.require`."""
        require(self.user, self.role, self.what)

    def keep_to_rate(self, rows: int) -> None:
        """Wait until so many rows are within the rate of the user, or the service ends."""
        if (seconds := self.service.limits.wait_for(self.user.name, rows)) > 0:
            self.service.metrics.throttled.inc(seconds)
            self.service.wait_for_drain(seconds)
