"""The commands, each with the words of the plain script that trains the same."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
SCRIPTS: Final = HERE / "scripts"
_MADE_UP: Final = ("--random-weights", "--config", str(HERE / "tiny-llama"))


@dataclass(frozen=True, kw_only=True)
class Case:
    """A command, and the words of the plain script that trains the same."""

    name: str
    """The command as the page shows it."""
    command: Sequence[str]
    plain: Sequence[str]
    options: Sequence[str] = ()
    """Options of ullage for both."""


def cases(packages: Path) -> list[Case]:
    """Return all cases, for the folder of packages."""
    return [*_of_one_card(), *_launchers(), *_deepspeed(), *_trl(packages), *_recipes(packages)]


def _script(name: str) -> str:
    return str(SCRIPTS / f"{name}.py")


def _of_one_card() -> list[Case]:
    ranks, cli = _script("ranks"), _script("lightning_cli")
    fit = ("fit", "--trainer.max_steps", "50", "--trainer.logger", "false", "--trainer.enable_checkpointing", "false")
    return [
        Case(name="python ranks.py", command=("python", ranks), plain=(ranks,)),
        Case(name="python -m ranks", command=("-m", "ranks"), plain=(ranks,)),
        Case(name="ranks.ipynb", command=(str(SCRIPTS / "ranks.ipynb"),), plain=(ranks,)),
        Case(name="python lightning_cli.py fit", command=("python", cli, *fit), plain=(cli, *fit)),
    ]


def _launchers() -> list[Case]:
    ranks, found = _script("ranks"), []
    for count in (2, 8):
        torchrun = ("torchrun", "--nproc-per-node", str(count))
        accelerate = ("accelerate", "launch", "--multi_gpu", "--num_processes", str(count))
        for launcher in (torchrun, accelerate):
            name = f"{' '.join(launcher)} ranks.py"
            found.append(Case(name=name, command=(*launcher, ranks), plain=("--world-size", str(count), ranks)))
    return found


def _deepspeed() -> list[Case]:
    found = []
    for stage in (1, 2, 3):
        words = (_script("zero"), "--stage", str(stage))
        launcher = ("deepspeed", "--num_gpus", "2")
        name = f"deepspeed --num_gpus 2 zero.py --stage {stage}"
        found.append(Case(name=name, command=(*launcher, *words), plain=("--world-size", "2", *words)))
    return found


def _trl(packages: Path) -> list[Case]:
    words = ("--model_name_or_path", "nobody/tiny-llama", "--dataset_name", "nobody/made-up", "--output_dir", "out")
    words = (*words, "--per_device_train_batch_size", "2", "--report_to", "none", "--max_length", "256")
    found = []
    for name, form in (("sft", "text"), ("dpo", "preference")):
        plain = (str(packages / "trl" / "scripts" / f"{name}.py"), *words)
        options = (*_MADE_UP, "--made-up-data", f"{form}:length=256,rows=64")
        for command in (("trl", name), ("python", "-m", f"trl.scripts.{name}")):
            found.append(Case(name=" ".join(command), command=(*command, *words), plain=plain, options=options))
    return found


def _recipes(packages: Path) -> list[Case]:
    """Commands whose training is a recipe of their own: the plain form is the recipe's file, or a call of it."""
    tune, single, several = str(HERE / "tune.yaml"), "full_finetune_single_device", "full_finetune_distributed"
    recipes = packages / "recipes"
    factory = (str(HERE / "factory.yaml"), f"dataset_dir={HERE / 'factory'}")
    litgpt = ("litgpt", "pretrain", "pythia-14m", "--train.max_seq_length", "256", "--out_dir", "out")
    litgpt = (*litgpt, "--precision", "bf16-true", "--data", "litgpt_rows.Rows", "--logger_name", "csv")
    litgpt = (*litgpt, "--train.global_batch_size", "8", "--train.micro_batch_size", "4", "--train.max_norm", "1.0")
    litgpt = (*litgpt, "--train.lr_warmup_steps", "10", "--train.max_tokens", "1000000")
    return [
        Case(name="litgpt pretrain", command=litgpt, plain=(_script("litgpt_plain"),)),
        Case(
            name=f"tune run {single}",
            command=("tune", "run", single, "--config", tune),
            plain=(str(recipes / f"{single}.py"), "--config", tune),
        ),
        Case(
            name=f"tune run --nproc_per_node 2 {several}",
            command=("tune", "run", "--nproc_per_node", "2", several, "--config", tune),
            plain=("--world-size", "2", str(recipes / f"{several}.py"), "--config", tune),
        ),
        Case(
            name="llamafactory-cli train",
            command=("llamafactory-cli", "train", *factory),
            plain=(_script("factory_plain"), *factory),
            options=(*_MADE_UP, "--made-up-data", "chat:length=256,rows=64"),
        ),
    ]
