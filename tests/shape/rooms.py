"""Which room of the package may import which, and that no imports form a circle."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping

from shape.source import Fault, Source, imports

MAY_IMPORT = {
    "errors": frozenset[str](),
    "stop_signals": frozenset[str](),
    "users_code": frozenset[str](),
    "regular_files": frozenset[str](),
    "facts": frozenset[str](),
    # Compiled code, a cache and shards are files, and there is one door to disk.
    "kernels": frozenset({"facts", "checkpoint"}),
    "data": frozenset({"facts", "checkpoint", "kernels"}),
    "parallel": frozenset({"facts"}),
    "checkpoint": frozenset({"facts"}),
    "measure": frozenset({"facts"}),
    "techniques": frozenset({"facts", "kernels", "data", "parallel"}),
    "training": frozenset({"facts", "data", "parallel", "checkpoint", "techniques"}),
    "doctor": frozenset({"facts", "checkpoint", "measure", "techniques", "training"}),
    "tuning": frozenset({"facts", "measure", "checkpoint", "techniques", "training", "doctor"}),
    "scripts": frozenset(
        {"facts", "data", "measure", "parallel", "checkpoint", "techniques", "training", "tuning", "doctor"}
    ),
    "report": frozenset({"facts"}),
}
OPEN_TO_ALL = frozenset({"errors", "regular_files", "stop_signals", "users_code"})
MAY_IMPORT_ALL = frozenset({"__init__", "__main__", "cli", "entry"})


def check_rooms(source: Source) -> Iterator[Fault]:
    """A room imports only what the table allows it, and every file belongs to a room of the table."""
    if source.room in MAY_IMPORT_ALL:
        return
    if source.room not in MAY_IMPORT:
        yield Fault(source, 1, f"{source.room} is no room of the table MAY_IMPORT")
        return
    allowed = MAY_IMPORT[source.room] | OPEN_TO_ALL | {source.room}
    for line, name in imports(source):
        room = [*name.split("."), "the whole package"][1]
        if room not in allowed:
            yield Fault(source, line, f"{source.room} may not import {room} ({name})")


def check_technique_files(source: Source, techniques: Iterable[Source]) -> Iterator[Fault]:
    """Only the package's own list of techniques imports a technique file."""
    if source.room != "techniques" or source.is_package:
        return
    others = {technique.module for technique in techniques} - {source.module}
    for line, name in imports(source):
        if name in others or name.rpartition(".")[0] in others:
            yield Fault(source, line, f"imports the technique {name}; techniques know nothing of each other")


def check_circles(sources: Iterable[Source]) -> Iterator[Fault]:
    """No file imports itself by way of others, however many; an import for a type checker counts as any other."""
    by_module = {source.module: source for source in sources}
    edges = {module: _imported(source, by_module) for module, source in by_module.items()}
    done = set[str]()
    for module in sorted(edges):
        circle = _way_back(module, edges, done)
        if circle:
            first = edges[module][circle[1]]
            yield Fault(by_module[module], first, f"imports in a circle: {' → '.join(circle)}")
            done |= {*circle}


def _imported(source: Source, known: Collection[str]) -> dict[str, int]:
    """The modules that a file imports, and in which line first."""
    found: dict[str, int] = {}
    for line, name in imports(source):
        while name and name not in known:
            name = name.rpartition(".")[0]
        if name and name != source.module:
            found.setdefault(name, line)
    return found


def _way_back(start: str, edges: Mapping[str, Mapping[str, int]], done: Collection[str]) -> list[str]:
    """The shortest circle through a module, with it at both ends; empty where there is none. done: modules of circles
    that were reported."""
    before: dict[str, str] = {}
    waiting = deque([start])
    while waiting and start not in done:
        module = waiting.popleft()
        for each in edges[module]:
            if each in done:
                continue
            if each == start:
                circle = [start]
                while module != start:
                    circle.insert(0, module)
                    module = before[module]
                return [start, *circle]
            if each not in before:
                before[each] = module
                waiting.append(each)
    return []
