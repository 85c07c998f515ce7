"""The agent: asks the model, carries out its tool calls, summarises when the context fills, delegates to sub-agents."""

import json

from .chat import Answer, Chat, GaveUpError, PromptTooLongError
from .tools import DELEGATE, FILE_TOOLS, FINISH, ToolError, Workspace, text_argument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .options import Options

    Message = dict[str, Any]

SYSTEM = (
    "You work in a folder.\nUse the tools step by step. When the work is done, call finish or answer without a tool."
)
SUB_SYSTEM = "You help in a folder.\nUse the tools to do this part of the work, then answer with a short report."
GO_ON = "Go on: use a tool, or call finish when all of the work is done."
COMPACT = (
    "[compaction] The context is nearly full. Without using tools, summarise the work so far: what was asked, what has "
    "been done and found, and what is left to do."
)
SUMMARY = "\n\nSummary of the work so far:\n"


def _written(path: str, content: str, call: str) -> "tuple[Message, Message]":
    arguments = json.dumps({"path": path, "content": content}, separators=(",", ":"))
    asked = {"id": call, "type": "function", "function": {"name": "write", "arguments": arguments}}
    return (
        {"role": "assistant", "content": None, "tool_calls": [asked]},
        {"role": "tool", "tool_call_id": call, "content": "ok"},
    )


EXAMPLE: "tuple[Message, ...]" = (
    {
        "role": "user",
        "content": "Write three files: `note.txt` with the line `Good morning`, `day.txt` with the line `Monday`, and "
        "`weather.txt` with the line `rain`.",
    },
    *_written("note.txt", "Good morning", "example_0"),
    *_written("day.txt", "Monday", "example_1"),
    *_written("weather.txt", "rain", "example_2"),
    {"role": "assistant", "content": "All files are written."},
)
"""A small task done with the tools: small models copy how more readily than they read it."""


class Agent:
    """One episode: contexts (main and sub-agents) over one workspace, sharing one budget of model calls."""

    def __init__(self, chat: Chat, workspace: Workspace, options: "Options") -> None:
        """Ready to work in `workspace` with whoever answers at `chat`."""
        self._chat = chat
        self._workspace = workspace
        self._options = options
        self._calls_left = options.max_turns

    def work(self, prompt: str, depth: int = 0) -> str:
        """Work on `prompt` to the end in a fresh context and return the final message. Raises GaveUpError."""
        tools = [*FILE_TOOLS, *([DELEGATE] if depth < self._options.depth else []), FINISH]
        root = _root(prompt, depth, EXAMPLE if self._options.example else ())
        messages = list(root)
        nudges = self._options.keep_going
        while True:
            try:
                answer = self._ask(messages, tools)
            except PromptTooLongError as refused:
                messages = self._compacted(root, messages[:-1], tools, refused)
                continue
            messages.append(answer.message)
            calls = answer.message.get("tool_calls")
            if not calls and nudges <= 0:
                return answer.message["content"] or ""
            if not calls:
                nudges -= 1
                messages.append({"role": "user", "content": GO_ON})
            for call in calls or ():
                result, final = self._use(call, depth)
                if final:
                    return result
                messages.append({"role": "tool", "tool_call_id": _call_id(call), "content": result})
            if 0 < self._options.compact_at <= answer.tokens:
                messages = self._compacted(root, messages, tools, None)

    def _ask(self, messages: "list[Message]", tools: "list[Message]") -> Answer:
        if self._calls_left <= 0:
            raise GaveUpError(f"still working after {self._options.max_turns} model calls (--max-turns)")
        self._calls_left -= 1
        return self._chat.ask(messages, tools)

    def _compacted(
        self,
        root: "list[Message]",
        messages: "list[Message]",
        tools: "list[Message]",
        refused: PromptTooLongError | None,
    ) -> "list[Message]":
        """A new root that ends in a summary of `messages`; whole turns are forgotten until the request for it fits."""
        while True:
            messages = _whole_turns(messages, len(root))
            if refused is not None and len(messages) <= len(root):
                raise GaveUpError(f"the context is full and nothing is left to summarise: {refused}")
            try:
                answer = self._ask([*messages, {"role": "user", "content": COMPACT}], tools)
            except PromptTooLongError as again:
                refused, messages = again, messages[:-1]
                continue
            summary = answer.message["content"] or "(none)"
            return [*root[:-1], {"role": "user", "content": root[-1]["content"] + SUMMARY + summary}]

    def _use(self, call: "Any", depth: int) -> tuple[str, bool]:
        """What the model is told about its tool call, and whether it was the end of this context's work."""
        try:
            name, arguments = _parsed(call)
            if name == "finish":
                return str(arguments.get("message") or ""), True
            if name == "delegate" and depth < self._options.depth:
                return self._workspace.shortened(self.work(text_argument(arguments, "prompt"), depth + 1)), False
            return self._workspace.use(name, arguments), False
        except ToolError as error:
            return f"error: {error}", False


def _root(prompt: str, depth: int, example: "tuple[Message, ...]") -> "list[Message]":
    system = {"role": "system", "content": SUB_SYSTEM if depth else SYSTEM}
    return [system, *example, {"role": "user", "content": prompt}]


def _whole_turns(messages: "list[Message]", smallest: int) -> "list[Message]":
    """`messages` without a last turn whose tool results are not all there."""
    while len(messages) > smallest:
        last = max(index for index, message in enumerate(messages) if message["role"] == "assistant")
        if len(messages) - last - 1 == len(messages[last].get("tool_calls") or ()):
            break
        messages = messages[:last]
    return messages


def _parsed(call: "Any") -> "tuple[str, Message]":
    try:
        name, raw = call["function"]["name"], call["function"]["arguments"]
        arguments = raw if isinstance(raw, dict) else json.loads(raw or "{}")
    except (KeyError, TypeError) as error:
        raise ToolError("malformed tool call") from error
    except (ValueError, RecursionError) as error:
        raise ToolError("arguments are not valid JSON") from error
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise ToolError("arguments must be a JSON object")
    return name, arguments


def _call_id(call: "Any") -> str:
    return str(call.get("id", "")) if isinstance(call, dict) else ""
