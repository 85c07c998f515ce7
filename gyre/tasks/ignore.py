"""`.dockerignore`: what of a folder stays out of a build context, by the rules of Docker's own client.

The last pattern that matches a name, or a folder that it lies in, decides; `!` takes back what an earlier one hid.
"""

import posixpath
import re

from gyre.tasks.task_file import TaskError


class Ignore:
    """The patterns of one file."""

    def __init__(self, text: str, where: str = ".dockerignore") -> None:
        """Raises TaskError naming `where` and the pattern that is none."""
        self._rules: list[tuple[re.Pattern[str], bool]] = []
        for line in text.removeprefix("\ufeff").splitlines():
            words = line.strip()
            if not words or line.startswith("#"):
                continue
            back = words.startswith("!")
            pattern = posixpath.normpath(words.removeprefix("!").strip()).lstrip("/")
            if pattern in ("", "."):
                continue
            try:
                self._rules.append((re.compile(_expression(pattern), re.DOTALL), not back))
            except re.error as error:
                raise TaskError(f"{where}: {words!r} is no pattern: {error}") from error

    def hides(self, name: str) -> bool:
        """Whether a file or folder, named relative to the context, stays out."""
        parts = name.split("/")
        names = ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]
        hidden = False
        for pattern, hides in self._rules:
            if hidden != hides and any(pattern.fullmatch(each) for each in names):
                hidden = hides
        return hidden


def _expression(pattern: str) -> str:
    """A pattern as a regular expression: `*` and `?` stop at a slash, `**` does not."""
    found = ""
    for token in re.findall(r"\*\*/?|\\.|.", pattern, re.DOTALL):
        match token:
            case "**/":
                found += "(?:.*/)?"
            case "**":
                found += ".*"
            case "*":
                found += "[^/]*"
            case "?":
                found += "[^/]"
            case "[" | "]" | "^" | "-":  # a class is written as in regular expressions
                found += token
            case _:
                found += re.escape(token[-1])
    return found
