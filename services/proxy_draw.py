"""Getting an answer out of the cells, wherever they are: routes, retries, moves. The client sees none of it."""

import asyncio
from collections.abc import Callable

from gyre.core.routes import Cell
from gyre.engines.port import (
    ContextOverflow,
    EngineFailed,
    EngineUnavailable,
    Generation,
    Generator,
    RequestRefused,
)
from gyre.proxy.drawn import Drawn
from gyre.proxy.errors import BadRequest, CallError, EngineTrouble, PromptTooLong
from gyre.proxy.session import Plan
from schemas.calls import ModelCallRetried, RouteAssigned, RouteMoved
from schemas.envelope import Event
from services.proxy_draft import Draft
from services.proxy_world import World

_PAUSES_SECONDS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_FAILURES = 5
Connect = Callable[[str], Generator]
Say = Callable[[Event], None]


class Engines:
    """The cells' engines, by URL."""

    def __init__(self, world: World, connect: Connect, instance: str, stops: tuple[int, ...]) -> None:
        """`connect` makes a client of an engine; `stops` end an answer."""
        self._world, self._connect, self._instance, self._stops = world, connect, instance, stops
        self._engines: dict[str, Generator] = {}

    async def draw(self, execution: str, plan: Plan, say: Say) -> Drawn:
        """The whole answer to a plan. Cancelling it aborts the engine's request.

        Says each route and retry before it goes on; waits for as long as no cell serves.

        Raises:
            CallError: no engine will ever answer this request, or engines broke on it again and again.
        """
        draft = Draft(plan, execution, self._instance, self._stops)
        trouble = _Trouble(execution, plan)
        while True:
            index, cell = await self._route(execution, trouble.avoid, say)
            try:
                drawn = draft.take(index, await self._generate(cell, draft))
                if drawn is not None:
                    return drawn
                trouble.note(index, "aborted", draft.kept, say)
            except (EngineUnavailable, EngineFailed) as error:
                trouble.note(index, str(error), draft.kept, say, broke=isinstance(error, EngineFailed))
            except RequestRefused as error:
                raise _refused(error, plan) from error
            serving = {number for number, known in self._world.routes.cells.items() if known.serving}
            await trouble.pause(serving)

    async def close(self) -> None:
        """Let go of all engines."""
        for engine in self._engines.values():
            await engine.close()

    async def _route(self, execution: str, failed: set[int], say: Say) -> tuple[int, Cell]:
        held = self._world.routes.assigned.get(execution)
        index, cell = await self._world.cell_for(execution, failed)
        if held is None:
            say(RouteAssigned(execution=execution, cell=index))
        elif held != index:
            reason = "the cell failed" if held in failed else "the cell left rollout"
            say(RouteMoved(execution=execution, from_cell=held, to_cell=index, reason=reason))
        return index, cell

    async def _generate(self, cell: Cell, draft: Draft) -> Generation:
        """One attempt at one cell; a cell that is lost meanwhile is not waited for."""
        engine = self._engines.get(cell.url) or self._engines.setdefault(cell.url, self._connect(cell.url))
        generating = asyncio.ensure_future(engine.generate(draft.request()))
        lost = asyncio.ensure_future(self._world.gone(cell.instance).wait())
        try:
            await asyncio.wait((generating, lost), return_when=asyncio.FIRST_COMPLETED)
            if not generating.done():
                raise EngineUnavailable(f"cell instance {cell.instance} is lost")
            return generating.result()
        finally:
            lost.cancel()
            if not generating.done():
                generating.cancel()
                await asyncio.gather(generating, return_exceptions=True)


class _Trouble:
    """What went wrong with one call so far: cells to avoid, and how long to wait once there is no other."""

    def __init__(self, execution: str, plan: Plan) -> None:
        self._execution, self._call = execution, plan.call
        self._broke = self._pauses = 0
        self._said: tuple[int, int] | None = None
        self.avoid: set[int] = set()

    def note(self, cell: int, reason: str, kept: int, say: Say, *, broke: bool = False) -> None:
        """Say that the request is taken up again; the same trouble at the same cell is said once."""
        self._broke += broke
        if self._broke == _FAILURES:
            raise EngineTrouble(f"call {self._call}: engines broke {_FAILURES} times; last: {reason[:200]}")
        self.avoid.add(cell)
        if self._said != (cell, kept):
            self._said = (cell, kept)
            say(
                ModelCallRetried(
                    execution=self._execution, call=self._call, from_cell=cell, reason=reason[:200], kept_tokens=kept
                )
            )

    async def pause(self, serving: set[int]) -> None:
        """Go on at once while another cell serves; else wait longer each time, and forget which ones failed."""
        if serving - self.avoid:
            return
        await asyncio.sleep(_PAUSES_SECONDS[min(self._pauses, len(_PAUSES_SECONDS) - 1)])
        self._pauses += 1
        self.avoid = set()


def _refused(error: RequestRefused, plan: Plan) -> CallError:
    if isinstance(error, ContextOverflow):
        return PromptTooLong(plan.tokens, max(0, error.maximum - plan.sampling.max_tokens))
    return BadRequest(f"messages: an engine refuses the rendered prompt: {error}")
