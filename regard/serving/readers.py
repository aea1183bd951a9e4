"""A model that reads a text, to be looked at: what it says of it stands where others have what they write."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from torch import Tensor

from regard.data.batching import Batch
from regard.data.spelling import unknown
from regard.decoding.protocol import DAMAGED
from regard.inspection.importance import moved
from regard.serving.live import TOKENS, Edits, Line, Live, Look, Switched
from regard.serving.shown import Shown, examples
from regard.tasks.mask import Filler
from regard.tasks.reader import Framed, Given, Pictured, Reader, batched


class LiveReader(Live):
    """The model of a `Reader`; each method may be called from any thread."""

    predictor: Reader

    def _open(self) -> None:
        self.eos = -1  # none: texts have marks around them
        self.longest = min(TOKENS, self.predictor.longest or TOKENS)  # tokens that are read at once
        self._reader = self.predictor.on(self.model)
        self._reader.longest = self.longest

    def look(self, given: Mapping[str, Sequence[int]], edits: Edits, off: Sequence[str] = ()) -> Look:
        """Something to look at: the tokens that are read, and of two texts in which each is, 0 or 1: `segments`."""
        (name,) = self.inputs
        for other in given.keys() - {name, "segments"}:
            raise ValueError(f"{other}: this model reads {name} alone")
        if not given.get(name):
            raise ValueError(f"{name}: they are missing, this model reads them")
        ids, segments = self._ids(name, given[name]), tuple(given.get("segments", ()))
        if segments and (len(segments) != len(ids) or not {*segments} <= {0, 1}):
            raise ValueError(f"segments: of each of the {len(ids)} tokens, say whether it is in text 0 or 1")
        return Look((ids,), self._changes(edits, off), segments)

    def steps(self, look: Look) -> tuple[None, tuple[int, ...]]:
        return None, look.ids[0]

    def batch(self, look: Look) -> Batch:
        read = Framed(list(look.ids[0]), list(look.segments))
        return batched([read], 0, self.predictor.told_apart).to(self.device)

    def translate(
        self,
        text: str,
        prefix: Sequence[int] = (),
        edits: Edits | None = None,
        beam: int = 1,
        alternatives: int = 8,
        sentence: int = 0,
        pair: str = "",
        off: Sequence[str] = (),
    ) -> Iterator[Line | None]:
        """What is read of a text, and of what may stand beside it, and what the model says: two lines.

        A text that is too long for one window is answered by all of them, and looked at in the first.
        """
        self._admit(text)
        if prefix:
            raise ValueError("prefix: this model reads, and writes nothing that could begin with it")
        if pair := pair if pair.strip() else "":
            if not self.predictor.second:
                raise ValueError("pair: this model reads one text: leave it out")
            self._admit(pair, self.predictor.second)
        ask = Given(text, pair or None)
        windows = self._reader.framed([ask if self._reader.pairs else Given(text)])[0]
        return self._reading(ask, windows, self._changes(edits or {}, off))

    def _reading(self, ask: Given, windows: Sequence[Framed], changes: Switched) -> Iterator[Line]:
        segments = windows[0].segments if self.predictor.told_apart else [0] * len(windows[0].ids)
        texts = [text.replace("[MASK]", "").replace("<mask>", "") for text in (ask.text, ask.pair or "")]
        encoded = zip(texts, self.tokenizer.encode_batch(texts), strict=True)
        strange = dict.fromkeys(piece for text, ids in encoded for piece in unknown(self.tokenizer, text, ids))
        tokens = zip(Shown(self.tokenizer).all(windows[0].ids), segments, strict=True)
        about = {"sentences": [ask.text], "sentence": 0, "unknown": [*strange], "windows": len(windows)}
        yield {"kind": "source", "tokens": [{**token, "segment": segment} for token, segment in tokens], **about}
        yield self._answered(lambda: self._reader.pictured(ask), changes)

    def _answered(self, answer: Callable[[], Pictured], changes: Switched) -> Line:
        """What the model says, as the last line."""
        began = time.perf_counter()
        with self.turn(changes):
            try:
                told = answer()
            except ValueError as error:  # there is no answer, but something to look at
                if str(error) == DAMAGED:
                    raise
                told = Pictured(note=str(error))
        spent = round(1000 * (time.perf_counter() - began), 2)
        return {"kind": "done", "text": told.said, "answer": asdict(told), "milliseconds": spent}

    def score(self, look: Look, alternatives: int = 8) -> dict[str, Any]:
        raise ValueError("a score is of tokens that are written, and this model reads: ask translate what it says")

    def importance(self, look: Look) -> Mapping[str, Tensor]:
        """How far what the model says moves without each head."""
        with self.apart(look.changes) as model:
            return moved(model, self.batch(look).inputs)

    def examples(self, task: str, language: str) -> list[Any]:
        """Texts to try; of those that stand beside another, pairs."""
        gap = self.predictor.gap if isinstance(self.predictor, Filler) else ""
        return [x.replace("[MASK]", gap) if isinstance(x, str) else x for x in examples(language, task)]

    def _manner(self) -> dict[str, Any]:
        """What is particular to a model that reads."""
        config: Any = self.model.config
        return {
            "layers": dict.fromkeys((sides.kind for sides in self.axes.values()), config.layers),
            "reads": True,
            "second": self.predictor.second,
            "shared": bool(getattr(config, "shared", False)),  # one layer, gone through again and again
        }
