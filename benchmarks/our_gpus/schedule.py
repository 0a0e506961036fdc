"""Which question starts when: in the plan's order, several at a time, and none that cannot end before the deadline."""

from collections.abc import Callable, Iterable, Sequence

from .question import Question


def next_to_start(
    waiting: Sequence[Question],
    running: Iterable[Question],
    *,
    jobs: int,
    seconds_left: float,
    is_ready: Callable[[Question], bool],
) -> Question | None:
    """Return the first waiting question that may start now, or None.

    A question that runs alone waits until nothing else runs, and those behind it wait for it: otherwise it would never
    have its turn. A question that is not ready (its packages are being installed) or that would end too late is passed
    over.
    """
    running = list(running)
    if len(running) >= jobs or any(question.alone for question in running):
        return None
    for question in waiting:
        if not is_ready(question) or question.seconds > seconds_left:
            continue
        return None if question.alone and running else question
    return None


def foreseen_seconds(questions: Sequence[Question], jobs: int) -> float:
    """Return how long the questions take together, if each takes the seconds that it says."""
    waiting, running, now = list(questions), [], 0.0
    while waiting or running:
        question = next_to_start(
            waiting,
            [question for _, question in running],
            jobs=jobs,
            seconds_left=float("inf"),
            is_ready=lambda question: True,
        )
        if question is not None:
            waiting.remove(question)
            running.append((now + question.seconds, question))
        else:
            running.sort(key=lambda each: each[0])
            now = running.pop(0)[0]
    return now
