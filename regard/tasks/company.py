"""Several at work at once who share an engine: what they ask of it in the same moment is asked together.

Each works in a thread of its own, as if it were alone. Where it asks the engine it waits until all others ask as well,
or are done; then what is asked of the same engine in the same way is one batch.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextvars import ContextVar
from functools import partial
from threading import Lock
from typing import Any, NamedTuple, TypeVar

A = TypeVar("A")
T = TypeVar("T")
_meeting: ContextVar["Meeting | None"] = ContextVar("_meeting", default=None)
MOST = 64  # who meet


def together(key: object, asks: Sequence[A], answer: Callable[[Sequence[A]], Sequence[T]]) -> Sequence[T]:
    """What is answered to each ask; in a meeting to those that others have for an equal key, too, by one of them.

    >>> together("double", [1, 2], lambda asks: [2 * ask for ask in asks])
    [2, 4]
    """
    meeting = _meeting.get()
    return answer(asks) if meeting is None else meeting.ask(key, asks, answer)


def meet(works: Sequence[Callable[[], T]], threads: Executor) -> list[Future[T]]:
    """What becomes of each work, done in one meeting by these threads: as many as there are works, MOST at a time."""
    done = list[Future[T]]()
    for first in range(0, len(works), MOST):
        some = works[first : first + MOST]
        meeting = Meeting(len(some))
        done += [threads.submit(partial(meeting.attend, work)) for work in some]
    return done


class _Question(NamedTuple):
    key: object
    asks: Sequence[Any]
    answer: Callable[[Sequence[Any]], Sequence[Any]]
    answered: Future[Sequence[Any]]


class Meeting:
    """Some at work at once."""

    def __init__(self, count: int) -> None:
        self._present, self._asked, self._lock = count, list[_Question](), Lock()

    def attend(self, work: Callable[[], T]) -> T:
        """Be one of them, as long as the work lasts."""
        token = _meeting.set(self)
        try:
            return work()
        finally:
            _meeting.reset(token)
            with self._lock:
                self._present -= 1
            self._answer()

    def ask(self, key: object, asks: Sequence[A], answer: Callable[[Sequence[A]], Sequence[T]]) -> Sequence[T]:
        """What is answered, when all who are present have asked."""
        question = _Question(key, asks, answer, Future())
        with self._lock:
            self._asked.append(question)
        self._answer()
        return question.answered.result()

    def _answer(self) -> None:
        """Who comes last answers all."""
        with self._lock:
            if len(self._asked) < self._present:
                return
            asked, self._asked = self._asked, []
        alike = dict[object, list[_Question]]()
        for question in asked:
            alike.setdefault(question.key, []).append(question)
        for some in alike.values():
            try:
                found = iter(some[0].answer([ask for question in some for ask in question.asks]))
                answers = [[next(found) for _ in question.asks] for question in some]
            except Exception as error:
                for question in some:
                    question.answered.set_exception(error)
            else:
                for question, answer in zip(some, answers, strict=True):
                    question.answered.set_result(answer)
