"""From sampled text to an assistant message: one parser for each family of models, chosen by the template.

A call that names no tool stays text, as does one that is never closed. A call whose name can be read but whose
arguments are no JSON is a call with those raw arguments: the client answers it with an error, and the policy sees it.
"""

from gyre.proxy.toolcalls.answers import answer, call_id
from gyre.proxy.toolcalls.families import FAMILIES
from gyre.proxy.toolcalls.port import Found, Parser

__all__ = ["FAMILIES", "Found", "Parser", "answer", "call_id"]
