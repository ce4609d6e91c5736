"""The shape of a plan's TOML: its tables, their keys and types, and how a wrong one is refused.

The shape is written out apart from the facts: a file outlives the version that wrote it, so a fact may change its
fields without changing what old files mean. One difference is there already: a choice and its evidence are one table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from hasten.errors import PlanError
from hasten.facts.choice import Preserves, Value
from hasten.facts.formatting import did_you_mean
from hasten.facts.plan import SCHEMA

Location = tuple[str | int, ...]
Place = Callable[[Location], str]  # a location as people read it: file and line


def checked_tables(document: dict[str, Any], place: Place) -> PlanTable:
    """The document, if it has the shape of a plan; PlanError otherwise."""
    try:
        return PlanTable.model_validate(document)
    except ValidationError as error:
        raise _refusal(error, place) from None


def _value(value: Any) -> Value:
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return [_scalar(item) for item in items]
    return _scalar(value)


def _scalar(value: Any) -> str | bool | int | float:
    if isinstance(value, float) and not math.isfinite(value):
        raise PydanticCustomError("value", "is {number}", {"number": value, "fix": "write a finite number"})
    if isinstance(value, str | bool | int | float):
        return value
    kind = type(cast("object", value)).__name__
    raise PydanticCustomError("value", "is a {kind}", {"kind": kind, "fix": "write text, true, false or a number"})


def _preserves(words: Any) -> Preserves:
    known = [member.words for member in Preserves]
    if words in known:
        return Preserves.from_words(words)
    fix = did_you_mean(str(words), known)
    raise PydanticCustomError("preserves", "is {was}, which is no class of sameness", {"was": repr(words), "fix": fix})


_Value = Annotated[Any, PlainValidator(_value)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class JobTable(_Table):
    source: str
    parameters: int
    shapes: str
    batch_size: int
    samples: int | None = None


class MachineTable(_Table):
    cores: int
    memory_bytes: int
    accelerator: str | None = None
    torch: str


class BetweenTable(_Table):
    low: float
    high: float

    @model_validator(mode="after")
    def _in_order(self) -> BetweenTable:
        if self.low > self.high:
            raise PydanticCustomError(
                "between", "has its ends the wrong way round", {"fix": "write the lower one as low"}
            )
        return self


class TotalTable(_Table):
    baseline_seconds: float
    planned_seconds: float
    one_off_seconds: float
    break_even_step: int | None = None
    baseline_between: BetweenTable | None = None
    planned_between: BetweenTable | None = None
    process_seconds: float = 0.0


class SpeedupTable(_Table):
    ratio: float
    low: float
    high: float
    pairs: int


class ProofTable(_Table):
    """By gradients, or by losses."""

    gradient_error: float | None = None
    bound: float | None = None
    losses: str | None = None

    @model_validator(mode="after")
    def _whole(self) -> ProofTable:
        if (self.gradient_error is None) != (self.bound is None) or (self.bound is None) == (self.losses is None):
            fix = "write gradient_error with its bound, or losses"
            raise PydanticCustomError("proof", "is neither a proof by gradients nor one by losses", {"fix": fix})
        return self


class ChoiceTable(_Table):
    technique: str
    value: _Value
    preserves: Annotated[Any, PlainValidator(_preserves)] = None
    options: dict[str, _Value] = {}
    speedup: SpeedupTable | None = None
    proof: ProofTable | None = None


class RejectedTable(_Table):
    technique: str
    reason: str
    value: _Value = None


class PlanTable(_Table):
    schema_: int = Field(SCHEMA, alias="schema", ge=1)
    job: JobTable | None = None
    machine: MachineTable | None = None
    total: TotalTable | None = None
    choice: list[ChoiceTable] = []
    rejected: list[RejectedTable] = []


_TABLES: dict[str, type[_Table]] = {
    "": PlanTable,
    "job": JobTable,
    "machine": MachineTable,
    "total": TotalTable,
    "baseline_between": BetweenTable,
    "planned_between": BetweenTable,
    "choice": ChoiceTable,
    "speedup": SpeedupTable,
    "proof": ProofTable,
    "rejected": RejectedTable,
}


def _refusal(error: ValidationError, place: Place) -> PlanError:
    found = error.errors(include_url=False)
    more = f" ({len(found) - 1} more after this one)" if len(found) > 1 else ""
    first = found[0]
    location = first["loc"]
    what, fix = _explained(first["type"], location, first["msg"], first.get("ctx", {}), first["input"])
    return PlanError(what + more, where=place(location), fix=fix)


_EXPECTED = {
    "string_type": 'text in quotes: "…"',
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "list_type": "an array of tables: one header in double brackets, [[…]], for each",
    "model_type": "a table",
    "dict_type": "a table",
}


def _explained(kind: str, location: Location, message: str, context: dict[str, Any], was: Any) -> tuple[str, str]:
    """What is wrong at a location, and what to write there instead."""
    keys = [step for step in location if isinstance(step, str)]
    key, table = keys[-1], keys[-2] if len(keys) > 1 else ""
    if kind == "extra_forbidden":
        return f'"{key}" is no key of {_titled(table)}', did_you_mean(key, _keys_of(table))
    if kind == "missing":
        return f'{_titled(table)} lacks "{key}"', f"add {key} = …, or see the comment that a written plan begins with"
    if "fix" in context:
        return f'"{key}" {message}', str(context["fix"])
    shown = repr(was)
    shown = shown if len(shown) <= 60 else f"{shown[:59]}…"
    return f'"{key}" is {shown}', f"write {_EXPECTED[kind]}" if kind in _EXPECTED else message


def _keys_of(table: str) -> list[str]:
    return [field.alias or name for name, field in _TABLES[table].model_fields.items()]


def _titled(table: str) -> str:
    if table == "":
        return "a plan"
    return f"[[{table}]]" if table in ("choice", "rejected") else f"[{table}]"
