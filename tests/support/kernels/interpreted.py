"""python interpreted.py GIVEN FOUND: what forms for accelerators give, by Triton's interpreter on a processor.

GIVEN is what torch.save made of name -> (module, function of it, arguments), and FOUND will be of name -> what came
out. In a process of its own: Triton looks at TRITON_INTERPRET when it is imported.
"""

from __future__ import annotations

import importlib
import sys

import torch

given = torch.load(sys.argv[1], weights_only=True)
modules = {name: importlib.import_module(name) for name, _, _ in given.values()}
for module in modules.values():
    reason = module.why_plain_on(torch.device("cpu"))
    assert reason is None, reason
found = {name: getattr(modules[module], function)(*arguments) for name, (module, function, arguments) in given.items()}
torch.save(found, sys.argv[2])
