"""The server of `robolearn prefer`: addresses, errors that the page is told, and downloads that are dropped."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from robolearn.commands.prefer.server import HEADER, Server
from robolearn.errors import ConfigError


def state(content: dict[str, Any]) -> dict[str, Any]:
    return {"answered": 0}


def fails(content: dict[str, Any]) -> dict[str, Any]:
    raise ConfigError("cannot write 'preferences.jsonl': No space left on device")


def odd(content: dict[str, Any]) -> dict[str, Any]:
    raise KeyError("no such thing")


@contextmanager
def served(videos: Path, host: str = "127.0.0.1") -> Iterator[tuple[Server, int]]:
    with closing(Server({"/state": state, "/answer": fails, "/odd": odd}, videos, host)) as server:
        yield server, int(server.url.rpartition(":")[2])


def post(port: int, path: str) -> tuple[int, dict[str, Any]]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as link:
        link.request("POST", path, b"{}", {HEADER: "1"})
        response = link.getresponse()
        return response.status, json.loads(response.read())


def test_an_error_of_an_answer_is_told_to_the_page_and_the_server_goes_on(tmp_path):
    with served(tmp_path) as (_, port):
        status, said = post(port, "/answer")
        assert status == 500
        assert "No space left on device" in said["error"]
        assert post(port, "/state") == (200, {"answered": 0})


def test_another_error_is_said_in_a_line(tmp_path, capsys):
    with served(tmp_path) as (_, port):
        with pytest.raises(http.client.HTTPException):
            post(port, "/odd")
        assert post(port, "/state") == (200, {"answered": 0})
    said = capsys.readouterr().err
    assert "KeyError" in said
    assert "Traceback" not in said


def test_a_dropped_download_prints_nothing(tmp_path, capsys, monkeypatch):
    (tmp_path / "a.mp4").write_bytes(bytes(50_000_000))
    with served(tmp_path) as (server, port):
        ended = threading.Event()
        inner = server._server.handle_error
        monkeypatch.setattr(server._server, "handle_error", lambda *given: (inner(*given), ended.set()))
        with socket.create_connection(("127.0.0.1", port), timeout=60) as link:
            link.sendall(b"GET /videos/a.mp4 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            link.recv(100)
            # Closes with a reset, as a browser does that is closed while it loads.
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert ended.wait(60)
        assert post(port, "/state") == (200, {"answered": 0})
    assert capsys.readouterr().err == ""


def test_the_server_listens_on_an_address_of_ipv6(tmp_path):
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    with served(tmp_path, "::1") as (server, port):
        assert server.url == f"http://[::1]:{port}"
        with closing(http.client.HTTPConnection("::1", port, timeout=60)) as link:
            link.request("GET", "/state")
            assert link.getresponse().status == 200
