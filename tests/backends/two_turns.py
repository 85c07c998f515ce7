"""An agent of two turns: `python -I -S two_turns.py`. What the model says is what it leaves behind, in answer.txt."""

import json
import os
import urllib.request
from pathlib import Path
from typing import Any


def ask(messages: list[dict[str, str]]) -> str:
    """The model's answer to a conversation."""
    body = json.dumps({"model": "policy", "messages": messages}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    with urllib.request.urlopen(request, timeout=600) as response:
        answer: dict[str, Any] = json.load(response)["choices"][0]["message"]
    return answer["content"] or ""


if __name__ == "__main__":
    first = {"role": "user", "content": "Say a word."}
    said = ask([first])
    more = ask([first, {"role": "assistant", "content": said}, {"role": "user", "content": "Another one."}])
    Path("answer.txt").write_text(f"{said}\n{more}\n", errors="replace")
