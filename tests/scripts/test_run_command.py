"""`hasten run`: a script with a plan, or without one, runs as Python runs it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import pytest

from hasten.cli.tuning.script_words import split_at_script
from hasten.facts.choice import Choice
from hasten.facts.plan import Plan
from hasten.facts.plan_file import plan_to_toml
from hasten.facts.scripts.script_places import ScriptPlaces
from hasten.scripts.edits.patch import PatchedFile, apply, patch_of
from hasten.tuning.search.candidates import plan_of
from support.scripts.programs import PROGRAMS, copied

PYTHON = (sys.executable,)
HASTEN = (sys.executable, "-m", "hasten", "run")
ENDS = """
import sys
print(__name__, sys.argv, __file__, sys.stdin.read())
raise SystemExit(int(sys.argv[1]))
"""
RAISES = "def broken():\n    raise ValueError('no')\n\n\nbroken()\n"
LISTENS = """
import sys, threading
from importlib.util import find_spec

print("loaded:", sorted({"torch", "numpy"} & {*sys.modules}))
import torch
from torch.nn.modules import module
from torch.optim import optimizer

ours = find_spec("hasten").submodule_search_locations[0]
loaded = [each for name, each in [*sys.modules.items()] if name.split(".")[0] == "torch"]
found = [each for one in loaded for each in [*vars(one).values()]]
found += [method for each in found if issubclass(type(each), type) for method in vars(each).values()]
codes = [each.__code__ for each in found if type(each) is type(find_spec)]
print("replaced:", [code for code in codes if code.co_filename.startswith(ours)], len(codes) > 1000)
hooks = [optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks]
print("hooks:", [*map(len, hooks)], bool(module._has_any_global_hook()), sys.gettrace(), sys.getprofile())
print("threads:", threading.active_count())
"""
WAITS = "import time\nprint('ready', flush=True)\ntime.sleep(600)\n"


def done(*words: str, folder: Path, text: str = "", seconds: float = 300) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        words, cwd=folder, input=text, capture_output=True, text=True, check=False, env=environment, timeout=seconds
    )


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """With an empty plan and one of two threads, which is made for the sources that `with_source` writes."""
    (tmp_path / "empty.toml").write_text(plan_to_toml(Plan()))
    return tmp_path


def with_source(folder: Path, name: str, source: str) -> None:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(source)
    digest = sha256(path.read_bytes()).hexdigest()
    places = ScriptPlaces(script=path.name, sources={path.name: digest}, device="cpu", optimizers=())
    plan = plan_of([Choice(technique="flush_denormals", value=True)])
    (folder / "plan.toml").write_text(plan_to_toml(Plan(choices=plan.choices, script=places)))


PLANS = ((), ("--plan", "empty.toml"), ("--plan", "plan.toml"))


@pytest.mark.parametrize(("plan", "is_behind"), [(PLANS[0], False), (PLANS[2], True)])
def test_arguments_standard_input_and_exit_codes_are_the_scripts_own(here, plan, is_behind):
    with_source(here, "my train.py", ENDS)
    words = ("my train.py", *plan) if is_behind else (*plan, "my train.py")
    plain = done(*PYTHON, "my train.py", "7", "--plan", "x", folder=here, text="typed")
    run = done(*HASTEN, *words, "7", "--plan", "x", folder=here, text="typed")
    assert (run.returncode, run.stdout, run.stderr) == (7, plain.stdout, "")
    assert "['my train.py', '7', '--plan', 'x']" in run.stdout


@pytest.mark.proof
def test_a_module_runs_as_python_runs_it(here):
    with_source(here, "own/train.py", ENDS)
    (here / "own" / "__init__.py").touch()
    for plan in PLANS:
        plain = done(*PYTHON, "-m", "own.train", "0", "--epochs", "3", folder=here, text="typed")
        run = done(*HASTEN, "-m", "own.train", *plan, "0", "--epochs", "3", folder=here, text="typed")
        assert (run.returncode, run.stdout, run.stderr) == (0, plain.stdout, "")


@pytest.mark.parametrize("plan", PLANS[1:])
def test_a_traceback_is_the_scripts_own(here, plan):
    with_source(here, "train.py", RAISES)
    plain = done(*PYTHON, "train.py", folder=here)
    run = done(*HASTEN, *plan, "train.py", folder=here)
    assert (run.returncode, run.stdout) == (1, "")
    moved = [line.partition(", in ")[2] or line.strip() for line in run.stderr.splitlines()]
    assert moved == [line.partition(", in ")[2] or line.strip() for line in plain.stderr.splitlines()]
    assert f'"{here / "train.py"}", line 2, in broken' in run.stderr


@pytest.mark.parametrize("plan", PLANS[1:])
def test_a_script_starts_without_torch_and_with_no_hook_on_it(here, plan):
    with_source(here, "train.py", LISTENS)
    run = done(*HASTEN, *plan, "train.py", folder=here)
    begins = "loaded: []\nreplaced: [] True\nhooks: [0, 0] False None None\nthreads: 1\n"
    assert (run.stdout, run.stderr) == (begins, "")


@pytest.mark.parametrize("plan", [PLANS[0], pytest.param(PLANS[1], marks=pytest.mark.proof), PLANS[2]])
def test_ctrl_c_ends_it_as_python_ends(here, plan):
    with_source(here, "train.py", WAITS)
    codes, traces = list[int](), list[str]()
    for words in ((*PYTHON, "train.py"), (*HASTEN, *plan, "train.py")):
        with subprocess.Popen(words, cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGINT)
            traces.append(process.communicate(timeout=60)[1])
            codes.append(process.returncode)
    assert codes == [-signal.SIGINT] * 2
    assert [trace.splitlines()[-1] for trace in traces] == ["KeyboardInterrupt"] * 2
    assert "hasten" not in traces[1].replace(str(here), "")


@pytest.mark.parametrize(
    ("source", "name", "says"),
    [
        (ENDS + "\n", "train.py", "has changed since the plan was made for it"),
        (ENDS, "other.py", "is the plan of train.py, not of other.py"),
    ],
)
def test_a_plan_of_other_sources_is_refused_in_a_sentence(here, source, name, says):
    with_source(here, "train.py", ENDS)
    (here / name).write_text(source)
    run = done(*HASTEN, "--plan", "plan.toml", name, "0", folder=here)
    assert (run.returncode, run.stdout) == (2, "")
    assert says in " ".join(run.stderr.split())
    assert "Traceback" not in run.stderr


def with_patch(here: Path, after: bytes = b"print(2)\n") -> PatchedFile:
    """Of a script that prints 1 and a plan without places: what runs is what the patch says."""
    with_source(here, "train.py", "print(1)\n")
    script = here / "train.py"
    file = PatchedFile(path=script, before=b"print(1)\n", after=after)
    plan = (here / "plan.toml").read_bytes()
    (here / "plan.patch").write_bytes(patch_of([file], here, here / "plan.patch", plan, script))
    return file


@pytest.mark.parametrize("is_edited", [False, True])
def test_a_script_with_the_plans_patch_applied_runs_unchanged_unless_the_plan_was_edited(here, is_edited):
    apply([with_patch(here)])
    plan = here / "plan.toml"
    plan.write_text(plan.read_text() + "# edited\n" * is_edited)
    run = done(*HASTEN, "--plan", "plan.toml", "train.py", folder=here)
    if is_edited:
        assert (run.returncode, run.stdout) == (2, "")
    else:
        says = "plan.patch is applied to train.py, so the plan changes nothing more\n"
        assert (run.returncode, run.stdout, run.stderr) == (0, "2\n", says)


def test_a_plan_runs_by_the_patch_beside_it_which_stays_unapplied(here):
    file = with_patch(here)
    (here.parent / "link").symlink_to(here)
    for plan in ("plan.toml", str(here.parent / "link" / "plan.toml")):
        run = done(*HASTEN, "--plan", plan, "train.py", folder=here)
        assert (run.returncode, run.stdout, run.stderr) == (0, "2\n", "")
    assert file.path.read_bytes() == file.before


@pytest.mark.parametrize("changed", ["plan.toml", "plan.patch"])
def test_a_plan_that_was_edited_or_whose_patch_was_is_followed_by_its_places(here, changed):
    with_patch(here)
    text = (here / changed).read_text()
    (here / changed).write_text(f"{text}# edited\n" if changed == "plan.toml" else text.replace("+print", "+ print"))
    run = done(*HASTEN, "--plan", "plan.toml", "train.py", folder=here)
    assert (run.returncode, run.stdout) == (0, "1\n")


def test_a_patch_that_is_applied_in_another_folder_leaves_the_plan_to_a_script_of_the_same_name(here):
    apply([with_patch(here)])
    (here / "other").mkdir()
    (here / "other/train.py").write_text("print(3)\n")
    run = done(*HASTEN, "--plan", "../plan.toml", "train.py", folder=here / "other")
    assert (run.returncode, run.stdout) == (2, "")
    assert "has changed since the plan was made for it" in " ".join(run.stderr.split())


def test_the_plan_of_a_job_is_refused(here):
    with_source(here, "train.py", ENDS)
    (here / "job.toml").write_text(plan_to_toml(plan_of([Choice(technique="threads", value=1)])))
    run = done(*HASTEN, "train.py", "--plan", "job.toml", "0", folder=here)
    assert (run.returncode, run.stdout) == (2, "")
    assert "is the plan of a job, not of a script" in " ".join(run.stderr.split())


@pytest.mark.parametrize(
    ("words", "own", "behind"),
    [
        ("run train.py --plan p.toml -e 3", "run --plan p.toml train.py", "-e 3"),
        ("run train.py --plan=p.toml -e 3", "run --plan=p.toml train.py", "-e 3"),
        ("run --plan p.toml train.py --plan 3", "run --plan p.toml train.py", "--plan 3"),
        ("run --plan=p.toml train.py --plan 3", "run --plan=p.toml train.py", "--plan 3"),
        ("run train.py -e 3 --plan p.toml", "run train.py", "-e 3 --plan p.toml"),
        ("tune -o p.toml train.py --plan x", "tune -o p.toml train.py", "--plan x"),
        ("tune --apply --seconds=3 train.py -q", "tune --apply --seconds=3 train.py", "-q"),
    ],
)
def test_options_of_hasten_stand_before_the_script(words, own, behind):
    assert split_at_script(words.split()) == (own.split(), behind.split())


def test_of_a_job_no_word_is_a_scripts():
    assert split_at_script(["tune", "job.py:job", "--seconds", "3"]) is None


# ── all scripts of the corpus ───────────────────────────────────────────────────────────────────────────────────────

FEW = ("package/tagger/train.py",)
TIMED = "odd/tb_logging.py"  # names of its files have the time
EXACT = [name for name, program in PROGRAMS.items() if program.repeats and name.endswith(".py") and name != TIMED]


TIMES = re.compile(r"\b[\d.]+s\b|['\"]\w+_(?:runtime|second)['\"]: '?[\d.e+]+")
PROGRESS = re.compile(r".*(?:it/s|s/it|%\|).*\n?")  # drawn again whenever a time is over


def _without_times(path: Path) -> bytes:
    data = path.read_bytes()
    return TIMES.sub("", data.decode()).encode() if path.suffix == ".json" else data


def leavings(folder: Path) -> Mapping[str, str]:
    return {
        str(path.relative_to(folder)): sha256(_without_times(path)).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def run_of(command: tuple[str, ...], name: str, folder: Path) -> tuple[int, list[str], Mapping[str, str]]:
    """Exit code, what it prints on both streams, and the files that are there afterwards. folder: where there is no
    folder "own"."""
    words = copied(name, folder / "own")
    ended = done(*command, *words, folder=folder / "own")
    left = leavings(folder / "own")
    shutil.rmtree(folder / "own")
    return ended.returncode, [TIMES.sub("", PROGRESS.sub("", each)) for each in (ended.stdout, ended.stderr)], left


@pytest.mark.parametrize(
    "name", [each if each in FEW else pytest.param(each, marks=pytest.mark.proof) for each in EXACT]
)
def test_without_choices_a_script_does_what_it_does_under_python(name, tmp_path):
    """To the last character of what it prints, and to the last byte of its files, but for times."""
    for needed in PROGRAMS[name].needs.split():
        pytest.importorskip(needed)
    plan = tmp_path / "empty.toml"
    plan.write_text(plan_to_toml(Plan()))
    plain = run_of(PYTHON, name, tmp_path)  # in a folder of the same name, which scripts print
    assert run_of((*HASTEN, "--plan", str(plan)), name, tmp_path) == plain
