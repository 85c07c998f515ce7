"""Views of what trains: the cells' roles, micro-steps, optimizer steps."""

from gyre.warehouse.views_rollout import ZEROS

_ROLES = f"""
SELECT run, cell, standing, start, end, end - start AS seconds FROM (
    SELECT run, cell, last_value(asked) OVER past AS asked_last,
        multiIf(type = 'CellLost', 'lost', type = 'CellRegistered', 'rollout',
            type = 'RoleTransitionRequested', concat('to_', to), type = 'RoleTransitionCompleted', to,
            asked_last = 'train', 'rollout', 'train') AS standing,
        (ns - zero) / 1e9 AS start, (leadInFrame(ns, 1, latest) OVER rest - zero) / 1e9 AS end
    FROM (
        SELECT *, last_value(here) OVER before AS present FROM (
            SELECT *, last_value(came) OVER before AS holder,
                multiIf(type = 'CellRegistered', 1, type = 'CellLost' AND holder = instance, 0, NULL) AS here
            FROM (
                SELECT e.run AS run, e.type AS type, e.ns AS ns, e.sequence AS sequence, e.index AS place,
                    z.zero AS zero, z.latest AS latest, e.body.cell::UInt32 AS cell,
                    e.body.instance::String AS instance, e.body.to::String AS to,
                    if(type = 'RoleTransitionRequested', toNullable(to), NULL) AS asked,
                    if(type = 'CellRegistered', toNullable(instance), NULL) AS came
                FROM events AS e INNER JOIN {ZEROS} AS z ON e.run = z.run
                WHERE e.type IN ('CellRegistered', 'CellLost', 'RoleTransitionRequested', 'RoleTransitionCompleted',
                    'RoleTransitionFailed')
            ) WINDOW before AS (PARTITION BY run, cell ORDER BY sequence, place
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
        ) WINDOW before AS (PARTITION BY run, cell ORDER BY sequence, place
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
    )
    WHERE if(type = 'CellRegistered', holder IS NULL OR holder != instance OR present = 0,
        holder = instance AND present = 1)
    WINDOW past AS (PARTITION BY run, cell ORDER BY sequence, place ROWS UNBOUNDED PRECEDING),
        rest AS (PARTITION BY run, cell ORDER BY sequence, place ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)
)
"""
"""Only the process that holds a cell changes what the cell is, and one that is lost no more."""

_MICRO_STEPS = f"""
SELECT e.run AS run, e.step AS step, e.micro_step AS micro_step,
    anyIf(e.body.kind::String, type = 'MicroStepEnqueued') AS kind,
    anyIf(e.body.tokens::UInt64, type = 'MicroStepEnqueued') AS tokens,
    minOrNullIf((ns - zero) / 1e9, type = 'MicroStepEnqueued') AS enqueued_at,
    minOrNullIf((ns - zero) / 1e9, type = 'MicroStepClaimed') AS claimed_at,
    maxOrNullIf((ns - zero) / 1e9, type = 'MicroStepCompleted') AS completed_at,
    claimed_at - enqueued_at AS waiting_seconds,
    argMaxIf(e.body.seconds::Float64, sequence, type = 'MicroStepCompleted') AS seconds,
    argMaxIf(e.body.cell::Nullable(UInt32), sequence, type = 'MicroStepCompleted') AS cell,
    countIf(type = 'MicroStepClaimed') AS claims, countIf(type = 'MicroStepReissued') AS reissues,
    groupUniqArrayIf(e.body.cell::UInt32, type = 'MicroStepClaimed') AS cells
FROM (
    SELECT run, type, ns, sequence, body, body.step::UInt32 AS step, body.micro_step::UInt32 AS micro_step FROM events
    WHERE type IN ('MicroStepEnqueued', 'MicroStepClaimed', 'MicroStepCompleted', 'MicroStepReissued')
) AS e INNER JOIN {ZEROS} AS z ON e.run = z.run
GROUP BY run, step, micro_step
"""

_STATS = """
SELECT run, step, execution, max(ratio) AS ratio, min(mask) AS mask, sum(targets) AS targets, sum(loss) AS loss,
    max(max_delta_log_p) AS max_delta_log_p, sum(k3) AS k3
FROM (
    SELECT run, step, each.1 AS execution, each.2 AS targets, each.3 AS ratio, each.4 AS mask, each.5 AS loss,
        each.6 AS max_delta_log_p, each.7 AS k3
    FROM (
        SELECT run, step, argMax(stats, sequence) AS kept FROM (
            SELECT run, sequence, body.step::UInt32 AS step, body.micro_step::UInt32 AS micro_step,
                arrayZip(body.stats[].execution::Array(String), body.stats[].targets::Array(UInt64),
                    body.stats[].ratio::Array(Float64), body.stats[].mask::Array(UInt8),
                    body.stats[].loss::Array(Float64), body.stats[].max_delta_log_p::Array(Float64),
                    body.stats[].k3::Array(Float64)) AS stats
            FROM events WHERE type = 'MicroStepCompleted'
        ) GROUP BY run, step, micro_step
    ) ARRAY JOIN kept AS each
) GROUP BY run, step, execution
"""

_STEPS = f"""
SELECT o.run AS run, o.step AS step, o.version AS version, o.opened_at AS opened_at, o.closed_at AS closed_at,
    o.reduced_at AS reduced_at, o.updated_at AS updated_at,
    o.updated_at - lagInFrame(o.updated_at, 1, 0) OVER (PARTITION BY o.run ORDER BY o.step
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS seconds,
    o.updated_at - o.opened_at AS open_seconds, o.members AS members, o.micro_steps AS micro_steps, o.loss AS loss,
    o.gradient_norm AS gradient_norm, o.clip_coefficient AS clip_coefficient, o.learning_rate AS learning_rate,
    g.groups AS groups, g.staleness AS staleness, g.score AS score, g.flat AS flat_groups,
    s.executions AS trained, s.masked_share AS masked_share, s.max_delta_log_p AS max_delta_log_p, s.k3 AS k3,
    s.ess AS ess
FROM (
    SELECT run, step, anyIf(body.version::UInt32, type = 'OptimizerStepped') AS version,
        minOrNullIf((ns - zero) / 1e9, type = 'BatchOpened') AS opened_at,
        minOrNullIf((ns - zero) / 1e9, type = 'StreamClosed') AS closed_at,
        minOrNullIf((ns - zero) / 1e9, type = 'GradientReduced') AS reduced_at,
        minIf((ns - zero) / 1e9, type = 'OptimizerStepped') AS updated_at,
        argMaxIf(length(body.members::Array(UInt32)), sequence, type = 'ReductionOpened') AS members,
        argMaxIf(length(body.contributions[].claim::Array(UInt64)), sequence, type = 'ReductionOpened') AS micro_steps,
        anyIf(body.loss::Float64, type = 'OptimizerStepped') AS loss,
        anyIf(body.gradient_norm::Float64, type = 'OptimizerStepped') AS gradient_norm,
        anyIf(body.clip_coefficient::Float64, type = 'OptimizerStepped') AS clip_coefficient,
        anyIf(body.learning_rate::Float64, type = 'OptimizerStepped') AS learning_rate
    FROM (
        SELECT e.run AS run, e.type AS type, e.ns AS ns, e.sequence AS sequence, e.body AS body, z.zero AS zero,
            e.body.step::UInt32 AS step
        FROM events AS e INNER JOIN {ZEROS} AS z ON e.run = z.run
        WHERE e.type IN ('BatchOpened', 'StreamClosed', 'ReductionOpened', 'GradientReduced', 'OptimizerStepped')
    ) GROUP BY run, step HAVING countIf(type = 'OptimizerStepped') > 0
) AS o LEFT JOIN (
    SELECT run, assumeNotNull(groups.step) AS step, count() AS groups, avg(staleness) AS staleness,
        sum(arraySum(rewards)) / nullIf(sum(scored), 0) AS score, countIf(outcome != 'mixed') AS flat
    FROM groups WHERE groups.step IS NOT NULL GROUP BY run, step
) AS g ON o.run = g.run AND o.step = g.step LEFT JOIN (
    SELECT run, step, count() AS executions, countIf(mask = 0) / count() AS masked_share,
        max(max_delta_log_p) AS max_delta_log_p, sum(k3) / sum(targets) AS k3,
        sum(ratio) * sum(ratio) / (count() * sum(ratio * ratio)) AS ess
    FROM trained GROUP BY run, step
) AS s ON o.run = s.run AND o.step = s.step
"""

TRAINING = {
    "roles": _ROLES,
    "micro_steps": _MICRO_STEPS,
    "trained": _STATS,
    "steps": _STEPS,
}
