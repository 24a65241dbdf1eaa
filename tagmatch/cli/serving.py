"""`tagmatch serve | token`: an index for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tagmatch.cli.shared import argument, option, user_path
from tagmatch.model.options import Order


def _optional_index(text: str | None) -> str | None:
    if text is None:
        return None
    from tagmatch.model.storage.repository import location_of

    return location_of(text, "INDEX").address


#: What the extra `serve` brings
_PACKAGES = {"grpc": "grpcio", "prometheus_client": "prometheus-client"}


def require_packages() -> None:
    """Check for the packages of a service, before anything else takes time or goes to a log; TagMatchError."""
    from importlib.util import find_spec

    from tagmatch.model.errors import TagMatchError

    missing = [package for module, package in _PACKAGES.items() if find_spec(module) is None]
    if missing:
        what = " and ".join(missing)
        raise TagMatchError(f"the service needs {what}; install it with: pip install 'tagmatch[serve]'")


def serve(
    index: Annotated[
        str | None,
        argument(
            "INDEX",
            "Folder of the index, or its URI on a store.  [default: `path` in [index] of the configuration]",
            callback=_optional_index,
        ),
    ] = None,
    config: Annotated[
        str | None,
        option("The configuration, in TOML.", metavar="FILE", callback=lambda text: text and user_path(text)),
    ] = None,
    host: Annotated[str | None, option("Address to listen on.", default="127.0.0.1")] = None,
    port: Annotated[
        int | None,
        option("Port; 0: any that is free.", default="8815", min=0, max=65_535),
    ] = None,
    channel: Annotated[
        list[str] | None,
        option(
            "A class of messages, which clients name: they are answered within DEADLINE, such as 250us, 5ms, 2s "
            "or 1min, from when they come. Without it they are never late, and go behind all others. Where "
            "deadlines are equal, the higher PRIORITY goes first; it is 0 if not given. Give the option once for "
            "each channel: --channel alarm:5ms:1 --channel bulk:2s. One takes the place of the [[channel]] of "
            "its name in the configuration, which also has latency_budget and expiry.",
            metavar="NAME[:DEADLINE[:PRIORITY]]",
        ),
    ] = None,
    order: Annotated[
        Order | None,
        option(
            "In which order messages of channels are matched. fifo: as they come; deadlines are only measured. "
            "edf: the earliest deadline first; what cannot be in time is refused or dropped, and its client gets "
            'an error. dfgs: as "Pub/Sub on Stream" (DEBS 2012) has it.',
            default="fifo",
        ),
    ] = None,
    check: Annotated[bool, option("Only check the configuration.", "--check")] = False,
) -> None:
    """Serve an index over Arrow Flight, until SIGTERM or Ctrl-C; what is under way then is still answered."""
    import os

    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what goes wrong is said in one line, or logged
    require_packages()
    from tagmatch.broker.config import Config
    from tagmatch.broker.config_file import check_files, read_config
    from tagmatch.broker.running import notes_on, run, with_arguments
    from tagmatch.model.options import channel_of

    channels = [channel_of(text) for text in channel or ()]
    found = with_arguments(Config() if config is None else read_config(config), index, host, port, channels, order)
    found.check_exposure()
    check_files(found, config)
    if check:
        name = config or "the configuration"
        typer.echo(f"{name}: ok")
        for note in notes_on(found):
            typer.echo(f"{name}: {note}", err=True)
        return
    run(found, lambda line: typer.echo(f"tagmatch: {line}"))


def token(
    name: Annotated[str, typer.Argument(help="Name of the user.", show_default=False)] = "someone",
    role: Annotated[str, option("What the user may do: read, write or admin.")] = "read",
    output: Annotated[
        Path | None,
        option("Write the token to this new file, which only you can read, and do not print it.", "--output", "-o"),
    ] = None,
) -> None:
    """Make a token for a user, and print what the configuration of the service needs to know of it."""
    from tagmatch.broker.access import new_token
    from tagmatch.broker.config import ROLES

    if role not in ROLES:
        raise typer.BadParameter(f"{role!r} is none of {', '.join(ROLES)}", param_hint="--role")
    if '"' in name or "\\" in name or not name.isprintable():
        raise typer.BadParameter("it must be a plain name", param_hint="NAME")
    made, digest = new_token()
    if output is None:
        typer.echo(f"# the token, for the client only: {made}")
    else:
        _write_token(output, made)
    typer.echo(f'[[users]]\nname = "{name}"\ntoken_sha256 = "{digest}"\nrole = "{role}"')


def _write_token(output: Path, made: str) -> None:
    """Write a token to a new file, or to a stream."""
    import os

    from tagmatch.files.formats import is_stream
    from tagmatch.model.errors import TagMatchError

    new = 0 if is_stream(str(output)) else os.O_CREAT | os.O_EXCL
    try:
        with open(os.open(output, os.O_WRONLY | new, 0o600), "w") as file:
            file.write(f"{made}\n")
    except FileExistsError:
        raise TagMatchError(
            f"{output} is there already, most likely with a token in use; give another name, or remove it first"
        ) from None
