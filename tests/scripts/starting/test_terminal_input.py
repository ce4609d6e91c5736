"""What a script finds at its standard input."""

from __future__ import annotations

import subprocess
import sys

ASKS = """
import os
from hasten.scripts.running.terminal_input import use_terminal
use_terminal()
print(os.popen("stty size").read().split(), repr(os.popen("cat").read()))
print(*os.get_terminal_size())
input()
"""


WITHOUT_TERMINALS = """
import os, resource
from hasten.scripts.running.terminal_input import use_terminal
resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))  # of which a terminal needs two
use_terminal()
print(os.read(0, 1))
"""


def test_a_script_finds_a_terminal_of_usual_size_at_its_end_of_file():
    done = subprocess.run([sys.executable, "-c", ASKS], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "['24', '80'] ''\n80 24\n"
    assert done.stderr.endswith("EOFError: EOF when reading a line\n")


def test_a_script_of_a_system_without_terminals_finds_nothing_to_read():
    command = [sys.executable, "-c", WITHOUT_TERMINALS]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("b''\n", "")
