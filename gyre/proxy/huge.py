"""Texts that are surely too long are told by their beginning: encoding them whole would hold up everybody else."""

from collections.abc import Callable, Iterable, Sequence

from gyre.proxy.errors import PromptTooLong

_PIECE = 1 << 16
"""Characters that are encoded at a time: some encoders take much longer than their input for one word of millions."""
_CHARACTERS = 4
"""Of an ordinary token: a text of fewer than so many for each token there may be is encoded whole, at little cost."""


def refuse_huge(encode: Callable[[str], Sequence[int]], texts: Iterable[str], most: int) -> None:
    """Refuse a text of which pieces alone are more than `most` tokens.

    A cut may make a token or two of one: a tenth more than `most` is therefore allowed here, and refused for its exact
    length later. Raises PromptTooLong, with the tokens that were counted until then.
    """
    for text in texts:
        if len(text) > _CHARACTERS * most:
            counted = 0
            for start in range(0, len(text), _PIECE):
                counted += len(encode(text[start : start + _PIECE]))
                if counted > most + most // 10:
                    raise PromptTooLong(counted, most)
