"""A prepared run: everything that training needs, put together, and the three calls that move it.

    with hasten.prepare(job, plan) as run:
        for batch in run.batches():
            loss = run.step(batch)
        run.evaluate()

Batches are microbatches, already on the device; the run knows which of them closes an optimizer step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from hasten.data.cache.cached_source import Watcher
from hasten.data.loading.device_transfer import place
from hasten.data.order.randomness import seed_everything, seed_step
from hasten.data.sources.job_data import Source
from hasten.errors import RAISED, HastenError, JobError, Misconfigured
from hasten.facts.job import Job
from hasten.facts.plan import Plan
from hasten.parallel.grid import grid_of
from hasten.parallel.pipeline.stage_sharding import Owned
from hasten.parallel.tensor.tensor_sharding import Share
from hasten.techniques.setup import ProcessOptions
from hasten.training import over_ranks
from hasten.training.aftermath import OfARun
from hasten.training.evaluate import Evaluation
from hasten.training.evaluation.stopping import Ending, Stopping
from hasten.training.failures import torch_refuses
from hasten.training.failures.user_code import AT_A_STEP
from hasten.training.run_folder.same_job import check_same_job, facts_of_training
from hasten.training.run_loaders import evaluator_of, on_device, train_loader
from hasten.training.schedule.planned_length import planned_length
from hasten.training.schedule.rate_schedule import build_schedule
from hasten.training.setup.apply_plan import with_places
from hasten.training.setup.optimizers import build_optimizers, left_out
from hasten.training.setup.prepared_job import Built, build, seed_of_rank
from hasten.training.setup.process_options import process_options
from hasten.training.state.averages import WeightAverage
from hasten.training.state.data_position import Places
from hasten.training.state.optimizer_modes import OptimizerModes
from hasten.training.state.train_state import load_state, state_of
from hasten.training.state.undeclared_state import UndeclaredState
from hasten.training.state.window_snapshot import WindowStart
from hasten.training.step import Step
from hasten.training.step_parts.loss_record import LossRecord
from hasten.training.step_parts.master_weights import MasterWeights
from hasten.training.weights import evaluated_weights

if TYPE_CHECKING:
    from hasten.training.setup.compiling import CompileLog


class Run:
    """Built from a job and a plan; use it as a context manager, or close() it: it holds process-wide settings."""

    def __init__(self, job: Job, plan: Plan | None = None, *, name: str = "", watcher: Watcher | None = None) -> None:
        self.job, self.plan, self.name = job, plan or Plan(), name
        self._open = ExitStack()
        try:
            with with_places(self.plan):
                self._assemble(build(job, self.plan, self._enter_process, name=name, watcher=watcher))
        except BaseException:
            self._open.close()
            raise

    def _assemble(self, built: Built) -> None:
        job, setup = self.job, built.setup
        self.built, self.setup = built, setup
        self.grid = grid_of(1 if setup.pipeline is None else setup.pipeline.stages, setup.shares, setup.device)
        self.ranks, self.notices = self.grid.all, setup.notices
        self.device, self.model = setup.device, over_ranks.on_device(self)
        self.loader = train_loader(self, setup.step.microbatch_size)
        self.notices += [*self.loader.notices, *over_ranks.notices_of(self)]
        self.total_steps, self.total_epochs = planned_length(job, self.loader.steps_per_epoch)
        self.compiling = self._compile()
        self.looked_at = over_ranks.looked_at(self)
        self.loss = over_ranks.loss_of(self)
        self.divided, self.sharded = over_ranks.divided(self), over_ranks.sharded(self)
        masters = MasterWeights(self.model)
        if masters and self.ranks.many:
            raise Misconfigured("16-bit weights are not supported over several ranks", fix="use float32, and plan bf16")
        self.optimizers = build_optimizers(job, self.model, setup.optimizer)
        over_ranks.check_optimizers(self)
        over_ranks.begin(self)
        if still := left_out(self.model, self.optimizers):
            self.notices.append(f"no optimizer moves {', '.join(still)}: Job.parameters leaves them out")
        for optimizer in self.optimizers:
            masters.hand_to(optimizer)
        self.schedule = build_schedule(
            job,
            self.optimizers,
            self.total_steps,
            self.total_epochs,
            setup.schedule,
            planned_rate=setup.optimizer.learning_rate,
        )
        check_same_job(facts_of_training(self), self.ranks, self.device)
        self.pipeline = over_ranks.pipeline(self)
        self.replica = over_ranks.replica(self)
        self.average = WeightAverage(self.model, masters, job.average, self.total_steps) if job.average else None
        self.modes = OptimizerModes(self.model, masters, self.optimizers)
        self.notices += evaluated_weights.notices_of(self)
        self._step = self._new_step(masters)
        self.stopping = Stopping(job.stop, job.metrics) if job.stop else None
        self.ending = Ending(setup.evaluation.target)
        self.evaluator = evaluator_of(self)
        self._best: dict[str, Tensor] | None = None
        self._copying: torch.cuda.Stream | None = None  # the stream that batches are copied on ahead of their use
        self.epoch, self._window = 0, 0  # position in the data: the next window
        self._samples, self._counted, self._last = 0, 0, True  # of the microbatch handed out last
        self._between_windows, self._is_put_back = True, True
        self._places = Places(self.loader.steps_per_epoch)
        self._window_start: WindowStart | None = None
        self._undeclared = UndeclaredState(job, self.model, built.declared, self.device)
        self.check_stop: Callable[[], None] = lambda: None  # called between an evaluation's batches; may raise
        self.wait_seconds, self.samples_seen, self._seen_before, self._kept_step = 0.0, 0, 0, 0
        self._stays_on_host = self.device.type == "cpu" and setup.step.memory_format is None
        if setup.step.scale_gradients:
            self.keep_window_starts()
        seed_everything(seed_of_rank(job.seed, self.grid.data.rank))

    def _new_step(self, masters: MasterWeights) -> Step:
        return Step(
            self.model,
            self.loss,
            self.optimizers,
            self.setup.step,
            masters=masters,
            ranks=self.grid.data,
            together=self.sharded or self.replica,
            divided=over_ranks.parts_of(self),
            pipeline=self.pipeline,
            reference=self._reference,
            before_update=self.schedule.before_update,
            after_update=self.schedule.after_update if self.average is None else self._move_schedule_and_average,
            after_update_reads_buffers=self.average is not None,
            aftermath=OfARun(self),
        )

    def _enter_process(self, options: ProcessOptions) -> list[str]:
        return self._open.enter_context(process_options(options))

    def _compile(self) -> CompileLog | None:
        if self.setup.compile is None:
            return None
        from hasten.training.setup.compiling import compile_model  # loads torch's compiler, which takes a second

        log = compile_model(self.model, self.setup.compile)
        self._open.callback(log.stop)
        return log

    # ── moving ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def batches(self) -> Generator[Any]:
        """All microbatches that are left of the planned run, on the device."""
        while not self.finished:
            for batch in self.epoch_batches():
                yield batch
                if self.window_closed and self.finished:
                    break

    def epoch_batches(self) -> Generator[Any]:
        """The microbatches that are left of the present epoch, on the device; the epoch is over when they are. A window
        that was left in its middle begins anew."""
        self._step.abandon_window()
        self._between_windows = True
        self._places.begin(self.steps + 1, self.epoch, self._window)
        clock = time.perf_counter
        microbatches = on_device(self, self.loader.epoch(self.epoch, self._window))
        while True:
            asked = clock()
            microbatch = next(microbatches, None)
            self.wait_seconds += clock() - asked
            if microbatch is None:
                break
            self._samples, self._last = microbatch.samples, microbatch.last
            self._counted = self.built.train.counted(microbatch.batch, microbatch.samples)
            yield microbatch.batch
        self.skip_to_next_epoch()
        self._step.skips.settle()
        self.schedule.after_epoch()

    def skip_to_next_epoch(self) -> None:
        """Leave out what is left of the present one."""
        self.epoch, self._window = self.epoch + 1, 0

    def step(self, batch: Any) -> Tensor:
        """Forward and backward of the batch last handed out, and the update when it closes a step; the mean loss,
        detached and on the device, so that looking at it is the caller's choice. Through stages of a pipeline it is
        the window's, and NaN until that closes.

        Raises NonFinite for a step that is refused. The run is then as the step before left it; of buffers and declared
        state that is true once keep_window_starts was called."""
        if self._between_windows:
            self._seen_before, step = self.samples_seen, self.steps + 1
            seed_step(self.job.seed, self.grid.data.rank, step, self.device)
            if self._window_start is not None:
                self._window_start.mark(step)
        self._between_windows, self._is_put_back = False, True
        try:
            loss = self._step.accumulate(batch, self._counted, self._last)
            self.samples_seen += self._samples
            if self._last:
                self._step.update()
                self._window += 1
                self._between_windows = True
                if not self._undeclared.is_done:
                    self._undeclared.check()
        except HastenError:
            raise
        except RAISED as error:
            if refusal := torch_refuses.named(self, error):
                raise refusal from error
            step = self.steps + 1
            error.add_note(f"{AT_A_STEP}{step}: {self.batch_of(step)}; seed {self.job.seed}")
            raise
        return loss

    def evaluate(self) -> Evaluation:
        """Evaluate, and let schedule and early stopping take it in. With an average, its weights are evaluated; else
        those of the optimizers' eval(), where they have one. After it all is in training mode again."""
        if self.evaluator is None:
            raise JobError("valid", "is not given", "give the data to evaluate on: valid=…")
        self._step.skips.settle()
        over_ranks.check_replicas(self)
        over_ranks.settle_buffers(self)  # running statistics are those that are saved, and that each step begins with
        with evaluated_weights.in_place(self):
            with self.built.declared.preserved():
                evaluation = over_ranks.as_the_leader_has_it(self, self.evaluator())
            best = self.stopping is not None and self.stopping.observe(evaluation.results, self.steps)
            if self.ending.observe(evaluation.results) or best:
                self._best, self._kept_step = evaluated_weights.present(self), self.steps
        self.schedule.after_evaluation(evaluation.results)
        return evaluation

    def _placed(self, batch: Any, source: Source) -> Any:
        setup, hurry = self.setup, self.setup.loader.pin_memory
        if source.has_device_form:  # what is copied is no batch yet
            batch = source.finished(place(batch, self.device, non_blocking=hurry))
        return place(batch, self.device, memory_format=setup.step.memory_format, non_blocking=hurry)

    def _move_schedule_and_average(self) -> None:
        self.schedule.after_update()
        assert self.average is not None
        if self.pipeline is not None:
            over_ranks.settle_buffers(self)  # which it averages
        self.average.after_update()

    # ── looking ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def steps(self) -> int:
        """Optimizer steps attempted so far, skipped ones included."""
        return self._step.skips.attempted

    def batch_of(self, step: int) -> str:
        """Which samples an optimizer step took, in words."""
        place = self._places.of(step)
        return "samples that are not known any more" if place is None else self.loader.samples_in_words(*place)

    @property
    def whole_epochs(self) -> int:
        """Epochs whose every step was taken."""
        return self.epoch + (self._window == self.loader.steps_per_epoch)

    @property
    def between_epochs(self) -> bool:
        """Whether an epoch has ended and the next has not begun."""
        return self._window == 0 and self.epoch > 0

    @property
    def skipped_updates(self) -> int:
        return self._step.skips.skipped

    def settled_skips(self) -> int:
        """Skipped updates, the latest included; waits for the device."""
        self._step.skips.settle()
        return self.skipped_updates

    @property
    def window_closed(self) -> bool:
        """Whether the batch handed out last was the last microbatch of its optimizer step."""
        return self._last

    @property
    def finished(self) -> bool:
        if self.ending.reached or (self.stopping is not None and self.stopping.exhausted):
            return True
        if self.job.max_steps is not None and self._step.skips.applied_reach(self.job.max_steps):
            return True
        return self.job.epochs is not None and self.epoch >= self.job.epochs

    @property
    def evaluation_batch_size(self) -> int | None:
        return self.evaluator.batch_size if self.evaluator else None

    @property
    def losses(self) -> LossRecord:
        """The losses of all windows since they were last drained, kept on the device."""
        return self._step.losses

    @property
    def unreached(self) -> Sequence[str]:
        """Parameters, by name, that no gradient reached in the first step; none before it."""
        return self._step.unreached or ()

    @property
    def loss_is_summed(self) -> bool:
        """Whether a loss that is taken for a mean was seen to be a sum; False before the first step."""
        return self._step.loss_is_summed

    @property
    def gradient_norm(self) -> float | None:
        norm = self._step.gradient_norm
        return None if norm is None else norm.item()

    def weights(self) -> dict[str, Tensor]:
        """The weights to keep, on the host and in the form of the job's own model: those that ended it, the best by the
        job's stopping rule, else the average, else the present ones, as the optimizers' eval() gives them."""
        if self._best is not None:
            return self._best
        self._step.skips.settle()
        self._kept_step = self.steps
        with evaluated_weights.in_place(self):
            return evaluated_weights.present(self)

    @property
    def kept_step(self) -> int:
        """The step whose weights weights() gave last."""
        return self._kept_step

    # ── carrying on ─────────────────────────────────────────────────────────────────────────────────────────────────

    def state_dict(self) -> dict[str, Any]:
        """All that the next step depends on, random states included, taken between two optimizer steps."""
        return state_of(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of a run of the same job and plan. Raises Misconfigured for one that does not fit."""
        load_state(self, state)

    def job_weights(self) -> Mapping[str, Tensor | Share | Owned]:
        """The tensors that weights() would give now, where they lie: those of the run move on with it."""
        found = self._best if self._best is not None else evaluated_weights.to_save(self)
        return {key: each for key, each in found.items() if isinstance(each, Tensor | Share | Owned)}

    def keep_window_starts(self) -> None:
        """From now on remember how each window began, so that the run can go back to it."""
        if self._window_start is None:
            self._window_start = WindowStart(
                self.model, self.built.declared, windows=2 if self._step.skips.deferred else 1
            )

    def back_to_window_start(self) -> bool:
        """After an exception in a window: be as the last completed step left the run. False where that cannot be, as
        the exception came while the parameters moved, as a large buffer was written for the first time, or as
        keep_window_starts was never called."""
        if self._window_start is None or self._step.moving:
            return False
        self._step.abandon_window()
        if not self._between_windows:
            self._is_put_back = self._window_start.back(self.steps + 1)
            self._between_windows = self._last = True
            self.samples_seen = self._seen_before
        return self._is_put_back

    @property
    def microbatch_size(self) -> int | None:
        """At most so many samples in one forward and backward pass; None for the whole share of the global batch."""
        return self.loader.microbatch_size

    def read_in_microbatches_of(self, samples: int | None) -> None:
        """Take every global batch in other parts from now on; an iteration over an epoch that is under way ends."""
        ledger = self.loader.ledger.state_dict()
        self.loader.close()
        self.loader = train_loader(self, samples)
        self.loader.ledger.load_state_dict(ledger)
        self._step.reference = self._reference

    @property
    def _reference(self) -> int:
        return self.microbatch_size or self.built.batch_size

    def close(self) -> None:
        """Give the process-wide settings back. The model and its weights stay usable."""
        self.loader.close()
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
