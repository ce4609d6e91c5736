"""A trial, whose process has loaded torch already, has the threads that the script sets before it imports torch."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

SETS_THREADS = """
    import os
    os.environ["OMP_NUM_THREADS"] = "999"
    os.environ.setdefault("MKL_NUM_THREADS", "1")
    import torch
    print(torch.get_num_threads())
    os.environ["MKL_NUM_THREADS"] = "2"
    print(torch.get_num_threads())
"""
IN_A_TRIAL = """
    import torch
    from hasten.scripts.running.program import Program, run
    from hasten.scripts.running.thread_variables import heed_thread_variables
    heed_thread_variables()
    run(Program(name="train.py"))
"""


def test_thread_variables_have_effect_until_the_script_imports_torch(tmp_path, monkeypatch):
    for name in ("MKL_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "train.py").write_text(dedent(SETS_THREADS))
    for command in (["train.py"], ["-c", dedent(IN_A_TRIAL)]):
        ran = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert ran.stdout.split() == ["1", "1"], command
