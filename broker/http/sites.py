"""Pages of other sites: which may ask the service, and what browsers are told of that."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import TYPE_CHECKING

from tagmatch.broker.http.bodies import NOTE, Answer, Headers, RefusedError

if TYPE_CHECKING:
    from tagmatch.broker.config import Config
    from tagmatch.broker.http.call import HttpCall

_EXPOSED = b"etag, retry-after, idempotent-replayed, " + NOTE
# Seconds for which a browser need not ask again
_KNOWN_S = 600


class Sites:
    """Sites whose pages may ask: those of the configuration; of a service with tokens, pages that have one."""

    def __init__(self, config: Config) -> None:
        self._origins = frozenset(each.encode() for each in config.http.origins or ())
        self._is_open = not config.users
        # A name that leads to this machine may be any site's, whose pages browsers then take for ours
        self._only_local = self._is_open and config.server.is_local

    def check(self, call: HttpCall) -> None:
        """Refuse pages of other sites if the service asks for no token: browsers let them send."""
        if not self._is_open:
            return
        headers = call.headers
        origin, host = headers.get(b"origin"), headers.get(b"host", b"")
        if self._only_local and not _is_local(host):
            raise RefusedError(
                421,
                f"the header Host must name this machine, such as localhost, not {host[:60].decode('latin-1')!r}: "
                "a service without tokens is for no other; give it [[users]]",
            )
        if origin is None:  # as browsers send what a page only embeds, such as an image, and links
            is_others = headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site")
        else:
            is_others = origin.partition(b"://")[2] != host and origin not in self._origins
        if is_others:
            site = "another site" if origin is None else repr(origin[:60].decode("latin-1"))
            raise RefusedError(
                403, f"a page of {site} may not ask a service without tokens; give it [[users]], or [http] origins"
            )

    def tell(self, call: HttpCall) -> None:
        """Let the answer go to a page that may have it."""
        origin = call.headers.get(b"origin")
        if origin is not None and origin in self._origins:
            call.more_headers = [
                (b"access-control-allow-origin", origin),
                (b"access-control-expose-headers", _EXPOSED),
                (b"vary", b"origin"),
            ]

    def permission(self, call: HttpCall, methods: list[str]) -> Answer:
        """What may be asked at a path, which browsers ask before they do."""
        allowed = ", ".join([*methods, "OPTIONS"]).encode()
        headers: Headers = [(b"allow", allowed)]
        if call.more_headers and b"access-control-request-method" in call.headers:
            wanted = call.headers.get(b"access-control-request-headers", b"")
            headers += [
                (b"access-control-allow-methods", allowed),
                (b"access-control-max-age", b"%d" % _KNOWN_S),
                *([(b"access-control-allow-headers", wanted)] if wanted else []),
            ]
        return Answer(b"", 204, headers=headers)


@lru_cache(maxsize=256)
def _is_local(host: bytes) -> bool:
    """Whether a header `host` names this machine, under any of its names; a missing one does, too."""
    text = host.decode("latin-1").lower()
    name = text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0].rstrip(".")
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return not host or name == "localhost" or name.endswith(".localhost")
