"""Edits of a user's source: what they write, what they leave, what they refuse."""

from __future__ import annotations

import ast
import ctypes
import sys
from dataclasses import replace
from textwrap import dedent

import pytest

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Value
from hasten.facts.scripts.script_places import PassPlace, ScriptPlaces, SourceCall
from hasten.scripts.edits.edited_source import edited_source
from hasten.scripts.edits.technique_edits import edits_of

SCRIPT = dedent('''\
    """Trains."""
    import torch
    from torch.utils.data import DataLoader
    from own import Net, data


    def main():
        loader = DataLoader(data, batch_size=8,  # small
                            num_workers=0)
        model = Net()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=True)
        for images, labels in loader:
            optimizer.zero_grad()

            # the step
            outputs = model(images)
            loss = ((outputs - labels) ** 2).mean()
            loss.backward()
            optimizer.step()  # done


    main()
''')


def call(text: str, source: str = SCRIPT) -> SourceCall:
    """The call whose source is this."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node).startswith(text):
            assert node.end_lineno is not None
            assert node.end_col_offset is not None
            return SourceCall(
                file="train.py",
                line=node.lineno,
                column=node.col_offset,
                end_line=node.end_lineno,
                end_column=node.end_col_offset,
            )
    raise AssertionError(text)


def places(source: str = SCRIPT) -> ScriptPlaces:
    return ScriptPlaces(
        script="train.py",
        sources={},
        device="cpu",
        loader=call("DataLoader(", source),
        optimizers=(call("torch.optim.Adam(", source),),
        model="model",
        forward=call("model(images", source),
        images=(0,),
        passes=(PassPlace(forward=call("model(images", source), backward=call("loss.backward(", source)),),
    )


def edited(technique: str, value: Value, source: str = SCRIPT, at: ScriptPlaces | None = None) -> str:
    choices = [Choice(technique=technique, value=value)]
    return edited_source(source, edits_of(choices, at or places(source), lambda file: source))


@pytest.mark.parametrize(
    ("built", "written"),
    [
        ("more = {}", "**more, num_workers=2)"),
        ('more = {"shuffle": True}\n    more["drop_last"] = True', "**more, num_workers=2)"),
        ("more = dict(shuffle=True)", "**more, num_workers=2)"),
        ('more = {"num_workers": 1}', '**{**more, "num_workers": 2})'),
        ('more = {}\n    more["num_workers"] = 1', '**{**more, "num_workers": 2})'),
        ("more = {}\n    more.update(others)", '**{**more, "num_workers": 2})'),
        ("more = {**others}", '**{**more, "num_workers": 2})'),
    ],
)
def test_a_keyword_stands_beside_a_dictionary_that_is_built_without_it(built, written):
    source = SCRIPT.replace("batch_size=8,  # small\n                        num_workers=0", "batch_size=8, **more")
    source = source.replace("    loader = ", f"    {built}\n    loader = ")
    assert f"DataLoader(data, batch_size=8, {written}" in edited("loader_workers", 2, source)


def test_a_keyword_is_written_with_spaces_where_the_call_has_them():
    source = SCRIPT.replace("lr=1e-3, foreach=True", "lr = 1e-3")
    assert "model.parameters(), lr = 1e-3, fused = True)" in edited("fused_optimizer", "fused", source)


def test_a_keyword_replaces_the_one_that_the_call_has():
    expected = SCRIPT.replace("num_workers=0)", "num_workers=2)")
    assert edited("loader_workers", 2) == expected


def test_a_new_keyword_follows_the_style_of_the_call():
    assert edited("pin_memory", True) == SCRIPT.replace("num_workers=0)", "num_workers=0, pin_memory=True)")


@pytest.mark.parametrize("comma", [",", ""])
def test_arguments_on_lines_of_their_own_stay_on_their_own(comma):
    before = f"DataLoader(\n        data,\n        batch_size=8{comma}  # small\n    )"
    after = f"DataLoader(\n        data,\n        batch_size=8,  # small\n        pin_memory=True{comma}\n    )"
    written = "DataLoader(data, batch_size=8,  # small\n                        num_workers=0)"
    source = SCRIPT.replace(written, before)
    assert edited("pin_memory", True, source) == source.replace(before, after)


@pytest.mark.parametrize("first", ["", "\n        "])
def test_a_new_argument_gets_a_line_of_its_own_below_others_that_have_one(first):
    before = f"DataLoader({first}data,\n            batch_size=8, \n            shuffle=True)"
    after = (
        f"DataLoader({first}data,\n            batch_size=8, \n            shuffle=True,\n            pin_memory=True)"
    )
    written = "DataLoader(data, batch_size=8,  # small\n                        num_workers=0)"
    source = SCRIPT.replace(written, before)
    assert edited("pin_memory", True, source) == source.replace(before, after)


def test_an_argument_that_is_written_by_its_place_is_replaced_there():
    source = SCRIPT.replace("batch_size=8,  # small\n                        num_workers=0", "8, True, None, None, 0")
    assert edited("loader_workers", 2, source) == source.replace("None, 0)", "None, 2)")


def test_arguments_of_a_mapping_are_replaced_in_it():
    """The mapping can have the argument itself, which would be given twice."""
    source = SCRIPT.replace("batch_size=8,  # small\n                        num_workers=0", "batch_size=8, **more")
    choices = [Choice(technique="loader_workers", value=2), Choice(technique="persistent_workers", value=True)]
    text = edited_source(source, edits_of(choices, places(source), lambda file: source))
    assert 'DataLoader(data, batch_size=8, **{**more, "num_workers": 2, "persistent_workers": True})' in text


def test_fused_replaces_foreach():
    expected = SCRIPT.replace("lr=1e-3, foreach=True)", "lr=1e-3, fused=True)")
    assert edited("fused_optimizer", "fused") == expected


def test_compile_is_called_before_the_optimizer_is_made():
    line = "    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=True)\n"
    assert edited("compile", "default") == SCRIPT.replace(line, f"    model.compile()\n{line}")


@pytest.mark.parametrize(("above", "between"), [("\n", "\n"), ("", "")])
def test_a_comment_that_begins_a_paragraph_still_begins_one(above, between):
    comment, line = (
        "    # the optimizer\n",
        "    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=True)\n",
    )
    source = SCRIPT.replace(line, above + comment + line)
    after = SCRIPT.replace(line, f"{above}    model.compile()\n{between}{comment}{line}")
    assert edited("compile", "default", source) == after


def test_several_lines_before_a_comment_stay_together():
    comment = "\n    # the optimizer\n"
    line = "    optimizer = torch.optim.Adam("
    source = SCRIPT.replace(line, comment + line)
    choices = [Choice(technique="channels_last", value=True), Choice(technique="compile", value="default")]
    text = edited_source(source, edits_of(choices, places(source), lambda file: source))
    own = "\n    model.to(memory_format=torch.channels_last)\n    model.compile()\n"
    assert f"    model = Net()\n{own}{comment}{line}" in text


def test_compile_is_called_where_the_optimizer_is_returned():
    source = SCRIPT.replace("optimizer = torch.optim.Adam(", "return torch.optim.Adam(")
    returned = "    return torch.optim.Adam(model.parameters(), lr=1e-3, foreach=True)\n"
    assert edited("compile", "default", source) == source.replace(returned, f"    model.compile()\n{returned}")


def test_autocast_is_around_forward_and_loss_and_not_around_backward():
    before = dedent("""\
        # the step
        outputs = model(images)
        loss = ((outputs - labels) ** 2).mean()
    """)
    after = dedent("""\
        with torch.autocast("cpu", dtype=torch.bfloat16):
            # the step
            outputs = model(images)
            loss = ((outputs - labels) ** 2).mean()
    """)
    before, after = (text.replace("\n", "\n        ").rstrip(" ") for text in (before, after))
    assert edited("precision", "bf16") == SCRIPT.replace(before, after)


@pytest.mark.parametrize(
    ("behind", "is_within"),
    [
        ("log.update(loss.item())", False),
        ("optimizer.zero_grad()", False),
        ("loss += 0.1 * model.penalty()", True),
        ("loss.add_(model.penalty())", True),
    ],
)
def test_autocast_ends_behind_what_computes_the_loss(behind, is_within):
    line = "        loss = ((outputs - labels) ** 2).mean()\n"
    source = SCRIPT.replace(line, f"{line}        {behind}\n")
    assert f"\n{' ' * (12 if is_within else 8)}{behind}\n" in edited("precision", "bf16", source)


@pytest.mark.parametrize("collecting", ["losses.append(outputs.mean())", "losses[0] = outputs.mean()"])
def test_several_losses_are_collected_within_autocast(collecting):
    source = SCRIPT.replace("loss = ((outputs - labels) ** 2).mean()", f"losses = [0]\n        {collecting}")
    source = source.replace("loss.backward()", "sum(losses).backward()")
    at = replace(
        places(), passes=(PassPlace(forward=call("model(images", source), backward=call("sum(losses).b", source)),)
    )
    assert f"            {collecting}\n" in edited("precision", "bf16", source, at)


def test_channels_last_converts_the_model_and_its_images():
    text = edited("channels_last", True)
    assert "    model.to(memory_format=torch.channels_last)\n    optimizer =" in text
    assert "outputs = model(images.to(memory_format=torch.channels_last))" in text


def test_a_setting_of_the_process_follows_the_imports():
    expected = SCRIPT.replace("import Net, data\n", "import Net, data\n\ntorch.set_num_threads(1)\n")
    assert edited("threads", 1) == expected


KEPT = """\
if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt"):
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(-4, 0)  # M_MMAP_MAX = 0: large tensors are allocated on the heap too
    mallopt(-1, -1)  # M_TRIM_THRESHOLD = max: freed memory stays for the next step, already mapped
"""


@pytest.mark.parametrize(
    ("own", "imports"),
    [
        ("", "import ctypes\nimport sys\n\n"),
        ("import math\n", "import ctypes\nimport math\nimport sys\n"),
        ("import sys\n", "import ctypes\nimport sys\n"),
    ],
)
def test_freed_memory_is_kept_by_lines_that_are_valid_everywhere_behind_the_imports(own, imports):
    source = SCRIPT.replace("import torch\n", f"{own}import torch\n", 1)
    before = source.replace(f"{own}import torch\n", f"{imports}import torch\n", 1)
    assert edited("allocator", "keep_freed_memory", source) == before.replace("Net, data\n", f"Net, data\n\n{KEPT}")


def test_lines_that_a_script_has_already_are_refused_with_that_reason():
    with pytest.raises(PlanError, match="the script has these lines already"):
        edited("allocator", "keep_freed_memory", edited("allocator", "keep_freed_memory"))


def test_the_lines_that_keep_freed_memory_do_nothing_where_the_c_library_has_no_mallopt(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())  # as of musl
    exec(KEPT, names := {"ctypes": ctypes, "sys": sys})
    assert "mallopt" not in names


def test_a_line_behind_the_imports_uses_no_later_import():
    late = SCRIPT.replace("\n\n\ndef main", "\n\nimport sys  # late\n\n\ndef main").replace(
        "import Net, data\n", "import Net, data\n\nnames = []\n"
    )
    assert "import ctypes\nimport sys\n\nimport torch\n" in edited("allocator", "keep_freed_memory", late)


@pytest.mark.parametrize(
    ("device", "value", "reason"),
    [("cuda", "keep_freed_memory", "trains on cuda"), ("cuda", "expandable_segments", "PYTORCH_CUDA_ALLOC_CONF")],
)
def test_the_allocator_of_a_script_is_that_of_the_cpu(device, value, reason):
    with pytest.raises(PlanError, match=reason):
        edited("allocator", value, at=replace(places(), device=device))


def test_torch_is_imported_where_a_file_has_only_its_parts():
    source = SCRIPT.replace("import torch\n", "import torch.optim as o\n").replace("torch.optim.Adam", "o.Adam")
    at = replace(places(), optimizers=(call("o.Adam(", source),))
    assert edited("threads", 1, source, at).startswith(
        '"""Trains."""\nimport torch\nimport torch.optim as o\nfrom torch.utils.data import DataLoader\n'
        "from own import Net, data\n\ntorch.set_num_threads(1)\n"
    )


def test_several_choices_of_one_call_are_one_edit():
    choices = [Choice(technique="loader_workers", value=2), Choice(technique="persistent_workers", value=True)]
    text = edited_source(SCRIPT, edits_of(choices, places(), lambda file: SCRIPT))
    assert ast.unparse(ast.parse(text)).count("num_workers=2, persistent_workers=True") == 1


@pytest.mark.parametrize(
    ("technique", "value"),
    [("loader_workers", "__import__('os')"), ("threads", "1); evil("), ("compile", '"); evil("'), ("precision", "x")],
)
def test_no_text_of_a_plan_becomes_code(technique, value):
    with pytest.raises(PlanError):
        edited(technique, value)


@pytest.mark.parametrize("name", ["model; evil()", "evil().model", "a b", ""])
def test_the_name_of_the_model_is_a_name(name):
    with pytest.raises(PlanError):
        edited("compile", "default", at=replace(places(), model=name))


def test_a_call_that_is_not_there_is_refused():
    moved = replace(places(), loader=replace(call("DataLoader("), line=2))
    with pytest.raises(PlanError, match="not found"):
        edited("loader_workers", 2, at=moved)


def test_a_step_in_one_call_has_no_place_for_autocast():
    with pytest.raises(PlanError, match="one call"):
        edited("precision", "bf16", at=replace(places(), passes=(), missing={"passes": "one call does both"}))


def test_autocast_is_around_every_pass_of_a_step():
    second = "        again = model(labels)\n        again.sum().backward()\n"
    source = SCRIPT.replace("        loss.backward()\n", f"        loss.backward()\n{second}")
    first, last = call("model(labels)", source), call("again.sum().backward(", source)
    at = replace(places(), passes=(*places().passes, PassPlace(forward=first, backward=last)))
    text = edited("precision", "bf16", source, at)
    assert text.count('        with torch.autocast("cpu", dtype=torch.bfloat16):\n') == 2
    assert "            again = model(labels)\n        again.sum().backward()\n" in text


@pytest.mark.parametrize("autocast", ["enabled", "disabled"])
def test_the_script_s_own_autocast_stays_as_it_is(autocast):
    with pytest.raises(PlanError, match="autocast of its own"):
        edited("precision", "bf16", at=replace(places(), autocast=autocast))


def test_characters_that_are_not_edited_stay():
    source = SCRIPT.replace("# done", "# fertig: größer\t ").replace("\n", "\r\n")
    text = edited("compile", "default", source)
    assert text.replace("    model.compile()\r\n", "") == source


def test_an_environment_variable_is_set_before_torch_is_imported():
    source = SCRIPT.replace("import torch\n", 'import os\nos.environ["MKL_NUM_THREADS"] = "1"\nimport torch\n')
    assert edited("threads", 1, source) == source.replace("Net, data\n", "Net, data\n\ntorch.set_num_threads(1)\n")


def test_text_within_a_string_is_not_indented():
    loss = "        loss = ("
    source = SCRIPT.replace(loss, f'        print("""\n  as it is\n""")\n{loss}')
    assert f'            print("""\n  as it is\n""")\n    {loss}' in edited("precision", "bf16", source)
