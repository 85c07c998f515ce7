"""Which family a template belongs to: how it writes calls and thoughts, found by rendering and reading back."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gyre.proxy.errors import HistoryUnrenderable, TemplateUnusable
from gyre.proxy.normalise import Json, Message, ToolCall
from gyre.proxy.rendering import MARK, Rendering
from gyre.proxy.thinking import OPEN, opens, split, thinks, written
from gyre.proxy.toolcalls.answers import answer
from gyre.proxy.toolcalls.families import FAMILIES
from gyre.proxy.toolcalls.port import Parser

NONE = "none"
TOOL_PARSERS = ("auto", *FAMILIES, NONE)
THINKING_PARSERS = ("auto", "think", NONE)

_USER, _ON = Message("user", "Which boats are in?"), Message("user", "And now?")
_THOUGHT = "Low water at nine."
_NAMES = ("moor_boat", "cast-off")
_ARGUMENTS: tuple[Json, ...] = ({"path": 'q"uay\n.txt', "count": 3, "deep": {"a": [True, None]}}, {"path": ""})
_SCHEMA = {"path": {"type": "string"}, "count": {"type": "integer"}, "deep": {"type": "object"}}
_TOOLS: tuple[Json, ...] = tuple(
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": _SCHEMA}}}
    for name in _NAMES
)


@dataclass(frozen=True, slots=True)
class Family:
    """How answers of one model are read."""

    tool_parser: str
    """Name in FAMILIES, or `none`: calls stay text."""
    thoughts: bool
    """Whether the template knows thoughts."""
    thinking: bool
    """Whether they are split from what is said."""
    opened: bool
    """Whether the generation prompt opens a thought."""
    call_opening: str
    """What the family writes before the name of a call; "" where an answer cannot be made to begin with it."""
    call_middle: str
    """What it writes between the name and the arguments."""

    def answer(self, text: str, call: str, tools: Sequence[Json], *, forced: bool, calls: bool) -> Message:
        """The assistant message that a sampled text is. `forced`: it was made to begin with a call."""
        thought, said = split(text, opened=self.opened and not forced) if self.thinking else ("", text)
        parser: Parser | None = FAMILIES.get(self.tool_parser) if calls else None
        return answer(said, call, parser, tools, thought)

    def turn(self, thought: str, said: str) -> Message:
        """A turn that thinks, as `answer` keeps it."""
        return (
            Message("assistant", said, thinking=thought)
            if self.thinking
            else Message("assistant", written(thought, said))
        )

    def sampled_thought(self, text: str) -> bool:
        """Whether a sampled text holds a thought, an empty one too."""
        return self.thoughts and (self.opened or thinks(text))

    def holds_thought(self, message: Message) -> bool:
        """Whether a client's assistant turn does."""
        return self.thoughts and message.role == "assistant" and (bool(message.thinking) or thinks(message.content))

    def forced(self, tool_choice: str) -> str:
        """With what an answer is made to begin for this `tool_choice`; "" where nothing can be forced cleanly."""
        if self.opened or not self.call_opening:
            return ""
        if tool_choice == "required":
            return self.call_opening
        name = tool_choice.removeprefix("tool:")
        return f"{self.call_opening}{name}{self.call_middle}" if name != tool_choice else ""


def family_of(rendering: Rendering, tool_parser: str = "auto", thinking_parser: str = "auto") -> Family:
    """Find the parsers, or check those that are named. Raises TemplateUnusable naming the setting."""
    for name, value, known in (
        ("tool_parser", tool_parser, TOOL_PARSERS),
        ("thinking_parser", thinking_parser, THINKING_PARSERS),
    ):
        if value not in known:
            raise TemplateUnusable(f"rollout.{name}: {value!r} is none of {', '.join(known)}")
    fitting = [name for name, parser in FAMILIES.items() if _fits(rendering, parser)]
    chosen = fitting[0] if tool_parser == "auto" and fitting else tool_parser
    if chosen != NONE and chosen not in fitting:
        raise TemplateUnusable(_misfit("tool_parser", tool_parser, (*fitting, NONE), "calls"))
    knows = _knows_thoughts(rendering)
    if thinking_parser == "think" and not knows:
        raise TemplateUnusable(_misfit("thinking_parser", thinking_parser, (NONE,), "thoughts"))
    family = Family(chosen, knows, knows and thinking_parser != NONE, opens(rendering.prompt), "", "")
    opening, middle = _openings(rendering, family)
    return replace(family, call_opening=opening, call_middle=middle)


def _misfit(name: str, value: str, fitting: Sequence[str], what: str) -> str:
    return (
        f"rollout.{name}: {value!r} does not read the {what} of the model's chat template; set {' or '.join(fitting)}"
    )


def _fits(rendering: Rendering, parser: Parser) -> bool:
    """Whether calls that the template shows are read back as they were; what it does not show, gyre writes itself."""
    if not rendering.shape.calls:
        return parser in (FAMILIES["hermes"], FAMILIES["generic"])
    calls = tuple(
        ToolCall(f"call_{at}", name, json.dumps(arguments))
        for at, (name, arguments) in enumerate(zip(_NAMES, _ARGUMENTS, strict=True))
    )
    groups = (calls[:1], calls) if rendering.shape.many_calls else (calls[:1],)
    return all(_reads(rendering, parser, group) for group in groups)


def _reads(rendering: Rendering, parser: Parser, calls: tuple[ToolCall, ...]) -> bool:
    body = _body(rendering, Message("assistant", "", calls))
    found = [(each.name, _loaded(each.arguments)) for each in parser(body, _TOOLS)] if body is not None else []
    return found == [(call.name, json.loads(call.arguments)) for call in calls]


def _body(rendering: Rendering, turn: Message) -> str | None:
    """What a policy would have to say for this turn; None if the template does not tell."""
    results = tuple(Message("tool", "done", call_id=call.id, name=call.name) for call in turn.calls)
    try:
        start, text = rendering.text((_USER,)), rendering.text((_USER, turn, *(results or (_ON,))))
    except HistoryUnrenderable:
        return None
    if text.startswith(start):
        text = text[len(start) :].removeprefix(rendering.prompt)
    return text.partition(rendering.end_text)[0] if rendering.end_text else text


def _loaded(arguments: str) -> object:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def _openings(rendering: Rendering, family: Family) -> tuple[str, str]:
    """What stands before and behind the name of a call at the beginning of an answer."""
    call = ToolCall("call_0", _NAMES[0], '{"path": "' + MARK + '"}')
    body = _body(rendering, Message("assistant", "", (call,))) or ""
    before, _, rest = body.partition(_NAMES[0])
    middle = rest.partition(MARK)[0]
    middle = middle[: middle.find("{")] if "{" in middle else middle.partition("\n")[0]
    plain = (
        not family.opened and family.tool_parser not in (NONE, "generic") and before and middle and OPEN not in before
    )
    return (before.lstrip(), middle.rstrip(" ")) if plain else ("", "")


def _knows_thoughts(rendering: Rendering) -> bool:
    """Whether the template writes thoughts, opens one, or takes them out of a turn's text."""
    if OPEN in rendering.prompt:
        return True
    kept = _body(rendering, Message("assistant", MARK, thinking=_THOUGHT)) or ""
    bare = _body(rendering, Message("assistant", written(_THOUGHT, MARK))) or ""
    return any(OPEN in text and _THOUGHT in text for text in (kept, _last(rendering))) or (
        MARK in bare and _THOUGHT not in bare
    )


def _last(rendering: Rendering) -> str:
    try:
        return rendering.text((_USER, Message("assistant", MARK, thinking=_THOUGHT)))
    except HistoryUnrenderable:
        return ""
