"""The table [evaluator]: who scores preserved work, where, and who else says what it thinks of it."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from gyre.config_section import Count, Positive, Section, refuse

Kind = Literal["tests", "command", "judge"]
_NEEDED = 'must be given where evaluator.kind or evaluator.beside says "{}"'


class JudgeSection(Section):
    """A model that looks at the work, writes tests of its own, runs them and gives a verdict."""

    url: str = Field(default="", pattern=r"^(https?://[^@\s]+)?$")
    """Base URL of its server: for "chat" what comes before /chat/completions (http://host:8000/v1), for "messages" what
    comes before /v1/messages."""
    protocol: Literal["chat", "messages"] = "chat"
    """"chat": OpenAI's chat completions; "messages": Anthropic's messages."""
    model: str = ""
    """Name of the model, as its server knows it."""
    key_env: str = Field(default="", pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$")
    """Environment variable of the services that holds its key; empty: none is sent. The key itself is never written
    here: a configuration is recorded."""
    guidance: str = ""
    """What it is told besides its rules and the task's instruction: what matters in this kind of work."""
    request: dict[str, Any] = Field(default_factory=dict)
    """Further fields of each request to its server: temperature, reasoning effort."""
    turns: Count = 40
    """Most answers of the model for one verdict."""
    answer_tokens: Count = 4096
    """Most tokens of one answer."""
    tokens: Count = 1_000_000
    """Most tokens of contexts and answers for one verdict, all requests together."""
    seconds: Positive = 240.0
    """Most time for one verdict, seconds; reward.budget_seconds holds for all attempts together."""
    request_seconds: Positive = 120.0
    """Most time for one answer, seconds."""
    test_seconds: Positive = 60.0
    """Most time for one run of its tests, seconds."""


class EvaluatorSection(Section):
    """Who scores preserved work."""

    kind: Kind = "tests"
    """Who supplies the reward: "tests" (each task's own), "command" (one command for all tasks) or "judge"."""
    command: str = ""
    """Of "command": the line, as for `gyre regrade --evaluator`."""
    beside: tuple[Kind, ...] = ()
    """Who else scores each state after its reward is settled: recorded beside it, and no reward changes."""
    sandbox: Literal["", "process", "bubblewrap", "docker", "kubernetes"] = ""
    """Where tests run, apart from where agents do; empty: the kind of [sandbox]."""
    image: str = ""
    """Container image for tests; empty: the task's, else that of [sandbox]."""
    setup_seconds: Positive = 60.0
    """Most time to restore a state, and again for a sandbox to get ready, seconds."""
    judge: JudgeSection = JudgeSection()
    """The model that judges, where "judge" is among those who score."""

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """All that score, whose word is the reward first."""
        return (self.kind, *self.beside)

    @model_validator(mode="after")
    def _each_has_what_it_needs(self) -> Self:
        if len(set(self.kinds)) < len(self.kinds):
            raise refuse("evaluator.beside", self.beside, f"name each once, and not evaluator.kind = {self.kind}")
        if "command" in self.kinds and not self.command.strip():
            raise refuse("evaluator.command", self.command, _NEEDED.format("command"))
        for field in ("url", "model"):
            if "judge" in self.kinds and not getattr(self.judge, field):
                raise refuse(f"evaluator.judge.{field}", "", _NEEDED.format("judge"))
        return self
