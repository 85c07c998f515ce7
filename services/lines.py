"""Lines of stdin without a thread: a prompt that waits neither stops the event loop nor survives Ctrl-C."""

import asyncio
import io
import os
import sys

_CHUNK = 1 << 16


class Lines:
    """Reads stdin line by line; call it for the next one."""

    def __init__(self) -> None:
        """Read from now on what nobody has read."""
        self._buffer = b""
        try:
            self._fd = sys.stdin.fileno()
        except io.UnsupportedOperation:  # no file of the system's: all that it will say is there
            self._fd = -1

    async def __call__(self) -> str:
        """The next line with its end; "" at the end of the input."""
        if self._fd < 0:
            return sys.stdin.readline()
        while b"\n" not in self._buffer:
            await self._readable()
            data = os.read(self._fd, _CHUNK)
            if not data:
                rest, self._buffer = self._buffer, b""
                return rest.decode(errors="replace")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return f"{line.decode(errors='replace')}\n"

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        try:
            loop.add_reader(self._fd, ready.set)
        except PermissionError:  # a regular file: it can always be read
            return
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._fd)
