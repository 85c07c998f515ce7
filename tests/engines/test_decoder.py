"""The torch engine step by step: what joins, leaves, is reused or recomputed never changes a log-probability."""

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gyre.engines.batch import Row
from gyre.engines.decoder import WORTH_WAITING, Decoder
from gyre.engines.kv import SlotCache
from gyre.engines.port import EngineFailed, GenerateRequest, Generation, Sampling
from gyre.engines.prefix import PrefixStore
from gyre.engines.weights import Parameters

Llama = Callable[..., Any]
Family = Callable[..., Any]
Full = Callable[..., torch.Tensor]
SYSTEM = tuple(i % 89 + 1 for i in range(WORTH_WAITING + 10))


def decoder_of(model: Any, *, rows: int = 8, prefix_tokens: int = 4096, chunk_tokens: int = 1024) -> Decoder:
    return Decoder(model, 0, rows, prefix_tokens, chunk_tokens, lambda: 0.0)


def row_of(name: str, prompt: tuple[int, ...], max_tokens: int = 12, *, key: str = "x", **sampling: Any) -> Row:
    return Row(GenerateRequest(name, prompt, Sampling(max_tokens=max_tokens, **sampling), key), 0.0)


def prompt_of(size: int, start: int = 0) -> tuple[int, ...]:
    return tuple((start + 7 * i * i) % 97 for i in range(size))


def run(decoder: Decoder, *rows: Row) -> list[Generation]:
    for row in rows:
        decoder.add(row)
    while decoder.busy:
        decoder.step()
    return [row.future.result(timeout=0) for row in rows]


def assert_exact(full: Full, model: Any, row: Row, temperature: float = 1.0) -> None:
    generation = row.future.result(timeout=0)
    expected = full(model, row.request.input_ids, generation, temperature)
    torch.testing.assert_close(torch.tensor(generation.logprobs), expected, atol=1e-4, rtol=0)


def test_rows_of_mixed_lengths_that_join_and_leave_keep_exact_logprobs(family: Family, full_logprobs: Full) -> None:
    model = family(0)
    decoder = decoder_of(model, rows=4)
    rows = [row_of(f"r{i}", prompt_of(1 + 37 * i % 150, i), 3 + 11 * i % 40) for i in range(12)]
    for row in rows:  # a new one every second step: they meet at all stages, and five wait at times
        decoder.add(row)
        decoder.step()
        decoder.step()
    run(decoder)
    for row in rows:
        assert len(row.future.result(timeout=0).output_ids) == row.request.sampling.max_tokens
        assert_exact(full_logprobs, model, row)


def test_temperature_is_part_of_the_logprob(llama: Llama, full_logprobs: Full) -> None:
    model = llama(0)
    rows = [row_of(f"r{t}", prompt_of(9), temperature=t) for t in (0.5, 1.7)]
    run(decoder_of(model), *rows)
    assert_exact(full_logprobs, model, rows[0], 0.5)
    assert_exact(full_logprobs, model, rows[1], 1.7)


def test_turns_of_an_execution_reuse_the_history_and_keep_exact_logprobs(family: Family, full_logprobs: Full) -> None:
    model = family(0)
    decoder = decoder_of(model)
    history, known = prompt_of(30), 0
    for turn in range(4):
        row = row_of(f"t{turn}", history)
        (generation,) = run(decoder, row, row_of(f"noise{turn}", prompt_of(50, turn), key="y"))[:1]
        assert generation.cached_tokens == known
        assert_exact(full_logprobs, model, row)
        known = len(history) + len(generation.output_ids) - 1  # the last token was never fed
        history = (*history, *generation.output_ids, *prompt_of(5, turn))


def test_a_fork_reuses_the_part_before_it_and_the_other_branch_stays(llama: Llama, full_logprobs: Full) -> None:
    model = llama(0)
    decoder = decoder_of(model)
    trunk = prompt_of(40)
    run(decoder, row_of("a", (*trunk, 1, 2)))
    fork = row_of("b", (*trunk, 3, 4))
    assert run(decoder, fork)[0].cached_tokens == 40
    assert_exact(full_logprobs, model, fork)
    assert run(decoder, row_of("c", (*trunk, 1, 2, 5)))[0].cached_tokens == 42


def test_another_execution_reuses_a_shared_system_prompt(llama: Llama, full_logprobs: Full) -> None:
    model = llama(0)
    decoder = decoder_of(model)
    run(decoder, row_of("a", (*SYSTEM, 1), key="x1"))
    other = row_of("b", (*SYSTEM, 2), key="x2")
    assert run(decoder, other)[0].cached_tokens == len(SYSTEM)
    assert_exact(full_logprobs, model, other)


def test_requests_that_arrive_together_compute_a_shared_prompt_once(llama: Llama, full_logprobs: Full) -> None:
    model = llama(0)
    rows = [row_of(f"r{i}", (*SYSTEM, i), key=f"x{i}") for i in range(5)]
    generations = run(decoder_of(model), *rows)
    assert [generation.cached_tokens for generation in generations] == [0, *[len(SYSTEM)] * 4]
    for row in rows:
        assert_exact(full_logprobs, model, row)


def test_a_long_prompt_is_computed_in_chunks_between_decode_steps(family: Family, full_logprobs: Full) -> None:
    model = family(0)
    decoder = decoder_of(model, chunk_tokens=16)
    short, long = row_of("short", prompt_of(4), 6), row_of("long", prompt_of(200, 3))
    decoder.add(short)
    decoder.step()
    decoder.add(long)
    for _ in range(5):
        decoder.step()
    assert short.future.done()
    assert not long.future.done()
    run(decoder)
    assert_exact(full_logprobs, model, long)


def test_tokens_do_not_depend_on_company_or_on_reuse(llama: Llama) -> None:
    model = llama(0)
    settings: dict[str, Any] = {"seed": 11, "temperature": 0.8, "top_p": 0.9, "top_k": 40}
    (alone,) = run(decoder_of(model, prefix_tokens=0), row_of("a", prompt_of(60), 30, **settings))
    decoder = decoder_of(model)
    run(decoder, row_of("warm", prompt_of(60)))
    crowd = [row_of(f"r{i}", prompt_of(10 * i + 1, i), 20) for i in range(5)]
    together = run(decoder, *crowd[:3], row_of("b", prompt_of(60), 30, **settings), *crowd[3:])[3]
    assert together.cached_tokens > 0
    assert together.output_ids == alone.output_ids


def test_a_request_continued_from_its_partial_output_goes_on_as_it_would_have(llama: Llama) -> None:
    model = llama(0)
    (whole,) = run(decoder_of(model), row_of("a", prompt_of(20), 30, seed=4))
    kept = whole.output_ids[:13]
    (rest,) = run(decoder_of(model), row_of("b", prompt_of(20) + kept, 17, seed=4))
    assert kept + rest.output_ids == whole.output_ids


def test_new_weights_take_over_between_two_tokens(family: Family, full_logprobs: Full) -> None:
    model, old, new = family(0), family(0), family(1)
    decoder, parameters = decoder_of(model, rows=2), Parameters(model)
    rows = [row_of(f"r{i}", prompt_of(20 + 9 * i, i), 10) for i in range(3)]  # the third waits
    for row in rows:
        decoder.add(row)
    for _ in range(4):
        decoder.step()
    parameters.swap(parameters.prepare(new.state_dict()))
    decoder.restart(1)
    for row, generation in zip(rows, run(decoder) or [row.future.result(timeout=0) for row in rows], strict=True):
        before = 0 if row is rows[2] else 4
        spans = [(span.version, span.tokens) for span in generation.versions]
        assert spans == ([(0, 4), (1, 6)] if before else [(1, 10)])
        logprobs, prompt = torch.tensor(generation.logprobs), row.request.input_ids
        under_old, under_new = (full_logprobs(m, prompt, generation) for m in (old, new))
        torch.testing.assert_close(logprobs[:before], under_old[:before], atol=1e-4, rtol=0)
        torch.testing.assert_close(logprobs[before:], under_new[before:], atol=1e-4, rtol=0)
        assert not torch.allclose(under_old, under_new, atol=0.1)


def test_prepared_weights_are_held_by_their_model_alone_once_they_are_in_use(llama: Llama) -> None:
    parameters = Parameters(llama(0))
    values = parameters.prepare(llama(1).state_dict())  # a thread that has just given them keeps them for a moment
    held = [weakref.ref(value) for value in values.values()]
    parameters.swap(values)
    assert not any(value() for value in held)


def test_new_weights_also_restart_a_prefill_under_way(llama: Llama, full_logprobs: Full) -> None:
    model, new = llama(0), llama(1)
    decoder, parameters = decoder_of(model, chunk_tokens=8), Parameters(model)
    row = row_of("a", prompt_of(60))
    decoder.add(row)
    decoder.step()
    parameters.swap(parameters.prepare(new.state_dict()))
    decoder.restart(1)
    run(decoder)
    assert_exact(full_logprobs, new, row)


def test_an_abort_at_each_stage_leaves_the_others_exact(llama: Llama, full_logprobs: Full) -> None:
    model = llama(0)
    decoder = decoder_of(model, rows=4, chunk_tokens=16)
    decoding = [row_of(f"d{i}", prompt_of(3 + i, i), 50) for i in range(2)]
    filling = [row_of(f"f{i}", prompt_of(100, i), 8) for i in range(2)]
    waiting = [row_of(f"w{i}", prompt_of(6, i), 8) for i in range(2)]
    for rows in (decoding, filling, waiting):
        for row in rows:
            decoder.add(row)
        for _ in range(3):
            decoder.step()
    gone = [decoding[0], filling[0], waiting[0]]
    decoder.abort(lambda row: row in gone)
    assert [row.future.result(timeout=0).finish for row in gone] == ["abort"] * 3
    assert [len(row.future.result(timeout=0).output_ids) for row in gone] == [9, 0, 0]
    run(decoder)
    for row in (*decoding, *filling[1:], *waiting[1:]):
        assert_exact(full_logprobs, model, row)
    assert len(decoding[1].future.result(timeout=0).output_ids) == 50


def test_logits_that_are_not_finite_fail_the_requests_and_not_the_engine(llama: Llama) -> None:
    model, good = llama(0), llama(0).state_dict()
    decoder, parameters = decoder_of(model), Parameters(model)
    parameters.swap(parameters.prepare({name: value * torch.nan for name, value in good.items()}))
    row = row_of("a", prompt_of(5))
    decoder.add(row)
    with pytest.raises(EngineFailed, match="version 0 are not finite") as broken:
        run(decoder)
    decoder.fail(broken.value)
    with pytest.raises(EngineFailed, match="not finite"):
        row.future.result(timeout=0)
    parameters.swap(parameters.prepare(good))
    decoder.restart(1)
    assert run(decoder, row_of("b", prompt_of(5)))[0].finish == "length"


@pytest.mark.parametrize(
    ("where", "method", "known"),
    [(SlotCache, "copy_in", True), (SlotCache, "copy_in", False), (PrefixStore, "add", False)],
    ids=["chosen for a prefill", "joining the batch", "leaving it"],
)
def test_rows_that_a_broken_step_had_in_hand_end_with_its_reason(
    llama: Llama, monkeypatch: pytest.MonkeyPatch, where: type, method: str, known: bool
) -> None:
    decoder, rows = decoder_of(llama(0)), [row_of("a", prompt_of(9)), row_of("b", prompt_of(9, 5))]
    if known:
        run(decoder, row_of("known", prompt_of(9)))

    def broken(*_: object) -> None:
        raise RuntimeError("no memory")

    with monkeypatch.context() as patched:
        patched.setattr(where, method, broken)
        with pytest.raises(RuntimeError, match="no memory") as found:
            run(decoder, *rows)
    decoder.fail(found.value)
    for row in rows:
        with pytest.raises(EngineFailed, match="RuntimeError: no memory"):
            row.future.result(timeout=0)
    assert run(decoder, row_of("c", prompt_of(5)))[0].finish == "length"
