"""Reads the figures of records that pictures show. An interval is (low, value, high)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import exp, log, sqrt
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from scipy.stats import binomtest
from scipy.stats import t as student

RECORDS = Path(__file__).resolve().parent.parent / "records"
XEON, EPYC, H200 = "2-cores-intel-xeon-processor", "2-cores-amd-epyc", "1-nvidia-h200"
MACHINES = {XEON: "2 cores of an Intel Xeon with AMX", EPYC: "2 cores of an AMD EPYC", H200: "One NVIDIA H200"}

Interval = tuple[float, float, float]


def result_of(question: str, where: str) -> dict[str, Any]:
    return json.loads((RECORDS / question / where / "result.json").read_text(encoding="utf-8"))


def machine(question: str, where: str) -> str:
    environment = json.loads((RECORDS / question / where / "environment.json").read_text(encoding="utf-8"))
    return f"{MACHINES[where]}, torch {environment['packages']['torch'].partition('+')[0]}"


def pairs(result: Mapping[str, Any]) -> str:
    return f"{result['control']['speedup']['pairs']} pairs of windows · 95 % intervals"


def speedup_of(result: Mapping[str, Any], arm: str) -> Interval:
    return of_ratio(next(each["speedup"] for each in result["comparisons"] if each["arm"] == arm))


def of_ratio(found: Mapping[str, float]) -> Interval:
    return found["low"], found["ratio"], found["high"]


def seconds_of_a_step(question: str, where: str, arm: str) -> float:
    """Median over the windows of an arm."""
    samples = map(json.loads, (RECORDS / question / where / "samples.jsonl").read_text(encoding="utf-8").splitlines())
    return median(each["seconds"] / each["steps"] for each in samples if each.get("arm") == arm)


def mean_ratio(over: Sequence[float], under: Sequence[float]) -> Interval:
    """The geometric mean of the ratios of runs from the same seeds, with Student's 95 % interval."""
    logs = [log(above / below) for above, below in zip(over, under, strict=True)]
    reach = float(student.ppf(0.975, len(logs) - 1)) * stdev(logs) / sqrt(len(logs))
    return exp(fmean(logs) - reach), exp(fmean(logs)), exp(fmean(logs) + reach)


def share(hits: int, of: int) -> Interval:
    """With its exact 95 % interval: Clopper and Pearson 1934, Biometrika 26:404–413."""
    between = binomtest(hits, of).proportion_ci(0.95, method="exact")
    return float(between.low), hits / of, float(between.high)
