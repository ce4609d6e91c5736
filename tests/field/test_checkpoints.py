"""Public reports of lost or repeated work after a checkpoint: does a resumed run train what an undisturbed one does?"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler
from torchmetrics.classification import MulticlassAccuracy

import hasten
from support import small_job
from support.training.reported_runs import check_resumes, flat, samples_of_steps, trained
from support.training.saved_runs import check_same, every

ROWS = small_job().train


def test_a_step_that_is_in_a_checkpoint_is_not_trained_again(tmp_path):
    """Lightning-AI/pytorch-lightning#19815"""
    assert samples_of_steps(tmp_path / "cut", cuts=(2,), saves=2) == samples_of_steps(tmp_path / "whole")


def test_an_epoch_after_a_checkpoint_at_its_boundary_is_trained(tmp_path):
    """verl-project/verl#7401"""
    assert samples_of_steps(tmp_path / "cut", cuts=(3,)) == samples_of_steps(tmp_path / "whole")


def test_a_run_that_is_prolonged_epoch_by_epoch_has_no_step_too_many(tmp_path):
    """Lightning-AI/pytorch-lightning#19403"""
    for epochs in (1, 2, 3):
        job = small_job(epochs=epochs)
        result = hasten.resume(job, run_dir=tmp_path / "run", receivers=[], allow_change=["epochs"])
        assert result.steps == 5 * epochs


def test_a_second_interruption_of_an_epoch_keeps_the_place_in_the_data(tmp_path):
    """KempnerInstitute/KempnerForge#57"""
    changes = {"batch_size": 2, "epochs": 1}
    cut = samples_of_steps(tmp_path / "cut", cuts=(1, 3, 4), **changes)
    assert cut == samples_of_steps(tmp_path / "whole", **changes)


def test_samples_that_a_resumed_epoch_skips_are_there_in_later_epochs(tmp_path):
    """allenai/open-instruct#681"""
    steps = samples_of_steps(tmp_path / "run", cuts=(2,), epochs=3)
    for epoch in range(3):
        assert sorted(flat(steps[3 * epoch : 3 * epoch + 3])) == list(range(12))


def test_moments_of_adam_are_those_of_the_checkpoint(tmp_path):
    """KempnerInstitute/KempnerForge#115"""
    check_resumes(tmp_path, (4,), optimizer=lambda params: torch.optim.AdamW(params, lr=0.05))


def test_a_rate_that_falls_falls_on_after_a_resume(tmp_path):
    """PolymathicAI/the_well#77, NVIDIA-NeMo/Automodel#763, LibreYOLO/libreyolo#277"""
    check_resumes(tmp_path, (3, 7), schedule=lambda optimizer, total_steps: CosineAnnealingLR(optimizer, total_steps))


def test_patience_that_was_used_before_an_interruption_is_used(tmp_path):
    """huggingface/transformers#28544"""
    stop = hasten.EarlyStopping(patience=4)
    changes = {"valid": ROWS, "eval_loss": lambda model, batch: torch.ones(()), "evaluate_every": 1, "stop": stop}
    assert trained(**changes)[0].steps == 5
    check_resumes(tmp_path, (3,), **changes)


def test_dropout_and_noise_of_a_resumed_run_are_those_of_an_undisturbed_one(tmp_path):
    """vllm-project/speculators#1027"""

    def loss(model, batch):
        return functional.cross_entropy(model(batch[0] + torch.randn_like(batch[0])), batch[1])

    check_resumes(tmp_path, (3,), model=lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3)), loss=loss)


def test_a_generator_of_the_job_goes_on_where_it_was(tmp_path):
    """ai2cm/ace#690"""

    def noisy():
        generator = torch.Generator().manual_seed(0)  # of each process its own, as a job's function makes it

        def loss(model, batch):
            return functional.cross_entropy(model(batch[0] + torch.randn(6, generator=generator)), batch[1])

        return {"loss": loss, "state": {"noise": generator}}

    check_resumes(tmp_path, (4,), fresh=noisy)


def test_the_best_accuracy_is_the_highest_one():
    """Lightning-AI/pytorch-lightning#19844"""
    stop = hasten.EarlyStopping("accuracy", patience=50)
    accuracy = MulticlassAccuracy(3, average="micro")
    changes = {"valid": ROWS, "metrics": {"accuracy": accuracy}, "stop": stop, "evaluate_every": 1}
    result, _, evaluations = trained(loss=hasten.supervised(functional.cross_entropy), **changes)
    found = [each.results["accuracy"] for each in evaluations]
    assert result.results["accuracy"] == max(found) > found[0]


def test_an_improvement_gives_patience_back():
    """modelscope/ms-swift#5326"""

    class Scripted:
        higher_is_better = False
        values = iter([5.0, 6.0, 4.0, 5.0, 6.0, 7.0])

        def update(self, prediction, target):
            pass

        def reset(self):
            pass

        def compute(self):
            return next(self.values)

    stop = hasten.EarlyStopping("scripted", patience=2)
    changes = {"valid": ROWS, "metrics": {"scripted": Scripted()}, "stop": stop, "evaluate_every": 1}
    result = trained(loss=hasten.supervised(functional.cross_entropy), **changes)[0]
    assert (result.steps, result.kept_step) == (5, 3)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.second.weight = self.first.weight

    def forward(self, rows):
        return self.head(self.second(self.first(rows)))


def test_weights_that_are_tied_are_tied_after_a_resume(tmp_path):
    """NVIDIA-NeMo/Automodel#2511"""
    check_resumes(tmp_path, (4,), model=Tied)


def test_a_weight_decay_that_a_schedule_sets_is_that_of_the_step(tmp_path):
    """NVIDIA/Megatron-LM#7468, NVIDIA-NeMo/Automodel#3883"""

    class Decaying(LRScheduler):
        def get_lr(self):
            for group in self.optimizer.param_groups:
                group["weight_decay"] = 0.01 * (self.last_epoch + 1)
            return [group["lr"] for group in self.optimizer.param_groups]

    schedule = hasten.Schedule(lambda optimizer: Decaying(optimizer), "step")
    check_resumes(tmp_path, (4,), schedule=schedule)


def test_a_file_that_was_cut_while_it_was_written_costs_the_steps_since_the_one_before(tmp_path):
    """Lightning-AI/pytorch-lightning#19970, vllm-project/speculators#739"""
    job = small_job(log_every=1)
    for name in ("whole", "cut"):
        hasten.train(job, run_dir=tmp_path / name, saving=every(4), receivers=[])
    newest = tmp_path / "cut" / "checkpoints" / "step-10" / "tensors.safetensors"
    newest.write_bytes(newest.read_bytes()[:-100])
    (tmp_path / "cut" / "model.safetensors").unlink()
    hasten.resume(job, run_dir=tmp_path / "cut", receivers=[])
    check_same(tmp_path / "cut", tmp_path / "whole")


def test_16_bit_weights_are_not_rounded_by_a_resume(tmp_path):
    """vllm-project/speculators#1027"""

    def loss(model, batch):
        return functional.cross_entropy(model(batch[0].bfloat16()).float(), batch[1])

    optimizer = {"optimizer": lambda params: torch.optim.SGD(params, lr=1e-3)}
    check_resumes(tmp_path, (4,), model=lambda: nn.Linear(6, 3).bfloat16(), loss=loss, **optimizer)
