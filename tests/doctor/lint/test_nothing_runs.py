"""Nothing of a file that is looked at is executed, whatever it does where it is imported."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

from hasten.doctor.lint.fixes import mend
from hasten.doctor.rules import ALL
from support.doctor.snippets import lint_text

WRONG = "optimizer.zero_grad(set_to_none=False)"
TOUCH = "import pathlib; pathlib.Path({made!r}).touch()"
DEEDS = [
    TOUCH,
    "import os; os.system('touch {made}')",
    "import os; os.environ['HASTEN_DEED'] = '1'",
    "import sys; sys.path.insert(0, {made!r})",
    "import sys; sys.modules['hasten_deed'] = sys",
    "import threading; threading.Thread(target=lambda: None, name='deed', daemon=True).start()",
    "import socket; socket.socket = None",
    "import builtins; builtins.deed = 1",
    "raise SystemExit(3)",
    "import os; os._exit(3)",
    "import os; os.kill(os.getpid(), 9)",
    "import sys; sys.setrecursionlimit(50)",
    "import os; os.chdir('/')",
    "import signal; signal.alarm(1)",
    "print('deed')",
    "input()",
    "while True: pass",
    "import hasten_deed_that_is_not_there",
]
PLACES = ["{deed}", "class A:\n    {deed}", "def f(x=exec({deed!r})):\n    pass", "@exec({deed!r})\ndef f():\n    pass"]
FILES = [(deed, place) for number, deed in enumerate(DEEDS) for place in (PLACES[0], PLACES[1 + number % 3])]


def state() -> tuple[object, ...]:
    threads = {thread.name for thread in threading.enumerate()}
    return (
        dict(os.environ), list(sys.path), set(sys.modules), threads, socket.socket, Path.cwd(), sys.getrecursionlimit(),
    )  # fmt: skip


def test_a_file_that_does_something_where_it_is_imported_does_nothing(tmp_path, capfd):
    before, made, file = state(), tmp_path / "made", tmp_path / "harm.py"
    for deed, place in FILES:
        text = f"import torch\n{place.format(deed=deed.format(made=str(made)))}\n{WRONG}\n"
        file.write_text(text)
        assert [each.code for each in lint_text(text, "harm.py")] == ["H303"]
        mend(file, ALL)
        assert (state(), made.exists()) == (before, False)
    assert capfd.readouterr() == ("", "")


def test_the_deeds_are_done_where_a_file_is_run(tmp_path):
    made = tmp_path / "made"
    subprocess.run([sys.executable, "-c", TOUCH.format(made=str(made))], check=True)
    assert made.exists()
