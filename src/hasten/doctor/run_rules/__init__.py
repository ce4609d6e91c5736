"""What can be found in a running job: one rule a file, which ends in a RULE. All are enrolled here, by code."""

from hasten.doctor.rule import RunRule, enrolled

ALL: tuple[RunRule, ...] = enrolled(__name__, __path__)

__all__ = ["ALL"]
