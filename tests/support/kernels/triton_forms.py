"""What the tests of every form in Triton share: running it by the interpreter, compiling it, and doing without it."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import hasten.kernels
from hasten.kernels.accelerated import InTriton

FORMATS = [torch.float32, torch.bfloat16, torch.float16]
IN_TRITON = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
NOT_INSTALLED = "Triton is not installed: a download of a gigabyte"
PROGRAM = Path(__file__).parent / "interpreted.py"


def interpreted(given: dict[str, tuple[str, str, tuple]], place: Path) -> dict[str, Any]:
    """What functions give by Triton's interpreter: name -> (module, function, arguments). Skips without Triton."""
    pytest.importorskip("triton", reason=NOT_INSTALLED)
    torch.save(given, place / "given")
    command = [sys.executable, str(PROGRAM), str(place / "given"), str(place / "found")]
    done = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return torch.load(place / "found", weights_only=True)


def moves(
    module: str, kernel: str, kinds: dict[str, str], constants: dict[str, object], place: Path, warps: int = 4
) -> list[str]:
    """The instructions that read and write memory in a kernel, compiled for a card that need not be there.

    kinds: of each argument in Triton's words. Those that are pointers or i32 are 16 divides, as Triton itself finds out
    of addresses and counts. place: for what is compiled. Skips without Triton.
    """
    triton = pytest.importorskip("triton", reason=NOT_INSTALLED)
    function = getattr(importlib.import_module(module), kernel)
    signature = {name: kinds.get(name, "constexpr") for name in function.arg_names}
    divided = [position for position, kind in enumerate(signature.values()) if kind.startswith("*") or kind == "i32"]
    source = triton.compiler.ASTSource(
        fn=function,
        signature=signature,
        constexprs=constants,
        attrs={(position,): [["tt.divisibility", 16]] for position in divided},
    )
    target = triton.backends.compiler.GPUTarget("cuda", 80, 32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(place))
        made = triton.compile(source, target=target, options={"enable_fp_fusion": True, "num_warps": warps})
    assert made.asm["cubin"]
    return re.findall(r"(?:ld|st)\.global\S*", made.asm["ptx"])


def without_triton(operator: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if Triton were not installed, and the operator had not been used before."""
    name = f"{operator.__name__}_triton"
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delattr(hasten.kernels, name.rpartition(".")[2], raising=False)
    form = vars(operator)["_TRITON"]
    monkeypatch.setattr(operator, "_TRITON", InTriton(form._name, form._run))
    assert "triton" in (vars(operator)["_TRITON"].why_plain(torch.device("cpu")) or "")
