"""What the warm start is fitted on: solved episodes, episodes with mistakes in them, and sequences that repeat.

Solved episodes teach the form, repetition teaches copying (without it a word is never carried over), and mistakes bring
a policy that could do nearly everything back to where reinforcement has something to improve.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from transformers import PreTrainedTokenizerFast

from gyre.tasks.words import STEMS, WORDS, Call, WordTask, word_tasks

from .template import DONE, call_text, episode
from .tokenizer import solved

Row = list[tuple[int, bool]]  # (token id, carries loss)


def clean_rows(tokenizer: PreTrainedTokenizerFast, seed: int) -> Iterator[Row]:
    """Solved training episodes and repeated sequences in turn."""
    rng = random.Random(f"copies-{seed}")
    for task in word_tasks(seed, "train"):
        yield _row(tokenizer, task, solved(task))
        yield _repeated(rng, len(tokenizer))


def noisy_rows(tokenizer: PreTrainedTokenizerFast, seed: int, rate: float) -> Iterator[Row]:
    """Training episodes in which each choice (word, file, tool, whether to act) is wrong with chance `rate`."""
    rng = random.Random(f"mistakes-{seed}")
    for task in word_tasks(seed, "train"):
        calls = tuple(_spoilt(rng, call, rate) for call in task.calls if rng.random() >= rate / 2)
        yield _row(tokenizer, task, (*(call_text(call) for call in calls), DONE))


def batches(rows: Iterator[Row], size: int, steps: int) -> Iterator[list[Row]]:
    """`steps` batches of `size` rows."""
    for _ in range(steps):
        yield list(islice(rows, size))


def _row(tokenizer: PreTrainedTokenizerFast, task: WordTask, turns: tuple[str, ...]) -> Row:
    results = ("ok",) * (len(turns) - 1)
    if task.calls[0].tool == "read" and results and '"read"' in turns[0]:
        results = (task.results()[0], *results[1:])
    pieces = episode(task, turns, results)
    encoded = tokenizer([text for text, _ in pieces], add_special_tokens=False)["input_ids"]
    return [(token, sampled) for ids, (_, sampled) in zip(encoded, pieces, strict=True) for token in ids]


def _repeated(rng: random.Random, vocabulary: int) -> Row:
    """Random tokens, then the same ones again: only the second time is predictable and carries loss."""
    ids = [rng.randrange(3, vocabulary) for _ in range(rng.randint(8, 40))]
    return [(token, False) for token in ids] + [(token, True) for token in ids]


def _spoilt(rng: random.Random, call: Call, rate: float) -> Call:
    if call.tool == "read":
        return call
    if rng.random() < rate:
        call = replace(call, content=rng.choice(WORDS))
    if rng.random() < rate:
        call = replace(call, path=f"{rng.choice(STEMS)}.txt")
    if rng.random() < rate:
        call = replace(call, tool=rng.choice(("write", "append")))
    return call
