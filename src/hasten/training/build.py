"""A job and a plan, put together into all that a run needs."""

from __future__ import annotations

import math
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from hasten.data.cache.cached_source import Watcher
from hasten.data.order.randomness import seed_everything, undisturbed
from hasten.errors import JobError, Misconfigured
from hasten.facts.job import Best, Job
from hasten.facts.plan import Plan
from hasten.parallel.grid import grid_of
from hasten.parallel.strategy import LossFunction, Single, Strategy
from hasten.techniques.common.batch_split import normalizes_by_batch
from hasten.techniques.common.restored_state import same_state
from hasten.techniques.setup import ProcessOptions
from hasten.training.batches.evaluation_data import EvaluationData
from hasten.training.batches.training_data import BatchPlacement, TrainingData
from hasten.training.evaluate import Evaluator, evaluator_of
from hasten.training.evaluation.stopping import BestResult, Ending, Stopping
from hasten.training.failures.torch_errors import TorchErrors, refuse_one_sample
from hasten.training.schedule.rate_schedule import build_schedule
from hasten.training.setup.apply_plan import with_places
from hasten.training.setup.optimizers import (
    MasterWeights,
    OptimizerModes,
    build_optimizers,
    check_optimizers,
)
from hasten.training.setup.prepared_job import PreparedJob, prepare_job, seed_of_rank
from hasten.training.setup.process_options import process_options
from hasten.training.state.averages import WeightAverage
from hasten.training.state.declared_state import UndeclaredState
from hasten.training.state.result_weights import ResultWeights
from hasten.training.state.train_state import RandomStates, TrainState
from hasten.training.state.window_snapshot import StepRollback
from hasten.training.step import Step
from hasten.training.step_parts.losses import calling
from hasten.training.step_parts.window_runner import WindowRunner

if TYPE_CHECKING:
    from hasten.training.setup.torch_compiling import CompileLog


def build(job: Job, plan: Plan, *, name: str = "", watcher: Watcher | None = None) -> Built:
    """Raises JobError for what is wrong in the job, PlanError for the plan; nothing stays open then."""
    resources = ExitStack()

    def enter(options: ProcessOptions) -> list[str]:
        return resources.enter_context(process_options(options))

    try:
        with with_places(plan):
            return Built(job, prepare_job(job, plan, enter, name=name, watcher=watcher), resources)
    except BaseException:
        resources.close()
        raise


class Built:
    """All parts of a run, built in the order in which they need each other.

    plan, train, valid, batch_size, declared, data, fingerprint, proven_on: as PreparedJob has them.
    total_steps, total_epochs: of the planned run; None where the data does not say.
    average: of the weights; None for a job without one. stopping, keeping, ending, evaluator,
        evaluation_data: likewise.
    best: the evaluation whose weights are kept: that of `keeping`, else of `stopping`; None keeps the last weights.
    result: which weights the run results in.
    compiling: what was compiled; None without `compile`.
    resources: closed with the run.
    """

    def __init__(self, job: Job, prepared: PreparedJob, resources: ExitStack) -> None:
        self.job, self.setup, self.plan, self.resources = job, prepared.setup, prepared.plan, resources
        self.train, self.valid, self.batch_size = prepared.train, prepared.valid, prepared.batch_size
        self.declared, self.data = prepared.declared, prepared.data
        self.fingerprint, self.proven_on = prepared.fingerprint, prepared.proven_on
        self.device, self.notices = prepared.setup.device, prepared.setup.notices
        stages = 1 if self.setup.pipeline is None else self.setup.pipeline.stages
        self.grid = grid_of(stages, self.setup.shares, self.device)
        self._build_batches(prepared)
        self.compiling = self._compiled()
        self._divide_model(prepared)
        self._build_optimizers()
        self._build_state()
        self._build_step()
        self.stopping = Stopping(job.stop, job.metrics) if job.stop else None
        self.keeping = BestResult(job.keep, job.metrics) if isinstance(job.keep, Best) else None
        self.best = self.keeping or (self.stopping.best if self.stopping else None)
        self.ending = Ending(self.setup.evaluation.target) if self.setup.evaluation.target else None
        self.evaluator: Evaluator | None = None
        self.evaluation_data: EvaluationData | None = None
        if self.valid is not None:
            self._build_evaluation()
        self.state.extra = self._further_parts()
        seed_everything(seed_of_rank(job.seed, self.grid.data.rank))

    def _build_batches(self, prepared: PreparedJob) -> None:
        setup, grid, job = self.setup, self.grid, self.job
        self.placement = BatchPlacement(self.device, setup.loader, setup.step.memory_format)
        equal_parts = setup.pipeline.microbatches if setup.pipeline is not None and grid.stages.many else None
        size, micro = self.batch_size, setup.step.microbatch_size
        self.batches = batches = TrainingData(
            job, self.train, size, micro, setup.loader, self.placement, grid.data, equal_parts
        )
        self.resources.callback(lambda: batches.loader.close())
        self.notices += batches.loader.notices
        if grid.all.many:
            from hasten.training.setup.strategies import batch_norm_notices

            self.notices += batch_norm_notices(prepared, grid, micro, batches.loader.leaves_single)
        self.total_steps, self.total_epochs = planned_length(job, batches.steps_per_epoch)

    def _compiled(self) -> CompileLog | None:
        if self.setup.compile is None:
            return None
        from hasten.training.setup.torch_compiling import compile_model  # loads torch's compiler, which takes a second

        log = compile_model(self.setup.model, self.setup.compile)
        self.resources.callback(log.stop)
        return log

    def _divide_model(self, prepared: PreparedJob) -> None:
        loss: LossFunction = self.job.loss
        if self.grid.all.many:
            from hasten.training.setup.strategies import followed_loss, strategy_of

            loss = followed_loss(prepared, self.grid)
            enter = self.resources.enter_context
            self.strategy: Strategy = strategy_of(prepared, self.grid, self.batches.first_batch, enter)
        else:
            self.strategy = Single(self.device, self.grid)
        self.model, self.loss = self.strategy.prepare(self.setup.model, loss)
        self.sharding = self.strategy.sharding
        self.notices += self.strategy.notices

    def _build_optimizers(self) -> None:
        self._masters = masters = MasterWeights(self.model)
        if masters and self.grid.all.many:
            raise Misconfigured(
                "16-bit weights are not supported with several ranks", fix="use float32 with bf16 autocast"
            )
        self.optimizers = build_optimizers(self.job, self.model, self.setup.optimizer)
        check_optimizers(self.optimizers, self.sharding)
        for optimizer in self.optimizers:
            masters.hand_to(optimizer)
        self.modes = OptimizerModes(self.model, masters, self.optimizers)

    def _build_state(self) -> None:
        job, setup, sharding = self.job, self.setup, self.sharding
        self.schedule = build_schedule(
            job,
            self.optimizers,
            self.total_steps,
            self.total_epochs,
            setup.schedule,
            planned_rate=setup.optimizer.learning_rate,
        )
        self.average: WeightAverage | None = None
        if job.average is not None:
            self.average = WeightAverage(self.model, self._masters, job.average, self.total_steps, sharding)
        self.result = ResultWeights(self.model, self.average, self.modes, setup.to_job_weights, sharding, self.grid.all)
        self.state = TrainState(
            model=self.model,
            optimizers=self.optimizers,
            schedule=self.schedule,
            average=self.average,
            declared=self.declared,
            position=self.batches.position,
            sharding=sharding,
            device=self.device,
        )

    def _build_step(self) -> None:
        job, state, batches, ranks = self.job, self.state, self.batches, self.grid.data
        self.rollback = StepRollback(batches)
        self.step = Step(
            self.model,
            self.loss,
            self.optimizers,
            self.setup.step,
            strategy=self.strategy,
            masters=self._masters,
            reference=batches.items_per_microbatch,
            before_update=state.schedule.before_update,
            after_update=state.schedule.after_update if state.average is None else state.after_update,
            after_update_reads_buffers=state.average is not None,
            rollback=self.rollback,
        )
        if self.setup.step.scale_gradients:
            self.rollback.take_snapshots(self.model, self.declared, deferred=self.step.skips.deferred)
        explain = TorchErrors(
            replicated=ranks.many and self.sharding.is_whole,
            sharded=self.sharding.in_parts,
        )
        self.windows = WindowRunner(
            step=self.step,
            batches=batches,
            rollback=self.rollback,
            undeclared=UndeclaredState(job, self.model, self.declared, self.device),
            explain=explain,
            seed=job.seed,
            rank=ranks.rank,
            device=self.device,
            before_first=self._refuse_one_sample,
        )

    def _refuse_one_sample(self, batch: Any) -> None:
        """Where the run comes to a microbatch of one sample, with batch norm. Several ranks are warned instead."""
        loader = self.batches.loader
        comes_to_it = loader.leaves_single and (self.total_steps or 0) >= (loader.steps_per_epoch or 0)
        if self.grid.all.many or not comes_to_it or not normalizes_by_batch(self.model):
            return
        call = partial(calling(self.device, self.setup.step.autocast), self.loss, self.model)
        with undisturbed(self.device), same_state(self.model), self.declared.preserved():
            refuse_one_sample(call, batch)

    def _build_evaluation(self) -> None:
        job, setup, valid = self.job, self.setup, self.valid
        assert valid is not None
        if job.eval_loss is not None and not self.sharding.is_whole:
            what = "is given, but with `shard`, `tensor` or `pipeline` evaluations use the training loss"
            raise JobError("eval_loss", what, "remove it, or remove the technique from the plan")
        self.evaluation_data = data = EvaluationData(
            valid, setup.loader, job.seed, self.placement, self.grid.data, equally_many=self.sharding.in_parts
        )
        size = setup.evaluation.batch_size or valid.batch_size or self.batch_size
        self.notices += [each for each in data.check_before_start(size) if each not in self.notices]
        self.evaluator = evaluator_of(setup, self.model, self.loss, self.strategy, data, size)

    def _further_parts(self) -> dict[str, Any]:
        """Parts of a checkpoint, beside those that TrainState composes."""
        parts: dict[str, Any] = {
            "step": self.step,
            "result": self.result,
            "ending": self.ending,
            "batches": self.batches,
            "stopping": self.stopping,
            "keeping": self.keeping,
            "evaluator": self.evaluator,
            "random": RandomStates(grid=self.grid, device=self.device, notify=self.notices.append),
        }
        return {name: part for name, part in parts.items() if part is not None}


def planned_length(job: Job, steps_per_epoch: int | None) -> tuple[int | None, int | None]:
    """Optimizer steps and epochs; None where the data does not say. Raises JobError where nothing says how many."""
    if steps_per_epoch is None:
        if job.max_steps is None:
            what = "is not given, and the training data has no length"
            raise JobError("max_steps", what, "set the length: max_steps=10_000")
        return job.max_steps, None
    steps = min(
        math.inf if job.epochs is None else job.epochs * steps_per_epoch,
        math.inf if job.max_steps is None else job.max_steps,
    )
    return int(steps), math.ceil(steps / steps_per_epoch)
