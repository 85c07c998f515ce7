"""How far long work is: a bar on a terminal's stderr, a line now and then where that is none."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from services.views.terminal import one_line, show

Shown = Callable[..., None]
"""(done, of how many, what is under way); the last one may be left out, and the second where it was said before."""
LINE_SECONDS = 5.0
"""Between two lines at least, and before the first one: what is done at once says nothing."""
SAID = 60
"""Characters beside a bar."""


@contextmanager
def telling(what: str, total: int | None = None) -> Iterator[Shown]:
    """Say on stderr how far it is for as long as this lasts; `total`, where it is known from the start."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lines(what, console, total)
        return
    with Progress(console=console, transient=True) as bars:
        bar = bars.add_task(what, total=total)

        def shown(done: int, of: int | None = total, said: str = "") -> None:
            bars.update(bar, completed=done, total=of, description=escape(one_line(said, SAID)) or what)

        yield shown


def lines(what: str, console: Console, total: int | None, clock: Callable[[], float] = time.monotonic) -> Shown:
    """Tells in plain lines, for a file or a pipe."""
    last = clock()

    def shown(done: int, of: int | None = total, _: str = "") -> None:
        nonlocal last
        if (now := clock()) - last >= LINE_SECONDS:
            last = now
            show(console, [f"{what}: {done}" if of is None else f"{what}: {done} of {of}"])

    return shown
