"""How many seconds of the processor it takes to go through an epoch: `python benchmarks/epoch.py [ITEMS]`.

Each batch that is compared is collated again, and has to look as foretold.
"""

import random
import sys
import time
from typing import Any

import ullage

ITEMS = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
COMPARED = 200


def main() -> None:
    """Go through a loader whose data set knows its lengths, and one that has to be asked for every item."""
    ullage.emulate("T4")
    import torch
    from torch.utils.data import DataLoader, Dataset

    from ullage.predicting.epoch.form import form_of
    from ullage.predicting.epoch.scan import go_through

    rng = random.Random(0)
    lengths = [min(512, 8 + int(rng.expovariate(1 / 48))) for _ in range(ITEMS)]

    class Texts(Dataset[Any]):
        def __len__(self) -> int:
            return ITEMS

        def __getitem__(self, index: int) -> Any:
            return torch.zeros(lengths[index], dtype=torch.long)

    def collate(items: list[Any]) -> Any:
        return torch.nn.utils.rnn.pad_sequence(items, batch_first=True)

    for name, known in (("every item asked", None), ("lengths known", lengths)):
        texts = Texts()
        if known is not None:
            texts.lengths = known  # type: ignore[attr-defined]  # what a data set with lengths has
        loader = DataLoader(texts, batch_size=32, shuffle=True, collate_fn=collate)
        began = time.process_time()
        order = list(loader.batch_sampler)  # type: ignore[arg-type]  # None only without batches
        scan = go_through(loader, order, deadline=time.monotonic() + 600, progress=lambda text: None)
        seconds = time.process_time() - began
        for number in range(0, len(order), max(1, len(order) // COMPARED)):
            assert scan.forms[int(scan.shape[number])] == form_of(collate([texts[index] for index in order[number]]))
        print(f"{name}: {ITEMS:,} items, {len(order):,} batches of {len(scan.forms):,} shapes, {seconds:.1f} s")


main()
