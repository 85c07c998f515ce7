"""Views of what trains: the cells' roles, micro-steps, optimizer steps."""

from gyre.warehouse.views_rollout import timed

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
                SELECT e.run AS run, toString(e.type) AS type, least(e.ns, z.latest) AS ns, e.sequence AS sequence,
                    e.index AS place, z.zero AS zero, z.latest AS latest, e.cell AS cell,
                    e.holder AS instance, toString(e.to) AS to,
                    if(type = 'RoleTransitionRequested', toNullable(to), NULL) AS asked,
                    if(type = 'CellRegistered', toNullable(instance), NULL) AS came
                FROM {timed(
                    "CellRegistered", "CellLost", "RoleTransitionRequested", "RoleTransitionCompleted",
                    "RoleTransitionFailed",
                )}
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
"""  # fmt: skip
"""Only the process that holds a cell changes what the cell is, and one that is lost no more."""

_MICRO_STEPS = f"""
SELECT e.run AS run, e.step AS step, e.micro_step AS micro_step,
    anyIf(e.kind, type = 'MicroStepEnqueued') AS kind,
    anyIf(e.tokens, type = 'MicroStepEnqueued') AS tokens,
    minOrNullIf((ns - zero) / 1e9, type = 'MicroStepEnqueued') AS enqueued_at,
    minOrNullIf((ns - zero) / 1e9, type = 'MicroStepClaimed') AS claimed_at,
    maxOrNullIf((ns - zero) / 1e9, type = 'MicroStepCompleted') AS completed_at,
    claimed_at - enqueued_at AS waiting_seconds,
    argMaxOrNullIf(e.seconds, sequence, type = 'MicroStepCompleted') AS seconds,
    argMaxOrNullIf(e.cell, sequence, type = 'MicroStepCompleted') AS cell,
    countIf(type = 'MicroStepClaimed') AS claims, countIf(type = 'MicroStepReissued') AS reissues,
    groupUniqArrayIf(e.cell, type = 'MicroStepClaimed') AS cells
FROM {timed("MicroStepEnqueued", "MicroStepClaimed", "MicroStepCompleted", "MicroStepReissued")}
GROUP BY run, step, micro_step
"""

_TRAINED = """
SELECT run, step, execution, max(each.ratio) AS ratio, min(each.mask) AS mask, sum(each.targets) AS targets,
    sum(each.loss) AS loss, max(each.max_delta_log_p) AS max_delta_log_p, sum(each.k3) AS k3,
    sumIf(each.targets, each.moments.sum_rollout_squared > 0) AS n, sum(each.moments.sum_rollout) AS sum_rollout,
    sum(each.moments.sum_train) AS sum_train, sum(each.moments.sum_rollout_squared) AS sum_rollout_squared,
    sum(each.moments.sum_train_squared) AS sum_train_squared, sum(each.moments.sum_product) AS sum_product
FROM (
    SELECT run, step, each, each.execution AS execution FROM (
        SELECT run, step, argMax(stats, sequence) AS kept FROM facts WHERE type = 'MicroStepCompleted'
        GROUP BY run, step, micro_step
    ) ARRAY JOIN kept AS each
) GROUP BY run, step, execution
"""

_PEARSON = """(sum(n) * sum(sum_product) - sum(sum_rollout) * sum(sum_train)) / nullIf(
        sqrt(greatest(0, sum(n) * sum(sum_rollout_squared) - pow(sum(sum_rollout), 2)))
        * sqrt(greatest(0, sum(n) * sum(sum_train_squared) - pow(sum(sum_train), 2))), 0)"""
"""Of rollout and training log-probabilities over a step's targets; NULL where they do not vary or were not summed."""

_STEPS = f"""
SELECT o.run AS run, o.step AS step, o.version AS version, o.opened_at AS opened_at, o.closed_at AS closed_at,
    o.reduced_at AS reduced_at, o.updated_at AS updated_at,
    o.updated_at - lagInFrame(o.updated_at, 1, 0) OVER (PARTITION BY o.run ORDER BY o.step
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS seconds,
    o.updated_at - o.opened_at AS open_seconds, o.members AS members, o.micro_steps AS micro_steps, o.loss AS loss,
    o.gradient_norm AS gradient_norm, o.clip_coefficient AS clip_coefficient, o.learning_rate AS learning_rate,
    g.groups AS groups, g.staleness AS staleness, g.score AS score, g.flat AS flat_groups,
    s.executions AS trained, s.masked_share AS masked_share, s.max_delta_log_p AS max_delta_log_p, s.k3 AS k3,
    s.ess AS ess, s.pearson AS pearson
FROM (
    SELECT e.run AS run, e.step AS step, anyIf(e.version, type = 'OptimizerStepped') AS version,
        minOrNullIf((ns - zero) / 1e9, type = 'BatchOpened') AS opened_at,
        minOrNullIf((ns - zero) / 1e9, type = 'StreamClosed') AS closed_at,
        minOrNullIf((ns - zero) / 1e9, type = 'GradientReduced') AS reduced_at,
        minIf((ns - zero) / 1e9, type = 'OptimizerStepped') AS updated_at,
        argMaxOrNullIf(length(e.members), sequence, type = 'ReductionOpened') AS members,
        argMaxOrNullIf(length(e.contributions), sequence, type = 'ReductionOpened') AS micro_steps,
        anyIf(e.loss, type = 'OptimizerStepped') AS loss,
        anyIf(e.gradient_norm, type = 'OptimizerStepped') AS gradient_norm,
        anyIf(e.clip_coefficient, type = 'OptimizerStepped') AS clip_coefficient,
        anyIf(e.learning_rate, type = 'OptimizerStepped') AS learning_rate
    FROM {timed("BatchOpened", "StreamClosed", "ReductionOpened", "GradientReduced", "OptimizerStepped")}
    GROUP BY run, step HAVING countIf(type = 'OptimizerStepped') > 0
) AS o LEFT JOIN (
    SELECT run, assumeNotNull(groups.step) AS step, count() AS groups, toNullable(avg(staleness)) AS staleness,
        sum(arraySum(rewards)) / nullIf(sum(scored), 0) AS score, countIf(outcome != 'mixed') AS flat
    FROM groups WHERE groups.step IS NOT NULL GROUP BY run, step
) AS g ON o.run = g.run AND o.step = g.step LEFT JOIN (
    SELECT run, step, count() AS executions, toNullable(countIf(mask = 0) / count()) AS masked_share,
        toNullable(max(max_delta_log_p)) AS max_delta_log_p, sum(k3) / nullIf(sum(targets), 0) AS k3,
        sum(ratio) * sum(ratio) / nullIf(count() * sum(ratio * ratio), 0) AS ess, {_PEARSON} AS pearson
    FROM trained GROUP BY run, step
) AS s ON o.run = s.run AND o.step = s.step
"""

TRAINING = {
    "roles": _ROLES,
    "micro_steps": _MICRO_STEPS,
    "trained": _TRAINED,
    "steps": _STEPS,
}
