"""What `litgpt pretrain` does with the options of this benchmark, as a script."""

from pathlib import Path

from litgpt.args import TrainArgs
from litgpt.pretrain import setup
from litgpt_rows import Rows

if __name__ == "__main__":
    setup(
        "pythia-14m",
        out_dir=Path("out"),
        precision="bf16-true",
        data=Rows(),
        train=TrainArgs(
            global_batch_size=8,
            micro_batch_size=4,
            max_tokens=10**6,
            max_norm=1.0,
            max_seq_length=256,
            lr_warmup_steps=10,
        ),
        logger_name="csv",
    )
