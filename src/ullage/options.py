"""The options of a run on an emulated GPU. Each option is defined once.

The commands `predict`, `fit` and `advise`, their --help, the Python functions of the same names, a `Request`, and the
data that the script's process receives are all made from these lists. A new option is defined here, and read where it
has an effect: `request.options["name"]`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, Required, TypedDict

from ullage.base.option import Option
from ullage.gpu.placement import Placement
from ullage.gpu.values.choice import ValuesMode

GPU = "GPU"
RUN = "Run"
VALUES = "Values"
DATA = "Missing weights and data"
LAYOUTS = "Parallel layouts"
OUTPUT = "Output"


class GpuOption(TypedDict):
    """The option that every function needs."""

    gpu: Annotated[
        str,
        Option(
            "GPU to emulate: a name such as 'RTX 4090' (`ullage gpus` lists them), or a memory size such as 24GiB.",
            panel=GPU,
        ),
    ]


class EveryRunOptions(TypedDict, total=False):
    """The options of every run of `predict`, `fit` and `advise`."""

    steps: Annotated[
        int | None,
        Option(
            "Number of optimizer steps to run. By default 3, and up to 6 more until peak memory stops changing.",
            panel=RUN,
        ),
    ]
    seconds: Annotated[
        float,
        Option(
            "Time limit for each run, in seconds.", more="The import of torch does not count.", default=300.0, panel=RUN
        ),
    ]
    arch: Annotated[
        str | None, Option("CUDA architecture, such as sm_90, of a GPU that is given by its memory size.", panel=GPU)
    ]
    alloc_conf: Annotated[
        str | None,
        Option(
            "Allocator settings (PYTORCH_CUDA_ALLOC_CONF) for the runs. By default, the environment's settings.",
            panel=GPU,
        ),
    ]
    total_memory: Annotated[
        int | str | None,
        Option(
            "Total memory of the GPU, such as 14.56GiB. By default, the total memory of the named GPU.",
            more="An int is in bytes; a str has a unit.",
            panel=GPU,
        ),
    ]
    context: Annotated[
        int | str | None,
        Option(
            "Memory of the CUDA context, such as 500MiB. By default, the CUDA context of the named GPU.",
            more="An int is in bytes; a str has a unit.",
            panel=GPU,
        ),
    ]
    cudnn_workspace: Annotated[
        int | str | None,
        Option(
            "Workspace size of every cuDNN execution plan. By default, the size that cuDNN reports (see ULLAGE_CUDNN).",
            more="An int is in bytes; a str has a unit.",
            panel=GPU,
        ),
    ]
    placement: Annotated[
        Placement,
        Option(
            "Driver whose choice of memory addresses is emulated: linux, wsl, windows or linux-host. With torch up to "
            "2.11, the addresses affect how much memory is reserved.",
            default="linux",
            panel=GPU,
        ),
    ]
    values: Annotated[
        ValuesMode,
        Option(
            "How to compute values that the script reads back from the GPU: auto, on, off (all values are zero) or all "
            "(the CPU computes everything).",
            more='"auto" computes known values, and uses random values for unknown values, as long as the script reads '
            'values from the GPU; "on" does this until the script ends.',
            default="auto",
            panel=VALUES,
        ),
    ]
    values_seed: Annotated[
        int, Option("Seed of the random values that replace unknown GPU values.", default=0, panel=VALUES)
    ]
    routing: Annotated[
        str,
        Option(
            "How a mixture-of-experts router with random scores selects experts: auto, drawn, balanced, worst, or a "
            "skew such as 1.5.",
            more='"drawn" selects the experts with the highest random scores. "balanced" selects all experts equally '
            'often. "worst" selects the same experts for all tokens. A skew such as 1.5 is the exponent of a Zipf '
            'distribution over the experts. "auto" usually means "drawn". If ullage runs only one of several ranks, '
            '"auto" means "balanced". The upper end of the reported memory range then comes from a run with "worst".',
            default="auto",
            panel=VALUES,
        ),
    ]
    random_weights: Annotated[
        bool,
        Option(
            "Generate missing model weights and tokenizers from their configuration files.", default=False, panel=DATA
        ),
    ]
    config: Annotated[
        str | Path | None,
        Option("Folder with the config.json of a model whose configuration ullage does not contain.", panel=DATA),
    ]
    made_up_data: Annotated[
        str | None,
        Option(
            "Kind of rows to generate for a missing data set: text, chat, preference or image. A size may follow, as "
            "in text:length=2048,rows=64 or image:224. Or the columns, as in columns=text:text,label:int:2.",
            panel=DATA,
        ),
    ]
    lengths: Annotated[
        str | Path | None,
        Option("File with the lengths of generated rows: one length on each line, or LENGTH,COUNT.", panel=DATA),
    ]


class WorldOptions(TypedDict, total=False):
    """The option that runs a script as one rank of several."""

    world_size: Annotated[
        int | None,
        Option(
            "Number of ranks of the distributed job. ullage runs only one of the ranks, in one process.",
            panel=RUN,
        ),
    ]


class RankOptions(WorldOptions, total=False):
    """The options that select a single rank."""

    rank: Annotated[int, Option("Number of the rank to run.", default=0, panel=RUN)]


class DrawOptions(TypedDict, total=False):
    """The option that repeats a run with several random seeds."""

    draws: Annotated[
        int,
        Option(
            "Number of random seeds to try if random values may affect peak memory.",
            more="ullage reports a range of peak memory. With 3 seeds, a run with a further seed has its peak within "
            "this range in 95 of 100 cases.",
            default=3,
            panel=VALUES,
        ),
    ]


class EpochOptions(TypedDict, total=False):
    """The options for a prediction that covers one epoch of the training DataLoader."""

    batches: Annotated[
        Literal["heaviest"] | None,
        Option(
            "With heaviest: read all batches of an epoch, run the heaviest ones, and predict the peaks of the rest.",
            panel=RUN,
        ),
    ]
    minutes: Annotated[
        float,
        Option(
            "Time limit in minutes for reading the batches of an epoch, in addition to the time limit of each run.",
            default=5.0,
            panel=RUN,
        ),
    ]


class PageOptions(TypedDict, total=False):
    """The options for the page of an answer."""

    html: Annotated[
        str | Path | None,
        Option("Write an HTML page with charts. The page needs no network.", panel=OUTPUT),
    ]
    picture: Annotated[
        bool,
        Option(
            "Keep the data for the charts of an HTML page, so that `ullage.write_page` can write the page later. The "
            "option `html` implies this.",
            default=False,
            is_of_command=False,
        ),
    ]


class _SingleRunOptions(EveryRunOptions, WorldOptions, DrawOptions, EpochOptions, total=False):
    count: Annotated[int, Option("Number of emulated GPUs that the script sees.", default=1, panel=GPU)]
    snapshot: Annotated[
        str | Path | None,
        Option("Write a PyTorch memory snapshot, which memory_viz and `ullage explain` can read.", panel=OUTPUT),
    ]
    output: Annotated[bool, Option("Show the output of the script on standard error.", default=False, panel=OUTPUT)]
    processes: Annotated[
        Literal["alone", "real"],
        Option(
            "Ranks of a launcher's job to run: alone (one rank without the other ranks) or real (all ranks together).",
            default="alone",
            panel=RUN,
        ),
    ]
    until: Annotated[
        Literal["eval", "save", "end"] | None,
        Option(
            "After the optimizer steps, continue through the first evaluation (eval) or the first checkpoint save "
            "(save), or until the script ends (end).",
            panel=RUN,
        ),
    ]
    host_memory: Annotated[
        int | str | None,
        Option(
            "Host memory of one node, such as 64GiB. With this option, the script has to fit into host memory too.",
            more="An int is in bytes; a str has a unit.",
            panel=GPU,
        ),
    ]
    request: Annotated[
        Literal["slurm", "k8s"] | None,
        Option("Write the lines that request the predicted resources from a cluster: slurm or k8s.", panel=OUTPUT),
    ]


class RunChanges(_SingleRunOptions, total=False):
    """The options of a run that ullage can change for a second run on the same GPU."""

    rank: Annotated[int, Option("Number of the rank to run.", default=0, panel=RUN)]


class RunOptions(GpuOption, RunChanges, total=False):
    """All options that affect a run."""


class PredictOptions(GpuOption, _SingleRunOptions, PageOptions, total=False):
    """The options of `ullage predict`."""

    rank: Annotated[
        int | Literal["all"],
        Option(
            "Number of the rank to run. With all: run each rank in turn, and report the rank with the highest peak.",
            default=0,
            panel=RUN,
        ),
    ]
    beside_eager: Annotated[
        bool,
        Option(
            "Run a script that uses torch.compile a second time without torch.compile, to compare both runs.",
            default=True,
            panel=RUN,
        ),
    ]
    resume: Annotated[
        str | None,
        Option(
            "Run the script a second time with these arguments added, to resume from a saved checkpoint.",
            more='The arguments are separated as in a shell: "--resume_from_checkpoint out/checkpoint-3". ullage '
            "reports the first run and the resumed run. Without `until`, the first run ends after it has saved a "
            "checkpoint for the first time.",
            metavar="ARGUMENTS",
            panel=RUN,
        ),
    ]


class _SearchOptions(GpuOption, EveryRunOptions, DrawOptions, PageOptions, total=False):
    margin: Annotated[
        int | str,
        Option(
            "Memory to leave free on each GPU, such as 5% or 1GiB.", more="An int is in bytes.", default="0%", panel=RUN
        ),
    ]


class FitOptions(_SearchOptions, RankOptions, EpochOptions, total=False):
    """The options of `ullage fit`."""

    vary: Required[
        Annotated[
            str | Sequence[str],
            Option(
                "Option of the script to vary: --batch-size, or --batch-size=8..64:8. May be given twice.",
                more="With two options, the answer is the largest value of one option for each value of the other.",
                panel=RUN,
            ),
        ]
    ]
    changes: Annotated[
        bool,
        Option(
            "Also try allocator settings and optimizer defaults that do not require a change to the script.",
            default=True,
            panel=RUN,
        ),
    ]


class FitLayoutOptions(_SearchOptions, total=False):
    """The options of `ullage fit --layout`."""

    vary: Annotated[
        str | Sequence[str] | None,
        Option(
            "Option of the script that sets the micro-batch size, and the values to try: --micro-batch=1..16.",
            panel=RUN,
        ),
    ]
    layout: Required[
        Annotated[
            str,
            Option(
                "Axes of the parallel layouts to try: dp*tp*pp*cp, or dp*tp,ep for expert parallelism within dp.",
                more="The product of the axis sizes before the comma is the number of GPUs. An axis after the comma, "
                "such as ep, divides the ranks of dp and cp into groups.",
                panel=LAYOUTS,
            ),
        ]
    ]
    cards: Required[Annotated[int, Option("Number of GPUs of the layout.", panel=LAYOUTS)]]
    layout_map: Annotated[
        Literal["torchtitan", "megatron", "accelerate", "deepspeed", "lightning"] | None,
        Option(
            "Program whose options the script accepts: torchtitan, megatron, accelerate, deepspeed or lightning.",
            panel=LAYOUTS,
        ),
    ]
    layout_option: Annotated[
        Sequence[str],
        Option(
            "Option of the script, or environment variable, that sets an axis size: tp=--tensor-parallel or tp=env:TP.",
            default=(),
            panel=LAYOUTS,
        ),
    ]
    most: Annotated[Sequence[str], Option("Largest size of an axis: tp=8.", default=(), panel=LAYOUTS)]
    choose: Annotated[
        Sequence[str],
        Option(
            "Option of the script, and the values to try for it with each parallel layout: --zero=1,2,3.",
            default=(),
            panel=LAYOUTS,
        ),
    ]
    rank_order: Annotated[
        str | None,
        Option(
            "Order of the axes of a parallel layout, from outermost to innermost. By default pp*dp*cp*tp.",
            panel=LAYOUTS,
        ),
    ]
    ranks: Annotated[
        Literal["alike", "stages"],
        Option(
            "Ranks to run for each layout: one rank of each group of ranks that are alike by construction (alike), or "
            "one rank of every pipeline stage (stages).",
            default="alike",
            panel=LAYOUTS,
        ),
    ]
    accumulate: Annotated[int, Option("Number of micro-batches in a step.", default=1, panel=LAYOUTS)]
    item_tokens: Annotated[int | None, Option("Number of tokens in an item of a batch.", panel=LAYOUTS)]
    on: Annotated[
        str | None,
        Option("Where to run the layouts: local, ray, ray://HOST:PORT, slurm or slurm:partition=NAME.", panel=LAYOUTS),
    ]
    workers: Annotated[
        int | None,
        Option(
            "Number of runs at the same time on this machine. By default, one run for each CPU core.", panel=LAYOUTS
        ),
    ]
    store: Annotated[
        str | Path | None,
        Option(
            "File that stores the results of runs. By default, a file in the user's cache folder. With none: no file.",
            panel=LAYOUTS,
        ),
    ]


class AdviseOptions(GpuOption, EveryRunOptions, RankOptions, total=False):
    """The options of `ullage advise`."""

    patch: Annotated[
        str | Path | None,
        Option("Write the changes to the script as a diff, for `git apply`.", metavar="FILE", panel=OUTPUT),
    ]
    vary: Annotated[
        str | None,
        Option(
            "Option of the script whose largest fitting value is searched: --batch-size, or --batch-size=8..64:8.",
            more="ullage searches four times: without changes, with changes that cost nothing, with changes that also "
            "cost time, and with changes that also alter numerical results. No diff is written.",
            panel=RUN,
        ),
    ]
    html: Annotated[
        str | Path | None,
        Option("Write an HTML page with charts. The page needs no network.", panel=OUTPUT),
    ]
