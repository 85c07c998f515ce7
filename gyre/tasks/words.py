"""Word tasks: file jobs of one to three tool calls, small enough for a policy that knows sixty words.

Five families: write a word, append a word, write two files, copy a one-line file, copy the n-th line. Each task says
its files, its instruction, the calls that solve it and what counts how much; `word_folders` puts it on disk.
"""

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

Split = Literal["train", "heldout"]
Family = Literal["write", "append", "pair", "copy", "line"]

WORDS = tuple(
    """
    ant ape ash bat bay bee bell bird boat bone book bow bug bus cake cat clay coat cow cup deer dog dove duck
    ear egg elk fan fig fish fox frog goat gold hat hen ice ink jar key kite lamp leaf lion map moon mud nut oak
    owl pan pear pig rain rice ring rope rose salt seal
    """.split()  # noqa: SIM905 - sixty quoted words would be a page
)
STEMS = ("box", "list", "log", "memo", "note", "page", "plan", "text")
CYCLE: tuple[Family, ...] = ("write", "append", "pair", "copy", "write", "append", "pair", "line")
REWRITES = 0.5  # the share of writes that find a file there
HELD_OUT_SHARE = 5  # one instruction in five


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call of the solution."""

    tool: Literal["read", "write", "append"]
    path: str
    content: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """A file to be changed: its lines before and as wanted, and lines that earn a little if they are in it."""

    path: str
    before: tuple[str, ...]
    wanted: tuple[str, ...]
    near: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WordTask:
    """One task. `files` maps names to lines; `results` are what the tools answer to `calls`."""

    family: Family
    instruction: str
    files: dict[str, tuple[str, ...]]
    targets: tuple[Target, ...]
    calls: tuple[Call, ...]

    def results(self) -> tuple[str, ...]:
        """The tool results of the solution's calls, as the reference harness words them."""
        return tuple(text_of(self.files[call.path]) if call.tool == "read" else "ok" for call in self.calls)


def text_of(lines: tuple[str, ...]) -> str:
    """Lines as a text file holds them."""
    return "".join(f"{line}\n" for line in lines)


def split_of(instruction: str) -> Split:
    """The split that an instruction belongs to, whatever the seed: no held-out instruction occurs in training."""
    return "train" if hashlib.sha256(instruction.encode()).digest()[0] % HELD_OUT_SHARE else "heldout"


def word_tasks(seed: int, split: Split) -> Iterator[WordTask]:
    """An endless, deterministic sequence of one split's tasks, the families in fixed shares (a line copy in eight)."""
    if split not in get_args(Split):
        raise ValueError(f"split: {split!r} is not one of {', '.join(get_args(Split))}")
    rng = random.Random(f"words-{seed}-{split}")
    while True:
        for family in CYCLE:
            task = _task(rng, family)
            while split_of(task.instruction) != split:
                task = _task(rng, family)
            yield task


def _task(rng: random.Random, family: Family) -> WordTask:
    first, second, third = rng.sample(WORDS, 3)
    here, there = (f"{stem}.txt" for stem in rng.sample(STEMS, 2))
    if family == "append":
        return _append(here, first, (second, third)[: rng.randint(1, 2)])
    if family == "pair":
        return _pair(here, there, first, second)
    if family == "copy":
        return _copy(here, there, first)
    if family == "line":
        return _line(here, there, (first, second, third), rng.randint(1, 3))
    return _write(here, first, (second,) if rng.random() < REWRITES else ())


def _write(path: str, word: str, before: tuple[str, ...]) -> WordTask:
    target = Target(path, before, (word,), (word,))
    files = {path: before} if before else {}
    return WordTask("write", f'Write "{word}" to "{path}".', files, (target,), (Call("write", path, word),))


def _append(path: str, word: str, before: tuple[str, ...]) -> WordTask:
    target = Target(path, before, (*before, word), (word,))
    instruction = f'Append "{word}" to "{path}".'
    return WordTask("append", instruction, {path: before}, (target,), (Call("append", path, word),))


def _pair(here: str, there: str, first: str, second: str) -> WordTask:
    targets = (Target(here, (), (first,), (first,)), Target(there, (), (second,), (second,)))
    calls = (Call("write", here, first), Call("write", there, second))
    instruction = f'Write "{first}" to "{here}" and "{second}" to "{there}".'
    return WordTask("pair", instruction, {}, targets, calls)


def _copy(here: str, there: str, word: str) -> WordTask:
    target = Target(there, (), (word,), (word,))
    calls = (Call("read", here), Call("write", there, word))
    return WordTask("copy", f'Copy "{here}" to "{there}".', {here: (word,)}, (target,), calls)


def _line(here: str, there: str, lines: tuple[str, ...], number: int) -> WordTask:
    word = lines[number - 1]
    target = Target(there, (), (word,), lines)
    calls = (Call("read", here), Call("write", there, word))
    instruction = f'Copy line {number} of "{here}" to "{there}".'
    return WordTask("line", instruction, {here: lines}, (target,), calls)
