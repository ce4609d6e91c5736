"""What a plan changes in the user's files: as a patch, and applied.

The patch has no header of git's, so `git apply` and `patch -p1` take its paths from the present folder, whether that is
a repository, a folder in one, or neither. Its first lines name hasten, and the digest of every file once it is applied.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from hashlib import sha256
from pathlib import Path

from hasten.checkpoint.files import write_atomically
from hasten.errors import PlanError
from hasten.facts.plan import Plan
from hasten.facts.scripts.script_places import ScriptPlaces
from hasten.regular_files import read_regular
from hasten.scripts.edits.places import edited_sources
from hasten.scripts.edits.script_options import without_effect
from hasten.scripts.edits.source_text import bytes_of, text_of
from hasten.scripts.running.notebook import is_notebook

FIRST_LINE = b"# Written by hasten tune. SHA-256 of each file once this patch is applied:\n"
_BYTES = "latin-1"  # one character for each byte


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


def patch_of(files: Sequence[PatchedFile], folder: Path, beside: Path) -> bytes:
    """As `git apply` reads it in a folder. beside: the folder of the patch itself."""
    parts = [FIRST_LINE]
    for each in files:
        name = os.path.relpath(each.path, beside)
        parts.append(os.fsencode(f"#   {sha256(each.after).hexdigest()}  {name}\n"))
    for each in files:
        name = os.path.relpath(each.path, folder)
        before, after = _lines(each.before), _lines(each.after)
        path = os.fsencode(name).decode(_BYTES) + ("\t" if " " in name else "")
        for line in unified_diff(before, after, f"a/{path}", f"b/{path}"):
            parts.append(line.encode(_BYTES))
            if not line.endswith("\n"):
                parts.append(b"\n\\ No newline at end of file\n")
    return b"".join(parts)


def _lines(data: bytes) -> list[str]:
    """As git counts them: a line ends with a line feed and nothing else."""
    lines = data.decode(_BYTES).split("\n")
    return [*(f"{each}\n" for each in lines[:-1]), *([lines[-1]] if lines[-1] else [])]


def is_written_by_hasten(patch: Path) -> bool:
    return read_regular(patch, len(FIRST_LINE)) == FIRST_LINE


def applied_files(patch: Path) -> list[Path]:
    """Its files, where all are as it leaves them; none where one is not, or where there is no patch."""
    digests = dict(_digests(read_regular(patch))) if patch.is_file() else {}
    files = [patch.parent / name for name in digests]
    found = [sha256(read_regular(each)).hexdigest() if each.is_file() else "" for each in files]
    return files if found == [*digests.values()] else []


def is_applied_to(script: Path, places: ScriptPlaces, patch: Path) -> bool:
    """Whether the patch is applied, and to sources of this script."""
    own = {os.path.realpath(script.parent / each) for each in places.sources}
    files = {os.path.realpath(each) for each in applied_files(patch)}
    return bool(files) and files <= own


def _digests(patch: bytes) -> Iterator[tuple[str, str]]:
    if not patch.startswith(FIRST_LINE):
        return
    for line in patch.removeprefix(FIRST_LINE).split(b"\n"):
        if not line.startswith(b"#   "):
            return
        digest, _, name = line.removeprefix(b"#   ").partition(b"  ")
        yield os.fsdecode(name), digest.decode(_BYTES)


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
