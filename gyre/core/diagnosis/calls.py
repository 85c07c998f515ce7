"""Model calls: tool calls that are not there or not read, answers that are cut, unheard or broken off."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gyre.core.diagnosis.finding import At, Finding, Hear, Kind, Outlook, Severity, ids
from gyre.core.diagnosis.limits import HALF, Limits
from gyre.core.diagnosis.windows import Window
from schemas.calls import DeliveryCorrected, ModelCallRecorded
from schemas.rewards import RewardAssigned

TOOLLESS = Kind("no-tool-calls", "as many answers in a row as a batch has executions without a single tool call")
UNPARSED = Kind(
    "unparsed-tool-calls", "answers with a tool call's marks in their text: rollout.tool_parser does not fit"
)
CUT = Kind("truncated-answers", "more than half of a batch's answers in a row ended at the limit of tokens")
UNHEARD = Kind("undelivered-answers", "more than half of a batch's answers in a row reached no client")
BROKEN = Kind("engine-errors", "more than half of a batch's answers in a row ended in an error or were aborted")

MARKS = ("<tool_call>", "<function=", "[TOOL_CALLS]", "<|python_tag|>")
"""What the families of `gyre.proxy.toolcalls` write before a call."""


@dataclass(slots=True, eq=False)
class Row:
    """Turns without a tool call, one after the other."""

    first: At
    call: str
    """Of the first."""
    after: bool
    """Whether there were tool calls before."""
    count: int = 0
    single: bool = True
    """Each was the first of its execution."""


class Calls:
    """Turns in the order of CALL; titles, probes and summaries are none. EV has to be heard before."""

    kinds = (TOOLLESS, UNPARSED, CUT, UNHEARD, BROKEN)

    def __init__(self, limits: Limits) -> None:
        """No call was made."""
        self._limits = limits
        self._row: Row | None = None
        self._longest: Row | None = None
        self._tools = False
        """Whether any answer called a tool so far."""
        self._rewarded = False
        """Whether anything ever scored above 0."""
        self._latest: dict[str, At] = {}
        """The calls of a window, whose answers may turn out not to have arrived."""
        size = limits.batch
        self._unparsed, self._cut, self._unheard, self._broken = (Window(size) for _ in range(4))

    @property
    def hears(self) -> Mapping[type[Any], Hear]:
        """See `Detector`."""
        return {
            ModelCallRecorded: self._called,
            DeliveryCorrected: self._corrected,
            RewardAssigned: self._assigned,
        }

    def findings(self, outlook: Outlook) -> Iterator[Finding]:
        """See `Detector`."""
        limit = f"rollout.max_tokens is {self._limits.max_tokens}, or the context was full"
        yield from self._toolless()
        yield from self._share(UNPARSED, self._unparsed, "hold a tool call that was not read as one", "critical")
        yield from self._share(CUT, self._cut, f"were cut ({limit})", "warning")
        yield from self._share(UNHEARD, self._unheard, "reached no client: it hung up before the end", "warning")
        yield from self._share(BROKEN, self._broken, "ended in an error or were aborted", "critical")

    def _toolless(self) -> Iterator[Finding]:
        row = self._longest
        if row is None or not self._limits.parses_tools or row.count < self._limits.batch:
            return
        if not row.after and (self._rewarded or not row.single):  # it works without tools, or goes on by other means
            return
        before = "after answers that had some" if row.after else "from the first on, each the only one of its execution"
        says = (
            f"{row.count} answers in a row have no tool call, {before}: the parser does not fit the model, or the "
            "policy no longer writes calls"
        )
        yield Finding(TOOLLESS.name, "critical", says, (row.first.id,), f"gyre call {{run}} {row.call}")

    def _share(self, kind: Kind, window: Window, what: str, severity: Severity) -> Iterator[Finding]:
        worst = window.worst
        if worst is not None and worst.value > HALF:
            says = f"of {worst.size} answers in a row {worst.bad} {what}"
            evidence = ids(worst.examples)
            yield Finding(kind.name, severity, says, evidence, f"gyre tree {{run}} {worst.examples[0].execution}")

    def _assigned(self, at: At, event: RewardAssigned) -> None:
        self._rewarded = self._rewarded or event.reward > 0

    def _called(self, at: At, event: ModelCallRecorded) -> None:
        if event.kind != "turn":
            return
        tools = '"tool_calls"' in event.reply  # in a text, quotes are escaped
        self._unparsed.add(at, not tools and any(mark in event.reply for mark in MARKS))
        self._cut.add(at, event.finish == "length")
        self._unheard.add(at, not event.delivered)
        self._latest[event.call] = at
        if len(self._latest) > self._limits.batch:
            del self._latest[next(iter(self._latest))]
        self._broken.add(at, event.finish in {"error", "abort"})
        self._follow(at, event, tools)

    def _corrected(self, _: At, event: DeliveryCorrected) -> None:
        if (at := self._latest.get(event.call)) is not None:
            self._unheard.correct(at, not event.delivered)

    def _follow(self, at: At, event: ModelCallRecorded, tools: bool) -> None:
        if tools:
            self._row, self._tools = None, True
            return
        row = self._row = self._row or Row(at, event.call, self._tools)
        row.count += 1
        row.single = row.single and event.index == 0
        if self._longest is None or row.count > self._longest.count:
            self._longest = row
