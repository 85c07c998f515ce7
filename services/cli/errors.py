"""How commands end: what people can mend is one line on stderr and an exit code, never a stack trace."""

import asyncio
import os
import sys
from typing import Literal, NoReturn

import typer

from bus.errors import BusError
from gyre.errors import GyreError
from services.exits import EXIT_FAILED, EXIT_FULL, EXIT_INTERRUPTED, EXIT_UNHEARD, Interrupted, is_full
from services.views.terminal import paragraphs


def fail(message: str, code: int) -> NoReturn:
    """Say why on stderr and end."""
    typer.echo(paragraphs(message), err=True)
    sys.exit(code)


def _left_by_rich(error: BaseException | None) -> bool:
    """Whether a console met a pipe that nobody reads on: it leaves by an exit of its own."""
    return isinstance(error, SystemExit) and isinstance(error.__context__, BrokenPipeError)


class Errors:
    """What people can mend is one line on stderr, never a stack trace."""

    def __enter__(self) -> None:
        """Nothing."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> Literal[False]:
        """Turn a known error into its line and exit code."""
        if isinstance(error, BrokenPipeError) or _left_by_rich(error):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to be flushed at the end
            sys.exit(EXIT_UNHEARD)
        if isinstance(error, Interrupted):
            fail(str(error), EXIT_INTERRUPTED)
        if isinstance(error, GyreError | BusError | OSError):
            fail(str(error), EXIT_FULL if is_full(error) else EXIT_FAILED)
        if isinstance(error, KeyboardInterrupt | asyncio.CancelledError):
            fail("stopped", EXIT_INTERRUPTED)
        return False
