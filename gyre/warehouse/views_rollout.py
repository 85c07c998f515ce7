"""Views of what rolls out: executions, calls, trees, assessments, groups, held-out evaluations."""

from schemas.rewards import ROUNDING

LATEST = "if(countIf(type = 'RunFinished') > 0, minIf(ns, type = 'RunFinished'), max(ns))"
"""A run's time ends with it: states may be scored again long afterwards."""
ZEROS = f"(SELECT run, minIf(ns, ns > 0) AS zero, {LATEST} AS latest FROM stored GROUP BY run)"
"""When each run began and what it said last, ns: rows that are there twice change neither, so it needs no FINAL."""


def timed(*types: str, beside: str = "") -> str:
    """SQL for the facts of some types, `e`, beside when their run began, `z`, and what else is joined to them."""
    listed = ", ".join(f"'{each}'" for each in types)
    return f"facts AS e INNER JOIN {ZEROS} AS z ON e.run = z.run {beside} WHERE e.type IN ({listed})"


_EXECUTIONS = f"""
SELECT e.run AS run, e.execution AS execution,
    nullIf(anyIf(e.group, type IN ('ExecutionDispatched', 'ExecutionLaunched')), '') AS group,
    anyIf(e.task, type = 'ExecutionDispatched') AS task,
    anyIf(e.version, type = 'ExecutionDispatched') AS version,
    minIf((ns - zero) / 1e9, type = 'ExecutionDispatched') AS dispatched_at,
    minOrNullIf((ns - zero) / 1e9, type = 'ExecutionLaunched') AS launched_at,
    minOrNullIf((ns - zero) / 1e9, type = 'ExecutionTerminated') AS terminated_at,
    minOrNullIf((ns - zero) / 1e9, type = 'RecordsSealed') AS sealed_at,
    minOrNullIf((ns - zero) / 1e9, type IN ('RewardAssigned', 'RewardUnresolved')) AS graded_at,
    minOrNullIf((ns - zero) / 1e9, type = 'TrajectoriesAdmitted') AS admitted_at,
    launched_at - dispatched_at AS queue_seconds,
    anyIf(e.setup_seconds, type = 'ExecutionTerminated') AS setup_seconds,
    anyOrNullIf(e.seconds, type = 'ExecutionTerminated') AS seconds,
    graded_at - terminated_at AS grading_seconds,
    admitted_at - graded_at AS waiting_seconds,
    anyIf(e.reason, type = 'ExecutionTerminated') AS reason,
    anyIf(e.stage, type = 'ExecutionTerminated') AS stage,
    anyIf(e.exit_code, type = 'ExecutionTerminated') AS exit_code,
    anyIf(e.detail, type = 'ExecutionTerminated') AS detail,
    anyIf(e.reward, type = 'RewardAssigned') AS reward,
    countIf(type = 'RewardAssigned' AND e.placeholder) > 0 AS placeholder,
    countIf(type = 'RewardUnresolved') > 0 AS excluded,
    anyIf(e.reason, type = 'RewardUnresolved') AS excluded_because,
    anyOrNullIf(e.targets, type = 'TrajectoriesAdmitted') AS targets,
    anyOrNullIf(e.advantage, type = 'TrajectoriesAdmitted') AS advantage,
    countIf(type = 'ModelCallRetried') AS retries,
    countIf(type = 'RouteMoved') AS moves,
    countIf(type = 'ModelCallRecorded') AS calls,
    sumIf(length(e.tools), type = 'ModelCallRecorded') AS tool_calls,
    sumIf(e.input_tokens, type = 'ModelCallRecorded') AS input_tokens,
    sumIf(e.output_tokens, type = 'ModelCallRecorded') AS output_tokens,
    input_tokens + output_tokens AS tokens
FROM {timed(
    "ExecutionDispatched", "ExecutionLaunched", "ExecutionTerminated", "RecordsSealed", "RewardAssigned",
    "RewardUnresolved", "TrajectoriesAdmitted", "ModelCallRetried", "RouteMoved", "ModelCallRecorded",
)}
GROUP BY run, execution HAVING countIf(type = 'ExecutionDispatched') > 0
"""  # fmt: skip

_CORRECTED = """LEFT JOIN (
    SELECT run, call, count() AS corrections, argMax(delivered, sequence) AS delivered
    FROM facts WHERE type = 'DeliveryCorrected' GROUP BY run, call
) AS d ON e.run = d.run AND e.call = d.call"""

_CALLS = f"""
SELECT e.run AS run, e.sequence AS sequence, (e.ns - z.zero) / 1e9 AS at, e.execution AS execution,
    e.call AS call, e.place AS index, e.thread AS thread, e.kind AS kind, e.parent AS parent,
    e.prefix_tokens AS prefix_tokens, e.input_tokens AS input_tokens, prefix_tokens + input_tokens AS context_tokens,
    e.cached_tokens AS cached_tokens, e.output_tokens AS output_tokens, e.queue_seconds AS queue_seconds,
    e.engine_seconds AS engine_seconds, e.total_seconds AS total_seconds, e.finish AS finish,
    e.versions.version AS versions, e.versions.tokens AS version_tokens, e.cells AS cells,
    if(d.corrections > 0, d.delivered, e.delivered) AS delivered,
    e.fallback AS fallback, e.tools AS tools, e.sampling.temperature AS temperature
FROM {timed("ModelCallRecorded", beside=_CORRECTED)}
"""

_TREES = """
SELECT t.run AS run, t.execution AS execution, t.nodes AS nodes, t.leaf_count AS leaves, t.roles AS roles,
    t.longest AS longest, t.path_tokens AS path_tokens, t.targeted AS targets, c.tokens AS tokens,
    if(t.path_tokens > 0, greatest(0, 1 - c.tokens / t.path_tokens), 0) AS shared_share
FROM (
    SELECT run, execution, nodes, leaves.role AS roles, length(roles) AS leaf_count,
        if(leaf_count > 0, arrayMax(leaves.tokens), 0) AS longest, arraySum(leaves.tokens) AS path_tokens,
        arraySum(leaves.targets) AS targeted
    FROM facts WHERE type = 'TreeBuilt'
) AS t LEFT JOIN (
    SELECT run, execution, sum(input_tokens + output_tokens) AS tokens
    FROM facts WHERE type = 'ModelCallRecorded' GROUP BY run, execution
) AS c ON t.run = c.run AND t.execution = c.execution
"""

_ASSESSMENTS = f"""
SELECT e.run AS run, (e.ns - z.zero) / 1e9 AS at, e.assessment AS assessment, e.execution AS execution,
    e.designated AS designated, e.attempt AS attempt, e.valid::Bool AS valid, e.score AS score, e.seconds AS seconds,
    e.branch AS branch, e.detail AS detail, e.provenance.evaluator AS evaluator, e.provenance.model AS judge
FROM {timed("AssessmentRecorded")}
"""

_ALIKE = (  # as `schemas.rewards.alike`
    f"arrayMax(rewards) - arrayMin(rewards) <= {ROUNDING} * greatest(1, abs(arrayMin(rewards)), abs(arrayMax(rewards)))"
)
_GROUPS = f"""
SELECT e.run AS run, e.group AS group,
    anyIf(e.place, type = 'GroupDispatched') AS index,
    anyIf(e.task, type = 'GroupDispatched') AS task,
    anyIf(e.version, type = 'GroupDispatched') AS version,
    anyIf(e.executions, type = 'GroupDispatched') AS executions,
    minIf((ns - zero) / 1e9, type = 'GroupDispatched') AS dispatched_at,
    minOrNullIf((ns - zero) / 1e9, type = 'GroupReady') AS ready_at,
    minOrNullIf((ns - zero) / 1e9, type = 'GroupAssigned') AS assigned_at,
    anyOrNullIf(e.step, type = 'GroupAssigned') AS step,
    anyOrNullIf(e.staleness, type = 'GroupAssigned') AS staleness,
    anyIf(arrayMap(reward -> ifNull(reward, 0), arrayFilter((reward, standing) -> standing != 'excluded',
        e.outcomes.reward, e.outcomes.standing)), type = 'GroupReady') AS rewards,
    anyIf(arrayCount(standing -> standing = 'excluded', e.outcomes.standing), type = 'GroupReady') AS excluded,
    anyIf(arrayCount(standing -> standing = 'placeholder', e.outcomes.standing), type = 'GroupReady') AS placeholders,
    length(rewards) AS scored,
    if(scored > 0, arrayAvg(rewards), NULL) AS mean,
    if(scored > 0, if({_ALIKE}, 0, arrayMax(rewards) - arrayMin(rewards)), NULL) AS spread,
    multiIf(ready_at IS NULL, 'open', scored < 2, 'too few', spread > 0, 'mixed', mean = 0, 'all zero',
        mean = 1, 'all one', 'all equal') AS outcome
FROM {timed("GroupDispatched", "GroupReady", "GroupAssigned")}
GROUP BY run, group HAVING countIf(type = 'GroupDispatched') > 0
"""

_EVALUATIONS = f"""
SELECT e.run AS run, (e.ns - z.zero) / 1e9 AS at, e.evaluation AS evaluation, e.version AS version, e.mean AS mean,
    e.valid AS valid, e.scores AS scores, e.seconds AS seconds
FROM {timed("EvaluationScored")}
"""

ROLLOUT = {
    "executions": _EXECUTIONS,
    "calls": _CALLS,
    "trees": _TREES,
    "assessments": _ASSESSMENTS,
    "groups": _GROUPS,
    "evaluations": _EVALUATIONS,
}
