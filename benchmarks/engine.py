"""Tokens per second of the torch engine against transformers' `generate`, same model, prompts and lengths, in turns.

    python benchmarks/engine.py [--model FOLDER] [--batches 1,8] [--threads 1] [--json]

Each round draws fresh prompts (nothing is reused from a prefix cache), times both with sampling at temperature 1, and
the median of the rounds counts. The engine also reports log-probabilities; `generate` is not asked for them.
"""

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from gyre.engines.port import GenerateRequest, Sampling
from gyre.engines.torch_engine import TorchEngine

NANO = Path(__file__).parent.parent / "gyre" / "models" / "nano" / "weights"


async def engine_rate(engine: TorchEngine, prompts: torch.Tensor, tokens: int) -> float:
    """Tokens a second of one request a row, all sent at once."""
    sampling = Sampling(max_tokens=tokens)
    requests = [
        GenerateRequest(f"r{row}", tuple(prompt), sampling, f"r{row}") for row, prompt in enumerate(prompts.tolist())
    ]
    start = perf_counter()
    await asyncio.gather(*[engine.generate(request) for request in requests])
    return prompts.shape[0] * tokens / (perf_counter() - start)


def generate_rate(model: Any, prompts: torch.Tensor, tokens: int) -> float:
    """Tokens a second of transformers' own batched generation; no end-of-sequence token, so that all rows go on."""
    config = GenerationConfig(do_sample=True, top_k=0, max_new_tokens=tokens, pad_token_id=0)
    start = perf_counter()
    out = model.generate(prompts, attention_mask=torch.ones_like(prompts), generation_config=config)
    seconds = perf_counter() - start
    assert out.shape[1] == prompts.shape[1] + tokens
    return prompts.shape[0] * tokens / seconds


async def compare(model: Any, rival: Any, batch: int, options: argparse.Namespace) -> dict[str, float]:
    """Medians over the rounds, and their ratio."""
    engine = TorchEngine(model)
    ours, theirs = [], []
    for turn in range(options.rounds + 1):  # the first warms both up
        random = torch.Generator().manual_seed(1000 * batch + turn)
        prompts = torch.randint(model.config.vocab_size, (batch, options.prompt), generator=random)
        ours.append(await engine_rate(engine, prompts, options.tokens))
        theirs.append(generate_rate(rival, prompts, options.tokens))
    await engine.close()
    engine_median, generate_median = median(ours[1:]), median(theirs[1:])
    return {
        "batch": batch,
        "engine_tokens_per_second": round(engine_median, 1),
        "generate_tokens_per_second": round(generate_median, 1),
        "ratio": round(engine_median / generate_median, 3),
    }


def load(folder: Path) -> Any:
    """The model, as the engine wants it."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config = GenerationConfig()  # or the folder's end-of-sequence token would end rows early
    return model


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, default=NANO, help="folder in Hugging Face form (default: nano)")
    parser.add_argument("--batches", default="1,8", help="requests at once, comma-separated (default 1,8)")
    parser.add_argument("--prompt", type=int, default=64, help="prompt tokens (default 64)")
    parser.add_argument("--tokens", type=int, default=128, help="tokens to generate a request (default 128)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds to take the median of (default 5)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default 1)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    model, rival = load(options.model), load(options.model)
    results = [asyncio.run(compare(model, rival, int(batch), options)) for batch in options.batches.split(",")]
    if options.json:
        print(json.dumps({"model": options.model.name, "threads": options.threads, "results": results}))
        return
    for found in results:
        print(
            f"batch {found['batch']:3.0f}: engine {found['engine_tokens_per_second']:8.1f} tok/s, "
            f"generate {found['generate_tokens_per_second']:8.1f} tok/s, ratio {found['ratio']:.2f}"
        )


if __name__ == "__main__":
    main()
