"""What runs in the first process of a search: the script, for a few steps, to see what it trains."""

from __future__ import annotations

import os

from hasten.facts.scripts.seen import as_table
from hasten.scripts.observing.observer import Observer
from hasten.scripts.running.own_processes import refuse_training_elsewhere
from hasten.scripts.running.process_groups import allow_process_groups
from hasten.scripts.running.program import Program, run_to_end
from hasten.scripts.running.script_seeds import use_seed
from hasten.scripts.trials.prepared_data import new_data
from hasten.scripts.trials.rank_processes import started_ranks
from hasten.scripts.trials.scratch import with_users_paths
from hasten.scripts.trials.script_process import in_scratch, served
from hasten.tuning.trials.child_process import Messages

OBSERVED_UPDATES = 4


def serve_observation(messages: Messages, program: Program) -> None:
    """seen: what the script trains, as a table; new: as prepared_data.new_data at the first update. It runs until so
    many updates, or to its end."""

    def look() -> None:
        scratch = in_scratch(program, {})
        ranks = started_ranks(messages)
        new = list[tuple[list[str], int]]()

        def updated(updates: int) -> None:
            if updates == 1 and not ranks.rank:
                new.append(new_data(scratch.place))
            if updates >= OBSERVED_UPDATES:
                done()

        def done() -> None:
            if not ranks.rank:
                seen = with_users_paths(as_table(observer.seen()), scratch)
                messages.send({"seen": seen, "new": new[0]})
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
