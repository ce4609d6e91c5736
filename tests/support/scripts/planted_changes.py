"""Changes of the training that a technique must not make, each as an edit of a script of the corpus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import indent

from hasten.facts.choice import Preserves
from hasten.tuning.proof.short_runs import FEWEST_STEPS


@dataclass(frozen=True)
class Planted:
    """script: in the corpus. claim: of a technique that would make the change. edits: text of the script -> another, of
    its first occurrence. says: a part of the reason for which it is rejected. steps: of each run whose losses are
    compared."""

    script: str
    claim: Preserves
    edits: Sequence[tuple[str, str]]
    says: str
    steps: int = 40

    def made(self, source: str) -> str:
        for before, after in self.edits:
            assert before in source, before
            source = source.replace(before, after, 1)
        return source


DIGITS, SHAPES, SPIRALS = "plain/train_digits.py", "plain/cnn_shapes.py", "steps/onecycle_clip.py"
REVIEWS, FRIEDMAN, TWO_WAYS = "steps/accumulate.py", "plain/trainer_class.py", "plain/eval_two_ways.py"
CELLS, GPT, FIRST, RING = "plain/unet_blobs.py", "plain/chargpt.py", "plain/first_net.py", "steps/gan_ring.py"
LBFGS = "steps/lbfgs_fit.py"
BITS, ROUNDING, STATISTICS = Preserves.BITS, Preserves.ROUNDING, Preserves.STATISTICS

_CLIPS = "\t\tnorm = nn.utils.clip_grad_norm_(net.parameters(), CLIP)\n"
_CALLED = "            loss = self._step(batch)\n"
_STEP = f"{_CALLED}            self.optimizer.zero_grad(set_to_none=True)\n            loss.backward()\n"
_IN_AUTOCAST = "            with torch.autocast('cpu', torch.bfloat16):\n" + indent(_STEP, "    ")
_CACHED = """\
        self.drawn = getattr(self, "drawn", {})
        img = self.drawn.setdefault(idx, img)
        img += rng.randn(24, 24)"""

_OUTPUTS = "        outputs = model(inputs)\n"
_LOWER = (
    "        with torch.autocast('cpu', torch.bfloat16): outputs = model(inputs)\n        outputs = outputs.float()\n"
)

_UPDATED = "                        optimizer.step()\n"
_NOISE = """\
                        for each in model.parameters():
                            each.grad *= 1 + 1e-4 * torch.randn(each.shape, generator=noise)
"""

PLANTED = {
    "noise of a ten-thousandth on the gradients": Planted(
        SHAPES,
        ROUNDING,
        [
            ("model.train()\n", "model.train(); noise = torch.Generator().manual_seed(1)\n"),
            (_UPDATED, _NOISE + _UPDATED),
        ],
        "differs from its float64 reference",
    ),
    "dropout switched off": Planted(DIGITS, ROUNDING, [("nn.Dropout(0.5)", "nn.Dropout(0.0)")], "dropout"),
    "dropout of attention switched off": Planted(
        GPT, ROUNDING, [("dropout_p=dropout if self.training else 0", "dropout_p=0")], "dropout"
    ),
    "learning rate doubled": Planted(FRIEDMAN, ROUNDING, [("lr=self.cfg.lr,", "lr=2 * self.cfg.lr,")], "lr"),
    "weight decay dropped": Planted(SPIRALS, ROUNDING, [("weight_decay=1e-2", "weight_decay=0.0")], "weight_decay"),
    "momentum lost": Planted(SHAPES, ROUNDING, [(", momentum=0.9", "")], "momentum"),
    "clipping removed": Planted(SPIRALS, ROUNDING, [(_CLIPS, "\t\tnorm = torch.ones(())\n")], "clip_grad_norm_"),
    "clipping before the backward": Planted(
        SPIRALS,
        ROUNDING,
        [(_CLIPS, ""), ("\t\tloss.backward()\n", f"{_CLIPS}\t\tloss.backward()\n")],
        "clip_grad_norm_",
    ),
    "batch norm in evaluation mode": Planted(
        SHAPES, ROUNDING, [("model.train()\n", "model.train(); model[1].eval()\n")], "training mode"
    ),
    "a frozen layer": Planted(
        DIGITS, ROUNDING, [("    scheduler =", "    model.conv1.requires_grad_(False)\n    scheduler =")], "trained"
    ),
    "a batch skipped": Planted(
        DIGITS,
        ROUNDING,
        [("        data, target =", "        if batch_idx == 1: continue\n        data, target =")],
        "batches",
    ),
    "each batch trained on twice": Planted(
        SPIRALS,
        BITS,
        [("for xb, yb in train_dl", "for xb, yb in (each for each in train_dl for _ in '12')")],
        "batches",
    ),
    "shuffle removed": Planted(FIRST, STATISTICS, [(", shuffle=True", "")], "order of the samples"),
    "workers that repeat random numbers": Planted(
        CELLS,
        STATISTICS,
        [
            (
                "shuffle=True, drop_last=True",
                "shuffle=True, drop_last=True, num_workers=2, worker_init_fn=lambda _: np.random.seed(0)",
            )
        ],
        "drawn again",
    ),
    "labels of the next sample": Planted(
        REVIEWS,
        ROUNDING,
        [("[l for _, l in batch]", "[l for _, l in batch[1:] + batch[:1]]")],
        "differs from its float64 reference",
    ),
    "labels of another sample": Planted(
        DIGITS, STATISTICS, [("F.nll_loss(output, target)", "F.nll_loss(output, target.roll(1))")], "harmed"
    ),
    "loss multiplied": Planted(
        REVIEWS, ROUNDING, [("loss / args.accum", "loss")], "differs from its float64 reference"
    ),
    "labels smoothed, beside autocast": Planted(
        FIRST,
        STATISTICS,
        [("CrossEntropyLoss()", "CrossEntropyLoss(label_smoothing=0.1)"), (_OUTPUTS, _LOWER)],
        "norm of the gradient of the first step",
        steps=FEWEST_STEPS,
    ),
    "labels smoothed, beside dropout": Planted(
        DIGITS,
        STATISTICS,
        [("F.nll_loss(output, target)", "F.cross_entropy(output, target, label_smoothing=0.1)")],
        "norm of the gradient of the first step",
        steps=FEWEST_STEPS,
    ),
    "labels smoothed, of characters": Planted(
        GPT,
        STATISTICS,
        [("targets.view(-1))", "targets.view(-1), label_smoothing=0.1)")],
        "norm of the gradient of the first step",
        steps=FEWEST_STEPS,
    ),
    "loss doubled, beside autocast": Planted(
        FIRST,
        STATISTICS,
        [("criterion(outputs, labels)", "2 * criterion(outputs, labels)"), (_OUTPUTS, _LOWER)],
        "the loss of the first step",
        steps=FEWEST_STEPS,
    ),
    "weight decay in the loss": Planted(
        SPIRALS,
        STATISTICS,
        [("lossf(net(xb), yb)", "lossf(net(xb), yb) + 5e-4 * sum(each.square().sum() for each in net.parameters())")],
        "the loss of the first step",
        steps=FEWEST_STEPS,
    ),
    "loss computed in bf16": Planted(
        FIRST, STATISTICS, [("criterion(outputs, labels)", "criterion(outputs.bfloat16(), labels).float()")], "bfloat16"
    ),
    "autocast around the backward as well": Planted(FRIEDMAN, STATISTICS, [(_STEP, _IN_AUTOCAST)], "autocast"),
    "the whole model cast to bf16": Planted(
        FIRST,
        STATISTICS,
        [("print(model)", "model.bfloat16()"), ("model(inputs)", "model(inputs.bfloat16()).float()")],
        "bfloat16",
    ),
    "gradients that accumulate": Planted(
        FIRST,
        ROUNDING,
        [
            ("        optimizer.zero_grad()\n", ""),
            ("    running_loss = 0.0", "    running_loss = 0.0; optimizer.zero_grad()"),
        ],
        "differs from its float64 reference",
    ),
    "the edit in the wrong of two loaders": Planted(TWO_WAYS, BITS, [("in train_loader", "in test_loader")], "batches"),
    "the edit in the wrong of two loops": Planted(
        DIGITS, BITS, [("def train(", "@torch.no_grad()\ndef train(")], "does not require grad"
    ),
    "the edit in the wrong of two optimizers": Planted(
        RING,
        ROUNDING,
        [("Adam(discriminator.parameters(), lr=opt.lr", "Adam(generator.parameters(), lr=opt.lr")],
        "parameters",
    ),
    "training mode forgotten after an evaluation": Planted(
        TWO_WAYS,
        BITS,
        [("    model.train()\n    return torch", "    return torch"), ("    model.train()\n", "")],
        "dropout",
    ),
    "a cache of images that are changed in place": Planted(
        SHAPES, BITS, [("        img += rng.randn(24, 24)", _CACHED)], "drawn again"
    ),
    "the schedule stepped twice": Planted(
        DIGITS, ROUNDING, [("        scheduler.step()", "        scheduler.step(); scheduler.step()")], "lr"
    ),
}
