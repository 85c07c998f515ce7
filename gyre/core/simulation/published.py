"""What the paper measured: numbers to compare a simulation with (QwenGyre, arXiv 2609.33848, §6)."""

from collections.abc import Mapping

from gyre.core.plan import Kind

TABLE1_STEPS = 12
TABLE1_HOURS: Mapping[str, float] = {
    "A0": 25.08,
    "A1": 27.01,
    "A2": 32.58,
    "A3": 22.18,
    "C0": 23.23,
    "C1": 22.56,
    "C2": 19.23,
    "C3": 20.69,
    "E0": 16.12,
    "E1": 17.87,
    "E2": 16.47,
}
"""Table 1: hours for the first 12 training steps on NL2RepoBench with Qwen 3.6 122B at E[d] = 1.5."""

Speedups = Mapping[tuple[str, float], Mapping[Kind, Mapping[int, float]]]
"""(dataset, E[d]) -> baseline -> training step -> its cumulative time over QwenGyre's."""

FIGURE7: Speedups = {
    ("NL2RepoBench", 1.0): {
        "async": {12: 1.576, 24: 1.554, 36: 1.541, 48: 1.528},
        "colocate": {12: 1.357, 24: 1.390, 36: 1.390, 48: 1.361},
    },
    ("NL2RepoBench", 1.5): {
        "async": {12: 1.556, 24: 1.503, 36: 1.467, 48: 1.423},
        "colocate": {12: 1.442, 24: 1.462, 36: 1.455, 48: 1.475},
    },
}
"""Figure 7 (c, d), 48 steps."""

TABLE2: Speedups = {
    ("DeepSWE", 1.0): {"async": {24: 1.569}, "colocate": {24: 1.610}},
    ("DeepSWE", 1.5): {"async": {24: 1.572}, "colocate": {24: 1.824}},
    ("TerminalBench", 1.0): {"async": {24: 1.383}, "colocate": {24: 1.809}},
    ("TerminalBench", 1.5): {"async": {24: 1.430}, "colocate": {24: 1.849}},
}
"""Table 2, 24 steps."""
