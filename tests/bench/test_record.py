from __future__ import annotations

import json
from dataclasses import replace

import pytest
from bench.arms import Measured, OneOff, Protocol
from bench.record import (
    Record,
    Target,
    environment,
    keep_to_one_source,
    write_record,
)

from hasten.errors import Misconfigured
from hasten.facts.machine import read_machine
from hasten.measure.paired_timing import Window, compare, interleaved
from support import laptop


def windows(seconds: dict[str, float]) -> tuple[Window, ...]:
    return tuple(Window(arm=name, steps=100, seconds=seconds[name]) for name in interleaved(list(seconds), 12))


def one_off(arm: str, build_seconds: float) -> OneOff:
    return OneOff(arm=arm, build_seconds=build_seconds, warmup_seconds=1.0, warmup_steps=10, threads=1)


def a_record() -> Record:
    main = windows({"plain": 1.0, "fast": 0.5})
    return Record(
        what="nothing",
        claim="Nothing at all, twice as fast",
        command="python -m bench.nothing",
        protocol=Protocol(rounds=12, steps=100, warmup_steps=10),
        control=compare(windows({"plain": 1.0, "plain again": 1.0}), baseline="plain", challenger="plain again"),
        comparisons=[compare(main, baseline="plain", challenger="fast")],
        measured=Measured(windows=main, one_off=(one_off("plain", 0.0), one_off("fast", 5.0))),
        targets=[Target(name="ratio", bound=3.0, at_most=False, low=2.0, value=2.0, high=2.0)],
    )


def test_a_record_holds_the_result_the_samples_the_environment_and_a_page(tmp_path):
    home = write_record(a_record(), tmp_path, laptop())
    assert home.relative_to(tmp_path).as_posix() == "nothing/2-cores-test-processor"
    result = json.loads((home / "result.json").read_text())
    assert result["baseline"] == "plain"
    assert result["comparisons"][0]["speedup"] == {"ratio": 2.0, "low": 2.0, "high": 2.0, "pairs": 12}
    assert result["comparisons"][0]["break_even_step"] == 1000
    assert result["targets"][0]["outcome"] == "missed"
    assert result["control"]["differs"] is False
    lines = [json.loads(line) for line in (home / "samples.jsonl").read_text().splitlines()]
    assert [line["phase"] for line in lines] == ["control"] * 24 + ["main"] * 24
    assert lines[24] == {"phase": "main", "arm": "plain", "steps": 100, "seconds": 1.0, "start": 0}
    page = (home / "README.md").read_text()
    for said in (
        "Nothing at all",
        "test processor",
        "torch 2.",
        "Threads inside one operation: 1",
        "2.00× (2.00–2.00, 12 pairs)",
        "`python -m bench.nothing`",
        "| ratio | ≥ 3 | 2 (2 to 2) | missed |",
        "held",
    ):
        assert said in page


def test_of_an_earlier_run_its_headline_stays(tmp_path):
    homes = {write_record(a_record(), tmp_path, laptop()) for _ in range(3)}
    (home,) = homes
    earlier = [json.loads(line) for line in (home / "history.jsonl").read_text().splitlines()]
    assert [each["date"] for each in earlier] == [json.loads((home / "result.json").read_text())["date"]] * 2
    assert earlier[0]["comparisons"] == [{"arm": "fast", "speedup": {"ratio": 2.0, "low": 2.0, "high": 2.0}}]
    assert earlier[0]["targets"][0]["outcome"] == "missed"


def test_the_environment_tells_versions_and_no_secrets(monkeypatch, tmp_path):
    import os
    import socket

    monkeypatch.setenv("OMP_NUM_THREADS", "1 secret-token")
    monkeypatch.setenv("API_KEY", "secret-token")
    machine = replace(read_machine(), processor_features=frozenset({"avx512f", "amx_bf16", "hypervisor"}))
    text = json.dumps(environment(machine, ["torch", "numpy"]))
    for hidden in ("secret-token", socket.gethostname(), os.getcwd(), os.path.expanduser("~"), "hypervisor"):
        assert hidden not in text
    told = json.loads(text)
    assert told["processor_features"] == ["amx_bf16", "avx512f"]
    # torch itself also tells its build: 2.13.0+cpu, whose package may be called 2.13.0
    assert machine.torch.startswith(told["packages"]["torch"])
    assert told["thread_variables"]["OMP_NUM_THREADS"] is None


def test_a_bench_that_was_stopped_goes_on_with_the_source_that_it_began_with_and_with_no_other(tmp_path, monkeypatch):
    keep_to_one_source(tmp_path / "new")
    (tmp_path / "new" / "digits").mkdir()
    keep_to_one_source(tmp_path / "new")
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "added.py").write_text("")
    monkeypatch.setattr("bench.record.ROOT", tmp_path)
    with pytest.raises(Misconfigured, match="another state of the source"):
        keep_to_one_source(tmp_path / "new")
    (tmp_path / "old" / "digits").mkdir(parents=True)  # of a bench that did not say
    with pytest.raises(Misconfigured, match="another state of the source"):
        keep_to_one_source(tmp_path / "old")


@pytest.mark.parametrize(
    ("low", "high", "at_most", "outcome"),
    [
        (1, 2, True, "met"),
        (4, 5, True, "missed"),
        (2, 4, True, "inconclusive"),
        (4, 5, False, "met"),
        (1, 2, False, "missed"),
    ],
)
def test_a_target_is_decided_only_where_the_whole_interval_lies_on_one_side(low, high, at_most, outcome):
    assert Target(name="t", bound=3, at_most=at_most, low=low, value=(low + high) / 2, high=high).outcome == outcome
