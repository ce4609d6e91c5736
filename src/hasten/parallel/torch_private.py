"""What this room reads of torch that has no public name. Checked with torch 2.13; torch 2.9 and newer have it too."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map as tree_map


def default_store() -> Any:
    """The store of torch's default process group."""
    return dist.distributed_c10d._get_default_store()
