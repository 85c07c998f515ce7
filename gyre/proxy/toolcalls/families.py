"""The parsers by name, as `rollout.tool_parser` says them."""

from collections.abc import Sequence

from gyre.proxy.normalise import Json
from gyre.proxy.toolcalls.hermes import hermes
from gyre.proxy.toolcalls.llama import llama
from gyre.proxy.toolcalls.mistral import mistral
from gyre.proxy.toolcalls.port import Found, Parser
from gyre.proxy.toolcalls.qwen_coder import qwen_coder


def generic(text: str, tools: Sequence[Json]) -> list[Found]:
    """Whatever the first family finds that finds anything."""
    return next((found for parser in (hermes, qwen_coder, mistral, llama) if (found := parser(text, tools))), [])


FAMILIES: dict[str, Parser] = {
    "hermes": hermes,
    "qwen_coder": qwen_coder,
    "llama": llama,
    "mistral": mistral,
    "generic": generic,
}
"""In the order in which `auto` tries them."""
