"""What can be found in a job's model: one rule a file, which ends in a RULE. All are enrolled here, by code."""

from hasten.doctor.rule import ModelRule, enrolled

ALL: tuple[ModelRule, ...] = enrolled(__name__, __path__)

__all__ = ["ALL"]
