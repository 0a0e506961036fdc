"""The options of a run on an emulated GPU, each defined once.

`ullage predict`, `fit` and `advise`, their --help, the Python functions of the same names, a `Request` and what the
script's process is told are all made from these lists. A new option is written here, and read where it has an effect:
`request.options["name"]`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, Required, TypedDict

from ullage.base.option import Option
from ullage.gpu.placement import Placement
from ullage.gpu.values.choice import ValuesMode

_DATA = "Missing weights and data"
_VALUES = "Values that are read back from the GPU"
_OUTPUT = "Output"
_LAYOUTS = "Parallel layouts"


class GpuOption(TypedDict):
    """What every question needs."""

    gpu: Annotated[str, Option("The GPU: a name such as 'RTX 4090' (ullage gpus lists them) or a size (24GiB).")]


class EveryRunOptions(TypedDict, total=False):
    """What predict, fit and advise ask of every run."""

    steps: Annotated[
        int | None,
        Option("Stop after this many optimizer steps. By default 3, and up to 6 more until the peak settles."),
    ]
    seconds: Annotated[
        float,
        Option("Stop each run after this many seconds.", more="The import of torch does not count.", default=300.0),
    ]
    arch: Annotated[str | None, Option("Architecture of a GPU that is given by its size, such as sm_90.")]
    alloc_conf: Annotated[
        str | None, Option("PYTORCH_CUDA_ALLOC_CONF for the runs. By default the one of the environment.")
    ]
    total_memory: Annotated[
        int | str | None,
        Option("Memory of the GPU, in place of the known one: 14.56GiB.", more="Bytes, or a text with a unit."),
    ]
    context: Annotated[
        int | str | None, Option("Memory that the CUDA context takes.", more="Bytes, or a text with a unit.")
    ]
    cudnn_workspace: Annotated[
        int | str | None,
        Option(
            "Workspace of every cuDNN plan, in place of cuDNN's own (see ULLAGE_CUDNN).",
            more="Bytes, or a text with a unit.",
        ),
    ]
    placement: Annotated[
        Placement,
        Option(
            "Driver whose choice of addresses is emulated: linux, wsl, windows or linux-host. Up to torch 2.11 it "
            "decides what is reserved.",
            default="linux",
        ),
    ]
    values: Annotated[
        ValuesMode,
        Option(
            "How to find values that the script reads back from the GPU: auto, on, off (all are zero) or all (the "
            "host computes everything).",
            more='"auto" computes what is known and draws the rest, for as long as the script reads something; "on" '
            "does so to the end.",
            default="auto",
            panel=_VALUES,
        ),
    ]
    values_seed: Annotated[
        int, Option("Seed of the values that cannot be known and are drawn.", default=0, panel=_VALUES)
    ]
    routing: Annotated[
        str,
        Option(
            "Experts that a router with drawn scores chooses: auto, drawn, balanced, worst, or a skew (1.5).",
            more='A number is the exponent of a Zipf law over the experts. "auto" is "drawn"; for one rank of several '
            'it is "balanced", with "worst" as the end of the interval.',
            default="auto",
            panel=_VALUES,
        ),
    ]
    random_weights: Annotated[
        bool,
        Option(
            "Make up weights and tokenizers that are missing, from their configuration.", default=False, panel=_DATA
        ),
    ]
    config: Annotated[
        str | Path | None, Option("Folder with the config.json of a model that is not known.", panel=_DATA)
    ]
    made_up_data: Annotated[
        str | None,
        Option(
            "Make up the rows of a missing data set: text:length=2048,rows=64, chat, preference or image:224.",
            panel=_DATA,
        ),
    ]
    lengths: Annotated[
        str | Path | None,
        Option("File with the lengths of made-up rows: one on each line, or LENGTH,COUNT.", panel=_DATA),
    ]


class WorldOptions(TypedDict, total=False):
    """What runs a script as one rank of several."""

    world_size: Annotated[int | None, Option("Run as one rank of this many (of any parallel layout), in one process.")]


class RankOptions(WorldOptions, total=False):
    """The same, for a single rank."""

    rank: Annotated[int, Option("The rank to run.", default=0)]


class DrawOptions(TypedDict, total=False):
    """What runs a script more than once."""

    draws: Annotated[
        int,
        Option(
            "Number of seeds to try where drawn values may decide.",
            more="The interval of their peaks holds one more run in 95 of 100 cases with the default of 3.",
            default=3,
            panel=_VALUES,
        ),
    ]


class EpochOptions(TypedDict, total=False):
    """What goes through an epoch of the training loader."""

    batches: Annotated[
        Literal["heaviest"] | None,
        Option("heaviest: go through the batches of an epoch, run the heaviest ones, and predict the rest."),
    ]
    minutes: Annotated[float, Option("Time limit for --batches, in addition to --seconds.", default=5.0)]


class PageOptions(TypedDict, total=False):
    """What draws an answer."""

    html: Annotated[str | Path | None, Option("Write a page with pictures, which needs no network.", panel=_OUTPUT)]
    picture: Annotated[
        bool,
        Option(
            "Keep what a page draws, for `ullage.write_page` later; `html` implies it.",
            default=False,
            is_of_command=False,
        ),
    ]


class _SingleRunOptions(EveryRunOptions, WorldOptions, DrawOptions, EpochOptions, total=False):
    count: Annotated[int, Option("Number of such GPUs that the script sees.", default=1)]
    snapshot: Annotated[
        str | Path | None,
        Option("Write a PyTorch memory snapshot, which memory_viz and ullage explain read.", panel=_OUTPUT),
    ]
    output: Annotated[bool, Option("Show what the script prints, on standard error.", default=False, panel=_OUTPUT)]
    processes: Annotated[
        Literal["alone", "real"],
        Option(
            "Of a launcher's processes: alone (one rank, without the others) or real (all of them together).",
            default="alone",
        ),
    ]
    until: Annotated[
        Literal["eval", "save", "end"] | None,
        Option("Go on after the steps: to the first evaluation (eval) or save after one, or to the end."),
    ]
    host_memory: Annotated[
        int | str | None,
        Option(
            "Memory of one node's host, such as 64GiB. With it, the host decides too.",
            more="Bytes, or a text with a unit.",
        ),
    ]
    request: Annotated[
        Literal["slurm", "k8s"] | None,
        Option("Write the lines that request what was found from a cluster: slurm or k8s.", panel=_OUTPUT),
    ]


class RunChanges(_SingleRunOptions, total=False):
    """What one run has that another run on the same GPU may have differently."""

    rank: Annotated[int, Option("The rank to run.", default=0)]


class RunOptions(GpuOption, RunChanges, total=False):
    """Everything that decides one run."""


class PredictOptions(GpuOption, _SingleRunOptions, PageOptions, total=False):
    """The options of `ullage predict`."""

    rank: Annotated[
        int | Literal["all"], Option("The rank to run; all: each in turn, with the answer for the fullest.", default=0)
    ]
    beside_eager: Annotated[bool, Option("Run a script that uses torch.compile once more without it.", default=True)]
    resume: Annotated[
        str | None,
        Option(
            "Run the script once more with these arguments too, to resume from a save.",
            more='As a shell reads them: "--resume_from_checkpoint out/checkpoint-3". Both runs are reported. Without '
            "`until`, the first one goes on to its first save.",
            metavar="ARGUMENTS",
        ),
    ]


class _SearchOptions(GpuOption, EveryRunOptions, DrawOptions, PageOptions, total=False):
    margin: Annotated[
        int | str, Option("Memory to leave free on each GPU: 5% or 1GiB.", more="Bytes, or a text.", default="0%")
    ]


class FitOptions(_SearchOptions, RankOptions, EpochOptions, total=False):
    """The options of `ullage fit`."""

    vary: Required[
        Annotated[
            str | Sequence[str],
            Option(
                "Option of the script whose values to try: --batch-size, or --batch-size=8..64:8. At most twice.",
                more="Two of them give a frontier.",
            ),
        ]
    ]
    changes: Annotated[
        bool,
        Option("Also try allocator settings and optimizer defaults, which need no change to the script.", default=True),
    ]


class FitLayoutOptions(_SearchOptions, total=False):
    """The options of `ullage fit --layout`."""

    vary: Annotated[
        str | Sequence[str] | None, Option("Option of the micro-batch and its values: --micro-batch=1..16.")
    ]
    layout: Required[
        Annotated[
            str,
            Option(
                "Try every parallel layout: dp*tp*pp*cp; dp*tp,ep for experts within dp.",
                more="The sizes of these axes multiply to the number of GPUs; after a comma: those within dp and cp.",
                panel=_LAYOUTS,
            ),
        ]
    ]
    cards: Required[Annotated[int, Option("Number of GPUs to lay out.", panel=_LAYOUTS)]]
    layout_map: Annotated[
        Literal["torchtitan", "megatron", "accelerate", "deepspeed", "lightning"] | None,
        Option(
            "Program whose options the script has: torchtitan, megatron, accelerate, deepspeed or lightning.",
            panel=_LAYOUTS,
        ),
    ]
    layout_option: Annotated[
        Sequence[str],
        Option("The script's option for an axis: tp=--tensor-parallel, or tp=env:TP.", default=(), panel=_LAYOUTS),
    ]
    most: Annotated[Sequence[str], Option("Largest size of an axis: tp=8.", default=(), panel=_LAYOUTS)]
    choose: Annotated[
        Sequence[str], Option("Values of an option to try with each layout: --zero=1,2,3.", default=(), panel=_LAYOUTS)
    ]
    rank_order: Annotated[
        str | None, Option("Axes from the outermost to the innermost, where they are not pp*dp*cp*tp.", panel=_LAYOUTS)
    ]
    ranks: Annotated[
        Literal["alike", "stages"],
        Option(
            "Ranks to run: one of each kind that is alike by construction (alike), or one of every pipeline stage "
            "(stages).",
            default="alike",
            panel=_LAYOUTS,
        ),
    ]
    accumulate: Annotated[int, Option("Micro-batches of a step.", default=1, panel=_LAYOUTS)]
    item_tokens: Annotated[int | None, Option("Tokens of an item.", panel=_LAYOUTS)]
    on: Annotated[
        str | None, Option("Where to run: local, ray, ray://HOST:PORT, slurm or slurm:partition=NAME.", panel=_LAYOUTS)
    ]
    workers: Annotated[
        int | None, Option("Runs at once on this machine. By default one for each core.", panel=_LAYOUTS)
    ]
    store: Annotated[
        str | Path | None,
        Option(
            "File in which to keep results. By default one in the user's cache folder; none: nowhere.", panel=_LAYOUTS
        ),
    ]


class AdviseOptions(GpuOption, EveryRunOptions, RankOptions, total=False):
    """The options of `ullage advise`."""

    patch: Annotated[
        str | Path | None, Option("Write the lines to change as a diff, for git apply.", metavar="FILE", panel=_OUTPUT)
    ]
    vary: Annotated[
        str | None,
        Option(
            "Find the largest value of an option of the script: --batch-size, or --batch-size=8..64:8.",
            more="It is found for the script as it is, and with the changes of each cost added. No diff is written.",
        ),
    ]
    html: Annotated[str | Path | None, Option("Write a page with pictures, which needs no network.", panel=_OUTPUT)]
