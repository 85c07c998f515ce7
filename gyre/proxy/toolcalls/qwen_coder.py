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
_ALTERNATIVES = ("anyOf", "oneOf", "allOf")


def qwen_coder(text: str, tools: Sequence[Json]) -> list[Found]:
    """Every closed function block. Behind the last end no beginning is looked for: a policy may say it for ever."""
    _, end, rest = text.rpartition(_END)
    stop = len(text) - len(rest.lstrip().removeprefix("</tool_call>")) if end else 0
    return [
        Found(block.start(), block.end(), block.group(1), _arguments(block.group(2), _schema(block.group(1), tools)))
        for block in _BLOCK.finditer(text, 0, stop)
    ]


def _arguments(body: str, schema: Json) -> str:
    shapes = schema.get("properties")
    known = shapes if isinstance(shapes, dict) else {}
    given = {name: _unwrapped(raw) for name, raw in _PARAMETER.findall(body)}
    values = (f"{_quoted(name)}:{_value(raw, _kinds(known.get(name), schema))}" for name, raw in given.items())
    return "{" + ",".join(values) + "}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _unwrapped(raw: str) -> str:
    return raw.removeprefix("\n").removesuffix("\n")


def _value(raw: str, kinds: set[str]) -> str:
    """The text as a JSON string, unless the schema wants something else and the text is that already."""
    if "string" in kinds or not kinds:
        return _quoted(raw)
    value = _PYTHON.get(raw.strip(), raw.strip())
    return value if is_json(value) else _quoted(raw)


def _kinds(shape: object, schema: Json) -> set[str]:
    """The types that a value may have, through alternatives and references; none where nothing says."""
    kinds, waiting, seen = set[str](), [shape], set[str]()
    while waiting:
        each = waiting.pop()
        if not isinstance(each, dict):
            continue
        kinds.update(kind for kind in _listed(each.get("type")) if isinstance(kind, str))
        waiting += [inner for name in _ALTERNATIVES for inner in _listed(each.get(name))]
        reference = each.get("$ref")
        if isinstance(reference, str) and reference not in seen:
            seen.add(reference)
            waiting.append(_referenced(reference, schema))
    return kinds


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _referenced(reference: str, schema: Json) -> object:
    """What `#/$defs/NAME` or a longer path stands for; None where it leads nowhere."""
    found: object = schema
    for name in reference.removeprefix("#/").split("/"):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _schema(name: str, tools: Sequence[Json]) -> Json:
    """Of a tool's parameters."""
    for tool in tools:
        function = tool.get("function", tool)
        if isinstance(function, dict) and function.get("name") == name:
            parameters = function.get("parameters")
            return parameters if isinstance(parameters, dict) else {}
    return {}
