"""Word and character errors are jiwer's; recordings are found by rows and in LibriSpeech's folders."""

import json
from pathlib import Path
from random import Random

import pytest

from regard.api import load
from regard.data.recordings import RecordingFiles
from regard.evaluation.spoken import normal
from regard.evaluation.texts import compare
from regard.studies.judging import judge
from tests.data.test_sound import wav
from tests.speech import directory, noise


def test_errors_are_those_of_jiwer() -> None:
    jiwer = pytest.importorskip("jiwer")
    draw = Random(1)
    words = ["he", "could", "wait", "no", "longer", "for", "stew"]
    meant = [" ".join(draw.choices(words, k=draw.randint(1, 9))) for _ in range(50)]
    said = [" ".join(draw.choices(words, k=draw.randint(0, 9))) for _ in range(50)]
    found = compare(["wer", "cer"], said, meant)
    assert found["wer"].value == pytest.approx(100 * jiwer.wer(meant, said))
    assert found["cer"].value == pytest.approx(100 * jiwer.cer(meant, said))


def test_what_sounds_the_same_is_the_same() -> None:
    assert normal("It's Dr. O’Brien's — [noise] uh, TWO cafés!") == "it is doctor o briens two cafes"
    assert normal("WE'LL SEE, WON'T WE?") == normal("we will see will not we")


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
    said = [normal(load(model).transcribe(row["sound"]).text) for row in listed[0]]
    want = compare(["wer"], said, ["hello there", "good bye"])["wer"].value
    assert found["figures"]["wer"]["score"] == pytest.approx(want)
