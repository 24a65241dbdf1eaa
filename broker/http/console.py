"""The console: files of the page that browsers show, which calls the service as any client does, with a token."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from importlib.resources import files

from tagmatch.broker.http.bodies import Answer, Headers
from tagmatch.broker.http.call import HttpCall

_KINDS = {
    "css": b"text/css; charset=utf-8",
    "html": b"text/html; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "json": b"application/json",
    "svg": b"image/svg+xml",
}
# Nothing but files of the service itself; no page may show the console in a frame
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Headers = [
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
]


def _file(answer: Answer, call: HttpCall) -> Answer:
    known = dict(answer.headers)[b"etag"].decode()
    return Answer(b"", 304, answer.kind, answer.headers) if call.header("if-none-match") == known else answer


def _moved(_: HttpCall) -> Answer:
    return Answer(b"", 307, _KINDS["html"], [(b"location", b"/console/")])


def _answer(name: str, body: bytes) -> Answer:
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'.encode()
    return Answer(body, 200, _KINDS[name.rpartition(".")[2]], [*_HEADERS, (b"etag", tag)])


def _pages() -> dict[str, Answer]:
    folder = files("tagmatch.broker") / "console"
    return {each.name: _answer(each.name, each.read_bytes()) for each in folder.iterdir() if "." in each.name}


#: What answers, by path
PAGES: dict[str, Callable[[HttpCall], Answer]] = {
    f"/console/{name}": partial(_file, answer) for name, answer in _pages().items()
}
PAGES |= {"/console/": PAGES.pop("/console/index.html"), "/console": _moved, "/": _moved}
