"""A program that uses the package as people do. It is only type-checked: every name and field has the type it says."""

from pathlib import Path
from typing import assert_type

import torch
from torch import nn

import ullage
from ullage.result_types import Remedy


def emulates() -> None:
    emulation = ullage.emulate("RTX 4090", count=2, context_bytes=500 << 20)
    assert_type(emulation, ullage.Emulation)
    assert_type(emulation.gpu, str)
    assert_type(emulation.count, int)
    assert_type(emulation.total_memory_bytes, int)
    assert_type(emulation.cudnn_workspace_bytes, int | None)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, loader: list[dict[str, torch.Tensor]]) -> None:
    def loss_of(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss: torch.Tensor = model(batch["x"]).mean()
        return loss

    guard = ullage.Guard([model], optimizer, reduction="sum", batchnorm="freeze", clip_grad_norm=1.0, log=print)
    rehearsal = guard.rehearse(loader, loss_of)
    assert_type(rehearsal.parts, int)
    assert_type(rehearsal.peak_reserved_bytes, int | None)
    with ullage.Monitor(device="cuda", min_bytes="64KiB") as monitor:
        for batch in loader:
            assert_type(guard.step(batch, loss_of, update=False), torch.Tensor)
            guard.update()
            monitor.step()
        with guard.phase(), monitor.phase("eval"):
            pass
    assert_type(guard.total_norm, torch.Tensor | None)
    for event in guard.events:
        assert_type(event.step, int)
        assert_type(event.items, int | None)
        assert_type(event.message.requested_bytes, int | None)
    for finding in monitor.findings:
        assert_type(finding.is_leak, bool)
        assert_type(finding.bytes_per_step, int)
        assert_type(finding.lines, tuple[tuple[str, int], ...])
        assert_type(finding.holder, str | None)
    assert_type(monitor.scalars(), dict[str, int])


def looks(model: nn.Module) -> None:
    holdings = ullage.owners("64KiB", device=0)
    assert_type(holdings, ullage.Holdings)
    assert_type(holdings.total_bytes, int)
    assert_type(holdings[0], ullage.Holding)
    assert_type(holdings[:3], tuple[ullage.Holding, ...])
    for holding in holdings:
        assert_type(holding.bytes, int)
        assert_type(holding.path, str)
        assert_type(holding.allocated_at, str | None)
    certificate = ullage.release(model, to="cpu")
    assert_type(certificate, ullage.Certificate)
    assert_type(certificate.after_bytes, int)
    assert_type(certificate.is_empty, bool)
    assert_type(certificate.remaining, ullage.Holdings)


def count(path: Path, *, limit: int) -> list[int]:
    return [len(path.name)][:limit]


def isolates() -> None:
    try:
        assert_type(ullage.isolated(count, Path("a"), limit=3, timeout_seconds=60.0), list[int])
    except ullage.IsolationError as error:
        assert_type(error.exit_code, int)
    ullage.isolated(count, Path("a"), limit=3, report=lambda check: print(check.came_back, check.cards[0].after_bytes))


def batches() -> None:
    sampler = ullage.TokenBudgetBatchSampler([3, 5, 8], max_tokens=16, oversize="alone")
    for batch in sampler:
        assert_type(batch, list[int])
    assert_type(len(sampler), int)
    assert_type(sampler.shapes, list[tuple[int, int]])
    sampler.load_state_dict(sampler.state_dict(consumed=1))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(3)), batch_sampler=sampler)
    assert_type(len(loader), int)


def names_the_parts_of_an_explanation(explanation: ullage.Explanation) -> list[Remedy]:
    return [remedy for remedy in explanation.remedies if remedy.fits]
