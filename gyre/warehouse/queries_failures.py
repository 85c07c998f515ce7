"""Where to look when the reward drops: what ended how, what took its time, what taught nothing, what was not judged.

Each separates something that broke from something that was learned (Lego-RL, §4.5 and Appendix H).
"""

_BY_STEP = """(
    SELECT e.*, g.step AS step FROM (SELECT * FROM executions WHERE run = {run:String}) AS e
    LEFT JOIN (SELECT group, step FROM groups WHERE run = {run:String}) AS g ON e.group = g.group
)"""
"""Executions with the step that trains on them; NULL: none yet."""

FAILURES: dict[str, tuple[str, str]] = {
    "terminations": (
        "Of each step: how the executions it trains on ended, and what share of them was scored (step empty: none yet)",
        f"""
SELECT step, count() AS n, countIf(reason = 'completed') AS completed, countIf(reason = 'failed') AS failed,
    countIf(reason = 'timeout') AS timeouts, countIf(reason = 'cancelled') AS cancelled,
    countIf(reason = '' AND launched_at IS NULL) AS queued, countIf(reason = '' AND launched_at IS NOT NULL) AS running,
    countIf(stage = 'setup' AND reason != 'completed') AS in_setup, countIf(calls <= 1) AS one_call_at_most,
    countIf(reward IS NOT NULL AND NOT placeholder) / n AS scored, avg(reward) AS score
FROM {_BY_STEP} GROUP BY step ORDER BY step
""",
    ),
    "stage-times": (
        "Of each step: mean time of its executions in each stage, s: queued, running, graded, waiting to be trained on",
        f"""
SELECT step, count() AS n, avg(queue_seconds) AS queued, avg(seconds) AS running,
    quantile(0.9)(seconds) AS running_p90, avg(grading_seconds) AS grading,
    quantile(0.9)(grading_seconds) AS grading_p90, avg(waiting_seconds) AS waiting,
    running / nullIf(queued + running + grading + waiting, 0) AS running_share
FROM {_BY_STEP} WHERE seconds IS NOT NULL GROUP BY step ORDER BY step
""",
    ),
    "task-grid": (
        "Tasks whose solve rate differs between two policy versions (first and last, or --set first=N --set last=N)",
        """
-- first=-1 last=-1
WITH scored AS (
        SELECT task, version, reward FROM executions WHERE run = {run:String} AND reward IS NOT NULL AND NOT placeholder
    ), ends AS (
        SELECT if({first:Int32} < 0, toInt32(min(version)), {first:Int32}) AS first,
            if({last:Int32} < 0, toInt32(max(version)), {last:Int32}) AS last FROM scored
    )
SELECT task, avgIf(reward, version = first) AS before, avgIf(reward, version = last) AS after, after - before AS change,
    countIf(version = first) AS executions_before, countIf(version = last) AS executions_after
FROM scored CROSS JOIN ends GROUP BY task
HAVING executions_before > 0 AND executions_after > 0 AND change != 0 ORDER BY change, task
""",
    ),
    "zero-variation": (
        "Ready groups that teach nothing, since their rewards are all equal or too few",
        (
            "SELECT group, task, version, step, outcome, mean, scored, excluded, placeholders FROM groups "
            "WHERE run = {run:String} AND outcome NOT IN ('open', 'mixed') ORDER BY index"
        ),
    ),
    "group-spread": (
        "Of each step: how many of its groups were all zero, all one, mixed; mean spread of rewards",
        """
SELECT assumeNotNull(step) AS of_step, count() AS n, countIf(outcome = 'all zero') AS all_zero,
    countIf(outcome = 'all one') AS all_one, countIf(outcome = 'mixed') AS mixed,
    n - all_zero - all_one - mixed AS others, avg(spread) AS mean_spread
FROM groups WHERE run = {run:String} AND step IS NOT NULL GROUP BY of_step ORDER BY of_step
""",
    ),
    "verifier-failures": (
        "Executions without a valid score, by how far they got and why",
        """
SELECT how_far, why, count() AS n, min(execution) AS example FROM (
    SELECT execution, multiIf(excluded, 'no valid score', reason = '', 'running', stage = 'setup', 'failed in setup',
        placeholder, 'left nothing to assess', 'not graded yet') AS how_far,
        multiIf(excluded, excluded_because, detail = '', concat('ended as ', reason), detail) AS why
    FROM executions WHERE run = {run:String} AND reason != '' AND (excluded OR placeholder)
    UNION ALL
    SELECT execution, 'an assessment was invalid', detail FROM assessments
    WHERE run = {run:String} AND designated AND NOT valid
) GROUP BY how_far, why ORDER BY n DESC, how_far, why
""",
    ),
    "validation-failures": (
        "Held-out tasks that the last evaluation did not solve, with their score in the first one",
        """
WITH held AS (
        SELECT body.heldout::Array(String) AS tasks FROM events WHERE run = {run:String} AND type = 'RunStarted'
    ), ordered AS (
        SELECT version, scores, row_number() OVER (ORDER BY version) AS place, count() OVER () AS n FROM evaluations
        WHERE run = {run:String}
    )
SELECT if(length(tasks) > 0, tasks[(episode - 1) % length(tasks) + 1], '') AS task, episode, last.version AS version,
    last_score AS score, arrayElementOrNull(first.scores, episode) AS score_at_first
FROM (SELECT version, scores FROM ordered WHERE place = n) AS last
CROSS JOIN (SELECT scores FROM ordered WHERE place = 1) AS first CROSS JOIN held
ARRAY JOIN last.scores AS last_score, arrayEnumerate(last.scores) AS episode
WHERE last_score IS NULL OR last_score < 1 ORDER BY episode
""",
    ),
    "tool-use": (
        "How often each tool was called, and by how many executions",
        (
            "SELECT tool, count() AS n, uniqExact(execution) AS executions FROM calls ARRAY JOIN tools AS tool "
            "WHERE run = {run:String} GROUP BY tool ORDER BY n DESC, tool"
        ),
    ),
    "redeliveries": (
        "Micro-steps that were claimed more than once, with the cells that claimed them",
        (
            "SELECT step, micro_step, claims, reissues, arraySort(cells) AS claimed_by, seconds FROM micro_steps "
            "WHERE run = {run:String} AND (claims > 1 OR reissues > 0) ORDER BY step, micro_step"
        ),
    ),
    "malformed": (
        "Stored messages that no model accepts: of no commit's shape, or refused by the run's own readers",
        """
SELECT stream, sequence, any(subject) AS subject, any(reason) AS reason FROM (
    SELECT stream, sequence, body.subject::String AS subject, body.reason::String AS reason FROM events
    WHERE run = {run:String} AND type = 'Malformed'
    UNION ALL
    SELECT 'EV', body.sequence::UInt64, body.subject::String, body.reason::String FROM events
    WHERE run = {run:String} AND type = 'EventQuarantined'
) GROUP BY stream, sequence ORDER BY stream, sequence
""",
    ),
}
"""Name -> (what it shows, SQL)."""
