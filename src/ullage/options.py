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
            "Number of optimizer steps to run. By default 3, and up to 6 more until the peak stops changing.", panel=RUN
        ),
    ]
    seconds: Annotated[
        float,
        Option(
            "Time limit for each run, in seconds.", more="The import of torch does not count.", default=300.0, panel=RUN
        ),
    ]
    arch: Annotated[
        str | None, Option("Architecture of a GPU that is given by its memory size, such as sm_90.", panel=GPU)
    ]
    alloc_conf: Annotated[
        str | None,
        Option(
            "Allocator settings (PYTORCH_CUDA_ALLOC_CONF) for the runs. By default those of the environment.", panel=GPU
        ),
    ]
    total_memory: Annotated[
        int | str | None,
        Option(
            "Total memory of the GPU, such as 14.56GiB. By default that of the named GPU.",
            more="An int is in bytes; a str has a unit.",
            panel=GPU,
        ),
    ]
    context: Annotated[
        int | str | None,
        Option(
            "Memory of the CUDA context, such as 500MiB. By default that of the named GPU.",
            more="An int is in bytes; a str has a unit.",
            panel=GPU,
        ),
    ]
    cudnn_workspace: Annotated[
        int | str | None,
        Option(
            "Workspace size of every cuDNN plan. By default the size that cuDNN itself reports (see ULLAGE_CUDNN).",
            more="An int is in bytes; a str has a unit.",
            panel=GPU,
        ),
    ]
    placement: Annotated[
        Placement,
        Option(
            "Driver whose choice of addresses is emulated: linux, wsl, windows or linux-host. Up to torch 2.11, it "
            "affects how much memory is reserved.",
            default="linux",
            panel=GPU,
        ),
    ]
    values: Annotated[
        ValuesMode,
        Option(
            "How to compute values that the script reads back from the GPU: auto, on, off (all values are zero) or all "
            "(the CPU computes everything).",
            more='"auto" computes the values that are known and uses random values for the others, for as long as the '
            'script reads something; "on" does this until the end.',
            default="auto",
            panel=VALUES,
        ),
    ]
    values_seed: Annotated[
        int, Option("Seed of the random values that replace unknown values.", default=0, panel=VALUES)
    ]
    routing: Annotated[
        str,
        Option(
            "Experts that a mixture-of-experts router with random scores selects: auto, drawn, balanced, worst, or a "
            "skew such as 1.5.",
            more='A number is the exponent of a Zipf distribution over the experts. "auto" means "drawn"; for one rank '
            'of several it means "balanced", with "worst" as the end of the range.',
            default="auto",
            panel=VALUES,
        ),
    ]
    random_weights: Annotated[
        bool,
        Option("Generate missing weights and tokenizers from their configuration.", default=False, panel=DATA),
    ]
    config: Annotated[
        str | Path | None,
        Option("Folder with the config.json of a model whose configuration ullage does not contain.", panel=DATA),
    ]
    made_up_data: Annotated[
        str | None,
        Option(
            "Generate the rows of a missing data set: text:length=2048,rows=64, chat, preference or image:224.",
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
            "Number of ranks of the job. The script runs as one rank, in one process, for any parallel layout.",
            panel=RUN,
        ),
    ]


class RankOptions(WorldOptions, total=False):
    """The options that select a single rank."""

    rank: Annotated[int, Option("Number of the rank to run.", default=0, panel=RUN)]


class DrawOptions(TypedDict, total=False):
    """The option that runs a script with several random seeds."""

    draws: Annotated[
        int,
        Option(
            "Number of random seeds to try if random values may affect the peak.",
            more="With the default of 3, the range of their peaks contains that of one more run in 95 of 100 cases.",
            default=3,
            panel=VALUES,
        ),
    ]


class EpochOptions(TypedDict, total=False):
    """The options that read one epoch of the training loader."""

    batches: Annotated[
        Literal["heaviest"] | None,
        Option(
            "With heaviest: read the batches of one epoch, run the heaviest batches, and predict the others.", panel=RUN
        ),
    ]
    minutes: Annotated[
        float,
        Option(
            "Time limit for reading the epoch, in minutes, in addition to the time limit of each run.",
            default=5.0,
            panel=RUN,
        ),
    ]


class PageOptions(TypedDict, total=False):
    """The options for the page of an answer."""

    html: Annotated[
        str | Path | None, Option("Write an HTML page with charts. The page needs no network.", panel=OUTPUT)
    ]
    picture: Annotated[
        bool,
        Option(
            "Keep the data of the page's charts, for `ullage.write_page` later; `html` implies it.",
            default=False,
            is_of_command=False,
        ),
    ]


class _SingleRunOptions(EveryRunOptions, WorldOptions, DrawOptions, EpochOptions, total=False):
    count: Annotated[int, Option("Number of these GPUs that the script sees.", default=1, panel=GPU)]
    snapshot: Annotated[
        str | Path | None,
        Option("Write a PyTorch memory snapshot, which memory_viz and `ullage explain` can read.", panel=OUTPUT),
    ]
    output: Annotated[bool, Option("Show the output of the script, on standard error.", default=False, panel=OUTPUT)]
    processes: Annotated[
        Literal["alone", "real"],
        Option(
            "Processes of a launcher to run: alone (one rank, without the others) or real (all ranks together).",
            default="alone",
            panel=RUN,
        ),
    ]
    until: Annotated[
        Literal["eval", "save", "end"] | None,
        Option(
            "Continue after the steps through the first evaluation (eval) or the first save (save), or until the "
            "script ends (end).",
            panel=RUN,
        ),
    ]
    host_memory: Annotated[
        int | str | None,
        Option(
            "Host memory of one node, such as 64GiB. If it is given, the script has to fit into it too.",
            more="An int is in bytes; a str has a unit.",
            panel=GPU,
        ),
    ]
    request: Annotated[
        Literal["slurm", "k8s"] | None,
        Option("Write the lines that request the predicted resources from a cluster: slurm or k8s.", panel=OUTPUT),
    ]


class RunChanges(_SingleRunOptions, total=False):
    """The options that may differ between two runs on the same GPU."""

    rank: Annotated[int, Option("Number of the rank to run.", default=0, panel=RUN)]


class RunOptions(GpuOption, RunChanges, total=False):
    """All options that affect a run."""


class PredictOptions(GpuOption, _SingleRunOptions, PageOptions, total=False):
    """The options of `ullage predict`."""

    rank: Annotated[
        int | Literal["all"],
        Option(
            "Number of the rank to run. With all: run each rank in turn, and report the one that uses most memory.",
            default=0,
            panel=RUN,
        ),
    ]
    beside_eager: Annotated[
        bool,
        Option("Run a script that uses torch.compile a second time without it, to compare.", default=True, panel=RUN),
    ]
    resume: Annotated[
        str | None,
        Option(
            "Run the script a second time with these arguments added, to resume from a save.",
            more='The text is split into arguments as a shell does: "--resume_from_checkpoint out/checkpoint-3". Both '
            "runs are reported. Without `until`, the first run continues until its first save.",
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
                "Option of the script whose values to try: --batch-size, or --batch-size=8..64:8. May be given twice.",
                more="With two options, the answer is a frontier.",
                panel=RUN,
            ),
        ]
    ]
    changes: Annotated[
        bool,
        Option(
            "Also try allocator settings and optimizer defaults that need no change to the script.",
            default=True,
            panel=RUN,
        ),
    ]


class FitLayoutOptions(_SearchOptions, total=False):
    """The options of `ullage fit --layout`."""

    vary: Annotated[
        str | Sequence[str] | None,
        Option("Option of the script for the micro-batch size, and its values: --micro-batch=1..16.", panel=RUN),
    ]
    layout: Required[
        Annotated[
            str,
            Option(
                "Axes of the parallel layouts to try: dp*tp*pp*cp, or dp*tp,ep for experts within dp.",
                more="The sizes of the axes multiply to the number of GPUs. Axes after a comma are within dp and cp.",
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
            "Option of the script that sets an axis: tp=--tensor-parallel, or tp=env:TP for an environment variable.",
            default=(),
            panel=LAYOUTS,
        ),
    ]
    most: Annotated[Sequence[str], Option("Largest size of an axis: tp=8.", default=(), panel=LAYOUTS)]
    choose: Annotated[
        Sequence[str],
        Option("Values of an option of the script to try with each layout: --zero=1,2,3.", default=(), panel=LAYOUTS),
    ]
    rank_order: Annotated[
        str | None,
        Option(
            "Order of the layout's axes, from the outermost to the innermost. By default pp*dp*cp*tp.", panel=LAYOUTS
        ),
    ]
    ranks: Annotated[
        Literal["alike", "stages"],
        Option(
            "Ranks to run: one of each group of ranks that are alike by construction (alike), or one of every pipeline "
            "stage (stages).",
            default="alike",
            panel=LAYOUTS,
        ),
    ]
    accumulate: Annotated[int, Option("Number of micro-batches in a step.", default=1, panel=LAYOUTS)]
    item_tokens: Annotated[int | None, Option("Number of tokens in an item of a batch.", panel=LAYOUTS)]
    on: Annotated[
        str | None,
        Option(
            "Engine that runs the layouts: local, ray, ray://HOST:PORT, slurm or slurm:partition=NAME.", panel=LAYOUTS
        ),
    ]
    workers: Annotated[
        int | None,
        Option("Number of runs at the same time on this machine. By default one for each CPU core.", panel=LAYOUTS),
    ]
    store: Annotated[
        str | Path | None,
        Option(
            "File that stores the results. By default a file in the user's cache folder. With none: do not store them.",
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
            "Option of the script whose largest value to find: --batch-size, or --batch-size=8..64:8.",
            more="The largest value is found for the script as it is, and with the changes of each cost level added. A "
            "diff is not written.",
            panel=RUN,
        ),
    ]
    html: Annotated[
        str | Path | None, Option("Write an HTML page with charts. The page needs no network.", panel=OUTPUT)
    ]
