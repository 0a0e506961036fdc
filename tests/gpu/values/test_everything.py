"""values="all": what is computed on an emulated card is what the CPU computes."""

import importlib.util
import math
from pathlib import Path
from typing import Any

import pytest

from tests.shared.fresh import answer

_RUN = f"""
    import sys, ullage
    ullage.emulate("A100", values=MODE)
    import torch
    torch.set_num_threads(1)
    sys.path.insert(0, {str(Path(__file__).parent)!r})
    import loops
    from ullage.gpu.values import start
    found = {{}}
    for loop in loops.LOOPS:
        if loop.__name__ in NAMES:
            torch.cuda.reset_peak_memory_stats()
            on_card = list(loop("cuda"))
            peak = torch.cuda.max_memory_allocated()
            found[loop.__name__] = [list(loop("cpu")) if MODE == "all" else [], on_card, peak]
    found["failures"] = start.current().evaluation.failures
    tell(found)
"""
_HAS_TRANSFORMERS = importlib.util.find_spec("transformers") is not None
LOOPS = ["mlp", "mlp_fused", "mlp_foreach", "cnn", "attention", "recurrent", "scaled", "routed"]
LOOPS += ["gpt", "gpt_checkpointed"] if _HAS_TRANSFORMERS else []
BY_SHAPE = ["mlp", "cnn", "gpt"]
"""Loops whose memory depends on no value."""


def run(mode: str, names: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = answer(f"    MODE, NAMES = {mode!r}, {names!r}\n{_RUN}")
    return found


@pytest.fixture(scope="module")
def computed() -> dict[str, Any]:
    return run("all", LOOPS)


@pytest.mark.parametrize("name", LOOPS)
def test_a_training_loop_has_the_losses_that_it_has_on_the_cpu(computed: dict[str, Any], name: str) -> None:
    on_cpu, on_card, _ = computed[name]
    assert len(on_cpu) >= 20
    assert on_card == pytest.approx(on_cpu, rel=1e-4)
    assert len(set(on_card)) > 1
    assert all(math.isfinite(each) for each in on_card if name != "scaled")


def test_nothing_was_left_out(computed: dict[str, Any]) -> None:
    assert computed["failures"] == {}


def test_memory_is_what_it_is_without_values(computed: dict[str, Any]) -> None:
    names = [name for name in BY_SHAPE if name in computed]
    without = run("off", names)
    assert {name: without[name][2] for name in names} == {name: computed[name][2] for name in names}


def test_small_programs() -> None:
    found = answer(_SMALL)
    failures = found.pop("failures")
    assert {name: each for name, each in found.items() if each is not True} == {}
    assert failures == {}


def test_numbers_in_place_of_tensors_without_everything() -> None:
    """An operator that gets a number first is seen with values on, too."""
    found = answer("""
        import ullage
        ullage.emulate("A100")
        import torch
        numbers = torch.tensor([1, 3], device="cuda")
        tell([(2**numbers).tolist(), (5 % numbers).tolist(), (2.0**numbers.float()).tolist()])
    """)
    assert found == [[2, 8], [0, 2], [2.0, 8.0]]


_SMALL = """
    import ullage
    ullage.emulate("A100", values="all")
    import torch
    from torch.nn import functional
    card = torch.device("cuda")
    found = {}

    # random numbers: the CPU's after a seed, and those of a state of the card's generator
    torch.manual_seed(0)
    first = torch.rand(3, device=card)
    torch.manual_seed(0)
    found["seed"] = torch.equal(first.cpu(), torch.rand(3))
    torch.cuda.manual_seed(0)
    found["seed of the card"] = torch.equal(first, torch.rand(3, device=card))
    state = torch.cuda.get_rng_state()
    second = torch.rand(3, device=card)
    torch.cuda.set_rng_state(state)
    found["state"] = torch.equal(second, torch.rand(3, device=card)) and not torch.equal(first, second)
    mine = [torch.rand(2, device=card, generator=torch.Generator(card).manual_seed(5)) for _ in range(2)]
    found["generator"] = torch.equal(*mine)
    torch.manual_seed(1)
    here = torch.multinomial(torch.ones(4, 9, device=card), 3), torch.randperm(7, device=card)
    torch.manual_seed(1)
    there = torch.multinomial(torch.ones(4, 9), 3), torch.randperm(7)
    found["samples"] = all(torch.equal(a.cpu(), b) for a, b in zip(here, there))

    # graphs: what is captured happens at each replay, not before
    numbers, sums = torch.zeros(4, device=card), None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sums = numbers + 1
        numbers.add_(2)
    found["captured"] = numbers.sum().item() == 0
    numbers.fill_(5)
    graph.replay()
    graph.replay()
    found["replayed"] = numbers.tolist() == [9.0] * 4 and sums.tolist() == [8.0] * 4

    # sizes that follow from values
    mask = torch.tensor([True, False, True], device=card)
    found["mask"] = torch.arange(3, device=card)[mask].tolist() == [0, 2]
    found["nonzero"] = torch.nonzero(mask).tolist() == [[0], [2]]
    out = torch.empty(0, dtype=torch.long, device=card)
    torch.nonzero(mask, out=out)
    found["nonzero out"] = out.tolist() == [[0], [2]]
    values, counts = torch.unique(torch.tensor([3, 1, 3], device=card), return_counts=True)
    found["unique"] = values.tolist() == [1, 3] and counts.tolist() == [1, 2]
    found["repeat"] = torch.repeat_interleave(torch.tensor([2, 0, 3], device=card)).tolist() == [0, 0, 2, 2, 2]
    found["bincount"] = torch.bincount(torch.tensor([1, 4], device=card)).tolist() == [0, 1, 0, 0, 1]
    sparse = torch.sparse_coo_tensor([[0, 1, 1], [2, 0, 0]], [3.0, 4.0, 5.0], (2, 3), device=card).coalesce()
    found["sparse"] = sparse._nnz() == 2 and sparse.to_dense().tolist() == [[0, 0, 3], [9, 0, 0]]

    # numbers in place of tensors
    found["number first"] = (2 ** torch.tensor([1.0, 3.0], device=card)).tolist() == [2, 8]
    found["remainder"] = (5 % torch.tensor([3, 4], device=card)).tolist() == [2, 1]
    found["numbers"] = (1 - torch.tensor([3, 4], device=card)).tolist() == [-2, -3]

    # memory: views, storages that grow, copies of bytes
    grown = torch.arange(4.0, device=card)
    grown.untyped_storage().resize_(64)
    found["resize"] = grown.tolist() == [0, 1, 2, 3]
    view = grown[1:3]
    view.mul_(10)
    found["view"] = grown.tolist() == [0, 10, 20, 3]
    bits = grown.view(torch.int32).cpu().view(torch.float32)
    found["bits"] = bits.tolist() == [0, 10, 20, 3]

    # what only a card has
    query = torch.randn(2, 4, 7, 8, device=card, dtype=torch.half, requires_grad=True)
    torch.manual_seed(2)
    functional.scaled_dot_product_attention(query, query, query, dropout_p=0.5).sum().backward()
    on_cpu = query.detach().float().cpu().requires_grad_()
    torch.manual_seed(2)
    functional.scaled_dot_product_attention(on_cpu, on_cpu, on_cpu, dropout_p=0.5).sum().backward()
    found["attention's dropout"] = torch.allclose(query.grad.cpu().float(), on_cpu.grad, atol=0.05)
    layer = torch.nn.LSTM(4, 4, 2, dropout=0.5)
    same = torch.nn.LSTM(4, 4, 2, dropout=0.5).to(card)
    same.load_state_dict(layer.state_dict())
    numbers = torch.randn(5, 2, 4)
    torch.manual_seed(3)
    layer(numbers)[0].pow(2).sum().backward()
    torch.manual_seed(3)
    same(numbers.to(card))[0].pow(2).sum().backward()
    found["an LSTM's dropout"] = torch.allclose(layer.weight_hh_l0.grad, same.weight_hh_l0.grad.cpu(), atol=1e-5)
    same.eval()
    whole = same(numbers.to(card))[0]
    with torch.autocast("cuda", torch.float16):
        half = same(numbers.to(card))[0]
    found["an LSTM in half precision"] = half.dtype == torch.half and torch.allclose(whole, half.float(), atol=0.01)
    for kind in (torch.nn.LSTMCell, torch.nn.GRUCell):
        cell = kind(4, 6)
        twin = kind(4, 6).to(card)
        twin.load_state_dict(cell.state_dict())
        for each, where in ((cell, "cpu"), (twin, card)):
            result = each(numbers[0].to(where))
            (result[0] if kind is torch.nn.LSTMCell else result).pow(2).sum().backward()
        pairs = zip(cell.parameters(), twin.parameters())
        found[kind.__name__] = all(torch.allclose(a.grad, b.grad.cpu(), atol=1e-5) for a, b in pairs)
    scores = torch.randn(6, 2, 5).log_softmax(-1).requires_grad_()
    targets = torch.tensor([[1, 2], [3, 4]], dtype=torch.int32)
    lengths = torch.tensor([6, 6], dtype=torch.int32), torch.tensor([2, 2], dtype=torch.int32)
    there = functional.ctc_loss(scores, targets, *lengths)
    here = functional.ctc_loss(scores.to(card), targets.to(card), *lengths)
    found["ctc"] = torch.allclose(there, here.cpu(), atol=1e-5)
    norm = torch.nn.RMSNorm(8)
    batch = torch.randn(3, 8)
    norm(batch).pow(2).sum().backward()
    there = norm.weight.grad.clone()
    norm.weight.grad = None
    norm.to(card)(batch.to(card)).pow(2).sum().backward()
    found["rms norm"] = torch.allclose(there, norm.weight.grad.cpu(), atol=1e-4)
    try:
        torch.arange(3, device=card)[torch.tensor([5], device=card)]
        found["index"] = "no error"
    except IndexError:
        found["index"] = True

    from ullage.gpu.values import start
    found["failures"] = start.current().evaluation.failures
    tell(found)
"""


def test_the_boxes_that_nms_keeps_are_those_of_the_cpu() -> None:
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    found = answer("""
        import ullage
        ullage.emulate("A100", values="all")
        import torch
        from torchvision.ops import batched_nms, nms
        torch.manual_seed(0)
        corner = torch.rand(200, 2) * 50
        boxes, scores, classes = torch.cat([corner, corner + 10], 1), torch.rand(200), torch.arange(200) % 3
        on_cpu = [nms(boxes, scores, 0.5), batched_nms(boxes, scores, classes, 0.5)]
        boxes, scores, classes = boxes.cuda(), scores.cuda(), classes.cuda()
        on_card = [nms(boxes, scores, 0.5), batched_nms(boxes, scores, classes, 0.5)]
        tell([[each.tolist() for each in found] for found in (on_cpu, on_card)])
    """)
    on_cpu, on_card = found
    assert on_card == on_cpu
    assert 1 < len(on_cpu[0]) < len(on_cpu[1]) < 200


def test_an_operator_on_memory_that_a_kernel_would_have_written_is_no_error() -> None:
    """`topk` of many numbers sorts them by a kernel of its own, and indexes by what it has sorted."""
    found = answer("""
        import ullage
        ullage.emulate("A100", values="all")
        import torch
        torch.cuda.init()
        numbers = torch.rand(3, 1 << 18)
        waste = [torch.full((3, 1 << 18), 1 << 60, device="cuda") for _ in range(8)]  # no index of anything
        del waste
        equal = []
        for count in (1 << 10, 1 << 16, 1 << 17):
            values, places = numbers.cuda().topk(count)
            equal.append(torch.equal(values.cpu(), numbers.topk(count).values))
            equal.append(torch.equal(numbers.gather(1, places.cpu()), values.cpu()))
        try:
            numbers.cuda()[torch.tensor([5]).cuda()]
        except IndexError as error:
            wrong = str(error)
        tell([equal, wrong])
    """)
    equal, wrong = found
    assert equal == [True] * 6
    assert "out of bounds" in wrong
