"""python interpreted.py GIVEN FOUND: run Triton functions by Triton's interpreter on the CPU.

GIVEN was written by torch.save: name -> (module, function in it, arguments). FOUND will hold name -> result. It is a
process of its own, because Triton reads TRITON_INTERPRET when it is imported.
"""

from __future__ import annotations

import importlib
import sys

import torch

given = torch.load(sys.argv[1], weights_only=True)
found = {
    name: getattr(importlib.import_module(module), function)(*arguments)
    for name, (module, function, arguments) in given.items()
}
torch.save(found, sys.argv[2])
