"""`gyre tree`: one execution's trajectory tree, from its request records alone, beside what was admitted from it."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.tree import Tree as Drawing

from bus import subjects
from gyre.config import Config
from gyre.core import tree
from gyre.core.leaves import summaries
from gyre.errors import GyreError
from gyre.models.load import ModelError, find_model
from gyre.proxy.chat_model import ChatModel
from gyre.proxy.errors import TemplateUnusable
from schemas.base import ints
from schemas.calls import ModelCallRecorded
from schemas.rewards import RewardAssigned, TreeBuilt
from schemas.training import TrajectoriesAdmitted
from services.source import Source, messages

SERVICES = ("builder", "evaluator", "admission")
"""Who says what became of an execution's tree."""
SHOWN = 100
"""Characters of a node's text in a drawing."""


class ExecutionNotFound(GyreError):
    """The run's log says nothing of such an execution."""


async def tree_of(source: Source, execution: str) -> dict[str, Any]:
    """The tree as plain data: nodes in the order of arrival, leaves with their roles, what was admitted.

    Raises:
        ExecutionNotFound: no call was recorded and nothing was said of it.
    """
    records = await _said(source, execution)
    built = tree.fold(execution, (each for each in records if isinstance(each, ModelCallRecorded)))
    said = {type(each): each for each in records}
    chat = _chat_model(Config.of((await source.started()).config).model.path)
    admitted, reward, recorded = (said.get(kind) for kind in (TrajectoriesAdmitted, RewardAssigned, TreeBuilt))
    return {
        "execution": execution,
        "digest": tree.digest(built),
        "as_recorded": recorded.digest == tree.digest(built) if isinstance(recorded, TreeBuilt) else None,
        "nodes": [_node(node, chat) for node in built.nodes.values()],
        "roots": [call for call, node in built.nodes.items() if node.parent is None],
        "leaves": [leaf.model_dump(mode="json") for leaf in summaries(built)],
        "rejected": list(built.rejected),
        "reward": reward.reward if isinstance(reward, RewardAssigned) else None,
        "admitted": _admitted(admitted) if isinstance(admitted, TrajectoriesAdmitted) else None,
    }


def draw(found: dict[str, Any], console: Console) -> None:
    """Draw what `tree_of` found."""
    reward = "none" if found["reward"] is None else f"{found['reward']:.3f}"
    size = f"{len(found['nodes'])} calls, {len(found['leaves'])} leaves"
    top = Drawing(f"execution {found['execution']}  reward {reward}  {size}")
    branches = {None: top}
    leaves = {leaf["leaf"]: leaf for leaf in found["leaves"]}
    targets = {each["leaf"]: each["targets"] for each in (found["admitted"] or {}).get("trajectories", ())}
    for node in found["nodes"]:
        branches[node["call"]] = branches[node["parent"]].add(_label(node, leaves, targets))
    console.print(top)
    if found["as_recorded"] is False:
        console.print("the log records another tree than these calls give; `gyre replay --verify` says more")


async def _said(source: Source, execution: str) -> list[Any]:
    try:
        records = subjects.call(source.run, execution)
        about = [subjects.ev(source.run, service, "execution", execution) for service in SERVICES]
    except ValueError as error:
        raise ExecutionNotFound(f"execution {execution}: is no id of an execution ({error})") from error
    found: list[Any] = []
    for log, subject in ((source.calls, records), *((source.ev, each) for each in about)):
        async for stored in messages(log, filter=subject):
            found += stored.commit.events if stored.commit else ()
    if not found:
        raise ExecutionNotFound(f"execution {execution}: run {source.run} knows none; `gyre log tail` shows some")
    return found


def _node(node: tree.Node, chat: ChatModel | None) -> dict[str, Any]:
    told, answer = ints(node.input_ids), ints(node.output_ids)
    return {
        "call": node.call,
        "parent": node.parent,
        "kind": node.kind,
        "thread": node.thread,
        "prefix_tokens": node.prefix_tokens,
        "input_tokens": len(told),
        "output_tokens": len(answer),
        "finish": node.finish,
        "delivered": node.delivered,
        "versions": sorted({span.version for span in node.versions}),
        "input": chat.decode(list(told)) if chat else None,
        "output": chat.decode(list(answer)) if chat else None,
    }


def _admitted(event: TrajectoriesAdmitted) -> dict[str, Any]:
    kept = [
        {"leaf": each.leaf, "role": each.role, "tokens": len(each.target), "targets": each.targets}
        for each in event.trajectories
    ]
    return {"group": event.group, "advantage": event.advantage, "targets": event.targets, "trajectories": kept}


def _label(node: dict[str, Any], leaves: dict[str, Any], targets: dict[str, int]) -> str:
    text = node["output"] if node["output"] is not None else ""
    shown = " ".join(text.split())
    words = [f"{node['prefix_tokens']}+{node['input_tokens']} -> {node['output_tokens']} tokens", node["finish"]]
    if node["kind"] != "turn":
        words.append(node["kind"])
    if not node["delivered"]:
        words.append("not delivered")
    if (leaf := leaves.get(node["call"])) is not None:
        words.append(f"leaf: {leaf['role']}, {leaf['targets']} of {leaf['tokens']} tokens sampled")
        words.append(f"trained on, {targets[node['call']]} targets" if node["call"] in targets else "not trained on")
    head = f"{node['call']}  {', '.join(words)}"
    return escape(f"{head}\n{shown[:SHOWN]}" if shown else head)


def _chat_model(model: str) -> ChatModel | None:
    """What turns tokens into text, if the model is here; an archive may come from elsewhere."""
    try:
        return ChatModel.load(Path(find_model(model)))
    except (ModelError, TemplateUnusable):
        return None
