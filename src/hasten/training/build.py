"""A job and a plan, put together into all that a run needs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from hasten.data.cache.cached_source import Watcher
from hasten.data.order.randomness import seed_everything
from hasten.data.sources.job_data import Source
from hasten.errors import JobError
from hasten.facts.job import Job
from hasten.facts.plan import Fingerprint, Plan, ProvenOn
from hasten.facts.ranks import Ranks
from hasten.parallel.grid import Grid, grid_of
from hasten.parallel.replicate.replica_check import check_same_declared
from hasten.parallel.strategy import FollowedBuffers, LossFunction, Strategy
from hasten.techniques.setup import ProcessOptions, Setup
from hasten.training.batches.evaluation_data import EvaluationData
from hasten.training.batches.placement import BatchPlacement
from hasten.training.batches.training_data import TrainingData
from hasten.training.evaluate import Evaluator
from hasten.training.evaluation.stopping import Ending, Stopping
from hasten.training.failures.torch_errors import TorchErrors
from hasten.training.run_folder.same_job import check_same_job, facts_of_training
from hasten.training.schedule.planned_length import planned_length
from hasten.training.schedule.rate_schedule import RateSchedule, build_schedule
from hasten.training.setup.apply_plan import with_places
from hasten.training.setup.optimizers import build_optimizers, check_optimizers, left_out
from hasten.training.setup.prepared_job import PreparedJob, prepare_job, seed_of_rank
from hasten.training.setup.process_options import process_options
from hasten.training.setup.strategies import batch_norm_notices, refuse_16_bit_weights, strategy_of
from hasten.training.state.averages import WeightAverage
from hasten.training.state.declared_state import DeclaredState
from hasten.training.state.optimizer_modes import OptimizerModes
from hasten.training.state.random_states import PerRank, RandomStates
from hasten.training.state.result_weights import ResultWeights
from hasten.training.state.train_state import TrainState
from hasten.training.state.undeclared_state import UndeclaredState
from hasten.training.step import Step
from hasten.training.step_parts.master_weights import MasterWeights
from hasten.training.step_parts.window_runner import StepRollback, WindowRunner

if TYPE_CHECKING:
    from hasten.training.setup.compiling import CompileLog


@dataclass(kw_only=True, slots=True)
class Built:
    """The fields up to proven_on are those of PreparedJob.

    total_steps, total_epochs: of the planned run; None where the data does not tell.
    average: of the weights; None for a job without. stopping, evaluator, evaluation_data: likewise.
    result: which weights the run results in.
    compiling: what was compiled; None without `compile`.
    resources: closed with the run.
    """

    job: Job
    setup: Setup
    plan: Plan
    train: Source
    valid: Source | None
    batch_size: int
    declared: DeclaredState
    data: Mapping[str, str]
    fingerprint: Fingerprint
    proven_on: ProvenOn
    grid: Grid
    strategy: Strategy
    model: nn.Module
    loss: LossFunction
    optimizers: list[Optimizer]
    schedule: RateSchedule
    average: WeightAverage | None
    modes: OptimizerModes
    state: TrainState
    step: Step
    placement: BatchPlacement
    batches: TrainingData
    windows: WindowRunner
    rollback: StepRollback
    result: ResultWeights
    stopping: Stopping | None
    ending: Ending
    evaluator: Evaluator | None
    evaluation_data: EvaluationData | None
    total_steps: int | None
    total_epochs: int | None
    compiling: CompileLog | None
    notices: list[str]
    resources: ExitStack

    @property
    def device(self) -> torch.device:
        return self.setup.device


def build(job: Job, plan: Plan, *, name: str = "", watcher: Watcher | None = None) -> Built:
    """Raises JobError for what is wrong in the job, PlanError for the plan; nothing stays open then."""
    resources = ExitStack()

    def enter(options: ProcessOptions) -> list[str]:
        return resources.enter_context(process_options(options))

    try:
        with with_places(plan):
            prepared = prepare_job(job, plan, enter, name=name, watcher=watcher)
            return _Builder(job, prepared, resources).build()
    except BaseException:
        resources.close()
        raise


class _Builder:
    """Parts in the order in which they need each other."""

    def __init__(self, job: Job, prepared: PreparedJob, resources: ExitStack) -> None:
        self._job, self._prepared, self._setup, self._resources = job, prepared, prepared.setup, resources
        setup = prepared.setup
        stages = 1 if setup.pipeline is None else setup.pipeline.stages
        self._grid, self._device = grid_of(stages, setup.shares, setup.device), setup.device
        self._notices = setup.notices

    def build(self) -> Built:
        job, prepared, setup, grid = self._job, self._prepared, self._setup, self._grid
        batches = self._batches()
        total_steps, total_epochs = planned_length(job, batches.loader.steps_per_epoch)
        compiling = self._compile()
        strategy = strategy_of(prepared, grid, batches.first_batch, self._resources.enter_context)
        model, loss = strategy.prepare(setup.model, self._loss())
        self._notices += strategy.notices
        masters = MasterWeights(model)
        if masters and grid.all.many:
            raise refuse_16_bit_weights()
        optimizers = self._optimizers(model, masters, strategy)
        schedule = build_schedule(
            job, optimizers, total_steps, total_epochs, setup.schedule, planned_rate=setup.optimizer.learning_rate
        )
        facts = facts_of_training(optimizers, schedule, batches.loader, total_steps)
        check_same_job(facts, grid.all, self._device)
        sharding = strategy.sharding
        average = WeightAverage(model, masters, job.average, total_steps, sharding) if job.average else None
        modes = OptimizerModes(model, masters, optimizers)
        result = ResultWeights(model, average, modes, setup.to_job_weights, sharding, grid.all)
        self._notices += result.notices
        state = TrainState(
            model=model,
            optimizers=optimizers,
            schedule=schedule,
            average=average,
            declared=prepared.declared,
            position=batches.position,
            sharding=sharding,
            device=self._device,
        )
        rollback = StepRollback(batches)
        step = Step(
            model,
            loss,
            optimizers,
            setup.step,
            strategy=strategy,
            masters=masters,
            reference=batches.items_per_microbatch,
            before_update=schedule.before_update,
            after_update=schedule.after_update if average is None else state.after_update,
            after_update_reads_buffers=average is not None,
            rollback=rollback,
        )
        if setup.step.scale_gradients:
            rollback.take_snapshots(model, prepared.declared, deferred=step.skips.deferred)
        stopping = Stopping(job.stop, job.metrics) if job.stop else None
        evaluator, evaluation_data = self._evaluation(model, loss, strategy, batches)
        built = Built(
            job=job,
            setup=setup,
            plan=prepared.plan,
            train=prepared.train,
            valid=prepared.valid,
            batch_size=prepared.batch_size,
            declared=prepared.declared,
            data=prepared.data,
            fingerprint=prepared.fingerprint,
            proven_on=prepared.proven_on,
            grid=grid,
            strategy=strategy,
            model=model,
            loss=loss,
            optimizers=optimizers,
            schedule=schedule,
            average=average,
            modes=modes,
            state=state,
            step=step,
            placement=self._placement,
            batches=batches,
            windows=self._windows(step, batches, rollback, model, strategy),
            rollback=rollback,
            result=result,
            stopping=stopping,
            ending=Ending(setup.evaluation.target),
            evaluator=evaluator,
            evaluation_data=evaluation_data,
            total_steps=total_steps,
            total_epochs=total_epochs,
            compiling=compiling,
            notices=self._notices,
            resources=self._resources,
        )
        self._save_more(built)
        seed_everything(seed_of_rank(job.seed, grid.data.rank))
        return built

    def _batches(self) -> TrainingData:
        setup, prepared, grid = self._setup, self._prepared, self._grid
        self._placement = BatchPlacement(self._device, setup.loader, setup.step.memory_format)
        equal_parts = setup.pipeline.microbatches if setup.pipeline is not None and grid.stages.many else None
        size, micro = prepared.batch_size, setup.step.microbatch_size
        batches = TrainingData(
            self._job, prepared.train, size, micro, setup.loader, self._placement, grid.data, equal_parts
        )
        self._resources.callback(lambda: batches.loader.close())
        self._notices += batches.loader.notices
        self._notices += batch_norm_notices(prepared, grid, micro, batches.loader.leaves_single)
        return batches

    def _compile(self) -> CompileLog | None:
        if self._setup.compile is None:
            return None
        from hasten.training.setup.compiling import compile_model  # loads torch's compiler, which takes a second

        log = compile_model(self._setup.model, self._setup.compile)
        self._resources.callback(log.stop)
        return log

    def _loss(self) -> LossFunction:
        """The job's; over data ranks with the buffers of declared modules as the first rank has them."""
        modules, grid = self._prepared.declared.modules, self._grid
        check_same_declared(self._prepared.declared.named_parameters(), grid, self._device)
        if not modules or not grid.data.many or grid.stages.many:  # stages hold no declared modules
            return self._job.loss
        return FollowedBuffers(self._job.loss, modules, grid)

    def _optimizers(self, model: nn.Module, masters: MasterWeights, strategy: Strategy) -> list[Optimizer]:
        optimizers = build_optimizers(self._job, model, self._setup.optimizer)
        check_optimizers(optimizers, strategy.sharding)
        if without := left_out(model, optimizers):
            self._notices.append(f"no optimizer updates {', '.join(without)}: Job.parameters does not give them")
        for optimizer in optimizers:
            masters.hand_to(optimizer)
        return optimizers

    def _windows(
        self, step: Step, batches: TrainingData, rollback: StepRollback, model: nn.Module, strategy: Strategy
    ) -> WindowRunner:
        ranks: Ranks = self._grid.data
        sharding = strategy.sharding
        explain = TorchErrors(
            many=self._grid.all.many, replicated=ranks.many and sharding.is_whole, sharded=sharding.in_parts
        )
        undeclared = UndeclaredState(self._job, model, self._prepared.declared, self._device)
        return WindowRunner(
            step, batches, rollback, undeclared, explain, seed=self._job.seed, rank=ranks.rank, device=self._device
        )

    def _evaluation(
        self, model: nn.Module, loss: LossFunction, strategy: Strategy, batches: TrainingData
    ) -> tuple[Evaluator | None, EvaluationData | None]:
        job, setup, valid = self._job, self._setup, self._prepared.valid
        if valid is None:
            return None, None
        together = strategy.sharding.in_parts
        if job.eval_loss is not None and not strategy.sharding.is_whole:
            what = "is given, and with `shard`, `tensor` or `pipeline` evaluations compute the loss of the training"
            raise JobError("eval_loss", what, "leave it out, or leave the technique out of the plan")
        data = EvaluationData(valid, setup.loader, job.seed, self._placement, self._grid.data, equally_many=together)
        size = setup.evaluation.batch_size or valid.batch_size or self._prepared.batch_size
        # Between two epochs the training's workers hold nothing.
        beside = batches.loader if job.evaluate_every is not None else None
        self._notices += [each for each in data.check_before_start(size, beside) if each not in self._notices]
        evaluator = Evaluator(
            model,
            job.eval_loss or loss,
            job.metrics,
            data,
            size,
            device=self._device,
            autocast=setup.step.autocast,
            strategy=strategy,
        )
        return evaluator, data

    def _save_more(self, built: Built) -> None:
        """Parts of a checkpoint beside those that TrainState composes."""
        grid, device, notify = self._grid, self._device, self._notices.append
        lost = "what layers draw at random, as dropout does, differs from the uninterrupted run"
        extra: dict[str, Any] = {
            "step": built.step,
            "result": built.result,
            "ending": built.ending,
            "batches": built.batches,
            "random": PerRank(RandomStates(device), grid, device, lost, notify),
        }
        if built.stopping is not None:
            extra["stopping"] = built.stopping
        if built.evaluator is not None:
            extra["evaluator"] = built.evaluator
        if (low_rank := getattr(built.strategy, "low_rank", None)) is not None:
            lost = "what PowerSGD's approximation left out of gradients is lost"
            extra["low_rank"] = PerRank(low_rank, grid, device, lost, notify)
        built.state.extra = extra
