"""How a model is trained: the section `train` of a recipe."""

from dataclasses import dataclass, field
from typing import Any

from regard.checks import above, at_least, one_of, share
from regard.training.optimisers import OptimiserConfig
from regard.training.schedules import ScheduleConfig

PRECISIONS = ("fp32", "bf16", "fp16")
RECOMPUTE = ("nothing", "feed_forward", "layers")
DISTRIBUTED = ("ddp", "fsdp")
LENGTHS = ("steps", "epochs", "minutes")  # the ways to say how long; exactly one is given
COUNTED = (  # from 1 on
    *("steps", "accumulate", "validate_sentences", "shards", "snapshot_every", "validate_every"),
    *("checkpoint_every", "keep", "patience", "thaw", "batch_rows"),
)


@dataclass(frozen=True)
class TrainConfig:
    """Everything about training that is neither the data nor the model; its length must be given.

    >>> TrainConfig(steps=1000).validate_sentences
    500
    >>> TrainConfig(steps=1000, clip=-1.0)
    Traceback (most recent call last):
    ValueError: train.clip = -1.0: it must be at least 0
    """

    steps: int | None = None  # length in updates; or give epochs or minutes
    epochs: float | None = None  # length in passes over the data
    minutes: float | None = None  # length in time: becomes steps once, by the speed measured at the start
    seed: int = 1  # of weights, data order and dropout
    batch_tokens: int = 4096  # padded positions of the longer side, over all processes; 0: the largest that fits
    batch_rows: int | None = None  # rows in place of tokens: so many pictures, or pairs that are contrasted
    accumulate: int = 1  # parts in which a batch is worked on, one after the other
    shards: int | None = None  # threads that share a batch; chosen by the number of cores if left out
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)  # how gradients become updates
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)  # the learning rate at each step
    smoothing: float = 0.1  # of the labels (§5.4)
    clip: float = 1.0  # norm of the gradient; 0: off
    precision: str = "fp32"  # bf16, fp16
    recompute: str = "nothing"  # in the backward pass, to save memory: nothing, feed_forward, layers
    compile: bool = False  # with torch.compile
    ema: float = 0.0  # decay of an exponential moving average of the weights; 0: off
    average: int = 0  # at the end, average this many last snapshots; 0: off
    snapshot_every: int | None = None  # steps; validate_every, if left out
    validate_every: int | None = None  # steps; chosen from the length of the run if left out
    validate_sentences: int = 500  # how many of them are translated for BLEU
    checkpoint_minutes: float = 5.0  # between checkpoints for resuming
    checkpoint_every: int | None = None  # steps between checkpoints; instead of checkpoint_minutes
    keep: int = 2  # checkpoints
    patience: int | None = None  # validations without a better score before stopping early
    freeze: tuple[str, ...] = ()  # parameters that stay as they are, by name: stem.*, encoder.layers.[0-3].*
    thaw: int | None = None  # steps after which they learn with the rest: what is new, such as a head, comes first
    distributed: str = "ddp"  # how several processes share the work: ddp, fsdp
    timeout_minutes: float = 1440.0  # that a process waits for another before it fails, and `torchrun` starts it anew

    def __post_init__(self) -> None:
        given = [name for name in LENGTHS if getattr(self, name) is not None]
        if len(given) != 1:
            got = " and ".join(given) or "none"
            raise ValueError(f"train: give exactly one of {', '.join(LENGTHS)}; got {got}")
        at_least(1, **self._named(*COUNTED))
        above(0, **self._named("epochs", "minutes", "checkpoint_minutes", "timeout_minutes"))
        at_least(0, **self._named("batch_tokens", "clip", "average"))
        if self.batch_tokens >= 2**31:
            raise ValueError(f"train.batch_tokens = {self.batch_tokens}: it must be below 2³¹")
        share(whole=False, **self._named("smoothing", "ema"))
        if self.thaw is not None and not self.freeze:
            raise ValueError(f"train.thaw = {self.thaw}: train.freeze names nothing that could thaw")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"train.seed = {self.seed}: it lies in 0..2⁶³-1")
        for name, valid in (("precision", PRECISIONS), ("recompute", RECOMPUTE), ("distributed", DISTRIBUTED)):
            one_of(valid, **self._named(name))

    @property
    def batch(self) -> int:
        """How large a batch is: in rows, or in tokens."""
        return self.batch_rows or self.batch_tokens

    def _named(self, *settings: str) -> dict[str, Any]:
        return {f"train.{name}": getattr(self, name) for name in settings}
