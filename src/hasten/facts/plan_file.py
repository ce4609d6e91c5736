"""A plan as TOML: the file that a tuner writes, training obeys, a person edits and a reviewer diffs.

Reading trusts nothing: a file that is too long, not TOML, newer than this version, or holds an unknown key, a wrong
type, an unknown technique or class of sameness is refused with its line and what to write instead. What is written is
checked by the same rules first, so a plan that this module wrote can always be read.

A plan written by hand may be as short as one [[choice]] with `technique` and `value`. Where it leaves out `preserves`,
the technique's own claim holds, where the choice is one that the technique would propose for the job. Any other choice
counts as "changes training": the weakest claim, since nobody has made a stronger one.
"""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from collections.abc import Collection
from dataclasses import asdict, replace
from typing import Any, cast

import tomlkit
from tomlkit.items import InlineTable

from hasten.errors import PlanError, StorageFailed
from hasten.facts.choice import Choice, Speedup
from hasten.facts.formatting import did_you_mean
from hasten.facts.plan import SCHEMA, Between, Fingerprint, Plan, PlannedChoice, Proof, ProvenOn, Rejected, Total
from hasten.facts.plan_tables import BetweenTable, ChoiceTable, Place, PlanTable, TotalTable, checked_tables
from hasten.facts.toml_lines import line_of, lines_of_tables

LARGEST_BYTES = 1 << 20
MOST_PARTS = 1000  # of a dotted key: what tomllib takes for them grows with their square
_NO_PART_OF_A_KEY = re.compile(r"[^\w\-\"' \t.]")

HEADER = """\
A plan of hasten: the techniques that a job is trained with.

To edit it: change a value, or delete a [[choice]] and the lines below it. A choice can be as short as
    [[choice]]
    technique = "channels_last"
    value = true
`hasten techniques` lists the names; `hasten explain NAME` tells what a technique does and which values it takes.

preserves is what the choice claims to leave as it was, strictest first:
    "bit-exact"             every number
    "equal up to rounding"  every number, but for the order of floating-point sums
    "same statistics"       the course of training, though not its numbers
    "changes training"      none of these
A choice that does not say it makes the technique's own claim, or, with a value of your own, the last of these.
After an edit the evidence below (speedup, proof, [total]) no longer holds until the plan is proven again.
"""


def read_plan(path: str | os.PathLike[str], known_techniques: Collection[str] | None = None) -> Plan:
    """The plan in a file. Raises PlanError when it is no valid plan, StorageFailed when it cannot be read.

    known_techniques: the names that a choice may have; None accepts every name.
    """
    where = os.fspath(path)
    try:
        with open(where, "rb") as file:
            data = file.read(LARGEST_BYTES + 1)
    except FileNotFoundError:
        raise PlanError("there is no such file", where=where, fix="check the path of the plan") from None
    except IsADirectoryError:
        fix = f"name the plan's file, such as {os.path.join(where, 'plan.toml')}"
        raise PlanError("is a folder, and a plan is a file", where=where, fix=fix) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageFailed(f"cannot be read: {reason}", where=where, fix="make the file readable") from error
    if len(data) > LARGEST_BYTES:
        raise PlanError(
            f"is larger than {LARGEST_BYTES:,} bytes, the most that a plan may have",
            where=where,
            fix="check that this file is a plan",
        )
    if not data.strip():
        fix = "write a [[choice]] into it, or train without a plan"
        raise PlanError("is empty, and a plan states something", where=where, fix=fix)
    if b"\0" in data:
        fix = "name a plan's file, such as plan.toml"
        raise PlanError("is not text: it holds binary data", where=where, fix=fix)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise PlanError("is not UTF-8 text", where=f"{where}:{line}", fix="save the file as UTF-8") from None
    return plan_from_toml(text, where, known_techniques)


def plan_from_toml(text: str, where: str = "plan.toml", known_techniques: Collection[str] | None = None) -> Plan:
    """The plan that a TOML text states; PlanError names `where` and the line when it states none."""
    if any(run.count(".") > MOST_PARTS for run in _NO_PART_OF_A_KEY.split(text)):
        fix = "check that this file is a plan"
        raise PlanError(f"holds a name of more than {MOST_PARTS:,} parts", where=where, fix=fix)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _not_toml(text, str(error), where) from None
    except (ValueError, RecursionError):  # a number of thousands of digits; arrays nested thousands deep
        fix = "check that this file is a plan"
        raise PlanError("holds a value too long or too deep for a plan", where=where, fix=fix) from None
    plan = _checked(document, known_techniques, lambda location: f"{where}:{line_of(text, location)}")
    lines = dict(enumerate(lines_of_tables(text, "choice")))
    places = (f"{where}:{lines[index]}" if index in lines else where for index in range(len(plan.choices)))
    choices = (replace(item, place=place) for item, place in zip(plan.choices, places, strict=True))
    return replace(plan, choices=tuple(choices))


def plan_to_toml(plan: Plan) -> str:
    """The plan as TOML, with a comment on top that tells how to edit it.

    Raises PlanError for what no plan file may hold: an infinite or undefined number, or a choice whose text is no
    Unicode. In all other texts question marks stand for what is none.
    """
    document = _as_tables(plan)
    _checked(document, None, lambda location: ".".join(["plan", *map(str, location)]))
    try:
        text = _written(document)
        text.encode()
    except UnicodeEncodeError as error:
        part = ascii(error.object[error.start : error.end])
        raise PlanError(f"text holds {part}, which is no Unicode", where="plan", fix="replace that text") from None
    return text


SEAL = "# hasten tune wrote this plan. Digest of all that stands above: "


def sealed(text: str) -> str:
    """A plan's text with a last line, a comment, by which is_sealed knows it again."""
    text = f"{text.rstrip()}\n"
    return f"{text}\n{SEAL}{_digest(text)}\n"


def is_sealed(text: str) -> bool:
    """Whether the text is one that a search has written, and that nobody has changed since."""
    above, mark, digest = text.replace("\r\n", "\n").rpartition(f"\n{SEAL}")
    return bool(mark) and digest.strip() == _digest(above)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _checked(document: dict[str, Any], known_techniques: Collection[str] | None, place: Place) -> Plan:
    """The facts that tables state. Raises PlanError; `place` tells where a location lies, as people read it."""
    written = document.get("schema", SCHEMA)
    if isinstance(written, int) and written > SCHEMA:
        what = f"was written by a newer hasten: its schema is {written}, the newest known here is {SCHEMA}"
        raise PlanError(what, where=place(("schema",)), fix="pip install --upgrade hasten")
    tables = checked_tables(document, place)
    _check_names(tables, known_techniques, place)
    return Plan(
        schema=tables.schema_,
        job=Fingerprint(**tables.job.model_dump()) if tables.job else None,
        machine=ProvenOn(**tables.machine.model_dump()) if tables.machine else None,
        total=_total(tables.total) if tables.total else None,
        choices=tuple(_planned_choice(table) for table in tables.choice),
        rejected=tuple(Rejected(**table.model_dump()) for table in tables.rejected),
    )


def _total(table: TotalTable) -> Total:
    return Total(
        **table.model_dump(exclude={"baseline_between", "planned_between"}),
        baseline_between=_between(table.baseline_between),
        planned_between=_between(table.planned_between),
    )


def _between(table: BetweenTable | None) -> Between | None:
    return Between(low=table.low, high=table.high) if table else None


def _planned_choice(table: ChoiceTable) -> PlannedChoice:
    return PlannedChoice(
        choice=Choice(technique=table.technique, value=table.value, preserves=table.preserves, options=table.options),
        speedup=Speedup(**table.speedup.model_dump()) if table.speedup else None,
        proof=Proof(**table.proof.model_dump()) if table.proof else None,
    )


def _check_names(tables: PlanTable, known_techniques: Collection[str] | None, place: Place) -> None:
    """Only choices are held against the known names: what was rejected is a record, and is not obeyed."""
    seen: set[str] = set()
    for index, table in enumerate(tables.choice):
        where, name = ("choice", index, "technique"), table.technique
        if known_techniques is not None and name not in known_techniques:
            fix = f"{did_you_mean(name, known_techniques)} `hasten techniques` lists them all"
            raise PlanError(f'"{name}" is no technique', where=place(where), fix=fix)
        if name in seen:
            raise PlanError(
                f'"{name}" is chosen twice', where=place(where), fix="keep one of the two [[choice]] tables"
            )
        seen.add(name)


def _not_toml(text: str, message: str, where: str) -> PlanError:
    """tomllib puts the place into its message, as "… (at line 3, column 8)" or "… (at end of document)"."""
    reason, _, place = message.rpartition(" (at ")
    line = (
        place.removeprefix("line ").partition(",")[0]
        if place.startswith("line ")
        else str(text.rstrip().count("\n") + 1)
    )
    what = f"is not valid TOML: {reason[:1].lower()}{reason[1:]}"
    return PlanError(what, where=f"{where}:{line}", fix="see https://toml.io for how TOML is written")


def _as_tables(plan: Plan) -> dict[str, Any]:
    """The plan as the tables of its file, without the keys whose value is None."""
    tables: dict[str, Any] = {"schema": plan.schema}
    for name, record in (("job", plan.job), ("machine", plan.machine), ("total", plan.total)):
        if record is not None:
            tables[name] = _given(record)
    if plan.choices:
        tables["choice"] = [_choice_table(item) for item in plan.choices]
    if plan.rejected:
        tables["rejected"] = [_given(item) for item in plan.rejected]
    return tables


def _choice_table(item: PlannedChoice) -> dict[str, Any]:
    table: dict[str, Any] = {
        "technique": item.choice.technique,
        "value": item.choice.value,
    }
    if item.choice.preserves is not None:
        table["preserves"] = item.choice.preserves.words
    if item.choice.options:
        table["options"] = dict(item.choice.options)
    if item.speedup is not None:
        table["speedup"] = _given(item.speedup)
    if item.proof is not None:
        table["proof"] = _given(item.proof)
    return table


def _given(record: Fingerprint | ProvenOn | Total | Speedup | Proof | Rejected) -> dict[str, Any]:
    """None of it is obeyed, so what is no Unicode in its texts, as in the path of a file, becomes question marks."""
    given = {key: value for key, value in asdict(record).items() if value is not None}
    return {
        key: value.encode(errors="replace").decode() if isinstance(value, str) else value
        for key, value in given.items()
    }


def _written(tables: dict[str, Any]) -> str:
    document = tomlkit.document()
    for line in HEADER.splitlines():
        document.add(tomlkit.comment(line))
    document.add(tomlkit.nl())
    for key, value in tables.items():
        document.add(key, tomlkit.item(_as_blocks(value)))
    return tomlkit.dumps(document)


def _as_blocks(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_block(row) for row in cast("list[Any]", value)]
    return _as_block(cast("dict[str, Any]", value)) if isinstance(value, dict) else value


def _as_block(row: dict[str, Any]) -> dict[str, Any]:
    """The row with each table inside it on one line, so that a choice and its evidence read as one block."""
    return {key: _on_one_line(cast("Any", value)) if isinstance(value, dict) else value for key, value in row.items()}


def _on_one_line(values: dict[str, Any]) -> InlineTable:
    table = tomlkit.inline_table()
    for key, value in values.items():
        table.add(key, value)
    return table
