"""A policy that speaks from scripts: one for each execution, told apart by the cache key that the proxy sends."""

import asyncio
from collections.abc import Mapping

from gyre.engines.port import GenerateRequest, Generation
from gyre.engines.scripted import Line, ScriptedEngine
from gyre.proxy.playback import drawn_of
from gyre.proxy.template import Template
from schemas.base import pack_ints
from tests.clients.script import Script, Turn

CONTEXT = 1 << 20


class Policy(ScriptedEngine):
    """A scripted engine that reads the context and takes the time that a turn is to take."""

    def __init__(self, scripts: Mapping[str, Script], template: Template) -> None:
        super().__init__(self._line, context=CONTEXT)
        self._scripts, self._template = scripts, template
        self.received: dict[str, set[bytes]] = {}
        """By execution: the contexts that were sent here, as packed token ids."""

    async def generate(self, request: GenerateRequest) -> Generation:
        """See `Generator`; a client that hangs up ends the wait."""
        self.received.setdefault(request.cache_key, set()).add(pack_ints(tuple(request.input_ids)))
        await asyncio.sleep(self._turn(request).seconds)
        return await super().generate(request)

    def _line(self, request: GenerateRequest) -> Line:
        return Line(drawn_of(self._turn(request).said, self._template).output_ids)

    def _turn(self, request: GenerateRequest) -> Turn:
        return self._scripts[request.cache_key].turn(self._template.model.decode(tuple(request.input_ids)))
