"""A model folder's tokenizer and chat template, read directly: a proxy starts without transformers and torch.

Rendering follows what Hugging Face documents for chat templates (jinja2, trimmed blocks, `tojson` without HTML
escapes, `raise_exception`); a test holds it against transformers' own. The clock function that some templates look for
is left undefined, so that a history always renders to the same text.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from gyre.proxy.errors import HistoryUnrenderable, TemplateUnusable
from gyre.proxy.normalise import Json
from gyre.proxy.toolcalls.port import sound

SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")
_REFUSALS = (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError)


class ChatModel:
    """Text to token ids and back, and a list of messages to text."""

    def __init__(self, tokenizer: Tokenizer, template: str, special: dict[str, str], stops: tuple[int, ...]) -> None:
        """`special`: names such as `bos_token` as the template uses them; `stops`: ids that end an answer."""
        self._tokenizer = tokenizer
        self._template = _environment().from_string(template)
        self._special = special
        self.stop_token_ids = stops
        added = tokenizer.get_added_tokens_decoder().values()
        self.marks = tuple(str(token.content) for token in added if not (token.lstrip or token.rstrip))
        """Texts that are always tokens of their own, whatever stands beside them."""

    @classmethod
    def load(cls, folder: Path) -> "ChatModel":
        """Read `tokenizer.json`, the template and the stop tokens. Raises TemplateUnusable naming what is missing."""
        if not (folder / "tokenizer.json").is_file():
            raise TemplateUnusable(
                f"model folder {folder}: has no tokenizer.json; save the tokenizer in the fast format"
            )
        tokenizer = _tokenizer(folder / "tokenizer.json")
        tokenizer.no_padding()
        tokenizer.no_truncation()
        config = _json(folder / "tokenizer_config.json")
        special = {name: text for name in SPECIAL if (text := _token_text(config.get(name)))}
        stops = _stops(folder, tokenizer, special.get("eos_token"))
        try:
            return cls(tokenizer, _template(folder, config), special, stops)
        except TemplateError as error:
            raise TemplateUnusable(f"model folder {folder}: the chat template does not compile: {error}") from error

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; marks such as `<|im_end|>` in it become their special tokens."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def render(self, messages: Sequence[Json], tools: Sequence[Json] = (), *, generate: bool = False) -> str:
        """The history as text, with the generation prompt if `generate`. Raises HistoryUnrenderable."""
        try:
            text: str = self._template.render(
                messages=list(messages),
                tools=list(tools) or None,
                documents=None,
                add_generation_prompt=generate,
                **self._special,
            )
        except _REFUSALS as error:
            detail = " ".join(str(error).split())[:200]
            raise HistoryUnrenderable(f"messages: the model's chat template refuses this history: {detail}") from error
        return sound(text)  # arguments may hold half of a surrogate pair as an escape


def _tokenizer(file: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing more particular
        raise TemplateUnusable(f"{file}: is no tokenizer: {' '.join(str(error).split())[:200]}") from error


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"], autoescape=False
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    return environment


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    dump: Callable[..., str] = json.dumps
    return dump(value, ensure_ascii=ensure_ascii, **options)


def _template(folder: Path, config: Json) -> str:
    file = folder / "chat_template.jinja"
    found = file.read_text(encoding="utf-8") if file.is_file() else config.get("chat_template")
    if isinstance(found, list):
        named = {item.get("name"): item.get("template") for item in found if isinstance(item, dict)}
        found = named.get("tool_use", named.get("default"))
    if not isinstance(found, str):
        raise TemplateUnusable(f"model folder {folder}: has no chat template; add chat_template.jinja")
    return found


def _stops(folder: Path, tokenizer: Tokenizer, eos: str | None) -> tuple[int, ...]:
    """Every id that the folder names as the end of an answer, the tokenizer's own first."""
    found: list[int] = []
    if eos is not None and (eos_id := tokenizer.token_to_id(eos)) is not None:
        found.append(eos_id)
    for name in ("generation_config.json", "config.json"):
        value = _json(folder / name).get("eos_token_id")
        found += value if isinstance(value, list) else [value] if isinstance(value, int) else []
    if not found:
        raise TemplateUnusable(f"model folder {folder}: names no eos_token; an answer could never end")
    return tuple(dict.fromkeys(found))


def _token_text(value: object) -> str:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else ""


def _json(file: Path) -> Json:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise TemplateUnusable(f"{file}: cannot be read as JSON: {error}") from error
    return value if isinstance(value, dict) else {}
