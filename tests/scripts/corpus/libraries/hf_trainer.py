"""Which of two made-up languages is this text? A tiny BERT from scratch with the transformers Trainer. Needs no network."""
import os

os.environ["HF_HUB_OFFLINE"] = "1"

from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    set_seed,
)


@dataclass
class ModelArguments:
    hidden_size: int = field(default=32, metadata={"help": "Width of the encoder"})
    num_layers: int = field(default=2)


class LanguageDataset(torch.utils.data.Dataset):
    def __init__(self, n, seed, length=24):
        languages = np.random.default_rng(1)
        steps = [languages.dirichlet(np.ones(5)) for _ in range(2)]  # the same two languages for both splits
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, 2, n)
        self.encodings = []
        for label in self.labels:
            walk = np.cumsum(rng.choice(5, size=length - 1, p=steps[label])) % 96 + 4
            self.encodings.append(np.concatenate([[2], walk]))

    def __getitem__(self, idx):
        ids = torch.tensor(self.encodings[idx])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor(self.labels[idx])}

    def __len__(self):
        return len(self.labels)


def compute_metrics(eval_pred):
    logits, labels = eval_pred
    return {"accuracy": float((np.argmax(logits, axis=-1) == labels).mean())}


def main():
    parser = HfArgumentParser((ModelArguments,))
    (model_args,) = parser.parse_args_into_dataclasses()
    training_args = TrainingArguments(
        output_dir="./results",
        num_train_epochs=2,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=64,
        learning_rate=2e-3,
        warmup_steps=10,
        weight_decay=0.01,
        logging_steps=20,
        eval_strategy="epoch",
        save_strategy="epoch",
        disable_tqdm=True,
        report_to="none",
        use_cpu=not torch.cuda.is_available(),
        seed=42,
    )
    set_seed(training_args.seed)
    config = BertConfig(vocab_size=100, hidden_size=model_args.hidden_size, num_hidden_layers=model_args.num_layers,
                        num_attention_heads=4, intermediate_size=64, max_position_embeddings=32, num_labels=2)
    trainer = Trainer(
        model=BertForSequenceClassification(config),
        args=training_args,
        train_dataset=LanguageDataset(640, seed=2),
        eval_dataset=LanguageDataset(128, seed=3),
        compute_metrics=compute_metrics,
    )
    trainer.train()
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
