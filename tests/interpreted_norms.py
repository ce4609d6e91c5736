"""python interpreted_norms.py GIVEN FOUND: what functions of hasten's give of arguments in a file, by Triton's
interpreter on a processor. In a process of its own: Triton looks at TRITON_INTERPRET when it is imported.

GIVEN: of each name, a module's name, that of a function in it, and the arguments. FOUND: of each name, what came out.
"""

from __future__ import annotations

import importlib
import sys

import torch

given = torch.load(sys.argv[1], weights_only=True)
found = {}
for name, (module, function, arguments) in given.items():
    form = importlib.import_module(module)
    assert form.why_plain_on(torch.device("cpu")) is None
    found[name] = getattr(form, function)(*arguments)
torch.save(found, sys.argv[2])
