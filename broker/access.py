"""Who calls, and what they may do: bearer tokens, and rights by role."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Sequence
from typing import Any

from pyarrow import flight

from tagmatch.broker.config import Role, User
from tagmatch.broker.errors import UnauthenticatedError, flight_error
from tagmatch.model.errors import AccessError, TagMatchError

#: Under this name, a call finds who it is from
MIDDLEWARE = "access"
#: Where no users are configured, everyone is this one
ANYONE = User("anyone", "0" * 64, "admin")

_HEADER, _SCHEME = "authorization", "bearer "
_LONGEST = 4096


def new_token() -> tuple[str, str]:
    """A token that nobody can guess, and the SHA-256 that a configuration has of it."""
    token = secrets.token_urlsafe(32)
    return token, token_sha256(token)


def token_sha256(token: str) -> str:
    """What a configuration has of a token.

    Examples
    --------
    >>> token_sha256("secret")[:16]
    '2bb80d537b1da3e3'
    """
    return hashlib.sha256(token.encode()).hexdigest()


class Users:
    """The users of a service.

    Parameters
    ----------
    users : sequence of User
        None: everyone may do everything.
    """

    def __init__(self, users: Sequence[User]) -> None:
        self._users = tuple(users)

    def of_token(self, token: str | None) -> User:
        """Who has a token.

        Raises
        ------
        UnauthenticatedError
            Nobody, or it has expired.
        """
        if not self._users:
            return ANYONE
        if token is None or len(token) > _LONGEST:
            raise UnauthenticatedError("the call needs a token: the header `authorization: Bearer TOKEN`")
        digest, found = token_sha256(token), None
        for user in self._users:  # all of them, so that the time tells nothing
            if hmac.compare_digest(digest, user.token_sha256):
                found = user
        if found is None:
            raise UnauthenticatedError("the token is not known")
        if found.has_expired():
            raise UnauthenticatedError("the token has expired")
        return found


def require(user: User | None, role: Role, what: str) -> User:
    """See that a user has a right.

    Raises
    ------
    UnauthenticatedError, AccessError
        There is none, the token has expired meanwhile, or the role is too low.
    """
    if user is None:
        raise UnauthenticatedError("the call needs a token: the header `authorization: Bearer TOKEN`")
    if user.has_expired():
        raise UnauthenticatedError("the token has expired")
    if not user.may(role):
        raise AccessError(f"{what} needs the role {role!r}; user {user.name!r} has {user.role!r}")
    return user


class CallerMiddleware(flight.ServerMiddleware):  # type: ignore[misc]
    """Who one call is from; `None` if it says nothing of that."""

    def __init__(self, user: User | None) -> None:
        super().__init__()
        self.user = user


class Access(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses calls without a token before they begin, but for actions, of which health needs none.

    Parameters
    ----------
    users : Users
    refused : callable
        Called with the error of each call that is refused.
    """

    def __init__(self, users: Users, refused: Callable[[TagMatchError], None]) -> None:
        super().__init__()
        self._users, self._refused = users, refused

    def start_call(self, info: Any, headers: dict[str, list[Any]]) -> CallerMiddleware:
        """Find out who calls."""
        token = _token(headers)
        try:
            return CallerMiddleware(self._users.of_token(token))
        except UnauthenticatedError as error:
            if token is None and info.method == flight.FlightMethod.DO_ACTION:
                return CallerMiddleware(None)
            self._refused(error)
            raise flight_error(error) from None


def _token(headers: dict[str, list[Any]]) -> str | None:
    """The bearer token in the headers of a call, where there is one."""
    for name, values in headers.items():
        if name.lower() == _HEADER:
            for value in values:
                text = value.decode(errors="replace") if isinstance(value, bytes) else value
                if text[: len(_SCHEME)].lower() == _SCHEME:
                    return str(text[len(_SCHEME) :].strip())
    return None
