"""Real torch's own texts, raised on the emulated card, and read to the figure."""

import pytest

from tests.shared.fresh import answer
from ullage.explaining.analysis.text.explain import explain_text
from ullage.recorded.message.message import Message, read_message
from ullage.recorded.message.wording import MessageKind

GIB, MIB = 1 << 30, 1 << 20
CODE = """
import ullage
ullage.emulate("RTX 4090", context_bytes=512 << 20)
import torch
def fill(gib): return torch.empty(gib << 30, dtype=torch.uint8, device="cuda")
def limit(): torch.cuda.empty_cache(); torch.cuda.set_per_process_memory_fraction(0.25); fill(8)
found = {}
x = fill({held})
for name, body in {bodies}.items():
    try:
        eval(body)
    except Exception as error:
        figures = torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), *torch.cuda.mem_get_info()
        found[name] = [str(error), *figures]
tell(found)
"""
Raised = dict[str, tuple[Message, str, list[int]]]


def raised(bodies: dict[str, str], *, held: int, **environment: str) -> Raised:
    """What each expression raises in one process: the message, its text, and torch's own figures then."""
    code = CODE.replace("{held}", str(held)).replace("{bodies}", repr(bodies))
    found: Raised = {}
    for name, (text, *figures) in answer(code, environment=environment).items():
        message = read_message(text)
        assert message is not None, text
        found[name] = (message, text, figures)
    assert found.keys() == bodies.keys()
    return found


@pytest.fixture(scope="module")
def plain() -> Raised:
    return raised(
        {
            "full": "fill(8)",
            "exabyte": "fill(1 << 31)",
            "pinned": "torch.empty(1 << 46, dtype=torch.uint8, pin_memory=True)",
            "host": "torch.empty(1 << 43, dtype=torch.uint8)",
        },
        held=20,
    )


@pytest.fixture(scope="module")
def expandable() -> Raised:
    bodies = {"full": "(fill(8), fill(8), fill(8))", "limit": "limit()"}
    return raised(bodies, held=2, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")


def rounds_to(said: int | None, real: int) -> bool:
    """PyTorch writes two digits of a unit: no figure is further off than a hundredth."""
    return said is not None and abs(said - real) <= GIB // 100


@pytest.mark.parametrize("settings", ["plain", "expandable"])
def test_a_full_card(settings: str, request: pytest.FixtureRequest) -> None:
    message, text, (*_, total) = request.getfixturevalue(settings)["full"]
    assert (message.kind, message.wording, message.device) == (MessageKind.ALLOCATOR, "of_which_free", 0)
    assert message.requested_bytes == 8 * GIB
    assert rounds_to(message.total_bytes, total)
    told = explain_text(text)
    assert told.cause == "truly_full"
    assert told.account is not None
    assert rounds_to(told.account.outside_bytes, 512 * MIB)
    assert told.account.others_bytes == 0


def test_every_figure_is_torchs_own(plain: Raised) -> None:
    message, _, (allocated, reserved, free, total) = plain["full"]
    assert message.allocated_bytes == allocated
    assert rounds_to(message.reserved_bytes, reserved)
    assert rounds_to(message.free_bytes, free)
    assert rounds_to(message.process_bytes, total - free)


def test_a_limit(expandable: Raised) -> None:
    message, text, (allocated, _, _, total) = expandable["limit"]
    assert rounds_to(message.allowed_bytes, total // 4)
    assert message.allocated_bytes == allocated
    assert explain_text(text).cause == "limit"


def test_cuda_malloc_async() -> None:
    found = raised({"limit": "limit()"}, held=2, PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")
    message, text, _ = found["limit"]
    assert (message.wording, message.requested_bytes, message.allocated_bytes) == ("async", 8 * GIB, 2 * GIB)
    assert explain_text(text).cause == "limit"


def test_more_than_an_exabyte(plain: Raised) -> None:
    message, text, _ = plain["exabyte"]
    assert (message.kind, message.requested_bytes) == (MessageKind.BOGUS_SIZE, None)
    assert explain_text(text).cause == "bogus_size"


def test_pinned_memory_reads_as_the_cards(plain: Raised) -> None:
    assert plain["pinned"][0].kind is MessageKind.DRIVER


def test_the_hosts_allocator(plain: Raised) -> None:
    message, text, _ = plain["host"]
    assert (message.kind, message.requested_bytes) == (MessageKind.HOST, 1 << 43)
    assert "Host memory ran out" in explain_text(text).sentence
