"""Page faults of other processes, as Linux counts them."""

from __future__ import annotations

from pathlib import Path

import psutil


def page_faults_of_children() -> int:
    """Minor page faults of all running child processes, recursively. Needs Linux."""
    return sum(_page_faults(each.pid) for each in psutil.Process().children(recursive=True))


def _page_faults(process: int) -> int:
    """Source: proc_pid_stat(5), field 10, minflt. The name of the program, in parentheses, may contain spaces."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(fields[7])
