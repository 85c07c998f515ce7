"""From a request to the place in the tree where it goes on, and the tokens that are new there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from gyre.core import tree as trees
from gyre.proxy.cuts import roles_behind
from gyre.proxy.errors import HistoryUnrenderable
from gyre.proxy.exchange import Asked
from gyre.proxy.match import Place, Point
from gyre.proxy.normalise import Message
from gyre.proxy.paths import Paths, spot_of
from gyre.proxy.template import GENERATE, ROOT, Behind, Increment, NotAppendOnly, Template
from schemas.base import Int32s, ints, pack_ints

REFUSED = "the template refuses the rest on its own"
NO_PLACE = "the template allows no cut there"


@dataclass(frozen=True, slots=True)
class Placed:
    """A request in the tree."""

    parent: str | None
    prefix_tokens: int
    prefix_messages: int
    context: Int32s
    """The whole exact input, packed."""
    messages: tuple[Message, ...]
    """The new ones, as they were rendered: the answers among them as they were recorded."""
    ends: tuple[int, ...]
    """Tokens of the path up to the end of each new message; -1 where nothing may be cut."""
    fallback: str
    """Why less than what is known of the history is gone on from, "" if all is."""


def placed(
    tree: trees.Tree,
    paths: Paths,
    template: Template,
    points: Sequence[Point],
    root: str,
    asked: Asked,
    reached: Callable[[str, int], Point],
) -> Placed:
    """Go on from the deepest place that the template allows, else from a new root.

    `points` are those of the history that are known, its root first. Where others have gone on from the same place with
    the same input tokens, the call shares those too: a fork may lie inside a message. `reached` is the point behind so
    many messages of a call's history: only along calls that passed the place itself.

    Raises:
        HistoryUnrenderable: the template refuses the history.
    """
    depth, increment, fallback = _deepest(template, points, asked)
    place = points[depth].place
    if place is None:
        increment = _root(template, points, asked)
    elif place.answered:
        increment = _closed(tree, template, place.call, increment)
    ids = pack_ints(increment.ids)
    tokens = place.tokens if place else 0
    spot = spot_of(tree, place.call, tokens) if place else (root, 0)
    fits = partial(_passed, reached, place, points[depth])
    shared = paths.share(tree, spot, ids, fits)
    parent = place.call if place else None
    lasting = _lasting(template, points, depth, asked, increment.ends)
    return Placed(
        parent=parent if shared == spot else shared[0],
        prefix_tokens=shared[1],
        prefix_messages=place.messages if place else 0,
        context=(paths.cut(tree, place.call, tokens) if place else b"") + ids,
        messages=_recorded(points, asked, depth),
        ends=tuple(end + tokens if end >= 0 else -1 for end in lasting),
        fallback=fallback,
    )


def _passed(reached: Callable[[str, int], Point], place: Place | None, point: Point, call: str) -> bool:
    """Whether a call's history begins with the one up to the place: others come to equal tokens by other messages."""
    return place is None or reached(call, place.messages) is point


def _deepest(template: Template, points: Sequence[Point], asked: Asked) -> tuple[int, Increment, str]:
    """How deep the deepest place lies (0: there is none), what is new behind it, and why none deeper was taken."""
    messages, tools = asked.messages, bool(asked.tools)
    following = frozenset(message.role for message in messages[len(points) - 1 :])
    why = ""
    for count in range(len(points) - 1, 0, -1):
        point = points[count]
        after = messages[count].role if count < len(messages) else GENERATE
        following |= {after} - {GENERATE}
        if point.place is None:
            why = why or NO_PLACE
            continue
        behind = Behind(messages[count - 1].role, point.place.answered, point.place.live)
        if refused := template.refusal(behind, after, following, tools=tools):
            why = why or refused
            continue
        try:
            return count, template.increment(behind, _recorded(points, asked, count), asked.tools), why
        except (NotAppendOnly, HistoryUnrenderable):
            why = why or REFUSED
    return 0, Increment([], []), why


def _root(template: Template, points: Sequence[Point], asked: Asked) -> Increment:
    messages = _recorded(points, asked, 0)
    try:
        return template.increment(ROOT, messages, asked.tools)
    except (NotAppendOnly, HistoryUnrenderable):
        return template.whole(messages, asked.tools)


def _recorded(points: Sequence[Point], asked: Asked, depth: int) -> tuple[Message, ...]:
    """The messages behind a place, the answers among them as they were recorded."""
    known = zip(points[depth + 1 :], asked.messages[depth:], strict=False)
    return (*(point.recorded(message) for point, message in known), *asked.messages[len(points) - 1 :])


def _lasting(
    template: Template, points: Sequence[Point], depth: int, asked: Asked, ends: Sequence[int]
) -> Sequence[int]:
    """The ends; none between a thought and what made the template drop it: histories without that show it still."""
    live = (point.place is not None and point.place.answered and point.place.live for point in points[depth + 1 :])
    first = next((at for at, each in enumerate(live) if each), None)
    if first is None:
        return ends
    roles = [*(message.role for message in asked.messages[depth:]), GENERATE]
    following, tools = roles_behind(asked.messages[depth:]), bool(asked.tools)
    lost = {
        at
        for at in range(first, len(ends))
        if template.refusal(Behind(roles[at], live=True), roles[at + 1], following[at + 1], tools=tools)
    }
    return [-1 if at in lost else end for at, end in enumerate(ends)]


def _closed(tree: trees.Tree, template: Template, call: str, increment: Increment) -> Increment:
    """Behind a sampled turn, what ends the turn comes first."""
    output = tree.nodes[call].output_ids
    close = template.closing(ints(output[-4:])[0] if output else None)
    return Increment(close + increment.ids, [end + len(close) if end >= 0 else -1 for end in increment.ends])
