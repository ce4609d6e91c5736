"""Training scripts in the styles that people write, in tests/scripts/corpus: how each is run and what is in it.

None imports hasten, none needs a network or an option. The figures were counted in runs with default options: calls of
constructors of DataLoader and Optimizer, those by libraries too, steps of optimizers, and outermost calls of modules
that have parameters. Each ran twice, in fresh folders. A text with spaces is a list of names.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

CORPUS = Path(__file__).parents[2] / "scripts" / "corpus"


@dataclass(frozen=True)
class Program:
    models: str  # classes of outermost modules that are called with gradients
    optimizers: str  # classes, in order of construction
    updates: int  # steps of the optimizer, of each where there are several
    epochs: int | None  # None where the script counts steps
    cpu_seconds: float  # one run on one thread of a busy machine; loading torch is 2 of them
    loaders: int = 1  # constructed in the whole run
    frozen: str = ""  # classes of other modules that are called, never with gradients
    repeats: bool = True  # False where two runs print different losses
    leaves: str = ""  # files and folders that a run writes into its working folder
    variant: str = ""  # options of another run
    module: str | None = None  # run as python -m, in the first folder below the corpus
    needs: str = ""  # imports that hasten's own dependencies, and scikit-learn, do not bring


def copied(name: str, folder: Path) -> list[str]:
    """Copies a script into a new folder, with the files that belong to it. What follows `python` there."""
    top, *rest = Path(name).parts
    if top in ("package", "project"):
        shutil.copytree(CORPUS / top, folder, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        folder.mkdir()
        shutil.copy(CORPUS / name, folder)
    module = PROGRAMS[name].module
    return ["-m", module] if module else [rest[-1]]


PROGRAMS = {
    # A plain MLP at module level.
    "plain/first_net.py": Program("Sequential", "Adam", updates=450, epochs=10, cpu_seconds=3.7),
    # Argparse and a main guard, loader arguments in dictionaries, a schedule by epochs, NLL by function.
    "plain/train_digits.py": Program(
        "Net", "Adadelta", updates=336, epochs=14, cpu_seconds=5.2, loaders=2, variant="--epochs 1 --save-model"
    ),
    # A CNN, a slow Dataset class without workers, phases, keeps the best weights in memory.
    "plain/cnn_shapes.py": Program("Sequential", "SGD", updates=120, epochs=4, cpu_seconds=4.2, loaders=2),
    # A Trainer class with self.model and self.optimizer, an optimizer chosen by name; logs losses on stderr.
    "plain/trainer_class.py": Program("Regressor", "AdamW", updates=222, epochs=6, cpu_seconds=3.5, loaders=2),
    # Own batches by randperm and slices, no DataLoader; two spaces, several statements a line.
    "plain/no_loader.py": Program("MLP", "RMSprop", updates=348, epochs=12, cpu_seconds=3.6, loaders=0),
    # Nothing is seeded: data, weights, order, dropout; positional arguments of DataLoader.
    "plain/moons_unseeded.py": Program("Classifier", "Adam", updates=400, epochs=10, cpu_seconds=4.7, repeats=False),
    # The state of an LSTM is carried between batches, which are slices of a stream; clipping.
    "plain/lstm_stream.py": Program(
        "RNNModel", "Adam", updates=246, epochs=3, cpu_seconds=4.3, loaders=0, variant="--epochs 1 --bptt 20"
    ),
    # U-Net segmentation, Dice loss, tqdm, NumPy randomness in the Dataset; comments in Chinese.
    "plain/unet_blobs.py": Program("UNet", "Adam", updates=120, epochs=4, cpu_seconds=4.6, loaders=2, needs="tqdm"),
    # Character GPT as nanoGPT: globals set by --key=value, estimate_loss(), rate set by hand, tied weights.
    "plain/chargpt.py": Program(
        "GPT", "AdamW", updates=150, epochs=None, cpu_seconds=5.3, loaders=0, variant="--max_iters=60 --n_layer=1"
    ),
    # Pairs of images and a contrastive loss; saves the best epoch by torch.save.
    "plain/siamese.py": Program(
        "SiameseNetwork", "SGD", updates=250, epochs=5, cpu_seconds=5.0, loaders=2, leaves="siamese_best.pth"
    ),
    # Ends after six steps; a frozen backbone, only the head is trained.
    "plain/few_steps.py": Program("Sequential", "SGD", updates=6, epochs=2, cpu_seconds=2.8),
    # Evaluation under no_grad and another one with gradients on; metrics to a JSON file at the end.
    "plain/eval_two_ways.py": Program(
        "Sequential", "NAdam", updates=256, epochs=8, cpu_seconds=3.2, loaders=3, leaves="metrics.json"
    ),
    # No module and no optimizer: 180 updates by hand; Latin-1 source.
    "plain/from_scratch.py": Program("", "", updates=0, epochs=10, cpu_seconds=2.3, loaders=0),
    # A GAN: two optimizers in turns.
    "steps/gan_ring.py": Program(
        "Generator Discriminator",
        "Adam Adam",
        updates=200,
        epochs=4,
        cpu_seconds=3.5,
        variant="--n_epochs 1 --batch_size 128",
    ),
    # A VAE: random numbers in the forward pass, a summed loss, decode() called past forward.
    "steps/vae.py": Program("VAE", "Adam", updates=180, epochs=15, cpu_seconds=4.7, loaders=2),
    # Distillation: two frozen teachers, one student is trained; main() without a guard.
    "steps/distill.py": Program(
        "Student", "Adam", updates=168, epochs=6, cpu_seconds=4.4, frozen="Teacher Teacher", variant="--epochs 2 -T 2"
    ),
    # Bf16 autocast is there already, around forward and loss.
    "steps/autocast_bf16.py": Program("Encoder", "AdamW", updates=80, epochs=2, cpu_seconds=5.1),
    # A GradScaler in the loop, disabled without CUDA; autocast likewise; unscale and clipping.
    "steps/grad_scaler.py": Program("Sequential", "SGD", updates=160, epochs=4, cpu_seconds=3.5, loaders=2),
    # LBFGS with a closure (596 calls), float64 as default dtype, autograd.grad in the loss; CRLF lines.
    "steps/lbfgs_fit.py": Program("Sequential", "LBFGS", updates=25, epochs=None, cpu_seconds=4.2, loaders=0),
    # MAML: gradients by torch.autograd.grad alone, functional_call, .grad set by hand.
    "steps/maml_sine.py": Program("SineNet", "Adam", updates=150, epochs=None, cpu_seconds=5.0, loaders=0),
    # An optimizer a parameter, stepped by post-accumulate-grad hooks within backward.
    "steps/optim_in_backward.py": Program(
        "Sequential", "Adam Adam Adam Adam Adam Adam", updates=192, epochs=8, cpu_seconds=4.8
    ),
    # Gradient accumulation over 4 batches, a last window of fewer; collate_fn, batches are dictionaries.
    "steps/accumulate.py": Program(
        "TextNet", "AdamW", updates=90, epochs=3, cpu_seconds=3.7, loaders=2, variant="--accum 2 --epochs 1"
    ),
    # OneCycleLR at every step and clipping, norms read at every step; tabs.
    "steps/onecycle_clip.py": Program("Sequential", "AdamW", updates=300, epochs=5, cpu_seconds=4.0),
    # Diffusion by noise prediction, the loss is the module's output, an endless generator over a loader.
    "steps/ddpm_digits.py": Program("GaussianDiffusion", "Adam", updates=200, epochs=None, cpu_seconds=5.4),
    # Mixed param groups, one added later; rates set by hand at every step; exits where the loss is not finite.
    "steps/param_groups.py": Program(
        "ViT", "AdamW", updates=112, epochs=4, cpu_seconds=6.6, variant="--epochs 1 --warmup_epochs 0"
    ),
    # An exponential moving average of the weights, updated after every step.
    "steps/ema_weights.py": Program(
        "Sequential", "SGD", updates=200, epochs=4, cpu_seconds=3.6, loaders=2, frozen="Sequential"
    ),
    # Torch.compile with an option only; batches made on the fly.
    "steps/compiled.py": Program(
        "Mixer", "AdamW", updates=120, epochs=None, cpu_seconds=4.2, loaders=0, variant="--compile --steps 40"
    ),
    # SAM: an optimizer that wraps another, two backward passes an update, its own step() is never called.
    "steps/sam.py": Program("Sequential", "SAM SGD", updates=160, epochs=8, cpu_seconds=4.4),
    # Key=value options as Hydra's, os.chdir into an output folder named after them.
    "odd/output_dir.py": Program(
        "Sequential",
        "Adamax",
        updates=360,
        epochs=6,
        cpu_seconds=3.5,
        leaves="outputs",
        needs="yaml",
        variant="lr=0.02 epochs=2",
    ),
    # Sys.exit(0) at the end, sys.exit(3) where it did not learn; a new loader every epoch.
    "odd/exits.py": Program(
        "Sequential", "SGD", updates=300, epochs=60, cpu_seconds=4.5, loaders=60, leaves="predictions.csv"
    ),
    # Writes checkpoints beside itself and resumes if there is one, then with nothing left to do.
    "odd/resume.py": Program("AutoEncoder", "Adam", updates=300, epochs=6, cpu_seconds=3.5, leaves="checkpoints"),
    # TensorBoard in runs/DATE_HOST, or a CSV file where it is not installed.
    "odd/tb_logging.py": Program(
        "TwoTower", "AdamW", updates=120, epochs=3, cpu_seconds=3.5, leaves="runs", variant="--no-tb --epochs 1"
    ),
    # An endless IterableDataset, left by break at max_batches; sparse features.
    "odd/iterable.py": Program("FactorizationMachine", "Adagrad", updates=400, epochs=None, cpu_seconds=3.8, loaders=2),
    # While True, broken at max_iters, within try/except KeyboardInterrupt; CTC loss, random Dataset.
    "odd/forever.py": Program("Reader", "Adam", updates=250, epochs=None, cpu_seconds=6.0),
    # Reads loss.item() at every step and stops early by it, in the middle of an epoch.
    "odd/early_stop.py": Program("MF", "Adam", updates=569, epochs=None, cpu_seconds=4.3, variant="--patience 20"),
    # REINFORCE on an own environment: many forward passes, one backward pass an episode.
    "odd/reinforce.py": Program(
        "Policy", "Adam", updates=80, epochs=80, cpu_seconds=3.9, loaders=0, variant="--episodes 20"
    ),
    # Except Exception: continue around the step, 25 of 400 steps fail; a new loader every epoch.
    "odd/swallow.py": Program("Sequential", "Adam", updates=375, epochs=5, cpu_seconds=3.3, loaders=5),
    # Prints 8 MB.
    "odd/chatty.py": Program("Sequential", "SGD", updates=200, epochs=2, cpu_seconds=4.9),
    # Workers under fork at module level, NumPy and Python randomness seeded by worker_init_fn.
    "odd/fork_workers.py": Program("PitchNet", "AdamW", updates=150, epochs=3, cpu_seconds=5.9, loaders=2),
    # Persistent workers under spawn, so a main guard.
    "odd/spawn_workers.py": Program(
        "Fourier", "Adam", updates=192, epochs=3, cpu_seconds=7.1, variant="--workers 0 --epochs 1"
    ),
    # DistributedDataParallel in one process under gloo, or under torchrun; DistributedSampler.
    "odd/ddp_gloo.py": Program(
        "DistributedDataParallel", "SGD", updates=240, epochs=3, cpu_seconds=3.9, leaves="ddp_model.pt"
    ),
    # A notebook, with a magic, outputs and expressions at the end of cells.
    "odd/weather.ipynb": Program(
        "Sequential", "Adam", updates=300, epochs=6, cpu_seconds=3.8, loaders=2, leaves="history.png"
    ),
    # Lightning: module, data module, Trainer with clipping, checkpoints, CSV log.
    "libraries/lightning_digits.py": Program(
        "LitDigits", "Adam", updates=96, epochs=3, cpu_seconds=6.9, loaders=2, leaves="logs", needs="lightning"
    ),
    # Transformers' Trainer on a tiny BERT, HfArgumentParser, saves every epoch.
    "libraries/hf_trainer.py": Program(
        "BertForSequenceClassification",
        "AdamW",
        updates=80,
        epochs=2,
        cpu_seconds=6.0,
        loaders=8,
        leaves="results",
        needs="transformers",
        variant="--hidden_size 16",
    ),
    # Accelerate: prepare, accumulate, backward, gather_for_metrics.
    "libraries/accelerate_loop.py": Program(
        "Tagger",
        "AdamW",
        updates=120,
        epochs=3,
        cpu_seconds=4.0,
        loaders=4,
        needs="accelerate",
        variant="--mixed_precision bf16",
    ),
    # Lightning Fabric: setup, backward, clip_gradients, save.
    "libraries/fabric_segments.py": Program(
        "NBeats",
        "RAdam",
        updates=159,
        epochs=3,
        cpu_seconds=6.7,
        loaders=2,
        leaves="nbeats.ckpt",
        needs="lightning",
        variant="--epochs 1",
    ),
    # A package with relative imports, run by python -m; padded batches.
    "package/tagger/train.py": Program(
        "Tagger", "Adam", updates=189, epochs=3, cpu_seconds=3.6, loaders=2, variant="--epochs 1", module="tagger.train"
    ),
    # Several files, dataclass config, dotted options; one function trains and evaluates.
    "project/train.py": Program(
        "GraphNet",
        "Adam",
        updates=100,
        epochs=4,
        cpu_seconds=3.2,
        loaders=2,
        variant="--data.batch_size 100 --epochs 1",
    ),
}
