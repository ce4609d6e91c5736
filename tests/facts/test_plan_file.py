"""Plans as TOML: what is written comes back, and what is wrong is refused with its line and the fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.facts.plan import (
    Between,
    Fingerprint,
    Plan,
    PlannedChoice,
    Proof,
    ProvenOn,
    Rejected,
    Speedup,
    Total,
    make_plan,
)
from hasten.facts.plan_file import LARGEST_BYTES, plan_from_toml, plan_to_toml, read_plan
from hasten.facts.trials import NO_GAIN_ALONE

WHOLE = '''\
schema = 1 # a comment

[job]
source = "digits.py:job"
parameters = 79_882
shapes = "0f3c"
batch_size = 128

[machine]
cores = 2
memory_bytes = 16_000_000_000
torch = "2.13.0"

[total]
baseline_seconds = 400
planned_seconds = 166.5
one_off_seconds = 0.0
break_even_step = 0

# precision earned most
[[choice]]
technique = "precision"
value = "bf16"
preserves = "same statistics"
speedup = { ratio = 2.41, low = 2.33, high = 2.50, pairs = 16 }
proof = { gradient_error = 1.3, bound = 2.0 }

[[choice]]
technique = "compile"
value = true
options = { mode = "max-autotune" }

[[rejected]]
technique = "clipping"
value = [1, 2]
reason = """
no
difference"""
'''


SECOND = "[[choice]]\ntechnique = 'b'\nvalue = 2\n"


def test_every_part_of_a_plan_is_read():
    assert plan_from_toml(WHOLE) == Plan(
        schema=1,
        job=Fingerprint(source="digits.py:job", parameters=79_882, shapes="0f3c", batch_size=128, samples=None),
        machine=ProvenOn(cores=2, memory_bytes=16_000_000_000, accelerator=None, torch="2.13.0"),
        total=Total(baseline_seconds=400.0, planned_seconds=166.5, one_off_seconds=0.0, break_even_step=0),
        choices=(
            PlannedChoice(
                choice=Choice(technique="precision", value="bf16", preserves=Preserves.STATISTICS),
                speedup=Speedup(ratio=2.41, low=2.33, high=2.5, pairs=16),
                proof=Proof(gradient_error=1.3, bound=2.0),
            ),
            PlannedChoice(choice=Choice(technique="compile", value=True, options={"mode": "max-autotune"})),
        ),
        rejected=(Rejected(technique="clipping", value=[1, 2], reason="no\ndifference"),),
    )


def test_the_spread_of_seconds_is_read_and_written_on_one_line_each():
    line = "baseline_between = {low = 380.0, high = 455.5}\n"
    plan = plan_from_toml(WHOLE.replace("break_even_step = 0\n", f"break_even_step = 0\n{line}"))
    assert plan.total is not None
    assert plan.total.baseline_between == Between(low=380.0, high=455.5)
    assert line in plan_to_toml(plan)


def test_the_shortest_plan_leaves_open_what_its_choices_preserve():
    (planned,) = plan_from_toml('[[choice]]\ntechnique = "precision"\nvalue = "bf16"\n').choices
    assert planned.choice == Choice(technique="precision", value="bf16")
    assert planned.choice.preserves is None


def test_an_empty_file_is_a_plan_without_choices():
    assert plan_from_toml("# nothing chosen\n") == Plan()


@pytest.mark.parametrize(
    ("old", "new", "line", "says", "fix"),
    [
        ("[job]", "[jobs]", 3, '"jobs" is not a key of the file', 'did you mean "job"?'),
        ("batch_size = 128", "batchsize = 128", 3, '[job] lacks "batch_size"', "add batch_size"),
        ("pairs = 16", "pair = 16", 25, '[speedup] lacks "pairs"', "add pairs"),
        ("bound = 2.0", "bound = 2.0, bond = 1", 26, '"bond" is not a key of [proof]', 'did you mean "bound"?'),
        (
            ", bound = 2.0",
            "",
            26,
            '"proof" is neither a proof by gradients nor one by losses',
            "with its bound, or losses",
        ),
        ("bound = 2.0", 'bound = 2.0, losses = "…"', 26, '"proof" is neither', "with its bound, or losses"),
        ("cores = 2", 'cores = "2"', 10, "\"cores\" is '2'", "write a whole number"),
        ("ratio = 2.41", "ratio = nan", 25, '"ratio" is nan', "write a finite number"),
        ("166.5", "1979-05-27", 16, '"planned_seconds" is datetime', "write a number"),
        ('value = "bf16"', "value = inf", 23, '"value" is inf', "write a finite number"),
        ('value = "bf16"', "value = {}", 23, '"value" is a dict', "write text, true, false or a number"),
        ('value = "bf16"\n', "", 21, '[[choice]] lacks "value"', "add value"),
        ('mode = "max-autotune"', "mode = [[1]]", 31, '"mode" is a list', "write text, true, false or a number"),
        ("same statistics", "same statistic", 24, "not a valid value", 'did you mean "same statistics"?'),
        ('"same statistics"', "1", 24, '"preserves" is 1', "write text in quotes"),
        ('"precision"', '"precison"', 22, '"precison" is not a technique', 'did you mean "precision"?'),
        ('"compile"', '"precision"', 29, '"precision" is chosen twice', "keep one of the two"),
        ("[[rejected]]", "[rejected]", 33, '"rejected" is {', "[[…]]"),
        ("[job]", "job = 1\n[jab]", 3, '"job" is 1', "write a table"),
        ("schema = 1", "schema = 2", 1, "its schema is 2, this version reads up to 1", "pip install --upgrade hasten"),
        ("cores = 2", "cores = ", 10, "is not valid TOML: invalid value", "https://toml.io"),
        ('difference"""', "difference", 38, "is not valid TOML", "https://toml.io"),
    ],
)
def test_what_is_wrong_is_refused_with_its_line_and_the_fix(old: str, new: str, line: int, says: str, fix: str):
    assert WHOLE.count(old) == 1
    with pytest.raises(PlanError) as caught:
        plan_from_toml(WHOLE.replace(old, new), "my/plan.toml", {"precision", "compile"})
    assert caught.value.where == f"my/plan.toml:{line}"
    assert says in caught.value.what
    assert fix in caught.value.fix


@pytest.mark.parametrize("text", ["value = " + "9" * 5_000, "value = " + "[" * 20_000, "a." * 200_000 + "a = 1"])
def test_a_value_that_the_parser_cannot_hold_is_refused(text: str):
    with pytest.raises(PlanError, match="too long or too deep"):
        plan_from_toml(text)


LARGE = "[[choice]]\ntechnique = 'clipping'\nvalue = "


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"{LARGE}0x{'9' * 5_000}", "a whole number has 20,000 bits"),
        (f"schema = 0x{'9' * 5_000}", "a whole number has 20,000 bits"),
        (f"{LARGE}'{'x' * 500_000}'", '"value" has 500,000 characters'),
        (f"{LARGE}1\n{'y' * 500_000} = 1", f'"{"y" * 290}'),
        ("".join(f"[[choice]]\ntechnique = 't{i}'\nvalue = 1\n" for i in range(20_000)), "the plan has 20,000 choices"),
        (f"{LARGE}1\npreserves = '{'y' * 500_000}'", "which is not a valid value"),
    ],
    ids=["number", "schema", "text", "key", "choices", "class"],
)
def test_a_refusal_never_quotes_a_whole_file(text: str, says: str):
    with pytest.raises(PlanError) as caught:
        plan_from_toml(text)
    assert says in caught.value.what
    assert len(str(caught.value)) < 1_000


@given(st.text())
def test_no_text_does_anything_but_state_a_plan_or_be_refused(text: str):
    try:
        plan = plan_from_toml(text)
    except PlanError:
        return
    assert exactly(plan_from_toml(plan_to_toml(plan))) == exactly(plan)


def test_a_folder_in_place_of_a_plan_is_refused_with_the_file_to_name(tmp_path: Path):
    with pytest.raises(PlanError, match="is a folder, not a plan file") as caught:
        read_plan(tmp_path)
    assert str(tmp_path / "plan.toml") in caught.value.fix


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (WHOLE, [21, 28]),
        ('choice = [{technique = "a", value = 1}, {technique = "b", value = 2}]', [1, 1]),
        ("[[choice]]\ntechnique = 'a'\nvalue = 1\n[choice.options]\nchoice = [1]\n" + SECOND, [1, 6]),
    ],
)
def test_every_choice_knows_the_line_that_states_it(text: str, lines: list[int]):
    places = [item.place for item in plan_from_toml(text, "my/plan.toml").choices]
    assert places == [f"my/plan.toml:{line}" for line in lines]


def test_where_a_choice_stands_is_no_part_of_what_it_says():
    text = '[[choice]]\ntechnique = "precision"\nvalue = "bf16"\n'
    assert plan_from_toml(text) == plan_from_toml("\n\n" + text) == make_plan(precision="bf16")


def test_a_file_above_the_size_limit_is_refused_and_one_at_the_limit_is_read(tmp_path: Path):
    path = tmp_path / "plan.toml"
    path.write_bytes(b"#" * LARGEST_BYTES)
    assert read_plan(path) == Plan()
    path.write_bytes(b"#" * (LARGEST_BYTES + 1))
    with pytest.raises(PlanError, match="larger than 1,048,576 bytes"):
        read_plan(path)


# ---- writing

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
BETWEEN = st.tuples(NUMBERS, NUMBERS).map(lambda ends: Between(low=min(ends), high=max(ends)))
WHOLE_NUMBERS = st.integers(-(2**63), 2**63 - 1)
SCALARS = st.one_of(st.booleans(), WHOLE_NUMBERS, NUMBERS, st.text())
VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=3))


def optional(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


CHOICES = st.builds(
    Choice,
    technique=st.text(),
    value=VALUES,
    preserves=st.sampled_from(list(Preserves)),
    options=st.dictionaries(st.text(), VALUES, max_size=3),
)
PLANNED = st.builds(
    PlannedChoice,
    choice=CHOICES,
    speedup=optional(st.builds(Speedup, ratio=NUMBERS, low=NUMBERS, high=NUMBERS, pairs=WHOLE_NUMBERS)),
    proof=optional(
        st.builds(Proof, gradient_error=NUMBERS, bound=NUMBERS) | st.builds(Proof, losses=st.text()),
    ),
)
PLANS = st.builds(
    Plan,
    job=optional(
        st.builds(
            Fingerprint,
            source=st.text(),
            parameters=WHOLE_NUMBERS,
            shapes=st.text(),
            batch_size=WHOLE_NUMBERS,
            samples=optional(WHOLE_NUMBERS),
        )
    ),
    machine=optional(
        st.builds(
            ProvenOn,
            cores=WHOLE_NUMBERS,
            memory_bytes=WHOLE_NUMBERS,
            accelerator=optional(st.text()),
            torch=st.text(),
        )
    ),
    total=optional(
        st.builds(
            Total,
            baseline_seconds=NUMBERS,
            planned_seconds=NUMBERS,
            one_off_seconds=NUMBERS,
            break_even_step=optional(WHOLE_NUMBERS),
            baseline_between=optional(BETWEEN),
            planned_between=optional(BETWEEN),
            process_seconds=NUMBERS,
        )
    ),
    choices=st.lists(PLANNED, max_size=3, unique_by=lambda item: item.choice.technique).map(tuple),
    rejected=st.lists(
        st.builds(Rejected, technique=st.text(), reason=st.text(), value=optional(VALUES)), max_size=2
    ).map(tuple),
    not_tried=st.dictionaries(st.text(), st.text(), max_size=2),
)


def exactly(value: object) -> str:
    """repr tells True from 1 and 1.0 apart, where == does not."""
    return repr(value)


@settings(max_examples=30)
@given(PLANS)
def test_a_plan_comes_back_as_it_was_written(plan: Plan):
    assert exactly(plan_from_toml(plan_to_toml(plan))) == exactly(plan)


def test_a_written_plan_begins_with_how_to_edit_it_and_reads_as_blocks():
    text = plan_to_toml(plan_from_toml(WHOLE))
    assert text.startswith("# A plan of hasten")
    for words in (member.words for member in Preserves):
        assert f'"{words}"' in text
    block = """
[[choice]]
technique = "precision"
value = "bf16"
preserves = "same statistics"
speedup = {ratio = 2.41, low = 2.33, high = 2.5, pairs = 16}
proof = {gradient_error = 1.3, bound = 2.0}

[[choice]]
"""
    assert block in text


@example([" ", "word " * 30])
@given(st.lists(st.sampled_from(["a", "é", " ", "  ", "\n", "\t", '"', "\\", "= ", "word " * 9]), max_size=40))
def test_a_long_text_takes_several_lines_and_comes_back_as_it_was(parts: list[str]):
    text = "".join(parts)
    proof = Proof(losses=text)
    choice = PlannedChoice(choice=Choice(technique="precision", value="bf16"), proof=proof)
    plan = Plan(choices=(choice,), rejected=(Rejected(technique="a", reason=text),), not_tried={"b": text})
    assert plan_from_toml(plan_to_toml(plan)) == plan


def test_no_line_of_a_proof_by_losses_is_longer_than_a_page():
    losses = "the first 64 steps: " + "the mean loss of 3 seeds is 1.234 with it and 1.235 without; " * 8
    choice = PlannedChoice(choice=Choice(technique="precision", value="bf16"), proof=Proof(losses=losses))
    lines = plan_to_toml(Plan(choices=(choice,))).splitlines()
    assert max(map(len, lines)) <= 120
    assert 'proof = {losses = """\\' in lines


def test_a_choice_without_a_gain_of_its_own_has_a_comment_that_says_so_in_a_plan_that_is_proven():
    def text(low: float, total: Total | None) -> str:
        speedup = Speedup(ratio=1.02, low=low, high=1.05, pairs=12)
        choices = tuple(PlannedChoice(choice=Choice(technique=name, value=1), speedup=speedup) for name in "ab")
        plan = Plan(total=total, choices=choices)
        assert plan_from_toml(plan_to_toml(plan)) == plan
        return plan_to_toml(plan)

    proven = Total(baseline_seconds=2.0, planned_seconds=1.0, one_off_seconds=0.1)
    assert f'\n[[choice]] # {NO_GAIN_ALONE}\ntechnique = "a"\nvalue = 1\n' in text(0.99, proven)
    assert text(0.99, proven).count(NO_GAIN_ALONE) == 2
    assert NO_GAIN_ALONE not in text(1.01, proven) + text(0.99, None)


def test_the_example_in_the_header_is_a_plan():
    example = [line[5:] for line in plan_to_toml(Plan()).splitlines() if line.startswith("#     ")][:3]
    assert plan_from_toml("\n".join(example)).value_of("channels_last") is True


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_never_written(number: float):
    with pytest.raises(PlanError, match="finite"):
        plan_to_toml(make_plan(clipping=number))
    with pytest.raises(PlanError, match="finite"):
        plan_to_toml(make_plan(clipping=(1, {"norm": [1.0, number]})))
    total = Total(baseline_seconds=number, planned_seconds=1.0, one_off_seconds=0.0, break_even_step=0)
    with pytest.raises(PlanError, match="finite"):
        plan_to_toml(Plan(total=total))


# ---- plans of Python users


def test_make_plan_takes_values_and_values_with_options():
    plan = make_plan(precision="bf16", channels_last=True, compile=(True, {"mode": "max-autotune"}))
    assert [str(item.choice) for item in plan.choices] == [
        "precision = bf16",
        "channels_last = true",
        "compile = true (mode = max-autotune)",
    ]
    assert {item.choice.preserves for item in plan.choices} == {None}
    assert plan_from_toml(plan_to_toml(plan)) == plan
