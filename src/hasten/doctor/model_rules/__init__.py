"""What can be found in a job's model: one rule a file, all of them enrolled here."""

from hasten.doctor.model_rules import (
    activations_fill_memory,
    layer_not_used,
    parameter_not_trained,
    sizes_off_the_grid,
    useless_bias,
)
from hasten.doctor.rule import ModelRule

ALL: tuple[ModelRule, ...] = (
    useless_bias.RULE,
    layer_not_used.RULE,
    parameter_not_trained.RULE,
    sizes_off_the_grid.RULE,
    activations_fill_memory.RULE,
)

__all__ = ["ALL"]
