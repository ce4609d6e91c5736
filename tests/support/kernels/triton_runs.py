"""Run a Triton form by Triton's interpreter, and compile it for a card that need not be there. Both skip without
Triton."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
IN_TRITON = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
NOT_INSTALLED = "Triton is not installed: a download of a gigabyte"
PROGRAM = Path(__file__).parent / "interpreted.py"


def interpreted(given: dict[str, tuple[str, str, tuple]], place: Path) -> dict[str, Any]:
    """The results of functions: name -> (module, function, arguments)."""
    pytest.importorskip("triton", reason=NOT_INSTALLED)
    torch.save(given, place / "given")
    command = [sys.executable, str(PROGRAM), str(place / "given"), str(place / "found")]
    done = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return torch.load(place / "found", weights_only=True)


def memory_instructions(
    module: str, kernel: str, kinds: dict[str, str], constants: dict[str, object], place: Path, warps: int = 4
) -> list[str]:
    """The instructions of a compiled kernel that read and write global memory.

    kinds: the type of each argument in Triton's words. Pointers and i32 are taken to be divisible by 16, which Triton
    itself finds out from addresses and counts. place: for what is compiled.
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
