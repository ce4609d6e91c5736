"""Scripts in many styles, unmodified: does `hasten tune FILE.py` answer each of them, and leave its folder as it was?

    python -m bench.script_corpus                 # half an hour; nothing else may run; writes a record
    python -m bench.script_corpus --quick NAME …  # these scripts, while other programs run; judges nothing

The scripts are those of tests/scripts/corpus, which the tests run as well: NAME is a file's path there. Each is copied
into a new folder and tuned with the usual options. Where the command refuses because the script's loops do not say how
long it trains, it is run again with --steps, as its message says. Data are generated and small, and a whole run takes
seconds: what is asked is whether there is an answer, and not how much faster such scripts can be.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.options import parser_of
from bench.record import PACKAGES, ROOT, Target, environment, head, target_table, write_folder

from hasten.errors import Misconfigured
from hasten.facts.choice import Choice
from hasten.facts.machine import read_machine

SECONDS = 20.0  # of a search
LONGEST = 240.0  # of a command
ENDING = 30.0  # of one that was told to end
LEAST_ANSWERED = 34 / 40  # of the scripts; fixed before the first run
ACCEPTED, NOT_ACCEPTED, NOTHING = "a plan, accepted", "a plan, not accepted", "nothing helps"
REFUSED, FAILED = "refused", "failed"
ANSWERS = (ACCEPTED, NOTHING)
UNKNOWN_LENGTH = "its length is not known"


@dataclass(frozen=True, kw_only=True, slots=True)
class Answered:
    """A script. verdict: one of the words above; why: of it, a sentence of the command. seconds: of the command.
    needs_steps: it was given --steps. unchanged: its folder has the digest that it had before."""

    script: str
    verdict: str
    why: str
    choices: list[str]
    speedup: dict[str, float] | None
    seconds: float
    needs_steps: bool
    unchanged: bool


def main() -> None:
    parser = parser_of("script_corpus", __doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="such as plain/first_net.py; default: all")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each search")
    options = parser.parse_args()
    corpus = import_corpus()
    names = options.names or [*corpus.PROGRAMS]
    if unknown := [name for name in names if name not in corpus.PROGRAMS]:
        raise Misconfigured(f"is no script of {corpus.CORPUS}", where=unknown[0])
    found = list[Answered]()
    for name in names:
        if lacking := [each for each in corpus.PROGRAMS[name].needs.split() if find_spec(each) is None]:
            raise Misconfigured(
                f"needs {lacking[0]}, which is not installed", where=name, fix="pip install -e '.[bench]'"
            )
        found.append(answered(name, corpus, options.seconds, is_busy=options.quick))
        print(row(found[-1]), flush=True)
    print(summary(found))
    if options.quick or options.names:
        print("a part of the scripts, or a busy machine, judges nothing: no record was written")
        return
    print(f"written: {written(found, options.seconds, options.records)}")


def import_corpus() -> Any:
    """The module with the table of the scripts, which lies among the tests' helpers."""
    sys.path.insert(0, str(ROOT / "tests"))
    return import_module("support.scripts.programs")


def answered(name: str, corpus: Any, seconds: float, *, is_busy: bool) -> Answered:
    with tempfile.TemporaryDirectory(prefix="corpus-") as place:
        folder, plan = Path(place, "script"), Path(place, "plan.toml")
        words = corpus.copied(name, folder)
        before = state(folder)
        tune = ["tune", "--json", "--seconds", f"{seconds:g}", "-o", str(plan), *(["--busy"] if is_busy else [])]
        code, answer, took = tuned([*tune, *words], folder)
        needs_steps = UNKNOWN_LENGTH in str(answer.get("error"))
        if needs_steps:
            code, answer, took = tuned([*tune, "--steps", str(corpus.PROGRAMS[name].updates), *words], folder)
        verdict, why = verdict_of(code, answer, has_patch=plan.with_suffix(".patch").exists())
        return Answered(
            script=name,
            verdict=verdict,
            why=" ".join(why.split()),
            choices=[str(Choice(**each)) for each in answer.get("choices", [])],
            speedup=answer.get("speedup"),
            seconds=took,
            needs_steps=needs_steps,
            unchanged=state(folder) == before,
        )


def tuned(words: Sequence[str], folder: Path) -> tuple[int | None, dict[str, Any], float]:
    """Exit code, None after LONGEST; the command's answer; and its seconds."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "hasten", *words]
    with subprocess.Popen(
        command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            shown, said = process.communicate(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            process.terminate()  # it ends what it has started
            try:
                process.communicate(timeout=ENDING)
            except subprocess.TimeoutExpired:
                process.kill()
            return None, {}, time.perf_counter() - began
    lines = shown.splitlines()
    answer = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {"error": said[-1000:]}
    return process.returncode, answer, time.perf_counter() - began


def verdict_of(code: int | None, answer: Mapping[str, Any], *, has_patch: bool) -> tuple[str, str]:
    """And why. has_patch: the command has written one."""
    if code is None:
        return FAILED, f"it took longer than {LONGEST:g} s"
    if code:
        return REFUSED if code == Misconfigured.exit_code else FAILED, str(answer.get("error", f"exit code {code}"))
    if not answer["choices"]:
        return NOTHING, ""
    return (ACCEPTED, "") if has_patch else (NOT_ACCEPTED, answer["sentence"])


def state(folder: Path) -> Mapping[str, str]:
    """Of every file and folder in it."""
    return {
        str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in sorted(folder.rglob("*"))
    }


def row(each: Answered) -> str:
    found = each.speedup
    gain = "" if found is None else f"{found['ratio']:.2f}× ({found['low']:.2f}–{found['high']:.2f})"
    verdict = f"{each.verdict}: {each.why}" if each.why else each.verdict
    steps = "--steps" if each.needs_steps else ""
    kept = "unchanged" if each.unchanged else "CHANGED"
    return (
        f"| {' | '.join([each.script, f'{each.seconds:.0f} s', verdict, gain, ', '.join(each.choices), steps, kept])} |"
    )


def summary(found: Sequence[Answered]) -> str:
    counts = Counter(each.verdict for each in found)
    parts = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    changed = sum(not each.unchanged for each in found)
    answers = sum(counts[each] for each in ANSWERS)
    return f"{answers} of {len(found)}: a plan or nothing helps ({parts}); folders changed: {changed}"


def targets_of(found: Sequence[Answered]) -> list[Target]:
    share = sum(each.verdict in ANSWERS for each in found) / len(found)
    failed = sum(each.verdict in (FAILED, NOT_ACCEPTED) for each in found)
    changed = sum(not each.unchanged for each in found)
    return [
        target("share of the scripts with an accepted plan, or the answer that nothing helps", LEAST_ANSWERED, share),
        target("searches that fail, or find a plan that is not accepted", 0, failed, at_most=True),
        target("folders that a search has changed", 0, changed, at_most=True),
    ]


def target(name: str, bound: float, value: float, *, at_most: bool = False) -> Target:
    """Of a count, which has no spread."""
    return Target(name=name, bound=bound, at_most=at_most, low=value, value=value, high=value)


def written(found: Sequence[Answered], seconds: float, records: Path) -> Path:
    machine = read_machine()
    surroundings = environment(machine, [*PACKAGES, "lightning", "transformers", "accelerate", "scikit-learn"])
    claim, targets = "Training scripts in many styles, unmodified: what hasten tune answers", targets_of(found)
    took = sum(each.seconds for each in found)
    facts = [
        f"{len(found)} scripts of tests/scripts/corpus, each tuned once for {seconds:g} s; {took / 60:.0f} minutes"
    ]
    page = [
        *head(claim, machine, surroundings, facts, "python -m bench.script_corpus"),
        f"{summary(found)}.",
        "",
        *target_table(targets),
        "",
        "| script | seconds | verdict | times as fast | choices | needs | folder |",
        "|---|---|---|---|---|---|---|",
        *map(row, found),
    ]
    result = {"claim": claim, "targets": [asdict(each) | {"outcome": each.outcome} for each in targets]}
    lines = [asdict(each) for each in found]
    return write_folder("script-corpus", records, machine, surroundings, result, lines, "\n".join(page) + "\n")


if __name__ == "__main__":
    main()
