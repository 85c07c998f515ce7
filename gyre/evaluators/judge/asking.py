"""A model's server over HTTP: one answer at a time, asked for again where that may help."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from gyre.evaluators.judge.talk import Answer, Dialect, JudgeError, Talk

_TRIES = 5
_LONGEST_WAIT_SECONDS = 30.0
_LEAST_BYTES, _TOKEN_BYTES = 1 << 20, 64  # of an answer: this much in any case, or this much for each of its tokens
_BUSY = {408, 409, 425, 429}
_OK, _BROKEN = 200, 500
_BACKOFF = wait_random_exponential(multiplier=0.5, max=_LONGEST_WAIT_SECONDS)


class _Busy(Exception):
    """The server may answer later; one line, and after how many seconds if it says so."""

    def __init__(self, why: str, after: float | None = None) -> None:
        super().__init__(why)
        self.after = after


@dataclass(frozen=True, slots=True)
class Model:
    """A model at a URL."""

    url: str
    name: str
    dialect: Dialect
    most_tokens: int
    """Of an answer."""
    seconds: float
    """For an answer."""
    request: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of each request."""
    key: str = field(default="", repr=False)

    async def ask(self, session: aiohttp.ClientSession, talk: Talk) -> Answer:
        """The next answer.

        Raises:
            JudgeError: the server refuses, stays busy through all tries, or answers what is none.
        """
        body = {**self.dialect.body(talk, self.name, self.most_tokens), **self.request}
        if "max_completion_tokens" in body:  # the other name of the same limit: servers take either
            del body["max_tokens"]
        retrying = AsyncRetrying(
            stop=stop_after_attempt(_TRIES), wait=_wait, retry=retry_if_exception_type(_Busy), reraise=True
        )
        try:
            found: Any = await retrying(self._asked, session, json.dumps(body).encode())
        except _Busy as error:
            raise JudgeError(f"judge at {self.url}: {error}, {_TRIES} times in a row") from error
        return self.dialect.answer(found)

    async def _asked(self, session: aiohttp.ClientSession, body: bytes) -> Any:
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", **self.dialect.headers(self.key)}
        timeout = aiohttp.ClientTimeout(total=self.seconds)
        url = self.url.rstrip("/") + self.dialect.path
        try:
            # A redirect is not followed: the key is for this server.
            async with session.post(url, data=body, headers=headers, timeout=timeout, allow_redirects=False) as got:
                said = await _content(got, max(_LEAST_BYTES, _TOKEN_BYTES * self.most_tokens))
                status, after = got.status, _after(got.headers.get("Retry-After", ""))
        except TimeoutError as error:
            raise _Busy(f"no answer in {self.seconds:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise _Busy(f"{type(error).__name__}: {error}") from error
        return self._read(status, said, after)

    def _read(self, status: int, said: bytes, after: float | None) -> Any:
        start = self._shown(said)
        if status in _BUSY or status >= _BROKEN:
            raise _Busy(f"it answered {status}: {start}", after)
        if status != _OK:
            raise JudgeError(f"judge at {self.url}: it answered {status}: {start}")
        try:
            return json.loads(said)
        except (ValueError, RecursionError) as error:
            raise JudgeError(f"judge at {self.url}: its answer is no JSON: {start}") from error

    def _shown(self, said: bytes) -> str:
        """The beginning of an answer for the log, where the key must not stand even if the server says it again."""
        text = said.decode(errors="replace")
        return " ".join((text.replace(self.key, "<key>") if self.key else text)[:200].split())


async def _content(response: aiohttp.ClientResponse, most: int) -> bytes:
    """As it came: nothing is unpacked, or a few bytes would fill the memory."""
    found = bytearray()
    async for piece in response.content.iter_chunked(1 << 16):
        found += piece
        if len(found) > most:
            raise JudgeError(f"the judge's answer is malformed: more than {most} bytes")
    return bytes(found)


def _after(written: str) -> float | None:
    return min(float(written), _LONGEST_WAIT_SECONDS) if written.isdecimal() else None


def _wait(state: RetryCallState) -> float:
    """As long as the server says, else longer each time."""
    error = state.outcome.exception() if state.outcome else None
    return error.after if isinstance(error, _Busy) and error.after is not None else _BACKOFF(state)
