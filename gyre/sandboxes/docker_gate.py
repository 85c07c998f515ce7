"""The gate before a command in a container: it begins once the engine is heard to pass its output on.

An engine opens a container's stdout and stderr in its own time, and where the container ends before that (a short one
on a busy machine) it throws away all that was written, and says nothing: the stream that it gives ends as any other. So
a shell, with nothing but what is built into it, says a word on both, stops itself, and becomes the command when it is
told to go on.
"""

import asyncio
from collections.abc import AsyncIterator

SHELL = "/bin/sh"
_SCRIPT = 'echo "$0"; echo "$0" >&2; kill -STOP $$; echo "$0"; exec "$@"'
_STDOUT, _STDERR = 1, 2


class Gate:
    """One command's; what is said at it is no output."""

    def __init__(self, word: str = "") -> None:
        """Shut until its word is heard; with none it stands open."""
        self._word, self._line = word, f"{word}\n".encode()
        self._wanted = {_STDOUT: 2, _STDERR: 1} if word else {_STDOUT: 0, _STDERR: 0}
        self._held = dict.fromkeys(self._wanted, b"")
        self.heard, self.passed = asyncio.Event(), asyncio.Event()
        """Set when both streams are passed on, and when the command begins; both where that cannot come any more."""
        self.over = False
        """Whether all was over before the command began."""
        self._look()

    def before(self, arguments: tuple[str, ...]) -> tuple[str, ...]:
        """What to start for a command to wait here; itself, where it stands open."""
        return (SHELL, "-c", _SCRIPT, self._word, *arguments) if self._word else arguments

    async def after(self, frames: AsyncIterator[tuple[int, bytes]]) -> AsyncIterator[bytes]:
        """What a command writes, of all that its container does."""
        try:
            async for stream, piece in frames:
                if said := self._without_words(stream, piece):
                    yield said
        finally:
            self.over = not self.passed.is_set()
            self.heard.set()
            self.passed.set()
        for held in self._held.values():
            if held:
                yield held

    def _without_words(self, stream: int, piece: bytes) -> bytes:
        if not self._wanted.get(stream):
            return piece
        held = self._held[stream] + piece
        while self._wanted[stream] and self._line in held:
            held = held.replace(self._line, b"", 1)
            self._wanted[stream] -= 1
        self._look()
        self._held[stream], said = (held, b"") if self._wanted[stream] else (b"", held)
        return said

    def _look(self) -> None:
        if self._wanted[_STDOUT] <= 1 and not self._wanted[_STDERR]:
            self.heard.set()
        if not self._wanted[_STDOUT]:
            self.passed.set()
