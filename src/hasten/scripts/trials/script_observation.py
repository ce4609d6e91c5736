"""What runs in the first process of a search: the script, for a few steps, to see what it trains."""

from __future__ import annotations

import os
from collections.abc import Mapping

from hasten.facts.scripts.seen import PreparedData, as_table
from hasten.scripts.observing.observer import Observer
from hasten.scripts.running.own_processes import refuse_training_elsewhere
from hasten.scripts.running.process_groups import allow_process_groups
from hasten.scripts.running.program import Program, run_to_end
from hasten.scripts.running.script_seeds import use_seed
from hasten.scripts.trials.prepared_data import Files, new_data, unchanged_data
from hasten.scripts.trials.rank_processes import started_ranks
from hasten.scripts.trials.scratch import with_users_paths
from hasten.scripts.trials.script_process import in_scratch, served
from hasten.tuning.trials.child_process import Messages

OBSERVED_UPDATES = 4


def serve_observation(messages: Messages, program: Program, prepared: PreparedData | None) -> None:
    """seen: what the script trains, as a table; new: of prepared_data.unchanged_data, since the first update. It runs
    until so many updates, or to its end. prepared: that it finds."""

    def look() -> None:
        scratch = in_scratch(program, {}, prepared)
        ranks = started_ranks(messages)
        new = list[Mapping[str, Files]]()

        def updated(updates: int) -> None:
            if updates == 1 and not ranks.rank:
                new.append(new_data(scratch.place))
            if updates >= OBSERVED_UPDATES:
                done()

        def done() -> None:
            if not ranks.rank:
                seen = with_users_paths(as_table(observer.seen()), scratch)
                messages.send({"seen": seen, "new": unchanged_data(new[0], new_data(scratch.place))})
                os._exit(0)

        observer = Observer(enough=updated)
        use_seed(ranks.rank)
        observer.start()
        allow_process_groups()
        refuse_training_elsewhere()
        ranks.start()
        with ranks.reporting_first():
            run_to_end(scratch.program)
            done()

    served(messages, look)
