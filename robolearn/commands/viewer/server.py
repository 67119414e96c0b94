"""The viewer's web server: which address and port, and what it prints."""

from __future__ import annotations

import errno
import io
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, redirect_stdout
from typing import TYPE_CHECKING

from robolearn.errors import ConfigError, MissingError, quote

if TYPE_CHECKING:
    import viser

HOST, PORT = "127.0.0.1", 8080
"""Where the viewer listens unless told otherwise: to this machine only, because who reaches it may command it."""

TRIED = 100
"""How many ports after PORT are tried where no port is asked for."""

ANY = ("0.0.0.0", "::", "")
"""Hosts that stand for every address of the machine."""


def require_viser() -> None:
    """Check that the viewer's packages are installed.

    Raises:
        MissingError: one is not.
    """
    try:
        import mjviser  # noqa: F401
        import viser  # noqa: F401
    except ImportError as error:
        raise MissingError(
            f"the viewer needs viser and mjviser ({error}): pip install 'robolearn[viewer]', or write a video with "
            "--video FILE.mp4"
        ) from error


def open_server(host: str = HOST, port: int | None = None, label: str = "RoboLearn") -> viser.ViserServer:
    """A running web server.

    Args:
        host: address to listen on.
        port: that port and no other; None: PORT, or the next one that is free.
        label: title of the panel.

    Raises:
        ConfigError: the port is in use or not allowed, or the machine has no such address.
        MissingError: viser is not installed.
    """
    require_viser()
    import viser

    chosen = free_port(host, port)
    with _quiet():
        server = viser.ViserServer(host=host, port=chosen, label=label, verbose=False)
    if port is not None and server.get_port() != port:  # another process took it in between
        stop(server)
        raise _in_use(port)
    return server


def stop(server: viser.ViserServer) -> None:
    """Stop a server and its threads."""
    with _quiet():
        server.stop()


def free_port(host: str, port: int | None) -> int:
    """A port on which nothing listens: `port`, or without one the first that is free from PORT on.

    Raises:
        ConfigError: there is none, or the machine has no address `host`.
    """
    for candidate in range(PORT, PORT + TRIED) if port is None else (port,):
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host or None, candidate, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            with closing(socket.socket(family, kind, protocol)) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
                probe.listen(1)
            return candidate
        except socket.gaierror as error:
            raise _no_host(host, str(error.strerror)) from None
        except UnicodeError:
            raise _no_host(host, "it is no name of a host") from None
        except OSError as error:
            if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise _no_host(host, "this machine has no such address") from None
            if error.errno in (errno.EACCES, errno.EPERM):
                raise ConfigError(f"--port {candidate}: no permission; choose one of 1024 to 65535") from None
            if error.errno != errno.EADDRINUSE:
                raise
    if port is None:
        raise ConfigError(f"the ports {PORT} to {PORT + TRIED - 1} are all in use; name another with --port")
    raise _in_use(port)


def _in_use(port: int) -> ConfigError:
    return ConfigError(
        f"--port {port} is in use by another process; choose another, or leave --port out to get a free one"
    )


def _no_host(host: str, why: str) -> ConfigError:
    return ConfigError(
        f"--host {quote(host)}: {why}; valid: {HOST} for this machine only, 0.0.0.0 for the network, or one of this "
        "machine's addresses"
    )


def address(host: str, port: int) -> str:
    """What to tell the user: one URL, and for a viewer that is open to the network, this machine's address there."""
    if host not in ANY:
        shown = f"[{host}]" if ":" in host else host
        return f"http://{'localhost' if host in (HOST, '::1') else shown}:{port}"
    here = f"http://localhost:{port}"
    outside = network_address()
    return f"{here} (from this network, at {outside}, port {port})" if outside else here


def network_address() -> str | None:
    """This machine's address in its network; None without a network."""
    try:
        with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
            probe.connect(
                ("192.0.2.1", 9)
            )  # of no machine (RFC 5737); UDP sends nothing here, it only picks a route
            found = str(probe.getsockname()[0])
    except OSError:
        return None
    return None if found.startswith(("127.", "0.")) else found


@contextmanager
def _quiet() -> Iterator[None]:
    """Without viser's own messages: the command prints one URL."""
    with redirect_stdout(io.StringIO()):
        yield
