"""Views of what rolls out: executions, calls, trees, assessments, groups, held-out evaluations."""

ZEROS = "(SELECT run, minIf(ns, ns > 0) AS zero, max(ns) AS latest FROM stored GROUP BY run)"
"""When each run began and what it said last, ns: rows that are there twice change neither, so it needs no FINAL."""

_EXECUTIONS = f"""
SELECT e.run AS run, e.execution AS execution,
    nullIf(anyIf(e.body.group::String, type IN ('ExecutionDispatched', 'ExecutionLaunched')), '') AS group,
    anyIf(e.body.task::String, type = 'ExecutionDispatched') AS task,
    anyIf(e.body.version::UInt32, type = 'ExecutionDispatched') AS version,
    minIf((ns - zero) / 1e9, type = 'ExecutionDispatched') AS dispatched_at,
    minOrNullIf((ns - zero) / 1e9, type = 'ExecutionLaunched') AS launched_at,
    minOrNullIf((ns - zero) / 1e9, type = 'ExecutionTerminated') AS terminated_at,
    minOrNullIf((ns - zero) / 1e9, type = 'RecordsSealed') AS sealed_at,
    minOrNullIf((ns - zero) / 1e9, type IN ('RewardAssigned', 'RewardUnresolved')) AS graded_at,
    minOrNullIf((ns - zero) / 1e9, type = 'TrajectoriesAdmitted') AS admitted_at,
    launched_at - dispatched_at AS queue_seconds,
    anyOrNullIf(e.body.seconds::Float64, type = 'ExecutionTerminated') AS seconds,
    graded_at - terminated_at AS grading_seconds,
    admitted_at - graded_at AS waiting_seconds,
    anyIf(e.body.reason::String, type = 'ExecutionTerminated') AS reason,
    anyIf(e.body.stage::String, type = 'ExecutionTerminated') AS stage,
    anyOrNullIf(e.body.exit_code::Nullable(Int32), type = 'ExecutionTerminated') AS exit_code,
    anyIf(e.body.detail::String, type = 'ExecutionTerminated') AS detail,
    anyOrNullIf(e.body.reward::Float64, type = 'RewardAssigned') AS reward,
    countIf(type = 'RewardAssigned' AND e.body.placeholder::Bool) > 0 AS placeholder,
    countIf(type = 'RewardUnresolved') > 0 AS excluded,
    anyIf(e.body.reason::String, type = 'RewardUnresolved') AS excluded_because,
    anyOrNullIf(e.body.targets::UInt64, type = 'TrajectoriesAdmitted') AS targets,
    anyOrNullIf(e.body.advantage::Float64, type = 'TrajectoriesAdmitted') AS advantage,
    countIf(type = 'ModelCallRetried') AS retries,
    countIf(type = 'RouteMoved') AS moves,
    countIf(type = 'ModelCallRecorded') AS calls,
    sumIf(length(e.body.tools::Array(String)), type = 'ModelCallRecorded') AS tool_calls,
    sumIf(e.body.input_tokens::UInt64, type = 'ModelCallRecorded') AS input_tokens,
    sumIf(e.body.output_tokens::UInt64, type = 'ModelCallRecorded') AS output_tokens,
    input_tokens + output_tokens AS tokens
FROM (
    SELECT run, type, ns, body, body.execution::String AS execution FROM events WHERE type IN (
        'ExecutionDispatched', 'ExecutionLaunched', 'ExecutionTerminated', 'RecordsSealed', 'RewardAssigned',
        'RewardUnresolved', 'TrajectoriesAdmitted', 'ModelCallRetried', 'RouteMoved', 'ModelCallRecorded')
) AS e INNER JOIN {ZEROS} AS z ON e.run = z.run
GROUP BY run, execution HAVING countIf(type = 'ExecutionDispatched') > 0
"""

_CALLS = f"""
SELECT e.run AS run, e.sequence AS sequence, (e.ns - z.zero) / 1e9 AS at, e.body.execution::String AS execution,
    e.body.call::String AS call, e.body.index::UInt32 AS index, e.body.thread::String AS thread,
    e.body.kind::String AS kind,
    e.body.parent::Nullable(String) AS parent, e.body.prefix_tokens::UInt64 AS prefix_tokens,
    e.body.input_tokens::UInt64 AS input_tokens, prefix_tokens + input_tokens AS context_tokens,
    e.body.cached_tokens::UInt64 AS cached_tokens, e.body.output_tokens::UInt64 AS output_tokens,
    e.body.queue_seconds::Float64 AS queue_seconds, e.body.engine_seconds::Float64 AS engine_seconds,
    e.body.total_seconds::Float64 AS total_seconds, e.body.finish::String AS finish,
    e.body.versions[].version::Array(UInt32) AS versions, e.body.versions[].tokens::Array(UInt32) AS version_tokens,
    e.body.cells::Array(UInt32) AS cells, e.body.delivered::Bool AS delivered, e.body.fallback::String AS fallback,
    e.body.tools::Array(String) AS tools, e.body.sampling.temperature::Float64 AS temperature
FROM events AS e INNER JOIN {ZEROS} AS z ON e.run = z.run WHERE e.type = 'ModelCallRecorded'
"""

_TREES = """
SELECT t.run AS run, t.execution AS execution, t.nodes AS nodes, t.leaves AS leaves, t.roles AS roles,
    t.longest AS longest, t.path_tokens AS path_tokens, t.targets AS targets, c.tokens AS tokens,
    if(t.path_tokens > 0, greatest(0, 1 - c.tokens / t.path_tokens), 0) AS shared_share
FROM (
    SELECT run, body.execution::String AS execution, body.nodes::UInt32 AS nodes,
        body.leaves[].role::Array(String) AS roles, body.leaves[].tokens::Array(UInt64) AS lengths,
        body.leaves[].targets::Array(UInt64) AS targeted, length(roles) AS leaves,
        if(leaves > 0, arrayMax(lengths), 0) AS longest, arraySum(lengths) AS path_tokens, arraySum(targeted) AS targets
    FROM events WHERE type = 'TreeBuilt'
) AS t LEFT JOIN (
    SELECT run, body.execution::String AS execution,
        sum(body.input_tokens::UInt64 + body.output_tokens::UInt64) AS tokens
    FROM events WHERE type = 'ModelCallRecorded' GROUP BY run, execution
) AS c ON t.run = c.run AND t.execution = c.execution
"""

_ASSESSMENTS = f"""
SELECT e.run AS run, (e.ns - z.zero) / 1e9 AS at, e.body.assessment::String AS assessment,
    e.body.execution::String AS execution, e.body.designated::Bool AS designated, e.body.attempt::UInt32 AS attempt,
    e.body.valid::Bool AS valid, e.body.score::Nullable(Float64) AS score, e.body.seconds::Float64 AS seconds,
    e.body.branch::Nullable(String) AS branch, e.body.detail::String AS detail
FROM events AS e INNER JOIN {ZEROS} AS z ON e.run = z.run WHERE e.type = 'AssessmentRecorded'
"""

_GROUPS = f"""
SELECT e.run AS run, e.group AS group,
    anyIf(e.body.index::UInt32, type = 'GroupDispatched') AS index,
    anyIf(e.body.task::String, type = 'GroupDispatched') AS task,
    anyIf(e.body.version::UInt32, type = 'GroupDispatched') AS version,
    anyIf(e.body.executions::UInt32, type = 'GroupDispatched') AS executions,
    minIf((ns - zero) / 1e9, type = 'GroupDispatched') AS dispatched_at,
    minOrNullIf((ns - zero) / 1e9, type = 'GroupReady') AS ready_at,
    minOrNullIf((ns - zero) / 1e9, type = 'GroupAssigned') AS assigned_at,
    anyOrNullIf(e.body.step::UInt32, type = 'GroupAssigned') AS step,
    anyOrNullIf(e.body.staleness::Int32, type = 'GroupAssigned') AS staleness,
    anyIf(arrayMap(reward -> ifNull(reward, 0), arrayFilter((reward, standing) -> standing != 'excluded',
        e.body.outcomes[].reward::Array(Nullable(Float64)), e.body.outcomes[].standing::Array(String))),
        type = 'GroupReady') AS rewards,
    anyIf(arrayCount(standing -> standing = 'excluded', e.body.outcomes[].standing::Array(String)),
        type = 'GroupReady') AS excluded,
    anyIf(arrayCount(standing -> standing = 'placeholder', e.body.outcomes[].standing::Array(String)),
        type = 'GroupReady') AS placeholders,
    length(rewards) AS scored,
    if(scored > 0, arrayAvg(rewards), NULL) AS mean,
    if(scored > 0, arrayMax(rewards) - arrayMin(rewards), NULL) AS spread,
    multiIf(ready_at IS NULL, 'open', scored < 2, 'too few', spread > 0, 'mixed', mean = 0, 'all zero',
        mean = 1, 'all one', 'all equal') AS outcome
FROM (
    SELECT run, type, ns, body, body.group::String AS group FROM events
    WHERE type IN ('GroupDispatched', 'GroupReady', 'GroupAssigned')
) AS e INNER JOIN {ZEROS} AS z ON e.run = z.run
GROUP BY run, group HAVING countIf(type = 'GroupDispatched') > 0
"""

_EVALUATIONS = f"""
SELECT e.run AS run, (e.ns - z.zero) / 1e9 AS at, e.body.evaluation::String AS evaluation,
    e.body.version::UInt32 AS version, e.body.mean::Float64 AS mean, e.body.valid::UInt32 AS valid,
    e.body.scores::Array(Nullable(Float64)) AS scores, e.body.seconds::Float64 AS seconds
FROM events AS e INNER JOIN {ZEROS} AS z ON e.run = z.run WHERE e.type = 'EvaluationScored'
"""

ROLLOUT = {
    "executions": _EXECUTIONS,
    "calls": _CALLS,
    "trees": _TREES,
    "assessments": _ASSESSMENTS,
    "groups": _GROUPS,
    "evaluations": _EVALUATIONS,
}
