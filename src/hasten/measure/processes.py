"""How sure a ratio is beyond the processes that it was measured in.

Two processes of the same code can differ by a few per cent for as long as they live, because their memory lies
differently. Windows of one process share that, so resampling them says nothing of it. Where the arms lived in several
processes one after the other, each start gives a ratio of its own, and two equal arms that were started along with them
show the same difference a second time. Taken together they are few, so what they say is Student's interval ("Student"
1908) over starts, with the ratios of the equal arms pooled in about their known mean, which is 1.

Where there was one start, nobody knows how another would have gone, and the interval holds for these processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean

from hasten.facts.choice import Speedup
from hasten.measure.curves import critical
from hasten.measure.paired import TAIL


def over_processes(found: Speedup, starts: Sequence[float], equal: Sequence[float]) -> Speedup:
    """The ratio with the wider of its interval and the one over starts.

    starts: the ratio in each start; equal: that of two equal arms, in each start that they were in. All above 0.
    """
    if len(starts) < 2:
        return found
    logs, apart = [math.log(ratio) for ratio in starts], [math.log(ratio) for ratio in equal]
    centre, free = mean(logs), len(logs) - 1 + len(apart)
    spread = math.sqrt(math.fsum([*((log - centre) ** 2 for log in logs), *(log**2 for log in apart)]) / free)
    reach = math.exp(critical(free + 1, TAIL) * spread / math.sqrt(len(logs)))
    return replace(found, low=min(found.low, found.ratio / reach), high=max(found.high, found.ratio * reach))
