"""Fields of events that have a column of their own, so that asking about them parses no JSON.

A column is named as the field is, where the envelope has no such name. Fields of one name have one type, whatever event
they belong to; an event that has no such field has NULL or its type's zero. Whatever is not here is in `body`.
"""

from collections.abc import Mapping

_NAMES: Mapping[str, str] = {
    "LowCardinality(String)": "task reason stage kind finish to phase fallback thread runner",
    "String": "execution group call assessment evaluation transition detail",
    "UInt32": "version executions step micro_step cell from_cell to_cell attempt nodes valid reissue epoch",
    "UInt64": (
        "targets input_tokens output_tokens prefix_tokens cached_tokens context_tokens tokens resident_bytes "
        "requests capacity claim kept_tokens"
    ),
    "Int32": "staleness",
    "Float64": (
        "seconds advantage queue_seconds engine_seconds total_seconds mean loss gradient_norm clip_coefficient "
        "learning_rate"
    ),
    "Bool": "placeholder delivered designated retained",
    "Nullable(Int32)": "exit_code",
    "Nullable(Float64)": "reward score setup_seconds",
    "Nullable(String)": "parent branch",
    "Array(UInt32)": "cells members",
    "Array(String)": "tools",
    "Array(Nullable(Float64))": "scores",
    "Tuple(temperature Float64)": "sampling",
    "Tuple(evaluator String, model String)": "provenance",
    "Array(Tuple(version UInt32, tokens UInt32))": "versions",
    "Array(Tuple(role String, tokens UInt64, targets UInt64))": "leaves",
    "Array(Tuple(standing String, reward Nullable(Float64)))": "outcomes",
    "Array(Tuple(claim UInt64))": "contributions",
    (
        "Array(Tuple(execution String, targets UInt64, ratio Float64, mask UInt8, loss Float64, "
        "max_delta_log_p Float64, k3 Float64, moments Tuple("
        "sum_rollout Float64, sum_train Float64, sum_rollout_squared Float64, sum_train_squared Float64, "
        "sum_product Float64)))"
    ): "stats",
}  # fmt: skip
"""Type -> names of fields."""

_RENAMED = {"place": ("index", "UInt32"), "holder": ("instance", "String")}
"""Column -> the field, whose name the envelope has too, and its type."""

FIELDS: Mapping[str, tuple[str, str]] = {
    **{name: (name, kind) for kind, names in _NAMES.items() for name in names.split()},
    **_RENAMED,
}
"""Column -> (field, type)."""

_PARSED = "JSONExtract(text, 'Tuple({})')".format(", ".join(f"`{field}` {kind}" for field, kind in FIELDS.values()))
"""SQL for all of them at once: it stands in each column's default, and an engine computes it once for a block."""

COLUMNS = {
    column: f"{kind} MATERIALIZED tupleElement({_PARSED}, '{field}')" for column, (field, kind) in FIELDS.items()
}
"""Column -> its type and where it comes from."""
