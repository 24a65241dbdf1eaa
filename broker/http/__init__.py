"""The service over HTTP: its routes, the bodies of requests and answers, and the server."""

from tagmatch.model.errors import TagMatchError

try:
    import httptools  # noqa: F401
    import uvloop  # noqa: F401
    import websockets  # noqa: F401
except ImportError:
    raise TagMatchError(
        "HTTP needs httptools, uvloop and websockets; install them with: pip install 'tagmatch[serve]'"
    ) from None
