"""The task's own files, which are laid over the work, the twins of its tests, and what both prove."""

from __future__ import annotations

import importlib
import secrets
import sys
import tokenize
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path
certain: Any = importlib.import_module("certain")
files: Any = importlib.import_module("files")
twins: Any = importlib.import_module("twins")


class Laid:
    """All of them."""

    def __init__(self, wanted: dict[str, Any], top: Path) -> None:
        """Read them in the folder `top`."""
        self.top, self.files = top, set(wanted["files"])
        self.named = {*wanted["must_pass"], *wanted["keep_passing"]}
        self.twins: dict[str, Any] = {}
        self.sure: dict[str, int] = {}
        """{test: how many results it has for certain} of files whose tests are not named."""
        self._unlike: set[str] = set()
        """Files whose twins may leave behind something else than their tests."""
        self._encodings: dict[str, str] = {}
        self.skips = self._skipped_by_all = False
        for path in sorted(top.rglob("*.py")):
            self._read(path, wanted)
        if self._skipped_by_all or wanted["config"]:
            self.sure = {}
        self._find_unlike()
        self.runs = 2 if self.twins else 1
        self._all = secrets.randbelow(self.runs)
        self._turned = self._drawn()

    def _read(self, path: Path, wanted: dict[str, Any]) -> None:
        name = str(path.relative_to(self.top))
        text, self._encodings[name] = read(path)
        self.skips = self.skips or "skip" in text.lower()
        self._skipped_by_all = self._skipped_by_all or (path.name == "conftest.py" and "skip" in text.lower())
        if sys.version_info >= (3, 8):  # noqa: UP036 - older ones than ours do not say where what they read ends
            self._understand(name, text, wanted)

    def _understand(self, name: str, text: str, wanted: dict[str, Any]) -> None:
        is_tests = name in self.files
        made = twins.Twin(text, methods_only=not is_tests or wanted["runner"] == "unittest")
        if is_tests and wanted["count"] and not made.makes_more:
            sure = certain.certain(made.module, made.source, wanted["runner"])
            self.sure.update({f"{name}::{test}": results for test, results in sure.items()})
        if wanted["twins"]:
            self.twins[name] = made
            if not made.leaves_alike or "\ufffd" in text:
                self._unlike.add(name)

    def _find_unlike(self) -> None:
        """Add those that call tests, or that take them from a file that leaves something else behind."""
        named = {name: made.names for name, made in self.twins.items()}
        for name, made in self.twins.items():
            if any(made.turned & names for names in named.values()):
                self._unlike.add(name)
        inherited = {stem(name) for name in self._unlike if self.twins[name].turned}
        self._unlike |= {name for name, names in named.items() if names & inherited}

    def _drawn(self) -> dict[str, int]:
        """{function of tests: the run in which its twins are}.

        In one run where a twin may leave behind something else than its test, which others of its file may need.
        """
        names = sorted({name for made in self.twins.values() for name in made.turned})
        together = {name for file in self._unlike for name in self.twins[file].turned}
        return {name: 1 - self._all if name in together else secrets.randbelow(2) for name in names}

    def in_order(self, names: list[str]) -> list[str]:
        """Files of tests: what twins of some leave undone comes behind the others, which may be tests in that run."""
        return sorted(names, key=lambda name: name in self._unlike)

    def over(self, work: Path, run: int) -> None:
        """Lay them over the work: as they are, with the twins that this run has."""
        files.lay_over(self.top, work)
        turned = {name for name, where in self._turned.items() if where == run}
        for name, made in self.twins.items():
            if made.turned & turned:
                with (work / name).open("w", encoding=self._encodings[name], errors="replace") as file:
                    file.write(made.text(turned))

    def proven(self, runs: list[dict[str, str]]) -> tuple[set[str], set[str], int]:
        """(tests that passed, tests that were skipped, how many more passed as their twins did)."""
        told = {name: self._outcomes(name, runs) for name in {name for outcomes in runs for name in outcomes}}
        passed = {name for name, (true, _) in told.items() if true == "passed"}
        skipped = {name for name, (true, _) in told.items() if true == "skipped" and self.skips}
        good = {name for name in passed if not self.twins or self._is_proven(name, told[name][1])}
        return good, skipped, len(passed - good)

    def _outcomes(self, name: str, runs: list[dict[str, str]]) -> tuple[str | None, str | None]:
        """(a test's own outcome, its twin's)."""
        if not self.twins:
            return runs[0].get(name), None
        twin = self._turned.get(self._standing(name)[0], 1 - self._all)
        return runs[1 - twin].get(name), runs[twin].get(name)

    def _standing(self, name: str) -> tuple[str, bool]:
        """(the function with a twin that a test is, or nothing; whether it can have none)."""
        file, function = name.partition("::")[0], name.partition("[")[0].rpartition("::")[2]
        own = self.twins[file]
        found = "" if function in own.exempt - own.turned else named_after(function, own.turned)
        if found or function in own.exempt or own.makes_more:
            return found, not found
        others = [made for other, made in self.twins.items() if other != file]  # it may be inherited from there
        if any(function in made.turned for made in others):
            return function, False
        if any(function in made.exempt for made in others):
            return "", True
        helpers = [made.turned for other, made in self.twins.items() if other not in self.files]
        return named_after(function, set().union(*helpers)), False

    def _is_proven(self, name: str, turned: str | None) -> bool:
        """Whether a test that passed has a twin that did not, or can have none."""
        function, has_none = self._standing(name)
        return turned == "failed" if function else has_none or name in self.named


def named_after(function: str, known: set[str]) -> str:
    """The one of these that a function is, or that `parameterized` has added to; none: nothing."""
    longer = [each for each in known if function.startswith(f"{each}_")]
    return function if function in known else max(longer, key=len, default="")


def read(path: Path) -> tuple[str, str]:
    """(text, encoding) of a file of Python, as Python itself finds it; what cannot be read is U+FFFD."""
    try:
        with tokenize.open(path) as file:
            return file.read(), file.encoding
    except (SyntaxError, UnicodeDecodeError):
        return path.read_text(encoding="utf-8", errors="replace"), "utf-8"


def stem(name: str) -> str:
    """What a file is imported as."""
    parts = name[: -len(".py")].split("/")
    return parts[-2] if parts[-1] == "__init__" and len(parts) > 1 else parts[-1]
