"""Convert a parallel layout to the script's options and environment variables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ullage.base.errors import UsageError, quoted
from ullage.predicting.fitting.axis import with_option
from ullage.predicting.layouts.layout import CardLayout, LayoutSpace

PIPELINE: Final = "pp"
CONTEXT: Final = "cp"
"""The name of the context-parallel axis, whose ranks process different parts of a sequence."""
VARIABLE: Final = "env:"
"""The prefix that marks the name of an environment variable, as in "env:TP"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionMap:
    """Maps each parallel axis to the script option that sets its size."""

    targets: Mapping[str, str]
    """Maps each parallel axis to a script option, or to `env:NAME` for an environment variable."""
    implied: frozenset[str] = frozenset({"dp"})
    """The parallel axes whose size the program computes from the other sizes."""
    fixed: tuple[tuple[str, str], ...] = ()
    """Options and environment variables with the same value in every layout."""
    order: tuple[str, ...] = ("pp", "dp", "dp_replicate", "dp_shard", "cp", "sp", "tp")
    """The parallel axes from the outermost to the innermost.

    Ranks with consecutive numbers are neighbours along the innermost axis.
    """
    items: frozenset[str] = field(default_factory=lambda: frozenset({"dp", "dp_replicate", "dp_shard"}))
    """The parallel axes whose ranks process different items of the data set."""


READY: Final[Mapping[str, OptionMap]] = {
    # torchtitan's JobConfig and ParallelDims (0.1 and 0.2; expert parallelism from 0.2)
    "torchtitan": OptionMap(
        targets={
            "dp": "--parallelism.data_parallel_shard_degree",
            "dp_shard": "--parallelism.data_parallel_shard_degree",
            "dp_replicate": "--parallelism.data_parallel_replicate_degree",
            "tp": "--parallelism.tensor_parallel_degree",
            "pp": "--parallelism.pipeline_parallel_degree",
            "cp": "--parallelism.context_parallel_degree",
            "ep": "--parallelism.expert_parallel_degree",
        },
    ),
    # Megatron-LM's megatron/training/arguments.py (core 0.9 to 0.14), whose default order is tp-cp-ep-dp-pp
    "megatron": OptionMap(
        targets={
            "tp": "--tensor-model-parallel-size",
            "pp": "--pipeline-model-parallel-size",
            "cp": "--context-parallel-size",
            "ep": "--expert-model-parallel-size",
        },
        order=("pp", "dp", "cp", "tp"),
    ),
    # accelerate's ParallelismConfig (1.10 to 1.15), which reads environment variables
    "accelerate": OptionMap(
        targets={
            "dp": "env:PARALLELISM_CONFIG_DP_SHARD_SIZE",
            "dp_shard": "env:PARALLELISM_CONFIG_DP_SHARD_SIZE",
            "dp_replicate": "env:PARALLELISM_CONFIG_DP_REPLICATE_SIZE",
            "tp": "env:PARALLELISM_CONFIG_TP_SIZE",
            "cp": "env:PARALLELISM_CONFIG_CP_SIZE",
            "sp": "env:PARALLELISM_CONFIG_SP_SIZE",
        },
        implied=frozenset(),
        fixed=(("env:ACCELERATE_USE_PARALLELISM_CONFIG", "true"),),
        order=("dp", "dp_replicate", "dp_shard", "cp", "sp", "tp"),
    ),
    # Megatron-DeepSpeed's arguments
    "deepspeed": OptionMap(
        targets={
            "tp": "--tensor-model-parallel-size",
            "pp": "--pipeline-model-parallel-size",
            "sp": "--ds-sequence-parallel-size",
            "ep": "--moe-expert-parallel-size",
            "zero": "--zero-stage",
        },
    ),
    # Lightning's ModelParallelStrategy (2.4 to 2.6) by LightningCLI
    "lightning": OptionMap(
        targets={
            "dp": "--trainer.strategy.init_args.data_parallel_size",
            "tp": "--trainer.strategy.init_args.tensor_parallel_size",
        },
        implied=frozenset(),
        order=("dp", "tp"),
    ),
}


def map_of(name: str | None, options: Sequence[str], space: LayoutSpace, *, order: str | None = None) -> OptionMap:
    """Return a built-in option map, in which the user's options replace those of the map.

    Args:
        name: the name of a built-in map; None to use only the user's options.
        options: the user's options, such as `tp=--tensor-parallel` or `tp=env:TP`.
        space: the layouts, each axis of which needs a target.
        order: the axes from the outermost to the innermost, such as `pp*dp*cp*tp`, if the program numbers its ranks
            in another order.

    Raises:
        UsageError: the map does not exist, an axis has no target, or the numbering of ranks is unknown.
    """
    if name is not None and name not in READY:
        raise UsageError(f"layout_map={quoted(name)} is unknown; expected one of {', '.join(READY)}")
    chosen = READY[name] if name is not None else OptionMap(targets={})
    targets = dict(chosen.targets)
    names = (*space.axes, *space.within)
    for text in options:
        axis, equals, target = text.strip().partition("=")
        if not equals or axis not in names or not target.removeprefix(VARIABLE):
            raise UsageError(
                f"layout_option={quoted(text)} does not map an axis of layout= to an option; expected for example "
                f"{names[-1]}=--{names[-1]}-size"
            )
        targets[axis] = target
    for axis in names:
        if axis not in targets and axis not in chosen.implied:
            raise UsageError(
                f"no option of the script is known that sets {axis}; give layout_option='{axis}=--OPTION', or "
                f"layout_map= with one of {', '.join(READY)}"
            )
    if order is not None:
        given = tuple(order.replace(" ", "").split("*"))
        if set(given) != set(space.axes):
            raise UsageError(
                f"rank_order={quoted(order)} does not name the axes of layout=; expected each of them once"
            )
        chosen = replace(chosen, order=given)
    unplaced = [axis for axis in space.axes if axis not in chosen.order]
    if unplaced and {PIPELINE, CONTEXT} & set(space.axes):
        raise UsageError(
            f"the order of ranks along {unplaced[0]} is unknown; give rank_order= with the axes from the outermost to "
            f"the innermost, such as {'*'.join(space.axes)}"
        )
    return replace(chosen, targets=targets)


def put(
    option_map: OptionMap, layout: CardLayout, arguments: tuple[str, ...]
) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """Return the script arguments and environment variables for a parallel layout."""
    settings = [(option_map.targets[axis], str(size)) for axis, size in layout.sizes if axis in option_map.targets]
    environment = {}
    for target, value in (*option_map.fixed, *settings, *layout.choices):
        if target.startswith(VARIABLE):
            environment[target.removeprefix(VARIABLE)] = value
        else:
            arguments = with_option(arguments, target, value)
    return arguments, environment
