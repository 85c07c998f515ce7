"""What the agent can do in its workspace. A model's mistake comes back to it as an error text, never as a crash."""

# Importing pathlib would cost a tenth of an episode.
# ruff: noqa: PTH103, PTH110, PTH113, PTH118, PTH120, PTH123

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .options import Options

    Message = dict[str, Any]

READ_LIMIT = 1 << 20  # bytes of a file that are looked at at all


class ToolError(Exception):
    """The call cannot be carried out; the message tells the model why."""


def _tool(name: str, description: str, *parameters: str, required: int | None = None) -> "Message":
    schema = {
        "type": "object",
        "properties": {parameter: {"type": "string"} for parameter in parameters},
        "required": list(parameters[:required]),
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


FILE_TOOLS = (
    _tool("shell", "Run a command with sh in the folder; returns its output and exit code.", "command"),
    _tool("read", "Return the text of a file.", "path"),
    _tool("write", "Replace a file's text, making the file if need be; it ends in a newline.", "path", "content"),
    _tool("append", "Add text to the end of a file as lines of its own.", "path", "content"),
)
DELEGATE = _tool("delegate", "Give a part of the work to a helper in the same folder; returns its report.", "prompt")
FINISH = _tool("finish", "Say that the work is done.", "message", required=0)


def text_argument(arguments: "Message", name: str) -> str:
    """A required string argument. Raises ToolError when it is missing or of another type."""
    value = arguments.get(name)
    if not isinstance(value, str):
        raise ToolError(f"argument {name} must be a string")
    return value


class Workspace:
    """The folder that the agent works in: nothing outside it can be read or written by path."""

    def __init__(self, root: str, options: "Options") -> None:
        """`root` is the folder; the options say how long a command may run and how much of a result is shown."""
        self._root = os.path.realpath(root)
        self._options = options

    def use(self, name: str, arguments: "Message") -> str:
        """Carry out shell, read, write or append and return what the model is told. Raises ToolError."""
        if name not in ("shell", "read", "write", "append"):
            raise ToolError(f"no tool named {name[:40]}")
        try:
            if name == "shell":
                return self._shell(text_argument(arguments, "command"))
            path = self._inside(text_argument(arguments, "path"))
            if name == "read":
                return self.shortened(_read(path))
            if name == "write":
                return _write(path, text_argument(arguments, "content"))
            return _append(path, text_argument(arguments, "content"))
        except OSError as error:
            raise ToolError(error.strerror or type(error).__name__) from error
        except ValueError as error:  # NUL or lone surrogates in a path or a command
            raise ToolError("argument holds a character that is not allowed") from error

    def shortened(self, text: str) -> str:
        """`text` with its middle left out where it is longer than the output limit (characters)."""
        limit = self._options.output_limit
        if len(text) <= limit:
            return text
        head, tail = limit * 2 // 3, limit - limit * 2 // 3
        return f"{text[:head]}\n[{len(text) - limit} characters left out]\n{text[-tail:]}"

    def _shell(self, command: str) -> str:
        from .shell import run  # subprocess is slow to import and many episodes never need it

        output, code = run(command, self._root, self._options.shell_timeout, 4 * self._options.output_limit)
        ending = f"exit code {code}" if code is not None else f"stopped after {self._options.shell_timeout:g} s"
        return self.shortened(output) + ("" if not output or output.endswith("\n") else "\n") + ending

    def _inside(self, path: str) -> str:
        if not path:
            raise ToolError("argument path must name a file")
        full = os.path.realpath(os.path.join(self._root, path))
        if full == self._root or not full.startswith(self._root + os.sep):
            raise ToolError("path is outside the folder")
        return full


def _regular(path: str) -> None:
    if os.path.exists(path) and not os.path.isfile(path):
        raise ToolError("not a regular file")


def _read(path: str) -> str:
    _regular(path)
    with open(path, "rb") as file:
        return file.read(READ_LIMIT).decode(errors="replace")


def _write(path: str, content: str) -> str:
    _regular(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(_lines(content))
    return "ok"


def _append(path: str, content: str) -> str:
    _regular(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "a+b") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(_lines(content))
    return "ok"


def _lines(content: str) -> bytes:
    """The content, its last line ended as a line of a text file is."""
    data = content.encode(errors="replace")
    return data if not data or data.endswith(b"\n") else data + b"\n"
