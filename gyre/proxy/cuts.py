"""Where the text of a template's conversation may be cut, so that what follows can be encoded on its own.

Three facts about a template, each derived from it and verified on probe conversations, with tools and without:
`cuts`: pairs of roles between which the text before stays as it is when the text behind is added. `answered`: roles
that may follow a turn that was sampled. `rewrites`: roles whose arrival, anywhere later, changes what stood before (the
thoughts of earlier turns are dropped at a new user message; tools move to the last one). Nothing is cut that fails
any probe, and nothing where no special token keeps the tokens on both sides apart.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gyre.proxy.errors import HistoryUnrenderable
from gyre.proxy.normalise import Json, Message, ToolCall
from gyre.proxy.rendering import MARK, Rendering
from gyre.proxy.thinking import opens

GENERATE = "generate"
"""Stands for the generation prompt where a cut names the role after it."""

Cut = tuple[str, str]
"""Roles before and after."""

ROLES = ("system", "user", "assistant", "tool")
REWRITES, UNCUT = "the template rewrites what stood before", "the template allows no cut there"

THOUGHT = "Low water at nine."
CALL = ToolCall("call_0", "moor", '{"path": "quay.txt"}')
SYSTEM = Message("system", "You tend a harbour.")
USER = Message("user", "Which boats are in?")
TEXT = Message("assistant", MARK)
CALLING = Message("assistant", "", (CALL,))
RESULT = Message("tool", "three boats", call_id="call_0", name="moor")
TOOLS: tuple[Json, ...] = (
    {"type": "function", "function": {"name": "moor", "description": "d", "parameters": {"type": "object"}}},
)
STANDINS = {
    "system": (SYSTEM,),
    "user": (SYSTEM, USER),
    "assistant": (SYSTEM, USER, TEXT),
    "tool": (SYSTEM, USER, CALLING, RESULT),
}
_LONG = (SYSTEM, USER, CALLING, RESULT, Message("assistant", "Three."), Message("user", "And now? {x}\n\n<b> "))
NEXT: dict[str, tuple[Message, ...]] = {
    "system": (Message("system", "Mind the tide."),),
    "user": (Message("user", "  Fetch the log,\nplease. "),),
    "assistant": (Message("assistant", "It is dry."),),
    "tool": (Message("tool", " two\nboats", call_id="call_0"), Message("tool", "none", call_id="call_1")),
    GENERATE: (),
}
HISTORIES = (*STANDINS.values(), _LONG, (*_LONG, CALLING), (*_LONG, CALLING, RESULT), (*_LONG, TEXT))


def standin(cut: Cut) -> tuple[Message, ...]:
    """A short conversation that ends with the role before the cut."""
    return (SYSTEM, USER, CALLING) if cut == ("assistant", "tool") else STANDINS[cut[0]]


@dataclass(slots=True)
class Cuts:
    """What was found; the keys say whether tools are offered, and for `rewrites` whether a thought stands before."""

    pairs: dict[bool, set[Cut]] = field(default_factory=dict)
    answered: dict[bool, set[str]] = field(default_factory=dict)
    rewrites: dict[tuple[bool, bool], set[str]] = field(default_factory=dict)

    def refusal(
        self, before: str, after: str, following: frozenset[str], *, tools: bool, live: bool, answered: bool = False
    ) -> str:
        """Why a history may not be cut here: "" if it may.

        Args:
            before: role of the message before the cut.
            after: role of the next message, or GENERATE.
            following: roles of all messages behind the cut.
            tools: whether any are offered.
            live: whether a thought stands before the cut.
            answered: whether the message before the cut is a turn that was sampled right there.
        """
        if self.rewrites[tools, live] & following:
            return REWRITES
        fits = after in self.answered[tools] if answered else (before, after) in self.pairs[tools]
        return "" if fits else UNCUT


def derive(rendering: Rendering, thought: Message) -> Cuts:
    """Derive the facts; `thought` is a turn that thinks THOUGHT and says MARK, as a sampled one would be kept."""
    cuts = Cuts()
    for tools in (False, True):
        offered = TOOLS if tools else ()
        for live in (False, True):
            cuts.rewrites[tools, live] = {role for role in ROLES if _rewrites(rendering, role, offered, live, thought)}
        every = ((before, after) for before in ROLES for after in (*ROLES, GENERATE))
        cuts.pairs[tools] = {cut for cut in every if _pair_holds(rendering, cut, offered)}
        cuts.answered[tools] = {role for role in (*ROLES, GENERATE) if _answered(rendering, role, offered, thought)}
    return cuts


def tail(rendering: Rendering, group: Sequence[Message], *, generate: bool) -> str | None:
    """What follows the end of a sampled turn when these messages come next; None if that cannot be told."""
    calls = bool(group) and group[0].role == "tool"
    before = (SYSTEM, USER)
    text = rendering.text((*before, CALLING if calls else TEXT, *group), generate=generate)
    place = text.find(rendering.end_text, len(rendering.bare(before))) if rendering.end_text else -1
    return text[place + len(rendering.end_text) :] if place >= 0 else None


def _rewrites(rendering: Rendering, role: str, tools: Sequence[Json], live: bool, thought: Message) -> bool:
    """Whether a message of this role, later, changes what stood before."""
    turn = Message("assistant", thought.content, (CALL,), thinking=thought.thinking) if live else CALLING
    early = (SYSTEM, USER, turn, RESULT)
    shown: list[str] = []
    for between in ((turn, RESULT), (turn, RESULT, TEXT), (TEXT,)):
        with contextlib.suppress(HistoryUnrenderable):
            shown.append(rendering.text((*early, *between, *NEXT[role]), tools))
    try:
        start = rendering.text(early, tools)
    except HistoryUnrenderable:
        return True
    stands = bool(shown) and all(whole.startswith(start) for whole in shown)
    return not stands or (live and THOUGHT not in start)


def _pair_holds(rendering: Rendering, cut: Cut, tools: Sequence[Json]) -> bool:
    try:
        return all(_holds(rendering, history, cut, tools) for history in HISTORIES if history[-1].role == cut[0])
    except HistoryUnrenderable:
        return False


def _holds(rendering: Rendering, history: Sequence[Message], cut: Cut, tools: Sequence[Json]) -> bool:
    """Behind this history, what a stand-in says is added is what is added."""
    after, stand = NEXT[cut[1]], standin(cut)
    start, bare = rendering.text(history, tools), rendering.text(stand)
    for count in range(1, len(after) + 1) if after else (0,):
        whole = rendering.text((*history, *after[:count]), tools, generate=not after)
        added = rendering.text((*stand, *after[:count]), generate=not after)
        if not added.startswith(bare) or whole != start + added[len(bare) :]:
            return False
        if not rendering.clean(start, added[len(bare) :]):
            return False
        if rendering.encode(whole) != rendering.encode(start) + rendering.encode(added[len(bare) :]):
            return False
    return True


def _answered(rendering: Rendering, role: str, tools: Sequence[Json], thought: Message) -> bool:
    """Whether a sampled turn and the prompt that it was sampled behind stand when this role comes next."""
    try:
        return all(_stands(rendering, before, turn, role, tools) for before, turn in _turns(rendering, role, thought))
    except HistoryUnrenderable:
        return False


def _turns(rendering: Rendering, role: str, thought: Message) -> Iterator[tuple[tuple[Message, ...], Message]]:
    """Conversations and turns that may be sampled behind them: with a thought where the prompt begins one."""
    calls = (CALL,) if role == "tool" else ()
    spoken = CALLING if calls else TEXT
    thinking = Message("assistant", thought.content, calls, thinking=thought.thinking)
    for before in ((SYSTEM, USER), (SYSTEM, USER, CALLING, RESULT)):
        yield before, thinking if opens(rendering.prompt) else spoken


def _stands(rendering: Rendering, before: tuple[Message, ...], turn: Message, role: str, tools: Sequence[Json]) -> bool:
    prompted = rendering.text(before, tools, generate=True)
    whole = rendering.text((*before, turn, *NEXT[role]), tools, generate=role == GENERATE)
    added = tail(rendering, NEXT[role], generate=role == GENERATE)
    return (
        added is not None
        and whole.startswith(prompted)
        and whole.endswith(rendering.end_text + added)
        and (not turn.content or MARK in whole)
    )


def keeps_words(rendering: Rendering) -> bool:
    """Whether what a turn says beside its calls is shown."""
    try:
        return MARK in rendering.text((USER, Message("assistant", MARK, (CALL,)), RESULT))
    except HistoryUnrenderable:
        return False


def roles_behind(messages: Sequence[Message]) -> list[frozenset[str]]:
    """For each place from before the first message to behind the last: roles of the messages after it."""
    behind: list[frozenset[str]] = [frozenset()]
    for message in reversed(messages):
        behind.append(behind[-1] | {message.role})
    return behind[::-1]


def conversations(thought: Message) -> tuple[tuple[Message, ...], ...]:
    """Whole conversations to verify on: several turns, calls, parallel results, thoughts, late system messages."""
    deep = Message("assistant", thought.content, (CALL,), thinking=thought.thinking)
    two = Message("assistant", "Both.", (CALL, ToolCall("call_1", "moor", '{"path": "a\\nb"}')))
    other = Message("tool", "none\n", call_id="call_1", name="moor")
    ask, late = Message("user", "And the tide?\n"), Message("system", "Mind the tide.")
    return (
        (SYSTEM, USER, TEXT, ask, TEXT, ask),
        (SYSTEM, USER, CALLING, RESULT, TEXT, ask, CALLING, RESULT),
        (SYSTEM, USER, two, RESULT, other, ask),
        (SYSTEM, USER, deep, RESULT, deep, RESULT),
        (SYSTEM, USER, deep, RESULT, thought, ask, deep, RESULT, ask),
        (USER, thought, ask, CALLING, RESULT, late, TEXT, ask),
        (SYSTEM, late, USER, late, CALLING, RESULT, ask, ask),
        (SYSTEM, USER, TEXT, TEXT, ask, deep, RESULT, late),
    )
