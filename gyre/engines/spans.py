"""Policy versions of output tokens, kept as runs."""

from schemas.calls import VersionSpan


def add_span(spans: list[VersionSpan], version: int, tokens: int) -> None:
    """Append a run of `tokens` under `version`, joining it to an equal last one; nothing when `tokens` is 0."""
    if tokens == 0:
        return
    if spans and spans[-1].version == version:
        tokens += spans.pop().tokens
    spans.append(VersionSpan(version=version, tokens=tokens))
