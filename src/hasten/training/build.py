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
from hasten.training.state.random_states import PerRank, RandomStates, Stateful
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
    """Builds the parts in the order in which they need each other; each method uses what those before it have set."""

    def __init__(self, job: Job, prepared: PreparedJob, resources: ExitStack) -> None:
        self._job, self._prepared, self._setup, self._resources = job, prepared, prepared.setup, resources
        stages = 1 if self._setup.pipeline is None else self._setup.pipeline.stages
        self._device = self._setup.device
        self._grid = grid_of(stages, self._setup.shares, self._device)
        self._notices = self._setup.notices

    def build(self) -> Built:
        self._read_data()
        compiling = self._compile()
        self._divide_model()
        self._build_optimizers()
        self._build_state()
        self._build_step()
        self._build_evaluation()
        prepared, state = self._prepared, self._state
        built = Built(
            job=self._job,
            setup=self._setup,
            plan=prepared.plan,
            train=prepared.train,
            valid=prepared.valid,
            batch_size=prepared.batch_size,
            declared=prepared.declared,
            data=prepared.data,
            fingerprint=prepared.fingerprint,
            proven_on=prepared.proven_on,
            grid=self._grid,
            strategy=self._strategy,
            model=self._model,
            loss=self._loss,
            optimizers=self._optimizers,
            schedule=state.schedule,
            average=state.average,
            modes=self._modes,
            state=state,
            step=self._step,
            placement=self._placement,
            batches=self._batches,
            windows=self._windows(),
            rollback=self._rollback,
            result=self._result,
            stopping=Stopping(self._job.stop, self._job.metrics) if self._job.stop else None,
            ending=Ending(self._setup.evaluation.target),
            evaluator=self._evaluator,
            evaluation_data=self._evaluation_data,
            total_steps=self._total_steps,
            total_epochs=self._total_epochs,
            compiling=compiling,
            notices=self._notices,
            resources=self._resources,
        )
        state.extra = self._further_parts(built)
        seed_everything(seed_of_rank(self._job.seed, self._grid.data.rank))
        return built

    def _read_data(self) -> None:
        setup, prepared, grid = self._setup, self._prepared, self._grid
        self._placement = BatchPlacement(self._device, setup.loader, setup.step.memory_format)
        equal_parts = setup.pipeline.microbatches if setup.pipeline is not None and grid.stages.many else None
        size, micro = prepared.batch_size, setup.step.microbatch_size
        self._batches = batches = TrainingData(
            self._job, prepared.train, size, micro, setup.loader, self._placement, grid.data, equal_parts
        )
        self._resources.callback(lambda: batches.loader.close())
        self._notices += batches.loader.notices
        self._notices += batch_norm_notices(prepared, grid, micro, batches.loader.leaves_single)
        self._total_steps, self._total_epochs = planned_length(self._job, batches.loader.steps_per_epoch)

    def _compile(self) -> CompileLog | None:
        if self._setup.compile is None:
            return None
        from hasten.training.setup.compiling import compile_model  # loads torch's compiler, which takes a second

        log = compile_model(self._setup.model, self._setup.compile)
        self._resources.callback(log.stop)
        return log

    def _divide_model(self) -> None:
        enter = self._resources.enter_context
        self._strategy = strategy = strategy_of(self._prepared, self._grid, self._batches.first_batch, enter)
        self._model, self._loss = strategy.prepare(self._setup.model, self._job_loss())
        self._notices += strategy.notices

    def _job_loss(self) -> LossFunction:
        """Over data ranks with the buffers of declared modules as the first rank has them."""
        modules, grid = self._prepared.declared.modules, self._grid
        check_same_declared(self._prepared.declared.named_parameters(), grid, self._device)
        if not modules or not grid.data.many or grid.stages.many:  # stages hold no declared modules
            return self._job.loss
        return FollowedBuffers(self._job.loss, modules, grid)

    def _build_optimizers(self) -> None:
        self._masters = masters = MasterWeights(self._model)
        if masters and self._grid.all.many:
            raise refuse_16_bit_weights()
        self._optimizers = optimizers = build_optimizers(self._job, self._model, self._setup.optimizer)
        check_optimizers(optimizers, self._strategy.sharding)
        if without := left_out(self._model, optimizers):
            self._notices.append(f"no optimizer updates {', '.join(without)}: Job.parameters does not give them")
        for optimizer in optimizers:
            masters.hand_to(optimizer)

    def _build_state(self) -> None:
        job, setup, model = self._job, self._setup, self._model
        sharding, ranks = self._strategy.sharding, self._grid.all
        schedule = build_schedule(
            job,
            self._optimizers,
            self._total_steps,
            self._total_epochs,
            setup.schedule,
            planned_rate=setup.optimizer.learning_rate,
        )
        facts = facts_of_training(self._optimizers, schedule, self._batches.loader, self._total_steps)
        check_same_job(facts, ranks, self._device)
        average = None
        if job.average is not None:
            average = WeightAverage(model, self._masters, job.average, self._total_steps, sharding)
        self._modes = OptimizerModes(model, self._masters, self._optimizers)
        self._result = ResultWeights(model, average, self._modes, setup.to_job_weights, sharding, ranks)
        self._notices += self._result.notices
        self._state = TrainState(
            model=model,
            optimizers=self._optimizers,
            schedule=schedule,
            average=average,
            declared=self._prepared.declared,
            position=self._batches.position,
            sharding=sharding,
            device=self._device,
        )

    def _build_step(self) -> None:
        state, batches = self._state, self._batches
        self._rollback = StepRollback(batches)
        self._step = step = Step(
            self._model,
            self._loss,
            self._optimizers,
            self._setup.step,
            strategy=self._strategy,
            masters=self._masters,
            reference=batches.items_per_microbatch,
            before_update=state.schedule.before_update,
            after_update=state.schedule.after_update if state.average is None else state.after_update,
            after_update_reads_buffers=state.average is not None,
            rollback=self._rollback,
        )
        if self._setup.step.scale_gradients:
            self._rollback.take_snapshots(self._model, state.declared, deferred=step.skips.deferred)

    def _windows(self) -> WindowRunner:
        sharding, ranks = self._strategy.sharding, self._grid.data
        explain = TorchErrors(
            many=self._grid.all.many, replicated=ranks.many and sharding.is_whole, sharded=sharding.in_parts
        )
        return WindowRunner(
            self._step,
            self._batches,
            self._rollback,
            UndeclaredState(self._job, self._model, self._prepared.declared, self._device),
            explain,
            seed=self._job.seed,
            rank=ranks.rank,
            device=self._device,
        )

    def _build_evaluation(self) -> None:
        self._evaluator: Evaluator | None = None
        self._evaluation_data: EvaluationData | None = None
        job, setup, valid, sharding = self._job, self._setup, self._prepared.valid, self._strategy.sharding
        if valid is None:
            return
        if job.eval_loss is not None and not sharding.is_whole:
            what = "is given, and with `shard`, `tensor` or `pipeline` evaluations compute the loss of the training"
            raise JobError("eval_loss", what, "leave it out, or leave the technique out of the plan")
        self._evaluation_data = data = EvaluationData(
            valid, setup.loader, job.seed, self._placement, self._grid.data, equally_many=sharding.in_parts
        )
        size = setup.evaluation.batch_size or valid.batch_size or self._prepared.batch_size
        self._notices += [each for each in data.check_before_start(size) if each not in self._notices]
        self._evaluator = Evaluator(
            self._model,
            job.eval_loss or self._loss,
            job.metrics,
            data,
            size,
            device=self._device,
            autocast=setup.step.autocast,
            strategy=self._strategy,
        )

    def _further_parts(self, built: Built) -> dict[str, Stateful]:
        """Of a checkpoint, beside those that TrainState composes."""
        grid, device, notify = self._grid, self._device, self._notices.append
        lost = "what layers draw at random, as dropout does, differs from the uninterrupted run"
        parts: dict[str, Any] = {
            "step": built.step,
            "result": built.result,
            "ending": built.ending,
            "batches": built.batches,
            "stopping": built.stopping,
            "evaluator": built.evaluator,
            "random": PerRank(RandomStates(device), grid, device, lost, notify),
        }
        if (low_rank := getattr(built.strategy, "low_rank", None)) is not None:
            lost = "what PowerSGD's approximation left out of gradients is lost"
            parts["low_rank"] = PerRank(low_rank, grid, device, lost, notify)
        return {name: part for name, part in parts.items() if part is not None}
