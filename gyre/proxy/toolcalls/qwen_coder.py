"""Qwen coder: `<tool_call><function=NAME><parameter=P>value</parameter>...</function></tool_call>`.

Values are bare text: one line break is taken off either end, and the tool's schema says what is no string. The outer
mark may be missing; a `<function=` that is never closed is text.
"""

import json
import re
from collections.abc import Sequence

from gyre.proxy.normalise import Json
from gyre.proxy.toolcalls.port import Found, is_json

_END = "</function>"
_BLOCK = re.compile(
    r"(?:<tool_call>\s*)?<function=([^<>\s]+)>(.*?)</function>(?:\s*</tool_call>)?",
    re.DOTALL,
)
_PARAMETER = re.compile(r"<parameter=([^<>\s]+)>(.*?)(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL)
_PYTHON = {"True": "true", "False": "false", "None": "null"}


def qwen_coder(text: str, tools: Sequence[Json]) -> list[Found]:
    """Every closed function block. Behind the last end no beginning is looked for: a policy may say it for ever."""
    _, end, rest = text.rpartition(_END)
    stop = len(text) - len(rest.lstrip().removeprefix("</tool_call>")) if end else 0
    return [
        Found(block.start(), block.end(), block.group(1), _arguments(block.group(2), _types(block.group(1), tools)))
        for block in _BLOCK.finditer(text, 0, stop)
    ]


def _arguments(body: str, types: Json) -> str:
    values = {name: _value(_unwrapped(raw), types.get(name)) for name, raw in _PARAMETER.findall(body)}
    return "{" + ",".join(f"{_quoted(name)}:{value}" for name, value in values.items()) + "}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _unwrapped(raw: str) -> str:
    return raw.removeprefix("\n").removesuffix("\n")


def _value(raw: str, schema: object) -> str:
    """JSON of the text, unless the schema wants something else and the text is that already."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    kinds = kind if isinstance(kind, list) else [kind]
    if "string" in kinds or kinds == [None]:
        return _quoted(raw)
    value = _PYTHON.get(raw.strip(), raw.strip())
    return value if is_json(value) else _quoted(raw)


def _types(name: str, tools: Sequence[Json]) -> Json:
    for tool in tools:
        function = tool.get("function", tool)
        if isinstance(function, dict) and function.get("name") == name:
            parameters = function.get("parameters")
            properties = parameters.get("properties") if isinstance(parameters, dict) else None
            return properties if isinstance(properties, dict) else {}
    return {}
