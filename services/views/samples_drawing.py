"""How `gyre samples` draws what `samples_of` found: marks tell targets from the rest also where there is no colour."""

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from gyre.core.samples import Piece
from gyre.proxy.chat_model import ChatModel
from schemas.base import floats, ints
from services.views.samples_view import Decode, Sample, Samples, decoder, tokens
from services.views.terminal import one_line, show
from services.views.tree_view import effect_of

MARKS = {"target": ("+", "green"), "masked": ("-", "yellow"), "input": (" ", "dim"), "unknown": ("?", "dim")}
"""What a token is -> its mark and colour: `target` carries loss, `masked` was sampled and carries none here."""
_SHOWN = 100
"""Characters of a piece's text on its line."""
_PIECES = 40
"""Pieces of a trajectory up to which all are shown."""


def draw(found: Samples, console: Console, *, full: bool = False, table: slice | None = None) -> None:
    """Draw the samples: a line for each run of tokens of one origin, or with `table` one for each of its tokens."""
    show(console, _head(found))
    for number, sample in enumerate(found.samples, 1):
        trajectory = sample.trajectory
        size = f"{len(trajectory.target)} tokens, {trajectory.targets} targets of weight {found.weight:.3g}"
        show(console, ["", Text(f"{number}. leaf {trajectory.leaf}, {trajectory.role}: {size}", "bold")])
        if table is not None:
            show(console, _table(sample, found.weight, decoder(found.chat), table))
        else:
            show(console, _strip(sample, found.chat, full))


def _head(found: Samples) -> Iterator[Text]:
    event = found.event
    count = f"{len(event.trajectories)} trajectories, {event.targets} targets"
    text = Text(f"execution {event.execution}", "bold")
    yield text.append(
        f"  group {event.group}, version {event.version}, {count}, advantage {event.advantage:+.3f}", "default"
    )
    if effect := effect_of(event, found.training):
        yield Text(effect, "yellow")
    if found.difference is None:
        yield Text(f"equal to a fresh draw from the tree with the recorded seed {event.seed}", "green")
    else:
        yield Text(f"not what the tree gives with the recorded seed {event.seed}: {found.difference}", "red")
    yield Text("+ target   - sampled, no loss here   (no mark) input")


def _kind(target: bool, source: str) -> str:
    if target:
        return "target"
    return "masked" if source == "sampled" else source


def _strip(sample: Sample, chat: ChatModel | None, full: bool) -> Iterator[Text]:
    """The pieces in order; the middle of a long one is left out unless `full`."""
    found = sample.pieces
    half = _PIECES // 2
    cut = not full and len(found) > _PIECES
    for piece in found[:half] if cut else found:
        yield _line(sample, piece, chat, full)
    if cut:
        left_out = found[half:-half]
        tokens, targets = (
            left_out[-1].stop - left_out[0].start,
            sum(each.stop - each.start for each in left_out if each.target),
        )
        yield Text(f"  ... {len(left_out)} more runs, {tokens} tokens, {targets} targets (--full shows them)", "dim")
        for piece in found[-half:]:
            yield _line(sample, piece, chat, full)


def _line(sample: Sample, piece: Piece, chat: ChatModel | None, full: bool) -> Text:
    mark, colour = MARKS[_kind(piece.target, piece.source)]
    ids = ints(sample.trajectory.ids[piece.start * 4 : piece.stop * 4])
    said = chat.decode(ids) if chat else " ".join(map(str, ids))
    place = f"{piece.start}..{piece.stop}"
    version = "" if piece.version is None else f"v{piece.version}"
    logprobs = floats(piece.logprobs)
    mean = f"{sum(logprobs) / len(logprobs):.2f}" if logprobs else ""
    text = Text(f"{mark} {place:>15} {piece.call or '?':>12} {version:>4} {mean:>7}  ")
    return text.append(one_line(said, len(said) * 8 if full else _SHOWN), colour)


def _table(sample: Sample, weight: float, decode: Decode, chosen: slice) -> Iterator[Text]:
    """One line a token: position, mark, id, text, call, version, log-probability, weight."""
    yield Text(f"{'position':>9}   {'id':>7} {'call':>12} {'':>5} {'logprob':>9} {'weight':>9}  token", "bold")
    start, stop, _ = chosen.indices(len(sample.trajectory.target))
    for token in tokens(sample, weight, decode, start, stop):
        mark, colour = MARKS[_kind(token["target"], token["source"])]
        version = "" if token["version"] is None else f"v{token['version']}"
        logprob = "" if token["logprob"] is None else f"{token['logprob']:.4f}"
        share = f"{token['weight']:.3g}" if token["target"] else ""
        origin = f"{token['call'] or '?':>12} {version:>5}"
        text = Text(f"{token['position']:>9} {mark} {token['id']:>7} {origin} {logprob:>9} {share:>9}  ")
        yield text.append(f"'{one_line(token['token'] or '', _SHOWN)}'", colour)
