"""Where the seconds of a training script go, and what each finding of the doctor costs of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hasten.facts.finding import Finding, Price, Severity
from hasten.report.display import MOST_COLUMNS, duration, many, percent, printable
from hasten.report.finding_formats import also_at, in_blocks, remedy, summary
from hasten.report.sentence import Sentence
from hasten.report.terminal.output import wrapped
from hasten.users_code import short

if TYPE_CHECKING:
    from hasten.facts.scripts.script_times import ScriptTimes
    from hasten.facts.scripts.seen import Seen
    from hasten.report.terminal.output import Lines

_LEAST = 0.005  # share of a step that is shown
_MUCH_ELSE = 0.05  # share of the CPU
_PARTS = {
    "data_wait": "data",
    "transfer": "transfer",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "update",
    "python": "other",
}
_WITHOUT_LOADER = {**_PARTS, "forward": "batch and forward"}
del _WITHOUT_LOADER["data_wait"]
_LONG_NAMES = {
    "data_wait": "waiting for data",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the update",
    "python": "other code of the loop",
}
_NOT_SPEED = {Severity.FAILS: "may fail", Severity.WRONG: "wrong"}
_NOT_PRICED = "not priced"
_TITLE, _TITLE_OF_STEP = "saves at most", "saves of a step"
_CODE = 6  # columns of a rule's code
_UPPER_BOUND = "the seconds of a finding are an upper bound of what its fix saves"


def budget_lines(seen: Seen, times: ScriptTimes) -> Lines:
    """Label and text: a step with its parts, the whole run, and what waits for a GPU."""
    spread = f"{duration(times.shortest)} to {duration(times.longest)}"
    timings = f"in {many(times.windows, 'timing')} of {many(times.window_steps, 'step')}"
    lines = [
        ("step", step_parts(times.step, times.parts, reads_loader=seen.loader is not None)),
        ("", f"{spread} {timings}"),
        *_whole(seen, times),
    ]
    if times.syncs:
        lines.append(("syncs", _syncs(times)))
    if times.no_turn and seen.loader is not None:
        lines.append(("note", f"the time between two epochs is not known: {times.no_turn}"))
    if times.others > _MUCH_ELSE:
        busy = f"other programs used {percent(times.others)} of the CPU"
        lines.append(("note", f"{busy}: run this again when nothing else runs"))
    return lines


def step_parts(step: float, parts: Mapping[str, float], *, reads_loader: bool) -> str:
    """Seconds of a step, and the share of each part, by the fields of facts.trials.Budget."""
    names = _PARTS if reads_loader else _WITHOUT_LOADER
    shares = {name: parts.get(part, 0.0) / step for part, name in names.items()}
    shown = [f"{name} {percent(share)}" for name, share in shares.items() if share >= _LEAST or name == "data"]
    return f"{duration(step)}: {', '.join(shown)}"


def _whole(seen: Seen, times: ScriptTimes) -> Lines:
    run, turns, steps = times.run(seen.length), times.turns(seen.length), seen.length.steps
    if run is None or steps is None:
        return [("one epoch", f"{duration(times.turn)} between two epochs")] if times.turn else []
    between = f", between epochs {duration(turns)}" if turns else ""
    within = (
        f", evaluating and saving within epochs {duration(times.interruptions * steps)}" if times.interruptions else ""
    )
    parts = f"start {duration(times.start)}, {many(steps, 'step')} {duration(times.step * steps)}{within}{between}"
    return [("whole run", f"{duration(run)}: {parts}")]


def _syncs(times: ScriptTimes) -> str:
    total = sum(each.times for each in times.syncs)
    places = ", ".join(f"{short(each.file)}:{each.line} ({each.times:.3g}×)" for each in times.syncs)
    return f"Python waits for the GPU {total:.3g} times in a step: {places}"


def priced_rows(findings: Sequence[Finding]) -> list[str]:
    """A block for each finding: its price, its rule, its place, and what to do. Those of one rule in one file share a
    block."""
    blocks = in_blocks(findings)
    prices = [_price(each[0].price) for each in blocks]
    seconds = max((len(spent) for spent, share in prices if share), default=0)
    shares = max(len(share) for _, share in prices)
    title = _TITLE_OF_STEP if any(each.price and each.price.whole == "step" for each in findings) else _TITLE
    column = max(seconds + 2 + shares, len(title)) + 2
    rows = [f"{title:<{column}}finding"]
    for (spent, share), block in zip(prices, blocks, strict=True):
        first, also = block[0], also_at(block)
        price = f"{spent:>{seconds}}  {share:>{shares}}" if share else _NOT_SPEED.get(first.severity, spent)
        texts = [
            f"{printable(first.place)}  {printable(first.message)}",
            *([also] if also else []),
            f"→ {remedy(first)}",
        ]
        lines = [line for text in texts for line in wrapped(text, MOST_COLUMNS - column - _CODE - 4)]
        heads = [f"{price:<{column}}{first.code:<{_CODE}}", *[" " * (column + _CODE)] * len(lines)]
        rows += [f"{head}{line}" for head, line in zip(heads, lines, strict=False)]
    return rows


def _price(price: Price | None) -> tuple[str, str]:
    if price is None:
        return _NOT_PRICED, ""
    share = "an epoch" if price.whole == "turn" else percent(price.seconds / price.whole_seconds)
    return duration(price.seconds), share


def budget_sentence(seen: Seen, times: ScriptTimes, findings: Sequence[Finding], files: int) -> Sentence:
    """files: that were read."""
    names = _LONG_NAMES if seen.loader is not None else {**_LONG_NAMES, "forward": "the batch and the forward pass"}
    part = max(times.parts, key=lambda each: times.parts[each])
    share = percent(times.parts[part] / times.step)
    found = summary(findings, files)
    bound = f"\n{_UPPER_BOUND}" if any(each.price is not None for each in findings) else ""
    return Sentence(
        headline=f"A step takes {duration(times.step)}, {share} of it {names[part]}",
        small_print=f"{found.headline}{bound}",
    )
