"""nano: what ships, how a conversation becomes tokens, and that its making is deterministic."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast

from gyre.harnesses.reference.loop import SYSTEM
from gyre.harnesses.reference.tools import FILE_TOOLS, FINISH
from gyre.models.nano import make
from gyre.models.nano.template import DONE, END, call_text, episode
from gyre.models.nano.tokenizer import make_tokenizer, solved
from gyre.models.nano.traces import clean_rows, noisy_rows
from gyre.tasks.words import WORDS, Call, WordTask, word_tasks

WEIGHTS = Path(make.__file__).parent / "weights"
Message = dict[str, Any]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    loaded = AutoTokenizer.from_pretrained(WEIGHTS)
    assert isinstance(loaded, PreTrainedTokenizerFast)
    return loaded


def conversation(task: WordTask) -> list[Message]:
    """The messages that the reference harness sends in a perfect episode, the last answer included."""
    messages: list[Message] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task.instruction}]
    for call, result in zip(task.calls, task.results(), strict=True):
        body = json.loads(call_text(call)[len("<tool_call>") : -len("</tool_call>")])
        arguments = json.dumps(body["arguments"], separators=(",", ":"))
        tool_call = {"id": "c", "type": "function", "function": {"name": call.tool, "arguments": arguments}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [tool_call]})
        messages.append({"role": "tool", "tool_call_id": "c", "content": result})
    return [*messages, {"role": "assistant", "content": DONE}]


def rendered(tokenizer: PreTrainedTokenizerFast, messages: list[Message], *, prompt: bool) -> str:
    tools: list[Any] = [*FILE_TOOLS, FINISH]
    text = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=prompt, tokenize=False)
    assert isinstance(text, str)
    return text


def ids(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    encoded: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return encoded


def test_what_ships_is_small_and_complete() -> None:
    names = {file.name for file in WEIGHTS.iterdir()}
    assert names >= {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    }
    assert sum(file.stat().st_size for file in WEIGHTS.iterdir()) <= 10_000_000
    model = LlamaForCausalLM.from_pretrained(WEIGHTS)
    assert sum(parameter.numel() for parameter in model.parameters()) <= 5_000_000
    assert model.config.max_position_embeddings >= 1024
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def test_the_end_of_a_turn_is_the_end_of_generation(tokenizer: PreTrainedTokenizerFast) -> None:
    model = LlamaForCausalLM.from_pretrained(WEIGHTS)
    assert tokenizer.eos_token == END
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == model.config.eos_token_id


def test_the_shipped_tokenizer_is_the_one_the_script_makes(tokenizer: PreTrainedTokenizerFast) -> None:
    made = make_tokenizer()
    assert made.get_vocab() == tokenizer.get_vocab()
    assert made.chat_template == tokenizer.chat_template
    text = 'Copy line 2 of "note.txt" to "list.txt". Ünïcode, ümläut\t{"a": [1, 2]}'
    assert ids(made, text) == ids(tokenizer, text)
    assert tokenizer.decode(ids(tokenizer, text)) == text


def test_every_word_is_one_token_in_an_instruction_in_json_and_in_a_file(tokenizer: PreTrainedTokenizerFast) -> None:
    for word in WORDS:
        (token,) = ids(tokenizer, word)
        for text in (f'Write "{word}" to', f'"content":"{word}"}}}}', f"{word}\n"):
            assert token in ids(tokenizer, text)


def test_the_warm_start_saw_exactly_what_the_harness_says(tokenizer: PreTrainedTokenizerFast) -> None:
    for task in islice(word_tasks(1, "train"), 16):
        trace = "".join(text for text, _ in episode(task, solved(task), task.results()))
        assert rendered(tokenizer, conversation(task), prompt=False) == trace


def test_a_history_is_a_prefix_of_every_continuation(tokenizer: PreTrainedTokenizerFast) -> None:
    messages = conversation(next(task for task in word_tasks(1, "train") if task.family == "line"))
    whole = ids(tokenizer, rendered(tokenizer, messages, prompt=False))
    for count, message in enumerate(messages):
        if message["role"] == "assistant":
            prompt = ids(tokenizer, rendered(tokenizer, messages[:count], prompt=True))
            assert whole[: len(prompt)] == prompt
            turn = whole[len(prompt) :]
            assert tokenizer.eos_token_id in turn  # the sampled text ends at the mark, then comes a newline
            assert tokenizer.decode(turn[turn.index(tokenizer.eos_token_id) + 1]) == "\n"


def test_arguments_keep_the_policys_own_wording(tokenizer: PreTrainedTokenizerFast) -> None:
    for arguments, shown in (('{ "path" : "a" }', '{ "path" : "a" }'), ({"path": "a", "n": 1}, '{"path":"a","n":1}')):
        function = {"name": "read", "arguments": arguments}
        message = {"role": "assistant", "content": "Hm.", "tool_calls": [{"type": "function", "function": function}]}
        text = rendered(tokenizer, [message], prompt=False)
        assert (
            text
            == f'<|im_start|>assistant\nHm.<tool_call>{{"name":"read","arguments":{shown}}}</tool_call><|im_end|>\n'
        )


def test_content_in_parts_and_only_the_first_system_line_are_shown(tokenizer: PreTrainedTokenizerFast) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages: list[Message] = [{"role": "system", "content": "One.\nTwo."}, {"role": "user", "content": parts}]
    text = rendered(tokenizer, messages, prompt=True)
    assert text == "<|im_start|>system\nOne.<|im_end|>\n<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\n"


def test_tool_call_marks_survive_decoding(tokenizer: PreTrainedTokenizerFast) -> None:
    text = call_text(Call("write", "a.txt", "owl"))
    assert tokenizer.decode(ids(tokenizer, text + END), skip_special_tokens=True) == text


def test_an_episode_is_short(tokenizer: PreTrainedTokenizerFast) -> None:
    tasks = list(islice(word_tasks(0, "heldout"), 16))
    lengths = [
        [(len(ids(tokenizer, text)), sampled) for text, sampled in episode(task, solved(task), task.results())]
        for task in tasks
    ]
    assert max(sum(length for length, _ in pieces) for pieces in lengths) <= 200
    assert max(length for pieces in lengths for length, sampled in pieces if sampled) <= 40


def test_the_shipped_policy_knows_the_form_of_a_tool_call(tokenizer: PreTrainedTokenizerFast) -> None:
    model = LlamaForCausalLM.from_pretrained(WEIGHTS)
    formed = 0
    for task in islice(word_tasks(0, "heldout"), 8):
        prompt = rendered(tokenizer, conversation(task)[:2], prompt=True)
        tokens = torch.tensor([ids(tokenizer, prompt)])
        output = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=40, do_sample=False)
        text = str(tokenizer.decode(output[0, tokens.shape[1] :], skip_special_tokens=True))
        formed += (
            text.startswith("<tool_call>")
            and text.endswith("</tool_call>")
            and '"path"' in json.dumps(json.loads(text[11:-12]))
        )
    assert formed >= 6


def weights_after_two_steps(tokenizer: PreTrainedTokenizerFast, stage: make.Stage, seed: int) -> torch.Tensor:
    model = make.new_model(tokenizer, seed)
    list(islice(make.fit(model, make.stage_batches(tokenizer, stage, seed), stage), 2))
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("stage", make.STAGES, ids=["clean", "noisy"])
def test_its_making_is_deterministic_from_the_seed(tokenizer: PreTrainedTokenizerFast, stage: make.Stage) -> None:
    first = weights_after_two_steps(tokenizer, stage, 0)
    assert torch.equal(first, weights_after_two_steps(tokenizer, stage, 0))
    assert not torch.equal(first, weights_after_two_steps(tokenizer, stage, 1))


def test_loss_falls_only_on_what_the_policy_says(tokenizer: PreTrainedTokenizerFast) -> None:
    row = next(clean_rows(tokenizer, 0))
    said = tokenizer.decode([token for token, loss in row if loss])
    assert said.count(END) == said.count(DONE) + said.count("</tool_call>")
    assert "Write" not in said
    assert "system" not in said


def test_mistakes_are_made_at_their_rate_and_never_in_solved_traces(tokenizer: PreTrainedTokenizerFast) -> None:
    solved_traces = list(islice(noisy_rows(tokenizer, 5, 0.0), 200))
    spoilt_traces = list(islice(noisy_rows(tokenizer, 5, 0.3), 200))
    assert solved_traces == list(islice(clean_rows(tokenizer, 5), 400))[::2]
    assert 0.4 < sum(one != two for one, two in zip(solved_traces, spoilt_traces, strict=True)) / 200 < 0.9
