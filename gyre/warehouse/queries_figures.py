"""What the evaluation of a run shows: distributions, role timeline, step times, scores, gradient norms.

The paper's Figures 5 to 9 are these, of one run each; a comparison of runs asks several and lays them side by side.
"""


def _histogram(each: str, counts: str = "") -> str:
    """SQL for a histogram of `value` in the rows of a SELECT, in equal bins; width 0: a twentieth of the largest."""
    return f"""
-- width=0
WITH each AS ({each}), bins AS (
        SELECT if({{width:Float64}} > 0, {{width:Float64}}, greatest(max(value) / 20, 1e-9)) AS width FROM each LIMIT 1
    )
SELECT least(toUInt32(floor(value / width)), 999) * width AS low, low + width AS high, count() AS n,
    n / sum(n) OVER () AS share{counts}
FROM each CROSS JOIN bins GROUP BY low, high, width ORDER BY low
"""


_TREES = "trees WHERE run = {run:String}"
_ENDED = """
    SELECT assumeNotNull(seconds) AS value, reason, excluded FROM executions
    WHERE run = {run:String} AND seconds IS NOT NULL
"""
_LONGEST = """
    SELECT assumeNotNull(max(seconds)) AS value FROM executions
    WHERE run = {run:String} GROUP BY group HAVING countIf(seconds IS NULL) = 0
"""

FIGURES: dict[str, tuple[str, str]] = {
    "query-durations": (
        "Histogram of query durations, s: the longest execution of each group that has ended (Figures 5a, 8a)",
        _histogram(_LONGEST),
    ),
    "execution-durations": (
        "Histogram of execution durations, s; of each bin, those that timed out and those that were excluded (5b, 8b)",
        _histogram(
            _ENDED,
            ", countIf(reason = 'timeout' AND NOT excluded) AS timeouts, countIf(excluded) AS excluded_from_training",
        ),
    ),
    "tree-tokens": (
        "Histogram of tokens a tree, shared prefixes once; `decoded`: the same of generated tokens alone (5c)",
        """
-- width=0
WITH each AS (
        SELECT tokens, output_tokens FROM executions WHERE run = {run:String} AND sealed_at IS NOT NULL AND tokens > 0
    ), bins AS (
        SELECT if({width:Float64} > 0, {width:Float64}, greatest(max(tokens) / 20, 1)) AS width FROM each LIMIT 1
    )
SELECT least(toUInt32(floor(counted.1 / width)), 999) * width AS low, low + width AS high,
    countIf(counted.2 = 'total') AS n, countIf(counted.2 = 'decoded') AS decoded
FROM each CROSS JOIN bins ARRAY JOIN [(tokens, 'total'), (output_tokens, 'decoded')] AS counted
GROUP BY low, high, width ORDER BY low
""",
    ),
    "tool-calls": (
        "Histogram of tool calls an execution (5d)",
        (
            "SELECT tool_calls, count() AS n, n / sum(n) OVER () AS share FROM executions "
            "WHERE run = {run:String} AND sealed_at IS NOT NULL GROUP BY tool_calls ORDER BY tool_calls"
        ),
    ),
    "leaves": (
        "Histogram of leaves a tree, and what share of their tokens lies in shared prefixes (5e)",
        (
            f"SELECT leaves, count() AS n, n / sum(n) OVER () AS share, avg(shared_share) AS shared FROM {_TREES} "
            "GROUP BY leaves ORDER BY leaves"
        ),
    ),
    "role-timeline": (
        "What each cell was, from when to when, s (6a)",
        (
            "SELECT cell, standing, start, end, seconds FROM roles WHERE run = {run:String} AND seconds > 0 "
            "ORDER BY cell, start"
        ),
    ),
    "training-share": (
        "Of each cell: share of its time in training, in rollout, changing, and lost (6b)",
        """
SELECT cell, sum(seconds) AS lifetime, sumIf(seconds, standing = 'train') / nullIf(lifetime, 0) AS training,
    sumIf(seconds, standing = 'rollout') / nullIf(lifetime, 0) AS rollout,
    sumIf(seconds, startsWith(standing, 'to_')) / nullIf(lifetime, 0) AS changing,
    sumIf(seconds, standing = 'lost') / nullIf(lifetime, 0) AS lost
FROM roles WHERE run = {run:String} GROUP BY cell ORDER BY cell
""",
    ),
    "step-times": (
        "Of each step, s: from the update before it, in all, open, computing, after its stream closed (7a-d, 8c, 8d)",
        """
SELECT s.step AS step, s.seconds AS seconds, s.updated_at AS total, s.open_seconds AS open_seconds,
    m.computing AS computing, m.waiting AS waiting, s.updated_at - s.closed_at AS after_close, s.members AS members,
    s.micro_steps AS micro_steps
FROM steps AS s LEFT JOIN (
    SELECT step, sum(seconds) AS computing, sum(waiting_seconds) AS waiting FROM micro_steps
    WHERE run = {run:String} GROUP BY step
) AS m ON s.step = m.step
WHERE s.run = {run:String} ORDER BY step
""",
    ),
    "utilisation": (
        "Of each cell: time in micro-steps and in calls, tokens that it generated, and what share or rate that is (7)",
        """
WITH whole AS (SELECT any(seconds) AS seconds FROM runs WHERE run = {run:String})
SELECT cell, sum(busy) AS training_seconds, training_seconds / nullIf(any(whole.seconds), 0) AS training_share,
    sum(served) AS generating_seconds, sum(made) AS calls, sum(tokens) AS output_tokens,
    output_tokens / nullIf(any(whole.seconds), 0) AS tokens_per_second
FROM (
    SELECT assumeNotNull(cell) AS cell, seconds AS busy, 0 AS served, 0 AS made, 0 AS tokens FROM micro_steps
    WHERE run = {run:String} AND cell IS NOT NULL
    UNION ALL
    SELECT cells[-1] AS cell, 0, engine_seconds, 1, output_tokens FROM calls
    WHERE run = {run:String} AND length(cells) > 0
) AS each CROSS JOIN whole GROUP BY cell ORDER BY cell
""",
    ),
    "train-score": (
        "Of each step: mean reward of its groups' executions (7e, 7f, 8e, 9b)",
        (
            "SELECT step, version, score, groups, flat_groups, staleness FROM steps "
            "WHERE run = {run:String} AND score IS NOT NULL ORDER BY step"
        ),
    ),
    "evaluation-score": (
        "Of each evaluation on held-out tasks: mean score (8f)",
        (
            "SELECT version, mean, valid, length(scores) AS episodes, at, seconds FROM evaluations "
            "WHERE run = {run:String} ORDER BY version"
        ),
    ),
    "gradient-norm": (
        "Of each step: gradient norm before clipping, and what clipping left of it (9a)",
        (
            "SELECT step, gradient_norm, clip_coefficient, loss, learning_rate FROM steps "
            "WHERE run = {run:String} ORDER BY step"
        ),
    ),
    "publications": (
        "Of each published version: how it travelled, bytes whole and as sent, share of values changed, s until served",
        (
            "SELECT version, body.transport::Nullable(String) AS transport, body.weights.size::UInt64 AS bytes, "
            "body.sent::Nullable(UInt64) AS sent, body.changed::Nullable(Float64) AS changed, "
            "body.seconds::Float64 AS seconds FROM (SELECT body.version::UInt32 AS version, body FROM events "
            "WHERE run = {run:String} AND type = 'WeightsPublished') ORDER BY version"
        ),
    ),
    "consistency": (
        "Of each step: how far training's policy is from the rollout's: max |dlog p|, Pearson, k3, ESS, masked share",
        (
            "SELECT step, max_delta_log_p, pearson, k3, ess, masked_share, trained, staleness FROM steps "
            "WHERE run = {run:String} AND trained > 0 ORDER BY step"
        ),
    ),
    "staleness": (
        "How many groups were trained on at each staleness, in training steps",
        (
            "SELECT assumeNotNull(staleness) AS steps_old, count() AS n FROM groups "
            "WHERE run = {run:String} AND staleness IS NOT NULL GROUP BY steps_old ORDER BY steps_old"
        ),
    ),
    "call-latency": (
        "Of each kind of call: how many, time queued and computed, prefill and decode tokens, share cached",
        """
SELECT kind, count() AS n, quantile(0.5)(total_seconds) AS p50, quantile(0.99)(total_seconds) AS p99,
    avg(queue_seconds) AS queued, avg(engine_seconds) AS engine, sum(context_tokens) AS prefill_tokens,
    sum(output_tokens) AS decode_tokens, sum(cached_tokens) / nullIf(sum(context_tokens), 0) AS cached,
    countIf(length(arrayDistinct(versions)) > 1) AS mixed_versions
FROM calls WHERE run = {run:String} GROUP BY kind ORDER BY n DESC
""",
    ),
}
"""Name -> (what it shows, SQL)."""
