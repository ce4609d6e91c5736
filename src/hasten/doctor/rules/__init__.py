"""What can be found in a source file: one rule a file, all of them enrolled here."""

from hasten.doctor.contract import Rule
from hasten.doctor.rules import (
    anomaly_detection,
    cache_emptied,
    data_parallel,
    gradients_zeroed,
    graph_kept,
    read_every_step,
)

ALL: tuple[Rule, ...] = (
    read_every_step.RULE,
    graph_kept.RULE,
    cache_emptied.RULE,
    gradients_zeroed.RULE,
    anomaly_detection.RULE,
    data_parallel.RULE,
)

__all__ = ["ALL", "Rule"]
