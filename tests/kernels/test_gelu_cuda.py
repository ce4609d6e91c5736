"""GELU in CUDA's C++ compiles where there is nvcc. No accelerator is needed: its formulas are run on the processor."""

from __future__ import annotations

import re
import shutil
import subprocess
from itertools import product
from pathlib import Path

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

from hasten.kernels.activation import gelu

SOURCE = Path(gelu.__file__).with_suffix(".cu")
FLAGS = ["-std=c++17", "-arch=sm_80", "-Werror", "all-warnings"]
pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")

ON_THE_PROCESSOR = r"""
#include "SOURCE"
#include <cstdio>
using namespace hasten;
int main() {
    float x, gradient;
    while (scanf("%f %f", &x, &gradient) == 2)
        printf("%.9g %.9g %.9g %.9g\n", Exact()(x), ExactBackward()(gradient, x), ByTanh()(x),
               ByTanhBackward()(gradient, x));
}
"""


def nvcc(*given):
    done = subprocess.run(["nvcc", *FLAGS, *map(str, given)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.proof
def test_it_compiles_to_every_function_that_it_names(tmp_path):
    nvcc("-c", SOURCE, "-o", tmp_path / "gelu.o")
    found = (tmp_path / "gelu.o").read_bytes()
    for form, pass_, dtype in product(["exact", "tanh"], ["", "_backward"], ["float32", "bfloat16", "float16"]):
        assert f"\0{form}{pass_}_{dtype}\0".encode() in found


def test_it_moves_16_bytes_at_a_time(tmp_path):
    """Forward reads one tensor and backward two, in two forms and three formats; each writes one. Each is one move."""
    nvcc("-ptx", SOURCE, "-o", tmp_path / "gelu.ptx")
    moved = re.findall(r"(ld|st)\.global\.v4\.[a-z]32", (tmp_path / "gelu.ptx").read_text())
    assert (moved.count("ld"), moved.count("st")) == (2 * 3 * (1 + 2), 2 * 3 * (1 + 1))


@pytest.mark.proof
def test_its_formulas_are_near_the_exact_numbers(tmp_path):
    program = tmp_path / "program.cu"
    program.write_text(ON_THE_PROCESSOR.replace("SOURCE", str(SOURCE)))
    nvcc(program, "-o", tmp_path / "program")
    x = torch.cat([3 * torch.randn(500), torch.tensor([0.0, 88.0, -88.0, 1e30, -1e30])])
    gradient = torch.randn(x.shape)
    given = "\n".join(f"{a:.9g} {b:.9g}" for a, b in zip(x.tolist(), gradient.tolist(), strict=True))
    told = subprocess.run([tmp_path / "program"], input=given, capture_output=True, text=True, check=True).stdout
    found = torch.tensor([[float(each) for each in line.split()] for line in told.splitlines()]).unbind(1)
    for approximate, (y, slope) in zip(("none", "tanh"), (found[:2], found[2:]), strict=True):
        exact = x.double().requires_grad_()
        wanted = functional.gelu(exact, approximate=approximate)
        wanted.backward(gradient.double())
        assert_close(y.double(), wanted.detach(), rtol=5e-7, atol=1e-7)
        assert_close(slope.double(), exact.grad, rtol=5e-7, atol=1e-6)
    nothing = subprocess.run([tmp_path / "program"], input="nan 1", capture_output=True, text=True, check=True).stdout
    assert "nan" in nothing
    assert not re.sub("-?nan", "", nothing).strip(), "NaN stays"
