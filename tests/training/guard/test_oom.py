"""Which errors are memory of the card that ran out: by every text that is known, in every way it may be raised."""

from typing import Any

from tests.recorded.message import test_message as corpus
from tests.shared.inside import INSIDE, inside
from ullage.recorded.message.message import read_message
from ullage.recorded.message.wording import MessageKind

if INSIDE:
    import gc
    import weakref

    import torch

    from ullage.training.guard.memory.oom import read_oom
    from ullage.training.ownership.failure import clear_frames

OF_A_CARD = (MessageKind.ALLOCATOR, MessageKind.LIMIT, MessageKind.DRIVER, MessageKind.LIBRARY)


def _parameters(test: Any) -> list[Any]:
    """What the message reader's own test of that name is run with."""
    return list(next(mark for mark in test.pytestmark if mark.name == "parametrize").args[1])


WORDINGS = corpus.WORDINGS
TEXTS = [text for text, _ in WORDINGS.values()]
TEXTS += [one[0] for one in _parameters(corpus.test_what_hides_behind_other_errors)]
ORDINARY = _parameters(corpus.test_an_ordinary_text_is_none)


@inside
def test_every_text_is_told_apart() -> str:
    """As a RuntimeError a text of the card counts; one of the host, a kill, an address or an absurd size does not."""
    counted = {True: 0, False: 0}
    for text in TEXTS:
        message = read_message(text)
        assert message is not None
        of_a_card = message.kind in OF_A_CARD
        found = read_oom(RuntimeError(text))
        assert (found is not None) == of_a_card, (text, message)
        assert found is None or found == message
        of_a_host = of_a_card or message.kind is MessageKind.HOST
        assert (read_oom(RuntimeError(text), is_on_host=True) is not None) == of_a_host, text
        counted[of_a_card] += 1
    assert counted[True] >= 30
    assert counted[False] >= 10
    return f"{counted[True]} texts of cards, {counted[False]} of something else"


@inside
def test_the_type_alone_is_enough() -> None:
    """torch.OutOfMemoryError counts with words that nobody knows; with words of another kind it is what these say."""
    unknown = read_oom(torch.OutOfMemoryError("the words of a version to come"))
    assert unknown is not None
    assert (unknown.kind, unknown.wording) == (MessageKind.ALLOCATOR, "unknown")
    assert read_oom(torch.cuda.OutOfMemoryError("")) is not None
    for name in ("more than an exabyte", "torch 2.15, beyond the reserve", "torch 2.15, no address"):
        assert read_oom(torch.OutOfMemoryError(WORDINGS[name][0])) is None, name


@inside
def test_an_ordinary_error_is_none() -> None:
    """Neither by its text nor by its type; and a text of memory in an error of another type is somebody's prose."""
    for text in ORDINARY:
        assert read_oom(RuntimeError(text)) is None, text
    text = WORDINGS["torch 2.8, with a limit"][0]
    for kind in (ValueError, KeyError, AssertionError, OSError, Exception, KeyboardInterrupt, SystemExit):
        assert read_oom(kind(text)) is None, kind
    assert read_oom(MemoryError()) is None
    assert read_oom(MemoryError(), is_on_host=True) is not None


@inside
def test_an_error_that_was_raised_from_one_counts() -> None:
    """`raise X from oom` counts however deep; `raise X` in its `except` is an error of its own."""
    oom = torch.OutOfMemoryError("CUDA out of memory.")
    error: BaseException = oom
    for depth in range(7):
        outer = ValueError(f"layer {depth}")
        outer.__cause__ = error
        error = outer
        assert read_oom(error) is not None, depth
    other = ValueError("other")
    other.__context__ = oom
    assert read_oom(other) is None
    circle = ValueError("a")
    circle.__cause__ = circle
    assert read_oom(circle) is None


@inside
def test_forgetting_lets_go_of_every_frame() -> None:
    """Tensors of the frames of an error, of its cause and of its context are freed; text and lines stay."""

    def attempt() -> None:
        first = torch.zeros(3)
        kept.append(weakref.ref(first))
        try:
            inner()
        except RuntimeError as error:
            raise ValueError("outer") from error

    def inner() -> None:
        second = torch.zeros(3)
        kept.append(weakref.ref(second))
        try:
            raise KeyError("context")
        except KeyError:
            third = torch.zeros(3)
            kept.append(weakref.ref(third))
            raise RuntimeError("inner")  # noqa: B904 -- its context is what is meant

    kept: list[Any] = []
    failure: BaseException
    try:
        attempt()
    except ValueError as error:
        failure = error
    gc.disable()
    assert all(reference() is not None for reference in kept)
    clear_frames(failure)
    assert [reference() for reference in kept] == [None] * 3
    lines = []
    trace = failure.__traceback__
    while trace:
        lines.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    assert lines == ["test_forgetting_lets_go_of_every_frame", "attempt"]
