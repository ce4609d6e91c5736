"""Anomaly detection left on.

What it finds: `torch.autograd.set_detect_anomaly(True)` and `with torch.autograd.detect_anomaly():` around training.

Why it costs: Every operation records a stack trace, and every gradient is searched for NaN, which waits for the device.

When to ignore it: While a NaN is being hunted.

Fix: Remove it, or let an option switch it on.

Safety: Nothing is changed by itself: a person may be hunting one.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.rule import Code, Found, SourceRule


def check(code: Code) -> Iterator[Found]:
    for call in code.calls_to("torch.autograd.set_detect_anomaly", "torch.autograd.detect_anomaly"):
        chosen = [*call.args, *(each.value for each in call.keywords)]
        is_on = all(code.values.constant(each) is True for each in chosen)
        if is_on and not code.is_conditional(call):
            yield Found(call, "every gradient is searched for NaN, and every operation records a stack trace")


RULE = SourceRule(
    code="H304",
    fix="remove it, or let an option switch it on",
    check=check,
)
