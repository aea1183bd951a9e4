"""Looking: a picture and a question in, an answer out: a language model that sees, and learns from captions how."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any

import numpy as np
import torch
from torch import nn

from regard.core.generation import DecoderOnly, Illustrated
from regard.data.arrays import Column
from regard.data.batching import Batch
from regard.data.chat import CHATML, PICTURE, ChatTemplate, Message
from regard.data.pictures import Sight, in_groups, side_by_side
from regard.data.rows import Row
from regard.data.tokenizers import Tokenizer
from regard.decoding.protocol import Request, SearchConfig
from regard.inspection.axes import END, Grid, grids
from regard.inspection.maps import attention_maps, without_special
from regard.inspection.page import AttentionMap
from regard.native import UnsupportedError
from regard.native.pictures import augmented
from regard.tasks.asks import Prompt, Writing
from regard.tasks.caption import Caption, Captioned
from regard.tasks.converse import ANSWER, FIRST, check_marks, marked, packed, template_of
from regard.tasks.embed import Judging
from regard.tasks.generate import WriteConfig
from regard.tasks.generator import Generator
from regard.tasks.match import CaptionedConfig, drawn
from regard.tasks.task import Damaged, Sections
from regard.tasks.viewer import TOGETHER, Viewed, Viewer
from regard.training.objectives import IGNORE, NextToken, Objective
from regard.training.stream import Collate


@dataclass(frozen=True)
class LookConfig:
    """What a model is for."""

    name: str = "look"
    question: str = "Describe the picture."  # to which captions are the answer, where a row has none of its own
    template: str | None = None  # chatml, plain, or a .jinja; left out: that of the model it begins with, else chatml


class Looker(Generator):
    """A language model that sees, and its tokenizer.

    >>> looker = load("runs/smollm2-sees")                                            # doctest: +SKIP
    >>> looker.chat("What is on the picture?", images=["photo.jpg"])                  # doctest: +SKIP
    >>> looker.caption("photo.jpg")                                                   # doctest: +SKIP
    >>> looker.chat([{"role": "user", "content": [                                    # doctest: +SKIP
    ...     {"type": "image", "image": "photo.jpg"}, {"type": "text", "text": "What is it?"}]}])
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        tokenizer: Tokenizer,
        decode: SearchConfig,
        sight: Sight,
        question: str,
        **how: Any,
    ) -> None:
        super().__init__(models, tokenizer, decode, **how)
        self.use, self.viewer, self.question = decode, Viewer(models, tokenizer, decode, sight), question
        c: Any = self.model.config
        self.patches = [c.place] * c.places

    def native(self, model: nn.Module) -> Any:
        raise UnsupportedError("pictures")

    def conversation(
        self, messages: str | Sequence[Message], tools: Sequence[Any] = (), called: Sequence[str] = ()
    ) -> Prompt:
        """The same, and a content may be in parts: texts, and pictures ({"type": "image", "image": ...}), which are
        paths, contents of files, Pillow's images, or arrays."""
        shown = [x if isinstance(x := part["image"], Viewed) else Viewed(x) for part in _pictures(messages)]
        if shown and tools:
            raise ValueError("functions are called in conversations without pictures: leave out the one or the other")
        pixels = self.viewer.sight.tensor(np.stack(self.viewer.seen(shown))) if shown else None
        return replace(super().conversation(messages, tools, called), pixels=pixels)

    def chat(self, messages: str | Sequence[Message], *, images: Sequence[Any] = (), **settings: Any) -> str:
        """What the model answers in a conversation, or to a question about some pictures."""
        return super().chat(asked(messages, images) if isinstance(messages, str) else messages, **settings)

    def caption(self, picture: Any, question: str | None = None, **settings: Any) -> str:
        """What the model answers to the question that it was taught by, or another."""
        return self.chat(question or self.question, images=[picture], **settings).strip()

    @property
    def closing(self) -> int:
        """The token that ends an answer."""
        return self.eos if self._chat is None or self._chat.end is None else self._chat.end

    def grid(self, ids: Sequence[int]) -> Grid:
        """How the patches of a picture lie among tokens, from the first of them on."""
        (seen,) = grids(self.model).values()
        return seen._replace(tokens=list(ids).index(self.patches[0]))  # type: ignore[index]

    def attention(  # type: ignore[override]
        self, picture: Any, target: str | None = None, *, question: str | None = None, special: bool = True, **how: Any
    ) -> list[AttentionMap]:
        """What every head looks at while the model answers a question about a picture, or reads a given answer: a row
        is a token of that, a column any before it, patches included. `names`, `heads` and `view` are those of
        `attention_maps`."""
        pixels, x = self.viewer.read(picture)
        prompt = self.conversation(asked(question or self.question, [Viewed(pixels, ready=True)]))
        ids = self._read(prompt)
        if target is None:
            target = self.answers([prompt], Writing.of({}, self.use))[0][0].text.strip()
        read, grid = [*ids, *self.tokenizer.encode(target)], self.grid(ids)
        if self.reach is not None and len(read) > self.reach:
            raise ValueError(
                f"question and answer have {len(read)} tokens, the model {self.reach} places: shorten them"
            )
        patches = iter(grid.texts()[grid.tokens :])
        place = read[grid.tokens]
        start, *rest = (next(patches) if id == place else self.tokenizer.pieces([id])[0] for id in read)
        (name,) = grids(self.model)
        inputs = {"tokens": torch.tensor([read], device=self.device), name: x}
        how |= {"start": start, "pixels": pixels, "among": {"tokens": grid}}
        maps = attention_maps(self.model, inputs, {"tokens": [*rest, END]}, **how)
        own = len(read) - len(ids) + 1  # rows of the answer
        written = [
            replace(each, weights=each.weights[:, -own:], queries=each.queries[-own:])
            if each.query_role == "predicted"
            else each
            for each in maps
        ]
        return written if special else list(map(without_special, written))

    def describing(self, question: str | None) -> "Questioned":
        """What answers one question about many pictures."""
        return Questioned(self, question or self.question)

    def _request(self, ids: list[int], prompt: Prompt, settings: Writing) -> Request:
        request = super()._request(ids, prompt, settings)
        if prompt.pixels is None:
            return request
        if prompt.tell is not None:
            raise ValueError("log p of tokens (logprobs) is told of texts alone: leave it out where there is a picture")
        return replace(request, source=Illustrated(ids[:-1], prompt.pixels))

    def _context(self, ids: list[int]) -> list[int]:
        return [id for id in super()._context(ids) if id != self.patches[0]]  # type: ignore[index]

    def _further(
        self, ids: list[int], written: list[int], prompt: Prompt, settings: Writing, output: int
    ) -> Request | None:
        """Without its pictures a conversation is another one: it ends with the places of the model."""
        return None if prompt.pixels is not None else super()._further(ids, written, prompt, settings, output)


class Questioned:
    """Pictures in, answers to one question out."""

    def __init__(self, looker: Looker, question: str) -> None:
        self.looker, self.question, self.use = looker, question, looker.use

    def answers(self, asks: Sequence[Viewed], settings: SearchConfig) -> list[Captioned]:
        """Of each picture."""
        prompts = [self.looker.conversation(asked(self.question, [ask])) for ask in asks]
        return [
            Captioned(best.text.strip(), best.score, tuple(each.text.strip() for each in others))
            for best, *others in self.looker.answers(prompts, Writing(settings))
        ]


def asked(question: str, images: Sequence[Any]) -> list[Message]:
    """A conversation that begins with a question about some pictures."""
    parts: list[Any] = [{"type": "image", "image": each} for each in images]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": question}] if parts else question}]


def _pictures(messages: str | Sequence[Message]) -> Iterator[Mapping[str, Any]]:
    for message in () if isinstance(messages, str) else messages:
        content = message.get("content")
        yield from (part for part in content if part["type"] == "image") if isinstance(content, list) else ()


@dataclass(frozen=True)
class Looking(Caption):
    """A picture and a question in, an answer out."""

    question: str = LookConfig.question
    chat: str = field(default="", kw_only=True)  # the template; a model directory has it as a file
    patches: tuple[int, ...] = field(default=(), kw_only=True)  # what stands for a picture among tokens

    name, called, verb = "look", "seeing", "generate"
    sections = Sections(LookConfig, CaptionedConfig, WriteConfig, Judging)
    needs, reads = DecoderOnly, "both"
    instead = "say by what it is to see (model.sees), or take seer-tiny"

    @classmethod
    def of(cls, recipe: Any) -> "Looking":
        d, c = recipe.data, recipe.model.build(2**16)
        sight, chat = d.sight(recipe, cls.instead), template_of(recipe, CHATML)
        return cls(d.max_length, sight, d.augment, recipe.task.question, chat=chat, patches=(c.place,) * c.places)

    def check(self, recipe: Any) -> None:
        if recipe.train.batch_rows is None:
            raise ValueError("train.batch_rows: say how many pictures make a batch, as 16")
        longest, least = recipe.model.build(2**16).longest, recipe.data.max_length + len(self.patches)
        if longest is not None and longest < least:
            raise ValueError(
                f"model.max_length = {longest}: {len(self.patches)} patches and the {recipe.data.max_length} tokens of "
                f"data.max_length need {least} at least, and the question some more"
            )
        check_marks(recipe, self.chat)

    def noted(self) -> dict[str, Any]:
        return {"name": self.name, "longest": self.longest, "sight": asdict(self.sight), "question": self.question}

    def prepared_by(self) -> list[Any]:
        return [*super().prepared_by(), self.question, self.chat]

    def tokens(self, tokenizer: Tokenizer) -> Tokenizer:
        return marked(tokenizer, self.chat)

    def texts(self, row: Row) -> Sequence[str]:
        return [*row["captions"], row.get("question") or self.question]

    def columns(self, vocabulary: int) -> dict[str, Column]:
        image = super().columns(vocabulary)["image"]  # the picture in a question is the id after the last
        return {"image": image, "question": Column.ids(vocabulary + 1), "captions": Column.ids(vocabulary)}

    def messages(self, row: Row) -> list[Message]:
        """What is asked of a row's picture."""
        return asked(row.get("question") or self.question, [row["image"]])

    def examples(self, rows: Sequence[Row], tokenizer: Tokenizer) -> Iterator[Any]:
        template, most = ChatTemplate(self.chat, tokenizer), self.longest or 2**30
        end, places = closing(template, tokenizer), {PICTURE, *self.patches}
        for row, pixels in zip(rows, side_by_side(self._seen, rows), strict=True):
            if isinstance(pixels, Damaged):
                yield pixels
                continue
            question, captions = list[int](), list[int]()
            for caption in row["captions"]:
                ids, ((first, last),) = template.answered(
                    [*self.messages(row), {"role": "assistant", "content": caption}]
                )
                question, said = ids[:first], ids[first : last - (ids[last - 1] == end)]
                captions += [*said[: most - 1], end]
            yield pixels, [len(tokenizer) if id in places else id for id in question], captions

    def collate(self, tokenizer: Tokenizer, dropout: float) -> Collate:
        if dropout:
            raise ValueError("tokens.dropout is for pairs of texts: set it to 0 for conversations")
        end = closing(ChatTemplate(self.chat, tokenizer), tokenizer)

        def batch(rows: Sequence[Any], draw: Random) -> Batch:
            """Of each picture, one of its captions."""
            pixels = self.sight.tensor(augmented(self.augment, [image for image, _, _ in rows], draw))
            read = list[tuple[list[int], list[int]]]()
            for _, question, captions in rows:
                said = drawn(captions, end, draw)
                ids = [i for id in question.tolist() for i in (self.patches if id == len(tokenizer) else [id])]
                read.append(([*ids, *said], [FIRST, *[0] * (len(ids) - 1), *[ANSWER] * len(said)]))
            made = packed(read)
            return Batch({**made.tensors, "pixels": pixels}, made.count)

        return batch

    def objective(self, model: nn.Module, smoothing: float, tokenizer: Tokenizer) -> Objective:
        return NextToken(model, smoothing, ignore=IGNORE)

    def open(self, models: Sequence[nn.Module], tokenizer: Tokenizer, use: WriteConfig, **how: Any) -> Looker:  # type: ignore[override]
        looker = Looker(models, tokenizer, use, self.sight, self.question, **how)
        looker.template = self.chat or None
        return looker

    def said(self, predictor: Looker, rows: Sequence[Row], use: SearchConfig) -> list[str]:
        found, how = list[str](), Writing.of({}, use)
        for some in in_groups(rows, TOGETHER):
            prompts = [predictor.conversation(self.messages(row)) for row in some]
            found += [best.text.strip() for best, *_ in predictor.answers(prompts, how)]
        return found


def closing(template: ChatTemplate, tokenizer: Tokenizer) -> int:
    """The token that ends an answer."""
    return tokenizer.marks.need("eos")[0] if template.end is None else template.end


TASK = Looking
