"""The model that comes with regard on the 1,000 sentences of Multi30k's test set: no output hangs on its company, and
every engine writes the same.
"""

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from regard.api import Translator, load
from regard.convert import export
from regard.data.vocabulary import BOS, EOS, PAD
from regard.decoding.pool import search
from regard.decoding.protocol import Hypothesis, Request, Searchable, SearchConfig
from regard.models import storage
from regard.shipped import shipped

SHARED = Path(os.environ.get("REGARD_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))
TEXT = SHARED / "multi30k" / "test_2016_flickr.en"
EXTRA = 50  # tokens that an output may have more than its input
GREEDY, BEAM = SearchConfig(beam=1), SearchConfig(beam=4, best=4)
SEARCHES = pytest.mark.parametrize("config", [GREEDY, BEAM], ids=["greedy", "beam"])
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not TEXT.is_file(), reason=f"no {TEXT}; REGARD_SHARED_DATA names the folder"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler"),
]
Company = Callable[..., list[list[Hypothesis]]]


@pytest.fixture(scope="module")
def fp32(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model in a directory of its own, its weights in fp32."""
    place = tmp_path_factory.mktemp("en-es") / "fp32"
    storage.save(storage.load(shipped(), dtype=torch.float32), place)
    shutil.copy(shipped() / "tokenizer.json", place)
    return place


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    rows = load().tokenizer.encode_batch(TEXT.read_text("utf-8").splitlines())
    assert len(rows) == 1000
    return [GREEDY.request([*row, EOS], BOS) for row in rows]


def found(engine: Searchable, requests: list[Request], config: SearchConfig, **company: int) -> list[list[Hypothesis]]:
    return search(engine, requests, config, EOS, **company)


@pytest.mark.parametrize(("config", "precision"), [(GREEDY, "fp32"), (BEAM, "int8")], ids=["greedy", "beam"])
def test_company_changes_no_bit(requests: list[Request], config: SearchConfig, precision: str) -> None:
    engine = load(precision=precision, engine="native").searchable
    expected = found(engine, requests, config)
    for company in ({"rows": 1}, {"rows": 7 * config.beam, "workers": 3}, {"rows": 64 * config.beam, "workers": 2}):
        assert found(engine, requests, config, **company) == expected
    order = random.Random(0).sample(range(len(requests)), len(requests))
    assert found(engine, [requests[i] for i in order], config) == [expected[i] for i in order]


@SEARCHES
def test_pytorch_writes_the_same(requests: list[Request], config: SearchConfig) -> None:
    requests = requests[:: config.beam]  # a beam takes as many times as long
    native, module = (load(precision="fp32", engine=engine).searchable for engine in ("native", "torch"))
    for ours, theirs in zip(found(native, requests, config), found(module, requests, config), strict=True):
        assert [each.tokens for each in ours] == [each.tokens for each in theirs]
        assert [each.score for each in ours] == pytest.approx([each.score for each in theirs], abs=1e-4)


@SEARCHES
def test_ctranslate2_writes_the_same(fp32: Path, requests: list[Request], config: SearchConfig, tmp_path: Path) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2")
    export(fp32, tmp_path / "out", "ctranslate2")
    translator = load(fp32)
    names = translator.tokenizer.rust
    rows = [[names.id_to_token(i) for i in request.source[:-1]] for request in requests]
    results = ctranslate2.Translator(str(tmp_path / "out"), inter_threads=1, intra_threads=1).translate_batch(
        rows, beam_size=config.beam, length_penalty=1.0, max_decoding_length=120, max_batch_size=64
    )
    theirs = [[names.token_to_id(piece) for piece in result.hypotheses[0]] for result in results]
    assert differing(translator, requests, config, theirs) <= 2


@SEARCHES
def test_hugging_face_writes_the_same(
    fp32: Path, requests: list[Request], config: SearchConfig, tmp_path: Path
) -> None:
    transformers, requests = pytest.importorskip("transformers"), requests[:: config.beam]
    export(fp32, tmp_path / "out", "hf")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").eval()
    model.generation_config.max_length = None
    theirs: list[list[int]] = []
    for start in range(0, len(requests), 100):
        rows = [torch.tensor(list(request.source)) for request in requests[start : start + 100]]
        source = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
        told = transformers.GenerationConfig(
            num_beams=config.beam,
            length_penalty=1.0,
            early_stopping=True if config.beam > 1 else None,
            max_new_tokens=source.shape[1] + EXTRA,
            do_sample=False,
            decoder_start_token_id=BOS,
            eos_token_id=EOS,
            pad_token_id=PAD,
        )
        with torch.inference_mode():
            written = model.generate(source, attention_mask=(source != PAD).long(), generation_config=told)
        theirs += [row[1 : row.index(EOS) if EOS in row else None] for row in written.tolist()]
    assert differing(load(fp32), requests, config, theirs) <= 2


def differing(translator: Translator, requests: list[Request], config: SearchConfig, theirs: list[list[int]]) -> int:
    """Of the sentences, how many another program writes otherwise: near-ties may fall to either side.

    What never ends, as this model's greedy search over some captions does, is left out: programs cut it elsewhere.
    """
    same = replace(config, alpha=1.0, penalty="mean", patience=1.0, extra=EXTRA)
    ours = [best.tokens for best, *_ in found(translator.searchable, requests, same)]
    ended = [len(row) < len(request.source) + EXTRA - 1 for row, request in zip(ours, requests, strict=True)]
    assert sum(ended) > 0.9 * len(requests)
    return sum(a != b for a, b, end in zip(ours, theirs, ended, strict=True) if end)
