"""The rules of a judgement: what ends it, what counts as a verdict, and what is recorded of it.

Everything that keeps a judge from a verdict (its server, its words, its limits) is no score, never zero.
"""

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import aiohttp
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gyre.config_evaluator import JudgeSection
from gyre.evaluators.judge import prompt
from gyre.evaluators.judge.asking import Model
from gyre.evaluators.judge.chat import Chat
from gyre.evaluators.judge.messages import Messages
from gyre.evaluators.judge.prompt import Framing
from gyre.evaluators.judge.talk import Answer, Call, Dialect, JudgeError, Result, Talk, Told
from gyre.evaluators.judge.workshop import TOOLS, Workshop, tool
from gyre.evaluators.port import EvaluatorError, Run, Verdict
from gyre.evaluators.template import framed
from gyre.tasks.folder import Task
from schemas.rewards import EvaluatorKind, Provenance

_DIALECTS: Mapping[str, Dialect] = {"chat": Chat(), "messages": Messages()}
_MOST_CALLS = 8  # of one answer
_MOST_TRANSCRIPT = 4 << 20
_WARNING = 3  # answers that are left when the judge is told how many
_LETTERS_A_TOKEN = 3  # where a server does not count


class GiveVerdict(BaseModel):
    """Say what the work is worth. This ends the judgement."""

    model_config = ConfigDict(extra="ignore", use_attribute_docstrings=True, strict=True)

    key: str
    """From your rules."""
    score: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    """Share of what was asked for that is there and works; leave it out where valid is false."""
    valid: bool = True
    """False if the work could not be judged at all."""
    reasons: str
    """What was tested, what failed: a few sentences."""


_VERDICT = tool("verdict", GiveVerdict)
_TOOLS = (*(tool(name, arguments) for name, arguments in TOOLS.items()), _VERDICT)


class JudgeEvaluator:
    """Implements `Evaluator`."""

    def __init__(self, section: JudgeSection, run: Run, key: str = "") -> None:
        """`run` says where the judge's tests run; `key` is what its server asks for.

        Raises:
            EvaluatorError: no model is named.
        """
        if not (section.url and section.model):
            raise EvaluatorError("evaluator.judge.url and evaluator.judge.model: name both, the judge is asked there")
        self._section, self._run, self._key = section, run, key
        self.kind: EvaluatorKind = "judge"
        self.title = f"{section.model} at {section.url}"

    def digest(self, tasks: Iterable[Task]) -> str:
        """See `Evaluator`."""
        tools = json.dumps([[each.name, each.description, each.schema] for each in _TOOLS], sort_keys=True)
        texts = (prompt.RULES, prompt.FIRST, prompt.NO_CALL, prompt.FEW_LEFT, tools)
        found = sha256(framed(*(text.encode() for text in texts), self._settings()))
        for task in sorted(tasks, key=lambda task: task.name):
            found.update(framed(task.name.encode(), task.instruction.encode()))
        return found.hexdigest()

    def _settings(self) -> bytes:
        return json.dumps(self._section.model_dump(mode="json", exclude={"key_env"}), sort_keys=True).encode()

    async def evaluate(self, task: Task, workspace: Path, box: Path, limit_seconds: float) -> Verdict:
        """See `Evaluator`. The workspace itself stays as it is."""
        seconds = min(limit_seconds, self._section.seconds)
        judgement = Judgement(self._section, self._model(), self._shop(task, workspace, box))
        try:
            async with asyncio.timeout(seconds):
                score, detail = await judgement.reach(task)
        except TimeoutError:
            score, detail = None, f"the judge was ended after {seconds:g} s"
        except JudgeError as error:
            score, detail = None, _line(str(error))
        except RecursionError:
            score, detail = None, "the judge's answer is malformed: it is nested too deeply"
        except OSError as error:
            score, detail = None, f"the judge cannot look at the work: {error.strerror or error}"
        by = Provenance(
            evaluator=self.kind,
            digest=self.digest((task,)),
            sandbox=self._run.sandbox,
            image=self._run.image(task),
            model=self._section.model,
            url=self._section.url,
            tokens=judgement.tokens,
        )
        return Verdict(score, detail, by, judgement.transcript())

    def _model(self) -> Model:
        chosen = self._section
        dialect, tokens = _DIALECTS[chosen.protocol], chosen.answer_tokens
        return Model(chosen.url, chosen.model, dialect, tokens, chosen.request_seconds, chosen.request, self._key)

    def _shop(self, task: Task, workspace: Path, box: Path) -> Workshop:
        return Workshop(self._run, task, workspace, box, self._section.test_seconds)


@dataclass(slots=True)
class Judgement:
    """One state before one judge."""

    limits: JudgeSection
    model: Model
    shop: Workshop
    framing: Framing = field(default_factory=Framing)
    tokens: int = 0
    lines: list[str] = field(default_factory=list)

    async def reach(self, task: Task) -> tuple[float | None, str]:
        """Score and detail. Raises JudgeError, OSError."""
        await asyncio.to_thread(self.shop.open)
        talk = Talk(self.framing.rules(self.limits.guidance), _TOOLS, [Told(words=self.framing.first(task))])
        self._note("system", talk.system)
        self._note("told", self.framing.first(task))
        async with aiohttp.ClientSession(auto_decompress=False) as session:
            for left in reversed(range(self.limits.turns)):
                answer = await self.model.ask(session, talk)
                self._count(talk, answer)
                told, verdict = await self._replied(answer)
                if verdict is not None:
                    return _found(verdict)
                words = prompt.FEW_LEFT.format(left=left) if left <= _WARNING else told.words
                talk.turns.extend((answer, Told(told.results, words)))
        raise JudgeError(f"the judge gave no verdict in {self.limits.turns} answers")

    def _count(self, talk: Talk, answer: Answer) -> None:
        self._note("answer", answer.raw)
        estimate = sum(len(str(turn)) for turn in (talk.system, *talk.turns, answer)) // _LETTERS_A_TOKEN
        self.tokens += estimate if answer.tokens is None else answer.tokens
        if self.tokens > self.limits.tokens:
            raise JudgeError(f"the judge used {self.tokens} tokens, more than evaluator.judge.tokens")

    async def _replied(self, answer: Answer) -> tuple[Told, GiveVerdict | None]:
        """What its calls come to, or the verdict among them."""
        results: list[Result] = []
        for number, call in enumerate(answer.calls):
            if call.name == _VERDICT.name:
                try:
                    return Told(), self._verdict(call)
                except _Refused as error:
                    results.append(Result(call, str(error), failed=True))
            elif number < _MOST_CALLS:
                results.append(await self._used(call))
            else:
                results.append(Result(call, f"at most {_MOST_CALLS} calls in one answer", failed=True))
            self._note("result", [call.name, results[-1].text])
        return Told(tuple(results), "" if results else prompt.NO_CALL), None

    async def _used(self, call: Call) -> Result:
        """What a look or a run gives, framed whatever it is: also a refusal may say the work's own words."""
        try:
            return Result(call, self.framing.data(await self.shop.use(call)))
        except EvaluatorError as error:
            raise JudgeError(str(error)) from error
        except ValueError as error:
            return Result(call, self.framing.data(str(error)), failed=True)

    def _verdict(self, call: Call) -> GiveVerdict:
        """A verdict that counts. Raises `_Refused`, in our own words alone."""
        try:
            given = GiveVerdict.model_validate(call.arguments)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = next((str(part) for part in first["loc"] if part in GiveVerdict.model_fields), "arguments")
            raise _Refused(f"no verdict: {place} is wrong: {first['msg']}") from error
        if given.key != self.framing.key:
            raise _Refused("no verdict: the key is wrong; it stands in your rules")
        if given.valid and given.score is None:
            raise _Refused("no verdict: give a score, or set valid to false")
        if given.valid and not self.shop.runs:
            raise _Refused("no verdict yet: write tests of your own and run them first")
        self._note("verdict", given.model_dump(mode="json", exclude={"key"}))
        return given

    def _note(self, what: str, content: Any) -> None:
        self.lines.append(json.dumps({what: content}, default=str))

    def transcript(self) -> bytes:
        """All that was said, as lines of JSON; of a long one its end."""
        return ("\n".join(self.lines) + "\n").encode()[-_MOST_TRANSCRIPT:]


class _Refused(ValueError):
    """A verdict that does not count."""


def _line(text: str) -> str:
    """One line for people: what a judge repeats of the work may be meant for a terminal."""
    words = " ".join(text.encode(errors="replace").decode().split())
    return "".join(char if char.isprintable() else "?" for char in words)[:500]


def _found(given: GiveVerdict) -> tuple[float | None, str]:
    reasons = _line(given.reasons)
    return (given.score, reasons) if given.valid else (None, f"the judge could not judge it: {reasons}")
