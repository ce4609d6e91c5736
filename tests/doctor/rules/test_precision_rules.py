"""What is found of mixed precision: backward() under autocast, a scaler for bfloat16, and names that are outdated."""

from __future__ import annotations

import ast

import pytest

from hasten.doctor.lint.fixes import mend
from hasten.doctor.reading.source_code import Code
from hasten.doctor.rules import deprecated_amp
from support.doctor.snippets import assert_finds_what_is_marked

HEAD = """
import torch
from contextlib import nullcontext
from torch import amp
"""


def test_backward_behind_the_block_of_autocast_is_right():
    assert_finds_what_is_marked(
        HEAD
        + """
for x in loader:
    with torch.autocast("cuda"):
        loss = model(x).mean()
    loss.backward()
for x in loader:
    with torch.autocast("cuda", enabled=False):
        model(x).mean().backward()
for x in loader:
    with torch.autocast("cuda"):
        loss = model(x).mean()
        with torch.autocast("cuda", enabled=False):
            loss.backward()
""",
        "H406",
    )


def test_autocast_is_followed_through_names_functions_and_decorators():
    assert_finds_what_is_marked(
        HEAD
        + """
context = nullcontext() if device == "cpu" else torch.autocast(device, dtype=torch.bfloat16)

def update(x):
    loss = model(x).mean()
    loss.backward()  # finds H406

for x in loader:
    with context:
        update(x)

@torch.autocast("cuda")
def whole(loader):
    for x in loader:
        model(x).mean().backward()  # finds H406
""",
        "H406",
    )


@pytest.mark.parametrize(
    ("scaler", "autocast"),
    [
        ("GradScaler('cuda')", "torch.autocast('cuda')"),
        ("GradScaler('cuda')", "torch.autocast('cuda', dtype=args.dtype)"),
        ("GradScaler('cuda')", "torch.autocast('cuda', torch.bfloat16 if supported else torch.float16)"),
        ("GradScaler('cuda', enabled=kind == torch.float16)", "torch.autocast('cuda', dtype=torch.bfloat16)"),
        ("GradScaler('cuda', enabled=False)", "torch.autocast('cuda', dtype=torch.bfloat16)"),
        ("GradScaler('cuda')", "torch.autocast('cuda', dtype=torch.bfloat16, enabled=False)"),
    ],
)
def test_a_scaler_is_right_where_something_else_than_bfloat16_may_be_scaled(scaler, autocast):
    assert_finds_what_is_marked(
        f"""
        import torch
        from torch.amp import GradScaler
        scaler = {scaler}
        for x in loader:
            with {autocast}:
                loss = model(x).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
        """,
        "H407",
    )


def test_new_names_and_a_choice_by_version_are_right():
    assert_finds_what_is_marked(
        """
        import torch
        from torch.amp import GradScaler
        try:
            from torch.amp import autocast
        except ImportError:
            from torch.cuda.amp import autocast
        scaler = GradScaler("cuda")
        with autocast("cuda"), torch.autocast("cuda"):
            pass
        def context(on):
            if hasattr(torch.amp, "autocast"):
                return torch.amp.autocast("cuda", enabled=on)
            return None
        def chosen(on):
            if TORCH_2_4:
                return torch.amp.autocast("cuda", enabled=on)
            else:
                return torch.cuda.amp.autocast(on)
        def returned(on):
            if TORCH_2_4:
                return torch.amp.autocast("cuda", enabled=on)
            return torch.cuda.amp.autocast(on)
        if __name__ == "__main__":
            with torch.autocast("cuda"):
                pass
            with torch.cuda.amp.autocast():  # finds H408
                pass
        def named(scaler: torch.cuda.amp.GradScaler):
            return isinstance(scaler, torch.cuda.amp.GradScaler)
        """,
        "H408",
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("torch.cuda.amp.autocast()", 'torch.amp.autocast("cuda")'),
        ("torch.cpu.amp.autocast(dtype=kind)", 'torch.amp.autocast(dtype=kind, device_type="cpu")'),
    ],
)
def test_an_outdated_name_is_mended_with_what_it_is_given(before, after, tmp_path):
    file = tmp_path / "old.py"
    file.write_text(f"import torch\n\nused = {before}  # as it was\n")
    mended = mend(file, [deprecated_amp.RULE])
    assert mended is not None
    assert mended.after == f"import torch\n\nused = {after}  # as it was\n"


@pytest.mark.parametrize(
    "text",
    [
        "from torch.cuda.amp import autocast\nused = autocast()",
        "import torch\nused = torch.cuda.amp.autocast(on)",
        "import torch\nused = torch.cuda.amp.autocast(**given)",
        "import torch\nfrom torch.cuda.amp import autocast\ndef f(torch):\n    return autocast()",
    ],
)
def test_an_outdated_name_is_left_where_torch_or_what_is_given_is_not_sure(text):
    (found,) = deprecated_amp.check(Code(text))
    assert isinstance(found.node, ast.Call)
    assert not found.edits
