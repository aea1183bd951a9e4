"""Pictures with captions are opened by several threads, and are the same as one by one, damaged ones in their place."""

from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import torch

from regard.data.chat import CHATML, MARKED, with_marks
from regard.data.pictures import Pixels, Sight
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.tasks.task import Damaged, task
from tests.eyes import png

MORE: dict[str, dict[str, Any]] = {"match": {}, "caption": {}, "look": {"chat": CHATML, "patches": (-1,) * 4}}


@pytest.mark.parametrize("name", MORE)
def test_two_pictures_are_opened_at_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(8):
        (tmp_path / f"{i}.png").write_bytes(png(i)[:80] if i == 5 else png(i))
    rows = [{"image": str(tmp_path / f"{i}.png"), "name": f"{i}.png", "captions": [f"it is {i}"]} for i in range(8)]
    tokens = Tokenizer.learn(TokensConfig("byte", size=0), ["x"], ("cls", "sep") if name == "match" else ())
    made = task(name)(16, Sight(size=8), **MORE[name])
    alone = [next(made.examples([row], with_marks(tokens, MARKED[CHATML]))) for row in rows]
    both, plain = Barrier(2, timeout=20), Sight.pixels

    def together(sight: Sight, *given: Any) -> Pixels:
        both.wait()  # nobody comes where one waits for the other
        return plain(sight, *given)

    monkeypatch.setattr(Sight, "pixels", together)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = list(made.examples(rows, with_marks(tokens, MARKED[CHATML])))
    finally:
        torch.set_num_threads(threads)
    assert [isinstance(each, Damaged) for each in found] == [i == 5 for i in range(8)]
    assert str(found[5]) == str(alone[5])
    for one, other in zip(found, alone, strict=True):
        assert isinstance(one, Damaged) or all(map(np.array_equal, one, other))
