"""Hostile logs, manifests and states, as they lie in the folder of a run; and caches."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hasten.checkpoint import manifest as manifests
from hasten.data.cache.cache_file import digest_of
from support.checkpoint.forger import with_seal
from support.training.complete_runs import sealed_again

from .payloads import CACHE, DEEP, HOSTILE, HUGE, RUN, SAFETENSORS, Payload, as_bytes, gadgets, written

CHECKPOINT = "checkpoints/step-10"
MANIFEST, STATE, TENSORS = (f"{CHECKPOINT}/{name}" for name in ("manifest.json", "state.json", "tensors.safetensors"))
BEGAN, ASKED = "initial_weights.json", "asked.json"

# ── what a run has logged ───────────────────────────────────────────────────────────────────────────────────────────


def _event(kind: str, **fields: Any) -> str:
    return json.dumps({"event": kind} | fields)


STARTED = {
    "job": HOSTILE,
    "machine": HOSTILE,
    "device": HOSTILE,
    "choices": [HOSTILE],
    "parameters": 1,
    "samples": 1,
} | {"batch_size": 1, "microbatch_size": 1, "total_steps": 1, "total_epochs": 1}
FINISHED = {"reason": HOSTILE, "steps": 1, "epochs": 1, "seconds": 1.0, "results": {HOSTILE: 1.0}} | {
    "kept_step": 1,
    "skipped_updates": 0,
    "weights": HOSTILE,
}
LOGS: dict[str, str] = {
    "texts with control codes": "\n".join(
        [
            _event("started", **STARTED),
            _event("noticed", text=HOSTILE),
            _event("evaluated", step=1, epoch=0, results={HOSTILE: 1.0}, seconds=1.0, batch_size=1, best=True),
            _event("finished", **FINISHED),
        ]
    ),
    "a job that is a shell's": _event("started", **STARTED | {"job": "x.py:job; touch ran #$(touch ran)`touch ran`"}),
    "no Unicode": _event("started", **STARTED | {"job": "\ud800", "machine": "\ud800"}),
    "huge numbers": _event("started", **STARTED).replace('"parameters": 1', f'"parameters": {"9" * 4000}'),
    "a number beyond Python": f'{{"event": "started", "job": {HUGE}}}',
    "deep": DEEP,
    "no JSON": "{\n[\n",
    "nothing": "",
}


def logs() -> list[Payload]:
    return [
        *(written(RUN, "metrics.jsonl", name, text, spoils=False) for name, text in LOGS.items()),
        written(RUN, ".lock", "texts with control codes", json.dumps({"pid": HOSTILE, "host": HOSTILE}), spoils=False),
        written(RUN, ".lock", "deep", DEEP, spoils=False),
    ]


# ── checkpoints ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _manifest(name: str, change: Callable[[dict[str, Any]], Any]) -> Payload:
    """With a seal that is right, as far as there can be one: whoever makes such a file can seal it."""

    def put(sound: Path, marker: Path) -> Path:
        path = sound / MANIFEST
        changed = change(json.loads(path.read_bytes()))
        path.write_bytes(as_bytes(changed) if isinstance(changed, str) else with_seal(changed))
        return sound

    return Payload(f"manifest.json: {name}", RUN, put, MANIFEST, MANIFEST)


_NO_FIELDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no JSON": lambda fields: "{",
    "deep": lambda fields: DEEP,
    "a huge number": lambda fields: f'{{"schema": {HUGE}, "step": {HUGE}}}',
    "a list": lambda fields: "[1]",
    "larger than any": lambda fields: " " * (1 << 21),
}

_DIGEST = {"bytes": 3, "sha256": "0" * 64}
MANIFESTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    **_NO_FIELDS,
    "no seal": lambda fields: json.dumps({key: value for key, value in fields.items() if key != "seal"}),
    "an unknown field": lambda fields: fields | {HOSTILE: HOSTILE},
    "a file that leads out": lambda fields: fields | {"files": {"../../plan.toml": _DIGEST}},
    "a file with control codes": lambda fields: fields | {"files": {HOSTILE: _DIGEST}},
    "a digest with control codes": lambda fields: fields | {"files": {"state.json": {"bytes": 1, "sha256": HOSTILE}}},
    "a file that is not there": lambda fields: fields | {"files": fields["files"] | {"more.json": _DIGEST}},
}


def _resealed(name: str, change: Callable[[manifests.Manifest], manifests.Manifest]) -> Payload:
    """A manifest that can be believed."""

    def put(sound: Path, marker: Path) -> Path:
        sealed_again(sound / CHECKPOINT, change)
        return sound

    return Payload(f"manifest.json: {name}", RUN, put, "", MANIFEST)


def _sealed_file(file: str, name: str, content: str | bytes, *, spoils: bool = True) -> Payload:
    """A file of a checkpoint, and a manifest that is true of it."""

    def put(sound: Path, marker: Path) -> Path:
        (sound / file).write_bytes(as_bytes(content))
        sealed_again(sound / CHECKPOINT)
        return sound

    return Payload(f"{file.rpartition('/')[2]}, sealed: {name}", RUN, put, file if spoils else "", file)


STATES: dict[str, str] = {
    "no JSON": "{",
    "deep": DEEP,
    "deep inside": f'{{"run": {DEEP}}}',
    "a huge number": f'{{"run": {HUGE}}}',
    "a list": "[]",
    "a tensor that is not there": '{"weights": {"w": {"tensor": "nothing"}}}',
    "an array that is not there": '{"weights": {"array": "../../etc/passwd"}}',
}
UNUSUAL_STATES: dict[str, str] = {
    "nothing": "{}",
    "weights that are none": json.dumps({"weights": {HOSTILE: HOSTILE}}),
    "texts with control codes": json.dumps({"weights": {}, "configuration": {HOSTILE: HOSTILE}, "run": {}, "log": {}}),
    "another shape of everything": json.dumps(
        {name: [] for name in ("run", "weights", "loop", "log", "configuration")}
    ),
}


def _pickled(place: str) -> Payload:
    def put(sound: Path, marker: Path) -> Path:
        (sound / place).write_bytes(pickle.dumps(gadgets(marker)["os.system"], protocol=2))
        if place != MANIFEST:
            sealed_again(sound / CHECKPOINT)
        return sound

    return Payload(f"{place.rpartition('/')[2]}: a pickle", RUN, put, place, place)


def _begun_with(name: str, content: Callable[[Path], str | bytes]) -> Payload:
    """What the run began with, where no checkpoint is there to go on from."""

    def put(sound: Path, marker: Path) -> Path:
        import shutil

        shutil.rmtree(sound / "checkpoints")
        (sound / BEGAN).write_bytes(as_bytes(content(marker)))
        return sound

    return Payload(f"{BEGAN}: {name}", RUN, put, BEGAN, BEGAN)


def _asked(name: str, change: Callable[[dict[str, Any]], Any]) -> Payload:
    """How the run was asked for, with a seal that is right. Without it a run goes on all the same."""

    def put(sound: Path, marker: Path) -> Path:
        changed = change(json.loads((sound / ASKED).read_bytes()))
        (sound / ASKED).write_bytes(as_bytes(changed) if isinstance(changed, str) else with_seal(changed))
        return sound

    return Payload(f"{ASKED}: {name}", RUN, put, "", ASKED)


ASKS: dict[str, Callable[[dict[str, Any]], Any]] = {
    **_NO_FIELDS,
    "nothing": lambda fields: "",
    "a job with control codes": lambda fields: fields | {"name": HOSTILE},
    "a job that is an option": lambda fields: fields | {"name": "--help"},
    "a job that is a shell's": lambda fields: fields | {"name": "x.py:job; touch ran #$(touch ran)`touch ran`"},
    "no checkpoint to keep": lambda fields: fields | {"saving": fields["saving"] | {"keep_last": 0}},
    "an unknown field": lambda fields: fields | {HOSTILE: HOSTILE},
    "receivers": lambda fields: fields | {"receivers": ["/tmp/x.py:f", "os:abort", "$(touch ran)", "x.py:job"]},
    "a receiver with control codes": lambda fields: fields | {"receivers": [HOSTILE]},
}


def _pickle_named(marker: Path) -> str:
    from hasten.checkpoint.digests import digest_of

    path = marker.with_name("begun.pt")
    path.write_bytes(pickle.dumps(gadgets(marker)["os.system"], protocol=2))
    digest = digest_of(path)
    return json.dumps({"path": str(path), "bytes": digest.bytes, "sha256": digest.sha256})


def checkpoints() -> list[Payload]:
    lasting = {"reason": HOSTILE * 20, "saved_at": 1e300, "epoch": 2**63 - 1}
    return [
        *(_manifest(name, change) for name, change in MANIFESTS.items()),
        *(
            _resealed(f"a strange {key}", lambda m, k=key, v=value: replace(m, **{k: v}))
            for key, value in lasting.items()
        ),
        *(_sealed_file(STATE, name, text) for name, text in STATES.items()),
        *(_sealed_file(STATE, name, text, spoils=False) for name, text in UNUSUAL_STATES.items()),
        *(_sealed_file(TENSORS, name, content) for name, content in SAFETENSORS.items()),
        *map(_pickled, (MANIFEST, STATE, TENSORS)),
        *(_asked(name, change) for name, change in ASKS.items()),
        _begun_with("deep", lambda marker: DEEP),
        _begun_with("another file", lambda marker: json.dumps({"path": "/etc/passwd", "bytes": 1, "sha256": "0" * 64})),
        _begun_with("control codes", lambda marker: json.dumps({"path": HOSTILE, "bytes": 1, "sha256": HOSTILE})),
        _begun_with("a device", lambda marker: json.dumps({"path": "/dev/zero.pt", "bytes": 1, "sha256": "0" * 64})),
        _begun_with("a pickle", _pickle_named),
    ]


# ── caches ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _cache(name: str, change: Callable[[dict[str, Any]], Any]) -> Payload:
    """With a digest that is right."""

    def put(sound: Path, marker: Path) -> Path:
        (path,) = sound.glob("*/manifest.json")
        changed = change(json.loads(path.read_text())["manifest"])
        text = changed if isinstance(changed, str) else json.dumps({"digest": digest_of(changed), "manifest": changed})
        path.write_text(text)
        return sound

    return Payload(f"manifest.json: {name}", CACHE, put)


def _nested(depth: int) -> list[Any]:
    form: list[Any] = ["none"]
    for _ in range(depth):
        form = ["tuple", [form]]
    return form


CACHES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "deep": lambda fields: DEEP,
    "a huge number": lambda fields: HUGE,
    "a reason with control codes": lambda fields: json.dumps({"damaged": HOSTILE}),
    "a form of Python objects": lambda fields: fields | {"form": ["array", "|O", 1]},
    "a form that lies deep": lambda fields: fields | {"form": _nested(400)},
    "so many samples": lambda fields: fields | {"samples": 10**18},
    "an unknown field": lambda fields: fields | {HOSTILE: 1},
    "a name with control codes": lambda fields: fields | {"about": HOSTILE},
}


def caches() -> list[Payload]:
    def torn(sound: Path, marker: Path) -> Path:
        (path,) = sound.glob("*/index.bin")
        path.write_bytes(b"\xff" * path.stat().st_size)
        return sound

    return [
        *(_cache(name, change) for name, change in CACHES.items()),
        Payload("index.bin: all ones", CACHE, torn),
    ]
