"""One rank of two that train under a framework: `python -m tests.integrations.on_two_ranks FRAMEWORK KIND FILE`.

The ranks find each other by torchrun's variables. Guarded, rank 1 has no memory for more than three items.
"""

import os
import sys

import ullage

ullage.emulate("T4")

import torch  # noqa: E402  # a card is emulated before


def with_transformers(*, is_guarded: bool, limit: int | None) -> list[torch.Tensor]:
    from tests.integrations.with_transformers import GuardedTrainer, Trainer, Training, gpt2

    return Training(GuardedTrainer if is_guarded else Trainer, gpt2, limit, ddp_backend="gloo").run()


def with_lightning(*, is_guarded: bool, limit: int | None) -> list[torch.Tensor]:
    from lightning.pytorch.strategies import DDPStrategy

    from tests.integrations.with_lightning import AUTOMATIC, GuardCallback, Module, train

    callbacks = [GuardCallback()] if is_guarded else []
    how = AUTOMATIC | {"strategy": DDPStrategy(process_group_backend="gloo"), "devices": 2}
    return train(Module(limit), None, *callbacks, **how)


if __name__ == "__main__":
    framework, kind, file = sys.argv[1:]
    is_guarded = kind == "guarded"
    limit = 3 if is_guarded and os.environ["RANK"] == "1" else None
    left = globals()[f"with_{framework}"](is_guarded=is_guarded, limit=limit)
    with open(file, "w") as out:
        print(*(float(value) for tensor in left[:-1] for value in tensor.flatten()), file=out)
