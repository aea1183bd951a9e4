"""`regard remember`: a model directory that only adds to another what that one was thinking as it read some texts; and
`regard recall`: what it remembers of them.

Letters: N states, d their width, k neighbours, T tokens.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.adaptation.recall import Neighbours, Recall, Reminded, chosen, recall_of, reminded
from regard.api import load, told
from regard.core.generation import of_like_length
from regard.core.losses import label_log_probabilities
from regard.data.batching import Batch, collate
from regard.data.documents import TextFiles
from regard.data.states import States
from regard.data.text import PairFiles, Skipped
from regard.files import read_whole, vacant, write_whole
from regard.models import storage
from regard.shipped import located
from regard.tasks.generate import Generate
from regard.tasks.task import Task
from regard.tasks.translate import Translate
from regard.training.objectives import IGNORE
from regard.training.validation import TOKENS

WITH = ("tokenizer.json", storage.TEMPLATE)  # of the model: what goes along
ROWS = 64  # pairs that are read together
SHARES = [i / 20 for i in range(20)]  # that are tried on held-out text,
TEMPERATURES = [digit * 10.0**power for power in range(-1, 5) for digit in (1, 2, 5)]  # and temperatures
Show = Callable[[str, int, int], None]
Losses = tuple[float, float]  # without what is remembered, and with it
Lesson = tuple[Batch, NDArray[np.int64]]  # and of each label (B, T), which of the ids it is


class Lessons(NamedTuple):
    """A file to remember."""

    name: str
    digest: str
    rows: Sequence[tuple[int, Sequence[int]]]  # of each row its line, and the ids that are written
    lessons: Iterator[Lesson]
    ignore: int  # a label that does not count


class Remembered(NamedTuple):
    """What was done."""

    states: int
    new: int  # files
    change: Neighbours
    losses: Losses | None  # of held-out text
    skipped: str


def remember(
    directory: Path,
    out: Path,
    files: Sequence[Any],
    settings: Mapping[str, Any] = MappingProxyType({}),
    held_out: Any = None,
    progress: Show = lambda *_: None,
) -> Remembered:
    """Make a model directory of one, and of what it remembers of some files: texts (paths), or `PairFiles`.

    A file that is in it already is not read again; an interrupted run goes on. The share and the temperature are as
    the `settings` of `Neighbours` say, or else as they were, or those under which `held_out`, one more such file, is
    likeliest.
    """
    directory, skipped = located(directory), Skipped()
    was = recall_of(storage.shape(out)) if (out / storage.CONFIG).exists() else None
    change = replace(Neighbours() if was is None else was.change, **settings)
    predictor, task = load(directory, engine="torch"), told(directory).task
    model, folder = predictor.model, out / Recall.folder
    if recall_of(model) is not None:
        raise ValueError(f"{directory} is a memory already: name the model that it adds to, {model.base.path}")
    if task.name not in ("generate", "translate"):
        raise ValueError(f"{directory} is {task.a_model}: what is remembered is what it writes, or translates")
    if out.exists() and not folder.exists() and not vacant(out):
        raise ValueError(f"{out} is no memory, and not empty: choose another place")
    states, new = States(folder, model.output.weight.shape[1], storage.summed(directory), change.near), 0
    for part in _parts(task, files, predictor.tokenizer, skipped):
        if not part.rows:
            raise ValueError(f"{part.name} has nothing in it to remember: leave it out")
        lessons = ((batch.count, partial(_states, model, batch, at, part.ignore)) for batch, at in part.lessons)
        new += states.remember(part.name, part.digest, part.rows, lessons, progress)
    if not len(states):
        raise ValueError("there is nothing to remember: name a file with text in it")
    states.grow(progress)
    losses = None
    if held_out is not None:
        change, losses = _fitted(model, states, change, _parts(task, [held_out], predictor.tokenizer, skipped))
    own = storage.begin(directory, model.config, getattr(model, "head", None), [{"neighbours": asdict(change)}])
    for name in WITH:
        if (directory / name).exists():
            write_whole(out / name, read_whole(directory / name))
    storage.save(own, out, storage.purpose(directory) or storage.Purpose(task.noted(), asdict(told(directory).use)))
    return Remembered(len(states), new, change, losses, skipped.report())


@torch.inference_mode()
def _states(model: Any, batch: Batch, at: NDArray[np.int64], ignore: int) -> tuple[NDArray[np.float32], Any]:
    """What the output layer reads where a label counts (N, d), and which of the ids that is (N,)."""
    counts = batch["labels"] != ignore
    return model.features(**batch.inputs)[counts].float().numpy(), at[counts.numpy()]


def _parts(task: Task, files: Sequence[Any], tokenizer: Any, skipped: Skipped) -> Iterator[Lessons]:
    for file in files:
        if isinstance(task, Generate) != (not isinstance(file, PairFiles)):
            wanted = "texts" if isinstance(task, Generate) else "pairs, by --source and --target, or a .tsv or .jsonl"
            raise ValueError(f"{task.a_model} remembers {wanted}")
        if isinstance(task, Generate):
            yield from (_of_text(task, path, tokenizer, skipped) for path in TextFiles(str(file)).paths())
        else:
            assert isinstance(task, Translate)
            yield _of_pairs(task, file, tokenizer, skipped)


def _of_text(task: Generate, path: str, tokenizer: Any, skipped: Skipped) -> Lessons:
    """A text is read in windows that overlap by half: each state is of half a block, or of all that is before it."""
    files = TextFiles(path)
    passages = list(files.read(skipped))
    lines = np.cumsum([1, *(passage.text.count("\n") for passage in passages)]).tolist()
    rows = [(line, ids) for line, (ids,) in zip(lines, task.examples(passages, tokenizer), strict=False)]
    stride = max(1, task.block // 2)
    lessons = task.windows([id for _, ids in rows for id in ids], tokenizer.marks, stride)
    digest = sha256(f"{files.fingerprint()} {task.block} {task.apart}".encode()).hexdigest()
    return Lessons(path, digest, rows, lessons, IGNORE)


def _of_pairs(task: Translate, files: PairFiles, tokenizer: Any, skipped: Skipped) -> Lessons:
    numbered = list(files.numbered(skipped))
    examples = list(task.examples([pair for _, pair in numbered], tokenizer)) if numbered else []
    held = [(line, pair) for (line, _), pair in zip(numbered, examples, strict=True) if pair is not None]
    skipped.long += len(numbered) - len(held)
    pad, eos = tokenizer.marks.need("pad", "eos")
    rows = [(line, [*target, eos]) for line, (_, target) in held]
    begins = np.cumsum([0, *(len(ids) for _, ids in rows)])

    def lessons() -> Iterator[Lesson]:
        for some in of_like_length([max(map(len, pair)) + 1 for _, pair in held], TOKENS, ROWS):
            batch = collate([held[i][1] for i in some], marks=tokenizer.marks)
            yield batch, begins[some][:, None] + np.arange(batch["labels"].shape[1])

    name = str(files.tsv or files.jsonl or files.target)
    digest = sha256(f"{files.fingerprint()} {task.longest} {task.order}".encode()).hexdigest()
    return Lessons(name, digest, rows, lessons(), pad)


def _fitted(model: Any, states: States, change: Neighbours, parts: Iterator[Lessons]) -> tuple[Neighbours, Losses]:
    """The change with the share and the temperature that held-out text asks for; its loss without and with it."""
    own, far, right = list[Tensor](), list[Tensor](), list[Tensor]()
    for part in parts:
        for batch, at in part.lessons:
            h, _ = _states(model, batch, at, part.ignore)
            labels = batch["labels"][batch["labels"] != part.ignore]
            with torch.inference_mode():
                own.append(label_log_probabilities(model.output(torch.from_numpy(h)), labels))
            distances, numbers = states.nearest(h, change.neighbours)
            far.append(torch.from_numpy(distances))
            right.append(torch.from_numpy(states.tokens(numbers)) == labels[:, None])
    if not own:
        raise ValueError("the held-out text has nothing in it")
    log_p = torch.cat(own)
    share, temperature, loss = chosen(log_p, torch.cat(far), torch.cat(right), TEMPERATURES, SHARES)
    return replace(change, share=share, temperature=temperature), (-float(log_p.double().mean()), loss)


@torch.inference_mode()
def recalled(memory: Path | Any, text: str, target: str | None = None, *, top: int = 5) -> list[Reminded]:
    """For each token of a text that a model would write, and for the one after it: how likely it is, without and with
    what is remembered, and the `top` nearest of that. A translator reads the text, and writes the target, or its own.
    """
    predictor = load(memory, engine="torch") if isinstance(memory, str | Path) else memory
    model, tokenizer, eos = predictor.model, predictor.tokenizer, predictor.eos
    if recall_of(model) is None:
        raise ValueError(f"{memory} remembers nothing: `regard remember` makes a model directory that does")
    if hasattr(predictor, "translate"):
        target = predictor.translate(text) if target is None else target
        ids = tokenizer.encode(target)[:: -1 if predictor.backward else 1]
        inputs = collate([(tokenizer.encode(text), ids)], marks=tokenizer.marks).inputs
        labels = [*ids, eos]
    elif target is not None:
        raise ValueError("a target is what a translator writes: leave it out")
    else:
        inputs = {"tokens": torch.tensor([ids := predictor.ids(text)])}
        labels = [*ids[1:], None]
    return reminded(model, tokenizer, model.features(**inputs)[0], labels, eos, top)
