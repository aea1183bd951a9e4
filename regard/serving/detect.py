"""Which language a text is in: a guess of py3langid, where it is installed, among those that are served."""

from collections.abc import Iterable
from functools import cached_property
from typing import Any

from pydantic import BaseModel, Field

from regard.serving.errors import RefusalError
from regard.tasks.asks import short

ENOUGH = 2_000  # characters of a text to tell its language by
LEAST = 1.0  # of 100: a guess below is none


class Detected(BaseModel):
    """A language, and how sure that is, from 0 to 100."""

    confidence: float = Field(ge=0, le=100)
    language: str


class Detector:
    """Tells apart some languages.

    >>> Detector(["en", "en"]).guess("un chat")[0].language
    'en'
    """

    def __init__(self, languages: Iterable[str]) -> None:
        self.languages = list(dict.fromkeys(languages))

    @cached_property
    def _identifier(self) -> Any:
        try:
            from py3langid import langid
        except ImportError:
            return None
        return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)

    def sure(self, text: str, among: Iterable[str]) -> Detected:
        """The language that a text is in; one without a letter is in any. Where none is likely, it says so."""
        best = self.guess(text, among)[0]
        if best.confidence < LEAST and any(map(str.isalpha, text)):
            message = f"the language of {short(text)} cannot be told: {best.language} is {best.confidence} % likely"
            raise RefusalError(400, f"{message}; name it as source", code="unknown_language")
        return best

    def guess(self, text: str, among: Iterable[str] | None = None) -> list[Detected]:
        """The languages that a text may be in, the likeliest first; confidence is measured against all others, too."""
        choice = self.languages if among is None else [code for code in self.languages if code in set(among)]
        if self._identifier is None:
            if len(choice) != 1:
                message = "the language cannot be detected: name it, or install regard[detect] on the server"
                raise RefusalError(400, message)
            return [Detected(confidence=100.0, language=choice[0])]
        ranked = dict(self._identifier.rank(text[:ENOUGH]))
        # Codes of the classifier have no region: zh stands for zh-Hans.
        shares = {code: 100 * float(ranked.get(code.split("-")[0].lower(), 0.0)) for code in choice}
        found = [Detected(confidence=round(share, 1), language=code) for code, share in shares.items()]
        return sorted(found, key=lambda each: -each.confidence)
