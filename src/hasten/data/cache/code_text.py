"""What stands for the code of a module: its text, or the version of the package that it was installed with."""

from __future__ import annotations

import functools
import hashlib
import linecache
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

_INSTALLED = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


@functools.cache
def version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def text_of_module(name: str | None) -> str | None:
    """None for a module whose text is not to be found, as of code that was only typed."""
    top = (name or "builtins").partition(".")[0]
    if top in sys.stdlib_module_names and name != "__main__":
        return f"python {sys.version_info.major}.{sys.version_info.minor}"
    file = getattr(sys.modules.get(name or ""), "__file__", None)
    if file is None:
        return None
    if top != "hasten" and file.startswith(_INSTALLED):
        return f"{top} {version_of(top)}"
    try:
        text = Path(file).read_bytes()
    except OSError:
        text = "".join(linecache.getlines(file)).encode()
    return hashlib.sha256(text).hexdigest() if text else None
