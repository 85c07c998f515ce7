"""The end of a command's output, read without letting a flood of it take the processor from others."""

import asyncio
import fcntl
import os
import sys
import termios

from gyre.sandboxes.port import OUTPUT_BYTES

_BREATH_SECONDS = 0.02  # after a full read: at most 64 KiB in this time


class Tail:
    """Reads a pipe as it fills and keeps the last 64 KiB."""

    def __init__(self) -> None:
        """Open the pipe; `close` it."""
        self._source, self.sink = os.pipe()
        os.set_blocking(self._source, False)
        self._kept = bytearray()
        self.total = 0
        """Bytes read so far."""
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._listen()

    def started(self) -> None:
        """The command has its end of the pipe now: give up ours."""
        os.close(self.sink)
        self.sink = -1

    def close(self) -> bytes:
        """What was kept, with what still lies in the pipe; nobody reads on."""
        self._stop()
        if self._pause is not None:
            self._pause.cancel()
        if self.sink >= 0:
            os.close(self.sink)
        lies = int.from_bytes(fcntl.ioctl(self._source, termios.FIONREAD, bytes(4)), sys.byteorder)
        while lies > 0 and (size := self._take()) > 0:  # what others write meanwhile is not waited for
            lies -= size
        os.close(self._source)
        return bytes(self._kept)

    def _listen(self) -> None:
        self._loop.add_reader(self._source, self._ready)

    def _stop(self) -> None:
        self._loop.remove_reader(self._source)

    def _ready(self) -> None:
        size = self._take()
        if size in (0, OUTPUT_BYTES):
            self._stop()
        if size == OUTPUT_BYTES:
            self._pause = self._loop.call_later(_BREATH_SECONDS, self._listen)

    def _take(self) -> int:
        """Bytes read; 0 at the end, -1 when there is nothing now."""
        try:
            piece = os.read(self._source, OUTPUT_BYTES)
        except BlockingIOError:
            return -1
        self._kept += piece
        self.total += len(piece)
        del self._kept[:-OUTPUT_BYTES]
        return len(piece)
