"""Turn a trainer that owns its loop into one that runs a given number of steps and waits.

A trainer such as Lightning's takes the whole run into its hands. To time a stretch in its middle, without its start and
its end, the step itself says when it begins: whatever every step passes through once calls `gate.tick()`. The trainer
runs in a thread of its own, and a tick blocks it there between two windows. A tick inside a window costs one addition
and one comparison, which hasten's own arms do without, for its loop can be asked for single steps (windows.py).

Let the trainer's thread alone compute: data, model and all. Where another thread has computed before, there are two
pools of compute threads, more than cores, and the threads of either no longer wait awake between two small operations:
in a try, no record, a step of a small network took 1.4 and 1.8 times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Semaphore, Thread


class Gate:
    def __init__(self) -> None:
        self._left = 0
        self._open, self._reached = Semaphore(0), Semaphore(0)

    def tick(self) -> None:
        """A step begins; blocks until the window that it belongs to."""
        self._left -= 1
        if self._left < 0:
            self._reached.release()
            self._open.acquire()

    def let_through(self, steps: int) -> None:
        """Let a trainer that waits at the gate run this many steps."""
        self._left = steps - 1
        self._open.release()

    def wait(self) -> None:
        """Until the trainer is at the gate again, or has ended."""
        self._reached.acquire()

    def leave(self) -> None:
        """The trainer has ended and will not come back."""
        self._reached.release()


def stepwise(train: Callable[[Callable[[], None]], object]) -> Callable[[int], None]:
    """A function that runs `steps` further steps of `train(tick)`, which trains on and on.

    Returns when the first step is about to begin. What `train` raises is raised by the window it happens in;
    RuntimeError when it ends on its own.
    """
    gate, errors = Gate(), list[BaseException]()

    def run() -> None:
        try:
            train(gate.tick)
            raise RuntimeError("the trainer ended before the benchmark did: give it more steps to run")
        except BaseException as error:
            errors.append(error)
        finally:
            gate.leave()

    def wait() -> None:
        gate.wait()
        if errors:
            raise errors[0]

    def window(steps: int) -> None:
        gate.let_through(steps)
        wait()

    Thread(target=run, daemon=True).start()
    wait()
    return window
