"""The page that shows two films side by side, and takes the answers. It needs no network."""

from __future__ import annotations

import json
import re
import socket
import sys
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

from robolearn.commands.viewer.server import ANY, HOST, free_port
from robolearn.errors import ConfigError, MissingError, RunFailed, one_line

HERE = Path(__file__).parent
FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
}
LARGEST = 4096
"""Bytes of a request's content."""
HEADER = "X-RoboLearn"
"""The page sends this header with each answer. A page of another site cannot."""

Action = Callable[[dict[str, Any]], dict[str, Any]]
"""From the content of a request to the state of the session, which the page shows."""


class Server:
    """Serves the page in threads of its own, until closed."""

    def __init__(
        self, actions: Mapping[str, Action], videos: Path, host: str = HOST, port: int | None = None
    ) -> None:
        """
        Args:
            actions: by path, `/state` and what the page asks for with POST.
            videos: folder of the films.
            host: address to listen on.
            port: that port; None: 8080, or the next one that is free.

        Raises:
            ConfigError: the port is in use, or the machine has no such address.
        """
        chosen = free_port(host, port)

        class Handler(_Handler):
            """Requests of this server."""

        Handler.actions, Handler.videos = actions, videos
        shown = f"[{host}]" if ":" in host else host
        Handler.hosts = None if host in ANY else {shown.lower(), "localhost", "127.0.0.1", "[::1]"}

        class Listening(_Listening):
            """Listens on an address of the host's kind."""

            address_family = socket.getaddrinfo(host or None, chosen, type=socket.SOCK_STREAM)[0][0]

        self._server = Listening((host, chosen), Handler)
        self.url = f"http://{'127.0.0.1' if host in ANY else shown}:{chosen}"
        self._thread = Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Listening(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say in one line what ended a request; a browser that went away is nothing to say."""
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            why = f"{type(error).__name__}: {one_line(str(error), 200)}"
            print(f"a request of {client_address[0]} failed ({why})", file=sys.stderr, flush=True)


class _Handler(BaseHTTPRequestHandler):
    actions: Mapping[str, Action]
    videos: Path
    hosts: set[str] | None
    """Names by which a browser may call the server; None: any. Others are pages that had their name point here."""

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if not self._called_by_name():
            self._send(HTTPStatus.FORBIDDEN, b"", "text/plain")
        elif path in FILES:
            name, kind = FILES[path]
            self._send(HTTPStatus.OK, (HERE / name).read_bytes(), kind)
        elif path == "/state":
            self._act(path, {})
        elif match := re.fullmatch(r"/videos/([A-Za-z0-9][A-Za-z0-9_.-]{0,119})\.mp4", path):
            file = self.videos / f"{match[1]}.mp4"
            found = file.read_bytes() if file.is_file() else None
            status = HTTPStatus.NOT_FOUND if found is None else HTTPStatus.OK
            self._send(status, found or b"", "video/mp4")
        else:
            self._send(HTTPStatus.NOT_FOUND, b"", "text/plain")

    def do_POST(self) -> None:
        path = urlsplit(self.path).path
        length = self.headers.get("Content-Length", "")
        if not self._called_by_name() or HEADER not in self.headers:
            self._send(HTTPStatus.FORBIDDEN, b"", "text/plain")
        elif path not in self.actions or not length.isdigit() or int(length) > LARGEST:
            self._send(HTTPStatus.BAD_REQUEST, b"", "text/plain")
        else:
            try:
                content = json.loads(self.rfile.read(int(length)) or b"{}")
            except ValueError:
                content = None
            if isinstance(content, dict):
                self._act(path, content)
            else:
                self._send(HTTPStatus.BAD_REQUEST, b"", "text/plain")

    def _act(self, path: str, content: dict[str, Any]) -> None:
        try:
            status, state = HTTPStatus.OK, self.actions[path](content)
        except (ConfigError, MissingError, RunFailed, OSError) as error:
            status, state = HTTPStatus.INTERNAL_SERVER_ERROR, {"error": one_line(str(error), 400)}
        self._send(status, json.dumps(state).encode(), "application/json")

    def _called_by_name(self) -> bool:
        name = self.headers.get("Host", "").lower()
        return self.hosts is None or re.sub(r":\d+\Z", "", name) in self.hosts

    def _send(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header(
            "Content-Security-Policy", "default-src 'self'; img-src 'self' data:; media-src 'self' blob:"
        )
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not printed."""
