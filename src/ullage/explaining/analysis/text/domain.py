"""Settings that reduce memory in programs of one field, such as Gaussian splatting or speech recognition.

A general advice ("a smaller batch") does not help in a field where a batch is one scene or one protein. The field is
recognized from the paths of the traceback and from the lines next to the error message. The names of settings are those
of the field's most used programs.
"""

import re
from dataclasses import dataclass
from typing import Final

from ullage.explaining.analysis.text.phase import Work


@dataclass(frozen=True, slots=True)
class Domain:
    """A field of programs, and the settings that reduce memory in it."""

    name: str
    sign: re.Pattern[str]
    """Pattern for paths, statements and log lines, in lower case."""
    advice: str
    reason: str
    has_images: bool = False
    """Whether programs of the field decode images or video frames, which can be done in tiles."""
    work: Work = Work.UNKNOWN
    """The only kind of work to which the advice applies; UNKNOWN if it applies to all."""


def _domain(
    name: str, sign: str, advice: str, reason: str, work: Work = Work.UNKNOWN, *, has_images: bool = False
) -> Domain:
    return Domain(name, re.compile(sign), advice, reason, has_images, work)


_DOMAINS: Final = (
    _domain(
        "Gaussian splatting",
        r"gaussian[-_ ]?(?:splat|raster|render|model)|gsplat|\b[23]dgs\b|splatfacto|simple_knn|nerfstudio",
        "images at a lower resolution (-r 2 or --data_factor 2) and on the CPU (--data_device cpu), fewer Gaussians (a "
        "higher --densify_grad_threshold; --strategy.cap-max in gsplat)",
        "memory grows with the resolution and the number of Gaussians; a batch is usually one image",
    ),
    _domain(
        "protein structure",
        r"\bboltz|alphafold|openfold|chai_?lab|esmfold|protenix|rosettafold|rfdiffusion|simplefold|evoformer|pairformer",
        "fold fewer samples at a time (--max_parallel_samples 1 in Boltz), or shorter or cropped chains",
        "the pair representation grows with the square of the number of residues and atoms",
    ),
    _domain(
        "atomistic models",
        r"fairchem|[\\/]mace[\\/]|sevenn|nequip|matgl|chgnet|orb_models|matcalc|lammps",
        "fewer atoms at a time (a smaller cell or batch, or more GPUs), or a model with a shorter cutoff",
        "memory grows with the number of pairs of neighbouring atoms",
    ),
    _domain(
        "graph networks",
        r"torch_geometric|pytorch_geometric|[\\/]dgl[\\/]|message_passing\.py",
        "sample subgraphs (NeighborLoader, fewer num_neighbors, smaller batches), or pass the edges as a SparseTensor",
        "message passing makes one row of features for each edge",
    ),
    _domain(
        "documents",
        r"[\\/]marker[\\/]|[\\/]surya[\\/]|docling|mineru|magic_pdf|olmocr|paddleocr",
        "fewer pages at a time, and smaller batch sizes of the recognition and layout models",
        "each page is a batch of image crops",
    ),
    _domain(
        "speech recognition",
        r"whisper|wav2vec|collections[\\/]asr|pyannote|parakeet|funasr",
        "shorter segments of audio, a smaller batch_size, a smaller model, or float16 or int8 weights",
        "memory grows with the length of the audio",
    ),
    _domain(
        "speech synthesis",
        r"cosyvoice|fish_?speech|gpt[-_]sovits|chattts|f5[-_]?tts|\bxtts|chatterbox|index[-_]?tts|fireredtts|zipvoice",
        "shorter texts (one sentence per call) and a shorter reference audio, or float16 weights",
        "memory grows with the length of the text and of the audio",
    ),
    _domain(
        "nnU-Net",
        r"nnunet",
        "keep the result on the CPU (nnUNetv2_predict --not_on_device); it needs host memory",
        "the probabilities of all classes for the whole volume are larger than the network",
        Work.INFERENCE,
    ),
    _domain(
        "nnU-Net",
        r"nnunet",
        "plan for a smaller GPU (nnUNetv2_plan_experiment -gpu_memory_target), which makes patches and batches smaller",
        "the plan sets the patch size and the batch size for one size of GPU",
        Work.TRAINING,
    ),
    _domain(
        "object detection",
        r"mmdet|mmrotate|bbox_overlaps|detectron2|rf_?detr",
        "smaller images or batches; with many boxes per image, assign them on the CPU (gpu_assign_thr in MMDetection)",
        "matching compares each anchor with each box",
    ),
    _domain(
        "YOLO",
        r"ultralytics|\byolo",
        "a smaller batch= or imgsz= (batch=-1 chooses the batch by free memory)",
        "activations grow with the batch and with the square of imgsz",
    ),
    _domain(
        "embeddings",
        r"sentence_transformers|[\\/]mteb[\\/]|flagembedding",
        "a smaller batch_size in encode(), or a shorter max_seq_length",
        "the longest text of a batch sets the length of all",
        Work.INFERENCE,
    ),
    _domain(
        "3D generation",
        r"trellis|hunyuan3d|hy3d|triposg|triposr|instantmesh|sam[-_]?3d",
        "a lower resolution of mesh and texture, and models on the CPU while they are not used (--low_vram_mode in "
        "Hunyuan3D)",
        "the shape and texture models need not be on the GPU at the same time",
    ),
    _domain(
        "video generation",
        r"\bwan2|[\\/]wan[\\/]|wan2\.|hunyuan_?video|ltx[-_]?video|\bltx2|cogvideo|mochi|framepack|skyreels|open-?sora"
        r"|animatediff|seedvr",
        "fewer frames or a lower resolution, models on the CPU while they are not used (--offload_model True --t5_cpu "
        "in Wan), or fp8 or GGUF weights",
        "activations grow with frames times resolution",
        Work.INFERENCE,
        has_images=True,
    ),
    _domain(
        "reinforcement learning with an inference engine",
        r"[\\/]verl[\\/]|openrlhf|grpo|[\\/]slime[\\/]|areal|rlinf|nemo_?rl|[\\/]ragen",
        "smaller micro batches (ppo_micro_batch_size_per_gpu in verl) and shorter responses, or a lower "
        "gpu_memory_utilization of the inference engine",
        "the trainer and the inference engine share the GPU",
        Work.TRAINING,
    ),
    _domain(
        "diffusion training",
        r"sd[-_]scripts|kohya|library[\\/]\w*train_util|train_network|musubi|diffusion-pipe|ai[-_]toolkit|simpletuner",
        "gradient checkpointing, an 8-bit optimizer, cached latents and text encoder outputs, blocks on the CPU "
        "(--blocks_to_swap), or a lower resolution",
        "a batch is often one image already",
        Work.TRAINING,
        has_images=True,
    ),
    _domain(
        "LLaMA-Factory",
        r"llama_?-?factory|llamafactory",
        "per_device_train_batch_size: 1, a smaller cutoff_len, quantization_bit: 4 (QLoRA), or DeepSpeed ZeRO-3",
        "activations grow with batch times cutoff_len",
        Work.TRAINING,
    ),
    _domain(
        "ms-swift",
        r"[\\/](?:ms-)?swift[\\/]",
        "--per_device_train_batch_size 1, a smaller --max_length, a smaller MAX_PIXELS (images), or --deepspeed zero3",
        "activations grow with batch times length",
        Work.TRAINING,
    ),
    _domain(
        "Megatron",
        r"megatron",
        "--micro-batch-size 1, --recompute-granularity full, or more tensor, pipeline or context parallelism",
        "activations grow with the micro batch and the sequence",
        Work.TRAINING,
    ),
    _domain(
        "Lightning",
        r"(?:pytorch_)?lightning[\\/]",
        "a smaller batch_size of the DataLoader with Trainer(accumulate_grad_batches=...), or precision='bf16-mixed'",
        "activations grow with the batch",
        Work.TRAINING,
    ),
)


def domain_of(words: str, work: Work) -> Domain | None:
    """Return the field of a program, or None if it is unknown.

    Args:
        words: the paths and statements of the traceback, and the lines next to the error message.
        work: whether the program trains a model or uses it. An unknown kind matches every field.
    """
    lower = words.lower()
    for domain in _DOMAINS:
        fits = Work.UNKNOWN in (work, domain.work) or domain.work is work
        if fits and domain.sign.search(lower) is not None:
            return domain
    return None
