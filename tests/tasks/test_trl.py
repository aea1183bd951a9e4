"""The losses of trl's trainers on the same batch: instructions, rewards, preferences, reinforcement. It is no
dependency: where it is installed, they are equal."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.core.outputs import HeadConfig
from regard.data import chat
from regard.data.chat import ChatTemplate
from regard.models.decoder import Decoder
from regard.tasks.converse import Converse, packed
from regard.tasks.prefer import Prefer, paired
from regard.tasks.reinforce import Drawn, Reinforce, ReinforceConfig, learnt
from regard.training.objectives import IGNORE, Likelier, NextToken, Preferred, answers
from regard.training.policies import in_groups, weighed

pytestmark = pytest.mark.oracle
trl = pytest.importorskip("trl")
import transformers  # noqa: E402
from datasets import Dataset  # noqa: E402

from tests.chats import CHATML, talker  # noqa: E402

QUESTION = [{"role": "user", "content": "Why?"}]
PAIRS = [("It is so.", "No."), ("The cat sat on the mat.", "It is 2024"), ("So", "The mat & the cat sat on it.")]
TALKS = [
    [*QUESTION, {"role": "assistant", "content": "It is."}],
    [
        *QUESTION,
        {"role": "assistant", "content": "The cat sat."},
        {"role": "user", "content": "So"},
        {"role": "assistant", "content": "mat"},
    ],
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A policy and a reference: theirs, and ours with the same weights; and the tokenizer."""
    found = []
    for seed in (2, 7):
        folder = tmp_path_factory.mktemp("trl")
        theirs, ours = talker(folder, "bytes", CHATML)
        model = transformers.LlamaForCausalLM.from_pretrained(folder / "theirs")
        if seed == 7:  # another one
            torch.manual_seed(seed)
            for p in model.parameters():
                p.data += 0.05 * torch.randn_like(p)
            model.save_pretrained(folder / "theirs")
            regard.convert.import_(folder / "theirs", folder / "again")
            ours = folder / "again"
        found.append((model, regard.load(ours)))
    theirs.pad_token = "<unk>"
    return found, theirs


def examples(tokenizer: Any) -> list[Any]:
    rows = [{"messages": QUESTION, "chosen": a, "rejected": b, "where": ""} for a, b in PAIRS]
    return list(Prefer(64, CHATML).examples(rows, tokenizer))


def arguments(kind: Any, folder: Path, **more: Any) -> Any:
    how = {"output_dir": str(folder), "report_to": "none", "use_cpu": True, "bf16": False}
    return kind(**how, **more)


def flat(rows: list[Any], side: int) -> list[list[int]]:
    return [list(row[side]) for row in rows]


def theirs_of(rows: list[Any]) -> dict[str, torch.Tensor]:
    """A batch of pairs as theirs has it: all that were chosen, then all that were rejected."""
    ids = flat(rows, 0) + flat(rows, 1)
    begins = [row[2][0] for row in rows] + [row[2][1] for row in rows]
    width = max(map(len, ids))
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in ids])
    keep = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in ids])
    at = torch.arange(width)
    return {
        "input_ids": tokens,
        "attention_mask": keep,
        "completion_mask": ((at >= torch.tensor(begins)[:, None]) & (keep > 0)).long(),
    }


LOSSES = {
    "dpo": "sigmoid",
    "hinge": "hinge",
    "ipo": "ipo",
    "exo": "exo_pair",
    "nca": "nca_pair",
    "robust": "robust",
    "bco": "bco_pair",
    "sppo": "sppo_hard",
    "apo-zero": "apo_zero",
    "apo-down": "apo_down",
}


@pytest.mark.parametrize("ours", LOSSES)
def test_a_preference_costs_what_it_costs_there(ours: str, models: Any, tmp_path: Path) -> None:
    ((policy, own), (reference, before)), tokenizer = models
    smoothing = 0.1 if ours in ("exo", "robust") else 0.0
    rows = examples(own.tokenizer)
    data = [
        {
            "prompt": QUESTION,
            "chosen": [{"role": "assistant", "content": a}],
            "rejected": [{"role": "assistant", "content": b}],
        }
        for a, b in PAIRS
    ]
    trainer = trl.DPOTrainer(
        model=policy,
        ref_model=reference,
        args=arguments(trl.DPOConfig, tmp_path, beta=0.3, loss_type=[LOSSES[ours]], label_smoothing=smoothing),
        train_dataset=Dataset.from_list(data),
        processing_class=tokenizer,
    )
    policy.eval()
    batch = paired(rows)
    with torch.no_grad():
        said = answers(before.model, **batch.tensors)
        expected = float(trainer.compute_loss(policy, theirs_of(rows)))
        told = torch.stack(said[:2], 1)
        found = Likelier(own.model, ours, 0.3, smoothing=smoothing)(batch["tokens"], batch["labels"], told)
    assert float(found) / len(rows) == pytest.approx(expected, rel=1e-5)


def test_so_do_those_without_a_reference(models: Any) -> None:
    """Their trainers compute them of log p: ours is given the same."""
    from trl.experimental.cpo import CPOTrainer
    from trl.experimental.orpo import ORPOTrainer

    ((_, own), _), _ = models
    batch = paired(examples(own.tokenizer))
    with torch.no_grad():
        said = answers(own.model, **batch.tensors)

        class Fake:
            beta, label_smoothing, simpo_gamma, alpha = 0.3, 0.1, 0.7, 0.0
            accelerator = type("device", (), {"device": "cpu"})

        for name, theirs, given in (("cpo", "sigmoid", said[:2]), ("simpo", "simpo", said.means)):
            fake: Any = Fake()
            fake.loss_type = theirs
            expected = CPOTrainer.cpo_loss(fake, *given)[0].sum()
            found = Likelier(own.model, name, 0.3, 0.7, 0.1)(**batch.tensors)
            assert float(found) == pytest.approx(float(expected), rel=1e-5)
        ratio = ORPOTrainer.odds_ratio_loss(Fake(), *said.means)[0].sum()
        found = Likelier(own.model, "orpo", 0.3, imitate=1.0)(**batch.tensors)
        assert float(found) == pytest.approx(float(-ratio - said.means[0].sum()), rel=1e-5)


def test_an_answer_costs_what_it_costs_there(models: Any, tmp_path: Path) -> None:
    """Packed here, padded there; which tokens are answers is told by {% generation %} there."""
    ((policy, own), _), tokenizer = models
    marked = CHATML.replace(
        "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}",
        "{{ '<|im_start|>' + message['role'] + '\\n' }}{% if message['role'] == 'assistant' %}{% generation %}"
        "{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}{{ message['content'] + '<|im_end|>' }}"
        "{% endif %}{{ '\\n' }}",
    )
    rows = [{"messages": each, "where": ""} for each in TALKS]
    ours = list(Converse(256, marked).examples(rows, own.tokenizer))
    trainer = trl.SFTTrainer(
        model=policy,
        args=arguments(trl.SFTConfig, tmp_path, assistant_only_loss=True, chat_template_path=None),
        train_dataset=Dataset.from_list([{"messages": each} for each in TALKS]),
        processing_class=_with(tokenizer, marked),
    )
    policy.eval()
    theirs = trainer.data_collator(list(trainer.train_dataset))
    for (ids, _), row in zip(ours, theirs["input_ids"], strict=True):
        assert row[: len(ids)].tolist() == ids
    batch = packed([tuple(a + b for a, b in zip(*ours, strict=True))])
    assert batch.count == int((theirs["labels"] != IGNORE).sum())
    with torch.no_grad():
        expected = float(trainer.compute_loss(policy, dict(theirs)))
        found = float(NextToken(own.model, 0.0, IGNORE)(**batch.tensors)) / batch.count
    assert found == pytest.approx(expected, rel=1e-5)
    # And all that follows the prompt is what an assistant writes.
    template = ChatTemplate(chat.CHATML, own.tokenizer)
    ids, spans = template.answered(TALKS[1])
    assert [ids[:begin] for begin, _ in spans] == [template.encode(TALKS[1][:k])[1] for k in (1, 3)]


def test_a_reward_costs_what_it_costs_there(models: Any, tmp_path: Path) -> None:
    (_, (_, own)), tokenizer = models
    torch.manual_seed(3)
    model = transformers.LlamaForSequenceClassification(
        transformers.LlamaConfig(
            **{**models[0][0][0].config.to_dict(), "num_labels": 1, "pad_token_id": 0, "vocab_size": len(tokenizer)}
        )
    ).eval()
    mine = Decoder(own.model.config, HeadConfig("classes", 1, pool="last", bias=False)).eval()
    body = transformers.LlamaForCausalLM(model.config)
    body.model.load_state_dict(model.model.state_dict())
    body.save_pretrained(tmp_path / "theirs")
    tokenizer.save_pretrained(tmp_path / "theirs")
    regard.convert.import_(tmp_path / "theirs", tmp_path / "ours")
    state = regard.load(tmp_path / "ours").model.state_dict()
    mine.load_state_dict({k: v for k, v in state.items() if not k.startswith("output")}, strict=False)
    mine.output.outer.weight.data.copy_(model.score.weight.data)
    rows, margin = examples(own.tokenizer), torch.tensor([0.0, 0.5, 1.0])
    trainer = trl.RewardTrainer(
        model=model,
        args=arguments(trl.RewardConfig, tmp_path, center_rewards_coefficient=0.01),
        train_dataset=Dataset.from_list([{"chosen": a, "rejected": b} for a, b in PAIRS]),
        processing_class=tokenizer,
    )
    model.eval()
    given = theirs_of(rows)
    del given["completion_mask"]
    batch = [x.unflatten(0, (2, 3)).transpose(0, 1) for x in (given["input_ids"], given["attention_mask"].bool())]
    with torch.no_grad():
        for gap in (None, margin):
            more = {} if gap is None else {"margin": gap}
            expected = float(trainer.compute_loss(model, {**given, **more}))
            found = Preferred(mine, 0.01)(torch.zeros(3) if gap is None else gap, tokens=batch[0], keep=batch[1])
            assert float(found) / 3 == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {"loss_type": "grpo"}),
        (
            {"beta": 0.3, "clip": 0.05, "high": 0.1, "corrected": False},
            {"epsilon": 0.05, "epsilon_high": 0.1, "use_bias_correction_kl": False},
        ),
        ({"loss": "dapo", "temperature": 0.7}, {"loss_type": "bnpo", "temperature": 0.7}),
        ({"loss": "dapo"}, {"loss_type": "dapo"}),
        ({"loss": "dr_grpo", "advantages": "none"}, {"loss_type": "dr_grpo", "scale_rewards": "none"}),
        ({"ratio": "sequence", "clip": 0.02}, {"importance_sampling_level": "sequence", "epsilon": 0.02}),
    ],
)
def test_answers_that_were_drawn_cost_what_they_cost_there(
    ours: dict[str, Any], theirs: dict[str, Any], models: Any, tmp_path: Path
) -> None:
    """Advantages are those of `scale_rewards` there; log p of what drew them, and of the reference, another model's."""
    ((policy, own), (_, before)), tokenizer = models
    c = ReinforceConfig(**{"beta": 0.1, "group": 2, "answer": 12, **ours})
    draw = np.random.default_rng(0)
    found = [Drawn(draw.integers(9, 200, 5 + n).tolist(), 5, "", "", float(draw.normal())) for n in (3, 12, 1, 7)]
    prompts = [found[0].ids[:5], found[2].ids[:5]]
    found = [each._replace(ids=prompts[i // 2] + each.ids[5:]) for i, each in enumerate(found)]
    (reference, _), (said, _) = (Reinforce(c).said(model, found) for model in (before.model, own.model))
    drawn = [x + 0.2 * draw.normal(size=len(x)) for x in said]
    gains = in_groups(np.array([each.reward for each in found]).reshape(2, 2), c.advantages).flatten()
    weights = weighed(np.array([each.size for each in found]), c.loss, c.answer)
    columns = [
        {"drawn": a, "reference": b, "advantages": np.full(len(a), x)}
        for a, b, x in zip(drawn, reference, gains, strict=True)
    ]
    batch = learnt(list(zip(found, weights.tolist(), columns, strict=True)))

    def padded(rows: Any) -> torch.Tensor:
        return torch.tensor([[*row, *[0] * (12 - len(row))] for row in rows])

    settings = {"loss_type": "grpo", "beta": c.beta, "num_generations": 2, "max_completion_length": 12} | theirs
    trainer = trl.GRPOTrainer(
        model=policy,
        reward_funcs=lambda completions, **more: [0.0] * len(completions),
        args=arguments(trl.GRPOConfig, tmp_path, per_device_train_batch_size=4, **settings),
        train_dataset=Dataset.from_list([{"prompt": "Why?"}] * 2),
        processing_class=tokenizer,
    )
    policy.eval()
    trainer.current_gradient_accumulation_steps = 1
    given = {
        "prompt_ids": torch.tensor([each.ids[:5] for each in found]),
        "prompt_mask": torch.ones(4, 5, dtype=torch.long),
        "completion_ids": padded([each.ids[5:] for each in found]),
        "completion_mask": padded([[1] * each.size for each in found]),
        "advantages": torch.tensor(gains, dtype=torch.float32),
        "old_per_token_logps": padded(drawn).float(),
        "ref_per_token_logps": padded(reference).float(),
        "num_items_in_batch": torch.tensor(batch.count),
    }
    with torch.no_grad():
        expected = float(trainer._compute_loss(policy, given))
        ours_is = Reinforce(c).objective(own.model, 0.0, own.tokenizer)(**batch.tensors).item() / batch.count
    assert ours_is == pytest.approx(expected, rel=1e-5)


def _with(tokenizer: Any, template: str) -> Any:
    tokenizer.chat_template = template
    return tokenizer
