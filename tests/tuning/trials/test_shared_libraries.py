"""The fork server of a search imports what its trials share, and nothing of the user's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from hasten.tuning.shared_libraries import NAMES

SHOWS = """
import json, sys
from hasten.tuning.shared_libraries import ADDED, FAILED
print(json.dumps([ADDED, FAILED, "users" in sys.modules, "prints" in sys.modules]))
"""


def test_what_libraries_print_is_dropped_and_what_they_set_is_kept_for_trials(tmp_path: Path):
    installed, present = tmp_path / "installed", tmp_path / "present"
    installed.mkdir()
    present.mkdir()
    (installed / "prints.py").write_text("import os\nprint('seen')\nos.environ['OF_THE_LIBRARY'] = '1'\nname = 1\n")
    (installed / "fails.py").write_text("raise RuntimeError('no device')\n")
    (present / "users.py").write_text("")
    search = os.pathsep.join([str(installed), *filter(None, sys.path)])
    libraries = ["fails", "users", "prints:name", "prints:absent"]
    shown = subprocess.run(
        [sys.executable, "-c", SHOWS],
        env={**os.environ, "PYTHONPATH": search, "PYTHONUNBUFFERED": "", NAMES: json.dumps(libraries)},
        cwd=present,
        capture_output=True,
        text=True,
        check=True,
    )
    added, failed, has_users, has_library = json.loads(shown.stdout)
    assert added == {"OF_THE_LIBRARY": "1"}
    assert [*failed] == ["fails", "users", "prints:absent"]
    assert "no device" in failed["fails"]
    assert (has_users, has_library) == (False, True)
