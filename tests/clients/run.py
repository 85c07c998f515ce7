"""Real clients work through the real proxy: which of them completes which scenario, and with which tree.

    make test-harnesses [HARNESS_ARGS='codex opencode --scenario tools --show']

Each client is installed, if it can be had, and run as docs/harnesses.md says; its tree must be the one in
`expected.toml`.
"""

import argparse
import asyncio
import re
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson

from gyre.config import Config
from gyre.sandboxes.process import ProcessSandbox
from gyre.tasks.folder import Task, load_task
from schemas.calls import ModelCallRecorded
from services.episode import Episodes, Outcome
from tests.clients.install import FOLDER, Unavailable, install
from tests.clients.script import TASK, Script
from tests.clients.stand import Stand, stood
from tests.clients.trees import foreign, worded

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "harnesses.md"
DEADLINE = 240.0
AT_ONCE = 3
"""Clients that run side by side."""
Fate = Literal["pass", "fail", "skipped"]


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one client in one scenario."""

    client: str
    scenario: str
    fate: Fate
    why: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """One client in one scenario."""

    client: str
    scenario: str
    script: Script
    commands: Path
    expected: Mapping[str, Any]

    @property
    def execution(self) -> str:
        """Its name."""
        return f"{self.client}-{self.scenario}"

    def command(self) -> list[str]:
        """The command of the page, for another API or with smaller limits where it is to compact."""
        found = documented(self.script.client["command"])
        smaller = self.script.client.get("compaction", ()) if self.script.scenario.get("compacts") else ()
        for old, new in (*self.script.client.get("replace", ()), *smaller):
            assert old in found[-1], f"{old!r} is not in the page's command of {self.client}"
            found[-1] = found[-1].replace(old, new)
        return ["/bin/sh", "-c", 'PATH="$0:$PATH"; exec "$@"', str(self.commands), *found]


def documented(word: str) -> list[str]:
    """The command in docs/harnesses.md that holds a word."""
    blocks = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    commands = [tomllib.loads(block)["harness"]["command"] for block in blocks if word in block]
    assert len(commands) == 1, f"{word!r}: {len(commands)} commands on {PAGE}"
    return list(commands[0])


async def tried(stand: Stand, case: Case, tasks: Mapping[str, Task], sandbox: ProcessSandbox, show: bool) -> Result:
    """Run a case."""
    config = Config.of({"harness": {"command": case.command(), "timeout_seconds": DEADLINE, "kill_grace": 5}})
    token = await stand.launch(case.execution, DEADLINE)
    scenario = case.script.scenario
    if "fault" in scenario:
        stand.faults.plan(token, scenario["fault"])
    outcome = await Episodes(stand.folder, config, tasks, sandbox).run(case.execution, case.execution, token)
    records = await stand.records(case.execution, outcome.seconds)
    wrong = [*_left(outcome, scenario.get("files", {}))]
    if "fault" in scenario and token not in stand.faults.struck:
        wrong.append("its fault did not happen")
    wrong += foreign(case.execution, records, stand.policy.received.get(case.execution, set()))
    found = worded(case.execution, records)
    if show:
        print(f"{case.execution}: {outcome.seconds:.0f} s: {outcome.detail}", *map(shown, records), sep="\n  ")
    wrong += [
        f"{name}: {found[name]!r}, expected {wanted!r}"
        for name, wanted in case.expected.items()
        if found[name] != wanted
    ]
    return Result(case.client, case.scenario, "fail" if wrong else "pass", "; ".join(wrong))


def _left(outcome: Outcome, files: Mapping[str, str]) -> list[str]:
    """What is wrong with what a client left."""
    wrong = [] if outcome.reason == "completed" else [f"{outcome.reason}, exit {outcome.exit_code}: {outcome.detail}"]
    for name, content in files.items():
        file = outcome.workspace / name if outcome.workspace else None
        if file is None or not file.is_file() or file.read_text().strip() != content:
            wrong.append(f"{name} is not {content!r}")
    return wrong


def shown(record: ModelCallRecorded) -> str:
    """A record in one line, for people."""
    asked, said = orjson.loads(record.messages), orjson.loads(record.reply)
    place = f"{record.call} {record.thread} {record.kind} on {record.parent}, {len(record.input_ids) // 4} tokens"
    return f"{place} {record.fallback}: {str(asked[-1:])[:200]} => {str(said)[:120]}"


def made_task(folder: Path, name: str) -> Task:
    """A task whose only instruction is to do the work."""
    place = folder / "tasks" / name
    (place / "tests").mkdir(parents=True)
    (place / "environment").mkdir()
    (place / "tests" / "test.sh").write_text("exit 0\n")
    (place / "task.toml").write_text(f'version = "1.0"\n[metadata]\nname = "{name}"\n')
    (place / "instruction.md").write_text(TASK)
    return load_task(place)


def planned(names: Sequence[str], scenarios: Sequence[str]) -> tuple[list[Case], list[Result]]:
    """The cases that this machine can have, and why it cannot have the others."""
    known, words = clients(), read("scenarios")
    cases: list[Case] = []
    skipped: list[Result] = []
    for client in names or known:
        why, commands = "", FOLDER
        print(f"{client}: is installed, unless it is there", file=sys.stderr)
        try:
            commands = install(known[client].get("like", client), known[client])
        except Unavailable as error:
            why = str(error)
        for scenario in scenarios or words:
            if reason := why or known[client].get("skip", {}).get(scenario, ""):
                skipped.append(Result(client, scenario, "skipped", reason))
                continue
            script = Script(known[client], words[scenario])
            cases.append(Case(client, scenario, script, commands, expected(client).get(scenario, {})))
    return cases, skipped


def clients() -> dict[str, dict[str, Any]]:
    """The clients; one that is another in all but the API that it speaks has the other's words and its own."""
    said = read("clients")
    return {name: {**said.get(own.get("like", ""), {}), **own} for name, own in said.items()}


def expected(client: str) -> Mapping[str, Any]:
    """The trees of a client by scenario: those of the client that it is like, where it has none of its own."""
    trees = read("expected")
    found: Mapping[str, Any] = trees.get(client) or trees[clients()[client]["like"]]
    return found


def read(name: str) -> dict[str, Any]:
    """One of the files of data beside this program."""
    return tomllib.loads((HERE / f"{name}.toml").read_text())


async def ran(cases: Sequence[Case], show: bool) -> list[Result]:
    """Run the cases, a few at once."""
    turns = asyncio.Semaphore(AT_ONCE)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        tasks = {case.execution: made_task(folder, case.execution) for case in cases}
        sandbox = ProcessSandbox()
        async with stood(folder, {case.execution: case.script for case in cases}) as stand:

            async def one(case: Case) -> Result:
                async with turns:
                    try:
                        result = await tried(stand, case, tasks, sandbox, show)
                    except Exception as error:  # noqa: BLE001 (the other cases go on)
                        result = Result(case.client, case.scenario, "fail", f"{type(error).__name__}: {error}")
                print(f"{case.execution}: {result.fate}", file=sys.stderr)
                return result

            return list(await asyncio.gather(*map(one, cases)))


def told(results: Sequence[Result]) -> str:
    """The table: clients down, scenarios across; below it what failed, and why something was skipped."""
    scenarios = list(dict.fromkeys(result.scenario for result in results))
    fates = {(result.client, result.scenario): result.fate for result in results}
    lines = [f"{'':20}" + "".join(f"{name:>12}" for name in scenarios)]
    lines += [
        f"{client:20}" + "".join(f"{fates[client, name]:>12}" for name in scenarios)
        for client in dict.fromkeys(result.client for result in results)
    ]
    reasons: dict[str, list[str]] = {}
    for result in results:
        if result.why:
            reasons.setdefault(f"{result.client} {result.fate}: {result.why}", []).append(result.scenario)
    return "\n".join([*lines, "", *(f"{why} [{', '.join(names)}]" for why, names in reasons.items())])


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 if nothing failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("clients", nargs="*", help="all, if none is named")
    parser.add_argument("--scenario", action="append", default=[], help="all, if none is named")
    parser.add_argument("--show", action="store_true", help="print what each call was asked and answered")
    options = parser.parse_args(arguments)
    cases, skipped = planned(options.clients, options.scenario)
    results = [*(asyncio.run(ran(cases, options.show)) if cases else ()), *skipped]
    order = list(read("clients"))
    print(told(sorted(results, key=lambda result: order.index(result.client))))
    return 1 if any(result.fate == "fail" for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
