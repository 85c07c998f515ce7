"""Makes nano from nothing: `python -m gyre.models.nano.make --out DIR --seed 0` (some minutes on two cores).

A supervised warm start only: it learns the form of a tool call and to copy a word, then unlearns reliability on traces
with mistakes, which leaves reinforcement something to improve. Deterministic from the seed on one kind of machine.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from .tokenizer import CONTEXT, make_tokenizer
from .traces import Row, batches, clean_rows, noisy_rows

ROWS = 32  # a batch
IGNORED = -100


@dataclass(frozen=True, slots=True)
class Stage:
    """One stretch of fitting. `rate` is the chance of a mistake; None means solved traces and repetitions."""

    steps: int
    learning_rate: float
    rate: float | None


STAGES = (Stage(500, 3e-3, None), Stage(60, 1e-3, 0.3))


def new_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """An unfitted Llama of two layers, 0.4 M parameters, float32."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    return LlamaForCausalLM(config)


def fit(model: LlamaForCausalLM, work: Iterator[list[Row]], stage: Stage) -> Iterator[float]:
    """One Adam step per batch; yields each step's mean loss per target, in nats. The rate falls linearly to a tenth."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=stage.learning_rate, betas=(0.9, 0.95), weight_decay=0.01)
    model.train()
    for step, rows in enumerate(work):
        warm = min(1.0, (step + 1) / 20)
        for group in optimizer.param_groups:
            group["lr"] = stage.learning_rate * warm * (1 - 0.9 * step / stage.steps)
        ids, labels = _tensors(rows)
        logits = model(input_ids=ids).logits[:, :-1]  # (B, T-1, V)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield loss.item()


def stage_batches(tokenizer: PreTrainedTokenizerFast, stage: Stage, seed: int) -> Iterator[list[Row]]:
    """The batches that a stage is fitted on."""
    if stage.rate is None:
        return batches(clean_rows(tokenizer, seed), ROWS, stage.steps)
    return batches(noisy_rows(tokenizer, seed + 1, stage.rate), ROWS, stage.steps)


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write the folder that `from_pretrained` reads."""
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True, temperature=1.0
    )
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    for file in out.iterdir():
        file.chmod(0o644)  # safetensors are written for the owner alone


def _tensors(rows: list[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and labels, (B, T) each; padding is at the right, where a causal model cannot see it."""
    width = max(len(row) for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    labels = torch.full((len(rows), width), IGNORED)
    for index, row in enumerate(rows):
        tokens = torch.tensor([token for token, _ in row])
        ids[index, : len(row)] = tokens
        labels[index, : len(row)] = torch.where(torch.tensor([loss for _, loss in row]), tokens, IGNORED)
    return ids, labels


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the model and say how the loss went."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0, help="same seed, same model (default 0)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True)
    tokenizer = make_tokenizer()
    model = new_model(tokenizer, options.seed)
    for stage in STAGES:
        for step, loss in enumerate(fit(model, stage_batches(tokenizer, stage, options.seed), stage), start=1):
            if step % 50 == 0 or step == stage.steps:
                kind = "clean" if stage.rate is None else "noisy"
                sys.stdout.write(f"{kind} step {step:4d}  loss {loss:.3f} nats\n")
                sys.stdout.flush()
    save(model, tokenizer, options.out)


if __name__ == "__main__":
    main()
