"""A process from which services are born: it has imported what they need, and forks one whenever it is told to.

Importing takes a service about a second of processor time and a cell several; a fork takes milliseconds, and the memory
of what was imported is shared. It has neither threads nor an event loop: only so may it be forked at any time.
`services.births` starts it as `python -m services.nursery NAME FOLDER MODULES`, a socket as its standard input.
"""

import contextlib
import gc
import importlib
import logging
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import orjson

from services import runtime

MOST_BYTES = 1 << 16
"""Of one request: the words of a command line."""


def main(modules: Iterable[str]) -> None:
    """Import, then serve until the other end of the socket is closed."""
    for name in modules:
        with contextlib.suppress(ImportError):  # the service that needs it says so itself
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # no collection writes to what is shared
    with socket.socket(fileno=sys.stdin.fileno()) as desk, contextlib.suppress(ConnectionError):
        Nursery(desk).serve()


class Nursery:
    """Answers each request (words; standard error and leash as files) with a pid and a handle, and tells each end."""

    def __init__(self, desk: socket.socket) -> None:
        """`desk` keeps the boundaries of messages."""
        self._desk = desk
        self._rung, self._bell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def serve(self) -> None:
        """Until nobody is at the other end. Raises `ConnectionError` when it goes in the middle of an answer."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._bell)
        while True:
            ready = select.select([self._desk.fileno(), self._rung], [], [])[0]
            if self._rung in ready:
                os.read(self._rung, 4096)
                self._tell_ends()
            if self._desk.fileno() in ready and not self._answer():
                return

    def _answer(self) -> bool:
        """Whether somebody asked."""
        asked, files, _, _ = socket.recv_fds(self._desk, MOST_BYTES, 2)
        if asked:
            self._bear(files=files, **orjson.loads(asked))
        for file in files:
            os.close(file)
        return bool(asked)

    def _bear(self, number: int, words: list[str], files: Sequence[int]) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            self._tell({"number": number, "error": f"no process can be started: {error.strerror}"})
            return
        if pid == 0:
            self._leave()
            _live(words, *files)
        handle = os.pidfd_open(pid)
        self._tell({"number": number, "pid": pid}, handle)
        os.close(handle)

    def _leave(self) -> None:
        """In the new process: nothing of the nursery's stays."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._desk.detach()
        os.close(self._rung)
        os.close(self._bell)

    def _tell_ends(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                self._tell({"pid": found[0], "code": os.waitstatus_to_exitcode(found[1])})

    def _tell(self, said: dict[str, Any], *handles: int) -> None:
        socket.send_fds(self._desk, [orjson.dumps(said)], handles)


def _live(words: list[str], output: int, leash: int) -> NoReturn:
    """Be the service to the end of the process, which does not return into the nursery."""
    code = 1
    try:
        os.setsid()
        for place, file in enumerate((leash, output, output)):
            os.dup2(file, place)
        os.close(output)
        os.close(leash)
        _show_as(words)
        code = runtime.supervised(words)
    except BaseException:  # noqa: BLE001 (the edge of a process)
        traceback.print_exc()
    finally:
        logging.shutdown()
        sys.stderr.flush()
        os._exit(code)


def _show_as(words: Sequence[str]) -> None:
    """What `ps` and who looks for a run's processes find: the command line that starts the same service alone.

    It is written over the nursery's own, which is longer. A system that does not allow that shows the nursery's.
    """
    line = "\0".join((sys.executable, "-m", "services.runtime", *words)).encode()
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc_pid_stat(5)
        with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
            memory.seek(start)
            memory.write(line[: end - start - 1].ljust(end - start, b"\0"))
        Path("/proc/self/comm").write_text("-".join(("gyre", words[0], *words[2:3])))


if __name__ == "__main__":
    main(sys.argv[3].split(","))
