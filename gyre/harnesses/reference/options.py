"""The command line, parsed by hand: argparse alone would cost as much as a whole episode."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    Filled = TypeVar("Filled")

HELP = """\
usage: agent.py [options]      (run with the workspace as current directory)

Works on the task in $GYRE_INSTRUCTION_FILE by calling an OpenAI-compatible model with tools until it finishes.

environment:
  OPENAI_BASE_URL         such as http://127.0.0.1:8000/v1 (required)
  OPENAI_API_KEY          sent as a bearer token (required)
  GYRE_INSTRUCTION_FILE   path of the instruction (required)
  GYRE_MODEL              model name to ask for (default: default)

options:
  --max-turns N           model calls in all, sub-agents and summaries included (default 40)
  --max-tokens N          most tokens of one answer (default 1024)
  --compact-at N          summarise and start afresh once a call used N tokens; 0 = only when refused (default 0)
  --retry-for SECONDS     keep trying an unreachable or failing server this long (default 120)
  --call-timeout SECONDS  longest silence of the server within one call (default 600)
  --shell-timeout SECONDS longest run of one shell command (default 30)
  --output-limit N        most characters of a tool result that reach the model (default 8000)
  --depth N               how deep sub-agents may be nested (default 1)
  --keep-going N          answer N replies without a tool call by asking for one, instead of ending (default 0)
  --example               show the model a worked example first
  --stream                ask for server-sent events
  --help                  this text

exit code: 0 finished, 2 gave up (the reason is on stderr), 64 wrong usage
"""

LARGEST = 1e12


class UsageError(Exception):
    """The command line or the environment is wrong."""


class Options:
    """What may be set on the command line. Times in seconds, sizes in tokens or characters as in `HELP`."""

    def __init__(self) -> None:
        """The defaults."""
        self.max_turns = 40
        self.max_tokens = 1024
        self.compact_at = 0
        self.retry_for = 120.0
        self.call_timeout = 600.0
        self.shell_timeout = 30.0
        self.output_limit = 8000
        self.depth = 1
        self.keep_going = 0
        self.example = False
        self.stream = False
        self.help = False


def parse(arguments: "Sequence[str]") -> Options:
    """Options from the command line; raises UsageError naming the argument, its value and what was expected."""
    return filled(Options(), arguments, _number)


def filled(options: "Filled", arguments: "Sequence[str]", number: "Callable[[str, str, type], float]") -> "Filled":
    """Set what the arguments name; `number` makes one of (option, value, type of its default) or raises UsageError."""
    rest = list(arguments)
    while rest:
        word, equals, value = rest.pop(0).partition("=")
        name = word[2:].replace("-", "_") if word.startswith("--") else ""
        default = getattr(options, name, None) if name else None
        if default is None:
            raise UsageError(f"{word}: unknown option; see --help")
        if isinstance(default, bool):
            setattr(options, name, True)
            continue
        if not equals:
            if not rest:
                raise UsageError(f"{word}: needs a value; see --help")
            value = rest.pop(0)
        setattr(options, name, number(word, value, type(default)))
    return options


def _number(word: str, value: str, kind: type) -> float:
    try:
        number: float = kind(value)
    except ValueError:
        number = -1
    smallest = 1 if word in ("--max-turns", "--max-tokens", "--output-limit") else 0
    if not smallest <= number < LARGEST:
        raise UsageError(f"{word}: {value!r} is not a number of at least {smallest}")
    return number
