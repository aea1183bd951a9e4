"""The open questions about attention, each with its trials, a chart, and an answer computed from what they gave."""

from regard.experiments.lab import Experiment, Findings, Results, Trial
from regard.experiments.questions.content import AVERAGE, ORDER
from regard.experiments.questions.cost import COST
from regard.experiments.questions.ensemble import ENSEMBLE
from regard.experiments.questions.frame import Question
from regard.experiments.questions.heads import HEADS, JOINING
from regard.experiments.questions.limits import LIMITS
from regard.experiments.questions.scale import EMBEDDING, SCALE
from regard.experiments.questions.tasks import BATCH, SIZES

QUESTIONS: tuple[Question, ...] = (SCALE, AVERAGE, JOINING, HEADS, COST, ORDER, ENSEMBLE, EMBEDDING, LIMITS)


def _trials(scale: str) -> list[Trial]:
    return [trial for question in QUESTIONS for trial in question.trials(scale)]


def _report(results: Results, scale: str) -> Findings:
    size = SIZES[scale]
    answers = {
        question: question.answer({k: v for k, v in results.items() if k.partition("-")[0] == question.name}, scale)
        for question in QUESTIONS
    }
    brief = "\n".join(f"{i}. **{each.asked}** {answer.short}" for i, (each, answer) in enumerate(answers.items(), 1))
    sections = "\n\n".join(
        f"## {i}. {each.asked}\n\n{answer.text}\n\n**Answer.** {answer.short}"
        for i, (each, answer) in enumerate(answers.items(), 1)
    )
    text = f"""\
Questions that "Attention Is All You Need" leaves open, or that its readers ask, each put to small models:
{size.layers}+{size.layers} layers, d_model = {size.d_model}, d_ff = {2 * size.d_model}, {size.heads} heads,
pre-norm, no dropout, where nothing else is said; batches of {BATCH} pairs drawn anew at each step, Adam, a rate
that rises to 0.003 and falls to zero. "Right" is the share of held-out pairs whose whole target a greedy search
writes. What holds for models of this size on tasks of this kind need not hold for larger ones on language.

{brief}

{sections}"""
    charts = {name: chart for answer in answers.values() for name, chart in answer.charts.items()}
    return Findings(text, charts)


EXPERIMENT = Experiment("questions", "Open questions about attention", _trials, _report)
