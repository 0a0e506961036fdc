"""When a question starts: the plan's order, the jobs, the deadline, and questions that run alone."""

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.our_gpus.question import Question
from benchmarks.our_gpus.schedule import foreseen_seconds, next_to_start

plans = st.lists(
    st.builds(
        lambda seconds, alone, ready: (seconds, alone, ready),
        st.integers(1, 20),
        st.booleans(),
        st.integers(0, 30),
    ),
    max_size=12,
).map(
    lambda rows: [
        (Question(name=f"family/{number}", about="", seconds=seconds, alone=alone), ready)
        for number, (seconds, alone, ready) in enumerate(rows)
    ]
)


@given(plans, st.integers(1, 4), st.integers(0, 60))
def test_the_schedule_keeps_its_rules(plan: list[tuple[Question, int]], jobs: int, deadline: int) -> None:
    """Second by second: never too many, alone is alone, nothing starts that would end too late, and nothing waits
    that could start at the end."""
    waiting = [question for question, _ in plan]
    ready_at = {question.name: ready for question, ready in plan}
    running: list[tuple[int, Question]] = []
    for now in range(deadline + 40):
        running = [(end, question) for end, question in running if end > now]
        while True:
            question = next_to_start(
                waiting,
                [question for _, question in running],
                jobs=jobs,
                seconds_left=deadline - now,
                is_ready=lambda question, now=now: ready_at[question.name] <= now,
            )
            if question is None:
                break
            assert ready_at[question.name] <= now
            assert now + question.seconds <= deadline
            waiting.remove(question)
            running.append((now + int(question.seconds), question))
        assert len(running) <= jobs
        assert len(running) <= 1 or not any(question.alone for _, question in running)
    # What was left was ready too late, or waited for its turn until too little time was left.
    assert all(question.seconds > deadline - (deadline + 39) for question in waiting)
    assert not running or deadline > 0


@given(plans)
def test_one_at_a_time_keeps_the_order(plan: list[tuple[Question, int]]) -> None:
    """With one job and all ready, the plan's order is the order of starts, and the seconds add up."""
    questions = [question for question, _ in plan]
    assert foreseen_seconds(questions, 1) == sum(question.seconds for question in questions)


def test_a_question_that_runs_alone_has_its_turn() -> None:
    """Those behind it wait until it has run: a stream of others does not put it off."""
    first, alone, last = (
        Question(name=f"family/{number}", about="", seconds=1, alone=number == 1) for number in range(3)
    )
    rules = {"jobs": 4, "seconds_left": 100.0, "is_ready": lambda question: True}
    assert next_to_start([first, alone, last], [], **rules) is first
    assert next_to_start([alone, last], [first], **rules) is None
    assert next_to_start([alone, last], [], **rules) is alone
    assert next_to_start([last], [alone], **rules) is None
