"""Write a benchmark's outcome down so that a stranger can judge and repeat it.

    records/<question>/<machine>/     the latest run
        result.json        date, ratios and costs with their intervals, the control, the targets and their outcomes
        samples.jsonl      every window as it ran
        environment.json   machine, versions, threads, commit: by allow-list, so no name, path or secret can slip in
        README.md          the same in words, generated: claim, machine, baseline, spread, the command that repeats it
        history.jsonl      earlier runs, a line each: date, commit, claim, comparisons and targets; and, added by hand,
                           what docs quote of a run beyond these (quoted)

A target that was missed is written like one that was met.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from bench.arms import Measured, OneOff, Protocol

from hasten.errors import Misconfigured
from hasten.facts.machine import Machine, read_machine
from hasten.measure.paired_timing import Comparison

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "records"
PACKAGES = ("hasten", "torch", "numpy")
TELLING_FEATURE = re.compile(r"(avx|amx|sse4|fma|f16c|bf16|asimd|sve|neon|fphp)\w*")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A bound fixed before the first run, and what was measured against it."""

    name: str
    bound: float
    at_most: bool  # False: at least
    low: float
    value: float
    high: float

    @property
    def outcome(self) -> Literal["met", "missed", "inconclusive"]:
        """Decided only where the whole interval lies on one side of the bound."""
        met = [end <= self.bound if self.at_most else end >= self.bound for end in (self.low, self.high)]
        return "met" if all(met) else "inconclusive" if any(met) else "missed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    what: str  # the question, as a short name for the folder
    claim: str  # one sentence: what was compared, on what work
    command: str  # that repeats it
    protocol: Protocol
    control: Comparison
    comparisons: Sequence[Comparison]  # all against the same baseline
    measured: Measured
    targets: Sequence[Target] = ()
    packages: Sequence[str] = ()  # beside our own, whose versions matter
    findings: Mapping[str, Any] = field(default_factory=dict[str, Any])  # of another kind: go into result.json as given
    tables: Sequence[str] = ()  # lines of the page that follow the targets
    remarks: Sequence[str] = ()  # and the same in words


def write_record(record: Record, folder: Path = RECORDS, machine: Machine | None = None) -> Path:
    """Write the four files below `folder`, by question and machine; an earlier run becomes a line of history."""
    machine = machine or read_machine()
    surroundings = environment(machine, (*PACKAGES, *record.packages))
    page = readme(record, machine, surroundings)
    return write_folder(record.what, folder, machine, surroundings, result(record), samples(record), page)


def write_folder(
    what: str,
    folder: Path,
    machine: Machine,
    surroundings: Mapping[str, Any],
    found: Mapping[str, Any],
    lines: Iterable[Mapping[str, Any]],
    page: str,
) -> Path:
    """The four files of any record, also of one that is of no speed."""
    home = folder / what / hardware(machine)
    home.mkdir(parents=True, exist_ok=True)
    if (home / "result.json").exists():
        with (home / "history.jsonl").open("a", encoding="utf-8") as history:
            history.write(f"{json.dumps(headline(home), ensure_ascii=False)}\n")
    dated = {"date": f"{datetime.now(UTC):%Y-%m-%d}", **found}
    (home / "result.json").write_text(_json(dated), encoding="utf-8")
    (home / "environment.json").write_text(_json(surroundings), encoding="utf-8")
    (home / "samples.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    (home / "README.md").write_text(page, encoding="utf-8")
    return home


def headline(home: Path) -> dict[str, Any]:
    """What stays of a run when a later one takes its place. home: its folder."""
    run = json.loads((home / "result.json").read_text(encoding="utf-8"))
    commit = json.loads((home / "environment.json").read_text(encoding="utf-8"))["commit"]
    line: dict[str, Any] = {"date": run["date"], "commit": commit, "claim": run.get("claim")}
    if "control" in run:
        line["control"] = _rounded(run["control"])
    line["comparisons"] = [{"arm": each["arm"], "speedup": _rounded(each)} for each in run.get("comparisons", [])]
    return line | {"targets": run.get("targets") or []}


def _rounded(comparison: Mapping[str, Any]) -> dict[str, float]:
    return {name: round(comparison["speedup"][name], 4) for name in ("ratio", "low", "high")}


def environment(machine: Machine, packages: Sequence[str]) -> dict[str, Any]:
    """What a result may depend on. Each entry is named here; nothing is taken over wholesale."""
    import torch

    return {
        "processor": machine.processor,
        "processor_features": sorted(filter(TELLING_FEATURE.fullmatch, machine.processor_features)),
        "architecture": platform.machine(),
        "cores": machine.cores,
        "memory_bytes": machine.memory_bytes,
        "accelerator": machine.accelerator,
        "accelerators": machine.accelerators,
        "accelerator_memory_bytes": machine.accelerator_memory_bytes,
        "system": platform.system(),
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
        "packages": {name: metadata.version(name) for name in packages},
        "thread_variables": {name: _whole_number(os.environ.get(name)) for name in THREAD_VARIABLES},
        "commit": _git("rev-parse", "HEAD"),
        "commit_modified": bool(_git("status", "--porcelain", "--untracked-files=no")),
    }


def result(record: Record) -> dict[str, Any]:
    one_off = {cost.arm: cost for cost in record.measured.one_off}
    return {
        "claim": record.claim,
        "command": record.command,
        "protocol": asdict(record.protocol),
        "baseline": record.comparisons[0].baseline,
        "control": _numbers(record.control),
        "comparisons": [
            {"arm": found.challenger, **_numbers(found)}
            | {"one_off": asdict(one_off[found.challenger])}
            | {"break_even_step": break_even_step(found, one_off)}
            for found in record.comparisons
        ],
        "baseline_one_off": asdict(one_off[record.comparisons[0].baseline]),
        "targets": [asdict(target) | {"outcome": target.outcome} for target in record.targets],
        **record.findings,
    }


def samples(record: Record) -> list[dict[str, Any]]:
    return [
        {"phase": phase, **asdict(window)}
        for phase, windows in (("control", record.control.windows), ("main", record.measured.windows))
        for window in windows
    ]


def break_even_step(found: Comparison, one_off: Mapping[str, OneOff]) -> int | None:
    """From which step on the challenger's whole run is the shorter one, build and warm-up included; None: from none."""
    extra_seconds = one_off[found.challenger].seconds - one_off[found.baseline].seconds
    if extra_seconds <= 0 and found.extra.seconds <= 0:
        return 0
    return math.ceil(extra_seconds / -found.extra.seconds) if found.extra.seconds < 0 else None


def hardware(machine: Machine) -> str:
    """A machine as a part of a folder's name: "2-cores-intel-xeon-platinum-8581c", "1-nvidia-h200"."""
    name = f"{machine.accelerators} {machine.accelerator}" if machine.accelerator else _cores(machine)
    return re.sub(r"[^a-z0-9]+", "-", re.sub(r"\((r|tm)\)|\bcpu\b|@.*", " ", name.lower())).strip("-")


def readme(record: Record, machine: Machine, surroundings: Mapping[str, Any]) -> str:
    baseline = record.comparisons[0].baseline
    versions = ", ".join(f"{name} {version}" for name, version in surroundings["packages"].items())
    threads = sorted({str(cost.threads) for cost in record.measured.one_off if cost.threads is not None})
    pairs = "windows" if record.protocol.starts == 1 else "processes"
    verdict = (
        "found a difference where there is none; read what follows with doubt" if record.control.differs else "held"
    )
    lines = [
        f"# {record.claim}",
        "",
        f"* Machine: {machine.summary}",
        f"* Versions: Python {surroundings['python']}, {versions}",
        f"* Threads inside one operation: {', '.join(threads) or 'none used'}{_bound(record.protocol)}",
        f"* Commit: {_commit(surroundings)}",
        f"* Baseline: {baseline}",
        f"* Windows: {_windows(record)}; one arm ran at a time, in turns, all others stopped",
        f"* Control ({record.control.baseline} against itself): {record.control.speedup}: {verdict}",
        f"* Repeat: `{record.command}`",
        "",
        *_table(record),
    ]
    if record.targets:
        lines += ["", *target_table(record.targets)]
    if record.tables:
        lines += ["", *record.tables]
    lines += [f"\n{remark[0].upper()}{remark[1:]}." for remark in record.remarks]
    return "\n".join([*lines, "", f"Ranges of windows are 95 % intervals over pairs of {pairs}.", ""])


def head(
    claim: str, machine: Machine, surroundings: Mapping[str, Any], facts: Sequence[str], command: str
) -> list[str]:
    """How the page of a record begins that is of no arms and windows. facts: what else a reader has to know first."""
    return [
        f"# {claim}",
        "",
        f"* Machine: {machine.summary}",
        f"* Versions: Python {surroundings['python']}, torch {surroundings['packages']['torch']}",
        f"* Commit: {_commit(surroundings)}",
        *(f"* {fact}" for fact in facts),
        f"* Repeat: `{command}`",
        "",
    ]


def target_table(targets: Sequence[Target]) -> list[str]:
    return [
        "| target, fixed before the run | bound | measured | outcome |",
        "|---|---|---|---|",
        *(
            f"| {target.name} | {'≤' if target.at_most else '≥'} {target.bound:g} "
            f"| {target.value:.3g} ({target.low:.3g} to {target.high:.3g}) | {target.outcome} |"
            for target in targets
        ),
    ]


def _commit(surroundings: Mapping[str, Any]) -> str:
    modified = ", with uncommitted changes" if surroundings["commit_modified"] else ""
    return f"{surroundings['commit'] or 'unknown'}{modified}"


def _bound(protocol: Protocol) -> str:
    return (
        ""
        if protocol.threads is None
        else f"; every arm bound to {protocol.threads} of the cores, where the system can"
    )


def _windows(record: Record) -> str:
    protocol = record.protocol
    counts = {each.arm: each.steps for each in record.measured.windows}
    others = {arm: steps for arm, steps in counts.items() if protocol.seconds is not None or steps != protocol.steps}
    but = f" ({', '.join(f'{arm}: {steps}' for arm, steps in others.items())})" if others else ""
    long = f"{protocol.steps} steps" if protocol.seconds is None else f"steps for about {protocol.seconds:g} s"
    each = f"{long} each{but}, {protocol.rounds} a side, after {protocol.warmup_steps} steps of warm-up"
    if protocol.starts == 1:
        return each
    return f"{each}; that {protocol.starts} times, in new processes each time, of which the middle window counts"


def _table(record: Record) -> list[str]:
    one_off = {cost.arm: cost for cost in record.measured.one_off}
    baseline = one_off[record.comparisons[0].baseline]
    head = ["", "step of the baseline ÷ its own step", "beyond the baseline, µs a step", "build, s", "warm-up, s"]
    rows = [
        f"| {baseline.arm} | 1 | 0 | {baseline.build_seconds:.2f} | {baseline.warmup_seconds:.2f} | – |",
        *(
            f"| {found.challenger} | {found.speedup} | {_microseconds(found)} "
            f"| {one_off[found.challenger].build_seconds:.2f} | {one_off[found.challenger].warmup_seconds:.2f} "
            f"| {_step(break_even_step(found, one_off))} |"
            for found in record.comparisons
        ),
    ]
    return [f"| {' | '.join([*head, 'break-even step'])} |", "|---" * 6 + "|", *rows]


def _numbers(found: Comparison) -> dict[str, Any]:
    return {"speedup": asdict(found.speedup), "extra_seconds_per_step": asdict(found.extra), "differs": found.differs}


def _microseconds(found: Comparison) -> str:
    extra = found.extra
    return f"{extra.seconds * 1e6:+.1f} ({extra.low * 1e6:+.1f} to {extra.high * 1e6:+.1f})"


def _step(step: int | None) -> str:
    return "never" if step is None else str(step)


def _cores(machine: Machine) -> str:
    return f"{machine.cores} cores {machine.processor}"


def keep_to_one_source(folder: Path) -> None:
    """A bench that resumes must have the source that it began with, because a record names one commit. Raises
    Misconfigured where the folder holds measurements of another source."""
    source = hashlib.sha256()
    for path in sorted(path for room in ("src", "bench", "examples") for path in (ROOT / room).rglob("*.py")):
        source.update(f"{path.relative_to(ROOT)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    mark, digest = folder / "source.sha256", source.hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    if not mark.exists() and not any(folder.iterdir()):
        mark.write_text(digest, encoding="utf-8")
    if not mark.exists() or mark.read_text(encoding="utf-8") != digest:
        what = "holds what another state of the source has measured"
        raise Misconfigured(what, where=str(folder), fix="empty it, or name another folder with --work")


def _whole_number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _git(*arguments: str) -> str | None:
    """What git says of this repository; None where there is no git, or no repository."""
    try:
        found = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()


def _json(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"
