"""What a policy thinks before it speaks, between `<think>` and `</think>`, split from what it says.

A generation prompt may open the block, so that the answer begins inside it. A block that is never closed (an answer
cut by length) is all thought. An end without a beginning ends a thought too, but not behind a call: it may be
what the call writes.
"""

OPEN, CLOSE = "<think>", "</think>"
_CALLS = ("<tool_call>", "<function=", "[TOOL_CALLS]")


def opens(prompt: str) -> bool:
    """Whether a generation prompt leaves a block open."""
    return prompt.rfind(OPEN) > prompt.rfind(CLOSE)


def thinks(text: str) -> bool:
    """Whether an answer holds a block, an empty one too."""
    return OPEN in text or CLOSE in text


def split(text: str, *, opened: bool) -> tuple[str, str]:
    """(thought, said). `opened`: the generation prompt opened the block. Without a block, all is said."""
    start = text.lstrip()
    if start.startswith(OPEN):
        inner = start[len(OPEN) :]
    elif opened or _ends(text):
        inner = text
    else:
        return "", text
    thought, _, said = inner.partition(CLOSE)
    return thought.strip("\n"), said.lstrip("\n")


def _ends(text: str) -> bool:
    """Whether a text that begins no block ends one."""
    before, close, _ = text.partition(CLOSE)
    return bool(close) and not any(call in before for call in _CALLS)


def written(thought: str, said: str) -> str:
    """As most families write it."""
    return f"{OPEN}\n{thought}\n{CLOSE}\n\n{said}"
