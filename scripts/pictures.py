"""The pictures of docs/: each answers the question of a page from its record. `make docs` draws them again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from bar_chart import Bar, Chart, drawn
from record_figures import (
    EPYC,
    H200,
    MACHINES,
    XEON,
    Interval,
    inverse,
    machine,
    mean_ratio,
    of_ratio,
    pairs,
    result_of,
    seconds_of_a_step,
    share,
    speedup_of,
)


def pictures() -> dict[str, str]:
    """Every picture, by its path under docs/."""
    charts = (photographs, pipeline, peers, doctor, tuner, data, checkpoints, trainer, gpu)
    return {f"images/{chart.__name__}.svg": drawn(chart()) for chart in charts}


def photographs() -> Chart:
    """A step of the photographs, by what was added to it."""
    result = result_of("pipeline-images", XEON)
    names = {
        "job without a plan": "as a hasten Job",
        "+ cache": "+ cache of decoded images",
        "+ precision bf16": "+ bfloat16 autocast",
        "+ channels_last": "+ channels_last",
        "+ allocator keep_freed_memory": "+ allocator keeps freed memory",
    }
    ratios = {name: speedup_of(result, arm) for arm, name in names.items()}
    naive = 1000 * seconds_of_a_step("pipeline-images", XEON, result["baseline"])
    return Chart(
        title=f"A training step on photographs: {naive:.0f} ms in a naive script",
        rows=[
            baseline("naive script"),
            *(bar(name, inverse(ratio), times(ratio)) for name, ratio in ratios.items()),
        ],
        below=[
            "Time of a step: shorter is faster. × is how many times as fast a step is as in the naive script.",
            f"{machine('pipeline-images', XEON)} · {pairs(result)} of the ratio",
        ],
    )


def pipeline() -> Chart:
    """Whole runs of three trainings."""
    return Chart(
        title="Whole training runs: times as fast as the naive script",
        rows=[
            *whole_runs("images", "Photographs", "job without a plan", "plan", "plan and early stopping"),
            *whole_runs("text", "Text, a small GPT", "job without a plan", "plan"),
            *whole_runs("rows", "A table of 200,000 rows, where the plan is empty", "job without a plan"),
        ],
        below=[
            "Longer is faster; the script runs to its planned end. Geometric means over 5 seeds, photographs over 10,",
            f"with 95 % intervals. {machine('pipeline-images', XEON)}",
        ],
    )


def whole_runs(training: str, title: str, *ways: str) -> Iterator[Bar | str]:
    names = {"plan": "by the plan", "plan and early stopping": "by the plan, stopped early"}
    runs = result_of(f"pipeline-{training}", XEON)["wholes"]
    seconds = {arm: [run["seconds"] for run in of_arm] for arm, of_arm in runs.items()}
    naive = seconds["naive script"]
    yield title
    yield baseline(f"naive script, {median(naive):.0f} s")
    for way in ways:
        ratio = mean_ratio(naive, seconds[way])
        yield bar(names.get(way, way), ratio, times(ratio))


def peers() -> Chart:
    """Steps of hasten for each one of a library, at the library's better number of workers."""
    return Chart(
        title="Steps of hasten for each step of another loop",
        rows=[
            *beside_libraries("Photographs", "peers-images", EPYC),
            *beside_libraries("Text, a small GPT", "peers-text", XEON),
            *beside_libraries("A table of 200,000 rows", "peers-rows", EPYC),
        ],
        below=[
            "Right of the line hasten is faster. All have their best settings. Where the 95 % interval contains 1,",
            "neither is shown to be faster. 12 pairs of windows, torch 2.13. Photographs and rows: 2 cores of an AMD",
            "EPYC; text: 2 cores of an Intel Xeon with AMX.",
        ],
        origin=1,
        origin_name="as many steps",
    )


def beside_libraries(title: str, question: str, where: str) -> Iterator[Bar | str]:
    names = {
        "by_hand": "beside a plain loop",
        "lightning": "beside Lightning",
        "accelerate": "beside Accelerate",
        "transformers": "beside transformers",
    }
    measured = {target["name"]: target for target in result_of(question, where)["targets"]}
    yield title
    for library, name in names.items():
        both = (measured[f"hasten: steps for each one of {library}, tuned, {each} workers"] for each in (0, 2))
        better = min(both, key=lambda target: target["value"])
        ratio = (better["low"], better["value"], better["high"])
        yield bar(name, ratio, times(ratio))


def doctor() -> Chart:
    """Findings that are true, faults that are found, and planted faults that are named first."""
    sources, planted = result_of("doctor-at-first-sight", "any-machine"), result_of("planted-faults", EPYC)
    marked, judged = sources["marked"], sources["public"]["judged"]
    first = next(each["value"] for each in planted["targets"] if each["name"].endswith("faults: named first"))
    return Chart(
        title="Are the doctor's findings true, and does it miss faults?",
        rows=[
            f"{marked['scripts']} scripts, marked by hand",
            bar_of_share("findings that are true", marked["found_and_marked"], marked["found"]),
            bar_of_share("faults that are found", marked["found_and_marked"], marked["marks"]),
            f"{sources['public']['files']} files of public packages, findings drawn at random",
            bar_of_share("findings that are true", judged["true"], sum(judged.values())),
            f"{len(planted['outcomes'])} running jobs, each with one planted fault",
            bar_of_share("faults that are named first", int(first), len(planted["outcomes"])),
        ],
        below=[
            f"Shares with exact binomial 95 % intervals. Of the public findings {judged['doubtful']} are doubtful, and "
            f"{judged['false']} false.",
            f"Running jobs: {machine('planted-faults', EPYC)}. Source files are only read.",
        ],
    )


def tuner() -> Chart:
    """The search's plan beside the best plan of a grid."""
    rows: list[Bar | str] = []
    for where in (XEON, EPYC):
        rows.append(MACHINES[where])
        for workload, found in result_of("tuner", where)["workloads"].items():
            ratio = of_ratio(found["head_to_head"]["tuned_over_oracle"])
            rows.append(bar(workload, ratio, times(ratio)))
    return Chart(
        title="The plan of hasten tune beside the best plan of a grid",
        rows=rows,
        below=[
            "Right of the line the plan of the search is faster: seconds of the whole run by the grid's best plan,",
            "for each second by the search's. 12 pairs of windows, 95 % intervals, torch 2.13.",
        ],
        origin=1,
        origin_name="as fast as the grid's best",
    )


def data() -> Chart:
    """Images a second from JPEG files."""
    result = result_of("jpeg-loading", XEON)
    arms = {
        "Pillow, 4 workers": "DataLoader, 4 workers (its best)",
        "webdataset, 2 workers": "webdataset, 2 workers",
        "litdata, 2 workers": "litdata, 2 workers",
        "hasten, 1 threads": "hasten, 1 thread",
        "hasten, 2 threads": "hasten, 2 threads",
    }
    return Chart(
        title="Images a second from JPEG files",
        rows=[baseline("DataLoader, 0 workers"), *speedups(result, arms)],
        below=[
            "Longer is faster. 4,096 files to random crops of 224 × 224; DataLoader with Pillow, hasten without cache.",
            f"{machine('jpeg-loading', XEON)} · {pairs(result)}",
        ],
    )


def checkpoints() -> Chart:
    """Seconds of one save."""
    result = result_of("checkpoint", EPYC)
    arms = {
        "torch.save, forced": "torch.save and fsync",
        "hasten": "hasten, fsync included",
        "hasten, read back": "hasten, and read back",
    }
    ratios = {arm: inverse(speedup_of(result, arm)) for arm in arms}
    return Chart(
        title="Seconds of a save of 1 GiB, for each second of torch.save",
        rows=[
            baseline(f"torch.save, {result['seconds']['torch.save']:.2f} s"),
            *(bar(arms[arm], ratio, times(ratio), ours="hasten" in arm) for arm, ratio in ratios.items()),
        ],
        below=[
            "Shorter is faster. torch.save returns with the file in the page cache, the others with it on the disk.",
            f"{machine('checkpoint', EPYC)} · {pairs(result)}",
        ],
    )


def trainer() -> Chart:
    """Microseconds of a step beyond a plain loop."""
    result = result_of("trainer-overhead", EPYC)
    arms = {
        "hasten_train": "hasten train",
        "hasten_step": "hasten.Step in your own loop",
        "accelerate_tuned": "Accelerate, fastest settings",
        "accelerate_default": "Accelerate, default settings",
        "lightning_tuned": "Lightning, fastest settings",
        "lightning_default": "Lightning, default settings",
    }
    measured = {each["arm"]: each["extra_seconds_per_step"] for each in result["comparisons"]}
    rows: list[Bar | str] = []
    for arm, name in arms.items():
        low, value, high = (1e6 * measured[arm][each] for each in ("low", "seconds", "high"))
        places = 0 if value > 100 else 1
        text = f"{value:,.{places}f} µs ({low:,.{places}f} to {high:,.{places}f})".replace("-", "−")
        rows.append(bar(name, (low, value, high), text, ours="hasten" in arm))
    return Chart(
        title="What a trainer adds to a step, beyond a plain PyTorch loop",
        rows=rows,
        below=[
            "Microseconds a step: shorter is faster. A step of the plain loop takes about half a millisecond.",
            f"{machine('trainer-overhead', EPYC)} · {result['control']['speedup']['pairs']} pairs of processes · "
            "95 % intervals",
        ],
        origin_name="a plain loop",
    )


def gpu() -> Chart:
    """Steps on an H200, beside float32."""
    arms = {
        "tuned, by hand": "a loop by hand, the same choices",
        "hasten": "hasten",
        "hasten, from JPEG files": "hasten, from JPEG files",
    }
    first = {
        "resnet-50": ("ResNet-50, batches of 256", "strict float32"),
        "vit-h": ("ViT-H/14, batches of 64", "strict float32"),
        "gpt-2": ("GPT-2 of 124M, batches of 16", "transformers, default, float32"),
    }
    rows: list[Bar | str] = []
    for workload, (title, begin) in first.items():
        result = result_of(workload, H200)
        measured = [each["arm"] for each in result["comparisons"]]
        rows += [title, baseline(begin), *speedups(result, {arm: arms[arm] for arm in measured})]
    return Chart(
        title="Steps a second on one GPU, beside float32",
        rows=rows,
        below=[
            "Times as many steps as the first bar of each group: longer is faster. Random data on the GPU, except for",
            f"JPEG files. {machine('resnet-50', H200)} · {pairs(result_of('resnet-50', H200))}",
        ],
    )


def speedups(result: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[Bar]:
    """Bars of a record's arms, under their names in words."""
    for arm, name in names.items():
        ratio = speedup_of(result, arm)
        yield bar(name, ratio, times(ratio), ours="hasten" in arm)


def baseline(name: str) -> Bar:
    return Bar(name=name, value=1, low=1, high=1, text="baseline", ours=False)


def bar_of_share(name: str, hits: int, of: int) -> Bar:
    return bar(name, share(hits, of), f"{hits} of {of}")


def bar(name: str, measured: Interval, text: str, *, ours: bool = True) -> Bar:
    low, value, high = measured
    return Bar(name=name, value=value, low=low, high=high, text=text, ours=ours)


def times(ratio: Interval) -> str:
    low, value, high = ratio
    return f"{value:.3g}× ({low:.3g}–{high:.3g})"
