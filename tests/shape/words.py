"""The package speaks plain technical English: words that it no longer says, and what it says instead."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from shape.source import Fault, Source

INSTEAD = {
    r"told|tell(?:s|ing)?": "log, report or warn",
    r"(?:go|goes|going|gone|went) on": "resume or continue",
    r"such as (?:are|is)": "that are",
    r"otherwise than": "other than",
    r"(?:take|takes|took|taken) away": "remove",
    r"(?:stand|stands|stood) in": "is in, or replace",
    r"(?:is|are|was|were) held to": "must",
    r"(?:is|are) bound to": "has an upper bound, or will",
    r"(?:come|comes|came) by": "get",
    r"(?:made |make |makes |making )?anew": "rebuild, or again",
    r"apart": "separate",
    r"forg(?:et|ets|etting|ot|otten)": "free, release or miss",
    r"as it is": "baseline, or unchanged",
    r"the plain job": "the baseline",
    r"number formats?": "dtype",
    r"(?:the|a) looks?": "profile",
    r"waves?|heats?": "round",
    r"nurser(?:y|ies)": "fork server",
    r"what is worth": "which are worth",
    r"(?:gives?|gave|given|giving) back": "release or return",
    r"left out": "dropped, skipped or excluded",
    r"cut short": "stopped early",
    r"no harm seen": "equivalent within",
    r"undecided": "inconclusive",
}
_ANY = re.compile(rf"\b(?:{'|'.join(INSTEAD)})\b", re.IGNORECASE)
_SAID = {re.compile(rf"\b(?:{words})\b", re.IGNORECASE): instead for words, instead in INSTEAD.items()}


def check_words(source: Source) -> Iterator[Fault]:
    """No string literal and no docstring says one of these words."""
    for node in source.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = re.sub(r"\s", " ", node.value)  # a phrase may be broken over two lines
            for said, instead in _SAID.items() if _ANY.search(text) else ():
                for found in said.finditer(text):
                    line = node.lineno + node.value.count("\n", 0, found.start())
                    yield Fault(source, line, f'says "{found[0]}"; say {instead}')
