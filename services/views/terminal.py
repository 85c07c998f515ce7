"""Text of models and harnesses on a terminal: one line of it, or all, and never a control character."""

import os
import sys
from collections.abc import Iterable

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

WIDE = 1000
"""Columns of what is no terminal: more than any table has."""


def wide() -> Console:
    """For tables on stdout: as wide as a terminal, or as COLUMNS says; of a file or a pipe, as wide as they are."""
    bounded = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(highlight=False, width=None if bounded else WIDE)


def one_line(text: str, width: int | None = None) -> str:
    """The text on one line, of at most `width` characters if that is given; its line ends are backslash and n."""
    shown = _escaped((text if width is None else text[: width + 1]).replace("\n", "\\n"))
    return shown if width is None or len(shown) <= width else f"{shown[: width - 1]}…"


def paragraphs(text: str) -> str:
    """The text with its lines as they are and everything else that is not printable written out."""
    return "\n".join(_escaped(line) for line in text.split("\n"))


def show(console: Console, lines: Iterable[Text | str]) -> None:
    """Print lines as they are: nothing in them is markup, and none is broken but by the terminal."""
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False, emoji=False)


def table(names: Iterable[str], rows: Iterable[Iterable[str]], title: str | None = None) -> Table:
    """A table whose names and cells are shown as they are: nothing in them is markup or a control character."""
    drawn = Table(*(Column(_plain(name), overflow="fold") for name in names), title=title, title_justify="left")
    for row in rows:
        drawn.add_row(*map(_plain, row))
    return drawn


def _plain(text: str) -> Text:
    return Text(paragraphs(text))


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
