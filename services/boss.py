"""The wire between `gyre attach` and the process of a consumer: a line of JSON a message, on a socket of their own."""

import asyncio
import json
import socket
from typing import Any

from pydantic import BaseModel, ConfigDict

from bus.errors import Unavailable
from gyre.errors import GyreError
from services.ending import Ending


class Hello(BaseModel):
    """What the process of a consumer is told first."""

    model_config = ConfigDict(frozen=True)

    consumer: str
    """`module:Class` or `file.py:Class`."""
    options: dict[str, str]
    begin: str
    """`start`, `now` or a sequence, where no position is kept."""
    position: str
    """Path of the file that keeps the position; "" for none."""
    archive: str = ""
    """Path of an archive; then nothing below is there."""
    run: str = ""
    url: str = ""
    user: str = ""
    """Whose inbox and consumers."""
    login: str = ""
    """As whom to connect: `user`, or "" where the server knows no users. Each answer tells it anew."""
    password: str = ""
    blobs: str = ""
    """Folder of the run's blobs."""
    heads: dict[str, int] = {}
    """Log -> its last sequence when it began."""


class GoneError(GyreError):
    """The other end is not there any more."""


class Boss(Ending):
    """The consumer's end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Use `open`."""
        super().__init__()
        self._reader, self._writer = reader, writer
        self._answers: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        self.login = ("", "")
        """User and password, as they are now."""
        self._turn = asyncio.Lock()

    @classmethod
    async def open(cls, descriptor: int) -> "Boss":
        """Over the socket that was inherited."""
        return cls(*await asyncio.open_connection(sock=socket.socket(fileno=descriptor)))

    async def hello(self) -> Hello:
        """What to do: the first line. Raises `GoneError`."""
        if not (line := await self._reader.readline()):
            raise GoneError("gyre attach has gone; this consumer ends")
        hello = Hello.model_validate_json(line)
        self.login = hello.login, hello.password
        return hello

    async def listen(self) -> None:
        """Hear until the other end is gone. Raises `GoneError`: that ends this side too."""
        while line := await self._reader.readline():
            said = json.loads(line)
            if "until" in said:
                self.until |= said["until"]
                self.news.set()
            else:
                self._answers.put_nowait(said)
        raise GoneError("gyre attach has gone; this consumer ends")

    async def ask(self, **words: str | int) -> None:
        """Ask for something and wait until it is done; passwords may have been renewed by then.

        Raises `Unavailable` with what the other side says.
        """
        async with self._turn:
            await self.tell(**words)
            answer = await self._answers.get()
        if "error" in answer:
            raise Unavailable(answer["error"])
        self.login = answer["login"], answer["password"]

    async def tell(self, **words: Any) -> None:
        """Say something that needs no answer."""
        self._writer.write(json.dumps(words).encode() + b"\n")
        await self._writer.drain()
