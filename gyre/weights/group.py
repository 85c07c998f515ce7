"""The transport by SGLang's distributed group, with the run folder behind it.

A cell asks the core for a group, has its server join, and receives. Whatever fails on the way, the server is given the
file instead, whole, before it serves again: none is ever served from half of two versions.
"""

import asyncio
from functools import partial
from itertools import count
from pathlib import Path

from pydantic import Field, ValidationError

from gyre.engines.port import Engine, EngineUnavailable
from gyre.engines.sglang.group import Group, receive
from gyre.errors import GyreError
from gyre.trainers.checkpoint import locate
from gyre.weights.files import in_folder
from gyre.weights.group_sender import send
from gyre.weights.port import Ask, Offered, WeightsUnusable, give
from gyre.weights.sending import received
from schemas.base import Model
from schemas.refs import WeightsRef


class Wanted(Model):
    """Asked of the core."""

    weights: WeightsRef
    name: str = Field(min_length=1, max_length=200)
    """Of the group that is to be made."""
    ranks: int = Field(ge=1, le=1024)


class Grouped:
    """The transport.

    Args:
        folder: the run's.
        instance: this process; no other has this name.
        ask: reaches the core's `answer`.
        host: address of this machine that servers reach.
        backend: of torch.distributed, gloo or nccl.
    """

    def __init__(self, folder: Path, instance: str, ask: Ask, host: str, backend: str) -> None:
        self._folder, self._instance, self._ask = folder, instance, ask
        self._host, self._backend = host, backend
        self._numbers = count()
        self._sound: set[str] = set()

    async def offer(self, weights: WeightsRef, base: WeightsRef | None) -> Offered:
        """See `Weights`: they are sent when they are asked for, and looked at before."""
        if weights.digest not in self._sound:
            await asyncio.to_thread(locate, self._folder, weights)
            self._sound = {weights.digest}
        return Offered(weights.size)

    async def bring(self, engine: Engine, weights: WeightsRef, version: int, *, resume: bool) -> None:
        """See `Weights`."""
        send = partial(receive, partial(self._meet, weights))
        error = await received(engine, send, version, "a group")
        if error is not None:
            await give(engine, await asyncio.to_thread(in_folder, self._folder, weights, error), version, resume=resume)

    async def answer(self, question: bytes) -> bytes:
        """See `Weights`: a sender waits for the server."""
        try:
            wanted = Wanted.model_validate_json(question)
        except ValidationError as error:
            raise WeightsUnusable("the question is no group's: is the cell's weights.transport another?") from error
        return (await asyncio.to_thread(self._sender, wanted)).model_dump_json().encode()

    async def close(self) -> None:
        """See `Weights`: senders end by themselves."""

    def _sender(self, wanted: Wanted) -> Group:
        known = wanted.weights.digest in self._sound  # a peer does not wait for a digest of all of it again
        file = self._folder / wanted.weights.address if known else locate(self._folder, wanted.weights)
        return send(file, wanted.name, wanted.ranks, self._host, self._backend).group

    async def _meet(self, weights: WeightsRef, ranks: int) -> Group:
        name = f"{self._instance}-{next(self._numbers)}"
        question = Wanted(weights=weights, name=name, ranks=ranks).model_dump_json().encode()
        try:
            answer = await self._ask(question)
        except GyreError as error:
            raise EngineUnavailable(str(error)) from error
        try:
            return Group.model_validate_json(answer)
        except ValidationError as error:
            raise EngineUnavailable(f"the core answers {answer[:100]!r}: is its weights.transport another?") from error
