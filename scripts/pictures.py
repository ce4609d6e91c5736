"""The pictures of docs/: each answers the question of a page from its record; a longer bar is better in all of them.

`make docs` draws them again.
"""

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
    """The speed of a step on the photographs, by what was added to it."""
    result = result_of("pipeline-images", XEON)
    names = {
        "job without a plan": "as a hasten Job",
        "+ cache": "+ cache of decoded images",
        "+ precision bf16": "+ bfloat16 autocast",
        "+ channels_last": "+ channels_last",
        "+ allocator keep_freed_memory": "+ allocator keeps freed memory",
    }
    naive = 1000 * seconds_of_a_step("pipeline-images", XEON, result["baseline"])
    return Chart(
        title="Training steps on photographs: times as fast as in a naive script",
        length="Steps a second: longer is faster.",
        rows=[
            baseline(f"naive script, {naive:.0f} ms a step"),
            *(bar(name, speedup_of(result, arm), times(speedup_of(result, arm))) for arm, name in names.items()),
        ],
        below=f"{machine('pipeline-images', XEON)} · {pairs(result)}",
    )


def pipeline() -> Chart:
    """Whole runs of three trainings."""
    return Chart(
        title="Whole training runs: times as fast as the naive script",
        length="Runs in the same time: longer is faster.",
        rows=[
            *whole_runs("images", "Photographs", "job without a plan", "plan", "plan and early stopping"),
            *whole_runs("text", "Text, a small GPT", "job without a plan", "plan"),
            *whole_runs("rows", "A table of 200,000 rows, where the plan is empty", "job without a plan"),
        ],
        below="The script runs to its planned end. Geometric means over 5 seeds, photographs over 10, with 95 % "
        f"intervals. {machine('pipeline-images', XEON)}",
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
        length="Longer is better for hasten. The mark is equal speed: hasten is shown to be faster where the whole "
        "interval lies beyond it.",
        rows=[
            *beside_libraries("Photographs", "peers-images", EPYC),
            *beside_libraries("Text, a small GPT", "peers-text", XEON),
            *beside_libraries("A table of 200,000 rows", "peers-rows", EPYC),
        ],
        below="All have their best settings. Where the 95 % interval contains 1, neither is shown to be faster. 12 "
        "pairs of windows, torch 2.13. Photographs and rows: 2 cores of an AMD EPYC; text: 2 cores of an Intel Xeon "
        "with AMX.",
        mark=1,
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
        length="Share of all: longer is better, and a whole bar is all of them.",
        rows=[
            f"{marked['scripts']} scripts, marked by hand",
            bar_of_share("findings that are true", marked["found_and_marked"], marked["found"]),
            bar_of_share("faults that are found", marked["found_and_marked"], marked["marks"]),
            f"{sources['public']['files']} files of public packages, drawn at random",
            bar_of_share("findings that are true", judged["true"], sum(judged.values())),
            f"{len(planted['outcomes'])} running jobs, each with one planted fault",
            bar_of_share("faults that are named first", int(first), len(planted["outcomes"])),
        ],
        below=f"Shares with exact binomial 95 % intervals. Of the public findings {judged['doubtful']} are doubtful, "
        f"and {judged['false']} false. Running jobs: {machine('planted-faults', EPYC)}. Source files are only read.",
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
        title="The plan of hasten tune: times as fast as the best plan of a grid",
        length="Longer is faster. The mark is the speed of the grid's best: the search's plan is shown to be faster "
        "where the whole interval lies beyond it.",
        rows=rows,
        below="Seconds of the whole run by the grid's best plan, for each second by the search's. 12 pairs of windows, "
        "95 % intervals, torch 2.13.",
        mark=1,
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
        length="Times as many as by the first loader: longer is faster.",
        rows=[baseline("DataLoader, 0 workers"), *speedups(result, arms)],
        below="4,096 files to random crops of 224 × 224; DataLoader with Pillow, hasten without cache. "
        f"{machine('jpeg-loading', XEON)} · {pairs(result)}",
    )


def checkpoints() -> Chart:
    """The speed of one save."""
    result = result_of("checkpoint", EPYC)
    arms = {
        "torch.save, forced": "torch.save and fsync",
        "hasten": "hasten, fsync included",
        "hasten, read back": "hasten, and read back",
    }
    return Chart(
        title="A save of 1 GiB: times as fast as torch.save",
        length="Saves in the same time: longer is faster.",
        rows=[baseline(f"torch.save, {result['seconds']['torch.save']:.2f} s"), *speedups(result, arms)],
        below="torch.save returns with the file in the page cache, the others with it on the disk. "
        f"{machine('checkpoint', EPYC)} · {pairs(result)}",
    )


def trainer() -> Chart:
    """The speed of a step beside a plain loop."""
    result = result_of("trainer-overhead", EPYC)
    arms = {
        "hasten_train": "hasten train",
        "hasten_step": "hasten.Step in your own loop",
        "accelerate_tuned": "Accelerate, fastest settings",
        "accelerate_default": "Accelerate, default settings",
        "lightning_tuned": "Lightning, fastest settings",
        "lightning_default": "Lightning, default settings",
    }
    return Chart(
        title="Steps of a trainer, for each step of a plain PyTorch loop",
        length="Steps in the same time: longer is faster.",
        rows=[baseline("a plain loop, about half a millisecond"), *speedups(result, arms)],
        below=f"{machine('trainer-overhead', EPYC)} · {result['control']['speedup']['pairs']} pairs of processes · "
        "95 % intervals",
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
        length="Times as many as the first bar of each group: longer is faster.",
        rows=rows,
        below=f"Random data on the GPU, except for JPEG files. {machine('resnet-50', H200)} · "
        f"{pairs(result_of('resnet-50', H200))}",
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
