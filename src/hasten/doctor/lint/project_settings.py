"""What a project asks of `hasten doctor`: the table `[tool.hasten]` of the nearest pyproject.toml."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from fnmatch import fnmatch
from pathlib import Path

from hasten.errors import Misconfigured
from hasten.facts.formatting import did_you_mean
from hasten.facts.record_reading import toml_document
from hasten.regular_files import read_regular

FILE = "pyproject.toml"


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """select, ignore: codes of rules or their beginnings. exclude: patterns of paths below the folder of the settings'
    file, or of single names."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    folder: Path = Path()

    def excludes(self, path: Path) -> bool:
        """The file, or a folder that it is in."""
        if not self.exclude:
            return False
        inside = path.resolve().relative_to(self.folder)
        return any(
            fnmatch(str(each), pattern) or fnmatch(each.name, pattern)
            for each in (inside, *inside.parents)
            for pattern in self.exclude
        )


def settings_for(path: Path) -> Settings:
    """From the nearest pyproject.toml with the table, in its folder or above it. Raises Misconfigured for a file that
    cannot be read or for an unknown setting."""
    folder = path.resolve() if path.is_dir() else path.resolve().parent
    for each in (folder, *folder.parents):
        file = each / FILE
        if file.exists() and (table := _table(file)) is not None:
            return _settings(table, file)
    return Settings()


def by_project(files: Iterable[Path]) -> dict[Settings, list[Path]]:
    """The files that no project excludes, with their project's settings. Raises as settings_for does."""
    found: dict[Settings, list[Path]] = {}
    known: dict[Path, Settings] = {}
    for file in files:
        folder = file.resolve().parent
        if folder not in known:
            known[folder] = settings_for(folder)
        if not known[folder].excludes(file):
            found.setdefault(known[folder], []).append(file)
    return found


def _table(file: Path) -> object:
    try:
        document = toml_document(read_regular(file).decode())
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise Misconfigured(f"cannot be read: {reason}", where=str(file)) from error
    tools = document.get("tool")
    return tools.get("hasten") if isinstance(tools, dict) else None


def _settings(table: object, file: Path) -> Settings:
    where = f"{file}: [tool.hasten]"
    if not isinstance(table, dict):
        raise Misconfigured("is not a table", where=where)
    known = [each.name for each in fields(Settings) if each.name != "folder"]
    found: dict[str, tuple[str, ...]] = {}
    for key, value in table.items():
        if key not in known:
            raise Misconfigured(f'there is no setting "{key}"', where=where, fix=did_you_mean(key, known))
        if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
            raise Misconfigured(f'"{key}" is not a list of strings', where=where, fix=f'{key} = ["H201"]')
        found[key] = tuple(value)
    return Settings(**found, folder=file.parent)
