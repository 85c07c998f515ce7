"""Processes over which a trainer lays out its replica, one a rank; they end with the trainer that asked for them.

Each does what it is told, one thing at a time, and answers; all are told the same things in the same order, so that
collective operations meet. A rank that is lost is noticed at once, also while the others wait for it.
"""

import contextlib
import os
import pickle
import select
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from gyre.errors import GyreError
from gyre.process import give_back
from gyre.trainers.nodes import begin
from gyre.trainers.port import TrainerError

_END_SECONDS = 30.0
"""As long as a rank may take to end once its line is closed."""


class RankLost(TrainerError):
    """A rank ended; its cell has to be started anew."""


class Line:
    """A connection between a trainer and a rank that it started, who trust each other. Tensors travel by value."""

    def __init__(self, descriptor: int) -> None:
        """Of a socket."""
        self._connection = Connection(descriptor)

    def send(self, said: object) -> None:
        """Raises OSError when nobody is there."""
        self._connection.send_bytes(pickle.dumps(said, pickle.HIGHEST_PROTOCOL))

    def receive(self) -> Any:
        """Raises EOFError when the other has hung up."""
        return pickle.loads(self._connection.recv_bytes())  # noqa: S301 - a process of our own

    def fileno(self) -> int:
        """Of the socket: readable when something was said, or when the other has hung up."""
        return self._connection.fileno()

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


class RankProcesses:
    """The ranks of one trainer.

    Args:
        module: what a rank's process runs; it calls `serve`.
        orders: what each is made by, in the order of ranks.
        threads: of each.
    Raises:
        GyreError, ValueError: what one of them refused to be made of, or `NodeFailed`: no machine starts it.
        RankLost: one did not start; says how it ended.
    """

    def __init__(self, module: str, orders: Sequence[object], threads: int) -> None:
        self._ranks: list[_Rank] = []
        try:
            for number, each in enumerate(orders):
                self._ranks.append(_Rank(number, len(orders), module, each, threads))
            self.hear()
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._ranks)

    @property
    def processes(self) -> list[int]:
        """Their process ids."""
        return [each.process.pid for each in self._ranks]

    def ask(self, name: str, *arguments: Sequence[Any]) -> list[Any]:
        """Tell all ranks, each with arguments of its own if any, what to do.

        Returns:
            What each answers.
        Raises:
            TrainerError, OSError: what one of them refused, or could not write.
            RankLost: one ended.
        """
        for index, rank in enumerate(self._ranks):
            rank.tell(name, arguments[index] if arguments else ())
        return self.hear()

    def tell(self, name: str, arguments: Sequence[Any]) -> None:
        """Tell all ranks the same, without waiting for answers; raises `RankLost`."""
        for rank in self._ranks:
            rank.tell(name, arguments)

    def hear(self) -> list[Any]:
        """What each answers to what it was told first and has not answered yet; raises as `ask`."""
        return _refuse(self._answers())

    def close(self) -> None:
        """Hang up, by which they end."""
        for each in self._ranks:
            each.line.close()
        for each in self._ranks:
            each.end()

    def _answers(self) -> list[tuple[bool, Any]]:
        """Whether each has done it, and what it found, or why not; a rank that is gone is not waited for."""
        said: dict[int, tuple[bool, Any]] = {}
        waiting = {each.line.fileno(): each for each in self._ranks}
        while waiting:
            for ready in wait(list(waiting)):
                assert isinstance(ready, int)
                rank = waiting.pop(ready)
                said[rank.number] = rank.hear()
        return [said[each.number] for each in self._ranks]


def _refuse(answers: list[tuple[bool, Any]]) -> list[Any]:
    """What all found, unless one of them refused; what the system said goes first, others only suffer from it."""
    refused = [said for well, said in answers if not well]
    if refused:
        raise next((each for each in refused if isinstance(each, OSError)), refused[0])
    return [said for _, said in answers]


class _Rank:
    """A rank's process, and the line to it."""

    def __init__(self, number: int, count: int, module: str, orders: object, threads: int) -> None:
        self.process, descriptor = begin(module, number, count, threads)
        self.number = number
        self.line = Line(descriptor)
        with contextlib.suppress(OSError):  # it is gone already, which is heard next
            self.line.send(orders)

    def tell(self, name: str, arguments: Sequence[Any]) -> None:
        try:
            self.line.send((name, arguments))
        except OSError as error:
            raise self._lost() from error

    def hear(self) -> tuple[bool, Any]:
        try:
            said: tuple[bool, Any] = self.line.receive()
        except (EOFError, OSError) as error:
            raise self._lost() from error
        return said

    def _lost(self) -> RankLost:
        return RankLost(f"rank {self.number} {self.end()}: see what it printed before")

    def end(self) -> str:
        """How it ended, once it has, which it does when either side has hung up."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return f"ended with {self.process.wait(_END_SECONDS)}"
        self.process.kill()
        return f"did not end within {_END_SECONDS:g} s of hanging up, and was killed"


def serve(descriptor: int, make: Callable[[Any, str], object]) -> int:
    """Be a rank: do what the trainer says until it hangs up.

    Args:
        descriptor: of the socket whose other end it holds.
        make: the rank from its orders and the address of the trainer's machine; each of its public methods may be
            asked for.
    Returns:
        The process's exit code.
    """
    line = Line(descriptor)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the trainer is gone
        orders = line.receive()
        threading.Thread(target=_end_with, args=(descriptor,), name="trainer", daemon=True).start()
        try:
            rank = make(orders, _trainer(descriptor))
        except (GyreError, ValueError) as error:
            line.send((False, error))
            return 1
        line.send((True, None))
        while True:
            name, arguments = line.receive()
            try:
                said = (True, getattr(rank, name)(*arguments))
            except (TrainerError, OSError) as error:
                said = (False, error)
            line.send(said)
            del said, arguments
            give_back()
    return 0


def _trainer(descriptor: int) -> str:
    """Address of the machine at the other end of a line, as it is seen from here."""
    with socket.socket(fileno=os.dup(descriptor)) as line:
        return "127.0.0.1" if line.family == socket.AF_UNIX else str(line.getpeername()[0]).removeprefix("::ffff:")


def _end_with(descriptor: int) -> None:
    """End this process when the trainer has hung up, however that ended and whatever this one waits for."""
    hung_up = select.poll()
    hung_up.register(descriptor, select.POLLRDHUP)  # a trainer on another machine hangs up in one direction
    hung_up.poll()
    os._exit(0)
