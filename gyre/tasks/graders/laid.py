"""The task's own files, which are laid over the work, the twins of its tests, and what both prove."""

from __future__ import annotations

import importlib
import secrets
import sys
import tokenize
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
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
        self._shown: set[tuple[str, str]] = set()
        """(file, function) with a twin though the agent may read the test as it stands."""
        self._encodings: dict[str, str] = {}
        self.skips = self._skipped_by_all = False
        for path in sorted(top.rglob("*.py")):
            self._read(path, wanted)
        if self._skipped_by_all or wanted["config"]:
            self.sure = {}
        self._find_unlike()
        self._alone = self._standing_alone()
        self._leave_what_would_tell()
        self._without = self._names_without()
        self._longer = {name for made in self.twins.values() for name in made.listed} & self._without
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
        known = wanted["known"].get(name, ())
        methods_only = not is_tests or wanted["runner"] == "unittest"
        made = twins.Twin(text, methods_only, known)
        shown = shown_by(known, wanted["must_pass"])
        if shown:
            more = twins.Twin(text, methods_only, set(known) - shown)
            made = more if more.leaves_alike else made
            self._shown |= {(name, each) for each in shown & made.turned}
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
            if any(bare(made.turned) & names for names in named.values()):
                self._unlike.add(name)
        inherited = {stem(name) for name in self._unlike if self.twins[name].turned}
        self._unlike |= {name for name, names in named.items() if names & inherited}

    def _leave_what_would_tell(self) -> None:
        """No twins of tests that the agent may read, where one would tell it in which run those of others are.

        All of a file may be in one run, or all of a name. Drawn by itself, such a twin tells of nothing but its test.
        """
        turned = [each.rpartition(".")[2] for made in self.twins.values() for each in made.turned]
        without = self._names_without()
        for file, name in self._shown:
            last = name.rpartition(".")[2]
            shared = (file, name) not in self._alone and (turned.count(last) > 1 or last in without)
            if file in self._unlike or shared:
                self.twins[file].turned.discard(name)
                self.twins[file].exempt.add(name)

    def _names_without(self) -> set[str]:
        """Names of tests that have no twins, without those of their classes."""
        return {name for made in self.twins.values() for name in (*bare(made.exempt), *made.made)}

    def _drawn(self) -> dict[tuple[str, str], int]:
        """{(file, function of tests): the run in which its twins are}.

        In one run where a twin may leave behind something else than its test, which others of its file may need. One
        for all of a name where some may be reported in the place of another: they are inherited, or made by code; and
        that run where one of them has no twin, since it may be that one.
        """
        together = bare(name for file in self._unlike for name in self.twins[file].turned) | self._without
        by_name: dict[str, int] = {}
        drawn: dict[tuple[str, str], int] = {}
        for file, made in self.twins.items():
            for name in made.turned:
                last, number = name.rpartition(".")[2], secrets.randbelow(2)
                if (file, name) not in self._alone:
                    number = by_name.setdefault(last, 1 - self._all if last in together else number)
                drawn[file, name] = 1 - self._all if file in self._unlike else number
        return drawn

    def _standing_alone(self) -> set[tuple[str, str]]:
        """Functions that are reported where they stand and nowhere else: nobody speaks of them, nor of their class."""
        spoken = {name for made in self.twins.values() for name in (*made.names, *made.decorated)}
        if "*" in spoken or any(made.makes_more for made in self.twins.values()):
            return set()
        places = ((file, name) for file, made in self.twins.items() for name in made.turned)
        return {place for place in places if not spoken & set(place[1].split("."))}

    def in_order(self, names: list[str]) -> list[str]:
        """Files of tests: what twins of some leave undone comes behind the others, which may be tests in that run."""
        return sorted(names, key=lambda name: name in self._unlike)

    def over(self, work: Path, run: int) -> None:
        """Lay them over the work: as they are, with the twins that this run has."""
        files.lay_over(self.top, work)
        for name, made in self.twins.items():
            turned = {function for function in made.turned if self._turned[name, function] == run}
            if turned:
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
        place, _ = self._standing(name)
        twin = 1 - self._all if place is None else self._turned[place]
        return runs[1 - twin].get(name), runs[twin].get(name)

    def _standing(self, name: str) -> tuple[tuple[str, str] | None, bool]:
        """((file, function) with a twin that a test is, or nothing; whether it can have none)."""
        file, _, said = name.partition("[")[0].partition("::")
        own, function = self.twins[file], said.replace("::", ".")
        if function in own.exempt - own.turned:
            return None, True
        return ((file, function), False) if function in own.turned else self._elsewhere(file, function)

    def _elsewhere(self, file: str, function: str) -> tuple[tuple[str, str] | None, bool]:
        """The same of one that does not stand where it was reported: it is inherited, or was made by code."""
        own, last = self.twins[file], function.rpartition(".")[2]
        heir = own.inherits(function)
        if heir:
            return ((file, heir), False) if heir in own.turned else (None, True)
        turned = bare(each for made in self.twins.values() for each in made.turned)
        if last in self._without or named_after(last, turned | self._longer) in self._longer:  # it may be that one
            return None, True
        others = [name for name in self.twins if name != file]
        found = self._inherited(function, [file], named_after)
        if found or own.makes_more or function.partition(".")[0] in own.made:
            return found, not found
        found = self._inherited(function, others, lambda name, known: name if name in known else "")
        helpers = [name for name in others if name not in self.files]
        return found or self._inherited(function, helpers, named_after), False

    def _inherited(
        self, function: str, names: list[str], called: Callable[[str, set[str]], str]
    ) -> tuple[str, str] | None:
        """(file, function) in one of these files that it is called like: of its own class, or what may be inherited."""
        owner, dot, last = function.rpartition(".")
        places = [(name, each) for name in names for each in self.twins[name].turned]
        wanted = called(last, bare(each for _, each in places))
        found = [place for place in places if place[1].rpartition(".")[2] == wanted]
        own = owner + dot + wanted
        return min(found, key=lambda place: (place[1] != own, place in self._alone, place), default=None)

    def _is_proven(self, name: str, turned: str | None) -> bool:
        """Whether a test that passed has a twin that did not, or can have none."""
        place, has_none = self._standing(name)
        return turned == "failed" if place else has_none or name in self.named


def bare(names: Iterable[str]) -> set[str]:
    """Names of functions without those of their classes."""
    return {name.rpartition(".")[2] for name in names}


def shown_by(known: Iterable[str], must_pass: Iterable[str]) -> set[str]:
    """Those of the functions that the agent may read which tests that have to pass may be, here or inherited."""
    lasts = bare(known)
    wanted = {named_after(name.partition("[")[0].rpartition("::")[2], lasts) for name in must_pass}
    return {name for name in known if name.rpartition(".")[2] in wanted}


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
