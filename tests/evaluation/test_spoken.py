"""Word and character errors are jiwer's, of texts as Whisper's paper compares them; recordings are found by rows and in
LibriSpeech's folders."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from regard.api import load
from regard.data.recordings import RecordingFiles
from regard.evaluation.spoken import LARGE, SMALL, VALUES, basic, english, spellings
from regard.evaluation.texts import compare
from regard.studies.judging import judge
from regard.tasks.transcribe import Transcriber
from regard.tasks.transcripts import Segment, Transcript
from tests.data.test_sound import wav
from tests.speech import directory, noise

SHARED = Path(os.environ.get("REGARD_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
SPELT = {"colour": "color", "centre": "center", "grey": "gray", "2": "two"}


def test_errors_are_those_of_jiwer() -> None:
    jiwer = pytest.importorskip("jiwer")
    draw = Random(1)
    words = ["he", "could", "wait", "no", "longer", "for", "stew"]
    meant = [" ".join(draw.choices(words, k=draw.randint(1, 9))) for _ in range(50)]
    said = [" ".join(draw.choices(words, k=draw.randint(0, 9))) for _ in range(50)]
    found = compare(["wer", "cer"], said, meant)
    assert found["wer"].value == pytest.approx(100 * jiwer.wer(meant, said))
    assert found["cer"].value == pytest.approx(100 * jiwer.cer(meant, said))


def numbers(count: int) -> Iterator[str]:
    """Numbers as people say and write them, and words among which they stand."""
    draw = Random(7)
    small, large = list(SMALL), list(LARGE)
    written = ["5", "0", "1", "1,000", "3.5", "2.0", "$5", "£20.50", "$0.05", "¢7", "-3", "1960s", "2nd", "007", "5pm"]
    written += ["20%", "1.2.3", "1s", "½", "²", "٣"]
    others = ["and", "and a half", "point", "double", "triple", "oh", "per cent", "percent", "minus", "plus", "dollars"]
    others += [
        "cents",
        "pound",
        "euros",
        "apples",
        "ninth",
        "a",
        "colour",
        "Mr.",
        "don't",
        "it's been",
        "um",
        "O'Neill's",
    ]
    kinds = [small, small, list(VALUES), large, written, others]
    for _ in range(count):
        yield " ".join(draw.choice(draw.choice(kinds)) for _ in range(draw.randint(1, 9)))


def sentences() -> Iterator[str]:
    yield from (
        "In nineteen eighty-four, the Twenty-First of June, I'd been to St. John's: it cost £1,250.50!",
        "Two million three hundred and five thousand and six; one oh one; nineteen oh five; twenty twenty-one.",
        "Two and a half and a half and two and a half and two and a half, three dollars and five cents, $0.99",
        "He won't [laughs] (coughs), she'll <noise> uh, hmm, y'all ain't gonna, Mr.5 and Dr. Prof. Sen. Ald.",
        "Minus three point one four percent per cent, negative nothing, plus plus, point hundred, the point is",
        "(a [b) c] > ] ) '' 's 'd 't naïve Œuvre ᴭ straße Łódź ½ ² ٣ … 5'10\" fifty's sixes nineteenths",
        "",
        "   ",
    )
    yield from numbers(600)
    for place in ("multi30k/val.en", "multi30k/val.de", "multi30k/val.fr", "sst2/dev.tsv"):
        if (path := SHARED / place).is_file():
            yield from path.read_text("utf-8").splitlines()[:150]


def test_texts_are_compared_as_whispers_are() -> None:
    """String by string, but for spaces at the ends."""
    theirs = pytest.importorskip("transformers.models.whisper.english_normalizer")
    whole, plain, apart = (
        theirs.EnglishTextNormalizer(SPELT),
        *(theirs.BasicTextNormalizer(False, x) for x in (False, True)),
    )
    for text in (*sentences(), "很好。十二", "สวัสดีครับ", "हिन्दी में", "한국어 말"):
        assert english(text, SPELT) == " ".join(whole(text).split()), text
        assert basic(text) == " ".join(plain(text).split()), text
        assert basic(text, apart=True) == " ".join(apart(text).split()), text


def test_recordings_are_found_and_judged(tmp_path: Path) -> None:
    folder = tmp_path / "speech" / "84" / "1"
    folder.mkdir(parents=True)
    for i in range(2):
        (folder / f"84-1-{i}.wav").write_bytes(wav(noise(1.5, i)))
    (folder / "84-1.trans.txt").write_text("84-1-0 HELLO THERE\n84-1-1 GOOD BYE\n")
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"sound": f"speech/84/1/84-1-{i}.wav", "text": text}) + "\n" for i, text in enumerate("ab"))
    )
    listed = [[*RecordingFiles.at(path).read()] for path in (tmp_path / "speech", tmp_path / "rows.jsonl")]
    assert [row["text"] for row in listed[0]] == ["HELLO THERE", "GOOD BYE"]
    assert [Path(row["sound"]).is_file() for rows in listed for row in rows] == [True] * 4
    model = directory(tmp_path / "model")
    found = judge(model, tmp_path / "speech")
    assert found["rows"] == 2
    assert found["figures"].keys() == {"wer", "cer"}
    said = [basic(load(model).transcribe(row["sound"]).text) for row in listed[0]]
    want = compare(["wer"], said, ["hello there", "good bye"])["wer"].value
    assert found["figures"]["wer"]["score"] == pytest.approx(want)


SAID = {"en": "Doctor twenty-one color!", "de": "Zwölf Äpfel [Lachen]", "zh": "十二。"}
MEANT = {"en": "Dr. 21, Colour", "de": "zwölf apfel", "zh": "十三"}


@pytest.mark.parametrize(
    ("tongue", "wer", "how"), [("en", 0.0, "english"), ("de", 50.0, "basic"), ("zh", 50.0, "basic")]
)
def test_a_language_has_its_own_rules(
    tongue: str, wer: int, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = directory(tmp_path / "model")
    (model / "normalizer.json").write_text('{"colour": "color"}')
    (tmp_path / "a.wav").write_bytes(wav(noise(0.1)))
    (tmp_path / "rows.tsv").write_text("sound\ttext\n" + f"a.wav\t{MEANT[tongue]}\n" * 2)
    heard = Transcript(tongue, 0.1, (Segment(0.0, 0.1, f" {SAID[tongue]}"),))
    monkeypatch.setattr(Transcriber, "transcribe", lambda *_, **__: heard)
    found = judge(model, tmp_path / "rows.tsv")
    assert found["figures"]["wer"]["score"] == pytest.approx(wer)
    assert f"normal:whisper-{how}|" in found["figures"]["wer"]["signature"]
    assert not found["skipped"]
    if tongue == "en":
        (model / "normalizer.json").unlink()
        found = judge(model, tmp_path / "rows.tsv")
        assert found["figures"]["wer"]["score"] == pytest.approx(100 / 3)
        assert "the model has no normalizer.json" in found["skipped"]
        assert "normal:whisper-english-unspelt|" in found["figures"]["wer"]["signature"]
        (model / "normalizer.json").write_text('{"colour": 1}')
        with pytest.raises(ValueError, match=r"normalizer\.json is damaged"):
            spellings(model / "normalizer.json")
