"""What can be found in a source file: one rule a file, which ends in a RULE. All are enrolled here, by code."""

from hasten.doctor.rule import SourceRule, enrolled

ALL: tuple[SourceRule, ...] = enrolled(__name__, __path__)

__all__ = ["ALL"]
