"""Pictures that are found by what is said of them, or by another picture: the nearest vectors, exactly."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from regard.data.collection import Document, Show, Store, Vectors
from regard.data.labelled_pictures import files_in
from regard.data.pictures import PictureError, in_groups, opened
from regard.tasks.index import fingerprint, nearest, unit
from regard.tasks.match import Matcher
from regard.tasks.reader import Given
from regard.tasks.uses import EmbedUse, SearchUse
from regard.tasks.viewer import TOGETHER, Viewed


class Sighting(NamedTuple):
    """A picture that was found."""

    path: str
    score: float  # the cosine of its vector and the query's


class Gallery:
    """The pictures of a folder, and another folder, in which their vectors are kept.

    >>> gallery = Gallery.build(load("runs/clip"), "photos", "photos.index")            # doctest: +SKIP
    >>> gallery.search("a dog on a beach", top=1)                                       # doctest: +SKIP
    [Sighting(path='photos/2019/beach.jpg', score=0.31)]
    >>> gallery.search(Path("dog.jpg"))                                                 # doctest: +SKIP
    """

    def __init__(
        self, matcher: Matcher, path: str | os.PathLike[str], *, name: str = "this one", use: SearchUse | None = None
    ) -> None:
        """What lies in the folder `path`; a new one is empty. `name` is what errors call the model."""
        self.matcher, self.use, self.bad = matcher, use or SearchUse(**vars(matcher.use)), list[PictureError]()
        embedding = self.use.embedding
        self.store = Store(path, sighted(matcher, embedding), name, matcher.width(embedding))

    @classmethod
    def build(
        cls, matcher: Matcher, pictures: str | os.PathLike[str], path: str | os.PathLike[str], **how: Any
    ) -> "Gallery":
        """A folder with the vectors of all pictures in another one; those that were there stay."""
        gallery = cls(matcher, path, **how)
        gallery.renew(pictures)
        return gallery

    def renew(self, pictures: str | os.PathLike[str], progress: Show = lambda *_: None) -> int:
        """Have the pictures of this folder, and no others; -> how many were embedded. A file that is no picture is left
        out: `bad` says why."""
        self.bad = []
        paths = files_in(pictures)
        try:
            return self.store.renew(self._listed(paths), self._embedded, progress, self._opens)
        except ValueError:
            if len(self.bad) < len(paths):
                raise
            raise ValueError(f"none of {len(paths):,} pictures can be seen: {self.bad[0]}") from None

    def __len__(self) -> int:
        return len(self.store)

    def _listed(self, paths: Sequence[Path]) -> Iterator[Document]:
        """Pictures by their paths; a file is another one if its size or its time is."""
        for path in paths:
            if path.is_file():
                about = path.stat()
                yield Document(str(path), f"{about.st_size} {about.st_mtime_ns} {path}")
            else:
                self.bad.append(PictureError(f"{path} is no file: it leads nowhere"))

    def _opens(self, document: Document) -> bool:
        try:
            opened(document.id)
        except PictureError as error:
            self.bad.append(error)
            return False
        return True

    def _embedded(self, texts: Iterator[str]) -> Iterator[Vectors]:
        for some in in_groups(texts, TOGETHER):
            asks = [Viewed(text.split(" ", 2)[2]) for text in some]
            yield unit([each.vector for each in self.matcher.answers(asks, self.use.embedding)])

    def search(self, query: Any, top: int | None = None) -> Any:
        """The pictures that are nearest to a text; or to another picture: a `Path`, the content of a file, Pillow's
        image, or an array. Of a list of queries, those of each."""
        each = query if isinstance(query, list) else [query]
        use = self.use if top is None else replace(self.use, top=top)
        found = self.answers([Given(one) if isinstance(one, str) else Viewed(one) for one in each], use)
        return found if isinstance(query, list) else found[0]

    def answers(self, asks: Sequence[Given | Viewed], settings: SearchUse) -> list[list[Sighting]]:
        """The same for each of some queries."""
        if not asks:
            return []
        for ask in asks:
            if isinstance(ask, Given) and not ask.text.strip():
                raise ValueError(
                    f"{ask.place or repr(ask.text[:40])}: a query without words: say what is on the pictures"
                )
        vectors = unit([each.vector for each in self.matcher.answers(asks, self.use.embedding)])
        near = nearest(vectors, self.store.blocks(), settings.top)
        held = iter(self.store.some(number for row in near for number, _ in row))
        return [[Sighting(next(held).id, score) for _, score in row] for row in near]

    # What the command asks of whoever answers.
    @property
    def longest(self) -> int | None:
        return self.matcher.longest

    @property
    def without_native(self) -> str | None:
        return self.matcher.without_native


def sighted(matcher: Matcher, use: EmbedUse) -> str:
    """The same for models that make the same vectors of pictures."""
    return sha256(f"{fingerprint(matcher, use)} {matcher.viewer.sight}".encode()).hexdigest()
