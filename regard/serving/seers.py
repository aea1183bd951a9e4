"""Models that see, to be looked at: a picture stands where others have a text, its patches where they have tokens."""

import io
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any, cast

from PIL import Image
from torch import Tensor, nn

from regard.data.batching import Batch
from regard.data.pictures import Pixels
from regard.decoding.module import Generative, Module
from regard.decoding.protocol import Request, bounded
from regard.inspection.axes import Grid
from regard.inspection.measures import Tokens
from regard.inspection.page import Picture
from regard.inspection.views import standing
from regard.serving.live import TOKENS, Edits, Line, Live, Look, Switched
from regard.serving.pictures import Album
from regard.serving.readers import LiveReader
from regard.serving.shown import Shown
from regard.tasks.caption import Describer
from regard.tasks.match import Matcher
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
        return {"sees": True, "grid": self.sees[1]._asdict(), "samples": self.album.samples}


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
        return replace(super().look({**rest, name: range(grid.places)}, edits, off), picture=picture)

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
