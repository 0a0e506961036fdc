"""Collect facts about training in the script's process, during the first steps."""

# The hooks store names, lines and numbers only. They keep no tensor alive and allocate no GPU memory, so the run's
# memory use does not change.

import functools
import linecache
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import torch
import torch.utils.checkpoint
import torch.utils.data
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ullage.gpu.tracing.journal import Entries, Journal
from ullage.gpu.tracing.source import is_users
from ullage.predicting.changes.training import model_structure
from ullage.predicting.changes.training.batch_tensors import batch_of, items_of, merged, sharing
from ullage.predicting.changes.training.facts import (
    IGNORED,
    BatchTensor,
    BlockList,
    CodePlace,
    LibraryCall,
    LoopFacts,
    LossFacts,
    ModelFacts,
    OptimizerFacts,
    PassFacts,
    TrainingFacts,
)
from ullage.predicting.changes.training.known_names import names_of, place_of, users_frame, users_frames
from ullage.predicting.changes.training.loss_form import LossWatch
from ullage.predicting.changes.training.repeated_effects import RepeatedEffects, tracks_statistics
from ullage.predicting.changes.training.saved_bytes import BlockSpan, largest_of, left_by
from ullage.predicting.changes.training.training_loop import TrainingLoop
from ullage.predicting.changes.training.wrapping import PLACES, adapter_calls, watch_calls
from ullage.training.ownership.storage import addresses, tensors_in

_IMPLEMENTATIONS = ("foreach", "fused")
_LEAST_SCORES_BYTES = 1 << 20
# The hooks on the training loop stop collecting facts after this number of steps.
_STEPS: int = 3


@dataclass(slots=True)
class _SeenPass:
    start: int
    backward: int = 0
    # The key is the index of the block's list, and the block's index in this list.
    spans: dict[tuple[int, int], BlockSpan] = field(default_factory=dict)
    flops: dict[tuple[int, int], int] = field(default_factory=dict)


class Gatherer:
    """Collects facts about training during the first steps of a run. Call `install` first, and `facts` at the end."""

    def __init__(self, loop: TrainingLoop, journal: Journal) -> None:
        self._loop = loop
        self._journal = journal
        self._steps = 0
        # If several models are trained, this is the one with the most parameter bytes.
        self._model: ModelFacts | None = None
        self._optimizers: dict[int, OptimizerFacts] = {}
        self._made: dict[int, CodePlace | None] = {}
        self._batch: list[BatchTensor] = []
        self._items: int | None = None
        self._losses: dict[CodePlace, LossFacts] = {}
        self._found = LoopFacts()
        self._passes: list[_SeenPass] = []
        self._since_step = 0
        # The lines at the first forward pass since the last backward pass, one for each stack frame.
        self._forward_places: list[CodePlace] = []
        self._is_partly_elsewhere = False
        self._losses_seen = LossWatch()
        self._repeated_effect = ""

    def install(self) -> None:
        """Install the hooks that collect facts about training. Call this right after torch is imported."""
        loop = self._loop
        loop.gathered = self.facts
        loop.before_first_forward.append(self._first_forward)
        loop.before_forward.append(self._forward)
        loop.before_backward.append(self._backward)
        loop.optimizer_made.append(self._optimizer_made)
        register_optimizer_step_pre_hook(self._step)
        self._wrap(torch.optim.Optimizer, "zero_grad", self._zero_grad)
        self._wrap(torch.amp.autocast_mode.autocast, "__enter__", self._autocast_entered)
        self._wrap(torch.amp.grad_scaler.GradScaler, "scale", self._scaled)
        self._wrap(torch.utils.data.DataLoader, "__iter__", lambda *_: self._note(uses_loader=True))
        for owner in (torch.nn.utils, torch.nn.utils.clip_grad):
            for name in ("clip_grad_norm_", "clip_grad_value_"):
                self._wrap(owner, name, self._clipped)
        self._wrap(torch.nn.functional, "cross_entropy", self._cross_entropy)
        self._watch_checkpoints()
        self._losses_seen.install()
        adapter_calls(self._adapters_made)
        for library, (_, function, _) in PLACES.items():
            watch_calls(library, functools.partial(self._library_called, library, function))

    def _adapters_made(self, keywords: dict[str, Any]) -> None:
        frame = users_frame()
        if frame is not None:
            self._note(adapters_made=place_of(frame))

    def _wrap(self, owner: Any, name: str, before: Callable[..., None]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapper(*arguments: Any, **keywords: Any) -> Any:
            if not torch.compiler.is_compiling():
                before(*arguments, **keywords)
            return original(*arguments, **keywords)

        setattr(owner, name, wrapper)

    def _note(self, **found: Any) -> None:
        self._found = replace(self._found, **found)

    @property
    def _is_over(self) -> bool:
        return self._steps >= _STEPS

    # ---- the model

    def _first_forward(self, module: nn.Module, frame: FrameType | None) -> None:
        if self._is_over:
            return
        model, wrapper, is_compiled = model_structure.unwrapped(module)
        blocks = model_structure.blocks_of(model)
        path, inner = model_structure.transformers_in(model)
        config = getattr(inner, "config", None)
        facts = ModelFacts(
            kind=type(model).__name__,
            library=_library_of(type(model)),
            names=names_of(frame, model, module if module is not model else None),
            block_lists=[
                BlockList(
                    path=each.path,
                    kind=type(each.modules[0]).__name__,
                    count=len(each.modules),
                    parameter_bytes=model_structure.parameter_bytes(each.modules[0]),
                    has_switch=all(model_structure.has_switch(block) for block in each.modules),
                    has_statistics=any(tracks_statistics(part) for block in each.modules for part in block.modules()),
                )
                for each in blocks
            ],
            parameter_bytes=model_structure.parameter_bytes(model),
            dtypes=model_structure.dtypes_of(model),
            attention=getattr(config, "_attn_implementation", None),
            has_sdpa=bool(getattr(inner, "_supports_sdpa", False)),
            transformers_path=path,
            model_type=str(getattr(config, "model_type", "") or ""),
            is_compiled=is_compiled or model_structure.has_compiled_part(model),
            batch_norms=model_structure.batch_norms_of(model),
            heads=model_structure.heads_of(model),
            wrapper=wrapper,
        )
        self._note(has_wide_adapters=model_structure.has_wide_adapters(model))
        if self._model is None or facts.parameter_bytes > self._model.parameter_bytes:
            self._model = facts
            self._loop.watched.clear()
            for number, each in enumerate(blocks):
                for position, block in enumerate(each.modules):
                    watch = functools.partial(self._around_block, (number, position), weakref.ref(block))
                    self._loop.watched[id(block)] = watch

    @contextmanager
    def _around_block(
        self, key: tuple[int, int], block: "weakref.ref[nn.Module]", module: nn.Module, arguments: tuple[Any, ...]
    ) -> Iterator[Callable[[Any], None]]:
        if self._is_over or not self._passes or block() is not module:
            yield lambda output: None
            return
        start, flops = self._journal.length(), self._loop.flops_now() if self._loop.flops_now else 0
        effects = RepeatedEffects(module, arguments)

        def tell(output: Any) -> None:
            self._repeated_effect = self._repeated_effect or effects.found()
            current = self._passes[-1]
            outputs = tuple(addresses(tensors_in(output)))
            current.spans.setdefault(key, BlockSpan(start=start, end=self._journal.length(), outputs=outputs))
            if self._loop.flops_now:
                current.flops[key] = current.flops.get(key, 0) + self._loop.flops_now() - flops

        yield tell

    # ---- the loop

    def _forward(self, module: nn.Module, frame: FrameType | None) -> None:
        if self._is_over:
            return
        self._note_autocast()
        if not self._forward_places:
            self._forward_places = [place_of(each) for each in users_frames(frame)]
        if frame is not None and self._found.forward is None:
            library = _library_between(sys._getframe(1), frame) or self._found.library
            self._note(forward=place_of(frame), library=library)
        if not self._batch:
            given = list(tensors_in(self._loop.arguments))
            self._batch, self._items = batch_of(frame, given), items_of(given)
        self._passes.append(_SeenPass(start=self._journal.length()))

    def _backward(self) -> None:
        if self._is_over:
            return
        if not self._since_step and not self._steps:
            form, share = self._losses_seen.form(self._loop.roots, self._items, has_scaler=self._found.has_scaler)
            self._note(loss=form, share=share)
        self._since_step += 1
        if self._passes and not self._passes[-1].backward:
            self._passes[-1].backward = self._journal.length()
        begun, self._forward_places = self._forward_places, []
        frame = users_frame()
        if frame is not None:
            self._note_pass(place_of(frame), begun)

    def _note_pass(self, backward: CodePlace, forward: list[CodePlace]) -> None:
        here = [each for each in forward if (each.file, each.function) == (backward.file, backward.function)]
        if self._found.backward is None:
            self._note(backward=backward, forward_in_loop=here[0] if here else None)
        if not here or self._is_partly_elsewhere:
            self._is_partly_elsewhere = True
            self._note(passes=[])
            return
        new = PassFacts(forward=here[0], backward=backward)
        known = [each for each in self._found.passes if each.backward == backward]
        if not any(each.forward.line <= new.forward.line for each in known):
            others = [each for each in self._found.passes if each.backward != backward]
            self._note(passes=[*others, new])

    def _optimizer_made(self, optimizer: torch.optim.Optimizer) -> None:
        frame = users_frame()
        self._made[id(optimizer)] = place_of(frame) if frame is not None else None

    def _step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._is_over:
            return
        frame = users_frame()
        if id(optimizer) not in self._optimizers:
            kind = type(optimizer)
            self._optimizers[id(optimizer)] = OptimizerFacts(
                kind=kind.__name__,
                module=kind.__module__,
                names=names_of(frame, optimizer),
                made=self._made.get(id(optimizer)),
                says_implementation=any(optimizer.defaults.get(name) is not None for name in _IMPLEMENTATIONS),
                implementations=[name for name in _IMPLEMENTATIONS if name in optimizer.defaults],
            )
        if self._found.step is None and frame is not None:
            self._note(step=place_of(frame))
        if self._since_step:  # if there are several optimizers, the first one counts
            self._note(passes_per_step=self._since_step)
            self._since_step = 0
            self._steps += 1

    def _zero_grad(self, optimizer: Any, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002  torch's own
        frame = users_frame()
        if self._is_over or frame is None:
            return
        if self._found.zero_grad is None:
            self._note(zero_grad=place_of(frame))
        if not set_to_none:
            self._note(keeps_zeroed=True)

    def _note_autocast(self) -> None:
        if torch.is_autocast_enabled("cuda") and self._found.autocast is None:
            name = str(torch.get_autocast_dtype("cuda")).removeprefix("torch.")
            self._note(autocast=name)

    def _autocast_entered(self, context: Any) -> None:
        frame = users_frame()
        if context._enabled and context.device == "cuda" and self._found.autocast_entered is None and frame is not None:
            self._note(autocast_entered=place_of(frame), autocast_caches=bool(context._cache_enabled))
        if self._loop.is_forward and context._enabled and context.device == "cuda" and self._found.autocast is None:
            self._note(autocast=str(context.fast_dtype).removeprefix("torch."))

    def _scaled(self, scaler: Any, *_: Any) -> None:
        if scaler.is_enabled():
            self._note(has_scaler=True)

    def _clipped(self, *_: Any, **__: Any) -> None:
        frame = users_frame()
        if self._found.clip is None and frame is not None:
            self._note(clip=place_of(frame))
        self._note(clips_gradients=True)

    def _watch_checkpoints(self) -> None:
        module: Any = torch.utils.checkpoint
        self._wrap(module, "_checkpoint_without_reentrant_generator", lambda *_, **__: self._note(checkpoints=True))
        original = module.CheckpointFunction.apply

        def apply(*arguments: Any, **keywords: Any) -> Any:
            self._note(checkpoints=True)
            return original(*arguments, **keywords)

        module.CheckpointFunction.apply = staticmethod(apply)

    def _library_called(self, library: str, function: str, made: Any, keywords: dict[str, Any]) -> None:
        frame = users_frame()
        if frame is not None:
            name = type(made).__name__ if library == "transformers" else function
            call = LibraryCall(function=name, place=place_of(frame))
            self._note(library=library, library_call=call)

    # ---- the loss

    def _cross_entropy(self, source: Any, target: Any = None, *_: Any, **keywords: Any) -> None:
        frame = users_frame()
        if self._is_over or frame is None or not torch.is_grad_enabled() or not isinstance(source, torch.Tensor):
            return
        self._note_autocast()
        place = place_of(frame)
        if place not in self._losses and source.ndim:
            classes = source.shape[1] if source.ndim > 1 else source.shape[0]
            self._losses[place] = LossFacts(
                place=place,
                is_users=sys._getframe(2).f_code is frame.f_code,
                rows=source.numel() // max(1, classes),
                classes=int(classes),
                dtype=str(source.dtype).removeprefix("torch."),
                ignore_index=int(keywords.get("ignore_index", IGNORED)),
                is_smoothed=bool(keywords.get("label_smoothing")) or keywords.get("weight") is not None,
            )
        if self._batch and self._steps == 0:
            self._batch = merged(self._batch, sharing(frame, target))

    # ---- results

    def facts(self, entries: Entries) -> TrainingFacts:
        """Return the collected facts about training."""
        return TrainingFacts(
            model=self._model_facts(entries),
            loop=replace(self._found, ignores_targets=self._losses_seen.ignores_targets),
            optimizers=list(self._optimizers.values()),
            batch=self._batch,
            items=self._items,
            losses=list(self._losses.values()),
            step_flops=self._loop.step_flops,
            compute_capability=torch.cuda.get_device_capability() if torch.cuda.is_initialized() else (0, 0),
        )

    def _model_facts(self, entries: Entries) -> ModelFacts | None:
        facts = self._model
        whole = [each for each in self._passes if each.backward and each.spans]
        if facts is None or not whole:
            return facts
        last = whole[-1]
        keys = sorted(last.spans)
        saved = dict(zip(keys, left_by(entries, [last.spans[key] for key in keys], last.backward), strict=True))
        lists = []
        for number, each in enumerate(facts.block_lists):
            blocks = [(number, position) for position in range(each.count)]
            sizes = [saved.get(key, 0) for key in blocks]
            flops = [whole[0].flops.get(key, 0) for key in blocks] if last.flops else []
            figures = replace(
                each,
                saved_bytes=sum(sizes) // max(1, len(sizes)),
                forward_flops=sum(flops) // max(1, len(flops)),
                saved_by_block=sizes,
                flops_by_block=flops,
            )
            lists.append(figures)
        scores = self._scores(entries, last)
        return replace(facts, block_lists=lists, scores=scores, repeated_effect=self._repeated_effect)

    def _scores(self, entries: Entries, last: _SeenPass) -> CodePlace | None:
        if not self._journal.stacks.are_recorded:
            return None
        for index, size in largest_of(entries, last.start, last.backward):
            if size < _LEAST_SCORES_BYTES:
                break
            line = self._journal.stacks.users_line(int(entries["stack"][index]))
            if line is None or not entries["module"][index]:
                continue
            text = linecache.getline(line.file, line.line)
            if "softmax(" in text and "log_softmax(" not in text:
                return CodePlace(file=line.file, line=line.line, function=line.function)
        return None


def _library_of(kind: type) -> str:
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None) or ""
    return "" if not file or is_users(file) else kind.__module__.partition(".")[0]


# A library that runs the training loop has stack frames between those of the model and of the user's code.
def _library_between(inner: FrameType | None, outer: FrameType) -> str:
    while inner is not None:
        name = str(inner.f_globals.get("__name__", ""))
        if name.startswith("transformers.trainer"):
            return "transformers"
        if name.startswith(("lightning.pytorch.", "pytorch_lightning.")) and ".loops." in name:
            return "lightning"
        inner = inner.f_back
    return ""
