"""How a run was requested, in asked.json of its folder, so that it can be resumed without repeating the options.

A wrong number here could remove checkpoints: so the file is sealed, and each value is checked.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from hasten.checkpoint.digests import read_digested
from hasten.checkpoint.files import write_atomically
from hasten.checkpoint.sealed_json import sealed, unsealed
from hasten.errors import Damaged, Misconfigured
from hasten.facts.record_reading import read_record
from hasten.facts.saving import Saving
from hasten.training.run_folder.folder_names import ASKED
from hasten.training.setup.job_options import NONE_GIVEN, JobOptions

SCHEMA = 1
CHANGES: Mapping[str, type] = {"epochs": int, "max_steps": int, "batch_size": int, "seed": int, "device": str}

_LARGEST_BYTES = 1 << 22
_LARGEST_NUMBER = 1 << 63
_REMOVE = f"remove {ASKED} to resume with default options; give those again that the run began with, as --keep-every"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRequest:
    """
    name: of the job; "" without one.
    changes: the fields of the job that the command line replaced, of those in CHANGES.
    job_options: --set and sys.argv of the job.
    saving: when checkpoints are saved, and which are retained.
    tensorboard: whether TensorBoard events are written too.
    receivers: functions that the run's events are given to, each as path/file.py:function.
    """

    name: str = ""
    changes: Mapping[str, int | str] = field(default_factory=dict[str, "int | str"])
    job_options: JobOptions = NONE_GIVEN
    saving: Saving = field(default_factory=Saving)
    tensorboard: bool = False
    receivers: tuple[str, ...] = ()

    @property
    def options(self) -> dict[str, str]:
        """The options of `hasten train` that differ from their defaults, each with its value or ""."""
        saving, plain = self.saving, Saving()
        found = {f"--{name.replace('_', '-')}": str(value) for name, value in self.changes.items()}
        if saving.every_steps is not None:
            found["--save-every"] = str(saving.every_steps)
        elif saving.every_seconds != plain.every_seconds:
            found["--save-every"] = f"{max(math.ceil(saving.every_seconds), 1)}s"
        given = {
            "--keep-last": (saving.keep_last, plain.keep_last),
            "--keep-every": (saving.keep_every, None),
            "--grace": (saving.grace_seconds, plain.grace_seconds),
        }
        found |= {option: f"{value:.15g}" for option, (value, default) in given.items() if value not in (None, default)}
        found |= {"--tensorboard": ""} if self.tensorboard else {}
        found |= {f"--receiver {each}": "" for each in self.receivers}
        found |= {f"--set {name}={text}": "" for name, text in self.job_options.settings.items()}
        return found | ({"--": shlex.join(self.job_options.arguments)} if self.job_options.arguments else {})

    def write(self, folder: Path) -> None:
        """Raises StorageFailed."""
        table = {each.name: getattr(self, each.name) for each in fields(self)}
        table |= {"schema": SCHEMA, "changes": dict(self.changes), "saving": asdict(self.saving)}
        table["job_options"] = asdict(self.job_options)
        write_atomically(folder / ASKED, sealed(table))


def asked_in(folder: Path) -> RunRequest | None:
    """How the run in this folder was requested; None where that is not recorded.

    Raises Damaged for a file that was changed, or of another schema; StorageFailed for one that cannot be read.
    """
    if not (folder / ASKED).exists():
        return None
    content, _ = read_digested(folder / ASKED, _LARGEST_BYTES)
    try:
        found = unsealed(content, ASKED)
        if found.pop("schema", None) != SCHEMA:
            raise ValueError
        request: RunRequest = read_record(RunRequest, found)
        if (
            not all(_is_change(*each) for each in request.changes.items())
            or not "".join(request.receivers).isprintable()
        ):
            raise ValueError
    except Damaged as error:
        raise Damaged(error.what, where=str(folder), fix=_REMOVE) from error
    except (ValueError, Misconfigured) as error:  # a seal can be forged, so each value is checked
        raise Damaged(f"{ASKED} is invalid", where=str(folder), fix=_REMOVE) from error
    return request


def _is_change(name: str, value: Any) -> bool:
    if type(value) is not CHANGES.get(name):
        return False
    return isinstance(value, str) or (0 if name == "seed" else 1) <= value < _LARGEST_NUMBER
