"""The protocol of each API, by the end of its path."""

from gyre.proxy import probes
from gyre.proxy.anthropic import Anthropic
from gyre.proxy.chat import Chat
from gyre.proxy.reply import WireProtocol
from gyre.proxy.responses import Responses

PROTOCOLS: dict[str, WireProtocol] = {
    probes.MESSAGES: Anthropic(),
    probes.COUNT: Anthropic(),
    probes.CHAT: Chat(),
    probes.RESPONSES: Responses(),
}
