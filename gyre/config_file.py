"""From a TOML file and `--set a.b=c` overrides to a table, and from pydantic's findings to one line a problem."""

import difflib
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from gyre.errors import ConfigError, Problem


def read_table(path: Path | None, overrides: Sequence[str]) -> dict[str, Any]:
    """The file's table (empty without a file) with the overrides put in. Raises ConfigError."""
    table = _parse(path) if path else {}
    for override in overrides:
        _put(table, override)
    return table


def problems_of(error: ValidationError, model: type[BaseModel]) -> tuple[Problem, ...]:
    """What pydantic found, in our words; an unknown key names the nearest valid one."""
    return tuple(_problem(dict(found), model) for found in error.errors(include_url=False))


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(str(path), (Problem("file", "", "no such file; give the path of a TOML file"),)) from error
    except IsADirectoryError as error:
        raise ConfigError(str(path), (Problem("file", "", "is a folder; give the path of a TOML file"),)) from error
    except OSError as error:
        raise ConfigError(str(path), (Problem("file", "", f"cannot be read: {error.strerror}"),)) from error
    except ValueError as error:
        raise ConfigError(str(path), (Problem("file", "", f"not readable as TOML: {error}"),)) from error


def _put(table: dict[str, Any], override: str) -> None:
    """Put one `a.b=c` in; the value is read as TOML, and as plain text where it is not TOML."""
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError("", (Problem("--set", override, "write it as section.field=value"),))
    place = table
    for depth, part in enumerate(parts[:-1], start=1):
        place = place.setdefault(part, {})
        if not isinstance(place, dict):
            raise ConfigError("", (Problem(".".join(parts[:depth]), override, "is a value, not a section"),))
    place[parts[-1]] = _value(text.strip())


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, KeyError):
        return text


def _problem(found: dict[str, Any], model: type[BaseModel]) -> Problem:
    parts = [str(part) for part in found["loc"]]
    key, kind = ".".join(parts), found["type"]
    if kind == "extra_forbidden":
        return Problem(key, repr(found["input"]), f"unknown key{_hint(parts, model)}")
    if kind == "rule":
        context = found["ctx"]
        return Problem(context["key"], context["value"], context["rule"])
    if kind == "model_type":
        return Problem(key, repr(found["input"]), f"is a section; write [{key}] with its fields below")
    return Problem(key, repr(found["input"]), found["msg"][:1].lower() + found["msg"][1:])


def _hint(parts: list[str], model: type[BaseModel]) -> str:
    """The same key in another section, or the one that comes nearest here, or all that is known here."""
    sections = {name: field.annotation for name, field in model.model_fields.items()}
    fields = {name: list(kind.model_fields) for name, kind in sections.items() if isinstance(kind, type)}
    elsewhere = [f"{section}.{parts[-1]}" for section, names in fields.items() if parts[-1] in names]
    if elsewhere:
        return f"; did you mean {elsewhere[0]}?"
    known = fields.get(parts[0], []) if len(parts) > 1 else sorted(fields)
    near = difflib.get_close_matches(parts[-1], known, n=1, cutoff=0.5)
    return f"; did you mean {'.'.join([*parts[:-1], near[0]])}?" if near else f"; known here: {', '.join(known)}"
