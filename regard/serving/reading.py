"""What requests ask of models that read, and the answers in the forms of OpenAI's API and text-embeddings-inference.

A question is called with the predictor, and gives what its `answers` takes; `told` makes of these what is sent.
"""

from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from regard.models import storage
from regard.serving.config import ServeConfig
from regard.serving.errors import RefusalError
from regard.serving.queue import Asked
from regard.serving.registry import Registry
from regard.tasks.embed import near
from regard.tasks.reader import Given
from regard.tasks.viewer import Viewed

TEXTS = 2_048  # of a request, at most
Ids = list[int]
Row = Annotated[
    list[str], WithJsonSchema({"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2})
]  # a text, or a pair


class EmbeddingRequest(BaseModel):
    """OpenAI's."""

    model_config = ConfigDict(extra="forbid", strict=True)
    model: str = Field(description="an id of /v1/models")
    input: str | list[str] | Ids | list[Ids] = Field(description="a text, or its token ids; or a list of them")
    encoding_format: Literal["float", "base64"] = Field("float", description="base64: of fp32, the lowest byte first")
    dimensions: int | None = Field(None, ge=1, description="the first so many numbers, made of length 1 again")
    user: str | None = Field(None, description="is not looked at")


class EmbeddingEntry(BaseModel):
    """A vector."""

    object: str = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(BaseModel):
    """Sub-words that were read."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(BaseModel):
    """An answer."""

    object: str = "list"
    data: list[EmbeddingEntry]
    model: str
    usage: EmbeddingUsage


class _Inference(BaseModel):
    """What all requests of text-embeddings-inference may say; what else they say is not looked at."""

    model: str | None = Field(None, description="an id of /v1/models; left out: the first that can do it")
    truncate: bool | None = Field(None, description="read only the beginning; else what is long is read in parts")
    truncation_direction: Literal["Right", "right"] = Field("Right", description="which end is cut off")


class EmbedRequest(_Inference):
    """Text in, vectors out."""

    inputs: str | list[str | Ids] | Ids = Field(description="a text, or its token ids; or a list of them")
    normalize: bool = Field(True, description="make them of length 1; else they are as the model makes them")
    dimensions: int | None = Field(None, ge=1, description="the first so many numbers")
    prompt_name: None = Field(None, description="not supported: write the prompt before the text")


class RerankRequest(_Inference):
    """A question and texts in, their order out."""

    query: str
    texts: list[str]
    raw_scores: bool = Field(False, description="what the model says, and not how probable that makes it")
    return_text: bool = Field(False, description="send the texts back")


class PredictRequest(_Inference):
    """Texts or pairs of them in, classes out."""

    inputs: str | Row | list[Row] = Field(
        description="a text; a pair, [text, text]; or a list of them, [[text], [text, text]]"
    )
    raw_scores: bool = Field(False, description="what the model says, and not how probable that makes it")


class Rank(BaseModel):
    """A text, by its place in the request."""

    index: int
    score: float
    text: str | None = None


class Prediction(BaseModel):
    """A class."""

    score: float
    label: str


class QuestionAsked:
    """What a request asks: texts or pictures, and what becomes of the answers."""

    def __init__(self, asks: Sequence[Given | Viewed], told: Callable[[Any, list[Any]], Any], **settings: Any) -> None:
        self.asks, self._told, self.settings = list(asks), told, settings
        self.read = [ask for ask in self.asks if isinstance(ask, Given)]
        self.texts = [text for ask in self.read for text in (ask.text, ask.pair) if text and ask.ids is None]

    def __call__(self, predictor: Any) -> Asked:
        """What its `answers` is to be asked; a ValueError says what it cannot be."""
        self.predictor, most = predictor, getattr(predictor.model.config, "vocabulary", 0)
        for id in (i for ask in self.read for i in ask.ids or ()):
            if not 0 <= id < most:
                raise ValueError(f"{id} is no token: the model has {most:,}, from 0 on")
        return self.asks, replace(predictor.use, **self.settings)

    def told(self, answers: list[Any]) -> Any:
        """What is sent."""
        return self._told(self.predictor, answers)


def several(given: Any, name: str) -> list[Any]:
    """The texts of a request, or the token ids of texts, one or more of them."""
    found = [given] if isinstance(given, str) or (given and isinstance(given[0], int)) else list(given)
    if not found or [] in found:
        raise RefusalError(400, f"{name} is empty: give a text", param=name, code="empty")
    if len(found) > TEXTS:
        raise RefusalError(400, f"{name} has {len(found):,} texts: give {TEXTS:,} at most", reason="size", param=name)
    return found


def texts_of(inputs: Any) -> list[str]:
    """The texts of a request to a model of its own, one or more of them."""
    if not isinstance(inputs, str) and not (isinstance(inputs, list) and all(isinstance(x, str) for x in inputs)):
        raise RefusalError(400, "inputs is a text, or a list of texts", param="inputs")
    return several(inputs, "inputs")


def limits(registry: Registry, config: ServeConfig) -> dict[str, dict[str, Any]]:
    """What this server's models and settings allow, for the OpenAPI document."""
    shapes = [storage.config(served.path) for served in registry if "POST /embed" in served.routes]
    width = max((getattr(each, "d_vector", each.d_model) for each in shapes), default=1)
    tokens = max((each.vocabulary for each in shapes), default=1)
    text = {"maxLength": config.characters, "pattern": "^[^\\u0000]*$"}
    read = {
        "string": text,
        "array": {"minItems": 1},
        "integer": {"minimum": 0, "maximum": tokens - 1},
    }
    return {**dict.fromkeys(("input", "inputs", "query", "texts"), read), "dimensions": {"integer": {"maximum": width}}}


def given_of(text: str | Ids) -> Given:
    """A text, or token ids, as it is asked."""
    return Given(text) if isinstance(text, str) else Given("", ids=tuple(text))


def embeddings(asked: EmbeddingRequest, model: str, given: Callable[[list[Any]], list[Any]]) -> QuestionAsked:
    """Vectors as OpenAI has them; `given` says what a model is asked for what stands in a request."""

    def told(embedder: Any, answers: list[Any]) -> dict[str, Any]:
        packed = asked.encoding_format == "base64"
        vectors = [b64encode(x.vector.astype("<f4").tobytes()).decode() if packed else x.numbers for x in answers]
        data = [{"object": "embedding", "index": i, "embedding": x} for i, x in enumerate(vectors)]
        tokens = sum(each.tokens for each in answers)
        return {
            "object": "list",
            "data": data,
            "model": model,
            "usage": dict.fromkeys(EmbeddingUsage.model_fields, tokens),
        }

    return QuestionAsked(given(several(asked.input, "input")), told, **_dimensions(asked.dimensions))


def embed(asked: EmbedRequest, given: Callable[[list[Any]], list[Any]]) -> QuestionAsked:
    """Vectors as text-embeddings-inference has them."""

    def told(embedder: Any, answers: list[Any]) -> list[list[float]]:
        unit = asked.normalize and not embedder.model.head.normalise
        return [(each.normal if unit else each).numbers for each in answers]

    asks = given(several(asked.inputs, "inputs"))
    return QuestionAsked(asks, told, **_dimensions(asked.dimensions), **_long(asked))


def _dimensions(asked: int | None) -> dict[str, int]:
    return {} if asked is None else {"dimensions": asked}


def _long(asked: _Inference) -> dict[str, str]:
    return {"long": "cut"} if asked.truncate else {}


def predict(asked: PredictRequest) -> QuestionAsked:
    """Classes, the likeliest first."""
    given: Any = asked.inputs
    alone = isinstance(given, str) or (bool(given) and isinstance(given[0], str))
    rows = [[given] if isinstance(given, str) else given] if alone else several(given, "inputs")
    if any(not 1 <= len(row) <= 2 for row in rows):
        raise RefusalError(
            400, "inputs: a text, a pair [text, text], or a list of [text] and [text, text]", param="inputs"
        )

    def told(classifier: Any, answers: list[Any]) -> Any:
        found = [predictions(classifier, each, asked.raw_scores) for each in answers]
        return found[0] if alone else found

    return QuestionAsked([Given(*row) for row in rows], told, top=None, **_long(asked))


def predictions(classifier: Any, each: Any, raw: bool = False) -> list[Any]:
    """The classes of a text, the likeliest first; of a graph of whose nodes or edges they are told, those of each."""
    if hasattr(each, "parts"):
        return [predictions(classifier, part, raw) for part in each.parts]
    if classifier.kind == "number":
        return [{"score": each.value, "label": "value"}]
    scores = dict(zip(classifier.labels, each.logits, strict=True)) if raw else each.probabilities
    return [{"score": x, "label": label} for label, x in sorted(scores.items(), key=lambda item: -item[1])]


def rerank(asked: RerankRequest, task: str) -> QuestionAsked:
    """The order of texts, by a classifier of pairs, or by how near their vectors are."""
    texts = several(asked.texts, "texts")

    def told(predictor: Any, answers: list[Any]) -> list[dict[str, Any]]:
        scores = near(answers) if task == "embed" else [predictor.likely(each, asked.raw_scores) for each in answers]
        order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
        return [{"index": i, "score": scores[i], **({"text": texts[i]} if asked.return_text else {})} for i in order]

    if task == "embed":
        return QuestionAsked([Given(text) for text in (asked.query, *texts)], told, **_long(asked))
    return QuestionAsked([Given(asked.query, text) for text in texts], told, **_long(asked))
