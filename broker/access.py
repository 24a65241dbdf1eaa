"""Who calls, and what they may do: bearer tokens, and rights by role."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Sequence

from tagmatch.broker.config import Role, User
from tagmatch.broker.errors import UnauthenticatedError
from tagmatch.model.errors import AccessError

#: Where no users are configured, everyone is this one
ANYONE = User("anyone", "0" * 64, "admin")
#: Who shows no token, though there are users: may ask for the health of the service, and for nothing else
NOBODY = User("(no token)", "0" * 64)

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

    def of_token(self, token: str | None, *, or_nobody: bool = False) -> User:
        """The user of a token; with `or_nobody`, a call without a token is `NOBODY`'s.

        Raises
        ------
        UnauthenticatedError
            Nobody, or it has expired.
        """
        if not self._users:
            return ANYONE
        if token is None and or_nobody:
            return NOBODY
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


def require(user: User, role: Role, what: str) -> User:
    """See that a user has a right.

    Raises
    ------
    UnauthenticatedError, AccessError
        Nobody calls, the token has expired, or the role is too low.
    """
    if user is NOBODY:
        raise UnauthenticatedError("the call needs a token: the header `authorization: Bearer TOKEN`")
    if user.has_expired():
        raise UnauthenticatedError("the token has expired")
    if not user.may(role):
        raise AccessError(f"{what} needs the role {role!r}; user {user.name!r} has {user.role!r}")
    return user


def token_of(headers: Iterable[tuple[str, str | bytes]]) -> str | None:
    """The bearer token in the headers of a call, or `None`."""
    for name, value in headers:
        if name.lower() == _HEADER:
            text = value.decode(errors="replace") if isinstance(value, bytes) else value
            if text[: len(_SCHEME)].lower() == _SCHEME:
                return text[len(_SCHEME) :].strip()
    return None
