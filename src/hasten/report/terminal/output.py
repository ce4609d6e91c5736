"""One design for the output of all commands, and how it is written to a stream.

From top to bottom, a command shows:

    Tuning digits.py:job                            header: what it does, on which job or file
      machine   2 cores of …, torch 2.13.0            and on which machine, where it trains
      profiling   40 %, 8 s left                      progress, of work that takes more than two seconds
    …                                               tables and charts, where they are the answer
                                                    and last its result:
      verdict   1.80× faster: 13.0 s → 7.3 s          the one sentence that a person can repeat, first and bold
      why       95 % confidence interval of the …     the numbers behind it, in lines: intervals, spread
      plan      plan.toml                             what belongs to it: files, notes, what was not tried
      next      hasten train digits.py:job --plan …   the command to run next, last

* A label has one meaning in all commands. A text that is too long for its line continues below itself, and a command
  with a backslash, so that it can be copied. No line is longer than 100 columns, on a terminal and in a pipe; only one
  word that is longer, such as a path, is not broken.
* Progress, and notes on loading a job, are on standard error; all else is on standard output, the log of `hasten
  train` included.
* --quiet shows the tables and the result. --json shows one JSON object in place of all that, with the verdict as
  "sentence" and the same fields as the dataclasses; nothing else is on standard output. Of a failure, which is in its
  block on standard error as well, the object has "error", "where", "fix" and "exit_code".
* Without a terminal, and with NO_COLOR, the same lines have no control code. In a notebook they are drawn by rich.

Only what draws loads rich, which takes longer to load than most commands run.
"""

from __future__ import annotations

import builtins
import os
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any, TextIO

from hasten.errors import HastenError
from hasten.facts.formatting import printable
from hasten.report.display import MOST_COLUMNS
from hasten.report.sentence import Sentence

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

Lines = list[tuple[str, str]]  # label and text of each

LABEL = 10  # columns that a label takes at least, its space included
WIDE_LABEL = 12  # of a command with long ones, such as "not proven" of a search: all its blocks have one column
_INDENT = 2
_COMMANDS = ("next", "continue")  # labels of texts that a person copies
_LABEL_STYLES = {"note": "yellow", "error": "bold red"}
_TEXT_STYLES = {"verdict": "bold", "next": "bold cyan"}


class Output:
    """Lines that stay and, on a terminal or in a notebook, one block below them that changes in place."""

    def __init__(self, stream: TextIO | None, label_columns: int = LABEL) -> None:
        in_notebook = stream in (sys.stdout, sys.stderr) and is_notebook()
        self.is_plain = is_plain(stream) and not in_notebook
        self.width = MOST_COLUMNS
        self._label_columns = label_columns
        self._stream = stream
        self._block: Live | NotebookBlock | None = None
        if not self.is_plain:
            from rich.console import Console

            # No text is read as markup.
            plain: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}
            drawing = {"force_jupyter": True} if in_notebook else {"file": stream, "force_terminal": True}
            self._console = Console(**drawing, **plain)
            self.width = min(self.width, self._console.width)

    def line(self, text: str, style: str = "") -> None:
        """Indented on a terminal, where the block of a run is."""
        indent = 0 if self.is_plain else _INDENT
        self._write([[(" " * indent + each, style)] for each in wrapped(printable(text), self.width - indent, 4)])

    def note(self, label: str, text: str) -> None:
        self._write([*_labelled([(label, text)], self.width, self._label_columns)])

    def titled(self, title: str, lines: Lines) -> None:
        """Labelled texts under a title; an empty title leaves an empty line."""
        headings = [[(each, "bold")] for each in wrapped(printable(title), self.width, 4)]
        self._write([*headings, *_labelled(lines, self.width, self._label_columns)])

    def result(self, sentence: Sentence, facts: Lines, following: str) -> None:
        """following: the command to run next; empty offers none."""
        lines = sentence.small_print.split("\n") if sentence.small_print else []
        why = [("" if number else "why", line) for number, line in enumerate(lines)]
        offered = [("next", following)] if following else []
        self.titled("", [("verdict", sentence.headline), *why, *facts, *offered])

    def redraw(self, *rows: RenderableType) -> None:
        """Replace the block that changes in place. Of a terminal or a notebook only."""
        from rich.console import Group
        from rich.live import Live

        if self._block is None:
            # Redrawn only when something happened: a run that waits shows that it waits.
            live = Live(console=self._console, auto_refresh=False, transient=True)
            self._block = NotebookBlock() if self._console.is_jupyter else live
            self._block.start()
        self._block.update(Group(*map(_indented, rows)), refresh=True)

    def close(self) -> None:
        """Remove the block. Lines stay."""
        if self._block is not None:
            self._block.stop()
            self._block = None

    def _write(self, lines: list[list[tuple[str, str]]]) -> None:
        """Each line is its pieces, with their styles."""
        if self.is_plain:
            for line in lines:
                write_line(self._stream, "".join(text for text, _ in line).rstrip())
        elif lines:
            from rich.text import Text

            rows = [Text.assemble(*line, overflow="ignore", no_wrap=True) for line in lines]
            self._console.print(Text("\n").join(rows), soft_wrap=True)


class NotebookBlock:
    """One output of a notebook's cell, which is replaced. rich's own needs ipywidgets, which few kernels have."""

    def __init__(self) -> None:
        self._handle: Any = None

    def start(self) -> None:
        display = import_module("IPython.display").display
        self._handle = display(_drawn(""), display_id=True)

    def update(self, rows: RenderableType, *, refresh: bool) -> None:
        self._handle.update(_drawn(rows))

    def stop(self) -> None:
        self._handle.update(_drawn(""))


def is_notebook() -> bool:
    """Whether the process is the kernel of a notebook, by the signs that rich goes by."""
    shell_of: Callable[[], object] = getattr(builtins, "get_ipython", lambda: None)
    kind = type(shell_of())
    return kind.__name__ == "ZMQInteractiveShell" or "google.colab" in str(kind)


def is_plain(stream: TextIO | None) -> bool:
    """True where control codes do not belong. NO_COLOR is honoured as asked for at no-color.org, and more strictly."""
    if stream is None or not hasattr(stream, "isatty") or getattr(stream, "closed", False) or not stream.isatty():
        return True
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") in ("dumb", "unknown")


def write_line(stream: TextIO | None, line: str) -> None:
    """A plain line, flushed; what the stream's encoding lacks becomes a question mark. Raises OSError for None, as
    Python has it where the stream was closed before the start."""
    if stream is None:
        raise OSError("standard output is closed")
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(line.encode(encoding, "replace").decode(encoding) + "\n")
    if hasattr(stream, "flush"):
        stream.flush()


def show(title: str, lines: Lines, stream: TextIO | None = None) -> None:
    """Print labelled texts under a title; an empty title leaves an empty line."""
    Output(stream or sys.stdout).titled(title, lines)


def failure_block(error: HastenError) -> Lines:
    """The place comes first: it is often the subject."""
    place = f"{error.where}: " if error.where else ""
    return [("error", place + error.what), *([("fix", error.fix)] if error.fix else [])]


def bar(label: str, done: float, whole: float, *texts: str) -> RenderableType:
    """One row: how much is done of the whole, with texts behind it, the last one dim."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    row = Table.grid(padding=(0, 2), expand=True)
    row.add_column()  # the only one that wraps where the terminal is narrow
    row.add_column(ratio=1)
    for number in range(len(texts)):
        row.add_column(no_wrap=True, style="dim" if number == len(texts) - 1 else "")
    drawn = ProgressBar(whole, done, style="bright_black", complete_style="cyan", finished_style="cyan")
    row.add_row(Text(printable(label)), drawn, *map(Text, texts))
    return row


def wrapped(text: str, width: int, indent: int = 0) -> list[str]:
    """The text in lines of at most so many columns, those after the first indented; at least one line."""
    gap = " " * indent
    own = textwrap.wrap(text, width, subsequent_indent=gap, break_long_words=False, break_on_hyphens=False)
    return own or [""]


def _command(text: str, width: int) -> list[str]:
    """In lines that a shell reads as one."""
    if len(text) <= width:
        return [text]
    lines = [""]
    for word in map(shlex.quote, shlex.split(text)):
        if lines[-1] and len(lines[-1]) + len(word) + 3 > width:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return [*(f"{each} \\" for each in lines[:-1]), lines[-1]]


def _labelled(lines: Lines, width: int, least: int) -> Iterator[list[tuple[str, str]]]:
    """Labels on the left; a text that is too long continues below itself. least: columns of a label."""
    column = max([least, *(len(label) + 2 for label, _ in lines)])
    for label, text in ((printable(label), printable(text)) for label, text in lines):
        broken = (_command if label in _COMMANDS else wrapped)(text, width - _INDENT - column)
        for number, piece in enumerate(broken):
            shown = label if number == 0 else ""
            styles = _LABEL_STYLES.get(label, "dim"), _TEXT_STYLES.get(label, "")
            yield [(f"{'':{_INDENT}}{shown:<{column}}", styles[0]), (piece, styles[1])]


def _drawn(rows: RenderableType) -> RenderableType:
    from rich.constrain import Constrain

    return Constrain(rows, MOST_COLUMNS)


def _indented(drawn: RenderableType) -> RenderableType:
    from rich.padding import Padding

    return Padding(drawn, (0, 0, 0, 2))
