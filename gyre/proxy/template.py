"""Increments: what a chat template adds to a history that is already tokens. History is never tokenised again.

Where a conversation may be cut is derived from the template at start (see `cuts`) and verified there on whole
conversations, text and tokens; a cut that fails is never used. So an increment is rendered behind a short stand-in
conversation instead of behind the real history, and its cost depends on the new messages alone. A template that allows
no cut is served too: each of its calls is a root of its own, rendered whole.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from gyre.proxy import cuts
from gyre.proxy.chat_model import ChatModel
from gyre.proxy.cuts import GENERATE, Cut, roles_behind, standin
from gyre.proxy.errors import HistoryUnrenderable
from gyre.proxy.families import Family, family_of
from gyre.proxy.normalise import Json, Message
from gyre.proxy.rendering import MARK, Rendering
from gyre.proxy.thinking import thinks

__all__ = ["GENERATE", "ROOT", "Behind", "Increment", "NotAppendOnly", "Template"]

_MANY = 8
_APART = 4096


class NotAppendOnly(Exception):
    """This increment cannot be had from this place; take an earlier one."""


@dataclass(frozen=True, slots=True)
class Behind:
    """What stands before an increment."""

    role: str
    """Of the last message; "" for nothing: the increment is a root."""
    answered: bool = False
    """Whether that message is a turn that was sampled right there."""
    live: bool = False
    """Whether a thought stands on the path."""


ROOT = Behind("")


@dataclass(frozen=True, slots=True)
class Increment:
    """Tokens that follow a cut: the messages' own, then the generation prompt's."""

    ids: list[int]
    ends: list[int]
    """For each message: tokens of the increment up to its end, -1 where nothing may be cut."""


class Template:
    """A chat model with its verified cuts, and how its family writes calls and thoughts."""

    def __init__(self, model: ChatModel, tool_parser: str = "auto", thinking_parser: str = "auto") -> None:
        """Derive and verify; the parsers are named as `rollout.tool_parser` and `rollout.thinking_parser` do.

        Raises:
            TemplateUnusable: not even a plain conversation can be rendered, or a parser does not fit the template.
        """
        self.model = model
        self._rendering = Rendering(model)
        self.family: Family = family_of(self._rendering, tool_parser, thinking_parser)
        self.stop_token_ids = tuple(dict.fromkeys((*model.stop_token_ids, *self._rendering.end_ids)))
        self._alone: dict[tuple[str, bool], str] = {}
        self._prompts: dict[str, list[int]] = {}
        self._keeps_words = cuts.keeps_words(self._rendering)
        thought = self.family.turn(cuts.THOUGHT, MARK)
        self._cuts = cuts.derive(self._rendering, thought)
        self._verify(cuts.conversations(thought))
        self.least = self._least()
        """Tokens of any message at the least."""

    def increment(self, behind: Behind, messages: Sequence[Message], tools: Sequence[Json] = ()) -> Increment:
        """Tokens of `messages` and the generation prompt, from a place that `refusal` has nothing against.

        The text of `tools` is in a root alone: wherever a cut is allowed, they stand before it.

        Raises:
            NotAppendOnly: not from this place; take an earlier one.
            HistoryUnrenderable: the template refuses the messages.
        """
        pieces = self._pieces(behind, messages, tools)
        if not behind.role and "".join(text for _, text in pieces) != self._rendering.text(
            messages, tools, generate=True
        ):
            return self.whole(messages, tools)
        ids: list[int] = []
        ends: list[int] = []
        for group, text in pieces:
            ids += self._rendering.encode(text) if group else self._prompt(text)
            ends += [-1] * (len(group) - 1) + [len(ids)] * bool(group)
        if pieces[-1][0] and ends:
            ends[-1] = -1  # the generation prompt is in this piece
        return Increment(ids, ends)

    def whole(self, messages: Sequence[Message], tools: Sequence[Json]) -> Increment:
        """The history as a root, not cut anywhere. Raises HistoryUnrenderable."""
        text = self._rendering.text(messages, tools, generate=True)
        return Increment(self._rendering.encode(text), [-1] * len(messages))

    def closing(self, last_token: int | None) -> list[int]:
        """What ends a sampled turn: its end mark, unless that was sampled."""
        return [] if [last_token] == self._rendering.end_ids else list(self._rendering.end_ids)

    def refusal(self, behind: Behind, after: str, following: frozenset[str], *, tools: bool) -> str:
        """Why a history cannot be cut here, "" if it can (but for what the template says of the new texts).

        Args:
            behind: what stands before.
            after: role of the next message, or GENERATE.
            following: roles of all messages behind the cut.
            tools: whether any are offered.
        """
        return self._cuts.refusal(
            behind.role, after, following, tools=tools, live=behind.live, answered=behind.answered
        )

    def may_cut(self, before: str, after: str, *, tools: bool = False) -> bool:
        """Whether text may be cut between messages of these roles (`after` may be GENERATE), by role alone."""
        return (before, after) in self._cuts.pairs[tools]

    def live(self, message: Message) -> bool:
        """Whether an assistant's turn that the client sent shows a thought, or may hold one in its text."""
        return self.family.holds_thought(message)

    def shows_thought(self, input_ids: Sequence[int]) -> bool:
        """Whether a call's input shows a thought, an empty one too; not the one that its generation prompt begins."""
        return thinks(self.model.decode(input_ids).removesuffix(self._rendering.prompt))

    def fades(self, text: str, answer: Message) -> bool:
        """Whether a sampled turn holds what the template may not show again: a thought, or words beside calls."""
        words = bool(answer.calls) and bool(answer.content.strip()) and not self._keeps_words
        return words or self.family.sampled_thought(text)

    def _prompt(self, text: str) -> list[int]:
        """Tokens of a generation prompt: there are few."""
        if text not in self._prompts:
            self._prompts[text] = self._rendering.encode(text)
        return self._prompts[text]

    def _pieces(
        self, behind: Behind, messages: Sequence[Message], tools: Sequence[Json]
    ) -> list[tuple[Sequence[Message], str]]:
        """Groups of messages with their texts; the last piece has the generation prompt, alone where it may be."""
        pieces: list[tuple[Sequence[Message], str]] = []
        groups = self._groups(behind, messages, tools=bool(tools))
        for index, group in enumerate(groups):
            pieces.append((group, self._text(behind, group, tools, generate=index == len(groups) - 1)))
            behind = Behind(group[-1].role) if group else behind
        return pieces

    def _groups(self, behind: Behind, messages: Sequence[Message], *, tools: bool) -> list[Sequence[Message]]:
        """Cut wherever it is allowed; an empty last group stands for the generation prompt alone.

        Very many messages stay together: each piece costs a rendering, and nobody goes on from between them.
        """
        if len(messages) > _APART:
            return [messages]
        groups: list[Sequence[Message]] = []
        start, live, following = 0, behind.live, roles_behind(messages)
        roles = [*(message.role for message in messages), GENERATE]
        for place, message in enumerate(messages, 1):
            live = live or self.live(message)
            if not self._cuts.refusal(roles[place - 1], roles[place], following[place], tools=tools, live=live):
                groups.append(messages[start:place])
                start = place
        return [*groups, messages[start:]]

    def _text(self, behind: Behind, group: Sequence[Message], tools: Sequence[Json], *, generate: bool) -> str:
        """Text of one group and, at the end, of the generation prompt, which is always the same on its own."""
        if not behind.role:
            return self._rendering.text(group, tools, generate=generate)
        if group or not generate:
            return self._behind(behind, group, generate=generate)
        place = behind.role, behind.answered
        if place not in self._alone:
            self._alone[place] = self._behind(behind, (), generate=True)
        return self._alone[place]

    def _behind(self, behind: Behind, group: Sequence[Message], *, generate: bool) -> str:
        if behind.answered:
            text = cuts.tail(self._rendering, group, generate=generate)
            if text is None:
                raise NotAppendOnly
            return text
        before = standin((behind.role, group[0].role if group else GENERATE))
        text = self._rendering.text((*before, *group), generate=generate)
        if not text.startswith(bare := self._rendering.bare(before)):
            raise NotAppendOnly
        return text[len(bare) :]

    def _least(self) -> int:
        """Tokens of a message at the least: of empty ones, all of a role or of two that take turns."""
        before, grown = (cuts.SYSTEM, cuts.USER), list[int]()
        for one, other in (*((role, role) for role in cuts.ROLES), ("assistant", "user")):
            more = (Message(one), Message(other)) * _MANY
            with contextlib.suppress(HistoryUnrenderable):
                added = len(self.whole((*before, *more), ()).ids) - len(self.whole(before, ()).ids)
                grown.append(added // len(more))
        return max(1, min(grown, default=1))

    def _verify(self, conversations: Sequence[Sequence[Message]]) -> None:
        """Give up each cut by which a whole conversation comes out otherwise; those left are sound on all of them."""
        for tools in ((), cuts.TOOLS):
            for messages in conversations:
                try:
                    whole = self.whole(messages, tools)
                except HistoryUnrenderable:
                    continue
                while (failed := self._failing(messages, tools, whole.ids)) is not None:
                    self._cuts.pairs[bool(tools)].discard(failed)

    def _failing(self, messages: Sequence[Message], tools: Sequence[Json], whole: list[int]) -> Cut | None:
        """A cut by which this conversation, taken apart there, is not the whole; None if there is none."""
        roles = [*(message.role for message in messages), GENERATE]
        live = False
        for place in range(1, len(messages) + 1):
            live = live or self.live(messages[place - 1])
            behind = Behind(roles[place - 1], live=live)
            following = frozenset(roles[place:-1])
            if self.refusal(behind, roles[place], following, tools=bool(tools)):
                continue
            if not self._adds_up(behind, messages, place, tools, whole):
                return roles[place - 1], roles[place]
        return None

    def _adds_up(
        self, behind: Behind, messages: Sequence[Message], place: int, tools: Sequence[Json], whole: list[int]
    ) -> bool:
        try:
            before = self._rendering.text(messages[:place], tools)
            after = "".join(text for _, text in self._pieces(behind, messages[place:], tools))
        except (HistoryUnrenderable, NotAppendOnly):
            return False
        return self._rendering.encode(before) + self._rendering.encode(after) == whole
