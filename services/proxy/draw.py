"""Getting an answer out of the cells, wherever they are: routes, retries, moves. The client sees none of it."""

import asyncio
import time
from collections.abc import Callable, Mapping

from gyre.core.routes import FAILED, LEFT, LOST, Cell
from gyre.engines.port import (
    ContextOverflow,
    EngineDraining,
    EngineFailed,
    EngineUnavailable,
    Generation,
    RequestRefused,
)
from gyre.proxy.drawn import Drawn
from gyre.proxy.errors import BadRequest, CallError, EngineTrouble, PromptTooLong
from gyre.proxy.session import Plan
from schemas.calls import ModelCallContinued, ModelCallRetried, RequestCancelled, RouteAssigned, RouteMoved
from schemas.envelope import Event
from services.proxy.draft import Draft
from services.proxy.moves import Moves
from services.proxy.world import World

_PAUSES_SECONDS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_FAILURES = 5
Say = Callable[[Event], None]


class Engines:
    """The cells' engines, wherever an execution is."""

    def __init__(self, world: World, moves: Moves, instance: str, stops: tuple[int, ...]) -> None:
        """`moves` keeps routes and caches together; `stops` end an answer."""
        self._world, self._moves, self._instance, self._stops = world, moves, instance, stops

    async def draw(self, execution: str, plan: Plan, say: Say) -> Drawn:
        """The whole answer to a plan. Cancelling it aborts the engine's request.

        Says each route and retry before it goes on; waits for as long as no cell serves.

        Raises:
            CallError: no engine will ever answer this request, or engines broke on it again and again.
        """
        draft = Draft(plan, execution, self._instance, self._stops)
        trouble = _Trouble(execution, plan, say)
        with self._moves.flying(execution):
            while True:
                index, cell = await self._route(execution, trouble.avoid, say)
                await self._moves.settle(execution)
                if (drawn := await self._attempt(index, cell, draft, trouble)) is not None:
                    return drawn
                serving = {number for number, known in self._world.routes.cells.items() if known.serving}
                await trouble.pause(serving)

    async def _attempt(self, index: int, cell: Cell, draft: Draft, trouble: "_Trouble") -> Drawn | None:
        """One try at one cell; None when the answer has to be taken up again."""
        try:
            generation = await self._generate(cell, draft)
        except (EngineUnavailable, EngineFailed) as error:
            why = LEFT if isinstance(error, EngineDraining) else FAILED
            trouble.note(index, str(error), draft.kept, why, broke=isinstance(error, EngineFailed))
            return None
        except RequestRefused as error:
            raise _refused(error, trouble.plan) from error
        trouble.over(index, draft, generation)
        drawn = draft.take(index, generation)
        if drawn is None:
            trouble.cancelled(index, draft.kept)
        return drawn

    async def _route(self, execution: str, avoid: Mapping[int, str], say: Say) -> tuple[int, Cell]:
        """Where it goes now. Cells to avoid come with the reason why."""
        index, cell = await self._world.cell_for(execution, avoid.keys())
        held = self._world.routes.assigned.get(execution)
        if held is None:
            say(RouteAssigned(execution=execution, cell=index))
        elif held != index:
            gone = LEFT if held in self._world.routes.cells else LOST
            moved = RouteMoved(execution=execution, from_cell=held, to_cell=index, reason=avoid.get(held, gone))
            say(moved)
            self._moves.follow(moved)
        return index, cell

    async def _generate(self, cell: Cell, draft: Draft) -> Generation:
        """One attempt at one cell; a cell that is lost meanwhile is not waited for."""
        generating = asyncio.ensure_future(self._moves.engine(cell.url).generate(draft.request()))
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

    def __init__(self, execution: str, plan: Plan, say: Say) -> None:
        self._execution, self.plan, self._say = execution, plan, say
        self._broke = self._pauses = 0
        self._said: tuple[int, int] | None = None
        self._cut: tuple[int, float] | None = None
        """The cell that let go of it, and when (monotonic seconds), until it goes on."""
        self.avoid: dict[int, str] = {}
        """Cells that just let go of it, and why a route moves off them."""

    def note(self, cell: int, reason: str, kept: int, why: str, *, broke: bool = False) -> None:
        """Say that the request is taken up again; the same trouble at the same cell is said once."""
        self._broke += broke
        if self._broke == _FAILURES:
            raise EngineTrouble(f"call {self.plan.call}: engines broke {_FAILURES} times; last: {reason[:200]}")
        self.avoid[cell] = why
        self._cut = self._cut or (cell, time.monotonic())
        if self._said != (cell, kept):
            self._said = (cell, kept)
            self._say(
                ModelCallRetried(
                    execution=self._execution,
                    call=self.plan.call,
                    from_cell=cell,
                    reason=reason[:200],
                    kept_tokens=kept,
                )
            )

    def cancelled(self, cell: int, kept: int) -> None:
        """The cell ended the request before it was whole: it leaves rollout."""
        self._say(RequestCancelled(execution=self._execution, call=self.plan.call, cell=cell, reason=LEFT))
        self.note(cell, "aborted", kept, LEFT)

    def over(self, cell: int, draft: Draft, generation: Generation) -> None:
        """The next tokens have come: say what was waited for them, if it was taken up again."""
        if self._cut is None or not generation.output_ids:
            return
        (first, since), self._cut = self._cut, None
        drawing = generation.engine_seconds - generation.prefill_seconds
        self._say(
            ModelCallContinued(
                execution=self._execution,
                call=self.plan.call,
                from_cell=first,
                to_cell=cell,
                context_tokens=self.plan.tokens + draft.kept,
                cached_tokens=generation.cached_tokens,
                seconds=max(0.0, time.monotonic() - since - drawing),
            )
        )

    async def pause(self, serving: set[int]) -> None:
        """Go on at once while another cell serves; else wait longer each time, and forget which ones failed."""
        if serving - self.avoid.keys():
            return
        await asyncio.sleep(_PAUSES_SECONDS[min(self._pauses, len(_PAUSES_SECONDS) - 1)])
        self._pauses += 1
        self.avoid = {}


def _refused(error: RequestRefused, plan: Plan) -> CallError:
    if isinstance(error, ContextOverflow):
        return PromptTooLong(plan.tokens, max(0, error.maximum - plan.sampling.max_tokens))
    return BadRequest(f"messages: an engine refuses the rendered prompt: {error}")
