"""Compute operators on sparse tensors on the host, to learn how many elements the result has."""

from collections.abc import Sequence
from typing import Any, Final

import torch

from ullage.gpu.values.evaluation import on_the_host
from ullage.gpu.values.operator_plan import MULTIPLICATIONS, NARROW

BY_ROWS: Final = (torch.sparse_csr, torch.sparse_bsr)
BY_COLUMNS: Final = (torch.sparse_csc, torch.sparse_bsc)
COUNTED_BY_LIBRARY: Final = frozenset(("aten::mm", "aten::_sparse_sparse_matmul", "aten::add"))
"""Operators that combine sparse tensors. The indices of the arguments determine the size of the result."""
COUNTED_OF_SPARSE: Final = COUNTED_BY_LIBRARY | {"aten::_coalesce", "aten::index_select"}
"""Operators with a sparse result whose number of elements depends on values."""
CONVERSIONS: Final = tuple(f"aten::_to_sparse_{layout}" for layout in ("csr", "csc", "bsr", "bsc"))


def is_counted(name: str, arguments: Sequence[Any]) -> bool:
    """Return whether the number of elements of a result depends on the indices of sparse arguments."""
    first = arguments[0]
    if name not in COUNTED_OF_SPARSE or first.layout == torch.strided:
        return False
    if name == "aten::index_select":
        return bool(first.layout == torch.sparse_coo) and arguments[1] < first.sparse_dim()
    if name == "aten::add" and first.layout == torch.sparse_coo:  # as many as both arguments have together
        return False
    return name == "aten::_coalesce" or getattr(arguments[1], "layout", torch.strided) != torch.strided


def parts_of(sparse: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the index and value tensors of a sparse tensor, values last.

    The result is empty for an unknown layout.
    """
    if sparse.layout == torch.sparse_coo:
        return sparse._indices(), sparse._values()
    if sparse.layout in BY_ROWS:
        return sparse.crow_indices(), sparse.col_indices(), sparse.values()
    if sparse.layout in BY_COLUMNS:
        return sparse.ccol_indices(), sparse.row_indices(), sparse.values()
    return ()


def made_of(parts: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """Create a sparse tensor with the layout and size of `like` from index and value tensors.

    Raises:
        RuntimeError: the index tensors are not valid for this layout, for example because their values are unknown.
    """
    *places, numbers = parts
    _check(places, numbers, like)
    whole: torch.Tensor
    if like.layout == torch.sparse_coo:
        whole = torch.sparse_coo_tensor(
            places[0], numbers, like.size(), check_invariants=False, is_coalesced=like.is_coalesced()
        )
    else:
        whole = torch.sparse_compressed_tensor(
            places[0], places[1], numbers, size=like.size(), layout=like.layout, check_invariants=False
        )
    return whole


# CPU operators would read beyond the end of the values. PyTorch's own check is stricter than its operators: it rejects
# duplicate elements.
def _check(places: Sequence[torch.Tensor], numbers: torch.Tensor, like: torch.Tensor) -> None:
    if not len(numbers):
        return
    if like.layout == torch.sparse_coo:
        bounds = [(row, like.size(dimension)) for dimension, row in enumerate(places[0])]
    else:
        starts, inner = places
        if starts.dim() > 1 or int(starts[0]) or int(starts[-1]) != len(numbers) or bool((starts.diff() < 0).any()):
            raise RuntimeError("the row offsets of a sparse tensor are invalid")
        blocks = numbers.shape[1:] if like.layout in (torch.sparse_bsr, torch.sparse_bsc) else (1, 1)
        across = 1 if like.layout in BY_ROWS else 0
        bounds = [(inner, like.size(across) // blocks[across])]
    if any(int(row.min()) < 0 or int(row.max()) >= size for row, size in bounds):
        raise RuntimeError("the indices of a sparse tensor are out of range")


def computed(name: str, arguments: Sequence[Any]) -> torch.Tensor:
    """Compute one of the operators `COUNTED_OF_SPARSE` on host tensors.

    Products of compressed tensors are computed on coordinates, because the CPU needs a library for compressed layouts.

    Raises:
        RuntimeError, NotImplementedError: the host cannot compute it, or would take too long.
    """
    with on_the_host():
        first = _wide(arguments[0])
        if name == "aten::_coalesce":
            return first.coalesce()
        if name == "aten::index_select":
            selected: torch.Tensor = torch.index_select(first, arguments[1], arguments[2])
            return selected
        second = _wide(arguments[1])
        if name == "aten::add":
            made = (_coordinates(first) + _coordinates(second)).coalesce()
        else:
            if first._nnz() * second._nnz() > MULTIPLICATIONS * max(second.size(0), 1):
                raise RuntimeError(
                    f"a sparse product of {first._nnz()} and {second._nnz()} elements would take too long"
                )
            made = torch.sparse.mm(_coordinates(first), _coordinates(second)).coalesce()
        found: torch.Tensor = made.to_sparse_csr() if first.layout != torch.sparse_coo else made
    return found


def _coordinates(sparse: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = sparse.to_sparse_coo().coalesce()
    return found


def _wide(sparse: torch.Tensor) -> torch.Tensor:
    if sparse.dtype not in NARROW:
        return sparse
    *places, numbers = parts_of(sparse)
    return made_of((*places, numbers.float()), sparse)
