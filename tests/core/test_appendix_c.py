"""The execution of the paper's Appendix C, request by request through a real session: its tree, and what it trains.

The paper counts messages: 1,347 of them, 1,716 where each of the ten paths is written out, from 636 requests. It gives
the length of every path and of both shared prefixes. How many of the messages are answers it says in sum alone: here
some answers call several tools, so that 636 answers and their results fill just those paths.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

import pytest

from gyre.core import tree as trees
from gyre.core.admission import draw
from gyre.core.leaves import summaries
from gyre.proxy.adapters.reference import Reference
from gyre.proxy.exchange import Asked
from gyre.proxy.normalise import Message
from gyre.proxy.session import Limits, Session
from schemas.base import ints
from schemas.calls import ModelCallRecorded
from schemas.rewards import Role
from schemas.training import Trajectory
from tests.proxy.templates import drawn, nano

MAIN, SUB = Message("system", "You work in a folder."), Message("system", "You help in a folder.")
SUMMARISE = Message("user", "[compaction] Answer with text only.")
CALL = '<tool_call>{{"name":"run","arguments":{{"line":"{0}"}}}}</tool_call>'
TEMPLATE = nano()
FAN = 4
"""Most tools that one answer calls."""


@dataclass
class Agent:
    """One context of the harness: what it sends, and where in the tree its next call belongs."""

    history: list[Message]
    above: tuple[str | None, int] | None = None
    """(call, messages of its path) that the next call goes on from; None before the first one."""
    calls: list[str] = field(default_factory=list)
    """Its calls up to now."""


@dataclass
class Execution:
    """A session under way, and its records."""

    live: Session = field(default_factory=lambda: Session("x", 7, TEMPLATE, Limits(1.0, 64, 1 << 20), Reference()))
    records: list[ModelCallRecorded] = field(default_factory=list)
    paths: dict[str, list[str]] = field(default_factory=dict)
    """The calls on each path, by its name."""
    under: dict[str, str] = field(default_factory=dict)
    """The first call under each system prompt: it is one message of the tree, however many roots begin with it."""

    def ask(self, agent: Agent, text: str) -> Message:
        """One request and this answer to it; it must hang where the agent says."""
        plan = self.live.plan(Asked(tuple(agent.history), (), None))
        first = self.under.get(agent.history[0].content)
        assert (plan.parent, plan.prefix_messages) == (agent.above or ((first, 1) if first else (None, 0)))
        record = self.live.record(plan, drawn(TEMPLATE, plan, text), total_seconds=0.0, delivered=True)
        self.live.add(record)
        self.records.append(record)
        self.under.setdefault(agent.history[0].content, plan.call)
        agent.calls.append(plan.call)
        agent.above = plan.call, len(agent.history) + 1
        return self.live.reply(plan.call)[0]

    def work(self, agent: Agent, requests: int, results: int) -> Iterator[None]:
        """So many answers that call tools, with so many results in all."""
        extra = results - requests
        for turn in range(requests):
            calls = 1 + min(extra, FAN - 1 if turn == 0 else 1)
            extra -= calls - 1
            reply = self.ask(agent, "".join(CALL.format(f"{turn} {place}") for place in range(calls)))
            assert len(reply.calls) == calls
            agent.history += [reply, *(Message("tool", f"seen {turn}", call_id=call.id) for call in reply.calls)]
            yield
        assert extra == 0

    def end(self, agent: Agent, path: str) -> None:
        """An answer behind which the harness asks nothing more on this path."""
        self.ask(agent, CALL.format(path))
        self.paths[path] = agent.calls

    def summarised(self, agent: Agent, path: str) -> Agent:
        """The last answer is dropped and a summary asked for in its place; the work goes on behind the summary."""
        above = agent.calls[-1], len(agent.history)
        aside = replace(agent, history=[*agent.history, SUMMARISE], above=above, calls=agent.calls[:-1])
        summary = self.ask(aside, f"what came of it: {path}")
        self.paths[path] = aside.calls
        return started(agent.history[0], f"Go on from here. {summary.content}")


def played() -> Execution:
    """All of it, in the order in which a harness with at most two sub-agents at a time asks."""
    execution = Execution()
    main = started(MAIN, "Write all of it.")
    together(execution.work(main, 78, 89))
    execution.end(main, "main")
    main = execution.summarised(main, "main-summary")
    mains = execution.work(main, 79, 90)
    together(islice(mains, 30))
    catalog, frames = started(SUB, "Write the catalog."), started(SUB, "Write the frames.")
    together(execution.work(catalog, 91, 101), execution.work(frames, 65, 73))
    execution.end(catalog, "catalog")
    execution.end(frames, "frames")
    catalog = execution.summarised(catalog, "catalog-summary")
    together(execution.work(catalog, 135, 155), islice(mains, 20))
    execution.end(catalog, "catalog after compaction")
    flight, first = started(SUB, "Write the flight."), started(SUB, "Write these FOUR packages.")
    together(execution.work(flight, 57, 63), execution.work(first, 24, 26))
    execution.end(first, "fdw, interrupted")
    execution.end(flight, "flight")
    together(mains)
    execution.end(main, "main after compaction")
    second = started(SUB, "Write these FOUR packages again.")
    together(execution.work(second, 97, 102))
    execution.end(second, "fdw")
    return execution


def started(system: Message, question: str) -> Agent:
    return Agent([system, Message("user", question)])


def together(*works: Iterator[None]) -> None:
    """Turn by turn, for as long as any goes on."""
    going = list(works)
    while going:
        going = [work for work in going if next(work, StopIteration) is None]


LENGTHS: dict[str, tuple[Role, int]] = {
    "main": ("main", 170),
    "main-summary": ("main-summary", 171),
    "main after compaction": ("main", 172),
    "catalog": ("sub-agent", 195),
    "catalog-summary": ("sub-agent-summary", 196),
    "catalog after compaction": ("sub-agent", 293),
    "frames": ("sub-agent", 141),
    "flight": ("sub-agent", 123),
    "fdw, interrupted": ("sub-agent", 53),
    "fdw": ("sub-agent", 202),
}
"""The paper's figure: role and messages of each path."""


@pytest.fixture(scope="module")
def execution() -> Execution:
    return played()


def leaf(execution: Execution, path: str) -> str:
    return execution.paths[path][-1]


def record(execution: Execution, call: str) -> ModelCallRecorded:
    return next(record for record in execution.records if record.call == call)


def outputs(execution: Execution, calls: Iterable[str]) -> int:
    """Tokens that the policy sampled in these calls."""
    return sum(len(execution.live.tree.nodes[call].output_ids) // 4 for call in set(calls))


def admitted(execution: Execution, j_max: int, seed: int) -> tuple[Trajectory, ...]:
    tree = execution.live.tree
    return draw(tree.nodes, summaries(tree), j_max=j_max, seed=seed)


def test_636_requests_make_ten_paths_of_the_papers_roles_and_lengths(execution: Execution) -> None:
    assert len(execution.records) == len(execution.live.tree.nodes) == 636
    roles = {each.leaf: each.role for each in summaries(execution.live.tree)}
    found = {}
    for path in execution.paths:
        last = record(execution, leaf(execution, path))
        found[path] = (roles.pop(last.call), last.prefix_messages + len(json.loads(last.messages)) + 1)
    assert found == LENGTHS
    assert roles == {}
    assert next(each.leaf for each in summaries(execution.live.tree) if each.final_main) == leaf(
        execution, "main after compaction"
    )


def test_1347_messages_are_kept_once_where_the_paths_written_out_have_1716(execution: Execution) -> None:
    kept = sum(len(json.loads(record.messages)) + len(json.loads(record.reply)) for record in execution.records)
    assert kept == 1347
    assert sum(messages for _, messages in LENGTHS.values()) == 1716
    assert sum(record.parent is None for record in execution.records) == 2


@pytest.mark.parametrize(("path", "messages"), [("main", 168), ("catalog", 193)])
def test_an_answer_and_the_summary_asked_for_in_its_place_share_all_before_them(
    execution: Execution, path: str, messages: int
) -> None:
    kept, summary = record(execution, leaf(execution, path)), record(execution, leaf(execution, f"{path}-summary"))
    assert (summary.parent, summary.prefix_messages) == (kept.call, 1 + messages)
    assert kept.prefix_messages + len(json.loads(kept.messages)) == 1 + messages
    tree = execution.live.tree
    shared = trees.path_ids(tree, kept.call, summary.prefix_tokens)
    assert trees.context_ids(tree, kept.call).startswith(shared)
    assert trees.context_ids(tree, summary.call).startswith(shared)
    assert TEMPLATE.model.decode(ints(summary.input_ids)).startswith("<|im_start|>user\n[compaction]")


def test_what_the_policy_sampled_is_marked_on_each_path_and_a_summary_given_back_is_not(execution: Execution) -> None:
    for path, calls in execution.paths.items():
        marks = trees.sampled(execution.live.tree, leaf(execution, path))
        assert marks.count(1) == outputs(execution, calls), path
    summary = json.loads(record(execution, leaf(execution, "main-summary")).reply)[0]["content"]
    behind = record(execution, execution.paths["main after compaction"][0])
    assert summary in json.loads(behind.messages)[0]["content"]


@pytest.mark.parametrize("seed", range(8))
def test_four_trajectories_are_both_mains_the_main_summary_and_one_sub_agent(execution: Execution, seed: int) -> None:
    drawn = admitted(execution, 4, seed)
    assert [each.role for each in drawn] == ["main", "main", "main-summary", "sub-agent"]
    names = {leaf(execution, path): path for path in execution.paths}
    chosen = [names[each.leaf] for each in drawn]
    assert set(chosen[:3]) == {"main", "main after compaction", "main-summary"}
    sampled = [outputs(execution, execution.paths[path]) for path in chosen]
    targets = [each.targets for each in drawn]
    shared = outputs(execution, execution.paths["main"][:-1])
    assert targets == [*sampled[:2], sampled[2] - shared, sampled[3]]
    assert sum(targets) == outputs(execution, (call for path in chosen for call in execution.paths[path]))
    masked = sum(each.target.count(0) for each in drawn)
    assert masked == sum(execution.live.tree.nodes[each.leaf].length for each in drawn) - sum(sampled) + shared


def test_without_a_cap_each_token_of_the_policy_trains_once(execution: Execution) -> None:
    drawn = admitted(execution, 10, 0)
    assert Counter(each.role for each in drawn) == Counter(role for role, _ in LENGTHS.values())
    assert sum(each.targets for each in drawn) == outputs(execution, execution.live.tree.nodes)
    repeated = sum(outputs(execution, execution.paths[path][:-1]) for path in ("main", "catalog"))
    assert sum(each.targets for each in summaries(execution.live.tree)) == repeated + sum(
        each.targets for each in drawn
    )


def test_the_tree_is_built_again_from_the_records_alone(execution: Execution) -> None:
    again = trees.fold("x", (type(each).model_validate_json(each.model_dump_json()) for each in execution.records))
    assert trees.to_bytes(again) == trees.to_bytes(execution.live.tree)
