from dataclasses import asdict, dataclass, field, fields


@dataclass
class DataConfig:
    n_nodes: int = 12
    n_graphs: int = 1200
    batch_size: int = 40
    seed: int = 19


@dataclass
class ModelConfig:
    hidden: int = 48
    layers: int = 3


@dataclass
class Config:
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    lr: float = 4e-3
    epochs: int = 4

    @classmethod
    def from_cli(cls, argv):
        """`--data.batch_size 64 --lr 0.01`"""
        cfg = cls()
        for flag, text in zip(argv[::2], argv[1::2]):
            owner, name = cfg, flag.lstrip("-")
            while "." in name:
                head, name = name.split(".", 1)
                owner = getattr(owner, head)
            (kind,) = (f.type for f in fields(owner) if f.name == name)
            setattr(owner, name, kind(text))
        return cfg

    def __str__(self):
        return str(asdict(self))
