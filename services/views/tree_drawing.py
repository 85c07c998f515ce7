"""How `gyre tree` draws what `tree_of` found: a chain of calls is one line, with `full` each call has its own."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from gyre.core.chains import Shape, Spine, spines
from services.views.terminal import one_line, show

_SHOWN = 100
"""Characters of a call's text in a drawing."""
_FEW = 3
"""Auxiliary calls up to which each has its own line."""
Found = dict[str, Any]


def draw(found: Found, console: Console, *, full: bool = False) -> None:
    """Draw a tree."""
    show(console, lines(found, full=full))


def lines(found: Found, *, full: bool) -> Iterator[Text]:
    """The drawing, line by line."""
    nodes = {node["call"]: node for node in found["nodes"]}
    drawing = _Drawing(nodes, {leaf["id"]: leaf for leaf in found["leaves"]}, full)
    yield from _head(found)
    ends = {leaf["id"] for leaf in found["leaves"]}
    grown = spines([_shape(node, node["call"] in ends) for node in found["nodes"]])
    asides = [spine for spine in grown if _aside(spine, nodes)]
    folded = not full and len(asides) > _FEW
    for spine in grown:
        if not (folded and _aside(spine, nodes)):
            yield from drawing.spine(spine, "")
    if folded:
        yield _asides([spine[0].calls[0] for spine in asides], nodes)
    for link in found["links"]:
        yield Text(f"link: {link['call']} started {link['first']} of {link['thread']}")
    for each in found["rejected"]:
        yield Text(f"rejected: {each['call']}, {one_line(each['reason'], _SHOWN)}", "red")
    for each in found.get("unknown", ()):
        yield Text(f"unknown: {each['call']}, {one_line(each['what'], _SHOWN)}", "yellow")
    if found.get("as_recorded") is False:
        yield Text("the log records another tree than these calls give; `gyre replay --verify` says more", "red")


class _Drawing:
    """What lines are made from."""

    def __init__(self, nodes: Mapping[str, Found], leaves: Mapping[str, Found], full: bool) -> None:
        self._nodes, self._leaves, self._full = nodes, leaves, full

    def spine(self, spine: Spine, rail: str) -> Iterator[Text]:
        """A spine's chains one below the other, each one's branches beside it."""
        for place, chain in enumerate(spine):
            more = "│ " if place + 1 < len(spine) else "  "
            for group in [[call] for call in chain.calls] if self._full else [list(chain.calls)]:
                yield Text(f"{rail}● ").append(self._chain(group))
            yield from self._leaf(chain.calls[-1], rail + more)
            for number, side in enumerate(chain.sides):
                last = number + 1 == len(chain.sides) and more == "  "
                yield from self._side(side, f"{rail}{'└─' if last else '├─'}", f"{rail}{'  ' if last else '│ '}")

    def _side(self, side: Spine, first: str, rest: str) -> Iterator[Text]:
        for number, line in enumerate(self.spine(side, "")):
            yield Text(first if number == 0 else rest).append(line)

    def _chain(self, calls: Sequence[str]) -> Text:
        """First..last call, how many, and their tokens."""
        nodes = [self._nodes[call] for call in calls]
        first, last = nodes[0], nodes[-1]
        name = first["call"] if len(calls) == 1 else f"{first['call']} .. {last['call']}"
        size = last["prefix_tokens"] + last["input_tokens"] + last["output_tokens"]
        sampled = sum(node["output_tokens"] for node in nodes)
        words = [
            *([f"{len(calls)} calls"] if len(calls) > 1 else []),
            first["thread"] + ("" if first["kind"] == "turn" else f" {first['kind']}"),
            f"{first['prefix_tokens']} -> {size} tokens",
            f"{sampled} sampled",
            *([f"forks inside {first['parent']}"] if self._inside(first) else []),
            *([f"fell back: {one_line(first['fallback'], _SHOWN)}"] if first["fallback"] else []),
            *([] if last["finish"] == "stop" else [f"ended by {last['finish']}"]),
            *([] if first["delivered"] else ["not delivered"]),
        ]
        text = Text(name, "bold").append(f"  {', '.join(words)}", "default")
        return text.append(f"  {one_line(last['output'] or '', _SHOWN)}", "dim") if self._full else text

    def _inside(self, node: Found) -> bool:
        parent = self._nodes.get(node["parent"])
        return parent is not None and node["prefix_tokens"] < sum(
            parent[part] for part in ("prefix_tokens", "input_tokens", "output_tokens")
        )

    def _leaf(self, call: str, rail: str) -> Iterator[Text]:
        leaf = self._leaves.get(call)
        if leaf is None:
            return
        role = f"leaf: {leaf['role']}{', the final one' if leaf['final_main'] else ''}"
        text = Text(f"{rail}{role}, {leaf['targets']} of {leaf['length']} tokens sampled")
        if "why" in leaf:
            text.append(f"; {leaf['why']}", "green" if leaf["admitted"] else "yellow")
        yield text
        if not self._full and (said := self._nodes[call]["output"]):
            yield Text(rail).append(one_line(said, _SHOWN), "dim")


def _head(found: Found) -> Iterator[Text]:
    counts = (("call", found["nodes"]), ("root", found["roots"]), ("leaf", found["leaves"]))
    size = ", ".join(f"{len(each)} {_plural(word, len(each))}" for word, each in counts)
    text = Text(f"execution {found['execution']}", "bold").append(f"  {size}", "default")
    if "standing" not in found:
        yield text
        return
    yield text.append(f", reward {'none' if found['reward'] is None else format(found['reward'], '.3f')}", "default")
    yield from (_assessed(each) for each in found["assessments"] if each["by"] is not None)
    if (admitted := found["admitted"]) is not None:
        taken = f"{len(admitted['trajectories'])} of {len(found['leaves'])} leaves admitted (J_max {found['j_max']})"
        yield Text(f"{taken}, {admitted['targets']} targets, advantage {admitted['advantage']:+.3f}{_step(found)}")


def _assessed(each: Found) -> Text:
    by, score = each["by"], each["score"]
    who = f"{by['model']} at {by['url']}" if by["evaluator"] == "judge" else by["evaluator"]
    where = " in ".join(word for word in (by["sandbox"], by["image"]) if word) or "nowhere"
    words = (
        f"{'no score' if score is None else format(score, '.3f')} by {who}, run in {where}, rules {by['digest'][:12]}"
    )
    beside = "" if each["designated"] else ", beside the reward"
    return Text(f"assessment {each['assessment']}: {words}{beside}", "default" if score is not None else "yellow")


def _step(found: Found) -> str:
    trained = found["training"]
    if trained is None:
        return ", in no step yet"
    ratio = "" if trained["ratio"] is None else f", ratio {trained['ratio']:.4f}"
    return f", step {trained['step']}{ratio}"


def _asides(calls: Sequence[str], nodes: Mapping[str, Found]) -> Text:
    sampled = sum(nodes[call]["output_tokens"] for call in calls)
    text = Text("● ").append(f"{len(calls)} auxiliary calls", "bold")
    return text.append(f"  {calls[0]} .. {calls[-1]}, {sampled} sampled; never trained on (--full lists them)")


def _aside(spine: Spine, nodes: Mapping[str, Found]) -> bool:
    return len(spine) == 1 and len(spine[0].calls) == 1 and nodes[spine[0].calls[0]]["kind"] == "auxiliary"


def _plural(word: str, count: int) -> str:
    return word if count == 1 else {"leaf": "leaves"}.get(word, f"{word}s")


def _shape(node: Found, ends: bool) -> Shape:
    prefix, tokens = node["prefix_tokens"], node["input_tokens"] + node["output_tokens"]
    sort = (node["thread"], node["kind"], node["delivered"])
    return Shape(node["call"], node["index"], node["parent"], prefix, prefix + tokens, sort, ends)
