"""What runs in the process of a trial: the script, from its start on, and between two of its steps the answers to what
the search asks. REQUESTS lists them: each is a generator that yields where the script is to take one more step.

The script starts at the first request, so that the seed of a proof is known before. Where it ends before a request is
answered, it is started again, as if for the first time (process_state.py, copy_contents.py). A script that trains in
several processes does so here (rank_processes.py); rank 0 answers.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hasten.errors import InvalidMeasurement, Misconfigured, NonFinite
from hasten.facts.plan import Plan
from hasten.facts.plan_file import plan_from_toml
from hasten.facts.scripts.seen import PreparedData, Seen, seen_of
from hasten.measure.process_memory import fault_cost, page_faults
from hasten.regular_files import read_regular
from hasten.scripts.edits.places import edited_sources
from hasten.scripts.edits.source_text import bytes_of
from hasten.scripts.proving.first_step_numbers import FirstStepNumbers
from hasten.scripts.proving.gradient_steps import GradientSteps
from hasten.scripts.proving.recipe import Recipe
from hasten.scripts.running.own_processes import refuse_training_elsewhere
from hasten.scripts.running.process_groups import allow_process_groups
from hasten.scripts.running.process_state import ProcessState
from hasten.scripts.running.program import Program, run_to_end
from hasten.scripts.running.script_seeds import add_to_seeds, use_seed
from hasten.scripts.running.terminal_input import use_terminal
from hasten.scripts.running.thread_variables import heed_thread_variables
from hasten.scripts.techniques import RunningLoader, filling_steps
from hasten.scripts.trials.copy_contents import CopyContents
from hasten.scripts.trials.host_syncs import syncs_counted
from hasten.scripts.trials.rank_processes import Follower, Followers, started_ranks
from hasten.scripts.trials.scratch import Scratch, copy_place, scratch_copy
from hasten.scripts.trials.script_survey import setup_of, survey_of
from hasten.scripts.trials.step_clock import Parts, StepClock
from hasten.scripts.trials.write_guard import save_by_python
from hasten.training.probes.peak_memory import peak_memory
from hasten.tuning.trials.child_process import Messages
from hasten.tuning.trials.step_budget import use_threads
from hasten.tuning.trials.trial_outcome import LONGEST_MESSAGE, Outcome, outcome_of, sent_error
from hasten.users_code import reason_of

STEPS_AFTER_FILLING = 3  # of the second epoch, which the first one is compared with

Answer = Generator[None, None, dict[str, Any]]


class RunningScript:
    """In the process of its trial; run() never returns. users_file: the script's own, of which it runs a copy by this
    plan."""

    def __init__(self, messages: Messages, scratch: Scratch, seen: Seen, plan: Plan, users_file: Path) -> None:
        self._messages, self.scratch, self.seen, self.users_file = messages, scratch, seen, users_file
        assert plan.script is not None
        self.places = plan.script
        self.clock = StepClock(seen=seen, at_update=self._between_steps, filling_steps=filling_steps(plan, seen))
        self.starts = 0
        self.peak_memory = peak_memory(torch.device(seen.model.device))
        self._asked: Mapping[str, Any] | None = None
        self._driver = self._answers()
        self.followers = Followers()
        self.gradients: GradientSteps | None = None
        self.recipe = Recipe()
        self.first_step = FirstStepNumbers()

    def run(self) -> None:
        self._asked = self.exchange({"seconds": 0.0, "data": {}, "notices": []})
        ranks = started_ranks(self._messages)
        if isinstance(ranks, Follower):
            self.clock.at_update = partial(self._follow, ranks)
        else:
            self.followers = ranks
        add_to_seeds(self._asked.get("seed", 0))
        heed_thread_variables()
        if self._asked["do"] == "gradients":
            folder, arm, terms = Path(self._asked["folder"]), self._asked["arm"], self._asked["terms"]
            self.gradients = GradientSteps(folder=folder, arm=arm, terms=terms, writes=not ranks.rank)
            self.gradients.start()
            self.clock.at_optimizer = self._prepare_gradients
        if self._asked["do"] == "recipe":
            self.recipe.start(self.clock)
        if self._asked["do"] == "train":
            self.first_step.start(self.clock)
        self.clock.start()
        allow_process_groups()
        refuse_training_elsewhere()
        with ranks.reporting_first():
            self._run_again_and_again(ranks)

    def _run_again_and_again(self, ranks: Followers | Follower) -> None:
        contents, process = CopyContents(self.scratch), ProcessState(self.scratch.place)
        while True:
            self.starts += 1
            ranks.start()
            use_seed(ranks.rank)
            self.clock.begin()
            self._run_to_end()
            self.clock.end()
            if self._asked and self._asked["do"] == "turn" and self.clock.turns and not self.followers.channels:
                next(self._driver)  # the end was its turn, and an arm that is asked for no more is not started again
            if not self.clock.main.updates:
                raise Misconfigured("ended without a step", where=self.scratch.program.name)
            process.restore()
            ranks.wait_for_end()
            if not ranks.rank:
                contents.restore()

    def _run_to_end(self) -> None:
        try:
            run_to_end(self.scratch.program)
        except Exception as error:
            if self.starts == 1 or self.clock.main.updates or outcome_of(error) is Outcome.OUT_OF_MEMORY:
                raise
            what = f"cannot be started twice in one process: {reason_of(error)}"
            fix = "give it more epochs or steps, by its own options: it is started again where it ends too early"
            raise Misconfigured(what, where=self.scratch.program.name, fix=fix) from error

    def _prepare_gradients(self) -> None:
        if self.clock.module is not None and self.gradients is not None:
            self.gradients.prepare(self.clock.module)

    def _between_steps(self) -> None:
        next(self._driver)
        self.followers.step()
        self.clock.resume()

    def _follow(self, leader: Follower) -> None:
        if self.gradients is not None:
            self.gradients.updated()
        self.clock.losses.clear()
        leader.step(self.clock.settle, self.clock.end_epoch)
        self.clock.resume()

    def end_epoch(self) -> None:
        """As StepClock.end_epoch, on all ranks."""
        self.clock.end_epoch()
        self.followers.end_epoch()

    def _answers(self) -> Generator[None]:
        while self._asked is not None:
            self.exchange((yield from REQUESTS[self._asked["do"]](self, self._asked)))

    def exchange(self, answer: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send an answer, and wait for the next request. The process ends where none comes."""
        self._messages.send(answer)
        asked = self._messages.wait()
        if asked is None:
            os._exit(0)
        self._asked = asked
        self.clock.settle()  # what is asked for begins with an idle device
        return asked


def serve_trial(messages: Messages, program: Program, seen: Mapping[str, Any], plan: str) -> None:
    """seen: a table of seen.as_table. plan: TOML, with the script's places. The present folder is that of the user;
    TMPDIR is the trial's own."""
    found = seen_of(seen)

    def trial() -> None:
        script = program.path  # before the process is in another folder
        read = plan_from_toml(plan)
        assert read.script is not None
        sources = edited_sources([each.choice for each in read.choices], read.script, script.parent)
        edited = {os.path.normpath(script.parent / file): text for file, text in sources.items()}
        RunningScript(messages, in_scratch(program, edited, found.prepared), found, read, script).run()

    served(messages, trial)


def served(messages: Messages, do: Callable[[], None]) -> None:
    copy = str(copy_place(os.environ["TMPDIR"]))
    use_terminal()
    try:
        do()
    except BaseException as error:
        message = f"{type(error).__name__}: {error}"[:LONGEST_MESSAGE].replace(copy, "")
        sent = {
            name: text.replace(copy, "") for name, text in asdict(sent_error(error)).items()
        }  # the user's own paths
        if (rank := os.environ.get("RANK", "0")) != "0":
            message, sent["what"] = f"rank {rank}: {message}", f"rank {rank}: {sent['what']}"
        messages.send({"failed": outcome_of(error).value, "message": message, "error": sent})
    os._exit(0)  # what the script has left running ends with it


def in_scratch(program: Program, edited: Mapping[str, str], prepared: PreparedData | None = None) -> Scratch:
    """The program in a copy of the user's folder, where this process then is; its writes are guarded. edited: file of
    the user's -> the source of its copy."""
    scratch = scratch_copy(program, Path.cwd(), copy_place(os.environ["TMPDIR"]), prepared)
    for file, text in edited.items():
        scratch.edit(file, bytes_of(text, read_regular(file)))
    scratch.enter()
    save_by_python()
    return scratch


# ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _window(script: RunningScript, asked: Mapping[str, Any]) -> Answer:
    """As Trial.window. Its first step is the script's first one, whose time begins when its batch is there."""
    clock, steps = script.clock, asked["steps"]
    turns, taken, seconds = list[tuple[int, float]](), 0, 0.0
    if clock.is_first:
        first = clock.first_step_seconds
        taken, seconds = 1, first
        clock.is_first = False
        filling = yield from _filled(clock)
        turns.append((0, clock.start_seconds - first + filling))
    clock.forget_intervals()
    script.followers.allow(steps - taken)
    while taken + len(clock.intervals) < steps:
        yield
    clock.drain()
    seconds += math.fsum(clock.intervals) + clock.since_last
    usual = clock.usual or seconds / steps
    turns += [(1, max(each - usual, 0.0)) for each in clock.turns]
    interruptions = [max(each - usual, 0.0) for each in clock.interruptions]
    losses = clock.new_losses()
    if not all(map(math.isfinite, losses)):
        raise NonFinite(f"a loss is {next(each for each in losses if not math.isfinite(each))}")
    measured = {"steps": steps, "seconds": seconds, "turns": turns, "interruptions": interruptions}
    return {**measured, "usual_seconds": usual, "losses": losses, "peak_bytes": script.peak_memory()}


def _filled(clock: StepClock) -> Generator[None, None, float]:
    """Seconds of a first epoch that fills a cache, beyond those of as many later steps; 0 where none does."""
    if not clock.filling_steps:
        return 0.0
    clock.intervals.clear()
    while len(clock.intervals) < STEPS_AFTER_FILLING:
        yield
    return max(0.0, math.fsum(clock.filling) - len(clock.filling) * clock.usual)


def _turn(script: RunningScript, asked: Mapping[str, Any]) -> Answer:
    """The seconds between two epochs, with what the script does there: it evaluates, saves, begins its loader again.
    Behind its last epoch, those until its end."""
    clock = script.clock
    if script.seen.loader is None or script.seen.length.epochs is None:  # batches can be drawn by next()
        return {"seconds": 0.0}
    usual = clock.usual
    clock.turns.clear()
    script.end_epoch()
    while not clock.turns:
        yield
    return {"seconds": max(clock.turns[-1] - (usual or clock.usual), 0.0)}


def _two_epochs(script: RunningScript, asked: Mapping[str, Any]) -> Answer:
    """Losses of the first steps of two epochs, one for each step."""
    clock, steps = script.clock, asked["steps"]
    losses = [clock.new_loss()]
    for part in range(2):
        while len(losses) < (part + 1) * steps and script.starts == 1:
            yield
            losses.append(clock.new_loss())
        if part == 0 and clock.has_second_epoch:
            script.end_epoch()
    return {"losses": losses[: 2 * steps]}


def _train(script: RunningScript, asked: Mapping[str, Any]) -> Answer:
    """As training_runs.train, an answer at least every so many seconds. intervals: of the steps so far, timed."""
    clock, began, most = script.clock, time.perf_counter(), asked["steps"] or math.inf
    reported, losses = 0, [clock.new_loss()]
    while True:
        over = len(losses) >= most or script.starts > 1
        if over or time.perf_counter() - began >= asked["seconds"]:
            new, reported = losses[reported:], len(losses)
            answer = {"losses": new, "evaluated": None, "steps": len(losses), "intervals": [*clock.intervals]}
            if over:
                return {**answer, "results": {}, "first_step": script.first_step.found}
            asked = script.exchange({**answer, "results": None})
            began = time.perf_counter()
        yield
        if script.starts == 1:
            losses.append(clock.new_loss())
            if not math.isfinite(losses[-1]):
                raise NonFinite(f"the loss of step {len(losses)} is {losses[-1]}")


def _survey(script: RunningScript, asked: Mapping[str, Any]) -> dict[str, Any]:
    """As tuning.trials.survey.survey."""
    clock, seen = script.clock, script.seen
    if clock.module is None:
        what = f"has no name for {seen.model.kind} where it makes its optimizer"
        raise Misconfigured(what, where=script.scratch.program.name)
    sample = [
        torch.zeros(shape, dtype=getattr(torch, kind.removeprefix("torch."))) for shape, kind in seen.model.inputs
    ]
    setup = setup_of(clock.module, clock.main.optimizer, clock.trained_on, seen, sample)
    options = script.scratch.program.options
    running = RunningLoader(
        loader=clock.trained_on,
        alike=clock.made_alike,
        rebuilt_by="" if seen.loader is None else seen.loader.rebuilt_by,
        epochs=seen.length.epochs,
        memory_bytes=setup.machine.memory_bytes,
    )
    return survey_of(setup, seen, running, script.places, script.users_file, options)


def _gradients(script: RunningScript, asked: Mapping[str, Any]) -> Answer:
    """See gradient_steps.py. terms: of the longest sum, counted in the arm of the baseline."""
    steps = script.gradients
    assert steps is not None
    if steps.module is None:
        raise InvalidMeasurement(f"the script has no name for {script.seen.model.kind} where it makes its optimizer")
    if steps.is_in_torchscript:
        raise InvalidMeasurement("the script trains a module of TorchScript, which cannot compute in float64")
    while True:
        steps.updated()
        if steps.is_complete:
            return {"terms": steps.longest_sum()}
        if script.starts > 1:
            raise InvalidMeasurement("the script ends before its gradients could be compared")
        yield


def _recipe(script: RunningScript, asked: Mapping[str, Any]) -> Answer:
    """See recipe.py."""
    return {"recipe": (yield from script.recipe.of_two_epochs(script.end_epoch, lambda: script.starts))}


def _budget(script: RunningScript, asked: Mapping[str, Any]) -> Answer:
    """Where the seconds of a step go; see facts.trials.Budget."""
    clock, steps = script.clock, asked["steps"]
    clock.parts, clock.settles = Parts(), True
    clock.intervals.clear()
    faults = page_faults()
    while len(clock.intervals) < steps:
        yield
    faults = page_faults() - faults
    clock.settles, taken, parts = False, len(clock.intervals), clock.parts
    spent = {
        "data_wait": parts.data_wait / taken,
        "transfer": 0.0,
        "forward": parts.to_backward / taken,
        "backward": parts.backward / taken,
        "optimizer": parts.optimizer / taken,
        "evaluation": 0.0,
        "steps": taken,
    }
    rest = math.fsum(clock.intervals) / taken - (parts.data_wait + parts.computing) / taken
    reads_beside = script.seen.loader is not None and script.seen.loader.workers > 0
    on_cpu = script.seen.model.device == "cpu"
    around = {
        "on_cpu": on_cpu,
        "cores": os.cpu_count() or 1,
        "reads_beside": reads_beside,
        "fault_seconds": faults / taken * fault_cost().seconds if on_cpu else 0.0,
    }
    return {"spent": {**spent, "python": max(rest, 0.0)}, "around": around}


def _syncs(script: RunningScript, asked: Mapping[str, Any]) -> Answer:
    """Files, lines and counts of what waits for the GPU in so many steps, the most frequent first."""
    with syncs_counted() as found:
        for _ in range(asked["steps"]):
            yield
    return {"syncs": [(script.scratch.users_path(file), line, count) for (file, line), count in found.most_common()]}


def _at_once(
    answer: Callable[[RunningScript, Mapping[str, Any]], dict[str, Any]],
) -> Callable[[RunningScript, Mapping[str, Any]], Answer]:
    def request(script: RunningScript, asked: Mapping[str, Any]) -> Answer:
        return answer(script, asked)
        yield  # makes it a generator

    return request


REQUESTS: Mapping[str, Callable[[RunningScript, Mapping[str, Any]], Answer]] = {
    "window": _window,
    "turn": _turn,
    "two epochs": _two_epochs,
    "train": _train,
    "budget": _budget,
    "threads": _at_once(lambda script, asked: use_threads(asked["count"])),
    "syncs": _syncs,
    "survey": _at_once(_survey),
    "gradients": _gradients,
    "recipe": _recipe,
    "evaluate": _at_once(lambda script, asked: {"seconds": 0.0}),
    "saving": _at_once(lambda script, asked: {"seconds": 0.0}),
    "device memory": _at_once(lambda script, asked: {"held": 0, "free": 0}),
}
