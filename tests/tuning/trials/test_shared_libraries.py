"""The fork server of a search imports what its trials share, and nothing of the user's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hasten.tuning.shared_libraries import NAMES

SHOWS = """
import json, sys
from hasten.tuning.shared_libraries import ADDED
print(json.dumps([ADDED, "users" in sys.modules, "prints" in sys.modules]))
"""
STARTS_A_TRIAL = """
import json
from hasten.tuning.trials.trial_process import TrialProcess
trial = TrialProcess("shared:serve", [])
print(json.dumps(trial.child.messages.wait()))
trial.end()
"""
SHARED = """
import os, tempfile
def seen():
    return {name: os.environ.get(name) for name in ("PYTORCH_NVML_BASED_CUDA_CHECK", "TMPDIR")} | {
        "temporary": tempfile.gettempdir()
    }
AT_IMPORT = seen()
def serve(messages):
    messages.send({"library": AT_IMPORT, "trial": seen()})
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By a library that is imported for a trial, and in the trial."""
    folder = tmp_path_factory.mktemp("installed")
    (folder / "shared.py").write_text(SHARED)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])}
    command = [sys.executable, "-c", STARTS_A_TRIAL]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(shown.stdout)


def test_what_libraries_print_is_dropped_and_what_they_set_is_kept_for_trials(tmp_path: Path):
    installed, present = tmp_path / "installed", tmp_path / "present"
    installed.mkdir()
    present.mkdir()
    (installed / "prints.py").write_text("import os\nprint('seen')\nos.environ['OF_THE_LIBRARY'] = '1'\nname = 1\n")
    (installed / "fails.py").write_text("raise RuntimeError('no device')\n")
    (installed / "exits.py").write_text("raise SystemExit(1)\n")
    (present / "users.py").write_text("")
    search = os.pathsep.join([str(installed), ".", *filter(None, sys.path)])
    libraries = ["fails", "exits", "users", "prints:name", "prints:absent"]
    shown = subprocess.run(
        [sys.executable, "-c", SHOWS],
        env={**os.environ, "PYTHONPATH": search, "PYTHONUNBUFFERED": "", NAMES: json.dumps(libraries)},
        cwd=present,
        capture_output=True,
        text=True,
        check=True,
    )
    added, has_users, has_library = json.loads(shown.stdout)
    assert added == {"OF_THE_LIBRARY": "1"}
    assert (has_users, has_library) == (False, True)


def test_no_other_process_imports_them():
    """Nor redirects its output for them: one that has no output starts."""
    program = 'exec "$0" -c "import hasten.tuning.shared_libraries" >&-'
    subprocess.run(["sh", "-c", program, sys.executable], check=True)


def test_a_library_that_asks_for_a_device_leaves_trials_able_to_use_it(seen):
    """torch.cuda.is_available() makes CUDA unusable in processes that are forked, unless this variable is set."""
    assert seen["library"]["PYTORCH_NVML_BASED_CUDA_CHECK"] == "1"
    assert seen["trial"]["PYTORCH_NVML_BASED_CUDA_CHECK"] is None


def test_a_trial_makes_temporary_files_in_its_own_folder_whatever_a_library_has_asked(seen):
    assert seen["trial"]["temporary"] == seen["trial"]["TMPDIR"] != seen["library"]["temporary"]
