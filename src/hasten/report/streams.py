"""What is shown goes to a stream: a terminal that can draw, or anything else, which gets plain lines.

rich takes longer to load than most commands take, so only what draws loads it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


def is_plain(stream: TextIO) -> bool:
    """True where control codes do not belong. NO_COLOR is honoured as asked for at no-color.org, and more strictly."""
    return not stream.isatty() or bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") in ("dumb", "unknown")


def write_line(stream: TextIO, line: str) -> None:
    """A line without a control code; what the stream's encoding lacks becomes a question mark."""
    encoding = stream.encoding or "utf-8"
    stream.write(line.encode(encoding, "replace").decode(encoding) + "\n")
    stream.flush()


def console_on(stream: TextIO) -> Console:
    """For drawing on a terminal. It takes no text for markup."""
    from rich.console import Console

    return Console(file=stream, force_terminal=True, highlight=False, markup=False, emoji=False)


def bar(label: str, done: float, whole: float, *texts: str) -> RenderableType:
    """One row, indented: how much is done of the whole, with texts behind it, the last one dim."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    row = Table.grid(padding=(0, 2), expand=True)
    row.add_column(no_wrap=True)
    row.add_column(ratio=1)
    for number in range(len(texts)):
        row.add_column(no_wrap=True, style="dim" if number == len(texts) - 1 else "")
    drawn = ProgressBar(whole, done, style="bright_black", complete_style="cyan", finished_style="cyan")
    row.add_row(Text(label), drawn, *map(Text, texts))
    return indented(row)


def indented(drawn: RenderableType) -> RenderableType:
    from rich.padding import Padding

    return Padding(drawn, (0, 0, 0, 2))
