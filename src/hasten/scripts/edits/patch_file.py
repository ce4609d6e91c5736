"""What the file of a patch says: the plan and the script that it was made for, and its files before and after it.

Its first lines name hasten, the digest of every file once it is applied, and those two. No source is analysed here, so
that `hasten run` starts soon.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from pathlib import Path

from hasten.regular_files import read_regular

FIRST_LINE = b"# Written by hasten tune. SHA-256 of each file once this patch is applied:\n"
NO_LINE_END = b"\\ No newline at end of file\n"
_PLAN_LINE = b"# SHA-256 of its plan, and the script:\n"
_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Hunk:
    """start: of the lines that it replaces, from 0."""

    start: int
    before: list[bytes]
    after: list[bytes]


@dataclass(frozen=True, kw_only=True, slots=True)
class PatchFile:
    """digests: file -> SHA-256 once it is applied. plan: digest. script: absolute, as the files."""

    path: Path
    digests: Mapping[Path, str]
    plan: str
    script: Path
    hunks: Mapping[Path, Sequence[_Hunk]]

    def is_for(self, script: Path) -> bool:
        return os.path.realpath(self.script) == os.path.realpath(script)

    def is_made_from(self, plan: bytes) -> bool:
        """False for a plan that was edited since."""
        return self.plan == _plan_digest(plan)

    def is_applied(self) -> bool:
        return all(
            path.is_file() and sha256(read_regular(path)).hexdigest() == digest for path, digest in self.digests.items()
        )

    def sources(self) -> dict[Path, bytes] | None:
        """Of its files once it is applied, which changes no file; None where one is not as it was."""
        found = dict[Path, bytes]()
        for path, digest in self.digests.items():
            found[path] = _applied(self.hunks.get(path, ()), read_regular(path)) if path.is_file() else b""
            if sha256(found[path]).hexdigest() != digest:
                return None
        return found


def header_of(digests: Mapping[str, str], plan: bytes, script: str) -> bytes:
    """digests: file -> SHA-256 once the patch is applied. Names are relative to the folder of the patch."""
    files = [_line(digest, name) for name, digest in digests.items()]
    return b"".join([FIRST_LINE, *files, _PLAN_LINE, _line(_plan_digest(plan), script)])


def is_written_by_hasten(patch: Path) -> bool:
    return read_regular(patch, len(FIRST_LINE)) == FIRST_LINE


def read_patch(patch: Path) -> PatchFile | None:
    """None where there is no file, or none that hasten wrote."""
    if not patch.is_file() or not is_written_by_hasten(patch):
        return None
    above, _, below = read_regular(patch).removeprefix(FIRST_LINE).partition(_PLAN_LINE)
    folder = os.path.abspath(patch.parent)
    digests = {Path(os.path.normpath(os.path.join(folder, name))): digest for digest, name in _lines(above)}
    plan, script = next(_lines(below), ("", ""))
    return PatchFile(
        path=patch,
        digests=digests,
        plan=plan,
        script=Path(os.path.normpath(os.path.join(folder, script))),
        hunks=dict(zip(digests, _hunks(BytesIO(below)), strict=False)),
    )


def _plan_digest(plan: bytes) -> str:
    """Whichever its line ends."""
    return sha256(plan.replace(b"\r\n", b"\n")).hexdigest()


def _line(digest: str, name: str) -> bytes:
    return os.fsencode(f"#   {digest}  {name}\n")


def _lines(data: bytes) -> Iterator[tuple[str, str]]:
    """Digest and name, up to a line that has none."""
    for line in data.split(b"\n"):
        if not line.startswith(b"#   "):
            return
        digest, _, name = line.removeprefix(b"#   ").partition(b"  ")
        yield os.fsdecode(digest), os.fsdecode(name)


def _hunks(lines: Iterable[bytes]) -> list[list[_Hunk]]:
    """Of each file, in the order of the patch."""
    found, left, last = list[list[_Hunk]](), (0, 0), list[list[bytes]]()
    for line in lines:
        sign, text = line[:1], line[1:]
        if line == NO_LINE_END:
            for side in last:
                side[-1] = side[-1].removesuffix(b"\n")
        elif any(left):
            hunk = found[-1][-1]
            last = [hunk.before] * (sign != b"+") + [hunk.after] * (sign != b"-")
            for side in last:
                side.append(text)
            left = (left[0] - (sign != b"+"), left[1] - (sign != b"-"))
        elif line.startswith(b"--- "):
            found.append([])
        elif found and (head := _HUNK.match(line)):
            first, *counts = (int(each or 1) for each in head.groups())
            left = (counts[0], counts[1])
            found[-1].append(_Hunk(start=first - bool(left[0]), before=[], after=[]))
    return found


def _applied(hunks: Iterable[_Hunk], source: bytes) -> bytes:
    """Empty where the source is another."""
    lines, found, place = BytesIO(source).readlines(), list[bytes](), 0
    for each in hunks:
        found += [*lines[place : each.start], *each.after]
        place = each.start + len(each.before)
        if lines[each.start : place] != each.before:
            return b""
    return b"".join([*found, *lines[place:]])
