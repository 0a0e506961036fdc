"""Programs in which loops and choices depend on values."""

import torch
from programs.registry import STEPS, Note, program, trained
from torch import nn


@program
def early_stopping(device: str, note: Note) -> None:
    """Stop when the loss has not fallen for three steps."""
    model, optimizer = trained(nn.Linear(256, 256).to(device))
    best, patience, step = float("inf"), 0, 0
    while patience < 3 and step < 40:
        loss = model(torch.randn(512, 256, device=device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        value = loss.item()
        patience = 0 if value < best else patience + 1
        best = min(best, value)
    note("at least one step", min(step, 1))


@program
def token_codes(device: str, note: Note) -> None:
    """Take the nearest codes of a codebook, and look which of them are used (VQ-VAE)."""
    body, optimizer = trained(nn.Linear(64, 64).to(device))
    codes = torch.randn(256, 64, device=device)
    for _ in range(STEPS):
        hidden = body(torch.randn(2048, 64, device=device))
        nearest = torch.cdist(hidden, codes).argmin(-1)
        picked = codes[nearest]
        through = hidden + (picked - hidden).detach()
        used = nearest.unique()
        note("used codes", len(used))
        (through.square().mean() + (hidden - picked).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def gumbel_choice(device: str, note: Note) -> None:
    """Choose by straight-through Gumbel noise, and work on what was chosen."""
    body, optimizer = trained(nn.Linear(64, 4).to(device))
    after = nn.Linear(64, 512).to(device)
    for _ in range(STEPS):
        hidden = torch.randn(4096, 64, device=device)
        choice = nn.functional.gumbel_softmax(body(hidden), hard=True)
        picked = hidden[choice[:, 0] > 0.5]
        note("rows", len(picked))
        (after(picked).square().mean() + choice.square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def hard_examples(device: str, note: Note) -> None:
    """Take the hardest negatives, three for each positive that the card counts."""
    model, optimizer = trained(nn.Linear(128, 64).to(device))
    for _ in range(STEPS):
        scores = model(torch.randn(2048, 128, device=device))
        positive = torch.rand_like(scores) < 0.05
        loss = nn.functional.binary_cross_entropy_with_logits(scores, positive.float(), reduction="none")
        number = int(3 * positive.sum().item())
        note("hardest", number)
        hardest = loss[~positive].topk(number).values
        (hardest.mean() + loss[positive].mean()).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def reinforce(device: str, note: Note) -> None:
    """Play episodes of at most 50 moves by sampled actions, and learn by REINFORCE."""
    policy, optimizer = trained(nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4)).to(device))
    for _ in range(STEPS):
        chances = []
        state = torch.randn(8)
        place = 0
        while len(chances) < 50 and abs(place) < 6:
            distribution = torch.distributions.Categorical(logits=policy(state.to(device)))
            action = distribution.sample()
            chances.append(distribution.log_prob(action))
            place += (-1, 0, 0, 1)[action.item()]
            state = torch.randn(8)
        note("a whole episode", int(len(chances) >= 6))
        (-torch.stack(chances).sum()).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def fixed_point(device: str, note: Note) -> None:
    """Look for a fixed point, and keep what led to it."""
    model, optimizer = trained(nn.Linear(128, 128).to(device))
    for _ in range(STEPS):
        given = torch.randn(512, 128, device=device)
        state = torch.zeros_like(given)
        kept = []
        error = 1.0
        while error > 1e-3 and len(kept) < 1000:
            after = torch.tanh(0.5 * model(state) + given)
            error = ((after - state).norm() / after.norm()).item()
            state = after
            kept.append(state)
        note("iterations", len(kept))
        torch.stack(kept).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def sampled_until_done(device: str, note: Note) -> None:
    """Sample words until every sequence has ended."""
    words, cell, head = nn.Embedding(30, 64), nn.GRUCell(64, 64), nn.Linear(64, 30)
    _, optimizer = trained(nn.ModuleList([words, cell, head]).to(device))
    for _ in range(2):
        token = torch.ones(16, dtype=torch.long, device=device)
        state = torch.zeros(16, 64, device=device)
        done = torch.zeros(16, dtype=torch.bool, device=device)
        chances = []
        while not done.all():
            state = cell(words(token), state)
            distribution = torch.distributions.Categorical(logits=head(state))
            token = distribution.sample()
            chances.append(distribution.log_prob(token))
            done = done | (token == 0)
        note("words", len(chances))
        (-torch.stack(chances).mean()).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def active_units(device: str, note: Note) -> None:
    """Keep what is positive after a layer."""
    model, optimizer = trained(nn.Linear(128, 512).to(device))
    for _ in range(STEPS):
        hidden = model(torch.randn(2048, 128, device=device))
        active = torch.masked_select(hidden, hidden > 0)
        note("active", active.numel())
        active.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def masked_words(device: str, note: Note) -> None:
    """Work on the words that were masked at random on the card."""
    words, head = nn.Embedding(2000, 64), nn.Linear(64, 2000)
    _, optimizer = trained(nn.ModuleList([words, head]).to(device))
    for _ in range(STEPS):
        ids = torch.randint(0, 2000, (16, 256), device=device)
        masked = torch.rand(16, 256, device=device) < 0.15
        logits = head(words(ids)[masked])
        note("masked", len(logits))
        nn.functional.cross_entropy(logits, ids[masked]).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def greedy_ctc(device: str, note: Note) -> None:
    """Collapse what a recognizer hears: repeats and blanks are left out."""
    model, optimizer = trained(nn.Linear(64, 40).to(device))
    for _ in range(STEPS):
        scores = model(torch.randn(8, 200, 64, device=device)).log_softmax(-1)
        for row in scores.argmax(-1):
            heard = row.unique_consecutive()
            heard = heard[heard != 0]
            note("letters", len(heard))
        targets = torch.randint(1, 40, (8, 20)).to(device)
        lengths = torch.full((8,), 200), torch.full((8,), 20)
        nn.functional.ctc_loss(scores.transpose(0, 1), targets, *lengths).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def kept_tokens(device: str, note: Note) -> None:
    """Drop the tokens whose attention is below the mean."""
    model, optimizer = trained(nn.Linear(64, 64).to(device))
    after = nn.Linear(64, 256).to(device)
    for _ in range(STEPS):
        hidden = model(torch.randn(1024, 64, device=device))
        weights = (hidden @ hidden.T / 8).softmax(-1).mean(0)
        keep = weights > weights.mean()
        note("kept", int(keep.sum()))
        after(hidden[keep]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def clusters(device: str, note: Note) -> None:
    """Cluster features by k-means until assignments no longer change."""
    model = nn.Linear(32, 32).to(device)
    with torch.no_grad():
        points = model(torch.randn(1000, 32, device=device))
        centers = points[:8].clone()
        before = None
        rounds = 0
        while rounds < 500:
            nearest = torch.cdist(points, centers).argmin(-1)
            if before is not None and torch.equal(before, nearest):
                break
            before = nearest
            centers = torch.stack([points[nearest == number].mean(0) for number in range(8)])
            rounds += 1
        note("ended", int(rounds < 500))


@program
def skipped_steps(device: str, note: Note) -> None:
    """Skip steps whose loss or gradients are not finite, and clip the rest."""
    model, optimizer = trained(nn.Linear(256, 256).to(device))
    for _ in range(STEPS):
        loss = model(torch.randn(512, 256, device=device)).square().mean()
        if torch.isnan(loss).any() or not torch.isfinite(loss):
            continue
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        if norm.item() == 0:
            continue
        optimizer.step()
        optimizer.zero_grad()
    note("states", len(optimizer.state))


@program
def semi_hard(device: str, note: Note) -> None:
    """Take the triplets whose negative is farther than the positive, but by less than a margin."""
    model, optimizer = trained(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32)).to(device))
    for _ in range(STEPS):
        labels = torch.randint(0, 16, (128,)).to(device)
        vectors = nn.functional.normalize(model(torch.randn(128, 64, device=device)), dim=-1)
        distance = 1 - vectors @ vectors.T
        same = labels[:, None] == labels
        gap = distance[:, None, :] - distance[:, :, None]
        wanted = same[:, :, None] & ~same[:, None, :] & (gap > 0) & (gap < 0.05)
        found = gap[wanted]
        note("triplets", len(found))
        (0.2 - found).relu().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def near_pairs(device: str, note: Note) -> None:
    """Join the points that lie near in a learned space, and pass messages between them."""
    embed, pass_on = nn.Linear(16, 8), nn.Linear(16, 64)
    _, optimizer = trained(nn.ModuleList([embed, pass_on]).to(device))
    for _ in range(STEPS):
        points = embed(torch.randn(600, 16).to(device))
        near = (torch.cdist(points, points) < 1.0).triu(1).nonzero()
        note("pairs", len(near))
        pass_on(torch.cat([points[near[:, 0]], points[near[:, 1]]], 1)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def hashed_buckets(device: str, note: Note) -> None:
    """Sort vectors into buckets by the signs of projections, and compare within the fullest (Reformer)."""
    model, optimizer = trained(nn.Linear(64, 64).to(device))
    planes = torch.randn(64, 6, device=device)
    for _ in range(STEPS):
        hidden = model(torch.randn(2048, 64, device=device))
        signs = (hidden @ planes > 0).long()
        bucket = (signs * 2 ** torch.arange(6, device=device)).sum(-1)
        counts = torch.bincount(bucket, minlength=64)
        note("fullest", int(counts.max()))
        note("filled", int((counts > 0).sum()))
        own = hidden[bucket == counts.argmax()]
        (own @ own.T).softmax(-1).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def unsure_points(device: str, note: Note) -> None:
    """Refine a mask where it is least sure (PointRend with a threshold)."""
    body, refine = nn.Conv2d(3, 16, 4, 4).to(device), nn.Linear(16, 64).to(device)
    mask = nn.Conv2d(16, 1, 1).to(device)
    _, optimizer = trained(nn.ModuleList([body, refine, mask]))
    for _ in range(STEPS):
        features = body(torch.rand(2, 3, 256, 256, device=device))
        coarse = mask(features)
        unsure = (coarse - coarse.mean()).abs()[:, 0] < coarse.std() / 4
        note("unsure", int(unsure.sum()))
        refine(features.permute(0, 2, 3, 1)[unsure]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def sparse_activations(device: str, note: Note) -> None:
    """Multiply with what is positive after a layer alone, as a sparse matrix."""
    first, second = nn.Linear(128, 512).to(device), nn.Linear(512, 64, bias=False).to(device)
    bias = nn.Parameter(torch.full((512,), -0.5, device=device))
    optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters(), bias], 1e-3)
    for _ in range(STEPS):
        hidden = (first(torch.randn(512, 128, device=device)) + bias).relu()
        sparse = hidden.detach().to_sparse()
        note("active", sparse._nnz())
        (torch.sparse.mm(sparse, second.weight.T).square().mean() + hidden.square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def pseudo_labels(device: str, note: Note) -> None:
    """Learn from the samples without labels that a teacher is sure of (FixMatch)."""
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    teacher = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    _, optimizer = trained(model)
    for _ in range(STEPS):
        given = torch.randn(4096, 64, device=device)
        with torch.no_grad():
            sure, label = (teacher(given) * 3).softmax(-1).max(-1)
            chosen = sure > sure.mean() + sure.std() / 2
        note("sure", int(chosen.sum()))
        note("labels", len(label[chosen].unique()))
        nn.functional.cross_entropy(model(given[chosen]), label[chosen]).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def dead_codes(device: str, note: Note) -> None:
    """Replace the codes of a codebook that nothing is nearest to by vectors of the batch (VQ-VAE)."""
    body, optimizer = trained(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16)).to(device))
    codes = (torch.randn(512, 16) * 0.2).to(device)
    for _ in range(STEPS):
        hidden = body(torch.randn(1024, 32, device=device))
        nearest = torch.cdist(hidden.detach(), codes).argmin(-1)
        dead = (torch.bincount(nearest, minlength=512) == 0).nonzero()[:, 0]
        note("dead", len(dead))
        codes = codes.index_copy(0, dead, hidden.detach()[: len(dead)])
        (hidden - codes[nearest]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def hardest_pairs(device: str, note: Note) -> None:
    """Take the pairs of unlike labels that are nearer than the farthest of like ones (multi-similarity mining)."""
    model, optimizer = trained(nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 32)).to(device))
    for _ in range(STEPS):
        labels = torch.randint(0, 20, (256,)).to(device)
        vectors = nn.functional.normalize(model(torch.randn(256, 64).to(device)), dim=-1)
        likeness = vectors @ vectors.T
        same = labels[:, None] == labels
        least = likeness.masked_fill(~same, 2.0).amin(1, keepdim=True)
        left, right = (~same & (likeness > least + 0.1)).nonzero(as_tuple=True)
        note("pairs", len(left))
        (vectors[left] * vectors[right]).sum(-1).exp().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
