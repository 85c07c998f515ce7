"""What only the torch engine has: real memory, files of weights, and models that it must turn away."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from gyre.engines.decoder import Decoder
from gyre.engines.port import EngineError, EngineFailed, GenerateRequest, RequestRefused, Sampling
from gyre.engines.torch_engine import TorchEngine
from gyre.process import give_back


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def test_release_gives_the_parameters_memory_back_and_resume_takes_it_again(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=40_000,
        hidden_size=512,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    size = sum(parameter.nbytes for parameter in model.parameters())
    model.save_pretrained(tmp_path)  # leaves the tied head out
    engine = TorchEngine(model)
    ask = GenerateRequest("a", (1, 2, 3), Sampling(max_tokens=4, temperature=0.0))
    before = await engine.generate(ask)
    give_back()  # as a cell does: what tests before this one freed, and then what the engine lets go of
    held = resident_bytes()
    await engine.release()
    give_back()
    assert held - resident_bytes() > 0.9 * size
    await engine.resume(tmp_path / "model.safetensors", 3)
    assert (await engine.generate(ask)).output_ids == before.output_ids
    assert engine.version == 3
    await engine.close()


async def test_loaded_weights_are_a_copy_that_training_cannot_reach(llama: Callable[..., Any]) -> None:
    trained = llama(1)
    engine = TorchEngine(llama(0))
    await engine.load(trained.state_dict(), 1)
    ask = GenerateRequest("a", (1, 2, 3), Sampling(max_tokens=8, temperature=0.0))
    before = await engine.generate(ask)
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.mul_(-1.0)
    assert (await engine.generate(ask)).output_ids == before.output_ids
    await engine.close()


async def test_a_file_may_be_replaced_once_it_is_loaded(llama: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    state = {name: value for name, value in llama(1).state_dict().items() if name != "lm_head.weight"}
    save_file(state, path)
    engine = TorchEngine(llama(0))
    await engine.load(path, 1)
    ask = GenerateRequest("a", (1, 2, 3), Sampling(max_tokens=8, temperature=0.0))
    before = await engine.generate(ask)
    with path.open("r+b") as file:
        file.write(b"\0" * path.stat().st_size)
    assert (await engine.generate(ask)).output_ids == before.output_ids
    await engine.close()


async def test_a_token_beyond_the_vocabulary_is_refused(llama: Callable[..., Any]) -> None:
    engine = TorchEngine(llama(0))
    with pytest.raises(RequestRefused, match="97 must be token ids below the vocabulary's 97"):
        await engine.generate(GenerateRequest("a", (1, 97), Sampling(max_tokens=1)))
    await engine.close()


@pytest.mark.parametrize("asked", [True, False], ids=["asked for", "of a caller that went away"])
async def test_an_abort_that_breaks_ends_every_request_and_not_the_engine(
    llama: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    engine = TorchEngine(llama(0))
    endless = [GenerateRequest(name, (1, 2, 3), Sampling(max_tokens=4000)) for name in "ab"]
    pending, gone = (asyncio.ensure_future(engine.generate(each)) for each in endless)
    while engine.running < 2:
        await asyncio.sleep(0)

    def broken(*_: object) -> None:
        raise RuntimeError("no memory")

    with monkeypatch.context() as patched:
        patched.setattr(Decoder, "abort", broken)
        if asked:
            with pytest.raises(RuntimeError, match="no memory"):
                await engine.abort("b")
        else:
            gone.cancel()
        with pytest.raises(EngineFailed, match="RuntimeError: no memory"):
            await asyncio.wait_for(pending, 30)
        await asyncio.gather(gone, return_exceptions=True)
    ask = GenerateRequest("c", (1, 2, 3), Sampling(max_tokens=4))
    assert (await asyncio.wait_for(engine.generate(ask), 30)).finish == "length"
    await engine.close()


def test_a_model_with_sliding_windows_is_turned_away() -> None:
    config = MistralConfig(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, sliding_window=4, max_position_embeddings=16,
    )  # fmt: skip
    with pytest.raises(EngineError, match="only full_attention"):
        TorchEngine(MistralForCausalLM(config))


def test_a_model_of_half_precision_is_turned_away(llama: Callable[..., Any]) -> None:
    with pytest.raises(EngineError, match=r"dtype torch\.bfloat16; load it with"):
        TorchEngine(llama(0).to(torch.bfloat16))
