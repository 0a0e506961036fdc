"""Further constructs by which values decide sizes; `unusual` is imported first, as it emulates the card.

Graphs, beams, boxes, files, pinned memory, `vmap`, storages: each gets what sends tensors to its device, and returns
sizes.
"""

import io
from collections import Counter
from typing import Any

import torch
import torch.nn.functional as F

from tests.gpu.values.unusual import LENGTHS, unusual


def _floats(send: Any, *size: int) -> Any:
    return send(torch.randn(size, generator=torch.Generator().manual_seed(11)))


def _whole(send: Any, high: int, *size: int) -> Any:
    return send(torch.randint(high, size, generator=torch.Generator().manual_seed(12)))


@unusual
def different_columns(send: Any) -> Any:
    """`unique` along a dimension, with the place of each and how often it comes."""
    x = _whole(send, 2, 3, 20)
    columns, places, counts = x.unique(dim=1, return_inverse=True, return_counts=True)
    alone = x.unique_consecutive(dim=1)
    return columns.size(), places.size(), torch.zeros(int(counts.max())).size(), alone.size()


@unusual
def jagged_with_holes(send: Any) -> Any:
    """A jagged tensor of starts and lengths, with holes, and as `narrow` makes it."""
    x = _floats(send, 30, 4)
    offsets, lengths = send(torch.tensor([0, 9, 18, 30])), send(torch.tensor([4, 7, 2]))
    nested = torch.nested.nested_tensor_from_jagged(x, offsets, lengths)
    narrowed = torch.nested.narrow(x.view(3, 10, 4), 1, send(torch.tensor([0, 1, 2])), lengths, layout=torch.jagged)
    rows = [each.size() for each in nested.unbind()]
    return (
        rows,
        narrowed.select(0, 1).size(),
        narrowed.contiguous().values().size(),
        torch.zeros(int(narrowed.lengths().sum())).size(),
    )


@unusual
def letters_of_ctc(send: Any) -> Any:
    """The best path of a CTC head, without repetitions and blanks, and the loss of lengths on the card."""
    scores = _floats(send, 20, 3, 6).log_softmax(-1)
    lengths = send(torch.tensor([20, 15, 9]))
    words = []
    for number, length in enumerate(lengths.tolist()):
        path = scores[:length, number].argmax(-1).unique_consecutive()
        words.append(path[path != 0])
    loss = F.ctc_loss(scores, torch.cat(words), lengths, send(torch.tensor([len(each) for each in words])))
    return [each.size() for each in words], loss.size()


@unusual
def beams(send: Any) -> Any:
    """A beam search over known scores, until all beams have ended."""
    scores = (3 * _floats(send, 12, 12)).log_softmax(-1)
    beams = torch.zeros(1, 1, dtype=torch.long, device=scores.device)
    sums = torch.zeros(1, device=scores.device)
    done = []
    for _ in range(20):
        best, place = (sums[:, None] + scores[beams[:, -1]]).view(-1).topk(min(4, 12 * len(beams)))
        beams = torch.cat([beams[place // 12], (place % 12)[:, None]], 1)
        ended = beams[:, -1] == 5
        done += beams[ended].tolist()
        beams, sums = beams[~ended], best[~ended]
        if not len(beams):
            break
    return beams.size(), len(done), torch.zeros(max(len(each) for each in done) if done else 0).size()


@unusual
def boxes_kept_one_by_one(send: Any) -> Any:
    """Suppression written as a loop over what is left, and with scores that decay."""
    corners = _floats(send, 40, 2) * 8
    boxes = torch.cat([corners, corners + 6], 1)
    scores = _floats(send, 40).sigmoid()
    left, kept = scores.argsort(descending=True), []
    while left.numel():
        kept.append(int(left[0]))
        a, b = boxes[left[0]], boxes[left[1:]]
        sides = (torch.minimum(a[2:], b[:, 2:]) - torch.maximum(a[:2], b[:, :2])).clamp(min=0)
        shared = sides.prod(1)
        left = left[1:][shared / (72 - shared) <= 0.3]
    decayed = scores.clone()
    decayed[left.new_tensor(kept)] *= 0.5
    return len(kept), decayed[decayed > 0.4].size()


@unusual
def neighbours_within_a_radius(send: Any) -> Any:
    """A graph of points that are near, its degrees, and its largest neighbourhood."""
    points = _floats(send, 50, 3)
    source, target = (
        (torch.cdist(points, points) < 1.0) & ~torch.eye(50, dtype=torch.bool, device=points.device)
    ).nonzero(as_tuple=True)
    degrees = torch.bincount(source, minlength=50)
    padded = torch.zeros(50, int(degrees.max()))
    return source.size(), padded.size(), degrees[target].unique().size()


@unusual
def groups_that_hang_together(send: Any) -> Any:
    """Components of a graph by labels that spread until nothing changes."""
    edges = _whole(send, 40, 2, 25)
    labels = torch.arange(40, device=edges.device)
    rounds = 0
    while True:
        new = labels.scatter_reduce(0, edges[0], labels[edges[1]], "amin").clone()
        new = new.scatter_reduce(0, edges[1], new[edges[0]], "amin")
        rounds += 1
        if torch.equal(new, labels):
            break
        labels = new
    return rounds, labels.unique().size()


@unusual
def sets_of_numbers(send: Any) -> Any:
    """Sets, counters and dictionaries of the host, of what comes from the card."""
    a, b = _whole(send, 30, 25).tolist(), _whole(send, 50, 40).cpu().numpy()
    both = set(a) & set(b.tolist())
    fullest = Counter(b.tolist()).most_common(1)[0][1]
    return torch.zeros(len(both)).size(), torch.zeros(fullest).size(), [len(set(a)), len(set(a) - both)]


@unusual
def padded_to_a_multiple(send: Any) -> Any:
    """A batch that is padded to the longest of it, rounded up."""
    lengths = send(torch.tensor(LENGTHS))
    longest = -(-lengths.max().item() // 8) * 8
    rows = [F.pad(torch.ones(each, device=lengths.device), (0, longest - each)) for each in lengths.tolist()]
    batch = torch.stack(rows)
    return batch.size(), batch[batch.bool()].size(), batch.repeat(*lengths[:2].tolist()).size()


@unusual
def experts_with_a_capacity(send: Any) -> Any:
    """Tokens that find their expert full are dropped."""
    chosen = _floats(send, 64, 4).softmax(-1).argmax(-1)
    hot = F.one_hot(chosen, 4)
    place = (hot.cumsum(0) * hot).sum(1) - 1
    kept = place < 14
    buffers = torch.zeros(4, 14, 8, device=chosen.device)
    buffers[chosen[kept], place[kept]] = torch.ones(int(kept.sum()), 8, device=chosen.device)
    return chosen[kept].size(), (~kept).nonzero().size(), buffers[buffers.any(-1)].size(), int(hot.sum(0).max())


@unusual
def offsets_of_groups(send: Any) -> Any:
    """Offsets of a grouped product: how far the last group reaches, and the parts in between."""
    owners = _whole(send, 5, 60).sort().values
    offsets = torch.bincount(owners, minlength=5).cumsum(0)
    x = torch.zeros(60, 8, device=owners.device)
    return [each.size() for each in x.tensor_split(offsets[:-1].cpu())], x[: offsets[2]].size(), int(offsets[-1])


@unusual
def blocks_of_attention(send: Any) -> Any:
    """A mask of blocks for documents that were packed: how many blocks are to be computed."""
    from torch.nn.attention.flex_attention import create_block_mask

    documents = send(torch.tensor([0] * 200 + [1] * 100 + [2] * 212))

    def mask(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return (documents[query] == documents[key]) & (query >= key)

    blocks = create_block_mask(mask, 1, 1, 512, 512, device=documents.device, BLOCK_SIZE=64, _compile=False)
    full = 0 if blocks.full_kv_num_blocks is None else int(blocks.full_kv_num_blocks.sum())
    return (
        torch.zeros(int(blocks.kv_num_blocks.sum())).size(),
        full,
        torch.zeros(int(blocks.kv_num_blocks.max())).size(),
    )


@unusual
def above_a_quantile(send: Any) -> Any:
    """Masks by quantiles along a dimension, by medians, modes and deviations."""
    x = _floats(send, 6, 10)
    high = x > x.quantile(0.8, dim=1, keepdim=True)
    numbers = (x * 2).round().long()
    return (
        *(x[high].size(), x[x > x.median()].size(), x[(x - x.mean()).abs() > x.std()].size()),
        *(numbers[numbers == numbers.mode(1, keepdim=True).values].size(), x[x.nanmedian(0).values < x].size()),
    )


@unusual
def pinned_memory(send: Any) -> Any:
    """Numbers that are copied to pinned memory, not waited for, and read after an event."""
    lengths = send(torch.tensor(LENGTHS))
    host = torch.empty(len(LENGTHS), dtype=torch.int64)
    if lengths.is_cuda:
        host = host.pin_memory()
        with torch.cuda.stream(torch.cuda.Stream()):
            host.copy_(lengths * 2, non_blocking=True)
            torch.cuda.current_stream().synchronize()
    else:
        host.copy_(lengths * 2)
    part = (lengths + 1).to("cpu", non_blocking=True)
    return [torch.zeros(each).size() for each in host.tolist()], torch.zeros(*part[:2].tolist()).size()


@unusual
def mapped_over_rows(send: Any) -> Any:
    """`vmap` of a count and of a mask, and a Jacobian's elements that are not zero."""
    x = _floats(send, 6, 10)
    counts = torch.vmap(lambda row: (row > 0).sum())(x)
    masks = torch.vmap(lambda row: row > row.mean())(x)
    slopes = torch.func.jacrev(lambda each: F.relu(each))(x[0])
    return [torch.zeros(each).size() for each in counts.tolist()], x[masks].size(), slopes.nonzero().size()


@unusual
def saved_and_loaded(send: Any) -> Any:
    """A mask that is written to a file and read again, a deep copy, and a state dictionary."""
    mask = _floats(send, 30) > 0
    file = io.BytesIO()
    torch.save({"mask": mask}, file)
    file.seek(0)
    loaded = torch.load(file, map_location=mask.device)["mask"]
    module = torch.nn.Module()
    module.register_buffer("mask", torch.zeros_like(mask))
    module.load_state_dict({"mask": mask})
    return torch.zeros(30, device=mask.device)[loaded].size(), module.mask.nonzero().size()


@unusual
def storages(send: Any) -> Any:
    """What is written by way of a storage, and read by way of one."""
    x = _whole(send, 2, 24).to(torch.uint8)
    other = torch.zeros_like(x)
    other.untyped_storage().copy_(x.untyped_storage())
    filled = torch.zeros(16, dtype=torch.uint8, device=x.device)
    filled.untyped_storage().fill_(3)
    return other.nonzero().size(), filled.nonzero().size(), sum(x.untyped_storage().cpu().tolist())


@unusual
def decompositions(send: Any) -> Any:
    """A matrix's rank, its positive eigenvalues, and the singular values that hold most of it."""
    x = _floats(send, 6, 3)
    whole = x @ x.T if not x.is_cuda else (x[:, None] * x[None]).sum(-1)
    values = torch.linalg.svdvals(x)
    share = (values.square().cumsum(0) / values.square().sum() < 0.9).sum() + 1
    return int(torch.linalg.matrix_rank(whole)), int((torch.linalg.eigvalsh(whole) > 1e-3).sum()), values[:share].size()


@unusual
def peaks(send: Any) -> Any:
    """Peaks of a heat map by pooling, of a spectrum, and of a curve."""
    x = _floats(send, 1, 1, 16, 16)
    heat = (F.max_pool2d(x, 3, 1, 1) == x).nonzero()
    spectrum = torch.fft.rfft(x.view(-1)).abs()
    curve = x.view(-1).cumsum(0)
    tops = ((curve[1:-1] > curve[:-2]) & (curve[1:-1] > curve[2:])).nonzero()
    return heat.size(), spectrum[spectrum > spectrum.mean()].size(), tops.size()


@unusual
def pairs_that_are_merged(send: Any) -> Any:
    """The commonest pair of neighbours is merged, as a tokenizer does, four times."""
    words = _whole(send, 3, 60)
    for new in range(3, 7):
        pairs, counts = torch.stack([words[:-1], words[1:]], 1).unique(dim=0, return_counts=True)
        first, second = pairs[counts.argmax()].tolist()
        found = (words[:-1] == first) & (words[1:] == second)
        found[1:] &= ~found[:-1]
        words = words.clone()
        words[:-1][found] = new
        words = words[F.pad(~found, (1, 0), value=True)]
    return words.size(), words.unique().size()


@unusual
def pruned_weights(send: Any) -> Any:
    """Weights that are pruned by size, and what is left of each row."""
    from torch.nn.utils import prune

    layer = torch.nn.Linear(12, 8, bias=False)
    layer.weight = torch.nn.Parameter(_floats(send, 8, 12))
    prune.l1_unstructured(layer, "weight", amount=0.6)
    rows = layer.weight_mask.sum(1).int()
    return layer.weight.nonzero().size(), torch.zeros(int(rows.max())).size(), layer.weight[rows > 4].size()


@unusual
def scattered_parts(send: Any) -> Any:
    """`masked_scatter`, `put`, `index_reduce`, `slice_scatter`, and what they leave."""
    x = _floats(send, 5, 6)
    mask, index = x > 0, send(torch.tensor([0, 2, 2, 4]))
    filled = torch.zeros_like(x).masked_scatter(mask, torch.arange(30.0, device=x.device))
    placed = torch.zeros(30, device=x.device).put_(index * 7, x[0, :4].abs() + 1)
    most = torch.zeros(5, 6, device=x.device).index_reduce(0, index, x[:4], "amax")
    part = x.slice_scatter(torch.zeros(2, 6, device=x.device), 0, 1, 3).diagonal_scatter(x[0, :5] * 0)
    return (
        filled.nonzero().size(),
        placed.nonzero().size(),
        most.count_nonzero(1).unique().size(),
        part.nonzero().size(),
    )


@unusual
def other_numbers(send: Any) -> Any:
    """Masks of complex and half numbers, of bytes, and of numbers of eight bits."""
    x = _floats(send, 40)
    pairs = torch.view_as_complex(x.view(20, 2))
    small = x.to(torch.float8_e4m3fn).float()
    return (
        *(pairs[pairs.abs() > 1].size(), x.half()[x.half() > 0.5].size(), x.bfloat16().round().unique().size()),
        *(small[small == 0].size(), (x * 20).to(torch.int8).unique().size(), x[pairs.real.repeat(2) > 0].size()),
    )


@unusual
def scripted(send: Any) -> Any:
    """A function that TorchScript compiles, run often enough that it is optimised."""
    function = torch.jit.script(_scripted)
    x = _floats(send, 40)
    return [function(x + number).size() for number in range(4)]


def _scripted(x: torch.Tensor) -> torch.Tensor:
    y = x * 2 + 1
    kept = y[y > 0]
    if bool((y > 5).any()):
        return kept[:3]
    return kept


@unusual
def asked_of_tensors(send: Any) -> Any:
    """`in`, `any` along a dimension, comparisons in an `if`, `min` and `sorted` of Python's over tensors."""
    x = _whole(send, 9, 4, 6)
    found = [number for number in range(12) if number in x]
    smallest = min(x[0])
    ordered = sorted(x[1], reverse=True)
    rows = x[(x == 3).any(1)]
    return (
        len(found),
        torch.zeros(int(smallest) + 1, int(ordered[0])).size(),
        rows.size(),
        [int(a > b) for a, b in zip(x[0], x[1], strict=True)],
    )


@unusual
def sizes_of_new_tensors(send: Any) -> Any:
    """Numbers from the card as the size of `arange`, `eye`, `full`, `linspace`, `expand`, `chunk`, `pad`."""
    a, b, c, d = send(torch.tensor(LENGTHS))
    return (
        *(
            torch.arange(a).size(),
            torch.eye(b).size(),
            torch.full((c, a), 1).size(),
            torch.linspace(0, 1, int(b)).size(),
        ),
        *(
            torch.zeros(1, 4).expand(c, -1).size(),
            len(torch.zeros(50).chunk(int(d))),
            F.pad(torch.zeros(3), (0, a)).size(),
        ),
    )
