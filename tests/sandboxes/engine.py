"""A Docker engine, where the machine has one."""

import http.client
import json
import os
import shutil
import socket
from pathlib import Path
from urllib.parse import quote

import pytest

SOCKET = Path(os.environ.get("GYRE_TEST_DOCKER", "/var/run/docker.sock"))
IMAGE = os.environ.get("GYRE_TEST_IMAGE", "python:3.11-slim-bookworm")
"""With a shell and python3."""


def asked(path: str) -> tuple[int, object]:
    """What the engine says: status and body."""
    connection = http.client.HTTPConnection("docker", timeout=10)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(10)
    try:
        connection.sock.connect(str(SOCKET))
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")
    finally:
        connection.close()


def forget(image: str) -> None:
    """Remove an image that a test had built; one that is not there is well."""
    connection = http.client.HTTPConnection("docker", timeout=30)
    connection.sock = socket.socket(socket.AF_UNIX)
    try:
        connection.sock.connect(str(SOCKET))
        connection.request("DELETE", f"/images/{quote(image)}?force=1")
        connection.getresponse().read()
    except OSError:
        pass  # no engine: nothing was built
    finally:
        connection.close()


def lacking() -> str:
    """Why no container can be started here; empty where one can."""
    try:
        status, _ = asked(f"/images/{IMAGE}/json")
    except OSError as error:
        return f"no Docker engine answers at {SOCKET}: {error}"
    return "" if status == 200 else f"the Docker engine has no image {IMAGE}"


WHY = lacking()
on_an_engine = pytest.mark.skipif(bool(WHY), reason=WHY or "there is one")
with_a_client = pytest.mark.skipif(not shutil.which("docker"), reason="the program docker is not installed")
