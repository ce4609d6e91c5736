"""What a plan changes in the user's files: as a patch, and applied.

The patch has no header of git's, so `git apply` and `patch -p1` take its paths from the present folder, whether that is
a repository, a folder in one, or neither.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import diff_bytes, unified_diff
from hashlib import sha256
from io import BytesIO
from pathlib import Path

from hasten.checkpoint.files import write_atomically
from hasten.errors import PlanError
from hasten.facts.plan import Plan
from hasten.regular_files import read_regular
from hasten.scripts.edits.patch_file import NO_LINE_END, header_of
from hasten.scripts.edits.places import edited_sources
from hasten.scripts.edits.script_options import without_effect
from hasten.scripts.edits.source_text import bytes_of, text_of
from hasten.scripts.running.notebook import is_notebook


@dataclass(frozen=True, kw_only=True, slots=True)
class PatchedFile:
    """path: absolute."""

    path: Path
    before: bytes
    after: bytes


def patched_files(plan: Plan, folder: Path) -> list[PatchedFile]:
    """folder: of the script. Raises PlanError where a source does not allow the plan, or has changed."""
    if plan.script is None:
        return []
    found = list[PatchedFile]()
    for name, text in edited_sources([each.choice for each in plan.choices], plan.script, folder).items():
        path = Path(os.path.abspath(folder / name))
        before = read_regular(path)
        found.append(PatchedFile(path=path, before=before, after=bytes_of(text, before)))
    return [each for each in found if each.after != each.before]


def options_without_effect(files: Sequence[PatchedFile]) -> list[str]:
    """Of the script's own, which the patch disables."""
    sources = [each for each in files if not is_notebook(each.path)]
    return [name for each in sources for name in without_effect(text_of(each.before), text_of(each.after))]


def patch_of(files: Sequence[PatchedFile], folder: Path, patch: Path, plan: bytes, script: Path) -> bytes:
    """As `git apply` reads it in a folder. patch, script: their paths. plan: what its file holds."""
    beside = patch.parent
    digests = {os.path.relpath(each.path, beside): sha256(each.after).hexdigest() for each in files}
    parts = [header_of(digests, plan, os.path.relpath(script, beside))]
    for each in files:
        name = os.path.relpath(each.path, folder)
        path = os.fsencode(name + ("\t" if " " in name else ""))
        before, after = BytesIO(each.before).readlines(), BytesIO(each.after).readlines()
        for line in diff_bytes(unified_diff, before, after, b"a/" + path, b"b/" + path):
            parts.append(line if line.endswith(b"\n") else line + b"\n" + NO_LINE_END)
    return b"".join(parts)


def apply(files: Sequence[PatchedFile]) -> None:
    """To the user's files, each at once. Raises PlanError, and changes none, where one has changed meanwhile or is a
    link; StorageFailed where one cannot be written."""
    for each in files:
        if each.path.is_symlink():
            raise PlanError("is a link, and is not written to", where=str(each.path), fix="apply the patch by hand")
        if read_regular(each.path) != each.before:
            raise PlanError("has changed meanwhile", where=str(each.path), fix="run the same command again")
    for each in files:
        write_atomically(each.path, each.after, like=each.path.stat())
