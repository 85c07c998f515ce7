"""How much each execution has its model say: drawn from its name alone, so that whoever knows the options knows it.

`log tokens = log median + sigma (sqrt(share) z_query + sqrt(1 - share) z_own)`, z standard normal: what executions of
one query have in common, and what each has by itself.
"""

import random
from math import exp, log, sqrt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .options import Options

LEAST = 2
"""Tokens of a call: one that says something, and the one that ends the turn."""


def tokens_of(options: "Options", execution: str) -> int:
    """Output tokens of an execution named GROUP-INDEX, such as x3-0; at least `LEAST` a call."""
    query = _normal(options.seed, execution.rpartition("-")[0])
    own = _normal(options.seed, f"{execution} itself")
    spread = sqrt(options.query_share) * query + sqrt(1.0 - options.query_share) * own
    tokens = round(exp(log(options.tokens) + options.sigma * spread))
    return max(LEAST * options.calls, min(tokens, options.most or tokens))


def calls_of(options: "Options", execution: str) -> tuple[int, ...]:
    """Output tokens of each call, in order; they add up to `tokens_of`. A call's share is drawn from [0.5, 1.5] / n."""
    draw = random.Random(f"{options.seed} {execution} calls")
    weights = [draw.uniform(0.5, 1.5) for _ in range(options.calls)]
    free = tokens_of(options, execution) - LEAST * options.calls
    ends = [round(free * sum(weights[: index + 1]) / sum(weights)) for index in range(options.calls)]
    return tuple(LEAST + end - start for start, end in zip([0, *ends], ends, strict=False))


def _normal(seed: int, name: str) -> float:
    return random.Random(f"{seed} {name}").gauss(0.0, 1.0)
