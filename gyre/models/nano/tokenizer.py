"""nano's tokenizer: byte-level BPE, fitted on word tasks, so that each word and each run of JSON marks is one token."""

import itertools

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from gyre.tasks.words import WORDS, WordTask, word_tasks

from .template import CALL, CALL_END, CHAT_TEMPLATE, DONE, END, PAD, SPECIAL, call_text, episode

VOCABULARY = 512  # tokens at most; 256 bytes, 5 marks, the rest merges
CONTEXT = 2048  # tokens
PIECES = r" ?[A-Za-z]+| ?[0-9]| ?[^\sA-Za-z0-9]+|\s+"
CORPUS = 1500  # episodes


def solved(task: WordTask) -> tuple[str, ...]:
    """The assistant's turns in a perfect episode: the calls one by one, then the closing word."""
    return (*(call_text(call) for call in task.calls), DONE)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Fit the tokenizer; always the same one. Raises ValueError if a word needs more than one token."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - 2,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    raw.train_from_iterator(_corpus(), trainer)
    raw.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in (CALL, CALL_END)])
    split = [word for word in WORDS if len(raw.encode(word).ids) != 1]
    if split:
        raise ValueError(f"tokenizer: words of several tokens: {', '.join(split)}; raise VOCABULARY or CORPUS")
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=raw,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[SPECIAL[1]],
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _corpus() -> list[str]:
    tasks = itertools.islice(word_tasks(0, "train"), CORPUS)
    texts = ["".join(text for text, _ in episode(task, solved(task), task.results())) for task in tasks]
    for mark in (*SPECIAL, CALL, CALL_END):
        texts = [piece for text in texts for piece in text.split(mark)]
    return texts
