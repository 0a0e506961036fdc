"""Real torch's own texts, raised on the emulated card, and read to the figure."""

import pytest

from tests.emulated.fresh import answer
from ullage.analysis.explain_text import explain_text
from ullage.message import Message, read_message
from ullage.wording import Kind

GIB, MIB = 1 << 30, 1 << 20
CODE = """
import ullage
ullage.emulate("RTX 4090", context_bytes=512 << 20)
import torch
def fill(gib): return torch.empty(gib << 30, dtype=torch.uint8, device="cuda")
try:
    {body}
    fill({asked})
except Exception as error:
    tell([type(error).__name__, str(error), torch.cuda.memory_allocated(), torch.cuda.memory_reserved(),
          *torch.cuda.mem_get_info()])
"""


def raised(body: str, *, asked: int = 8, **environment: str) -> tuple[Message, str, list[int]]:
    _, text, *figures = answer(CODE.format(body=body, asked=asked), environment=environment)
    message = read_message(text)
    assert message is not None, text
    return message, text, figures


def rounds_to(said: int | None, real: int) -> bool:
    """PyTorch writes a hundredth of a unit: no figure is further off than half of one, or by truncation a whole."""
    return said is not None and abs(said - real) <= GIB // 100


@pytest.mark.parametrize("expandable", ["False", "True"])
def test_a_full_card(expandable: str) -> None:
    message, text, (allocated, reserved, free, total) = raised(
        "x = fill(20)", PYTORCH_CUDA_ALLOC_CONF=f"expandable_segments:{expandable}"
    )
    assert (message.kind, message.wording, message.device) == (Kind.ALLOCATOR, "of_which_free", 0)
    assert message.requested_bytes == 8 * GIB
    assert message.allocated_bytes == allocated
    assert rounds_to(message.reserved_bytes, reserved)
    assert rounds_to(message.free_bytes, free)
    assert rounds_to(message.total_bytes, total)
    assert rounds_to(message.process_bytes, total - free)
    told = explain_text(text)
    assert told.explanation.cause == "truly_full"
    assert told.account is not None
    assert rounds_to(told.account.outside_bytes, 512 * MIB)


def test_a_limit() -> None:
    message, text, (allocated, _, _, total) = raised("torch.cuda.set_per_process_memory_fraction(0.25); x = fill(2)")
    assert rounds_to(message.allowed_bytes, total // 4)
    assert message.allocated_bytes == allocated
    assert explain_text(text).explanation.cause == "limit"


def test_cuda_malloc_async() -> None:
    message, text, _ = raised(
        "torch.cuda.set_per_process_memory_fraction(0.25); x = fill(2)",
        PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync",
    )
    assert (message.wording, message.requested_bytes, message.allocated_bytes) == ("async", 8 * GIB, 2 * GIB)
    assert explain_text(text).explanation.cause == "limit"


def test_more_than_an_exabyte() -> None:
    message, text, _ = raised("pass", asked=1 << 31)
    assert (message.kind, message.requested_bytes) == (Kind.BOGUS_SIZE, None)
    assert explain_text(text).explanation.cause == "bogus_size"


def test_pinned_memory_reads_as_the_cards() -> None:
    message, _, _ = raised("torch.empty(1 << 46, dtype=torch.uint8, pin_memory=True)")
    assert message.kind is Kind.DRIVER


def test_the_hosts_allocator() -> None:
    message, text, _ = raised("torch.empty(1 << 43, dtype=torch.uint8)")
    assert (message.kind, message.requested_bytes) == (Kind.HOST, 1 << 43)
    assert "The machine's own memory ran out" in explain_text(text).explanation.sentence
