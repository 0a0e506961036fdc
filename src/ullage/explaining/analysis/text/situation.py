"""What a program was doing when memory ran out, derived from the traceback of its error message.

The phase (loading, forward pass, optimizer step, ...) decides which advice makes sense: while weights are loaded,
a smaller batch does not help, and without gradients activation checkpointing saves nothing.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from ullage.explaining.analysis.text.domain import Domain, domain_of
from ullage.explaining.analysis.text.phase import FailurePhase, Work, phase_of_rows
from ullage.recorded.message.log import LOADING, FoundMessage
from ullage.recorded.message.traceback import TextFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The phase in which a run failed, the stack frame that shows the phase, and the libraries in the traceback."""

    phase: FailurePhase
    shown_by: TextFrame | None
    """The stack frame from which the phase was derived; None if the phase is unknown."""
    frames: tuple[TextFrame, ...]
    """The stack frames of the traceback, the innermost first."""
    libraries: tuple[str, ...]
    """Names of the Python packages in the traceback, the innermost first, without torch."""
    work: Work = Work.UNKNOWN
    has_batch_of_one: bool = False
    """Whether the text says that a batch is one item."""
    domain: Domain | None = None
    """The field of the program, if the traceback or the lines next to the message show it."""

    @property
    def has_gradients(self) -> bool | None:
        """Whether the program computes gradients in this phase; None if that is unknown."""
        if self.phase in (FailurePhase.BACKWARD, FailurePhase.OPTIMIZER):
            return True
        if self.phase in (
            FailurePhase.LOADING,
            FailurePhase.EVALUATION,
            FailurePhase.GENERATION,
            FailurePhase.DECODING,
            FailurePhase.GATHERING,
        ):
            return False
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _PhaseSign:
    """Patterns that identify a phase of the run. A stack frame shows the phase if the frame matches all patterns."""

    phase: FailurePhase
    statement: re.Pattern[str] | None = None
    function: re.Pattern[str] | None = None
    file: re.Pattern[str] | None = None
    around: re.Pattern[str] | None = None
    """A pattern for the source lines that a notebook's traceback shows next to the statement."""

    def fits(self, frame: TextFrame) -> bool:
        texts = (
            (self.statement, frame.statement),
            (self.function, frame.function),
            (self.file, frame.file),
            (self.around, frame.around),
        )
        return all(pattern is None or (text is not None and pattern.search(text)) for pattern, text in texts)


def _words(*words: str) -> re.Pattern[str]:
    return re.compile("|".join(words))


_LOADS: Final = _words(
    r"\.from_pretrained\(",
    r"\.from_single_file\(",
    r"\btorch\.load\(",
    r"\bload_(model|file|checkpoint|weights|torch_file|state_dict|lora|pretrained|adapter|diffusion_model)\w*\(",
    r"\bsafe_open\(",
    r"(model|pipe|net|llm|vae|unet|dit|transformer|encoder|decoder|module|backbone|policy|agent)\w{0,60}"
    r"(\[\w{1,60}\])?\.(to|cuda|half)\(",
    r"\b(create_weights|dispatch_model|set_module_tensor_to_device|prepare_model)\(",
)
_LOADING_FUNCTION: Final = _words(
    r"^(_?load\w*|from_pretrained|_load_state_dict_into_\w+|set_module_tensor_to_device|create_weights)$",
    r"^(partially_load|model_load)$",
    r"^(setup|init|initialize|build|create|get|prepare)_(model|models|pipeline|pipe|network|llm)\w*$",
)
_GATHERS: Final = _words(
    r"\bstate_dict\(",
    r"\bsave_(pretrained|checkpoint|model|16bit_model)\(",
    r"summon_full_params|GatheredParameters|get_model_state_dict|full_tensor\(|get_fp32_state_dict",
)
_PREPARES: Final = _words(
    r"\baccelerator\.prepare\(",
    r"\b(DistributedDataParallel|FullyShardedDataParallel|FSDP|DDP)\(",
    r"\bfully_shard\(",
    r"\bdeepspeed\.initialize\(",
    r"\b_prepare_(fsdp|deepspeed|ddp)\w*\(",
)
_OPTIMIZERS: Final = _words(r"torch[\\/]optim[\\/]", r"bitsandbytes[\\/]optim[\\/]", r"deepspeed[\\/].{0,200}optim")
_EVALUATES: Final = _words(
    r"\b(self\.)?pipe(line)?\(",
    r"\b(no_grad|inference_mode)\b",
    r"\b(evaluate|evaluation_loop|prediction_step|validation_step|validate|predict|predict_step|test_step)\(",
    r"\bcompute_metrics\(",
)
_EVALUATING_FUNCTION: Final = _words(
    r"^(evaluate|evaluation_loop|prediction_step|validation_step|validate|test|inference)$"
)
_SIGNS: Final = (
    # Of the signs that one frame has, the first decides.
    _PhaseSign(
        phase=FailurePhase.COMPILING,
        file=_words(
            r"_inductor[\\/]\w*(select_algorithm|autotune|triton_heuristics|benchmarking)",
            r"_inductor[\\/]runtime[\\/]\w*(triton_heuristics|benchmarking)",
            r"triton[\\/](testing|runtime[\\/]autotuner)",
        ),
    ),
    _PhaseSign(phase=FailurePhase.GATHERING, statement=_GATHERS),
    _PhaseSign(phase=FailurePhase.PREPARING, statement=_PREPARES),
    _PhaseSign(phase=FailurePhase.LOADING, statement=_LOADS),
    _PhaseSign(phase=FailurePhase.LOADING, function=_LOADING_FUNCTION),
    _PhaseSign(phase=FailurePhase.LOADING, file=_words(r"(?<!data)(?<!data_)[Ll]oader\w{0,60}\.py$")),
    _PhaseSign(
        phase=FailurePhase.LOADING, file=_words(r"model_loader", r"modeling_utils\.py$"), function=_words("load")
    ),
    _PhaseSign(
        phase=FailurePhase.LOADING,
        file=_words(r"nn[\\/]modules[\\/]module\.py$", r"modeling_utils\.py$", r"pipeline_utils\.py$"),
        function=_words(r"^(to|cuda|_apply)$"),
    ),
    _PhaseSign(
        phase=FailurePhase.LOADING,
        file=_words(r"nn[\\/]modules[\\/]module\.py$"),
        statement=_words(r"^param_applied = fn\(param\)", r"^return t\.to\(", r"^(return )?(self|module)\._apply\("),
    ),
    _PhaseSign(phase=FailurePhase.OPTIMIZER, file=_OPTIMIZERS),
    _PhaseSign(
        phase=FailurePhase.LOADING,
        file=_words(r"torch[\\/]nn[\\/]modules[\\/]\w+\.py$", r"torch[\\/]nn[\\/]parameter\.py$"),
        function=_words(r"^__init__$", r"^reset_parameters$", r"^__new__$"),
    ),
    _PhaseSign(
        phase=FailurePhase.OPTIMIZER, function=_words(r"^_optimizer_step$", r"^(initialize|init)_optimizer_state\w*$")
    ),
    _PhaseSign(
        phase=FailurePhase.OPTIMIZER,
        file=_words(r"deepspeed[\\/]runtime[\\/]"),
        function=_words(r"^step$"),
    ),
    _PhaseSign(phase=FailurePhase.OPTIMIZER, statement=_words(r"\bexp_avg(_sq)?\b")),
    _PhaseSign(
        phase=FailurePhase.OPTIMIZER, statement=_words(r"(optimizer|optim|opt|scaler)\w{0,60}(\[\w{1,60}\])?\.step\(")
    ),
    _PhaseSign(phase=FailurePhase.BACKWARD, statement=_words(r"\.backward\(", r"run_backward\(", r"autograd\.grad\(")),
    _PhaseSign(
        phase=FailurePhase.BACKWARD, function=_words(r"^(backward|_engine_run_backward|unscale_\w*|training_backward)$")
    ),
    _PhaseSign(
        phase=FailurePhase.DECODING,
        statement=_words(
            r"\bvae\w*(\.\w+)?\.(decode|encode|tiled_decode)\w*\(",
            r"\b(decode|encode|cache)_(latents?|first_stage|images?|videos?)\w*\(",
        ),
    ),
    _PhaseSign(phase=FailurePhase.DECODING, file=_words(r"autoencoder", r"[\\/]\w{0,60}vae\w{0,60}(\.py$|[\\/])")),
    _PhaseSign(
        phase=FailurePhase.DECODING,
        function=_words(r"cache_\w{0,60}latents", r"encode_\w{0,60}latents", r"^vae_(en|de)code"),
    ),
    _PhaseSign(phase=FailurePhase.DECODING, file=_words(r"(video|image|visual)_?tokenizer")),
    _PhaseSign(
        phase=FailurePhase.GENERATION,
        statement=_words(r"\.generate\(", r"\b_sample\(", r"\b_beam_search\(", r"\.chat\("),
    ),
    _PhaseSign(phase=FailurePhase.GENERATION, file=_words(r"generation[\\/]utils\.py$")),
    _PhaseSign(phase=FailurePhase.EVALUATION, statement=_EVALUATES),
    _PhaseSign(phase=FailurePhase.EVALUATION, around=_words(r"\bno_grad\(", r"\binference_mode\(")),
    _PhaseSign(phase=FailurePhase.EVALUATION, function=_EVALUATING_FUNCTION),
    _PhaseSign(
        # ComfyUI's execution.py runs all nodes, also those that load a model.
        phase=FailurePhase.EVALUATION,
        file=_words(r"[\\/](diffusers[\\/]pipelines|comfy|ldm_patched|ComfyUI)[\\/](?!execution\.py|main\.py)"),
    ),
    _PhaseSign(
        phase=FailurePhase.FORWARD,
        file=_words(r"^(?!.*torch[\\/]distributed[\\/])"),
        function=_words(r"^(forward|_call_impl|__call__|_wrapped_call_impl|training_step|compute_loss)$"),
    ),
)
_BATCH_OF_ONE: Final = re.compile(r"batch(?:[_ -]?size)?['\"]?\s?[=: ]\s?1(?![\d.])", re.IGNORECASE)
_ENCODES: Final = re.compile(r"vae|autoencoder|latent|encode|decode", re.IGNORECASE)
_PROGRAMS: Final = {"ComfyUI": "comfy", "vLLM": "vllm", "SGLang": "sglang"}
_INFERS: Final = re.compile(
    r"infer|generat|pipeline|predict|sampl|decod|transcri|synthes|demo|gradio|webui|comfy|server|serve\b|chat|encode_|"
    r"[\\/](app|api|cli)\.py",
    re.IGNORECASE,
)
_TRAINS: Final = re.compile(r"train|fine_?tun|loss|optim|backward|fit\(|accelerat|deepspeed|fsdp|trl\b", re.IGNORECASE)
_PACKAGE: Final = re.compile(r"[\\/](?:site|dist)-packages[\\/](?P<name>\w+)[\\/]")
_NOT_NAMED: Final = ("torch", "threading", "runpy")


def situation_of(found: FoundMessage) -> Situation:
    """Return what the program of an error message was doing.

    Without a traceback, the lines above the message are read as statements, because people often paste only a part.
    If they show nothing, they and the lines below the message are read as the lines of a log.
    """
    frames = found.frames or tuple(
        TextFrame(file="", line=0, statement=row) for row in reversed(found.nearby) if row.strip()
    )
    situation = situation_of_frames(frames)
    if LOADING in found.context and situation.phase in (FailurePhase.UNKNOWN, FailurePhase.FORWARD):
        situation = replace(situation, phase=FailurePhase.LOADING)
    if situation.phase is FailurePhase.UNKNOWN:
        shown = phase_of_rows((*reversed(found.nearby), *found.after))
        if shown is not None:
            row = TextFrame(file="", line=0, statement=shown[1].strip())
            situation = replace(situation, phase=shown[0], shown_by=row)
    programs = tuple(name for sign, name in _PROGRAMS.items() if sign in found.context)
    work = _work_of(situation, found)
    words = "\n".join((*(f"{frame.file} {frame.statement or ''}" for frame in frames), *found.nearby, *found.after))
    situation = replace(
        situation, libraries=(*situation.libraries, *programs), work=work, domain=domain_of(words, work)
    )
    situation = replace(situation, has_batch_of_one=_BATCH_OF_ONE.search(words) is not None)
    return _of_convolutions(situation)


def _of_convolutions(situation: Situation) -> Situation:
    """Return the situation with the phase that a convolution over three dimensions shows, if nothing else does.

    Outside of training, it belongs to the autoencoder of a video model, or to the network for a volume.
    """
    if situation.phase not in (FailurePhase.UNKNOWN, FailurePhase.FORWARD):
        return situation
    is_encoder = any(_ENCODES.search(f"{frame.file} {frame.function or ''}") for frame in situation.frames)
    if situation.work is Work.TRAINING and not is_encoder:
        return situation
    shown_by = next((frame for frame in situation.frames[:3] if "conv3d(" in (frame.statement or "")), None)
    if shown_by is None:
        return situation
    return replace(situation, phase=FailurePhase.DECODING, shown_by=shown_by, work=Work.INFERENCE)


def _work_of(situation: Situation, found: FoundMessage) -> Work:
    """Return whether a program trains or uses a model, from its traceback and the lines near the message."""
    if situation.phase in (FailurePhase.BACKWARD, FailurePhase.OPTIMIZER, FailurePhase.PREPARING):
        return Work.TRAINING
    if situation.has_gradients is False and situation.phase is not FailurePhase.LOADING:
        return Work.INFERENCE
    for frame in found.frames:
        text = f"{frame.file} {frame.function or ''} {frame.statement or ''}"
        if _INFERS.search(text) is not None:
            return Work.INFERENCE
        if _TRAINS.search(text) is not None:
            return Work.TRAINING
    if "training" in found.context and "inference" not in found.context:
        return Work.TRAINING
    return Work.INFERENCE if "inference" in found.context else Work.UNKNOWN


def situation_of_frames(frames: Sequence[TextFrame]) -> Situation:
    """Return what a program was doing, from the stack frames of its traceback.

    The innermost frame with a sign decides. The sign of a forward pass is weaker than all others, because a forward
    pass is also a part of an evaluation or a generation. A forward pass inside an optimizer's step is a forward pass:
    Lightning runs the whole training step as the optimizer's closure.

    Args:
        frames: the frames, the innermost first.
    """
    packages = dict.fromkeys(match["name"] for frame in frames if (match := _PACKAGE.search(frame.file)))
    libraries = tuple(name for name in packages if name not in _NOT_NAMED)
    forward: TextFrame | None = None
    for frame in frames:
        phase = next((sign.phase for sign in _SIGNS if sign.fits(frame)), None)
        if phase is FailurePhase.OPTIMIZER and forward is not None:
            break
        if phase is FailurePhase.FORWARD:
            forward = forward or frame
        elif phase is not None:
            return Situation(phase=phase, shown_by=frame, frames=tuple(frames), libraries=libraries)
    phase = FailurePhase.UNKNOWN if forward is None else FailurePhase.FORWARD
    return Situation(phase=phase, shown_by=forward, frames=tuple(frames), libraries=libraries)
