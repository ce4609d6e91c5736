"""A plan as TOML: the file that `hasten tune` writes, training follows, a person edits and a reviewer diffs.

Reading trusts nothing: a file that is too long, not TOML, newer than this version, or that holds an unknown key, a
wrong type, an unknown technique or class of sameness is refused with its line and what to write instead. The same rules
are checked before a plan is written.

A plan written by hand may be as short as one [[choice]] with `technique` and `value`. Without `preserves`, the
technique's own claim holds if the technique would propose this choice for the job. Any other choice counts as "changes
training", the weakest claim.
"""

from __future__ import annotations

import hashlib
import os
import re
import reprlib
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

import tomlkit
from tomlkit.items import InlineTable, String, StringType, Trivia

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves, Value
from hasten.facts.formatting import did_you_mean
from hasten.facts.plan import SCHEMA, Fingerprint, Plan, PlannedChoice, Proof, ProvenOn, Rejected, Speedup, Total
from hasten.facts.record_reading import Location, WrongValue, read_record, toml_document
from hasten.facts.scripts.script_places import ScriptPlaces
from hasten.facts.trials import NO_GAIN_ALONE, is_gain
from hasten.regular_files import read_regular, unreadable

Place = Callable[[Location], str]  # a location as people read it: file and line

LARGEST_BYTES = 1 << 20
MOST_CHOICES = 200
LONGEST_LINE = 100  # of a text
_WORD = re.compile("[^ ]+ *")  # with the blanks behind it
_HEADER = re.compile(r"\s*(\[\[?)([^\[\]]+)\]")
_KEY = re.compile(r"\s*[\"']?([\w-]+)[\"']?\s*[=.]")

HEADER = """\
A plan of hasten: the techniques that a job is trained with.

To edit it: change a value, or delete a [[choice]] and the lines below it. A choice can be as short as
    [[choice]]
    technique = "channels_last"
    value = true
`hasten techniques` lists the names; `hasten explain NAME` says what a technique does and which values it takes.

preserves is what the choice claims to leave unchanged, strictest first:
    "bit-exact"             every number
    "equal up to rounding"  every number, but for the order of floating-point sums
    "same statistics"       the course of training, though not its numbers
    "changes training"      none of these
Without it, a choice makes the technique's own claim; with a value of your own, the last of these.
After an edit the evidence below (speedup, proof, [total]) no longer holds until the plan is proven again.
"""


def read_plan(path: str | os.PathLike[str], known_techniques: Collection[str] | None = None) -> Plan:
    """The plan in a file. Raises PlanError when it is no valid plan, StorageFailed when it cannot be read.

    known_techniques: the names that a choice may have; None accepts every name.
    """
    where = os.fspath(path)
    try:
        data = read_regular(where, LARGEST_BYTES + 1)
    except FileNotFoundError:
        raise PlanError("there is no such file", where=where, fix="check the path of the plan") from None
    except IsADirectoryError:
        fix = f"name the plan's file, such as {os.path.join(where, 'plan.toml')}"
        raise PlanError("is a folder, not a plan file", where=where, fix=fix) from None
    except OSError as error:
        raise unreadable(where, error) from error
    if len(data) > LARGEST_BYTES:
        what = f"is larger than {LARGEST_BYTES:,} bytes, the limit for a plan"
        raise PlanError(what, where=where, fix="check that this file is a plan")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise PlanError("is not UTF-8 text", where=f"{where}:{line}", fix="save the file as UTF-8") from None
    return plan_from_toml(text, where, known_techniques)


def plan_from_toml(text: str, where: str = "plan.toml", known_techniques: Collection[str] | None = None) -> Plan:
    """The plan that a TOML text states; PlanError names `where` and the line when it states none."""
    try:
        document = toml_document(text)
    except tomllib.TOMLDecodeError as error:
        raise _not_toml(text, str(error), where) from None
    except (ValueError, RecursionError):  # a number of thousands of digits; arrays nested thousands deep
        fix = "check that this file is a plan"
        raise PlanError("holds a value that is too long or too deeply nested", where=where, fix=fix) from None
    lines = _lines_of(text)

    def place(location: Location) -> str:
        while location and location not in lines:  # the line of the innermost part that is there
            location = location[:-1]
        return f"{where}:{lines.get(location, 1)}"

    plan = _checked(document, known_techniques, place)
    choices = (replace(item, place=place(("choice", index))) for index, item in enumerate(plan.choices))
    return replace(plan, choices=tuple(choices))


def plan_to_toml(plan: Plan) -> str:
    """The plan as TOML, with a comment that explains how to edit it. Question marks replace what is no Unicode.

    Raises PlanError for a number that is not finite.
    """
    document = _as_tables(plan)
    _checked(document, None, lambda location: ".".join(["plan", *map(str, location)]))
    return _written(document, _notes(plan)).encode(errors="replace").decode()


SEAL = "# hasten tune wrote this plan. Digest of all that stands above: "


def sealed(text: str) -> str:
    """The plan's text with its digest in a last line, a comment."""
    text = f"{text.rstrip()}\n"
    return f"{text}\n{SEAL}{_digest(text)}\n"


def is_sealed(text: str) -> bool:
    """Whether a search wrote this text, and nobody has changed it since."""
    above, mark, digest = text.replace("\r\n", "\n").rpartition(f"\n{SEAL}")
    return bool(mark) and digest.strip() == _digest(above)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True, slots=True)
class _ChoiceTable:
    """A choice and its evidence, which are one table in the file."""

    technique: str
    value: Value
    preserves: str | None = None
    options: Mapping[str, Value] = field(default_factory=dict[str, Value])
    speedup: Speedup | None = None
    proof: Proof | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _PlanTables:
    schema: int = SCHEMA
    job: Fingerprint | None = None
    machine: ProvenOn | None = None
    total: Total | None = None
    choice: tuple[_ChoiceTable, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    not_tried: Mapping[str, str] = field(default_factory=dict[str, str])
    script: ScriptPlaces | None = None


def _checked(document: dict[str, Any], known_techniques: Collection[str] | None, place: Place) -> Plan:
    """The plan that the tables of a document state. Raises PlanError, with the place of what is wrong."""
    try:
        tables = read_record(_PlanTables, document)
        if tables.schema != SCHEMA:
            raise WrongValue(("schema",), f'"schema" is {tables.schema}', f"write {SCHEMA}")
        _check_names(tables.choice, known_techniques)
        return Plan(
            schema=tables.schema,
            job=tables.job,
            machine=tables.machine,
            total=tables.total,
            choices=tuple(_planned_choice(table, index) for index, table in enumerate(tables.choice)),
            rejected=tables.rejected,
            not_tried=tables.not_tried,
            script=tables.script,
        )
    except WrongValue as error:
        written = document.get("schema", SCHEMA)
        if isinstance(written, int) and SCHEMA < written < 1 << 64:  # its other keys may be new ones
            what = f"was written by a newer hasten: its schema is {written}, this version reads up to {SCHEMA}"
            raise PlanError(what, where=place(("schema",)), fix="pip install --upgrade hasten") from None
        raise PlanError(error.what, where=place(error.location), fix=error.fix) from None


def _check_names(choices: tuple[_ChoiceTable, ...], known_techniques: Collection[str] | None) -> None:
    """Only choices are checked against the known names: what was rejected has no effect."""
    if len(choices) > MOST_CHOICES:  # there are fewer techniques
        what = f"the plan has {len(choices):,} choices, and {MOST_CHOICES} are the most"
        raise WrongValue(("choice", MOST_CHOICES), what, "delete what is no technique's")
    seen = set[str]()
    for index, table in enumerate(choices):
        location, name = ("choice", index, "technique"), table.technique
        if known_techniques is not None and name not in known_techniques:
            fix = f"{did_you_mean(name, known_techniques)} `hasten techniques` lists them all"
            raise WrongValue(location, f'"{name}" is not a technique', fix)
        if name in seen:
            raise WrongValue(location, f'"{name}" is chosen twice', "keep one of the two [[choice]] tables")
        seen.add(name)


def _planned_choice(table: _ChoiceTable, index: int) -> PlannedChoice:
    preserves, proof = None, table.proof
    if table.preserves is not None:
        try:
            preserves = Preserves.from_words(table.preserves)
        except ValueError:
            fix = did_you_mean(table.preserves, [member.words for member in Preserves])
            what = f'"preserves" is {reprlib.repr(table.preserves)}, which is not a valid value'
            raise WrongValue(("choice", index, "preserves"), what, fix) from None
    if proof is not None and (
        (proof.gradient_error is None) != (proof.bound is None) or (proof.bound is None) == (proof.losses is None)
    ):
        what = '"proof" is neither a proof by gradients nor one by losses'
        raise WrongValue(("choice", index, "proof"), what, "write gradient_error with its bound, or losses")
    choice = Choice(technique=table.technique, value=table.value, preserves=preserves, options=table.options)
    return PlannedChoice(choice=choice, speedup=table.speedup, proof=proof)


def _not_toml(text: str, message: str, where: str) -> PlanError:
    """tomllib's message ends with the place: "… (at line 3, column 8)" or "… (at end of document)"."""
    reason, _, place = message.rpartition(" (at ")
    line = place.removeprefix("line ").partition(",")[0]
    line = line if line.isdecimal() else str(text.rstrip().count("\n") + 1)
    what = f"is not valid TOML: {reason[:1].lower()}{reason[1:]}"
    return PlanError(what, where=f"{where}:{line}", fix="see https://toml.io for the syntax")


def _lines_of(text: str) -> dict[Location, int]:
    """The line, counted from 1, of each table and of the keys that begin a line, by location.

    A parser returns values without their places, so lines are read as a person scans them: what looks like a header
    inside a text of several lines is taken for one.
    """
    lines, table, counts = dict[Location, int](), Location(), Counter[str]()
    for number, line in enumerate(text.split("\n"), start=1):
        if header := _HEADER.match(line):
            outer, *inner = (part.strip(" \"'") for part in header[2].split("."))
            if header[1] == "[[":  # it adds a table to an array
                counts[outer] += 1
            table = (outer, counts[outer] - 1, *inner) if counts[outer] else (outer, *inner)
            lines.setdefault(table, number)
        elif key := _KEY.match(line):
            lines.setdefault((*table, key[1]), number)
    return lines


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
    if plan.not_tried:
        tables["not_tried"] = dict(plan.not_tried)
    if plan.script is not None:
        tables["script"] = _with_lists(_given(plan.script))
    return tables


def _with_lists(value: Any) -> Any:
    """TOML has no tuples."""
    if isinstance(value, dict):
        return {name: _with_lists(each) for name, each in cast("dict[str, Any]", value).items()}
    return [*map(_with_lists, cast("tuple[Any, ...]", value))] if isinstance(value, tuple) else value


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


def _given(record: Fingerprint | ProvenOn | Total | Speedup | Proof | Rejected | ScriptPlaces) -> dict[str, Any]:
    """Without None."""
    return {key: value for key, value in asdict(record).items() if value is not None}


def _notes(plan: Plan) -> list[str]:
    """A comment on each choice; empty for none."""
    idle = (plan.total and each.speedup and not is_gain(each.speedup) for each in plan.choices)
    return [NO_GAIN_ALONE if each else "" for each in idle]


def _written(tables: dict[str, Any], notes: list[str]) -> str:
    document = tomlkit.document()
    for line in HEADER.splitlines():
        document.add(tomlkit.comment(line))
    document.add(tomlkit.nl())
    for key, value in tables.items():
        blocks = cast("Any", tomlkit.item(_as_blocks(value)))
        document.add(key, blocks)
        for block, note in zip(blocks, notes, strict=True) if key == "choice" else ():
            if note:
                block.comment(note)
    return tomlkit.dumps(document)


def _as_blocks(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_block(row) for row in cast("list[Any]", value)]
    return _as_block(cast("dict[str, Any]", value)) if isinstance(value, dict) else value


def _as_block(row: dict[str, Any]) -> dict[str, Any]:
    """The row with each inner table on one line, so that a choice and its evidence read as one block. Only a long text
    continues on further lines."""
    return {
        key: _on_one_line(cast("Any", value)) if isinstance(value, dict) else _wrapped(value)
        for key, value in row.items()
    }


def _on_one_line(values: dict[str, Any]) -> InlineTable:
    table = tomlkit.inline_table()
    for key, value in values.items():
        table.add(key, _wrapped(value))
    return table


def _wrapped(value: Any) -> Any:
    """A text of more than a line as TOML's text of several lines, each but the last one ending with a backslash."""
    if not isinstance(value, str) or len(value) <= LONGEST_LINE or " " not in value or value[0] == " ":
        return value
    lines = [""]
    for word in _WORD.findall(tomlkit.string(value).as_string()[1:-1]):
        if lines[-1] and len(lines[-1]) + len(word) > LONGEST_LINE:
            lines.append("")
        lines[-1] += word
    return String(StringType.MLB, value, "".join(f"\\\n    {line}" for line in lines), Trivia())
