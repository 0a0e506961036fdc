"""Constructs beside those of `constructs`, each run on the CPU and on the card."""

import json
import math
import traceback
from collections.abc import Callable
from typing import Any, Final

import ullage

ullage.emulate("A100")

import torch  # noqa: E402  the card has to be there before
from torch.nn import functional as F  # noqa: E402  the card has to be there before

from ullage.gpu.values.start import current  # noqa: E402  torch has to be there before

Unusual = Callable[[Any], Any]
UNUSUAL: Final[dict[str, Unusual]] = {}
LENGTHS: Final = (3, 1, 4, 2)


def unusual(function: Unusual) -> Unusual:
    """Register a construct, which gets what sends tensors to its device, and returns sizes."""
    UNUSUAL[function.__name__] = function
    return function


def _numbers(send: Any, count: int = 24) -> Any:
    return send(torch.sin(torch.arange(count, dtype=torch.float32) * 3.7))


@unusual
def histogram(send: Any) -> Any:
    """The filled bins of `histc` say how many rows there are."""
    filled = torch.histc(_numbers(send), bins=8, min=-1, max=1)
    return [torch.zeros(int(each), 3).size() for each in filled.tolist()], (filled > 2).nonzero().size()


@unusual
def searched_bounds(send: Any) -> Any:
    """`searchsorted` says where a sorted tensor is cut."""
    ordered = _numbers(send).sort().values
    cuts = torch.searchsorted(ordered, send(torch.tensor([-0.5, 0.0, 0.5])))
    return [part.size() for part in ordered.tensor_split(cuts.cpu())]


@unusual
def tensor_split_by_sections(send: Any) -> Any:
    """`tensor_split` by what a cumulative sum holds."""
    ends = send(torch.tensor(LENGTHS)).cumsum(0)
    return [part.size() for part in _numbers(send, 10).tensor_split(ends[:-1].cpu())]


@unusual
def jagged(send: Any) -> Any:
    """A nested tensor of the jagged layout, made of offsets on the card."""
    offsets = send(torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0).tolist()]))
    nested = torch.nested.nested_tensor_from_jagged(_numbers(send, 20).view(10, 2), offsets)
    return [part.size() for part in nested.unbind()], torch.nested.to_padded_tensor(nested, 0.0).size()


@unusual
def segments(send: Any) -> Any:
    """`segment_reduce` over lengths, and as many rows as segments are long on the mean."""
    found = torch.segment_reduce(_numbers(send, 10).abs(), "sum", lengths=send(torch.tensor(LENGTHS)))
    return found.size(), torch.zeros(math.ceil(float(found.max())), 2).size()


@unusual
def where_alone(send: Any) -> Any:
    """`torch.where` with one argument."""
    rows, columns = torch.where(_numbers(send).view(4, 6) > 0.2)
    return rows.size(), columns.unique().size()


@unusual
def padded_sequences(send: Any) -> Any:
    """Rows chosen by a mask, padded to the longest, and packed by their lengths."""
    mask = _numbers(send).view(4, 6) > 0
    rows = [row[chosen] for row, chosen in zip(_numbers(send).view(4, 6), mask, strict=True)]
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    packed = torch.nn.utils.rnn.pack_padded_sequence(padded, mask.sum(1).cpu(), batch_first=True, enforce_sorted=False)
    return padded.size(), packed.data.size(), packed.batch_sizes.tolist()


@unusual
def sure_choice(send: Any) -> Any:
    """A distribution that leaves no choice: what is sampled is known on the CPU, and drawn on the card."""
    chances = F.one_hot(send(torch.tensor([0, 2, 2, 1, 0])), 4).float()
    drawn = torch.distributions.Categorical(probs=chances).sample()
    return drawn.unique().size()


@unusual
def near_pairs(send: Any) -> Any:
    """`cdist`, the nearest by `topk`, and those that are near enough."""
    points = _numbers(send).view(12, 2)
    near = torch.cdist(points, points).topk(3, largest=False)
    return (near.values < 0.5).nonzero().size(), near.indices.unique().size()


@unusual
def halved_until_small(send: Any) -> Any:
    """A loop that goes on while a number says so, with a shape that shrinks."""
    x, rounds = _numbers(send, 64).abs(), 0
    while x.sum().item() > 1.0 and len(x) > 1:
        x, rounds = x[x > x.median()], rounds + 1
    return rounds, x.size()


@unusual
def conditional(send: Any) -> Any:
    """`torch.cond` by what a tensor holds."""
    x = _numbers(send)
    found = torch.cond(x.sum() > 100, lambda y: y.repeat(3), lambda y: y.repeat(1), (x,))
    return found.size()


@unusual
def mask_by_numpy(send: Any) -> Any:
    """A mask that goes to NumPy and comes back as indices."""
    mask = (_numbers(send) > 0.1).cpu().numpy()
    return send(torch.from_numpy(mask.nonzero()[0])).size(), int(mask.sum())


@unusual
def by_length(send: Any) -> Any:
    """Rows in the order of their lengths, cut to each group's longest."""
    lengths = send(torch.tensor(LENGTHS))
    order = lengths.argsort(descending=True)
    rows = _numbers(send).view(4, 6).index_select(0, order)
    longest = lengths[order].view(2, 2).amax(1).tolist()
    return [part[:, :most].size() for part, most in zip(rows.chunk(2), longest, strict=True)]


@unusual
def places_in_groups(send: Any) -> Any:
    """A mask times its cumulative sum: the place of each in its group, and the size of the fullest."""
    mask = (_numbers(send) > 0).view(4, 6)
    places = (mask * mask.cumsum(1)).amax()
    return torch.zeros(int(places), 2).size()


@unusual
def counted_bins(send: Any) -> Any:
    """`bincount` with a least length, and weights."""
    values = (_numbers(send) * 4).abs().long()
    counts = torch.bincount(values, minlength=3)
    weighed = torch.bincount(values, weights=_numbers(send).abs())
    return counts.size(), weighed.size(), counts.nonzero().size()


@unusual
def viewed_by_a_maximum(send: Any) -> Any:
    """A view whose last dimension a value says."""
    most = send(torch.tensor(LENGTHS)).max()
    return _numbers(send).view(-1, int(most)).size(), _numbers(send)[: most * 2].size()


@unusual
def read_from_its_text(send: Any) -> Any:
    """A number that is printed, and read from the text."""
    text = str(send(torch.tensor(LENGTHS)).sum())
    return torch.zeros(int(text.partition("(")[2].partition(",")[0].rstrip(")"))).size()


@unusual
def tensors_as_numbers(send: Any) -> Any:
    """`__index__`, `range`, `len`, a slice's end and a list's repetition."""
    lengths = send(torch.tensor(LENGTHS))
    return len(list(range(lengths[0]))), len([0] * lengths[2]), _numbers(send)[lengths[1] : lengths[2]].size()


@unusual
def one_hot_without_classes(send: Any) -> Any:
    """`one_hot` that looks for the largest class itself."""
    return F.one_hot(send(torch.tensor([1, 4, 2]))).size()


@unusual
def combinations(send: Any) -> Any:
    """Pairs of what a mask leaves."""
    x = _numbers(send)
    return torch.combinations(x[x > 0.5]).size()


@unusual
def rows_of_a_sparse_matrix(send: Any) -> Any:
    """A matrix by rows and by columns, and how many elements its fullest row has."""
    x = F.relu(_numbers(send).view(4, 6))
    rows, columns = x.to_sparse_csr(), x.t().to_sparse_csc()
    return rows._nnz(), torch.zeros(int(rows.crow_indices().diff().max())).size(), columns.row_indices().size()


@unusual
def windows(send: Any) -> Any:
    """`unfold`, and the windows whose mean is above the whole's."""
    parts = _numbers(send).unfold(0, 6, 2)
    return parts[parts.mean(1) > _numbers(send).mean()].size()


@unusual
def scattered_counts(send: Any) -> Any:
    """Counts by `scatter_add`, and one row for each."""
    owners = (_numbers(send) * 3).abs().long()
    counts = torch.zeros(4, dtype=torch.long, device=owners.device).scatter_add(0, owners, torch.ones_like(owners))
    return [torch.zeros(each, 2).size() for each in counts.tolist()], counts.repeat_interleave(counts).size()


@unusual
def run_lengths(send: Any) -> Any:
    """Runs of equal numbers, by differences and by `unique_consecutive`."""
    x = (_numbers(send) > 0).long()
    starts = F.pad(x.diff() != 0, (1, 0), value=True).nonzero()[:, 0]
    _, counts = x.unique_consecutive(return_counts=True)
    return starts.size(), counts.size(), torch.zeros(int(counts.max())).size()


@unusual
def quantile_cut(send: Any) -> Any:
    """What lies above a quantile, and the k-th value."""
    x = _numbers(send)
    return x[x > x.quantile(0.75)].size(), x[x <= x.kthvalue(5).values].size()


@unusual
def taken_while(send: Any) -> Any:
    """As many as fit: a cumulative sum below a bound (nucleus)."""
    shares = _numbers(send).softmax(0).sort(descending=True).values
    kept = int((shares.cumsum(0) < 0.9).sum()) + 1
    return shares[:kept].size(), torch.count_nonzero(shares > 0.05).item()


@unusual
def packed_bits(send: Any) -> Any:
    """Bits put together by shifts, and taken apart again."""
    bits = (_numbers(send).view(3, 8) > 0).to(torch.uint8)
    bytes_ = (bits << torch.arange(8, device=bits.device, dtype=torch.uint8)).sum(1)
    return [torch.zeros(int(each) % 17).size() for each in bytes_], bytes_.view(torch.int32).size()


@unusual
def joined_groups(send: Any) -> Any:
    """`isin`, `logical_xor`, and the difference of two sets by counts of a joined tensor."""
    a, b = send(torch.arange(0, 20, 2)), send(torch.arange(0, 20, 3))
    values, counts = torch.cat([a, b]).unique(return_counts=True)
    return values[counts == 1].size(), a[torch.isin(a, b)].size(), a[~torch.isin(a, b, invert=True)].size()


def _found(function: Unusual, device: str) -> Any:
    try:
        return repr(function(lambda tensor: tensor.to(device)))
    except Exception:  # whatever a construct raises is told
        return traceback.format_exc()[-700:]


def main() -> None:
    """Write a line for each construct: what it gives on the CPU and on the card, and how well its reads are known."""
    reads = current().reads
    for name, function in UNUSUAL.items():
        before = dict(reads.counts)
        found = [_found(function, device) for device in ("cpu", "cuda")]
        noted = sorted({read.certainty.name for read, count in reads.counts.items() if count != before.get(read, 0)})
        print(json.dumps([name, *found, noted]), flush=True)
