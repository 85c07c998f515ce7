"""How a conversation becomes text for nano: the chat template, and the policy's own wording of a tool call.

The template only ever appends: the rendering of a history is a prefix of every continuation's, and an assistant turn is
the generation prompt, the sampled text and `<|im_end|>`. Of a system prompt it shows the first line and of the tools
nothing, since nano is trained on one set of tools and every token costs time. Arguments given as text are shown as they
are; arguments given as an object are shown as compact JSON.
"""

import json

from gyre.tasks.words import Call, WordTask

END = "<|im_end|>"
START = "<|im_start|>"
PAD = "<|endoftext|>"
CALL, CALL_END = "<tool_call>", "</tool_call>"
SPECIAL = (PAD, START, END)
DONE = "done"
SYSTEM = "You work in a folder."  # the first line of the reference harness's system prompt

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' -}}
{%- set content = message.content -%}
{%- if content is string -%}
{{- content.split('\\n')[0] if message.role == 'system' else content -}}
{%- elif content -%}
{%- for part in content -%}
{{- part.text if part.text is defined else '' -}}
{%- endfor -%}
{%- endif -%}
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


def call_text(call: Call) -> str:
    """A tool call as nano writes it."""
    arguments = {"path": call.path} if call.tool == "read" else {"path": call.path, "content": call.content}
    body = json.dumps({"name": call.tool, "arguments": arguments}, separators=(",", ":"))
    return f"{CALL}{body}{CALL_END}"


def episode(task: WordTask, turns: tuple[str, ...], results: tuple[str, ...]) -> list[tuple[str, bool]]:
    """The whole conversation as pieces (text, sampled?): `results` answer all turns but the last.

    Exactly what `CHAT_TEMPLATE` renders for the reference harness's messages (a test holds the two together).
    """
    pieces = [(f"{START}system\n{SYSTEM}{END}\n{START}user\n{task.instruction}{END}\n", False)]
    for index, turn in enumerate(turns):
        pieces += [(f"{START}assistant\n", False), (f"{turn}{END}", True), ("\n", False)]
        if index < len(results):
            pieces.append((f"{START}tool\n{results[index]}{END}\n", False))
    return pieces
