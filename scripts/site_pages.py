"""Adds to the site what pages link to outside docs/: records, sources and folders of the repository.

mkdocs reads one folder. A link to `../records/…` or `../src/…` works in the repository; here the file that it names
becomes a page of the site, and the link leads there. A link that names no file stays as it is, and the strict build
refuses it. Lines do not break within an interval, nor between a figure and its unit.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<=\]\()(?!\w+:)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?(?=\))")
AS_THEY_ARE = (".md", ".svg", ".png", ".json", ".jsonl")
LANGUAGES = {".py": "python", ".sh": "sh", ".toml": "toml", ".yaml": "yaml", ".cpp": "cpp"}
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
DASH = re.compile(r"(?<=\d)–(?=\d)")
UNIT = re.compile(r"(?<=\d) (?=(?:s|ms|µs|KiB|MiB|GiB|%)(?!\w))")


def on_config(config: Any) -> None:
    """Puts the pages of techniques and rules into the navigation, below their list and in its order."""
    config.nav = [unfolded(entry, Path(config.docs_dir)) for entry in config.nav]


def unfolded(entry: Any, docs: Path) -> Any:
    """An entry of the navigation; one that is the README of a folder becomes a section of the pages that it lists."""
    if isinstance(entry, list):
        return [unfolded(each, docs) for each in entry]
    if isinstance(entry, dict):
        return {title: unfolded(each, docs) for title, each in entry.items()}
    if not entry.endswith("/README.md"):
        return entry
    folder = (docs / entry).parent
    pages = (page for page in linked(docs / entry) if page.parent == folder)
    return [entry, *({heading(page): page.relative_to(docs).as_posix()} for page in pages)]


def heading(page: Path) -> str:
    """The first heading of a page. mkdocs finds none below a comment, and would write tf32_off as Tf32 off."""
    return next(line[2:] for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("# "))


def on_files(files: Files, *, config: Any) -> Files:
    """Adds a page for each file outside docs/ that a page leads to, and for each that these lead to."""
    waiting = [Path(config.docs_dir, each.src_uri) for each in files.documentation_pages()]
    seen = set[Path]()
    while waiting:
        for target in linked(waiting.pop()):
            if target in seen or target.is_relative_to(config.docs_dir):
                continue
            seen.add(target)
            files.append(added(target, config))
            if target.suffix == ".md":
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """The text of a page, with links that leave docs/ turned to where the site has their files."""
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]  # it would have one entry
    here = origin(page.file.src_uri, config)

    def changed(text: str) -> str:
        return unbroken(LINK.sub(lambda link: _in_site(link, here, page.file.src_uri, config), text))

    return changed_outside_code(markdown, changed)


def linked(page: Path) -> Iterator[Path]:
    """The files that a page's links name."""
    for link in LINK.finditer(CODE.sub("", page.read_text(encoding="utf-8"))):
        if target := file_of(page, link["path"]):
            yield target


def file_of(page: Path, path: str) -> Path | None:
    """The file or folder that a link on a page names; of a folder with a README that file."""
    target = Path(os.path.normpath(page.parent / path))
    if not target.exists() or not target.is_relative_to(ROOT):
        return None
    if target == ROOT / "README.md":
        return ROOT / "docs" / "README.md"  # the site has a home page of its own
    return target / "README.md" if (target / "README.md").is_file() else target


def added(target: Path, config: Any) -> File:
    """A page that is written from a file or a folder; records keep their pictures and data as files."""
    uri = uri_of(target, config)
    if target.suffix in AS_THEY_ARE:
        return File.generated(config, uri, abs_src_path=str(target))
    name = target.relative_to(ROOT).as_posix()
    if target.is_dir():
        names = sorted(each.name for each in target.iterdir() if each.name[0] not in "._")
        return File.generated(config, uri, content="\n".join([f"# {name}", "", *(f"* `{each}`" for each in names), ""]))
    text = target.read_text(encoding="utf-8")
    return File.generated(
        config, uri, content=f"# {name}\n\n~~~~{LANGUAGES.get(target.suffix, 'text')}\n{text}\n~~~~\n"
    )


def uri_of(target: Path, config: Any) -> str:
    """Where the site has a file: a page of docs/ under its own name, anything else under that of its folder."""
    if target.is_relative_to(config.docs_dir):
        return target.relative_to(config.docs_dir).as_posix()
    name = target.relative_to(ROOT).as_posix()
    return name if target.suffix in AS_THEY_ARE else f"{name}.md"


def origin(uri: str, config: Any) -> Path:
    """The file that a page of the site was made from."""
    in_docs = Path(config.docs_dir, uri)
    return in_docs if in_docs.exists() else ROOT / uri


def changed_outside_code(markdown: str, change: Callable[[str], str]) -> str:
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else change(part) for part in parts)


def unbroken(text: str) -> str:
    """The text with intervals, and figures with their units, that stay on one line."""
    return UNIT.sub("&nbsp;", DASH.sub("&NoBreak;–&NoBreak;", text))


def _in_site(link: re.Match[str], here: Path, uri: str, config: Any) -> str:
    target = file_of(here, link["path"])
    if target is None:
        return link[0]
    place = os.path.relpath(uri_of(target, config), PurePosixPath(uri).parent)
    return place + (link["anchor"] or "")
