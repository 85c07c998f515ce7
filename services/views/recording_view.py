"""`gyre tree --recording`: what tree a harness's recorded traffic gives, without a run."""

from pathlib import Path
from typing import Any

from gyre.core import tree as trees
from gyre.core.leaves import summaries
from gyre.models.load import NANO
from gyre.proxy.adapters.registry import find_adapter
from gyre.proxy.chat_model import ChatModel
from gyre.proxy.playback import play
from gyre.proxy.recording import RecordingUnreadable, read
from gyre.proxy.template import Template
from services.views.tree_view import outline_of


def tree_of_recording(file: Path, adapter: str) -> dict[str, Any]:
    """The tree as plain data, in the tokens and the template of the model that gyre ships.

    Raises:
        RecordingUnreadable: the file is not there, or is no recording.
        AdapterUnknown: no adapter has this name.
    """
    reader = find_adapter(adapter)
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise RecordingUnreadable(f"--recording {file}: cannot be read: {error.strerror}") from error
    template = Template(ChatModel.load(NANO))
    played = play(read(lines), template, reader)
    return {
        "execution": played.tree.execution,
        "digest": trees.digest(played.tree),
        **outline_of(played.tree, summaries(played.tree), played.records, template.model),
        "rejected": [{"call": request, "reason": reason} for request, reason in played.rejected],
        "requests": played.requests,
        "unknown": [{"call": call, "what": what} for call, what in played.unknown],
    }
