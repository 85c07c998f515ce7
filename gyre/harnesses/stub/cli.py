"""From the environment and the command line to an episode and an exit code."""

# Importing pathlib would cost a tenth of an episode.
# ruff: noqa: PTH119, PTH120, PTH123

import os
import sys

from gyre.harnesses.reference.chat import Chat, GaveUpError
from gyre.harnesses.reference.options import Options as ChatOptions
from gyre.harnesses.reference.options import UsageError

from .options import HELP, Options, parse
from .workload import calls_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

FINISHED, GAVE_UP, WRONG_USAGE = 0, 2, 64
GO_ON = "Go on with the next part."


def main(arguments: "Sequence[str]", environment: "Mapping[str, str]") -> int:
    """Run one episode in the current directory; a reason to give up goes to stderr."""
    try:
        options = parse(arguments)
        if options.help:
            print(HELP, end="")
            return FINISHED
        name, instruction = _task(environment)
        limits = ChatOptions()
        url, key = environment["OPENAI_BASE_URL"], environment["OPENAI_API_KEY"]
        chat = Chat(url, key, environment.get("GYRE_MODEL") or "default", limits)
    except (UsageError, ValueError, OSError) as error:
        print(f"agent: {error}", file=sys.stderr)
        return WRONG_USAGE
    try:
        _talk(chat, limits, options, name, instruction)
    except GaveUpError as error:
        print(f"agent: gave up: {error}", file=sys.stderr)
        return GAVE_UP
    if int(name.rpartition("-")[2]) % 2 == 0:
        _work(instruction)
    return FINISHED


def _task(environment: "Mapping[str, str]") -> tuple[str, str]:
    """The execution's name and its instruction."""
    for variable in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "GYRE_INSTRUCTION_FILE"):
        if not environment.get(variable):
            raise UsageError(f"{variable} is not set; see --help")
    path = environment["GYRE_INSTRUCTION_FILE"]
    name = os.path.basename(os.path.dirname(path))
    if not name.rpartition("-")[2].isdigit():
        raise UsageError(f"GYRE_INSTRUCTION_FILE: its folder {name!r} does not end in a number, such as x3-0")
    with open(path, encoding="utf-8") as file:
        return name, file.read().strip()


def _talk(chat: Chat, limits: ChatOptions, options: Options, name: str, instruction: str) -> None:
    """Each call goes on from the answer before it."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": instruction}]
    for tokens in calls_of(options, name):
        limits.max_tokens = tokens
        messages.append(chat.ask(messages, []).message)
        messages.append({"role": "user", "content": GO_ON})


def _work(instruction: str) -> None:
    """Write what is quoted last but one into the file whose name is quoted last: a part of any word task."""
    quoted = instruction.split('"')[1::2]
    if len(quoted) > 1 and "/" not in quoted[-1]:
        with open(quoted[-1], "w", encoding="utf-8") as file:
            file.write(quoted[-2] + "\n")
