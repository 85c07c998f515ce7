"""The page itself: which files it is made of, and all of it with its data as one file that needs no server."""

import base64
import hashlib
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import orjson

TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
MODULES = (
    "words.js", "dom.js", "data.js", "scale.js", "charts.js", "cells.js", "batch.js", "curves.js", "tasks.js",
    "executions.js", "tree.js", "call.js", "time.js", "keys.js", "app.js",
)  # fmt: skip
"""In the order in which they need each other: an exported page has them one after the other as a single module."""
ASSETS = frozenset(("style.css", "icon.svg", *MODULES))
_IMPORT = re.compile(r"^import [^;]*;\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=const|let|function|async|class)", re.MULTILINE)


def one_file(answers: Mapping[str, Any]) -> str:
    """The page with its style, its scripts and the answers to what it will ask.

    Args:
        answers: path of the API, as the page asks for it -> what the server said.
    """
    style, script = _text("style.css"), bundle()
    policy = f"default-src 'none'; img-src data:; script-src {_digest(script)}; style-src {_digest(style)}"
    icon = "data:image/svg+xml;base64," + base64.b64encode(_text("icon.svg").encode()).decode()
    data = orjson.dumps(answers).decode().replace("<", "\\u003c")
    return (
        _text("index.html")
        .replace(
            '<meta charset="utf-8">',
            f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">',
        )
        .replace('<link rel="icon" href="/assets/icon.svg">', f'<link rel="icon" href="{icon}">')
        .replace('<link rel="stylesheet" href="/assets/style.css">', f"<style>{style}</style>")
        .replace(
            '<script type="module" src="/assets/app.js"></script>',
            f'<script type="application/json" id="answers">{data}</script><script type="module">{script}</script>',
        )
    )


def bundle() -> str:
    """All modules as one: their names at the top are theirs alone, so that they can stand side by side."""
    return "\n".join(_EXPORT.sub("", _IMPORT.sub("", _text(name))) for name in MODULES)


def _text(name: str) -> str:
    return (files("services.dashboard") / "assets" / name).read_text("utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
