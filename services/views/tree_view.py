"""`gyre tree`: one execution's trajectory tree as plain data, from its request records alone, beside its admission."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from gyre.config import Config
from gyre.core import fates, tree
from gyre.proxy.chat_model import ChatModel
from gyre.proxy.links import links
from schemas.base import ints
from schemas.calls import ModelCallRecorded
from schemas.rewards import AssessmentRecorded, LeafSummary, RewardAssigned, TreeBuilt
from schemas.training import TrajectoriesAdmitted
from services.execution_log import Facts, Training, chat_model, facts_of, training_of
from services.source import Source


async def tree_of(source: Source, execution: str) -> dict[str, Any]:
    """The tree as plain data: nodes in the order of arrival, leaves with their roles and what became of each.

    Raises:
        ExecutionNotFound: no call was recorded and nothing was said of it.
    """
    facts = await facts_of(source, execution)
    config = Config.recorded((await source.started()).config)
    built = facts.tree()
    ends = facts.leaves(built)
    reward, recorded = facts.first(RewardAssigned), facts.first(TreeBuilt)
    trained = await training_of(source, facts)
    outline = outline_of(built, ends, facts.records, chat_model(config.model.path))
    fated = _fated(built, ends, facts, config.admission.j_max, trained)
    return {
        "run": source.run,
        "execution": execution,
        "digest": tree.digest(built),
        "as_recorded": recorded.digest == tree.digest(built) if recorded else None,
        **outline,
        "leaves": [{**leaf, **fate} for leaf, fate in zip(outline["leaves"], fated, strict=True)],
        "rejected": facts.rejected(built),
        "reward": reward.reward if reward else None,
        "assessments": [assessment_of(each) for each in facts.every(AssessmentRecorded)],
        "standing": facts.standing,
        "j_max": config.admission.j_max,
        "admitted": _admitted(facts.first(TrajectoriesAdmitted)),
        "training": asdict(trained) if trained else None,
    }


def outline_of(
    built: tree.Tree, ends: Sequence[LeafSummary], records: Sequence[ModelCallRecorded], chat: ChatModel | None
) -> dict[str, Any]:
    """What a tree is, whatever became of it: nodes, roots, leaves, links, abandoned; text where a model gives it."""
    fallbacks = {record.call: record.fallback for record in records}
    return {
        "nodes": [{**_node(node, chat), "fallback": fallbacks[call]} for call, node in built.nodes.items()],
        "roots": [call for call, node in built.nodes.items() if node.parent is None],
        "leaves": [_leaf(leaf, built.nodes[leaf.leaf]) for leaf in ends],
        "links": [asdict(link) for link in links(records)],
        "abandoned": [leaf.leaf for leaf in ends if leaf.role == "abandoned"],
    }


def _fated(
    built: tree.Tree, ends: Sequence[LeafSummary], facts: Facts, j_max: int, trained: Training | None
) -> list[dict[str, Any]]:
    """Of each leaf: whether it was admitted, and why (not) in a word and in a sentence."""
    admitted = facts.first(TrajectoriesAdmitted)
    drawn = [each.leaf for each in admitted.trajectories] if admitted else []
    found = fates.fates(built.nodes, ends, drawn, j_max=j_max, standing=facts.standing)
    effect = effect_of(admitted, trained)
    return [
        {
            "admitted": fate.order is not None,
            "reason": fate.reason,
            "why": fates.words(fate, j_max) + (f"; {effect}" if effect and fate.order is not None else ""),
            "masked": dict(fate.masked),
            "left": fate.left,
        }
        for fate in found
    ]


def effect_of(admitted: TrajectoriesAdmitted | None, trained: Training | None) -> str:
    """Why what was admitted moves no weight; "" when it does, or may."""
    if admitted is not None and admitted.advantage == 0:
        return "moves no weight: advantage 0"
    if trained is not None and trained.mask == 0:
        return f"moves no weight: ratio {trained.ratio:.4f} beyond its bound in step {trained.step}"
    return ""


def _node(node: tree.Node, chat: ChatModel | None) -> dict[str, Any]:
    told, answer = ints(node.input_ids), ints(node.output_ids)
    return {
        "call": node.call,
        "index": node.index,
        "parent": node.parent,
        "kind": node.kind,
        "thread": node.thread,
        "prefix_tokens": node.prefix_tokens,
        "input_tokens": len(told),
        "output_tokens": len(answer),
        "finish": node.finish,
        "delivered": node.delivered,
        "versions": sorted({span.version for span in node.versions}),
        "input": chat.decode(told) if chat else None,
        "output": chat.decode(answer) if chat else None,
    }


def _leaf(leaf: LeafSummary, node: tree.Node) -> dict[str, Any]:
    return {
        "id": leaf.leaf,
        "role": leaf.role,
        "thread": node.thread,
        "targets": leaf.targets,
        "length": leaf.tokens,
        "final_main": leaf.final_main,
    }


def assessment_of(event: AssessmentRecorded) -> dict[str, Any]:
    """What one assessment found and by whom, as plain data."""
    by = event.provenance
    kept = event.model_dump(mode="json", include={"assessment", "designated", "attempt", "branch", "score", "detail"})
    return {**kept, "by": by.model_dump(mode="json") if by else None}


def _admitted(event: TrajectoriesAdmitted | None) -> dict[str, Any] | None:
    if event is None:
        return None
    kept = [
        {"leaf": each.leaf, "role": each.role, "tokens": len(each.target), "targets": each.targets}
        for each in event.trajectories
    ]
    return {"group": event.group, "advantage": event.advantage, "targets": event.targets, "trajectories": kept}
