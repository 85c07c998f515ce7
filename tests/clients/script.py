"""What the policy says: a function of the context alone, in the words of one client's tools."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gyre.proxy.recording import Said, Tool

TASK = "MAIN-JOB: do the work step by step, and say so when it is done."
SIDE = "SIDE-JOB"
REPORT = "The side job is done: report-42."
SUMMARY = "<summary><state_snapshot>MAIN-JOB, done so far: {seen}. Go on.</state_snapshot></summary>"
"""In the tags that one client or another looks for."""


@dataclass(frozen=True, slots=True)
class Turn:
    """An answer, and how long it takes."""

    said: Said
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Script:
    """One scenario for one client, both as their files have them."""

    client: Mapping[str, Any]
    scenario: Mapping[str, Any]

    def turn(self, text: str) -> Turn:
        """The answer to a context."""
        if self._marked("title", text):
            return Turn(Said(text="The work"))
        steps = self.scenario["steps"]
        if self._marked("summary", text):
            seen = [mark for step in steps for mark in step["seen"] if mark in text]
            return Turn(Said(text=SUMMARY.format(seen=", ".join(seen))))
        side = "MAIN-JOB" not in text and SIDE in text
        for step in self.scenario["side"] if side else steps:
            if not all(mark in text for mark in step["seen"]):
                return Turn(self._said(step, text), step.get("seconds", 0.0))
        end = self.client.get("end")
        if side or end is None:
            return Turn(Said(text=REPORT if side else "The work is done."))
        return Turn(Said(text="Ending.", tools=(Tool("", *end),)))

    def _marked(self, name: str, text: str) -> bool:
        return name in self.client and self.client[name] in text

    def _said(self, step: Mapping[str, Any], text: str) -> Said:
        if step.get("agents"):
            ids = re.findall(self.client["launched"], text) if "launched" in self.client else []
            if ids:
                return self._waiting(ids)
            return Said(text="Handing over.", tools=tuple(self._tool("agent", prompt) for prompt in step["agents"]))
        return Said(
            text="Next.",
            tools=tuple(self._tool("shell", command + self.client.get("settle", "")) for command in step["shell"]),
        )

    def _waiting(self, ids: list[str]) -> Said:
        if "wait" not in self.client:
            return Said(text="Waiting for the side job.")
        name, arguments = self.client["wait"]
        return Said(tools=(Tool("", name, arguments.replace("$ids", json.dumps(ids))),))

    def _tool(self, kind: str, text: str) -> Tool:
        name, arguments = self.client[kind]
        return Tool("", name, arguments.replace("$text", json.dumps(text)))
