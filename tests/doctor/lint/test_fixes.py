"""Fixes change their own place alone, need no second go, and a file that was mended trains as it did before."""

from __future__ import annotations

import errno
import io
import os
import stat
import subprocess
import sys
import tokenize
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hasten.cli import app
from hasten.doctor.lint.fixes import mend, write
from hasten.doctor.rules import ALL
from hasten.errors import StorageFailed, Unreadable
from hasten.facts.finding import Safety
from support.checkpoint import file_faults
from support.doctor.snippets import CORPUS, findings_in, lint_text

SCRIPTS = [path for path in CORPUS if path.suffix == ".py"]
SAFE = [rule for rule in ALL if rule.safety is Safety.SAFE]
SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
rows = TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
loader = DataLoader(rows, batch_size=8, shuffle=True, pin_memory=True)
model = torch.nn.Linear(8, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.cuda.amp.GradScaler(enabled=False)
for epoch in range(2):
    total, outputs = 0.0, []  # of this epoch
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        weight = torch.ones(2).to(device)
        with torch.cuda.amp.autocast(enabled=False):
            out = model(x)
            loss = torch.nn.functional.cross_entropy(out, y, weight=weight)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        total += loss
        outputs.append(out)
    print(float(total.detach()).hex(), float(torch.cat(outputs).detach().sum()).hex())
"""


def comments(text: str) -> list[str]:
    return [
        each.string for each in tokenize.generate_tokens(io.StringIO(text).readline) if each.type == tokenize.COMMENT
    ]


def run(text: str, folder: Path) -> str:
    script = folder / "script.py"
    script.write_text(text)
    command = [sys.executable, "-W", "ignore", str(script)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


FEW = SCRIPTS[::12]


@pytest.mark.parametrize("path", [*FEW, *(pytest.param(each, marks=pytest.mark.proof) for each in SCRIPTS
                                          if each not in FEW)], ids=lambda path: path.stem)  # fmt: skip
def test_a_script_that_was_mended_has_its_comments(path):
    fixable = any(each.safety for each in findings_in(path))
    mended = mend(path, ALL)
    assert (mended is not None) == fixable
    if mended is not None:
        assert comments(mended.after) == comments(mended.before)


def test_every_fix_is_made_somewhere_in_the_corpus():
    mended = {each.code for path in SCRIPTS for each in findings_in(path) if each.safety}
    assert mended == {rule.code for rule in ALL if rule.safety is not None}


@pytest.mark.proof
def test_a_script_that_was_mended_safely_trains_to_the_same_losses(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    found = {each.code for each in lint_text(SCRIPT, "train.py", SAFE) if each.safety}
    assert found == {"H203", "H205", "H408"}
    mended = mend(path, SAFE)
    assert mended is not None
    assert mended.after != SCRIPT
    assert run(mended.after, tmp_path) == run(SCRIPT, tmp_path)


LATIN = "# coding: latin-1\r\nname = 'ü'\r\noptimizer.zero_grad(set_to_none=False)\r\n".encode("latin-1")
LATIN_MENDED = LATIN.replace(b"set_to_none=False", b"")


def fixed(path: Path) -> None:
    mended = mend(path, ALL)
    if mended is not None:
        write(mended)


@pytest.mark.fault("interrupted source fix")
# A process is forked while torch's own threads exist; it uses none of them. Python says so from 3.12 on.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fix_that_is_killed_inside_any_operation_leaves_the_old_file_or_the_new_one(tmp_path):
    path, found = tmp_path / "train.py", list[bytes]()
    for number in count(1):
        path.write_bytes(LATIN)
        path.chmod(0o751)
        if not file_faults.killed_inside(number, lambda: fixed(path)):
            break
        found.append(path.read_bytes())
        assert stat.S_IMODE(path.stat().st_mode) == 0o751
        fixed(path)
        assert (path.read_bytes(), os.listdir(tmp_path)) == (LATIN_MENDED, ["train.py"])
        fixed(path)
        assert path.read_bytes() == LATIN_MENDED
    assert found[0] == LATIN
    assert found == sorted(found, reverse=LATIN > LATIN_MENDED)  # the new one is never lost again
    assert {*found} == {LATIN, LATIN_MENDED}


@pytest.mark.fault("interrupted source fix")
def test_a_fix_that_the_disk_refuses_at_any_operation_leaves_the_old_file_or_the_new_one_and_says_so(tmp_path):
    path, found = tmp_path / "train.py", list[bytes]()
    for number in count(1):
        path.write_bytes(LATIN)
        with file_faults.failing({number}, errno.ENOSPC):
            try:
                fixed(path)
                break
            except StorageFailed:
                found.append(path.read_bytes())
        assert os.listdir(tmp_path) == ["train.py"]
    assert found == [LATIN] * (len(found) - 1) + [LATIN_MENDED]  # the last one makes the new name safe


@pytest.mark.fault("interrupted source fix")
def test_a_fix_of_a_folder_never_follows_a_link_out_of_it(tmp_path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "train.py").write_bytes(LATIN)
    (inside / "folder").symlink_to(outside)
    (inside / "file.py").symlink_to(outside / "train.py")
    assert CliRunner().invoke(app, ["doctor", str(inside), "--fix", "--unsafe-fixes"]).exit_code == 0
    assert (outside / "train.py").read_bytes() == LATIN


def test_a_mark_at_the_beginning_of_a_file_stays(tmp_path):
    path = tmp_path / "train.py"
    path.write_bytes(b"\xef\xbb\xbfoptimizer.zero_grad(set_to_none=False)\n")
    mended = mend(path, ALL)
    assert mended is not None
    write(mended)
    assert path.read_bytes() == b"\xef\xbb\xbfoptimizer.zero_grad()\n"


def _identity(path: Path) -> tuple[int, ...]:
    found = path.lstat()
    return found.st_ino, found.st_mode, found.st_nlink, found.st_mtime_ns


def _linked(path: Path) -> None:
    path.rename(path.with_name("real.py"))
    path.symlink_to(path.with_name("real.py"))


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (_linked, "it is a link"),
        (lambda path: path.chmod(0o444), "it is read-only"),
    ],
    ids=["a link", "read-only"],
)
def test_what_must_not_be_replaced_is_left_alone_and_named_and_no_fix_of_it_is_promised(tmp_path, made, why):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    made(path)
    before, line = _identity(path), f"{path} is unchanged: {why}\n"
    command = CliRunner()
    found = command.invoke(app, ["doctor", str(path), "--select", "H205"])
    assert (found.exit_code, "--fix" in found.stdout, "--diff" in found.stdout) == (1, False, False)
    shown = command.invoke(app, ["doctor", str(path), "--diff"])
    assert (shown.exit_code, shown.stdout, line in shown.stderr) == (0, "", True)
    fixed = command.invoke(app, ["doctor", str(path), "--fix"])
    assert (fixed.exit_code, line in fixed.stderr, path.read_text()) == (1, True, SCRIPT)
    assert _identity(path) == before


@pytest.mark.parametrize("permitted", [True, False])
def test_a_file_that_was_mended_belongs_to_whom_it_belonged_where_that_is_permitted(tmp_path, monkeypatch, permitted):
    path, given = tmp_path / "train.py", list[tuple[int, int]]()
    path.write_bytes(LATIN)
    path.chmod(0o2751)

    def give(_: int, user: int, group: int) -> None:
        given.append((user, group))
        if not permitted:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "fchown", give)
    fixed(path)
    assert given == [(path.stat().st_uid, path.stat().st_gid)]
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (LATIN_MENDED, 0o2751)


def test_a_file_in_a_codec_that_does_more_than_to_encode_is_left_alone(tmp_path):
    path, content = tmp_path / "train.py", b"# coding: utf-7\noptimizer.zero_grad(set_to_none=False)\nx = '+AOQ-'\n"
    path.write_bytes(content)
    with suppress(Unreadable):
        assert mend(path, ALL) is None
    assert path.read_bytes() == content


def test_what_is_written_on_several_lines_keeps_its_comments_and_its_numbers(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("import torch\nx = torch.full(\n    (0x10,),  # rows\n    1e-3,  # small\n).to('cuda')  # there\n")
    mended = mend(path, ALL)
    assert mended is not None
    assert mended.after == (
        "import torch\nx = torch.full(\n    (0x10,),  # rows\n    1e-3, device='cuda',  # small\n)  # there\n"
    )


@pytest.mark.parametrize(
    "text",
    [
        "import torch\nx = torch.zeros(3).cuda(args.gpu)\n",
        "import torch\nx = torch.zeros(3).to(  # there\n    'cuda')\n",
        "import torch\nok = isinstance(s, torch.cuda.amp.GradScaler)\ns = torch.cuda.amp.GradScaler()\n",
        "import torch, other\nm = torch.nn.Linear(1, 1)\ntotal = 0\nfor x in y:\n    loss = m(x).sum()\n"
        "    loss.backward()\n    total += loss\nother.finish(total)\n",
    ],
    ids=["the present device", "a comment", "asked for its kind", "given away"],
)
def test_a_fix_that_could_change_what_is_computed_or_lose_a_comment_is_not_made(tmp_path, text):
    path = tmp_path / "train.py"
    path.write_text(text)
    assert mend(path, SAFE) is None


def test_one_fix_that_cannot_be_made_keeps_no_other_from_being_made(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\ns = torch.cuda.amp.GradScaler((65536.0))\n" + "optimizer.zero_grad(set_to_none=False)\n" * 25
    )
    mended = mend(path, ALL)
    assert mended is not None
    assert mended.after.count("set_to_none") == 0
    path.write_text(mended.after)
    assert mend(path, ALL) is None
