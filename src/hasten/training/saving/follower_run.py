"""A run on a rank that does not lead: another one has the folder, and this one saves what it holds in parts, stops and
goes on with it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from hasten.facts.events import Receiver
from hasten.facts.saving import Saving
from hasten.parallel.launch.agreement import Agreement
from hasten.parallel.launch.text_exchange import Exchange
from hasten.training.loop import Result, train_run
from hasten.training.recovered import Recovered
from hasten.training.run import Run
from hasten.training.saving.checkpointing import Keeping
from hasten.training.saving.no_saver import NoSaver
from hasten.training.saving.sharded_saver import PartSaver
from hasten.training.setup.configuration import configuration_of
from hasten.training.stop_request import signals_as_requests
from hasten.training.wishes import Shared


@dataclass(frozen=True, kw_only=True, slots=True)
class LedRun:
    """found: what the leader has found in the folder, to go on from; None for a run that begins."""

    found: Recovered | None
    saving: Saving
    say: Callable[[str], None]

    def train(self, run: Run, shown: Receiver) -> Result:
        """As KeptRun.train does, which the leader calls at the same time."""
        # While a signal still ends this process: the leader may be refused before it comes here.
        agreement = Agreement()
        exchange = Exchange(run.ranks) if not run.built.strategy.sharding.is_whole else None
        configuration = configuration_of(run)
        origin = self.found.given_to(run, configuration) if self.found is not None else None
        saver = NoSaver() if exchange is None else PartSaver(exchange, shares_processor=run.device.type == "cpu")

        def left() -> str:
            return "the leader says what is left"

        with signals_as_requests(self.saving.grace_seconds, self.say, left) as stop, closing(saver):
            keeping = Keeping(
                saver,
                origin=origin,
                stop=stop,
                wishes=Shared(agreement, saver, stop, self.saving.every_steps),
                configuration=configuration,
                log_bytes=lambda: 0,
                tell=shown.log,
            )
            return train_run(run, shown, keeping)
