"""Whoever ends a command by SIGTERM, or closes its terminal, ends it as Ctrl-C does: nothing is left running."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_AS_CTRL_C = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ended_as_by_ctrl_c() -> Iterator[None]:
    """Meanwhile, unless a signal is ignored (`nohup`) or the command sees to it by itself.

    Once: a terminal that is closed may say so twice, and a second Ctrl-C would not wait for what is being put away.
    """
    told = False

    def interrupt(_: int, __: FrameType | None) -> None:
        nonlocal told
        if not told:
            told = True
            if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a script's command in the background
                raise KeyboardInterrupt
            signal.raise_signal(signal.SIGINT)

    mine = threading.current_thread() is threading.main_thread()  # no other hears of signals
    taken = [number for number in _AS_CTRL_C if mine and signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)
