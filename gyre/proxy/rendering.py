"""A chat model with the forms that its template takes: canonical messages to text and tokens, and where turns end."""

from collections.abc import Sequence

from gyre.proxy.chat_model import ChatModel
from gyre.proxy.errors import HistoryUnrenderable, TemplateUnusable
from gyre.proxy.normalise import Json, Message
from gyre.proxy.shape import shape_of

MARK = "Tidal harbour 5149"
_SYSTEM, _USER = Message("system", "You tend a harbour."), Message("user", "Which boats are in?")


class Rendering:
    """What a template makes of messages."""

    def __init__(self, model: ChatModel) -> None:
        """Raises TemplateUnusable if even a plain conversation cannot be rendered."""
        self.model = model
        self._bare: dict[tuple[Message, ...], str] = {}
        self.shape = shape_of(model)
        try:
            self.prompt = self._prompt()
            self.end_ids, self.end_text = self._end()
        except HistoryUnrenderable as error:
            raise TemplateUnusable(f"chat template: fails on a plain conversation: {error}") from error

    def text(self, messages: Sequence[Message], tools: Sequence[Json] = (), *, generate: bool = False) -> str:
        """Raises HistoryUnrenderable."""
        return self.model.render(self.shape.shown(messages), tools, generate=generate)

    def bare(self, messages: tuple[Message, ...]) -> str:
        """Text of one of the few conversations that stand in for a history, rendered once."""
        if messages not in self._bare:
            self._bare[messages] = self.text(messages)
        return self._bare[messages]

    def encode(self, text: str) -> list[int]:
        """Token ids."""
        return self.model.encode(text) if text else []

    def clean(self, left: str, right: str) -> bool:
        """Whether a text may be cut here, whatever stands around: a special token stands on either side."""
        marks = self.model.marks
        return not right or left.endswith(marks) or right.startswith(marks)

    def _prompt(self) -> str:
        """The generation prompt; "" where it is not simply added."""
        bare, whole = self.text((_SYSTEM, _USER)), self.text((_SYSTEM, _USER), generate=True)
        return whole[len(bare) :] if whole.startswith(bare) else ""

    def _end(self) -> tuple[list[int], str]:
        """The special token that ends every assistant turn, as ids and as text; nothing where there is none."""
        text = self.text((_SYSTEM, _USER, Message("assistant", MARK), Message("user", "And now?")))
        rest = text[text.rfind(MARK) + len(MARK) :] if MARK in text else ""
        ids = self.encode(rest)[:1]
        mark = self.model.decode(ids) if ids else ""
        found = bool(mark) and rest.startswith(mark) and mark in self.model.marks
        return (ids, mark) if found else ([], "")
