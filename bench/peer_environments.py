"""An environment for each peer: their pins conflict, and each is measured as it installs beside this torch."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.record import ROOT

BESIDE = ("torch", "numpy", "pillow")  # what a peer computes with


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """seconds: that it took to install the peer, after torch. versions: of what the peer computes with."""

    peer: str
    version: str
    seconds: float
    packages: int  # that came with it
    versions: Mapping[str, str]
    python: Path

    def as_table(self) -> dict[str, Any]:
        table = asdict(self)
        del table["python"]
        return table

    @property
    def sentence(self) -> str:
        beside = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return (
            f"{self.peer} {self.version}: {self.packages} packages, installed in {self.seconds:.0f} s after torch; "
            f"it runs with {beside}"
        )


def built(peer: str, work: Path) -> Environment:
    """The peer's own environment below work, built where there is none yet."""
    folder, torch = work / peer, metadata.version("torch").partition("+")[0]
    python, told = folder / "bin" / "python", folder / "environment.json"
    if not told.exists() or versions_in(python).get("torch", "").partition("+")[0] != torch:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        # The jobs that are trained are hasten's examples, so hasten is there as well.
        subprocess.run([*install, f"torch=={torch}"], check=True)
        subprocess.run([*install, "-e", f"{ROOT}[examples]"], check=True)
        before, began = versions_in(python), time.monotonic()
        subprocess.run([*install, peer, *(["accelerate"] if peer == "transformers" else [])], check=True)
        seconds, packages = time.monotonic() - began, len(versions_in(python)) - len(before)
        told.write_text(json.dumps({"seconds": seconds, "packages": packages}), encoding="utf-8")
    there, kept = versions_in(python), json.loads(told.read_text(encoding="utf-8"))
    return Environment(
        peer=peer,
        version=there[peer],
        seconds=kept["seconds"],
        packages=kept["packages"],
        versions={name: there[name] for name in BESIDE},
        python=python,
    )


def versions_in(python: Path) -> dict[str, str]:
    """Of all that is installed there, by its name in small letters."""
    command = [str(python), "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"]
    told = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return {each["name"].lower(): each["version"] for each in told}


def lines_of(path: Path, name: str, *, called: bool = True) -> int:
    """Of code in a function of a file: without comments, docstrings and empty lines. called: with the functions and
    classes of the file that it names."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    there = {each.name: each for each in tree.body if isinstance(each, ast.FunctionDef | ast.ClassDef)}
    wanted, counted = [name], set[str]()
    while wanted:
        if (each := wanted.pop()) in there and each not in counted:
            counted.add(each)
            wanted += [inner.id for inner in ast.walk(there[each]) if isinstance(inner, ast.Name)] if called else []
    return sum(len(_code_lines(there[each])) for each in counted)


def _code_lines(function: ast.AST) -> set[int]:
    """Numbers of the lines on which something of it stands that is no docstring."""
    texts = [node for node in ast.walk(function) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    without = {id(node) for text in texts for node in (text, text.value)}
    nodes = (each for each in ast.walk(function) if isinstance(each, ast.expr | ast.stmt) and id(each) not in without)
    return {line for node in nodes for line in (node.lineno, node.end_lineno or node.lineno)}
