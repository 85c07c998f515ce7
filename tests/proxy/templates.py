"""Chat models with other people's template habits over nano's tokenizer, and drawn answers without an engine."""

from pathlib import Path

from gyre.models.load import NANO
from gyre.proxy.chat_model import ChatModel
from gyre.proxy.session import Drawn, Plan
from gyre.proxy.template import Template
from schemas.calls import Finish, VersionSpan

CHATML = """\
{%- for message in messages %}{% if loop.first and message['role'] != 'system' %}<|im_start|>system
You are helpful.<|im_end|>
{% endif %}<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""A default system prompt, no tools and no tool calls."""

MERGING = """\
{%- if tools %}<|im_start|>system
{{ messages[0].content if messages[0].role == 'system' }}
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}{% for message in messages %}{% if message.role == 'tool' %}\
{% if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}
<tool_response>
{{ message.content }}
</tool_response>{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>
{% endif %}{% elif message.role != 'system' or not loop.first %}<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""Results of one turn's tools in one message, tools in the system prompt, arguments as an object."""

COUNTING = "{{ messages | length }}{% for message in messages %}{{ message.content }}{% endfor %}?"
"""Nothing of a history stays when it grows."""


def nano() -> Template:
    return Template(ChatModel.load(NANO))


def with_template(folder: Path, text: str) -> Template:
    """nano's tokenizer with another template."""
    folder.mkdir(exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (folder / name).write_bytes((NANO / name).read_bytes())
    (folder / "chat_template.jinja").write_text(text)
    return Template(ChatModel.load(folder))


def drawn(template: Template, plan: Plan, text: str, *, stopped: bool = True) -> Drawn:
    """An answer with this text, as an engine would give it."""
    ids = (*template.model.encode(text), *(template.model.stop_token_ids[:1] if stopped else ()))
    spans = (VersionSpan(version=3, tokens=len(ids)),) if ids else ()
    finish: Finish = "stop" if stopped else "length"
    return Drawn(ids, tuple(-0.5 - i / 8 for i in range(len(ids))), spans, finish, (0,), 0, 0.0, 0.0)
