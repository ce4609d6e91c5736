"""Plans on disk."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hasten.checkpoint.plan_output import check_place, write_found_plan, write_plan
from hasten.errors import Misconfigured, PlanError, StorageFailed
from hasten.facts.plan import Fingerprint, Plan, Rejected, make_plan
from hasten.facts.plan_file import read_plan


def test_a_plan_is_read_as_it_was_written(tmp_path: Path):
    plan = make_plan(precision="bf16", compile=(True, {"mode": "default"}))
    write_plan(plan, tmp_path / "plan.toml")
    assert read_plan(tmp_path / "plan.toml") == plan


def test_a_plan_that_cannot_be_written_leaves_the_one_before_it(tmp_path: Path):
    path = tmp_path / "plan.toml"
    write_plan(make_plan(precision="bf16"), path)
    with pytest.raises(PlanError):
        write_plan(make_plan(precision=float("nan")), path)
    with pytest.raises(StorageFailed):
        write_plan(make_plan(), tmp_path / "missing" / "plan.toml")
    assert read_plan(path) == make_plan(precision="bf16")


def test_a_search_may_replace_its_own_plan_and_leaves_nothing_else_beside_it(tmp_path: Path):
    path = tmp_path / "plan.toml"
    write_found_plan(make_plan(precision="bf16"), path)
    write_found_plan(make_plan(clipping=1.0), path)
    assert read_plan(path) == make_plan(clipping=1.0)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))  # as a tool for versions may hand it back
    check_place(path)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("edit", [("1.0", "2.0"), ("A plan of", "My plan of")])
def test_a_plan_that_somebody_has_changed_since_is_not_replaced(tmp_path: Path, edit: tuple[str, str]):
    path = tmp_path / "plan.toml"
    write_found_plan(make_plan(clipping=1.0), path)
    path.write_text(path.read_text().replace(*edit))
    with pytest.raises(Misconfigured):
        write_found_plan(make_plan(precision="bf16"), path)
    assert read_plan(path).value_of("precision") is None


@pytest.mark.parametrize("written", ["schema = 1\n", "", "\udc80"])
def test_a_plan_that_no_search_has_written_is_not_replaced(tmp_path: Path, written: str):
    path = tmp_path / "plan.toml"
    path.write_bytes(written.encode(errors="surrogateescape"))
    with pytest.raises(Misconfigured, match="hasten tune did not write it"):
        check_place(path)
    write_plan(make_plan(), path)  # nor one that a person has written from Python
    with pytest.raises(Misconfigured, match="hasten tune did not write it"):
        check_place(path)


def test_where_no_plan_can_be_written_is_told_with_what_to_do_and_nothing_is_left(tmp_path: Path):
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "link.toml").symlink_to("/dev/null")
    for name, what, fix in (
        ("folder.toml", "is a folder", "choose another path"),
        ("missing/plan.toml", "No such file or directory", "create the folder first"),
        ("file/plan.toml", "Not a directory", "choose another path"),
        ("link.toml", "is a device", "choose another path"),
    ):
        with pytest.raises(StorageFailed, match=what) as told:
            check_place(tmp_path / name)
        assert told.value.where == str(tmp_path / name)
        assert fix in told.value.fix
    assert {path.name for path in tmp_path.iterdir()} == {"folder.toml", "file", "link.toml"}
    assert list((tmp_path / "folder.toml").iterdir()) == []


def test_whatever_a_failure_said_can_be_written_and_read(tmp_path: Path):
    text = "bad \udcff path \x1b[2J\x00\r\nend"
    told = Rejected(technique="cache", reason=text)
    job = Fingerprint(source=text, parameters=1, shapes="", batch_size=1, samples=None)
    write_found_plan(Plan(job=job, rejected=(told,)), tmp_path / "plan.toml")
    found = read_plan(tmp_path / "plan.toml")
    assert found.job is not None
    assert found.job.source == found.rejected[0].reason == text.replace("\udcff", "?")


HOLDING = """
import signal, sys
from pathlib import Path
from hasten.checkpoint.plan_output import held_place
from hasten.stop_signals import end_at_once

end_at_once()
with held_place(Path("plan.toml")):
    assert Path(".plan.toml.lock").exists()
    signal.raise_signal(int(sys.argv[1]))
    signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_search_that_a_signal_ends_leaves_no_lock_file(tmp_path: Path, number: signal.Signals):
    ended = subprocess.run([sys.executable, "-c", HOLDING, str(int(number))], cwd=tmp_path, check=False)
    assert ended.returncode == 143
    assert list(tmp_path.iterdir()) == []
