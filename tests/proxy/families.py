"""Chat templates that behave as those of well-known model families do, over nano's tokenizer with their marks added."""

import json
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from gyre.models.load import NANO

_QWEN_TOOLS = r"""
{%- if tools %}
{{- '<|im_start|>system\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}
{{- '# Tools\n<tools>' }}
{%- for tool in tools %}{{- '\n' + (tool | tojson) }}{%- endfor %}
{{- '\n</tools><|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}"""

_QWEN_CALLS = r"""
{%- for call in message.tool_calls or [] %}
{%- if content or not loop.first %}{{- '\n' }}{%- endif %}
{{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
{{- '}\n</tool_call>' }}
{%- endfor %}{{- '<|im_end|>\n' }}"""

_QWEN_RESULTS = r"""
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
{%- endif %}{%- endfor %}"""

_PLAIN = r"""
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- elif message.role == 'assistant' %}
{%- set content = message.content or '' %}"""

_ASSISTANT = r"{{- '<|im_start|>assistant\n' }}"
_GENERATE = r"{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"

QWEN25 = _QWEN_TOOLS + _PLAIN + _ASSISTANT + "{{- content }}" + _QWEN_CALLS + _QWEN_RESULTS + _GENERATE
"""Tools in the system prompt, results of one turn in one user message."""

_LAST_QUESTION = r"""
{%- set seen = namespace(question=-1) %}
{%- for message in messages %}{%- if message.role == 'user' %}{%- set seen.question = loop.index0 %}{%- endif %}
{%- endfor %}"""

_THOUGHT = r"""
{%- set thought = message.reasoning_content or '' %}
{%- if not thought and '</think>' in content %}
{%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\n') %}
{%- endif %}
{%- if loop.index0 > seen.question and (loop.last or thought) %}
{{- '<think>\n' + thought.strip('\n') + '\n</think>\n\n' }}
{%- endif %}{{- content }}"""

QWEN3 = _QWEN_TOOLS + _LAST_QUESTION + _PLAIN + _ASSISTANT + _THOUGHT + _QWEN_CALLS + _QWEN_RESULTS + _GENERATE
"""Thoughts stand until the next question, then they are gone; a last turn has one, be it empty."""

OPENING = QWEN3.replace(
    "{{- '<|im_start|>assistant\\n' }}{%- endif %}", "{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}"
)
"""The same, but the generation prompt begins the thought."""

FORGETTING = (
    _QWEN_TOOLS
    + _PLAIN
    + _ASSISTANT
    + "{{- content.split('</think>')[-1] }}"
    + _QWEN_CALLS
    + _QWEN_RESULTS
    + (r"{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n<think>\n' }}{%- endif %}")
)
"""No thought of an earlier turn is ever shown again."""

CODER = (
    QWEN25.split("{%- for call in")[0]
    + r"""
{%- for call in message.tool_calls or [] %}
{{- '\n<tool_call>\n<function=' + call.function.name + '>\n' }}
{%- for name, value in call.function.arguments | items %}
{{- '<parameter=' + name + '>\n' }}{{- value if value is string else value | tojson }}{{- '\n</parameter>\n' }}
{%- endfor %}{{- '</function>\n</tool_call>' }}
{%- endfor %}{{- '<|im_end|>\n' }}"""
    + _QWEN_RESULTS
    + _GENERATE
)
"""Calls as XML with bare values."""

LLAMA = r"""
{{- bos_token }}
{%- if messages[0].role == 'system' %}{%- set system = messages[0].content | trim %}{%- set rest = messages[1:] %}
{%- else %}{%- set system = '' %}{%- set rest = messages %}{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\nKnowledge ends in 2023.\n\n' + system + '<|eot_id|>' }}
{%- if tools %}
{%- set first = rest[0].content | trim %}{%- set rest = rest[1:] %}
{{- '<|start_header_id|>user<|end_header_id|>\n\nAnswer with a call of one of these:\n' }}
{%- for tool in tools %}{{- (tool | tojson(indent=4)) + '\n' }}{%- endfor %}{{- first + '<|eot_id|>' }}
{%- endif %}
{%- for message in rest %}
{%- if message.role == 'tool' %}
{{- '<|start_header_id|>ipython<|end_header_id|>\n\n' + (message.content | tojson) + '<|eot_id|>' }}
{%- elif message.tool_calls %}
{%- if message.tool_calls | length != 1 %}{{- raise_exception('one call a turn') }}{%- endif %}
{%- set call = message.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' + call.name + '", "parameters": ' }}
{{- (call.arguments | tojson) + '}<|eot_id|>' }}
{%- else %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + (message.content | trim) + '<|eot_id|>' }}
{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"""
"""Tools in the first question, one JSON call a turn, texts trimmed, results as JSON texts."""

GEMMA = r"""
{{- bos_token }}
{%- if messages[0].role == 'system' %}{{- raise_exception('no system role') }}{%- endif %}
{%- for message in messages %}
{%- if message.role not in ['user', 'assistant'] %}{{- raise_exception('unknown role') }}{%- endif %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{- raise_exception('turns must alternate') }}{%- endif %}
{{- '<start_of_turn>' + ('model' if message.role == 'assistant' else 'user') + '\n' }}
{{- (message.content | trim) + '<end_of_turn>\n' }}
{%- endfor %}{%- if add_generation_prompt %}{{- '<start_of_turn>model\n' }}{%- endif %}"""
"""Neither system nor tools nor calls, and strict turns."""

MISTRAL = r"""
{%- if messages[0].role == 'system' %}{%- set system = messages[0].content %}{%- set rest = messages[1:] %}
{%- else %}{%- set rest = messages %}{%- endif %}
{%- set last = namespace(user=-1, turn=0) %}
{%- for message in rest %}
{%- if message.role == 'user' %}{%- set last.user = loop.index0 %}{%- endif %}
{%- if message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) %}
{%- if (message.role == 'user') != (last.turn % 2 == 0) %}{{- raise_exception('turns must alternate') }}{%- endif %}
{%- set last.turn = last.turn + 1 %}{%- endif %}{%- endfor %}
{{- bos_token }}
{%- if system is defined %}{{- '[SYSTEM_PROMPT]' + system + '[/SYSTEM_PROMPT]' }}{%- endif %}
{%- for message in rest %}
{%- if message.role == 'user' %}
{%- if tools and loop.index0 == last.user %}
{{- '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{%- endif %}
{{- '[INST]' + message.content + '[/INST]' }}
{%- elif message.tool_calls %}
{{- '[TOOL_CALLS][' }}
{%- for call in message.tool_calls %}
{%- if call.id | length != 9 %}{{- raise_exception('ids have nine characters') }}{%- endif %}
{{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' + (']' if loop.last else ', ') }}
{%- endfor %}{{- eos_token }}
{%- elif message.role == 'assistant' %}{{- message.content + eos_token }}
{%- elif message.role == 'tool' %}
{{- '[TOOL_RESULTS]{"content": ' + (message.content | tojson) }}
{{- ', "id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
{%- else %}{{- raise_exception('unknown role') }}
{%- endif %}{%- endfor %}"""
"""Tools move to the last question, strict turns, short ids, no generation prompt."""


@dataclass(frozen=True)
class Made:
    """A template, the marks that its tokenizer knows, and the one that ends a turn."""

    text: str
    end: str = "<|im_end|>"
    marks: tuple[str, ...] = ("<think>", "</think>")


_LLAMA_MARKS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
_MISTRAL_MARKS = tuple(
    f"[{slash}{name}]" for name in ("INST", "SYSTEM_PROMPT", "AVAILABLE_TOOLS", "TOOL_RESULTS") for slash in ("", "/")
)
MADE = {
    "qwen25": Made(QWEN25),
    "qwen3": Made(QWEN3),
    "opening": Made(OPENING),
    "forgetting": Made(FORGETTING),
    "coder": Made(CODER),
    "llama": Made(LLAMA, "<|eot_id|>", _LLAMA_MARKS),
    "gemma": Made(GEMMA, "<end_of_turn>", ("<bos>", "<start_of_turn>", "<end_of_turn>")),
    "mistral": Made(MISTRAL, "</s>", ("<s>", "</s>", "[TOOL_CALLS]", *_MISTRAL_MARKS)),
}


def write_model(folder: Path, name: str) -> Path:
    """A model folder without weights."""
    made = MADE[name]
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(NANO / "tokenizer.json"))
    tokenizer.add_special_tokens(list(made.marks))
    tokenizer.save(str(folder / "tokenizer.json"))
    config = json.loads((NANO / "tokenizer_config.json").read_text()) | {"eos_token": made.end}
    if made.marks[0] in ("<|begin_of_text|>", "<bos>", "<s>"):
        config["bos_token"] = made.marks[0]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(made.text)
    return folder
