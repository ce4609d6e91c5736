"""What a command shows, by the design in output.py and by its options --quiet and --json."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from typing import Any, Self

from hasten.facts.formatting import as_json as json_value
from hasten.report.sentence import Sentence
from hasten.report.terminal.output import LABEL, Lines, Output, write_line
from hasten.report.terminal.progress_bar import ProgressBar


class CommandOutput:
    """The body of a command runs inside.

    quiet: without header and progress. as_json: one JSON object in place of all that is on standard output; what the
    job itself prints then goes to standard error. label_columns: that a label takes at least.
    """

    def __init__(self, *, quiet: bool = False, as_json: bool = False, label_columns: int = LABEL) -> None:
        self.quiet, self.as_json = quiet, as_json
        self._people = Output(sys.stdout, label_columns)
        self._answer = ""
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if self.as_json:
            self._stack.enter_context(_stdout_to_stderr())
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        if self._answer:
            write_line(sys.stdout, self._answer)

    def header(self, title: str) -> None:
        """What the command does, and on which job or file."""
        if not self.quiet and not self.as_json:
            self._people.titled(title, [])

    def machine(self, summary: str) -> None:
        """On which machine: the second line of the header."""
        if not self.quiet and not self.as_json:
            self._people.note("machine", summary)

    def progress(self, what: str) -> ProgressBar:
        return ProgressBar(what, is_shown=not self.quiet)

    def facts(self, title: str, lines: Lines) -> None:
        """Labelled texts in front of the result."""
        if not self.as_json:
            self._people.titled(title, lines)

    def text(self, text: str) -> None:
        """Of lines that are laid out already."""
        if not self.as_json:
            for line in text.split("\n"):
                write_line(sys.stdout, line)

    def table(self, rows: Sequence[str]) -> None:
        """A table or a chart, below an empty line."""
        self.text("\n".join(["", *(f"  {row}".rstrip() for row in rows)]))

    def result(self, sentence: Sentence, facts: Lines, following: str, answer: Mapping[str, Any]) -> None:
        """facts: for people, below the sentence. following: the command to run next. answer: fields of the object."""
        if self.as_json:
            self._answer_with(sentence, following, answer)
        else:
            self._people.result(sentence, facts, following)

    def end_of_page(self, sentence: Sentence, facts: Lines, following: str, answer: Mapping[str, Any]) -> None:
        """The result of a page that begins with the sentence: people do not read it again."""
        if self.as_json:
            self._answer_with(sentence, following, answer)
        else:
            self._people.titled("", [*facts, ("next", following)])

    def document(self, text: str) -> None:
        """In a format that a program reads, in place of the object."""
        self._answer = text

    def _answer_with(self, sentence: Sentence, following: str, answer: Mapping[str, Any]) -> None:
        whole = {"sentence": sentence.headline, "why": sentence.small_print, **answer, "next": following}
        self._answer = json.dumps(json_value(whole), allow_nan=False)


@contextmanager
def _stdout_to_stderr() -> Generator[None]:
    """Also for other processes, which share the descriptors."""
    sys.stdout.flush()
    output = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(output, 1)
        os.close(output)
