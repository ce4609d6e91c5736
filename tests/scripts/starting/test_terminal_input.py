"""What a script finds at its standard input."""

from __future__ import annotations

import subprocess
import sys

ASKS = """
import os
from hasten.scripts.running.terminal_input import use_terminal
use_terminal()
print(os.popen("stty size").read().split(), repr(os.popen("cat").read()))
input()
"""


def test_a_script_finds_a_terminal_of_usual_size_at_its_end_of_file():
    done = subprocess.run([sys.executable, "-c", ASKS], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "['24', '80'] ''\n"
    assert done.stderr.endswith("EOFError: EOF when reading a line\n")
