"""Writes the pages of docs/ that are generated: one for each technique and each rule, their lists, the commands, all
messages, the list of records, and the pictures.

`make docs` runs this file. tests/test_docs.py compares the pages with what this file would write now.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from typer.main import get_command

from hasten.cli import app
from hasten.doctor.registry import EVERY as RULES
from hasten.doctor.registry import SOURCE_RULES, AnyRule
from hasten.facts.finding import Safety, Severity
from hasten.facts.techniques.stage import Stage
from hasten.techniques import ALL, Technique
from messages import page_of_messages
from pictures import pictures
from record_list import page_of_records
from session import TRANSCRIPT, session_svg

DOCS = Path(__file__).resolve().parent.parent / "docs"
FOLDERS = ("reference/techniques", "reference/rules")  # of generated pages alone

APPLIED = {
    Stage.PROCESS: "process settings",
    Stage.DATA: "data loading",
    Stage.MODEL: "model",
    Stage.CLUSTER: "distributed training",
    Stage.OPTIMIZER: "optimizer and schedule",
    Stage.STEP: "training step",
    Stage.EVALUATION: "evaluation",
}

HEADING = re.compile(r"(?<=\n\n)([A-Z][^.:\n]{0,40}:)(?=\s)")  # that begins a paragraph: "When it loses: …"


def pages() -> dict[str, str]:
    """Every generated page, by its path under docs/."""
    techniques = {f"reference/techniques/{technique.name}.md": technique_page(technique) for technique in ALL}
    rules = {f"reference/rules/{rule.name}.md": rule_page(rule) for rule in RULES}
    lists = {
        "reference/techniques/README.md": list_of_techniques(ALL),
        "reference/rules/README.md": list_of_rules(RULES),
    }
    return {
        "reference/commands.md": page_of_commands(),
        "reference/messages.md": page_of_messages(lines_of_commands()),
        "results/records.md": page_of_records(),
        **pictures(),
        "images/session.svg": session_svg(TRANSCRIPT.read_text(encoding="utf-8")),
        **lists,
        **techniques,
        **rules,
    }


def technique_page(technique: Technique) -> str:
    rows = {
        "helps when": technique.treats.value,
        "applies to": APPLIED[technique.stage],
        "values": technique.values,
        "costs": "; ".join(technique.costs),
        "source": technique.source,
    }
    lines = [
        f"<!-- Written by `make docs` from src/hasten/techniques/{technique.name}.py; change that file instead. -->",
        "",
        f"# {technique.name}",
        "",
        as_markdown(technique.manual),
        "",
        *table_of(rows),
    ]
    return "\n".join([*lines, ""])


def list_of_techniques(techniques: tuple[Technique, ...]) -> str:
    """All techniques in the order in which they are applied, each with its headline."""
    lines = [
        "<!-- Written by `make docs` from the files in src/hasten/techniques; change those instead. -->",
        "",
        "# Techniques",
        "",
        "The techniques that a plan can switch on, in the order in which hasten applies them. `hasten explain NAME`",
        "prints the same pages.",
    ]
    for stage in Stage:
        members = sorted((item for item in techniques if item.stage is stage), key=lambda item: item.name)
        if members:
            lines += ["", f"## {APPLIED[stage].capitalize()}", ""]
            lines += [f"* [{item.name}]({item.name}.md): {item.headline}" for item in members]
    return "\n".join([*lines, ""])


def rule_page(rule: AnyRule) -> str:
    only = "; only with an accelerator" if rule.gpu_only else ""
    rows = {"severity": f"{STAKES[rule.severity]}{only}"}
    if rule in SOURCE_RULES:
        rows["automatic fix"] = AUTOMATIC[rule.safety]
    lines = [
        f"<!-- Written by `make docs` from {file_of(rule)}; change that file instead. -->",
        "",
        f"# {rule.code} {rule.name}",
        "",
        as_markdown(rule.manual),
        "",
        *table_of(rows),
        *([f"| technique | [{rule.technique}](../techniques/{rule.technique}.md) |"] if rule.technique else []),
    ]
    return "\n".join([*lines, ""])


def table_of(rows: Mapping[str, str]) -> list[str]:
    return ["| | |", "|---|---|", *(f"| {name} | {as_cell(text)} |" for name, text in rows.items())]


def file_of(rule: AnyRule) -> str:
    return f"src/{rule.check.__module__.replace('.', '/')}.py"


ABOUT = {
    "H1": "Source code: data loading",
    "H2": "Source code: synchronization, copies and memory",
    "H3": "Source code: settings",
    "H4": "Source code: training step and evaluation",
    "H5": "Source code: multiple devices",
    "H6": "Model of a job",
    "H7": "Running steps of a job",
}
AUTOMATIC = {None: "none", Safety.SAFE: "`--fix`", Safety.UNSAFE: "`--fix --unsafe-fixes`"}
STAKES = {
    Severity.FAILS: "fails: the run may end with an error",
    Severity.WRONG: "wrong: training or its results change",
    Severity.COSTLY: "costly: it can take most of every step",
    Severity.SLOW: "slow: it takes a part of every step, or delays every epoch",
    Severity.SLIGHT: "slight: it takes little time",
    Severity.STYLE: "outdated",
}


def list_of_rules(rules: tuple[AnyRule, ...]) -> str:
    """All rules by code, each with its headline."""
    lines = [
        "<!-- Written by `make docs` from the rules of src/hasten/doctor; change those instead. -->",
        "",
        "# Rules",
        "",
        "What `hasten doctor` finds, by code. `hasten explain H205` prints the page of a rule. The options `--select`",
        "and `--ignore` choose rules. A comment silences one on its line: see [doctor](../../guides/doctor.md).",
    ]
    for beginning, about in ABOUT.items():
        members = sorted((rule for rule in rules if rule.code.startswith(beginning)), key=lambda rule: rule.code)
        lines += ["", f"## {about}", ""]
        lines += [f"* [{rule.code}]({rule.name}.md): {rule.headline}" for rule in members]
    return "\n".join([*lines, ""])


def page_of_commands() -> str:
    head = ["<!-- Written by `make docs` from src/hasten/cli; change that instead. -->", "", "# Commands"]
    return "\n".join([*head, *lines_of_commands(), ""])


def lines_of_commands() -> list[str]:
    """Every command with its arguments, options and examples, as its --help has them."""
    program: Any = get_command(app)
    lines: list[str] = []
    for name, command in _each_command(program):
        text, _, examples = command.help.partition("\n\n\b\n")
        lines += ["", f"## hasten {name}", "", text]
        if command.params:
            lines += ["", "| | |", "|---|---|", *map(parameter_row, command.params)]
        commands = [line.strip() for line in examples.splitlines() if line.startswith(" ")]
        lines += ["", "```console", *(f"$ {line}" for line in commands), "```"]
    return lines


def _each_command(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """(name, command) of every command, of one that has commands of its own first itself."""
    for name, command in group.commands.items():
        yield before + name, command
        if hasattr(command, "commands"):
            yield from _each_command(command, f"{before}{name} ")


def parameter_row(parameter: Any) -> str:
    names = [parameter.metavar] if parameter.param_type_name == "argument" else [*parameter.opts, parameter.metavar]
    return f"| `{' '.join(filter(None, names))}` | {as_cell(parameter.help)} |"


def as_markdown(manual: str) -> str:
    """A manual with the heading of each paragraph in bold; the rest of it is Markdown as it stands."""
    return HEADING.sub(r"**\1**", manual)


def as_cell(text: str) -> str:
    """Text that stays text in a table: no bar ends its cell, nothing in it is taken for a tag."""
    return text.replace("|", r"\|").replace("<", "&lt;")


def stale(written: dict[str, str]) -> list[Path]:
    """Pages in the folders of generated pages that nothing writes any more."""
    there = (path for folder in FOLDERS for path in (DOCS / folder).glob("*.md"))
    return sorted(path for path in there if path.relative_to(DOCS).as_posix() not in written)


def main() -> None:
    written = pages()
    for folder in FOLDERS:
        (DOCS / folder).mkdir(parents=True, exist_ok=True)
    for name, text in written.items():
        (DOCS / name).write_text(text, encoding="utf-8")
    for path in stale(written):
        path.unlink()


if __name__ == "__main__":
    main()
