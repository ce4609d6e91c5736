"""Benchmarks are run from the repository's root, so that is where `bench` is found."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))
