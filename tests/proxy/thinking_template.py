"""A chat template with the habit of those of thinking models."""

THINKING = """\
{%- set last = namespace(user=-1) %}{% for message in messages %}{% if message.role == 'user' %}\
{% set last.user = loop.index0 %}{% endif %}{% endfor %}\
{% for message in messages %}<|im_start|>{{ message.role }}
{% set text = message.content %}{% set thought = message.reasoning_content or '' %}\
{% if not thought and '</think>' in text %}\
{% set thought = text.split('</think>')[0].split('<think>')[-1].strip('\\n') %}\
{% set text = text.split('</think>')[-1].lstrip('\\n') %}{% endif %}\
{% if thought and loop.index0 > last.user %}{{ '<think>\\n' + thought + '\\n</think>\\n\\n' }}{% endif %}{{ text }}\
{% for call in message.tool_calls or [] %}{{ '<tool_call>{"name": "' + call.function.name + '", "arguments": ' }}\
{{ call.function.arguments + '}</tool_call>' }}{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""The thoughts of turns before the last question are gone."""
