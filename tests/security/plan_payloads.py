"""Hostile plans, and trials that lie beside them."""

from __future__ import annotations

import json
import pickle
from typing import Any

from hasten.facts.trials import line_of
from support.report.samples import sample_records

from .payloads import DEEP, HOSTILE, HUGE, PLAN, RUN, UNKNOWN, Payload, written

_CHOICE = b"[[choice]]\ntechnique = 'clipping'\n"
OF_ANOTHER_WORLD: dict[str, bytes] = {
    "an unknown technique": f"[[choice]]\ntechnique = {json.dumps(HOSTILE)}\nvalue = 1".encode(),
    "a module for a technique": b'[[choice]]\ntechnique = "os.system"\nvalue = "touch ran"',
    "a value that is no value": _CHOICE + f"value = {json.dumps(HOSTILE)}".encode(),
    "options that are none": _CHOICE + f"value = 1.0\noptions = {{ {json.dumps(HOSTILE)} = 1 }}".encode(),
}
BROKEN_PLANS: dict[str, bytes] = {
    "binary": bytes(range(256)),
    "no UTF-8": b'[[choice]]\ntechnique = "\xff"\nvalue = 1\n',
    "deep": f"a = {DEEP}".encode(),
    "deep tables": b"[" + b"a." * 3_000 + b"a]",
    "a huge number": f"schema = {HUGE}".encode(),
    "a pickle": pickle.dumps({"schema": 1}),
    "YAML that makes an object": b'!!python/object/apply:os.system ["touch ran"]\n',
    "an unknown key": f"{json.dumps(HOSTILE)} = 1".encode(),
}
_PROVEN = f"""
[job]
source = {json.dumps(HOSTILE)}
parameters = 1
shapes = {json.dumps(HOSTILE)}
batch_size = 8
samples = 40
[machine]
cores = 1
memory_bytes = 1
accelerator = {json.dumps(HOSTILE)}
torch = {json.dumps(HOSTILE)}
[[choice]]
technique = "clipping"
value = 1.0
[[rejected]]
technique = {json.dumps(HOSTILE)}
value = {json.dumps(HOSTILE)}
reason = {json.dumps(HOSTILE)}
"""


def plans() -> list[Payload]:
    """Those that state something at all are a plan, whatever their texts are."""
    files = ((PLAN, PLAN), (RUN, "plan.toml"))
    return [
        *(written(kind, file, name, content) for kind, file in files for name, content in BROKEN_PLANS.items()),
        *(written(kind, file, name, text, UNKNOWN) for kind, file in files for name, text in OF_ANOTHER_WORLD.items()),
        *(written(kind, file, "texts with control codes", _PROVEN, spoils=False) for kind, file in files),
    ]


# ── trials ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _records() -> list[dict[str, Any]]:
    return [json.loads(line_of(record)) for record in sample_records(steps=30, seeds=2)]


def _each_text(value: Any, text: str) -> Any:
    """Every text but the names of records and what must be one of a few words is the hostile one."""
    if isinstance(value, dict):
        return {key: item if key == "record" else _each_text(item, text) for key, item in value.items()}
    if isinstance(value, list):
        return [_each_text(item, text) for item in value]
    return text if isinstance(value, str) else value


def trials() -> list[Payload]:
    records = _records()
    lines: dict[str, tuple[str, bool]] = {
        "texts with control codes": ("\n".join(json.dumps(_each_text(each, HOSTILE)) for each in records), False),
        "texts that are no Unicode": ("\n".join(json.dumps(_each_text(each, "\ud800")) for each in records), False),
        "an unknown record": (json.dumps({"record": HOSTILE}), True),
        "an unknown field": (json.dumps(records[0] | {HOSTILE: 1}), True),
        "a field of another type": (json.dumps(records[0] | {"total_steps": HOSTILE}), True),
        "a number too large": (json.dumps(records[0]).replace("4600", "9" * 4000), False),
        "deep": (DEEP, False),  # as a line that a crash has cut off
        "binary": (bytes(range(256)).decode("latin-1"), False),
        "huge": (f'{{"record": {HUGE}}}', False),
    }
    return [written(PLAN, "trials", name, text, spoils=spoils) for name, (text, spoils) in lines.items()]
