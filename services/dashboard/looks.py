"""What a page shows of one execution: its tree in lines, its samples in pieces and tokens, a call's messages.

All of it is what `gyre tree`, `gyre samples` and `gyre call` compute, cut to what fits on a page. Texts come from
models and harnesses: they are data to whoever shows them.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from gyre.core.chains import Shape, Spine, spines
from schemas.base import ints
from services.execution_log import ExecutionNotFound
from services.source import Source
from services.views.call_view import call_of
from services.views.samples_view import NoSamples, Sample, Samples, decoder, samples_of, tokens
from services.views.tree_view import tree_of

LINES = 400
"""Lines of a tree."""
CALLS = 200
"""Calls that one line names."""
PIECES = 400
TOKENS = 400
"""Tokens on one page."""
MESSAGES = 60
TEXT = 6_000
"""Characters of one text."""
SNIPPET = 160
Found = dict[str, Any]


async def tree(source: Source, execution: str) -> Found:
    """A tree as lines, each a chain of calls with what hangs below it indented. Raises `ExecutionNotFound`."""
    found = await tree_of(source, execution)
    nodes = {node["call"]: node for node in found["nodes"]}
    leaves = {leaf["id"]: leaf for leaf in found["leaves"]}
    lines = [line for spine in spines([_shape(node, leaves) for node in found["nodes"]]) for line in _spine(spine, 0)]
    told = (
        "run",
        "execution",
        "as_recorded",
        "reward",
        "standing",
        "j_max",
        "admitted",
        "training",
        "rejected",
        "links",
    )
    return {
        **{name: found[name] for name in told},
        "calls": len(nodes),
        "sampled": sum(node["output_tokens"] for node in nodes.values()),
        "lines": [_line(depth, calls, nodes, leaves) for depth, calls in lines[:LINES]],
        "more": max(0, len(lines) - LINES),
    }


async def sample(source: Source, execution: str, leaf: str, start: int) -> Found:
    """One admitted trajectory: its pieces, and a page of its tokens from `start` on. Raises `NoSamples`."""
    found = await samples_of(source, execution, leaf)
    chosen = found.samples[0]
    length = len(chosen.trajectory.target)
    return {
        "execution": execution,
        "leaf": leaf,
        "role": chosen.trajectory.role,
        "length": length,
        "targets": chosen.trajectory.targets,
        "weight": found.weight,
        "advantage": found.event.advantage,
        "difference": found.difference,
        "pieces": [
            [each.start, each.stop, _mark(each.target, each.source), each.call, each.version]
            for each in chosen.pieces[:PIECES]
        ],
        "more": max(0, len(chosen.pieces) - PIECES),
        "start": start,
        "tokens": [
            [each["token"], each["id"], _mark(each["target"], each["source"]), each["logprob"], each["version"]]
            for each in tokens(chosen, found.weight, decoder(found.chat), start, min(length, start + TOKENS))
        ],
    }


async def call(source: Source, name: str) -> Found:
    """One call: what was known of its history, what was new, and its answer with its targets. Raises `CallNotFound`."""
    found = await call_of(source, name)
    samples = await _samples(source, found["execution"])
    targets = _targets(samples)
    texts = ("input_text", "output_text", "prefix_text")
    plain = {key: value for key, value in found.items() if key not in {*texts, "matched", "new", "reply", "events"}}
    matched = found.get("matched", ())
    return {
        **plain,
        "matched": [
            _message(each) | {"targets": targets.get(each["call"], 0) if each["answer"] else 0}
            for each in matched[-MESSAGES:]
        ],
        "matched_more": max(0, len(matched) - MESSAGES),
        "new": [_message(each) for each in found.get("new", ())[:MESSAGES]],
        "reply": [_message(each) for each in found.get("reply", ())],
        "input": _text(found.get("input_text")),
        "output": _answer(samples, name) if samples else [],
        "output_text": _text(found.get("output_text")),
        "events": [{key: _text(value) for key, value in event.items()} for event in found["events"][:MESSAGES]],
    }


async def _samples(source: Source, execution: str) -> Samples | None:
    try:
        return await samples_of(source, execution)
    except (NoSamples, ExecutionNotFound):
        return None


def _targets(samples: Samples | None) -> dict[str | None, int]:
    """Call -> how many of its tokens carry loss."""
    found: dict[str | None, int] = {}
    for each in samples.samples if samples else ():
        for piece in each.pieces:
            if piece.target:
                found[piece.call] = found.get(piece.call, 0) + piece.stop - piece.start
    return found


def _answer(samples: Samples, call: str) -> list[list[Any]]:
    """[text, mark, where] of each run of the answer's tokens that is alike; [] where none of it was admitted."""
    marks: dict[int, tuple[str, str]] = {}
    ids: dict[int, int] = {}
    for each in samples.samples:
        for place, token, target in _sampled(each, call):
            ids[place] = token
            if target or place not in marks:
                marks[place] = ("target" if target else "masked"), each.trajectory.leaf
    return _runs(samples, marks, ids)


def _sampled(sample: Sample, call: str) -> Iterator[tuple[int, int, bool]]:
    """(place in the answer, token, whether it is a target) of a call's own tokens in a sample."""
    kept = ints(sample.trajectory.ids)
    place = 0
    for piece in sample.pieces:
        if piece.call == call and piece.source == "sampled":
            for position in range(piece.start, piece.stop):
                yield place, kept[position], piece.target
                place += 1


def _runs(samples: Samples, marks: Mapping[int, tuple[str, str]], ids: Mapping[int, int]) -> list[list[Any]]:
    runs: list[tuple[tuple[str, str], list[int]]] = []
    for place in islice(sorted(ids), TOKENS * 10):
        if not runs or runs[-1][0] != marks[place]:
            runs.append((marks[place], []))
        runs[-1][1].append(ids[place])
    chat = samples.chat
    return [[_text(chat.decode(kept)) if chat else " ".join(map(str, kept)), *mark] for mark, kept in runs]


def _spine(spine: Spine, depth: int) -> Iterator[tuple[int, Sequence[str]]]:
    """Chains of a spine, each one's branches right below it, one step in."""
    for chain in spine:
        yield depth, chain.calls
        for side in chain.sides:
            yield from _spine(side, depth + 1)


def _line(depth: int, calls: Sequence[str], nodes: Mapping[str, Found], leaves: Mapping[str, Found]) -> Found:
    first, last = nodes[calls[0]], nodes[calls[-1]]
    return {
        "depth": depth,
        "calls": [[call, nodes[call]["input_tokens"], nodes[call]["output_tokens"]] for call in calls[:CALLS]],
        "count": len(calls),
        "parent": first["parent"],
        "thread": first["thread"],
        "kind": first["kind"],
        "fallback": _text(first["fallback"]),
        "prefix": first["prefix_tokens"],
        "length": last["prefix_tokens"] + last["input_tokens"] + last["output_tokens"],
        "versions": sorted({version for call in calls for version in nodes[call]["versions"]}),
        "finish": last["finish"],
        "delivered": first["delivered"],
        "says": (last["output"] or "")[:SNIPPET],
        "leaf": leaves.get(calls[-1]),
    }


def _shape(node: Found, leaves: Mapping[str, Found]) -> Shape:
    prefix, own = node["prefix_tokens"], node["input_tokens"] + node["output_tokens"]
    sort = (node["thread"], node["kind"], node["delivered"])
    return Shape(node["call"], node["index"], node["parent"], prefix, prefix + own, sort, node["call"] in leaves)


def _mark(target: bool, source: str) -> str:
    if target:
        return "target"
    return "masked" if source == "sampled" else source


def _message(message: Found) -> Found:
    """A message with its texts cut."""
    calls = [
        {"name": _text(each["function"]["name"]), "arguments": _text(each["function"]["arguments"])}
        for each in message.get("tool_calls") or ()
    ]
    told: Found = {key: message[key] for key in ("role", "call", "answer", "end") if key in message}
    return {**told, "content": _text(message.get("content") or ""), "tool_calls": calls}


def _text(value: Any) -> Any:
    """A text that fits; anything else as it is."""
    if isinstance(value, str) and len(value) > TEXT:
        return f"{value[:TEXT]}… ({len(value) - TEXT} characters more)"
    return value
