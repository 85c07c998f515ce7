"""Small configurations as text."""

import re

_SECTION = re.compile(r"\[\s*([a-z0-9-]+)\s*\]")
_NUMBER = re.compile(r"[+-]?[0-9]+")
_ESCAPES = {"n": "\n", '"': '"', "\\": "\\"}


class ConfError(ValueError):
    """A line that is wrong."""

    def __init__(self, line, what):
        super().__init__(f"line {line}: {what}")
        self.line = line


def loads(text):
    """The sections of a text."""
    found, section = {}, ""
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        begun = _SECTION.fullmatch(line)
        if begun:
            section = begun[1]
            if section in found:
                raise ConfError(number, f"section {section} is there already")
            found[section] = {}
            continue
        key, sign, value = line.partition("=")
        if not sign or not key.strip():
            raise ConfError(number, "neither a section nor key = value")
        keys = found.setdefault(section, {})
        if key.strip() in keys:
            raise ConfError(number, f"key {key.strip()} is there already")
        keys[key.strip()] = _read(value.strip())
    return found


def dumps(conf):
    """A text that `loads` makes the same sections of."""
    lines = []
    for name in sorted(conf, key=lambda name: name != ""):
        lines += [f"[{name}]"] if name else []
        lines += [f"{key} = {_write(value)}" for key, value in conf[name].items()]
    return "".join(f"{line}\n" for line in lines)


def _read(value):
    if value in ("true", "false"):
        return value == "true"
    if _NUMBER.fullmatch(value):
        return int(value)
    if len(value) > 1 and value[0] == value[-1] == '"':
        return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[0]), value[1:-1])
    return value


def _write(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
