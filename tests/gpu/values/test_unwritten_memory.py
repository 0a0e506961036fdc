"""Memory of `torch.empty` that a script writes in part: what does not depend on the rest is known, and nothing else."""

import ast
from pathlib import Path
from typing import Any

import pytest

from tests.shared.fresh import answer

_START = """
    import ullage
    ullage.emulate("A100")
    import torch
    from ullage.gpu.values.start import current
    counts = current().reads.counts
    def certainty(read):
        counts.clear()
        value = read()
        return [value, max(each.certainty for each in counts).name]
    places = torch.tensor([7, 1, 4, 8]).cuda()
    numbers = torch.tensor([3, 1, 2, 0]).cuda()
    mask = torch.tensor([True, False] * 5).cuda()
    def table(dtype=torch.long):
        return torch.empty(10, dtype=dtype, device="cuda")
    t = table()
"""
WRITES = {
    "index": ("t[places] = numbers", "t[places].tolist()", [3, 1, 2, 0]),
    "index_put": ("t.index_put_((places,), numbers)", "t[places].tolist()", [3, 1, 2, 0]),
    "put": ("t.put_(places, numbers)", "t.take(places).tolist()", [3, 1, 2, 0]),
    "scatter": ("t.scatter_(0, places, numbers)", "t.gather(0, places).tolist()", [3, 1, 2, 0]),
    "index_copy": ("t.index_copy_(0, places, numbers)", "t[places].tolist()", [3, 1, 2, 0]),
    "index_fill": ("t.index_fill_(0, places, 5)", "t[places].sum().item()", 20),
    "mask": ("t[mask] = 7", "t[mask].sum().item()", 35),
    "masked_fill": ("t.masked_fill_(mask, 7)", "torch.where(mask, t, 0).sum().item()", 35),
    "masked_scatter": ("t.masked_scatter_(mask, torch.arange(5).cuda())", "t[mask].max().item()", 4),
    "slice": ("t[:4] = numbers", "t[:4].tolist()", [3, 1, 2, 0]),
    "slice and more": ("t[2:4] = 1; t[:2] = 2; t[4:].fill_(3)", "t.sum().item()", 24),
    "out": ("torch.cumsum(numbers, 0, out=t[:4])", "t[3].item()", 6),
    "copy": ("t[::2].copy_(torch.arange(5))", "t[4].item()", 2),
    "clone": ("t[places] = numbers; t = t.clone() + 1", "t[places].tolist()", [4, 2, 3, 1]),
    "bool": ("t = table(torch.bool); t[places] = True; t.logical_not_()", "t[places].any().item()", False),
    "foreach": ("t.zero_(); torch._foreach_add_([t, t.clone()], 2)", "t.sum().item()", 20),
    "foreach of two types": ("t.zero_(); torch._foreach_add_([t, torch.ones(3).cuda()], 2)", "t.sum().item()", 20),
}
READS_THE_REST = {
    "nothing written": ("pass", "t[3].item()"),
    "sum": ("t[places] = numbers", "t.sum().item()"),
    "largest": ("t[places] = numbers", "t.max().item()"),
    "another place": ("t.put_(places, numbers)", "t[0].item()"),
    "beyond a slice": ("t[:4] = numbers", "t[6].item()"),
    "in place": ("t.add_(1)", "t[0].item()"),
    "bool": ("t = table(torch.bool); t[:4] = True; t.logical_not_()", "t[6].item()"),
    "count": ("t[places] = numbers", "len(t.nonzero())"),
    "equal": ("t[places] = numbers", "torch.equal(t, t + 0 * t)"),
}


def run(write: str, read: str) -> list[Any]:
    """Run a write and a read; the value, and how certain it is."""
    found: list[Any] = answer(f"{_START}\n    {write}\n    tell(certainty(lambda: {read}))")
    return found


@pytest.mark.parametrize("name", WRITES)
def test_what_was_written_is_known(name: str) -> None:
    write, read, expected = WRITES[name]
    assert run(write, read) == [expected, "KNOWN"]


@pytest.mark.parametrize("name", READS_THE_REST)
def test_what_depends_on_the_rest_is_unknown(name: str) -> None:
    if name != "equal":  # equal whatever the memory holds
        assert run(*READS_THE_REST[name])[1] == "UNKNOWN"
    else:
        assert run(*READS_THE_REST[name]) == [True, "KNOWN"]


@pytest.mark.parametrize(
    "default",
    [
        "torch.set_default_tensor_type('torch.cuda.FloatTensor')",
        "torch.set_default_tensor_type('torch.cuda.DoubleTensor')",
        "torch.set_default_tensor_type('torch.DoubleTensor')",
        "torch.set_default_device('cuda')",
        "torch.set_default_dtype(torch.float64)",
    ],
)
def test_defaults_of_the_script_do_not_reach_the_computation(default: str) -> None:
    """Values that are known without them are known with them, and random ones are random."""
    found = answer(f"""
        import warnings
        warnings.simplefilter("ignore")
        import ullage
        ullage.emulate("A100")
        import torch
        from ullage.gpu.values.start import current
        {default}
        mask = torch.tensor([True, False, True], device="cuda")
        large = torch.ones(3000, 3000, device="cuda")
        product = large @ large
        answers = [
            len(torch.arange(3, device="cuda")[mask]),
            (torch.full((3,), 0.5, device="cuda") * 2).sum().item(),
            torch.isnan(product).any().item(),
            product.softmax(0).topk(2).indices.max().item() < 3000,
        ]
        tell([answers, sorted({{each.certainty.name for each in current().reads.counts}}), current().failures])
    """)
    assert found == [[2, 3.0, False, True], ["ASSUMED", "DRAWN", "KNOWN"], {}]


def test_random_numbers_whose_mask_is_too_large_are_random_and_finite() -> None:
    """What a library keeps for the backward pass, and places of a pooling layer, make gradients no less certain."""
    found = answer("""
        import ullage
        ullage.emulate("A100")
        import torch
        from ullage.gpu.values.start import current
        norm = torch.nn.BatchNorm2d(64).cuda()
        first = torch.randn(8, 64, 512, 512, device="cuda", requires_grad=True)
        torch.nn.functional.max_pool2d(norm(first).relu(), 2).square().mean().backward()
        for gradient in (norm.weight.grad, norm.bias.grad):
            assert not (torch.isinf(gradient) | torch.isnan(gradient)).any()
        norm.weight.grad.norm().item()
        tell([[str(each.kind), each.certainty.name] for each in current().reads.counts])
    """)
    assert found == [["branch", "ASSUMED"], ["float", "DRAWN"]]


def test_the_engine_names_the_device_of_each_tensor_that_it_makes() -> None:
    """Otherwise a default of the script would move it to the GPU."""
    folder = Path(__file__).resolve().parents[3] / "src" / "ullage" / "gpu" / "values"
    makes = {"arange", "empty", "empty_strided", "eye", "full", "linspace", "ones", "rand", "randn", "scalar_tensor"}
    makes |= {"tensor", "zeros"}
    without = [
        f"{file.name}:{call.lineno}"
        for file in sorted(folder.glob("*.py"))
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id == "torch"
        and call.func.attr in makes
        and all(each.arg != "device" for each in call.keywords)
    ]
    assert without == []
