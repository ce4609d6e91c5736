"""The process of the plain script in bench/empty_plan.py: the script itself, stopped between two windows of steps.

It answers as a trial does. The only thing that is watched is the end of an optimizer's step.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from hasten.scripts.running.program import Program, run
from hasten.tuning.trials.child_process import Messages


def serve_plain(messages: Messages, program: Program) -> None:
    left = 0

    def exchange(answer: Mapping[str, Any]) -> None:
        nonlocal left
        messages.send(answer)
        asked = messages.wait()
        if asked is None:
            os._exit(0)
        left = asked["steps"]

    def stepped(*args: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            exchange({"steps": 1, "seconds": 0.0, "turns": [], "interruptions": [], "peak_bytes": 0})

    exchange({"seconds": 0.0, "data": {}, "notices": []})
    register_optimizer_step_post_hook(stepped)
    run(program)
    os._exit(1)  # it has ended before the benchmark did
