"""python interpreted_gelu.py GIVEN FOUND: GELU's form for accelerators, and its gradient, of each tensor in a file, by
Triton's interpreter on a processor. In a process of its own: Triton looks at TRITON_INTERPRET when it is imported."""

from __future__ import annotations

import sys

import torch

from hasten.kernels import gelu

given = torch.load(sys.argv[1], weights_only=True)
assert gelu.why_plain_on(torch.device("cpu")) is None
found = {}
for name, (approximate, x, gradient) in given.items():
    found[name] = gelu._on_cuda(x, approximate), gelu._backward_on_cuda(gradient, x, approximate)
torch.save(found, sys.argv[2])
