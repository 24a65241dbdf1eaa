"""`tagmatch.connect`: a service, used as an index is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    from tagmatch.broker.client import RemoteTagMatch


def connect(
    url: str,
    *,
    token: str | None = None,
    tls_root_certs: bytes | None = None,
    cert_chain: bytes | None = None,
    private_key: bytes | None = None,
    timeout: float | None = None,
    wait: float = 0.0,
) -> RemoteTagMatch[Any]:
    """An index that a service (`tagmatch serve`) has, with the methods of `TagMatch`, over Arrow Flight.

    Parameters
    ----------
    url : str
        `grpc+tls://host:port`, or `grpc://host:port` without encryption.
    token : str, optional
        What the service knows the user by.
    tls_root_certs : bytes, optional
        Certificates, as PEM, of those that the certificate of the service may be signed by. Default: those of the
        machine.
    cert_chain, private_key : bytes, optional
        The certificate of the client, as PEM, and its key, where the service asks for them.
    timeout : float, optional
        Seconds that a call may take, but for those that match. Default: as long as it takes.
    wait : float
        Seconds to wait at most for a service that does not answer yet.

    Raises
    ------
    AccessError
        The service does not know the token.
    UnavailableError
        Nothing answers at `url`.
    InvalidTypeError, InvalidValueError
        An argument cannot be used.

    Examples
    --------
    >>> from tagmatch import TagMatch
    >>> from tagmatch.broker.running import serving
    >>> index = TagMatch()
    >>> with index, serving(index) as service, connect(service.url) as tm:
    ...     tm.add_set(["cat", "fr"], 7)
    ...     tm.consolidate()
    ...     tm.match(["cat", "dog", "fr"])
    1
    ChangeCounts(added=1, already_there=0, removed=0, missing=0)
    [7]
    """
    from tagmatch.broker.client import RemoteTagMatch
    from tagmatch.broker.connection import Connection

    return RemoteTagMatch(Connection(url, token, tls_root_certs, cert_chain, private_key, timeout), wait)
