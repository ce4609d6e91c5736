"""What can be found in a source file: one rule a file, which ends in a RULE. All are enrolled here, by code."""

from importlib import import_module
from pkgutil import iter_modules

from hasten.doctor.rule import SourceRule

_FILES = [import_module(f"{__name__}.{each.name}") for each in iter_modules(__path__)]
_RULES: list[SourceRule] = [file.RULE for file in _FILES if hasattr(file, "RULE")]
ALL = tuple(sorted(_RULES, key=lambda rule: rule.code))

__all__ = ["ALL"]
