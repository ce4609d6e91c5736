"""The options that every benchmark has."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.record import RECORDS


def parser_of(benchmark: str, manual: str | None) -> argparse.ArgumentParser:
    """manual: the docstring of the benchmark's file, of which --help shows the first line."""
    parser = argparse.ArgumentParser(prog=f"python -m bench.{benchmark}", description=(manual or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a short run; shows that it works, judges nothing")
    parser.add_argument("--records", type=Path, default=RECORDS, help="folder that records are written into")
    return parser
