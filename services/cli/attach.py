"""The command that attaches a consumer of one's own."""

import asyncio
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from bus.subjects import TOKEN
from services.cli.errors import Errors, fail
from services.cli.options import Runs


def attach(
    consumer: Annotated[str, typer.Argument(help="module:Class or file.py:Class; with --exec, the run.")],
    run: Annotated[str | None, typer.Argument(help="Name of a run, or path of an archive.")] = None,
    begin: Annotated[
        str, typer.Option("--from", metavar="start|now|SEQ", help="Where to begin without a kept position.")
    ] = "start",
    durable: Annotated[str, typer.Option("--durable", metavar="NAME", help="Keep the position under this name.")] = "",
    option: Annotated[
        list[str] | None, typer.Option("--option", metavar="NAME=VALUE", help="For the class; repeatable.")
    ] = None,
    command: Annotated[str, typer.Option("--exec", help="A program in any language instead of a class.")] = "",
    calls: Annotated[bool, typer.Option("--calls", help="The program reads model calls instead of events.")] = False,
    runs: Runs = Path("runs"),
) -> None:
    """Run a consumer of your own beside a run, or over one that is at rest or an archive, until its log ends.

    It is a process of its own with a login that may ask for its own next message and nothing else. With --exec the
    program finds GYRE_NATS_URL, GYRE_NATS_USER, GYRE_NATS_PASSWORD, GYRE_INBOX, GYRE_STREAM, GYRE_CONSUMER and
    GYRE_AFTER in its environment.

    Example: gyre attach examples/consumers/reward_alert.py:RewardAlert demo --from now --durable alerts
    """
    from services.attach import Wish
    from services.attach import attach as begin_attached

    target = consumer if command else run
    if target is None or (command and run is not None):
        fail("attach: name a consumer and a run, or with --exec a run alone", 2)
    if begin not in ("start", "now") and not (begin.isdecimal() and int(begin) > 0):
        fail(f"--from {begin}: start, now or a sequence from 1", 2)
    if durable and TOKEN.fullmatch(durable) is None:
        fail(f"--durable {durable}: a name of A-Z a-z 0-9 _ -", 2)
    with Errors():
        wish = Wish(
            target,
            "" if command else consumer,
            tuple(shlex.split(command)),
            begin,
            durable,
            _options(option or []),
            "CALL" if calls else "EV",
        )
        outcome = asyncio.run(begin_attached(wish, runs))
    for stream, sequence in outcome.position.items():
        typer.echo(f"{stream}: read up to {sequence}", err=True)
    sys.exit(outcome.code)


def _options(words: list[str]) -> dict[str, str]:
    for word in words:
        if not word.partition("=")[0].isidentifier() or "=" not in word:
            fail(f"--option {word}: write NAME=VALUE", 2)
    return dict(word.split("=", 1) for word in words)


COMMANDS = (attach,)
