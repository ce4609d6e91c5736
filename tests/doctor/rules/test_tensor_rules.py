"""Rules about tensors: what waits for the device, what is copied, what is kept, what goes element by element."""

from __future__ import annotations

import pytest

from hasten.doctor.lint.fixes import mend
from hasten.doctor.rules import ALL
from hasten.facts.finding import Severity
from support.doctor.snippets import assert_finds_what_is_marked, lint_text

STEP = """
import torch, numpy as np
from torch import nn
import torch.nn.functional as F
model = nn.Linear(2, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
criterion = nn.CrossEntropyLoss()
total, seen, losses = 0.0, [], []
for n, (x, y) in enumerate(loader):
    output = model(x)
    loss = criterion(output, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def in_step(*lines: str) -> str:
    return STEP + "".join(f"    {line}\n" for line in lines)


def mended(tmp_path, text: str, code: str) -> str:
    """With all that --fix may do for one rule."""
    path = tmp_path / "train.py"
    path.write_text(text)
    found = mend(path, [rule for rule in ALL if rule.code == code])
    assert found is not None
    return found.after


@pytest.mark.parametrize(
    "read",
    [
        "total += loss.item()  # finds H201",
        "losses.append(float(loss))  # finds H201",
        "print('%d %.3f' % (n, loss))  # finds H201",
        "print('{} {:.3f}'.format(n, loss))  # finds H201",
        "shown = f'{loss:.3f}'  # finds H201",
        "kept = output.detach().cpu().numpy()  # finds H201",
        "kept = output.to('cpu')  # finds H201",
        "right = (output.argmax(1) == y).sum().item()  # finds H201",
        "print(loss.item()) if n % 100 == 0 else None",
        "total += loss.detach()",
        "print(n, x.shape, loss.dtype)",
        "kept = output.to('cpu', non_blocking=True)",
        "print('%d of %d' % (n, len(loader)))",
    ],
)
def test_a_number_that_is_read_from_the_device_in_every_step_is_found(read):
    assert_finds_what_is_marked(in_step(read), "H201")


def test_a_number_that_is_read_in_every_step_without_gradients_is_found_and_an_evaluation_is_not():
    metric = in_step("with torch.no_grad():", "    right = (output.argmax(1) == y).sum().item()  # finds H201")
    assert_finds_what_is_marked(metric, "H201")
    whole = in_step("with torch.no_grad():", "    for x, y in valid:", "        right = (model(x) == y).sum().item()")
    assert_finds_what_is_marked(whole, "H201")


ACCELERATOR = """
if torch.accelerator.is_available():
    device = torch.accelerator.current_accelerator()
else:
    device = torch.device("cpu")
"""


def test_a_device_that_torch_accelerator_chooses_is_an_accelerator():
    text = in_step("total += loss.item()  # finds H201").replace(".cuda()", ".to(device)")
    assert_finds_what_is_marked(text.replace("from torch import nn\n", f"from torch import nn{ACCELERATOR}"), "H201")


@pytest.mark.parametrize(
    "tensor",
    [
        "torch.tensor([1, 2, 3])",
        "torch.tensor(np.mean(values))",
        "torch.tensor(given)",
        "torch.as_tensor(np.ones(3))",
        "torch.tensor(np.ones(3), dtype=torch.float16)",  # which has to be another memory
        "torch.nn.Parameter(torch.tensor(np.ones(3)))",  # which training changes
        "torch.tensor(np.ones(3), requires_grad=True)",
        "torch.tensor(np.ones(3)[0])",
    ],
)
def test_what_has_to_be_copied_is_not(tensor):
    assert_finds_what_is_marked(f"import torch, numpy as np\nx = {tensor}\n", "H202")


def test_a_tensor_that_is_made_a_tensor_again_is_found_unless_it_was_asked_for_what_it_is():
    assert_finds_what_is_marked(
        """
        import torch
        def copied(x):
            y = torch.cat([x, x])
            return torch.tensor(y)  # finds H202
        def taken(x):
            if isinstance(x, torch.Tensor):
                return x.detach().clone()
            return torch.tensor(x)
        """,
        "H202",
    )


@pytest.mark.parametrize(
    "made",
    [
        "torch.zeros(3).cuda()  # finds H203",
        "torch.randn(2, 2).to(device)  # finds H203",
        "torch.arange(n).to(x.device)  # finds H203",
        "torch.zeros(3).to(torch.float16)",
        "torch.zeros(3).to('cpu')",
        "torch.zeros(3, device='cuda:0').to('cuda:1')",
        "torch.randn(3, generator=g).to('cuda')",
        "torch.from_numpy(a).to('cuda')",
        "torch.zeros(3).pin_memory().to('cuda')",
    ],
)
def test_a_tensor_that_is_made_on_the_host_only_to_be_moved_is_found_where_device_would_do(made):
    assert_finds_what_is_marked(f"import torch\ny = {made}\n", "H203")


MADE = """
import torch
at_first = torch.zeros(3).to("cuda")
def buffers():
    return torch.ones(3).to("cuda")
def in_a_step():
    return torch.eye(3).to("cuda")
kept = buffers()
for epoch in range(3):
    in_a_step()
    y = torch.full((3,), 1).to("cuda")
class Model:
    def forward(self, x):
        return x + torch.empty(3).to("cuda")
"""


def test_what_is_made_once_before_training_is_marked_as_that():
    found = [each for each in lint_text(MADE, "train.py") if each.code == "H203"]
    once = {each.source.split("torch.")[1].split("(")[0]: each.severity is Severity.ONCE for each in found}
    assert once == {"zeros": True, "ones": True, "eye": False, "full": False, "empty": False}


def test_the_fix_makes_it_on_the_device_where_the_values_stay(tmp_path):
    text = "import torch\na = torch.zeros(3, dtype=torch.long).to(x.device)\nb = torch.rand(3).cuda()\n"
    changed = text.replace(
        "torch.zeros(3, dtype=torch.long).to(x.device)", "torch.zeros(3, dtype=torch.long, device=x.device)"
    )
    assert mended(tmp_path, text, "H203") == changed


@pytest.mark.parametrize(
    "kept",
    [
        "total += loss  # finds H205",
        "total = total + loss * len(x)  # finds H205",
        "total = 0.9 * total + 0.1 * loss  # finds H205",
        "losses.append(loss)  # finds H205",
        "losses.append((n, loss))  # finds H205",
        "seen.append(output)  # finds H206",
        "seen.append(output.softmax(1))  # finds H206",
        "seen += [output]  # finds H206",
        "total += loss.detach()",
        "losses.append(loss.item())",
        "seen.append(output.argmax(1))",
        "seen.append(output.detach().cpu())",
        "seen.append(y)",
        "seen = [output]; seen.append(output)",
    ],
)
def test_what_keeps_the_graph_of_every_step_is_found(kept):
    assert_finds_what_is_marked(in_step(kept), "H205", "H206")


def test_what_backward_is_called_on_keeps_its_graph_rightly():
    assert_finds_what_is_marked(
        """
        import torch
        policy = torch.nn.Linear(4, 2)
        log_probs = []
        for episode in range(100):
            for state in play():
                log_probs.append(policy(state).log_softmax(0)[0])
            loss = -torch.stack(log_probs).sum()
            loss.backward()
            log_probs = []
        """,
        "H205",
        "H206",
    )


def test_the_fix_detaches_and_puts_parentheses_where_they_are_needed(tmp_path):
    text = in_step("total += loss / 2  # mean")
    assert mended(tmp_path, text, "H205").endswith("    total += (loss / 2).detach()  # mean\n")


def test_what_may_be_no_single_tensor_is_not_mended(tmp_path):
    path = tmp_path / "train.py"
    text = in_step("seen.append(output)  # finds H206").replace("nn.Linear(2, 2)", "Detector()")
    assert_finds_what_is_marked(text, "H206")
    path.write_text(text)
    assert mend(path, [rule for rule in ALL if rule.code in {"H205", "H206"}]) is None


def in_forward(*lines: str) -> str:
    head = "import torch\nfrom torch import nn\nclass Net(nn.Module):\n    def forward(self, x, h):\n"
    return head + "".join(f"        {line}\n" for line in lines)


@pytest.mark.parametrize(
    "lines",
    [
        ("for each in x.detach().flatten():  # finds H207", "    self.use(each)"),
        ("for layer in self.layers:", "    x = layer(x)"),
        ("for t in range(x.size(0)):", "    h = self.cell(x[t], h)"),  # each needs the one before
        ("for part in x.chunk(4):", "    self.use(part)"),
        ("for scale in x:", "    self.use(scale)"),  # it may be a list
        ("for i in range(x.size(0)):", "    self.use(i)"),
    ],
)
def test_a_loop_over_elements_is_found_and_none_over_layers_time_steps_or_parts(lines):
    assert_finds_what_is_marked(in_forward(*lines), "H207")
