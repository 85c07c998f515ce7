"""Whether a Docker engine can start executions at all, asked before a run begins."""

import http.client
import json
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gyre.config_containers import DockerSection
from gyre.sandboxes.port import SandboxError

_LEAST = (1, 45)
_ANSWER_SECONDS = 10.0
_OK, _NOT_FOUND = 200, 404


def check_docker(chosen: DockerSection, image: str) -> None:
    """Ask the engine for its version and the image.

    A process in a container that is not given the socket, such as a stack's launcher, cannot know and asks nothing.

    Raises:
        SandboxError: one line with the way out.
    """
    if not Path(chosen.socket).exists() and Path("/.dockerenv").exists():
        return
    version = _asked(chosen.socket, "/version")[1]["ApiVersion"]
    if tuple(int(each) for each in version.split(".")) < _LEAST:
        raise SandboxError(f"docker: the engine at {chosen.socket} speaks API {version}, 1.45 is needed: Docker 26")
    for wanted in {image, chosen.door_image} - {""}:
        if chosen.pull == "never" and _asked(chosen.socket, f"/images/{quote(wanted)}/json")[0] == _NOT_FOUND:
            raise SandboxError(f"image {wanted}: is not on this machine; `docker pull {wanted}`, or let it be fetched")


def missing_images(chosen: DockerSection, images: Iterable[str]) -> list[str]:
    """Those that are not on the engine's machine; none where this process is not given the socket, as above.

    Raises:
        SandboxError: no engine answers.
    """
    if not Path(chosen.socket).exists() and Path("/.dockerenv").exists():
        return []
    return [each for each in images if _asked(chosen.socket, f"/images/{quote(each)}/json")[0] == _NOT_FOUND]


def _asked(path: str, what: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("docker", timeout=_ANSWER_SECONDS)
    connection.sock = socket.socket(socket.AF_UNIX)
    try:
        connection.sock.settimeout(_ANSWER_SECONDS)
        connection.sock.connect(path)
        connection.request("GET", what)
        answer = connection.getresponse()
        status, said = answer.status, json.loads(answer.read())
    except (OSError, ValueError, http.client.HTTPException) as error:
        way_out = "start one, or correct sandbox.docker.socket"
        raise SandboxError(f"docker: no engine answers at {path}: {error}; {way_out}") from error
    finally:
        connection.close()
    if status not in (_OK, _NOT_FOUND):
        raise SandboxError(f"docker: {said.get('message', status)}")
    return status, said
