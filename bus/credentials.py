"""Passwords of a run's users: one file a user in the run folder, which its owner alone may read.

A process finds its own, in this order: in the URL that it was given; in the run folder (of a server that was started
for the run); in the folder that `GYRE_NATS_USERS` names, which holds such files too; in `GYRE_NATS_USER` and
`GYRE_NATS_PASSWORD`; and in what the run folder keeps for a server of somebody else's. With none of these it comes
without: a server that asks for nothing serves it all the same.
"""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

import orjson

from bus import users
from bus.private import write_private
from bus.server import NatsServer, Sync

FOLDER = "users"
USER, PASSWORD = "GYRE_NATS_USER", "GYRE_NATS_PASSWORD"
ELSEWHERE = "GYRE_NATS_USERS"
_REMOTE = "elsewhere"


class Login(NamedTuple):
    """Where to connect, and as whom; both empty: as nobody."""

    url: str
    user: str = ""
    password: str = ""

    def inbox(self, service: str) -> str:
        """Under which name answers come: a user's own, since it may listen nowhere else."""
        return self.user if self.user in users.USERS else service


def login(url: str, folder: Path, service: str, environment: Mapping[str, str] = os.environ) -> Login:
    """How this service connects to the server of the run in this folder."""
    bare = apart(url)
    if bare.user:
        return bare
    kept = _read(folder / FOLDER, service)
    if kept is None and environment.get(ELSEWHERE):
        kept = _read(Path(environment[ELSEWHERE]), service)
    if kept is None and environment.get(USER):
        kept = environment[USER], environment.get(PASSWORD, "")
    return Login(url, *(kept or _read(folder / FOLDER, _REMOTE) or ("", "")))


def apart(url: str) -> Login:
    """A URL without its user and password, beside them."""
    parts = urlsplit(url)
    if parts.username is None:
        return Login(url)
    host = parts.netloc.rpartition("@")[2]
    return Login(urlunsplit(parts._replace(netloc=host)), unquote(parts.username), unquote(parts.password or ""))


def keep(folder: Path, found: Login) -> None:
    """Keep the login of a server elsewhere, which `apart` took out of its URL, for all services of this folder."""
    _write(folder, _REMOTE, found.user, found.password)


def ensure(folder: Path, run: str) -> str:
    """The server configuration of all users of a run; passwords that are missing are made. Raises `OSError`."""
    return users.authorization(run, lambda user: _quoted(password(folder, user)))


def password(folder: Path, user: str) -> str:
    """A user's password; a new one if there was none."""
    kept = _read(folder / FOLDER, user)
    if kept is not None:
        return kept[1]
    made = secrets.token_hex(24)
    _write(folder, user, user, made)
    return made


def forget(folder: Path) -> None:
    """Drop the passwords of a run: its server makes others when it starts again."""
    for user in users.USERS:
        (folder / FOLDER / f"{user}.json").unlink(missing_ok=True)


def server_of(folder: Path, run: str, sync: Sync) -> NatsServer:
    """The server that a run has for itself, not started yet; it knows the run's users."""
    return NatsServer(folder / "nats", sync, authorization=lambda: ensure(folder, run))


def _read(folder: Path, user: str) -> tuple[str, str] | None:
    try:
        kept = orjson.loads((folder / f"{user}.json").read_bytes())
        return str(kept["user"]), str(kept["password"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(folder: Path, name: str, user: str, password: str) -> None:
    (folder / FOLDER).mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(folder / FOLDER / f"{name}.json", orjson.dumps({"user": user, "password": password}).decode() + "\n")


def _quoted(text: str) -> str:
    return orjson.dumps(text).decode()
