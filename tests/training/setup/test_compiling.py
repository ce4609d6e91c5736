from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from hasten.errors import StorageFailed
from hasten.techniques.setup import CompileOptions
from hasten.training.setup.torch_compiling import CompileLog, compile_model, keep_code_private

DEFAULT = CompileOptions(mode="default")

# torch's own code generator uses what torch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")


@pytest.fixture(autouse=True)
def fresh_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Nothing compiled yet, and nobody's choice of a cache."""
    # Set first, so that monkeypatch knows what to put back.
    for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    torch._dynamo.reset()
    # For two small graphs none of these is worth its cost: a pool of compiling processes, headers that are compiled
    # beforehand, and trying out which vectors the processor has.
    sparing = {"compile_threads": 1, "cpp_cache_precompile_headers": False, "cpp.vec_isa_ok": False}
    with torch._inductor.config.patch(sparing):
        yield
    torch._dynamo.reset()


@pytest.mark.trap(34)
@pytest.mark.trap(43)
def test_the_log_counts_a_last_small_batch_keeps_names_and_stops():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
    names, log = list(model.state_dict()), compile_model(nn.Linear(2, 2), DEFAULT)
    with torch._dynamo.config.patch(wrap_top_frame=True):
        model.compile(backend="eager")
    counted = []
    for rows in (8, 8, 3):
        model(torch.randn(rows, 4))
        counted.append((log.graphs, log.recompiles))
    log.stop()
    log.stop()
    model(torch.randn(2, 4))
    assert counted == [(1, 0), (1, 0), (2, 1)] == [*counted[:2], (log.graphs, log.recompiles)]
    assert list(model.state_dict()) == names


class Counting(nn.Linear):
    calls = 0

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(input) + self.calls


class Scaled(nn.Linear):
    def forward(self, input: torch.Tensor, scales: tuple[float, ...] = ()) -> torch.Tensor:
        return super().forward(input) + len(scales)


@pytest.mark.parametrize(
    ("model", "given", "dynamic", "says"),
    [
        (Counting(4, 2), [(8,)] * 4, False, "calls == 2; keep that value in a tensor (register_buffer)"),
        (nn.Linear(4, 2), [(rows,) for rows in range(5, 9)], False, "; set dynamic = true in the options of compile"),
        (
            Scaled(4, 2),
            [(8, rows * (1.0,)) for rows in range(4)],
            True,
            "; keep what changes out of what forward reads",
        ),
    ],
)
def test_once_torch_compiles_a_function_no_more_the_log_says_why_and_what_to_do(
    model: nn.Module, given: list[tuple[Any, ...]], dynamic: bool, says: str
):
    log = CompileLog(options=CompileOptions(mode="default", dynamic=dynamic))
    log.start()
    with torch._dynamo.config.patch(wrap_top_frame=True, recompile_limit=3):
        model.compile(backend="eager", dynamic=dynamic)
        for rows, *others in given[:3]:
            model(torch.randn(rows, 4), *others)
        assert "limit" not in log.summary()
        model(torch.randn(given[3][0], 4), *given[3][1:])
    log.stop()
    assert "was compiled 3 times, which is torch's limit, and runs without compilation since" in log.summary()
    assert says in log.summary()
    assert "HINT" not in log.summary()


@pytest.mark.parametrize("inherited", [None, default_cache_dir()], ids=["unset", "torch's default"])
def test_compiled_code_goes_to_a_directory_of_the_user_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, inherited: str | None
):
    if inherited is not None:
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", inherited)
    keep_code_private()
    directory = tmp_path / "caches" / "hasten" / "compiled"
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(directory)
    assert os.environ["TRITON_CACHE_DIR"] == str(directory / "triton")
    assert directory.stat().st_mode & 0o777 == 0o700


def test_where_torch_puts_headers_is_the_users_alone_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    keep_code_private()
    (made,) = tmp_path.glob("torchinductor_*")
    assert made.stat().st_mode & 0o777 == 0o700
    made.chmod(0o777)
    with pytest.raises(StorageFailed, match="other users can write into the folder") as refused:
        keep_code_private()
    assert refused.value.where == str(made)
    assert refused.value.fix == f"chmod 700 {made}, or set TMPDIR to a folder of your own"


@pytest.mark.parametrize("chosen", ["TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"])
def test_where_the_user_has_chosen_one_directory_the_other_alone_is_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, chosen: str
):
    directory = tmp_path / "caches" / "hasten" / "compiled"
    ours = {"TORCHINDUCTOR_CACHE_DIR": str(directory), "TRITON_CACHE_DIR": str(directory / "triton")}
    monkeypatch.setenv(chosen, "/somewhere")
    keep_code_private()
    assert {name: os.environ[name] for name in ours} == ours | {chosen: "/somewhere"}
