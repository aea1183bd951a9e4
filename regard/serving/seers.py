"""Models that see, to be looked at: a picture stands where others have a text, its patches where they have tokens."""

import io
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any, cast

import torch
from PIL import Image
from torch import Tensor, nn

from regard.core.generation import Illustrated
from regard.data.batching import Batch
from regard.data.pictures import Pixels
from regard.data.spelling import characters
from regard.decoding.module import Generative, Module
from regard.decoding.protocol import Awake, Floats, Request, bounded
from regard.inspection.axes import Axis, Grid
from regard.inspection.measures import NONE, Tokens
from regard.inspection.page import Picture
from regard.inspection.views import standing
from regard.serving.live import TOKENS, Edits, Line, Live, Look, Switched
from regard.serving.pictures import Album
from regard.serving.readers import LiveReader
from regard.serving.shown import Shown
from regard.tasks.caption import Describer
from regard.tasks.look import Looker, asked
from regard.tasks.match import PLACES, Matcher
from regard.tasks.reader import Framed, Given, Pictured, batched
from regard.tasks.viewer import Viewed, Viewer

KEPT = 64  # pictures whose pixels are at hand
Search = tuple[int, int]  # how wide it is, and how many alternatives are told


class Seeing(Live):
    """A model that sees; pictures are on a album, and asked for by their names."""

    def __init__(self, predictor: Any, album: Album, **how: Any) -> None:
        self.album, self._seen, self._opening = album, OrderedDict[str, tuple[Pixels, Tensor]](), Lock()
        super().__init__(predictor, **how)

    @property
    def viewer(self) -> Viewer:
        """What makes pixels of a picture."""
        return cast(Viewer, getattr(self.predictor, "viewer", self.predictor))

    @property
    def sees(self) -> tuple[str, Grid]:
        """The input that is a picture, and how its patches lie."""
        return next(iter(self.grids.items()))

    def laid(self, look: Look) -> dict[str, Grid]:
        """How the patches lie along each input that has some."""
        return self.grids

    def read(self, picture: str) -> tuple[Pixels, Tensor]:
        """What the model sees of a picture, (H, W, C), and that as it reads it, (1, C, H, W)."""
        if not picture:
            raise ValueError("picture: there is none: this model sees, choose one")
        content = self.album[picture]
        with self._opening:
            if picture not in self._seen:
                self._seen[picture] = self.viewer.read(Viewed(content, "the picture"))
            self._seen.move_to_end(picture)
            while len(self._seen) > KEPT:
                self._seen.popitem(last=False)
            pixels, x = self._seen[picture]
        return pixels, x.float().to(self.device)

    def png(self, picture: str) -> bytes:
        """What the model sees of a picture, as a file."""
        out, pixels = io.BytesIO(), self.viewer.film(self.read(picture)[0])
        Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(out, "PNG")
        return out.getvalue()

    def _ids(self, name: str, ids: Sequence[int]) -> tuple[int, ...]:
        return tuple(ids) if name in self.grids else super()._ids(name, ids)

    def shown(self, name: str, ids: Sequence[int]) -> list[Line]:
        """The places of a picture, or the tokens of a text."""
        if name not in self.grids:
            return super().shown(name, ids)
        grid = self.grids[name]
        return [
            {"id": i, "text": text, "space": True, "word": None, "special": i < grid.tokens}
            for i, text in enumerate(grid.texts())
        ]

    def translate(
        self,
        text: str = "",
        prefix: Sequence[int] = (),
        edits: Edits | None = None,
        beam: int = 1,
        alternatives: int = 8,
        sentence: int = 0,
        pair: str = "",
        off: Sequence[str] = (),
        picture: str = "",
    ) -> Iterator[Line | None]:
        """What is seen, and what the model says of it, as lines."""
        changes = self._changes(edits or {}, off)
        return self._told(picture, (text, pair), tuple(prefix), (beam, alternatives), changes)

    def _told(
        self, picture: str, texts: tuple[str, str], begin: tuple[int, ...], config: Search, changes: Switched
    ) -> Iterator[Line | None]:
        raise NotImplementedError

    def batch(self, look: Look) -> Batch:
        whole = super().batch(look)
        return Batch({**whole.tensors, self.sees[0]: self.read(look.picture)[1]}, whole.count)

    def pictured(self, look: Look) -> Picture:
        """What is seen, for a page."""
        with self.turn(look.changes), standing(self.model, self.sees[1]) as shares:
            self.run(look)
        return Picture(self.viewer.film(self.read(look.picture)[0]), self.sees[1], shares[-1])

    @property
    def marks(self) -> Tokens:
        """What measures must know: where the places of a picture are."""
        return replace(super().marks, grids=self.grids)

    def examples(self, task: str, language: str) -> list[Any]:
        return []

    def _manner(self) -> dict[str, Any]:
        """What is particular to a model that sees."""
        samples = self.album.samples[self.viewer.sight.frames > 0]
        return {"sees": True, "grid": self.sees[1]._asdict(), "samples": samples}


class LiveViewer(Seeing, LiveReader):
    """The model of a `Viewer`, which says something of a picture."""

    def _open(self) -> None:
        self.eos, self.longest = -1, TOKENS
        self._reader = self.predictor.on(self.model)

    def look(self, given: Mapping[str, Any], edits: Edits, off: Sequence[str] = ()) -> Look:
        for name in given.keys() - {"picture"}:
            raise ValueError(f"{name}: this model sees a picture alone")
        self.read(given.get("picture", ""))
        return Look((tuple(range(self.sees[1].places)),), self._changes(edits, off), picture=given["picture"])

    def batch(self, look: Look) -> Batch:
        return Batch({self.sees[0]: self.read(look.picture)[1]}, 1)

    def _told(
        self, picture: str, texts: tuple[str, str], begin: tuple[int, ...], config: Search, changes: Switched
    ) -> Iterator[Line | None]:
        """What is seen, and what the model says of it: two lines."""
        pixels, _ = self.read(picture)
        if begin:
            raise ValueError("prefix: this model sees, and writes nothing that could begin with it")
        return self._saying(picture, self._along(*texts), changes, lambda: self._answer(pixels, *texts))

    def _along(self, text: str, pair: str) -> list[Line]:
        """What is read."""
        if text.strip() or pair.strip():
            raise ValueError("text: this model sees a picture, and reads none: leave it out")
        return self.shown(self.sees[0], ())

    def _answer(self, pixels: Pixels, text: str, pair: str) -> Pictured:
        reader: Any = self._reader
        return cast(Pictured, reader.pictured(Viewed(pixels, ready=True)))

    def _saying(self, picture: str, tokens: list[Line], changes: Switched, answer: Any) -> Iterator[Line]:
        noted = list[float]()

        def answered() -> Pictured:
            with standing(self.model, self.sees[1]) as shares:
                told: Pictured = answer()
            noted.extend(round(share, 6) for share in shares[-1].tolist())
            return told

        about = {"sentences": [], "sentence": 0, "unknown": [], "windows": 1, "picture": picture}
        yield {"kind": "source", "tokens": tokens, **about}
        yield {**self._answered(answered, changes), "shares": noted}

    def _manner(self) -> dict[str, Any]:
        layers = dict.fromkeys((sides.kind for sides in self.axes.values()), cast(Any, self.model.config).layers)
        return {**super()._manner(), "layers": layers, "reads": True, "second": ""}


class LiveMatcher(LiveViewer):
    """The model of a `Matcher`: how near texts are to a picture."""

    predictor: Matcher

    @staticmethod
    def _of(predictor: Any) -> nn.Module:
        return cast(nn.Module, predictor.pair)

    def _open(self) -> None:
        super()._open()
        self.longest = min(TOKENS, self.predictor.longest or TOKENS)

    def look(self, given: Mapping[str, Any], edits: Edits, off: Sequence[str] = ()) -> Look:
        seen = super().look({"picture": given.get("picture", "")}, edits, off)
        return replace(seen, ids=(*seen.ids, self._ids("tokens", given.get("tokens") or self._framed("").ids)))

    def steps(self, look: Look) -> tuple[None, tuple[int, ...]]:
        return None, look.ids[-1]

    @torch.inference_mode()
    def places(self, look: Look) -> Tensor:
        """Where the picture shows what the text says, (1, T, places): no attention, so nothing records it."""
        given, model = self.batch(look), cast(Any, self.model)
        with self.turn(look.changes):
            return cast(Tensor, model.places(given[self.sees[0]], given["tokens"]).float().cpu())

    def about(self) -> dict[str, Any]:
        found, (seen, read) = super().about(), self.inputs
        sides = {"queries": Axis(read)._asdict(), "keys": Axis(seen)._asdict(), "causal": False, "role": "read"}
        found["attentions"].append(
            {"name": PLACES, "kind": "cross", "layer": 0, "heads": 1, "dots": False, "derived": True, **sides}
        )
        return found

    def batch(self, look: Look) -> Batch:
        read = batched([Framed(list(look.ids[1]), [])], 0, False).to(self.device)
        return Batch({**super().batch(look).tensors, **read.tensors}, 1)

    def _framed(self, text: str) -> Framed:
        return self._reader.framed([Given(text)], long="cut")[0][0]

    def _along(self, text: str, pair: str) -> list[Line]:
        for name, each in (("text", text), ("pair", pair)):
            if each.strip():
                self._admit(each, name)
        return Shown(self.tokenizer).all(self._framed(text).ids)

    def _answer(self, pixels: Pixels, text: str, pair: str) -> Pictured:
        texts = [line for line in (text.replace("\n", " "), *pair.splitlines()) if line.strip()]
        reader: Any = self._reader
        return cast(Pictured, reader.compared(Viewed(pixels, ready=True), texts))

    def _manner(self) -> dict[str, Any]:
        c: Any = self.model.config
        layers = {"encoder": c.picture_layers, "decoder": c.layers}
        return {**super()._manner(), "layers": layers, "second": self.predictor.second}


class LiveDescriber(Seeing):
    """The model of a `Describer`: a picture is its source."""

    predictor: Describer

    def _open(self) -> None:
        self.eos, self._begin = self.predictor.eos, [self.predictor.bos]
        self.longest = min(TOKENS, self.predictor.places or TOKENS)  # tokens of a caption, the end included
        self._module = Module(cast(Generative, self.model))

    def look(self, given: Mapping[str, Any], edits: Edits, off: Sequence[str] = ()) -> Look:
        """Something to look at: a `picture` by its name, and the ids of what else is read or written."""
        picture, (name, grid) = given.get("picture", ""), self.sees
        self.read(picture)
        rest = {key: ids for key, ids in given.items() if key not in ("picture", "segments")}
        seen = {name: range(grid.places)} if name in self.inputs else {}
        return replace(super().look({**rest, **seen}, edits, off), picture=picture)

    def _told(
        self, picture: str, texts: tuple[str, str], begin: tuple[int, ...], config: Search, changes: Switched
    ) -> Iterator[Line | None]:
        """A caption as lines: what is seen, each token, and what came of it."""
        if any(text.strip() for text in texts):
            raise ValueError("text: this model sees a picture, and reads none: leave it out")
        beam, alternatives = config
        self._bound(beam, alternatives)
        search = replace(self.predictor.use, beam=beam, best=1, groups=1, sampling=None)
        request = Request(self.read(picture)[1][0], self._begin[0], prefix=self._ids("prefix", begin))
        request = bounded(request, search, self.longest)
        about: Line = {"sentences": [], "sentence": 0, "unknown": [], "picture": picture}
        about["ids"] = range(self.sees[1].places)
        return self._translating(request, changes, search, alternatives, about)

    def _manner(self) -> dict[str, Any]:
        c: Any = self.model.config
        layers = {"encoder": c.encoder_layers, "decoder": c.decoder_layers}
        return {**super()._manner(), "layers": layers, "reads": False, "second": "", "beam": self.predictor.use.beam}


class LiveLooker(LiveDescriber):
    """The model of a `Looker`: its `source` is what it reads before it answers, with patches among the tokens.

    A row of its language model's maps is a token of the answer, a column any before: patches lie over the picture.
    """

    predictor: Looker  # type: ignore[assignment]

    def _open(self) -> None:
        config: Any = self.model.config
        self.eos, self._begin, self.inputs = self.predictor.closing, [self.predictor.closing], ["source", "target"]
        self.place = config.place
        self.longest = min(TOKENS + config.places, self.predictor.reach or TOKENS + config.places)
        self._module = Module(cast(Generative, self.model))

    def laid(self, look: Look) -> dict[str, Grid]:
        return {**self.grids, "tokens": self.predictor.grid(look.ids[0])}

    def _ids(self, name: str, ids: Sequence[int]) -> tuple[int, ...]:
        if name != "source":
            return super()._ids(name, ids)
        words, config = [id for id in ids if id != self.place], cast(Any, self.model.config)
        if len(ids) - len(words) != config.places or len(ids) > self.longest or ids[-1] == self.place:
            raise ValueError(f"source: it has {config.places} patches, and at most {self.longest} tokens with these")
        if not all(0 <= id < config.vocabulary for id in words):
            raise ValueError(f"source: tokens are 0 to {config.vocabulary - 1}, and {self.place} is a patch")
        return tuple(ids)

    def steps(self, look: Look) -> tuple[int, tuple[int, ...]]:
        return look.ids[0][-1], look.ids[1]

    def lengths(self, look: Look, name: str) -> tuple[int, int]:
        seen = self.axes[name].keys.input in self.grids
        return (self.sees[1].places if seen else sum(map(len, look.ids)) - 1,) * 2

    def batch(self, look: Look) -> Batch:
        (name, _), (source, target) = self.sees, look.ids
        rows = {"tokens": [*source, *target[:-1]], "labels": [*[NONE] * (len(source) - 1), *target]}
        read = {key: torch.tensor([ids], device=self.device) for key, ids in rows.items()}
        return Batch({**read, name: self.read(look.picture)[1]}, len(target))

    def _log_p(self, look: Look) -> Floats:
        return super()._log_p(look)[-len(look.ids[1]) :]

    @property
    def marks(self) -> Tokens:
        return replace(super().marks, pad=NONE)  # where nothing is predicted

    def shown(self, name: str, ids: Sequence[int]) -> list[Line]:
        """Tokens, and among them patches by their places."""
        words = iter(super().shown("tokens", [id for id in ids if id != self.place]))
        places = iter(self.predictor.grid(ids).texts()[self.predictor.grid(ids).tokens :] if self.place in ids else ())
        patch = {"id": self.place, "space": True, "word": None, "special": False, "patch": True}
        return [{**patch, "text": next(places)} if id == self.place else next(words) for id in ids]

    def texts(self, look: Look) -> tuple[dict[str, list[str]], str]:
        """What stands along each input of the model, for a page, and what it reads first."""
        first, *rest = (
            token["text"] for name, ids in zip(self.inputs, look.ids, strict=True) for token in self.shown(name, ids)
        )
        return {self.sees[0]: self.sees[1].texts(), "tokens": rest}, first

    def decoded(self, ids: Iterable[int]) -> str:
        return super().decoded(id for id in ids if id != self.place).strip()

    def _told(
        self, picture: str, texts: tuple[str, str], begin: tuple[int, ...], config: Search, changes: Switched
    ) -> Iterator[Line | None]:
        """An answer as lines: what is read, each token, and what came of it."""
        question, pair = texts
        if pair.strip():
            raise ValueError("pair: this model reads one question: leave it out")
        if question.strip():
            self._admit(question)
        beam, alternatives = config
        self._bound(beam, alternatives)
        pixels, x = self.read(picture)
        prompt = self.predictor.conversation(
            asked(question.strip() or self.predictor.question, [Viewed(pixels, ready=True)])
        )
        ids = self._ids("source", prompt.ids or ())
        search = replace(self.predictor.use, beam=beam, best=1, groups=1, sampling=None)
        spelt = characters(self.tokenizer)
        refusal = None if spelt is None else Awake(spelt)
        request = Request(Illustrated(ids[:-1], x), ids[-1], prefix=super()._ids("prefix", begin), refusal=refusal)
        request = bounded(request, search, self.longest - len(ids))
        about: Line = {"sentences": [], "sentence": 0, "unknown": [], "picture": picture, "ids": ids}
        return self._translating(request, changes, search, alternatives, about)

    def examples(self, task: str, language: str) -> list[Any]:
        return [self.predictor.question]

    def about(self) -> dict[str, Any]:
        found = super().about()
        for each in found["attentions"]:
            if each["causal"]:  # of its rows and columns the former alone are written
                each |= {"queries": Axis("target")._asdict(), "keys": Axis("read")._asdict(), "causal": False}
        return found

    def _manner(self) -> dict[str, Any]:
        c: Any = self.model.config
        layers = {"encoder": c.picture_layers, "decoder": c.layers}
        how = {"layers": layers, "reads": False, "second": "", "asks": True, "beam": self.predictor.use.beam}
        return {**Seeing._manner(self), **how}
