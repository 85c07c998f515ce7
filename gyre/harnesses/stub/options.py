"""The stub's command line, parsed by hand: argparse alone would cost as much as starting Python."""

from gyre.harnesses.reference.options import UsageError, filled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

HELP = """\
usage: agent.py [options]      (run with the workspace as current directory)

Makes dependent calls of an OpenAI-compatible model, each of a drawn number of tokens, and decides nothing. Every second
execution of a group then does what it can of its task, so that rewards differ. For measuring everything but the model.

environment:
  OPENAI_BASE_URL         such as http://127.0.0.1:8000/v1 (required)
  OPENAI_API_KEY          sent as a bearer token (required)
  GYRE_INSTRUCTION_FILE   path of the instruction (required); the execution is named by its folder, such as x3-0
  GYRE_MODEL              model name to ask for (default: default)

options:
  --calls N               model calls of an execution (default 20)
  --tokens N              median output tokens of an execution, all calls together (default 160)
  --sigma S               standard deviation of their logarithm, over all executions (default 0.52)
  --query-share S         share of that variance which executions of one group have in common (default 0.62)
  --most N                most output tokens of an execution; 0: no limit (default 0)
  --seed N                of everything drawn (default 0)
  --help                  this text

exit code: 0 finished, 2 gave up (the reason is on stderr), 64 wrong usage
"""

LARGEST = 1e9


class Options:
    """What may be set on the command line, as in `HELP`."""

    def __init__(self) -> None:
        """The defaults."""
        self.calls = 20
        self.tokens = 160
        self.sigma = 0.52
        self.query_share = 0.62
        self.most = 0
        self.seed = 0
        self.help = False


def parse(arguments: "Sequence[str]") -> Options:
    """Options from the command line; raises UsageError naming the argument, its value and what was expected."""
    return filled(Options(), arguments, _number)


def _number(word: str, value: str, kind: type) -> float:
    try:
        number: float = kind(value)
    except ValueError:
        number = -1
    smallest = 1 if word in ("--calls", "--tokens") else 0
    largest = 1 if word == "--query-share" else LARGEST
    if not smallest <= number <= largest:
        raise UsageError(f"{word}: {value!r} is not a number from {smallest} to {largest:g}")
    return number
