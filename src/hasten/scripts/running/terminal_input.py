"""A terminal as the standard input of a script's process, as the script has it where a person starts it: some ask
`stty size` or os.get_terminal_size() how wide it is. Nobody writes to it, and who reads from it finds its end.
"""

from __future__ import annotations

import os
import sys
import termios
from collections.abc import Callable
from functools import partial

ROWS, COLUMNS = 24, 80
_MOST_READERS = 64


def use_terminal() -> None:
    """For the rest of this process, and for what it starts. Python itself reads from nothing, as before. Where the
    system has no terminals, as a sandbox without /dev/pts, all read from nothing."""
    sys.stdin = open(os.devnull)  # noqa: SIM115  for the rest of this process
    try:
        controller, terminal = os.openpty()
    except OSError:
        return
    termios.tcsetwinsize(terminal, (ROWS, COLUMNS))
    end_of_file = termios.tcgetattr(terminal)[6][termios.VEOF]
    os.write(controller, end_of_file * _MOST_READERS)
    os.dup2(terminal, 0)
    os.close(terminal)
    os.get_terminal_size = partial(_size, os.get_terminal_size)


def _size(original: Callable[[int], os.terminal_size], descriptor: int = 1, /) -> os.terminal_size:
    """What a trial prints goes to no terminal, as the user's output does."""
    try:
        return original(descriptor)
    except OSError:
        return original(0)
