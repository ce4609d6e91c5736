"""`hasten tune`: the plan that it writes, what it says, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from hasten.checkpoint.plan_output import held_place, write_found_plan
from hasten.cli.tuning import search_run
from hasten.facts.choice import Choice
from hasten.facts.plan import Speedup, make_plan
from hasten.facts.plan_file import read_plan
from hasten.facts.trials import Confirmed, Proven, Surveyed, Tried, records_of
from hasten.tuning.search.candidates import OUT_OF_TIME
from hasten.tuning.search.plan_profile import PlanProfile
from hasten.tuning.search.plan_search import Found
from hasten.tuning.search.search_log import Options, SearchLog
from support.cli.commands import invoked
from support.report.samples import sample_records

CLOCKED = Path(__file__).parents[1] / "tuning" / "jobs" / "clocked_jobs.py"
TRIALS = Path(__file__).parents[1] / "tuning" / "jobs" / "trial_jobs.py"


def ran(*arguments: str, busy: bool = True) -> tuple[int, str, str]:
    """Exit code, standard output and standard error. busy: other tests run meanwhile, and may."""
    return invoked("tune", *arguments, *(["--busy"] if busy else []))


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return tmp_path


@pytest.mark.proof
def test_a_search_ends_with_the_sentence_the_plan_and_the_next_command_and_leaves_its_trials(here: Path):
    code, out, err = ran(f"{CLOCKED}:job", "--allow", "rounding", "--seconds", "600")
    assert code == 0
    assert re.search(r"[\d.]+× faster: .* → ", out)
    assert f"hasten train {CLOCKED}:job --plan plan.toml" in out
    assert "the baseline again" in err
    plan = read_plan(here / "plan.toml")
    assert plan.value_of("microbatch") == 4
    assert plan.choices[0].speedup is not None
    assert plan.choices[0].proof is not None
    with (here / "plan.trials.jsonl").open() as lines:
        kinds = {type(record) for record in records_of(lines)}
    assert {Surveyed, Confirmed} <= kinds


def test_a_plan_that_no_search_has_written_is_never_overwritten(here: Path):
    (here / "plan.toml").write_text("schema = 1\n")
    code, _, err = ran(f"{CLOCKED}:job")
    assert code == 2
    assert "hasten tune did not write it" in err
    assert (here / "plan.toml").read_text() == "schema = 1\n"
    (here / "plan.trials.jsonl").write_text("")  # of an earlier search, whose plan was moved away
    assert ran(f"{CLOCKED}:job")[0] == 2
    assert (here / "plan.toml").read_text() == "schema = 1\n"


def test_of_two_searches_that_would_write_one_plan_the_second_is_refused(here: Path):
    with held_place(here / "plan.toml"):
        code, _, err = ran(f"{CLOCKED}:job")
        assert code == 2
        assert "another hasten tune is running and will write it" in err
        assert "--output" in err
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("output", "code", "says"),
    [
        ("missing/plan.toml", 15, "create the folder first"),
        (".", 15, "it is a folder, not a file"),
        ("taken.toml", 2, "taken.trials.jsonl: exists, but is not a trials file"),
    ],
)
def test_what_cannot_be_written_is_told_before_the_job_is_even_loaded(here: Path, output: str, code: int, says: str):
    (here / "taken.trials.jsonl").write_text("schema = 1\n")
    before = sorted(here.iterdir())
    found, out, err = ran(f"{TRIALS}:job_raising", "--output", output)  # it would end with 10
    assert (found, out) == (code, f"Tuning {TRIALS}:job_raising\n")
    assert says in err
    assert sorted(here.iterdir()) == before


@pytest.mark.parametrize(
    ("function", "code", "says"),
    [
        ("job_raising", 10, "ZeroDivisionError: in the middle"),
        ("not_there", 2, "not_there"),
    ],
)
def test_a_job_that_fails_as_it_is_ends_with_its_own_code_and_leaves_no_plan(
    here: Path, function: str, code: int, says: str
):
    found, _, err = ran(f"{TRIALS}:{function}")
    assert found == code
    assert says in err
    assert list(here.iterdir()) == []


# ── how it ends, whatever was found ─────────────────────────────────────────────────────────────────────────────────

SURVEYED = next(record for record in sample_records(steps=2) if isinstance(record, Surveyed))
CONFIRMED = next(record for record in sample_records(steps=2) if isinstance(record, Confirmed))
PROFILE = cast("PlanProfile", SimpleNamespace(surveyed=SURVEYED, run_seconds=412.3, costs=CONFIRMED.plain))


@pytest.fixture
def ending(here: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """Exit code and standard output of a search that has found this and was, or was not, interrupted then."""
    (here / "job.py").touch()

    def ended(
        *arguments: str,
        proven: Confirmed | None = None,
        interrupt: KeyboardInterrupt | None = None,
        late: Sequence[Choice] = (),
        tried: Sequence[Tried | Proven] = (),
        others: float = 0.0,
    ):
        log = SearchLog(options=Options(), keep=lambda record: None, report=lambda doing: None)
        log.skip([(each, OUT_OF_TIME) for each in late], ())
        for each in tried:
            log.add(each)
        found = Found(profile=PROFILE, log=log, proven=proven, interrupt=interrupt)
        monkeypatch.setattr(search_run, "_searched", lambda *asked: found)
        monkeypatch.setattr("hasten.tuning.trials.other_programs.OtherPrograms.share", others)
        monkeypatch.setattr("hasten.tuning.trials.trial_process.start_fork_server", lambda libraries: None)
        return ran("job.py:job", *arguments, busy=False)[:2]

    return ended


def test_techniques_that_there_was_no_time_for_are_named_with_the_command_that_goes_on(ending):
    late = [Choice(technique=name, value=True) for name in ("cache", "channels_last")]
    _, out = ending("--seconds", "30", late=late)
    assert "not tried   no time left: cache, channels_last" in out
    assert (
        "  optional    a longer search for what is not tried or not proven, which repeats no trial:\n  continue " in out
    )
    assert "continue    hasten tune job.py:job --seconds 120\n  next " in out
    assert json.loads(ending("--json", late=late)[1])["not_reached"] == ["cache", "channels_last"]
    assert not {"not tried", "optional"} & {*ending()[1].split("  ")}
    stopped = Tried(choice=late[0], on=(), verdict="no difference", reason="", cut_short=True)
    _, out = ending(late=late, tried=[stopped])
    assert "not tried   no time left: channels_last" in out
    assert "stopped     before its trial gave a result: cache" in out
    kept = CONFIRMED.choices[0].technique
    late = [Choice(technique=name, value=True) for name in (kept, "cache")]
    assert json.loads(ending("--json", late=late, proven=CONFIRMED)[1])["not_reached"] == ["cache"]


def trial(name: str, verdict: str, low: float, ratio: float, high: float, on: tuple[Choice, ...] = ()) -> Tried:
    seen = Speedup(ratio=ratio, low=low, high=high, pairs=8)
    choice = Choice(technique=name, value="bf16")
    return Tried(choice=choice, on=on, verdict=verdict, reason=f"{seen}", speedup=seen)


def test_what_there_was_no_time_to_try_with_the_plan_is_named_with_its_gain_and_the_command(ending):
    joined = CONFIRMED.choices[0]
    apart = [trial("compile", "faster", 1.1, 1.27, 1.4), trial("allocator", "slower", 0.7, 0.8, 0.9)]
    apart.append(trial("threads", "no difference", 0.9, 1.0, 1.1, on=(joined,)))
    apart.append(trial(joined.technique, "faster", 1.1, 1.27, 1.4))  # which is in the plan
    skipped = partial(Tried, on=CONFIRMED.choices, verdict="skipped", reason=OUT_OF_TIME)
    asked = {"tried": [*apart, *(skipped(choice=each.choice) for each in apart)], "proven": CONFIRMED}
    _, out = ending(**asked)
    assert "not tried   no time left to try together with what joined the plan:" in out
    said = f"compile = bf16 (alone 1.27×, 1.10–1.40), threads = bf16 (on top of {joined} no difference)"
    assert said in " ".join(out.split())
    assert "continue    hasten tune job.py:job --seconds 240\n" in out
    assert "allocator" not in out
    answer = json.loads(ending("--json", **asked)[1])
    assert (answer["not_reached"], answer["not_combined"]) == ([], ["compile", "threads"])


def test_what_was_shown_as_faster_and_is_in_no_plan_is_named_with_its_reason_and_the_command_that_continues(ending):
    faster = trial("precision", "faster", 1.02, 1.15, 1.3)
    failed = Proven(choice=faster.choice, passes=False, reason="the loss ends 3 % higher")
    _, out = ending(tried=[faster, trial("channels_last", "no difference", 0.9, 1.0, 1.1), failed])
    assert "not proven  precision = bf16: the loss ends 3 % higher\n" in out
    assert "continue    hasten tune job.py:job --seconds 240" in out
    assert "channels_last" not in out
    assert "was not proven to be faster" in ending(tried=[faster])[1]
    assert "not proven" not in ending(proven=CONFIRMED, tried=[faster])[1]  # another value of precision is in the plan


def test_the_result_names_every_choice_of_the_plan(ending):
    names = "precision = bf16, channels_last = true, loader_workers = 4 (start = fork) and fused_optimizer = fused"
    assert f"choices {names} next" in " ".join(ending(proven=CONFIRMED)[1].split())
    assert "choices" not in ending()[1]


def test_the_result_names_the_file_of_trials_and_says_after_how_many_runs_the_search_is_paid(ending):
    _, out = ending("--output", "night.toml", proven=CONFIRMED)
    assert "trials      night.trials.jsonl, read by hasten report and by a longer search; you may delete it\n" in out
    assert "pays        within the first run (4 min 41 s saved, the search took " in out
    assert "pays" not in ending()[1]


def test_beside_other_programs_a_search_without_a_plan_says_what_could_not_be_seen(ending):
    wide = [trial("threads", "no difference", 0.9, 1.0, 1.4), trial("cache", "slower", 0.4, 0.6, 0.9)]
    tried = [*wide, trial("evaluation_batch", "no difference", 1.0, 1.0, 1.0)]
    without = "\nother programs used 48 % of the CPU"

    def why(**found: object) -> str:
        return json.loads(ending("--busy", "--json", others=0.48, **found)[1])["why"]

    assert why(tried=tried).endswith(f"{without}: gains below about 1.40× could not be seen")
    assert why().endswith(without)
    assert why(tried=tried, proven=CONFIRMED).endswith(without)
    assert "other programs" not in ending(tried=tried, others=0.01)[1]


def test_the_seconds_of_a_plan_never_stand_without_their_machine(ending):
    for proven in (CONFIRMED, None):
        code, out = ending(proven=proven)
        assert code == 0
        assert [line.split(None, 1) for line in out.splitlines() if line.startswith("  machine")] == [
            ["machine", SURVEYED.machine]
        ]
        answer = json.loads(ending("--json", "--output", f"{proven is None}.toml", proven=proven)[1])
        assert (answer["machine"], answer["job"]) == (SURVEYED.machine, SURVEYED.job)


def test_an_interrupted_search_names_the_command_that_goes_on_as_it_was_given(ending):
    code, out = ending("--seconds", "300", "--allow", "bits", interrupt=KeyboardInterrupt())
    assert code == 130
    header, _, told, command = out.strip().splitlines()
    assert header == "Tuning job.py:job"
    assert told == "  verdict     Interrupted before a plan was proven: run the same command to continue"
    assert command.split(None, 1)[1] == "hasten tune job.py:job --allow bits --seconds 300"
    assert "--seconds 90.5" in ending("--seconds", "90.5", interrupt=KeyboardInterrupt())[1]
    assert "--seconds" not in ending(interrupt=KeyboardInterrupt())[1]


def test_an_interrupted_search_without_a_plan_names_none_that_lies_there(ending, here: Path):
    assert ending(proven=CONFIRMED)[0] == 0  # an earlier search's
    before = (here / "plan.toml").read_bytes()
    code, out = ending("--json", interrupt=KeyboardInterrupt())
    answer = json.loads(out)
    assert code == 130
    assert (answer["plan"], answer["interrupted"]) == (None, True)
    assert "Interrupted before a plan was proven" in answer["sentence"]
    assert (here / "plan.toml").read_bytes() == before


def test_an_interrupted_search_keeps_the_plan_that_was_proven_by_then(ending, here: Path):
    code, out = ending(proven=CONFIRMED, interrupt=KeyboardInterrupt())
    assert code == 130
    assert out.strip().splitlines()[-1].split(None, 1) == ["next", "hasten train job.py:job --plan plan.toml"]
    assert len(read_plan(here / "plan.toml").choices) == len(CONFIRMED.choices)


BURNING = "import time\nwhile time.process_time() < 100: pass"


@pytest.fixture
def two_other_programs() -> Iterator[None]:
    """That never stop, and are not the search's own."""
    begin = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-S', '-c', {BURNING!r}], stdout=2).pid)"
    pids = [int(subprocess.check_output([sys.executable, "-S", "-c", begin])) for _ in range(2)]  # orphans by now
    yield
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.proof
@pytest.mark.usefixtures("two_other_programs")
def test_beside_other_programs_a_search_says_how_busy_the_machine_is_and_keeps_the_plan_that_is_there(
    here: Path,
):
    job, plan = f"{TRIALS}:job", here / "plan.toml"
    write_found_plan(make_plan(threads=1), plan)
    before = plan.read_bytes()
    code, out, err = ran(job, "--seconds", "3", busy=False)
    assert code == 75
    assert out == f"Tuning {job}\n"
    err = " ".join(err.split())
    assert re.search(r"error not measurable now: other programs take \d+ % of the processor \(\d\.\d of \d", err)
    assert "run the same command when the machine is quiet" in err
    assert plan.read_bytes() == before
