"""Constructs whose sizes, ways or numbers follow from values that the host has sent to the card.

Each is run on the host, on a card whose values are known, and on a card that knows none but whose sizes are written
into the code (`Run.number`, `Run.counted`). It returns what has to be the same on all three.
"""

import threading
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.checkpoint import checkpoint

from tests.gpu.values.run import Run, construct

_LENGTHS = (7, 3, 12, 5)

# ---- masks


@construct
def boolean_get(run: Run) -> Any:
    """`x[mask]` of a mask that the host sent, and what follows from it."""
    mask = run.to(torch.arange(4096).reshape(64, 64) % 7 == 0)
    x = run.floats(64, 64)
    picked = run.counted(586, lambda: x[mask])
    return picked.size(), mask, (picked * 2).sum().reshape(1).size()


@construct
def boolean_get_of_rows(run: Run) -> Any:
    """Rows by a mask that was worked out on the card."""
    labels = run.ints(*([0, 1, 2, 3, 255] * 40))
    x = run.floats(200, 16)
    return run.counted(160, lambda: x[labels != 255]).size()


@construct
def boolean_set(run: Run) -> Any:
    """`x[mask] = number` and `x[mask] = values`."""
    mask = run.to(torch.arange(100) % 3 == 0)
    x = torch.zeros(100, device=run.device)
    x[mask] = 5.0
    y = torch.arange(100, device=run.device)

    def write() -> None:
        y[mask] = torch.full((34,), -1, device=run.device)

    run.counted(34, write)
    return x, y


@construct
def nonzero(run: Run) -> Any:
    """`nonzero` as indices and as a tuple."""
    x = run.ints(*([0, 1, 1, 0, 0] * 30)).reshape(30, 5)
    indices = run.counted(60, lambda: x.nonzero())
    rows, columns = run.counted(60, lambda: x.nonzero(as_tuple=True))
    return indices, rows, columns


@construct
def masked_select(run: Run) -> Any:
    """`masked_select` of known numbers."""
    x = run.to(torch.arange(300))
    return run.counted(150, lambda: torch.masked_select(x, x % 2 == 0))


@construct
def where_with_one_argument(run: Run) -> Any:
    """`torch.where(condition)` is `nonzero`."""
    return run.counted(99, lambda: torch.where(torch.arange(100, device=run.device) > 0))


@construct
def argwhere(run: Run) -> Any:
    """`argwhere` of an upper triangle."""
    return run.counted(10, lambda: torch.argwhere(torch.ones(4, 4, device=run.device).triu() > 0))


@construct
def masked_fill_then_any(run: Run) -> Any:
    """A branch on what is left of a mask."""
    mask = run.to(torch.arange(64) < 3).reshape(8, 8)
    left = mask.masked_fill(run.to(torch.arange(8) == 0)[:, None], value=False)
    branches = [
        run.number(expected, lambda each=each: bool(each))
        for each, expected in ((mask.any(), True), (left.any(), False), (left.all(), False), ((~left).all(), True))
    ]
    size = 1000 if branches[0] and not branches[1] else 100_000
    return branches, torch.zeros(size, device=run.device).size()


@construct
def index_put_with_a_mask(run: Run) -> Any:
    """`index_put` with a mask, not in place, and accumulating by known indices."""
    x = run.to(torch.arange(20))
    first = run.counted(10, lambda: x.index_put((x > 9,), run.ints(0)))
    second = x.index_put((run.ints(0, 0, 3),), run.ints(10, 20, 30), accumulate=True)
    return first, second


# ---- sets and counts


@construct
def unique(run: Run) -> Any:
    """`unique` with its inverse and counts."""
    x = run.whole(17, 300)
    alone = run.counted(17, lambda: torch.unique(x))
    values, inverse, counts = run.counted(17, lambda: torch.unique(x, return_inverse=True, return_counts=True))
    return alone, values, inverse, counts


@construct
def unique_with_dim(run: Run) -> Any:
    """Unique rows."""
    x = run.to(torch.tensor([[1, 2], [3, 4], [1, 2], [0, 9]] * 5))
    return run.counted(3, lambda: torch.unique(x, dim=0, return_counts=True))


@construct
def unique_consecutive(run: Run) -> Any:
    """`unique_consecutive` with counts."""
    x = run.ints(1, 1, 2, 2, 2, 1, 5, 5)
    return run.counted(4, lambda: torch.unique_consecutive(x, return_counts=True))


@construct
def bincount(run: Run) -> Any:
    """`bincount` gets its size from the largest number, or from `minlength`."""
    x = run.ints(0, 4, 4, 9, 1)
    return run.counted(9, lambda: torch.bincount(x)), run.counted(9, lambda: torch.bincount(x, minlength=12))


@construct
def histc(run: Run) -> Any:
    """A histogram of known numbers, with and without limits."""
    x = run.to(torch.arange(50).float())
    return torch.histc(x, bins=5, min=0, max=50), torch.histc(x, bins=5)


@construct
def repeat_interleave(run: Run) -> Any:
    """Rows repeated by known counts."""
    repeats = run.ints(*_LENGTHS)
    x = run.floats(4, 8)
    whole = run.counted(27, lambda: torch.repeat_interleave(repeats))
    return whole, run.counted(27, lambda: x.repeat_interleave(repeats, dim=0)).size()


@construct
def one_hot(run: Run) -> Any:
    """`one_hot` asks for the number of classes."""
    labels = run.ints(1, 4, 0)
    return run.counted(4, lambda: F.one_hot(labels)), F.one_hot(labels, 6)


# ---- lengths


@construct
def split_by_lengths(run: Run) -> Any:
    """`torch.split(x, lengths.tolist())`."""
    lengths = run.ints(*_LENGTHS)
    x = run.floats(27, 16)
    sizes = run.number(list(_LENGTHS), lambda: lengths.tolist())
    return [(part * 2).size() for part in torch.split(x, sizes)]


@construct
def largest_as_length(run: Run) -> Any:
    """`lengths.max().item()` as a size."""
    lengths = run.ints(*_LENGTHS)
    longest = run.number(12, lambda: lengths.max().item())
    x = torch.zeros(4, longest, 256, device=run.device)
    mask = torch.arange(longest, device=run.device)[None] < lengths[:, None]
    return x.size(), mask, mask.sum(1)


@construct
def copy_to_host(run: Run) -> Any:
    """`cpu()`, `tolist()`, `numpy()`, `int()` of what was sent."""
    x = run.ints(5, 6, 7)
    back = run.number([5, 6, 7], lambda: x.cpu().tolist())
    more = run.number([5, 6, 7], lambda: x.cpu().numpy().tolist())
    return back, more, run.number(6, lambda: int(x[1])), run.number(18, lambda: x.sum().item())


@construct
def packed_sequence(run: Run) -> Any:
    """`pack_padded_sequence` with lengths from the card, and back."""
    lengths = run.ints(12, 7, 5, 3)
    x = run.floats(4, 12, 8)
    on_host = run.number(torch.tensor([12, 7, 5, 3]), lambda: lengths.cpu())
    packed = pack_padded_sequence(x, on_host, batch_first=True, enforce_sorted=False)
    padded, _ = pad_packed_sequence(packed, batch_first=True)
    return packed.data.size(), packed.batch_sizes, padded.size()


@construct
def padded_sequences(run: Run) -> Any:
    """`pad_sequence` of slices by known lengths."""
    lengths = run.number(list(_LENGTHS), lambda: run.ints(*_LENGTHS).tolist())
    x = run.to(torch.arange(27))
    parts = list(torch.split(x, lengths))
    return pad_sequence(parts, batch_first=True, padding_value=-1)


@construct
def cumulative_lengths(run: Run) -> Any:
    """Cumulative lengths of packed sequences, as for attention of variable length."""
    positions = run.to(torch.cat([torch.arange(each) for each in _LENGTHS]))
    starts = run.counted(4, lambda: (positions == 0).nonzero().flatten())
    ends = torch.cat((starts, run.ints(27))).to(torch.int32)
    longest = run.number(12, lambda: ends.diff().max().item())
    return ends, longest, torch.empty(4, longest, 32, device=run.device).size()


@construct
def packed_positions_are_one_sequence(run: Run) -> Any:
    """Position ids of one sequence: `(positions.diff() == 1).all()` decides whether a mask is made."""
    positions = torch.arange(2048, device=run.device).unsqueeze(0)
    is_one = run.number(True, lambda: bool((torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1) == 1).all()))  # noqa: FBT003
    mask = None if is_one else torch.ones(2048, 2048, dtype=torch.bool, device=run.device)
    return is_one, mask is None


@construct
def attention_mask_of_ones(run: Run) -> Any:
    """`attention_mask.all()` of what the host wrote is what it is, of one element too."""
    ones = torch.ones(2, 64, dtype=torch.int64, device=run.device)
    one = torch.ones(1, 1, dtype=torch.bool, device=run.device)
    none = torch.zeros(1, dtype=torch.bool, device=run.device)
    reads = (ones.bool().all(), one.all(), none.all(), none.any(), (ones == 1).all())
    return [run.number(each, lambda read=read: bool(read)) for read, each in zip(reads, (1, 1, 0, 0, 1), strict=True)]


@construct
def nested_jagged(run: Run) -> Any:
    """A jagged nested tensor of slices of known lengths."""
    parts = [torch.arange(each, device=run.device, dtype=torch.float32)[:, None] for each in _LENGTHS]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged)
    offsets = nested.offsets()
    doubled = nested * 2
    return offsets, doubled.values(), run.number(list(_LENGTHS), lambda: offsets.diff().tolist())


@construct
def nested_jagged_to_padded(run: Run) -> Any:
    """A jagged nested tensor, padded."""
    parts = [torch.ones(each, 4, device=run.device) for each in _LENGTHS]
    nested = torch.nested.as_nested_tensor(parts, layout=torch.jagged)
    padded = run.counted(12, lambda: nested.to_padded_tensor(0.0))
    return padded.size(), nested.size(0)


@construct
def nested_strided(run: Run) -> Any:
    """A strided nested tensor: its sizes are on the host."""
    parts = [torch.ones(each, 4, device=run.device) for each in _LENGTHS]
    nested = torch.nested.nested_tensor(parts)
    padded = torch.nested.to_padded_tensor(nested, 0.0)
    return [each.size() for each in (nested + nested).unbind()], padded.size()


# ---- sparse


@construct
def sparse_coalesce(run: Run) -> Any:
    """`coalesce` counts different indices."""
    indices = run.to(torch.tensor([[0, 1, 1, 0], [2, 0, 0, 2]]))
    sparse = torch.sparse_coo_tensor(indices, run.floats(4), (3, 3))
    whole = run.counted(2, lambda: sparse.coalesce())
    return whole.indices(), whole.values().size()


@construct
def to_sparse(run: Run) -> Any:
    """`to_sparse` of known numbers."""
    x = torch.eye(5, device=run.device)
    sparse = run.counted(5, lambda: x.to_sparse())
    return sparse.indices(), sparse.values()


@construct
def sparse_rows(run: Run) -> Any:
    """`to_sparse_csr` of known numbers."""
    x = torch.eye(5, device=run.device)
    rows = run.counted(5, lambda: x.to_sparse_csr())
    return rows.crow_indices(), rows.col_indices()


def _bands(run: Run) -> tuple[Any, Any]:
    """Two sparse matrices of known places."""
    indices = torch.tensor([[0, 1, 1, 2, 4], [1, 0, 3, 2, 0]])
    first = torch.sparse_coo_tensor(run.to(indices), run.floats(5), (5, 5)).coalesce()
    second = torch.sparse_coo_tensor(run.to(indices.flip(0)), run.floats(5), (5, 5)).coalesce()
    return first, second


@construct
def sparse_product(run: Run) -> Any:
    """A product of two sparse matrices, and rows of it: where their elements are says how many they have."""
    first, second = run.counted(5, lambda: _bands(run))
    product = run.counted(6, lambda: torch.sparse.mm(first, second)).detach()
    rows = run.counted(4, lambda: product.index_select(0, run.to(torch.tensor([1, 4]))))
    whole = run.counted(4, lambda: rows.coalesce())
    return product._nnz(), whole.indices()


@construct
def sparse_rows_product(run: Run) -> Any:
    """A product and a sum of two matrices by rows."""
    first, second = run.counted(5, lambda: _bands(run))
    first, second = first.to_sparse_csr(), second.to_sparse_csr()
    product = run.counted(6, lambda: first @ second)
    total = run.counted(7, lambda: first + second)
    turned = run.counted(5, lambda: first.t().to_sparse_csr())
    run.counted(3, lambda: turned @ second)
    return (
        turned.crow_indices().long(),
        turned.col_indices().long(),
        product.crow_indices().long(),
        product.col_indices().long(),
        total.col_indices().long(),
    )


# ---- vision


@construct
def nms(run: Run) -> Any:
    """Suppression of known boxes."""
    import torchvision

    boxes = run.to(torch.tensor([[0.0, 0, 10, 10], [1, 1, 11, 11], [20, 20, 30, 30], [0, 0, 9, 10]]))
    scores = run.to(torch.tensor([0.9, 0.8, 0.7, 0.95]))
    return run.counted(2, lambda: torchvision.ops.nms(boxes, scores, 0.5))


@construct
def batched_nms(run: Run) -> Any:
    """Suppression within classes."""
    import torchvision

    boxes = run.to(torch.tensor([[0.0, 0, 10, 10], [1, 1, 11, 11], [20, 20, 30, 30], [0, 0, 9, 10]]))
    scores = run.to(torch.tensor([0.9, 0.8, 0.7, 0.95]))
    classes = run.ints(0, 1, 0, 0)
    return run.counted(3, lambda: torchvision.ops.batched_nms(boxes, scores, classes, 0.5))


# ---- by known indices


@construct
def scatter(run: Run) -> Any:
    """`scatter`, `scatter_add`, `index_add`, `index_copy` and `gather` by known indices."""
    index = run.ints(0, 2, 2, 1)
    x = run.ints(1, 2, 3, 4)
    zeros = torch.zeros(4, dtype=torch.int64, device=run.device)
    return (
        zeros.scatter(0, index, x),
        zeros.scatter_add(0, index, x),
        zeros.index_add(0, index, x),
        zeros.clone().index_copy_(0, run.ints(3, 1, 0, 2), x),
        x.gather(0, index),
        x.index_select(0, index),
        x.take(index),
        zeros.scatter_reduce(0, index, x, "amax"),
    )


@construct
def tokens_of_experts(run: Run) -> Any:
    """One-hot routing: tokens of each expert by a known choice."""
    chosen = run.to((torch.arange(64) * 7) % 5)
    x = run.floats(64, 32)
    mask = F.one_hot(chosen, 5).permute(1, 0)
    sizes = []
    for expert, count in enumerate((13, 13, 13, 12, 13)):
        (rows,) = run.counted(count, lambda expert=expert: torch.where(mask[expert]))
        sizes.append((x[rows] * 2).size())
    return sizes, mask.sum(1)


@construct
def tokens_sorted_by_experts(run: Run) -> Any:
    """Routing by `argsort` and `bincount`, split by the counts."""
    chosen = run.to((torch.arange(64) * 7) % 5)
    x = run.floats(64, 32)
    order = chosen.argsort(stable=True)
    counts = run.number([13, 13, 13, 12, 13], lambda: torch.bincount(chosen, minlength=5).tolist())
    return order, counts, [(part + 1).size() for part in x[order].split(counts)]


@construct
def embedding_bag(run: Run) -> Any:
    """Bags by known offsets."""
    weight = run.floats(50, 8)
    result = F.embedding_bag(run.whole(50, 20), weight, run.ints(0, 4, 11))
    return result.size(), F.embedding(run.ints(1, 2), weight)


@construct
def search_and_sort(run: Run) -> Any:
    """`searchsorted`, `bucketize`, `argsort`, `sort`, `topk`, `kthvalue` of known numbers."""
    x = run.ints(9, 4, 7, 1, 12)
    ordered, order = x.sort()
    return (
        torch.searchsorted(ordered, run.ints(5, 10)),
        torch.bucketize(run.ints(3, 8), ordered),
        x.argsort(descending=True),
        x.topk(2),
        order,
        x.kthvalue(2).values,
        x.max(0),
        x.argmax(),
        x.cummax(0).values,
        torch.isin(x, run.ints(4, 12)),
    )


@construct
def differences(run: Run) -> Any:
    """`diff`, `flip`, `roll`, `cumsum`, `prod`, `remainder`, shifts of known whole numbers."""
    x = run.ints(9, 4, 7, 1, 12)
    return x.diff(), x.flip(0), x.roll(2), x.cumsum(0), x.prod(), x % 4, x << 1, x // 2, -x, x.clamp(3, 8), x**2


# ---- equality


@construct
def equal(run: Run) -> Any:
    """`torch.equal` and `allclose` of known numbers."""
    x = run.ints(1, 2, 3)
    y = run.floats(100)
    return [
        run.number(True, lambda: torch.equal(x, x.clone())),  # noqa: FBT003
        run.number(False, lambda: torch.equal(x, x + 1)),  # noqa: FBT003
        run.number(True, lambda: torch.allclose(y, y.clone())),  # noqa: FBT003
        run.number(False, lambda: torch.allclose(y, y + 1)),  # noqa: FBT003
        run.number(True, lambda: bool((x == x.clone()).all())),  # noqa: FBT003
    ]


# ---- writes through views, types


@construct
def writes_through_views(run: Run) -> Any:
    """Slices, transposed and diagonal views, and their bases."""
    x = torch.zeros(6, 4, dtype=torch.int64, device=run.device)
    x[2:5] = 1
    x.t()[0] = 2
    x.diagonal().add_(10)
    x[:, 3] = run.ints(1, 2, 3, 4, 5, 6)
    x.view(-1)[20:].mul_(-1)
    x[0, 0] += 5
    x.select(0, 5).fill_(7)
    x.as_strided((3,), (8,)).sub_(1)
    return x, x.sum(1)


@construct
def views_of_other_types(run: Run) -> Any:
    """Views of another type share the bytes."""
    x = torch.zeros(4, dtype=torch.int32, device=run.device)
    x.view(torch.uint8)[0] = 255
    x.view(torch.int16)[2:4] = -1
    y = run.to(torch.tensor([1.0, 2.0])).view(torch.int32)
    z = torch.view_as_real(torch.ones(2, dtype=torch.complex64, device=run.device))
    return x, y, z


@construct
def small_types(run: Run) -> Any:
    """uint8, int8, int16, int32, bool, bf16, half."""
    x = run.to(torch.arange(10))
    return [
        (x.to(dtype) + x.to(dtype)).sum()
        for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.bfloat16, torch.half, torch.double)
    ] + [x.bool().sum(), x.to(torch.bfloat16)]


@construct
def made_on_the_device(run: Run) -> Any:
    """Tensors that are made on the device from numbers."""
    device = run.device
    return (
        torch.arange(3, 30, 4, device=device),
        torch.full((2, 2), 7, device=device),
        torch.zeros(3, device=device),
        torch.ones(3, device=device).cumsum(0),
        torch.eye(3, device=device),
        torch.ones(3, 3, device=device).tril(),
        torch.linspace(0, 1, 5, device=device),
        torch.tril_indices(3, 3, device=device),
        torch.full_like(torch.empty(2, device=device), 3),
        torch.zeros_like(torch.empty(2, device=device)),
        torch.empty(2, device=device).new_tensor([1, 2]),
        torch.empty(3, device=device).fill_(2),
        torch.scalar_tensor(4, device=device),
        torch.cartesian_prod(torch.arange(2, device=device), torch.arange(2, device=device)),
        torch.meshgrid(torch.arange(2, device=device), torch.arange(3, device=device), indexing="ij"),
        torch.stack([torch.arange(2, device=device)] * 2),
        torch.complex(torch.ones(2, device=device), torch.zeros(2, device=device)).real,
    )


@construct
def permutation_of_the_host(run: Run) -> Any:
    """A permutation drawn on the host is known on the card."""
    order = run.to(torch.randperm(20, generator=torch.Generator().manual_seed(1)))
    x = torch.arange(20, device=run.device)[order]
    first = run.number(2, lambda: (x < 2).sum().item())
    return x, torch.zeros(first, device=run.device)


@construct
def pinned_copies(run: Run) -> Any:
    """`copy_` without waiting, from pinned memory that is written again at once."""
    source = torch.arange(40)
    if run.device == "cuda":
        source = source.pin_memory()
    x = torch.empty(40, dtype=torch.int64, device=run.device).copy_(source, non_blocking=True)
    y = source.to(run.device, non_blocking=True, copy=True)
    source.zero_()
    return x.sum(), y


@construct
def numbers_written_one_by_one(run: Run) -> Any:
    """`x[i] = number` in a loop, as collators do."""
    x = torch.full((8, 5), -100, dtype=torch.int64, device=run.device)
    for row in range(8):
        x[row, : row % 5] = row
    return x, run.counted(14, lambda: (x != -100).nonzero()).size()


# ---- where reads happen


class _Reader(torch.autograd.Function):
    """Reads a length in the backward pass, which autograd's own thread runs."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, lengths: torch.Tensor, run: Run) -> torch.Tensor:
        context.save_for_backward(lengths)
        context.run = run
        return x * 2

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        (lengths,) = context.saved_tensors
        longest = context.run.number(12, lambda: lengths.max().item())
        extra = torch.ones(longest, 64, device=gradients[0].device)
        return gradients[0] + extra.size(0), None, None


@construct
def read_in_backward(run: Run) -> Any:
    """A read in autograd's thread."""
    x = torch.ones(4, device=run.device, requires_grad=True)
    _Reader.apply(x, run.ints(*_LENGTHS), run).sum().backward()
    return x.grad


@construct
def boolean_get_with_gradient(run: Run) -> Any:
    """The gradient of rows that a mask has chosen is written by their indices."""
    x = torch.ones(8, device=run.device, requires_grad=True)
    mask = run.to(torch.arange(8) % 2 == 0)
    rows = run.counted(4, lambda: mask.nonzero().flatten())
    x[rows].sum().backward()
    return x.grad


@construct
def read_in_a_thread(run: Run) -> Any:
    """A read in another thread of Python's."""
    x = run.ints(*_LENGTHS)
    found: list[Any] = []

    def work() -> None:
        longest = run.number(12, lambda: x.max().item())
        found.append(torch.zeros(longest, device=run.device).size(0))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return found


@construct
def without_gradients(run: Run) -> Any:
    """`no_grad` and `inference_mode`."""
    with torch.no_grad():
        first = run.number(27, lambda: run.ints(*_LENGTHS).sum().item())
    with torch.inference_mode():
        x = run.ints(*_LENGTHS)
        x[1:3] += 1
        second = run.number(29, lambda: x.sum().item())
        picked = run.counted(2, lambda: x[x > 6])
    return first, second, picked.clone()


@construct
def vmap_of_known_numbers(run: Run) -> Any:
    """`torch.func.vmap` over known whole numbers."""
    x = run.to(torch.arange(12).reshape(3, 4))
    return torch.func.vmap(lambda row: row.cumsum(0) * 2)(x), torch.func.vmap(torch.sum)(x)


@construct
def within_checkpoint(run: Run) -> Any:
    """A length that is read in a part that is run twice."""
    lengths = run.ints(*_LENGTHS)
    x = torch.ones(4, 3, device=run.device, requires_grad=True)

    def part(given: torch.Tensor) -> torch.Tensor:
        longest = run.number(12, lambda: lengths.max().item())
        return given[:, None].expand(4, longest, 3).contiguous() * 2

    checkpoint(part, x, use_reentrant=False).sum().backward()
    return x.grad


@construct
def within_autocast(run: Run) -> Any:
    """Reads under autocast."""
    with torch.autocast(run.device, dtype=torch.bfloat16):
        lengths = run.ints(*_LENGTHS)
        longest = run.number(12, lambda: lengths.max().item())
        mask = lengths > 6
        picked = run.counted(2, lambda: run.floats(4, 8)[mask])
    return longest, picked.size()


@construct
def loop_until_done(run: Run) -> Any:
    """`while not done.all()` over counters that the card keeps."""
    left = run.ints(3, 1, 4)
    steps = 0
    for expected in (False, False, False, False, True):
        done = (left <= 0).all()
        if run.number(expected, lambda done=done: bool(done)):
            break
        left -= 1
        steps += 1
    return steps, left


@construct
def grid_of_images(run: Run) -> Any:
    """Cumulative sizes of images, as vision language models have them."""
    grid = run.to(torch.tensor([[1, 4, 6], [2, 2, 2]]))
    lengths = torch.repeat_interleave
    frames = run.counted(3, lambda: lengths(grid[:, 1] * grid[:, 2], grid[:, 0]))
    ends = F.pad(frames.cumsum(0, dtype=torch.int32), (1, 0), value=0)
    total = run.number(32, lambda: grid.prod(-1).sum().item())
    return ends, torch.zeros(total, 8, device=run.device).size()


@construct
def numbers_on_either_side(run: Run) -> Any:
    """Numbers in place of tensors, which PyTorch wraps."""
    x = run.ints(1, 2, 3, 4)
    y = x.float()
    return (
        *(7 % x, x % 3, 2**x, x**2, 7 // x, x // 2, 1 << x, 7 & x, 7 - x, 6 / y, torch.fmod(x, 3), 2.0**y),
        *(torch.where(x > 2, x, 0), torch.where(x > 2, 1.5, y), torch.xlogy(2.0, y)),
        *(torch.isin(3, x), torch.isin(x, 3)),
        *(torch.bucketize(2, x), torch.float_power(2, x), torch.lerp(y, y + 1, 0.5), 1.0 / (10000 ** (y / 4))),
    )
