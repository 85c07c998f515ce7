"""From the environment and the command line to an episode and an exit code."""

# Importing pathlib would cost a tenth of an episode.
# ruff: noqa: PTH109, PTH123

import os
import sys

from .chat import Chat, GaveUpError
from .loop import Agent
from .options import HELP, Options, UsageError, parse
from .tools import Workspace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FINISHED, GAVE_UP, WRONG_USAGE = 0, 2, 64


def main(arguments: "Sequence[str]", environment: "Mapping[str, str]") -> int:
    """Run one episode in the current directory; the final message goes to stdout, a reason to give up to stderr."""
    try:
        options = parse(arguments)
        if options.help:
            print(HELP, end="")
            return FINISHED
        agent, instruction = _prepared(options, environment)
    except (UsageError, ValueError, OSError) as error:
        print(f"agent: {error}", file=sys.stderr)
        return WRONG_USAGE
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # a policy may say what UTF-8 cannot
    try:
        print(agent.work(instruction))
    except GaveUpError as error:
        print(f"agent: gave up: {error}", file=sys.stderr)
        return GAVE_UP
    return FINISHED


def _prepared(options: Options, environment: "Mapping[str, str]") -> tuple[Agent, str]:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "GYRE_INSTRUCTION_FILE"):
        if not environment.get(name):
            raise UsageError(f"{name} is not set; see --help")
    with open(environment["GYRE_INSTRUCTION_FILE"], encoding="utf-8") as file:
        instruction = file.read().strip()
    url, key = environment["OPENAI_BASE_URL"], environment["OPENAI_API_KEY"]
    chat = Chat(url, key, environment.get("GYRE_MODEL") or "default", options)
    return Agent(chat, Workspace(os.getcwd(), options), options), instruction
