"""Which words of a command are hasten's, and which are the script's own: everything behind the script's name."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hasten.errors import Misconfigured

MODULE = "-m"
_SUFFIXES = frozenset({".py", ".ipynb"})
_WITH_VALUE: Mapping[str, tuple[str, ...]] = {
    "tune": ("--output", "-o", "--allow", "--seconds", "--steps", "--nproc", "--set"),
    "run": ("--plan",),
    "doctor": ("--select", "--ignore", "--nproc"),
}
"""Command -> its options that are followed by a value and may precede a script."""
_HELP = ("-h", "--help")
RUN = "--run"  # the option by which `hasten doctor` runs a script; before its name or behind it
_MISTYPED = 0.85  # as like an option of hasten's, as difflib counts, a word is that option
_WITHOUT_VALUE = {"tune": ("--apply", "--busy", "--quiet", "-q", "--json"), "run": ()}


def is_script(name: str) -> bool:
    """Whether a name on the command line is that of a script, and not of a job, path/file.py:function."""
    return Path(name).suffix in _SUFFIXES or is_console_script(name)


def is_console_script(name: str) -> bool:
    """It lies beside this Python."""
    return Path(name).name == name and Path(sys.executable).with_name(name).is_file()


def program_words(name: str, words: Sequence[str]) -> list[str]:
    """What follows `python`. name: as split_at_script gives it."""
    module = [MODULE, name.removeprefix(f"{MODULE} ")] if name.startswith(f"{MODULE} ") else [name]
    return [*module, *words]


def split_at_script(words: Sequence[str]) -> tuple[list[str], list[str]] | None:
    """hasten's own words, the script's name the last of them, and the script's. None where a command has no script.

    `-m MODULE` becomes one word. `hasten run FILE --plan PLAN` is understood as well as `hasten run --plan PLAN FILE`,
    and `hasten doctor FILE --run` as `hasten doctor --run FILE`. Raises Misconfigured for a script's options before it.
    """
    if not words or words[0] not in _WITH_VALUE:
        return None
    if words[0] != "doctor":
        _check_order(words)
    found = _split(_with_run_first(words) if words[0] == "doctor" else words)
    if found is None or (words[0] == "doctor" and RUN not in found[0]):
        return None
    if words[0] != "run" and found[1][-1:] in ([each] for each in _HELP):  # by which a script would train nothing
        return [words[0], found[1][-1]], []
    return found


def _check_order(words: Sequence[str]) -> None:
    """Of a command with one file, so that it is the script. Options of hasten that are mistyped are left to the
    command, which suggests the right one."""
    files = [place for place, word in enumerate(words) if Path(word).suffix in _SUFFIXES]
    if len(files) != 1 or MODULE in words or "--" in words:
        return
    command, place = words[0], files[0]
    ours, others = behind_the_script(words[1:place], command)
    option, known = others[0] if others else "", (*_WITH_VALUE[command], *_WITHOUT_VALUE[command])
    if not option.startswith("-") or option in _HELP:
        return
    from difflib import get_close_matches

    if not get_close_matches(option.partition("=")[0], known, cutoff=_MISTYPED):
        right = ["hasten", command, *ours, words[place], *others, *words[place + 1 :]]
        fix = f"the script's own options follow it: {shlex.join(right)}"
        raise Misconfigured(f"is no option of hasten {command}", where=option, fix=fix)


def _split(words: Sequence[str]) -> tuple[list[str], list[str]] | None:
    place = 1
    while place < len(words):
        word = words[place]
        if word == MODULE and place + 1 < len(words):
            return _with_plan([*words[:place], "--", f"{MODULE} {words[place + 1]}"], words[place + 2 :])
        if not word.startswith("-"):
            if not is_script(word) and words[0] != "run":
                return None
            return _with_plan([*words[: place + 1]], words[place + 1 :])
        place += 2 if word in _WITH_VALUE[words[0]] else 1
    return None


def _with_run_first(words: Sequence[str]) -> Sequence[str]:
    place = words.index(RUN) if RUN in words else 0
    if place and is_script(words[place - 1]):
        return [words[0], RUN, *words[1:place], *words[place + 1 :]]
    return words


def _with_plan(own: list[str], behind: Sequence[str]) -> tuple[list[str], list[str]]:
    """A --plan right behind the script is hasten's, unless that has one already."""
    if own[0] == "run" and not any(each.partition("=")[0] == "--plan" for each in own):
        if behind[:1] == ["--plan"] and len(behind) > 1:
            return [own[0], "--plan", behind[1], *own[1:]], [*behind[2:]]
        if behind and behind[0].startswith("--plan="):
            return [own[0], behind[0], *own[1:]], [*behind[1:]]
    return own, [*behind]


def behind_the_script(words: Sequence[str], command: str = "tune") -> tuple[list[str], list[str]]:
    """Of a script's own words those that the command would have taken in front of it, and the others."""
    ours, others, place = list[str](), list[str](), 0
    while place < len(words):
        name, _, value = words[place].partition("=")
        count = 1 if value or name in _WITHOUT_VALUE[command] else 2
        is_ours = name in (*_WITH_VALUE[command], *_WITHOUT_VALUE[command])
        (ours if is_ours else others).extend(words[place : place + count] if is_ours else words[place : place + 1])
        place += count if is_ours else 1
    return ours, others
