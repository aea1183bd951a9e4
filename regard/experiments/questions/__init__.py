"""The open questions about attention, each with its trials, a chart, and an answer computed from what they gave."""

from regard.experiments.charts import Bars, Chart
from regard.experiments.lab import Experiment, Findings, Results, Trial, page
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
    brief, sections, charts = [], [], dict[str, Chart | Bars]()
    for i, question in enumerate(QUESTIONS, 1):
        own = {key: result for key, result in results.items() if key.partition("-")[0] == question.name}
        answer = question.answer(own, scale)
        brief.append(f"{i}. **{question.asked}** {answer.short}")
        sections.append(f"## {i}. {question.asked}\n\n{answer.text}\n\n**Answer.** {answer.short}")
        charts |= answer.charts
    size = SIZES[scale]
    told = {"brief": "\n".join(brief), "sections": "\n\n".join(sections)}
    return Findings(page("questions", size=size, inner=2 * size.d_model, batch=BATCH, **told), charts)


EXPERIMENT = Experiment("questions", "Open questions about attention", _trials, _report)
