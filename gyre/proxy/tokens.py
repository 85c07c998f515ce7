"""Bearer tokens: derived from the run's secret, so that runner, examiner and proxy agree without telling each other."""

import hashlib
import hmac


def execution_token(secret: bytes, execution: str) -> str:
    """Token of an execution: HMAC-SHA256(secret, execution id), lower-case hex.

    Raises:
        ValueError: an empty secret.
    """
    if not secret:
        raise ValueError("proxy.key: is empty; write 32 random bytes to it")
    return hmac.new(secret, execution.encode(), hashlib.sha256).hexdigest()


def token_digest(token: str) -> str:
    """What the log may know of a token: its SHA-256, lower-case hex."""
    return hashlib.sha256(token.encode()).hexdigest()


MOST_ATTEMPTS = 8
"""At one evaluation, each with episodes of its own."""


def episode(evaluation: str, index: int, attempt: int = 1) -> str:
    """Execution id of an evaluation's episode `index` (from 0); what one attempt did is never taken for another's."""
    return f"{evaluation}-{index}" if attempt == 1 else f"{evaluation}-{index}r{attempt}"
