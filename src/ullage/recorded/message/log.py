"""Finds the out-of-memory messages in a log of any length, with their ranks and source lines.

The search reads text in pieces and keeps only the last of them. It does not handle files: the caller opens and decodes
them.
"""

import html
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Final

from ullage.recorded.message.counted_messages import CountedMessages, Unread
from ullage.recorded.message.disguise import LONGEST_TEXT as LONGEST_OF_SEVERAL
from ullage.recorded.message.disguise import Reading, readings_of
from ullage.recorded.message.message import WINDOW, Hit, Message, hits_of
from ullage.recorded.message.other_error import other_error
from ullage.recorded.message.printed_growth import GrowthSearch, PrintedGrowth
from ullage.recorded.message.printed_memory import PrintedMemory, printed_in
from ullage.recorded.message.runs import RunStart, RunStarts
from ullage.recorded.message.server_log import ServerLog, ServerMemory
from ullage.recorded.message.traceback import TRACEBACK, TextFrame, frames_above, frames_below, without_prefix
from ullage.recorded.message.unknown_words import COMPARISONS, HEADS, refused_by_a_check, unknown_error
from ullage.recorded.message.wrapped import find_in_cut_rows, read_again

# A number of characters before an out-of-memory message. In this range, ullage searches for signs of the program that
# wrote the log.
_CONTEXT_CHARACTERS: Final = 6000
# A number of characters after an out-of-memory message, in the same line. In this range, ullage searches for signs of
# the program that wrote the log.
_ROW_CHARACTERS: Final = 200
# A number of characters after an out-of-memory message, also in later lines. Errors of CUDA are followed by the name of
# the call that failed.
_CALL_CHARACTERS: Final = 400
# The same for the traceback that vLLM logs after an error message.
_TRACEBACK_CHARACTERS: Final = 2000
_SIGNS: Final = {
    "vLLM": (
        "/vllm/",
        "VllmWorker",
        "vllm serve",
        "from vllm import",
        "EngineCore",
        "gpu_memory_utilization",
        "RayWorkerWrapper",
        "worker_base.py:",
    ),
    "SGLang": ("/sglang/", "sglang.launch_server", "Capture cuda graph failed", "mem_fraction_static"),
    "stable-diffusion.cpp": ("stable-diffusion.cpp", "ggml_extend.hpp", "sd-cli", "vae: failed to allocate"),
    "text-generation-inference": ("text_generation_server",),
    "ComfyUI": (
        *("ComfyUI/", "ComfyUI\\", "ComfyUI Error", "comfy/", "comfy\\", "loaded partially", "loaded completely"),
        *("Node Type:", "got prompt", "!!! Exception during"),
    ),
    "TensorFlow": ("tensorflow/", "tensorflow\\"),
    "CuPy": ("cupy.cuda", "cupy\\cuda"),
    "CTranslate2": ("ctranslate2", "faster_whisper", "CUDA failed with error out of memory"),
    "onnxruntime": ("onnxruntime", "ONNXRuntime"),
    "another framework": (
        *("mxnet", "MXNet", "paddle", "theano", "XGBoost", "allocation error on worker"),
        *(".julia/", ".julia\\", "(code #2", "cycles"),
    ),
    "CUDA graphs": (
        "capture_model",
        "capture_end",
        "torch.cuda.graph(",
        "Capturing cudagraphs",
        "Capturing CUDA graph",
        "apture cuda graph",
    ),
    "weights": (
        *("load_model", "create_weights", "Loading safetensors checkpoint", "Loading checkpoint shards"),
        *("Loading a checkpoint", "Loading pipeline components", "loading shards", "Loading weights:"),
    ),
    "expandable segments": (
        *("export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF: expandable_segments"),
        *('PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments', "PYTORCH_CUDA_ALLOC_CONF'] = 'expandable_segments"),
    ),
    "training": (
        *("train.py", "Epoch", "epoch", "loss", "torchrun", "finetun", "fine-tun", "Training", "training_step", "lr="),
        *("accelerate launch", "deepspeed", "Trainer"),
    ),
    "inference": (
        "inference",
        "Inference",
        "generate.py",
        "infer.py",
        "demo",
        "app.py",
        "pipeline",
        "sampling",
        "gradio",
    ),
    "data set processes": tuple(f"num_proc={number}" for number in range(2, 20)),
    "data loader": ("DataLoader worker", "--workers", "dataloader_num_workers", "num_workers="),
    "wake_up": ("wake_up",),
    "pinned memory": ("pin memory thread", "pin_memory.py", "cudaHostAlloc", "artial pinning", "partially pinned"),
    "unified memory": (
        *("NvMap", "nvmap", "tegrastats", "-tegra", "Jetson", "Orin N", "AGX Orin", "DGX Spark", "dgx-spark"),
        *("GB10 ", "GB10)", "GB10,", "GB10\n", "Strix Halo", "gfx1151", "Ryzen AI MAX"),
    ),
    "unified memory by name": ("unified memory", "unified-memory", "Unified Memory"),
    "profile run": (
        *("profile_run", "determine_available_memory", "determine_num_available_blocks", "profile_multimodal"),
        *("get_multimodal_embeddings", "embed_multimodal"),
    ),
    "engine not built": (
        *("ngine could not be created", "ngine could not be built", "ngine build failed", "ailed to build engine"),
        *("ailed to create engine", "ailed to build the engine"),
    ),
    "growth in words": (
        *("leaking", "may leak", "leaks memory"),
        *("keeps growing", "keep growing", "keeps increasing", "keep increasing", "keeps climbing", "keeps rising"),
        *("emory leak", "VRAM leak", "grows every", "grows with each", "grows after each", "increases every"),
        *("increases with each", "increases after each", "never released", "never freed", "slowly increas"),
        *("gradually increas", "steadily increas", "constantly increas", "slowly grow", "gradually grow"),
        *("steadily grow", "constantly grow", "continues to grow", "continues to increase"),
    ),
    "first CUDA call": ("cuDevicePrimaryCtxRetain", "torch._C._cuda_init", "cuCtxCreate"),
}
LOADING: Final = "loading in progress"
"""The context of a message that comes while a progress bar of loading weights is below 100 %."""
_LOADING_PROGRESS: Final = re.compile(r"Loading [^\n\r%]{0,60}?(?P<percent>\d{1,3})%")
# A number of characters before an out-of-memory message. In this range, ullage searches for the traceback of the error.
_CHARACTERS_BEFORE: Final = 1 << 16
_CHARACTERS_AFTER: Final = 2 * WINDOW
_PIECE_CHARACTERS: Final = 1 << 20
_MOST_GUESSES: Final = 100  # the most places with the same words that are checked in a piece of text
_LONGEST_PREFIX: Final = 400  # characters
_NEARBY_CHARACTERS: Final = 2000
_ROWS_NEARBY: Final = 6
_ROWS_BELOW: Final = 4
_LONGEST_NEARBY: Final = 300
_LONGEST_ROW: Final = 2000  # characters of a line; a longer line does not belong to a traceback
_MENTIONS: Final = (
    *("out of memory", "Out of memory", "Out Of Memory", "OutOfMemory", "OUT_OF_MEMORY", "out-of-memory"),
    *("RESOURCE_EXHAUSTED", "nsufficient memory", "nsufficient Memory", "ot enough memory", "ot enough GPU memory"),
)
_SHORT_MENTION: Final = re.compile(r"\bOOM\b")
_COLOUR: Final = re.compile(r"\x1b\[[\d;]{0,16}[A-Za-z]")
_TAG: Final = re.compile(
    r"</?(?:a|b|body|br|code|div|em|font|html|i|li|mark|p|pre|samp|span|strong|td|tr|tt|u)(?: [^<>\n]{0,300})?/?>",
    re.IGNORECASE,
)
_ENTITY: Final = re.compile(r"&(?:nbsp|quot|apos|lt|gt|amp|#\d{1,5}|#x[\da-fA-F]{1,4});")
_EMPHASIS: Final = re.compile(r"(\*\*|`)(\d[\d.,]{0,20} [KMGT]i?B)\1")
# Matches markup that is cut off at the end of a piece of text. The markup is an escape sequence, a tag, an entity, or
# Markdown emphasis around a figure.
_CUT_MARKUP: Final = re.compile(
    r"(?:\x1b(?:\[[\d;]{0,16})?|</?(?:[a-zA-Z]{1,8}(?: [^<>\n]{0,300})?)?|&#?\w{0,6}"
    r"|(?:\*{1,2}|`)(?:\d[\d.,]{0,20}(?: (?:[KMGT]?i?B?|[KMGT]i?B\*))?)?)\Z"
)
_LONGEST_MARKUP: Final = 320


def context_of(text: str, floor: int, start: int, end: int) -> tuple[str, ...]:
    """Return the names of the signs that occur before a message or in its line, in the order of `_SIGNS`. A sign is a
    text that identifies the program that wrote the log, or its activity.

    Args:
        text: the log.
        floor: the end of the previous message.
        start: the beginning of the message.
        end: the end of the message.
    """
    begin = max(floor, start - _CONTEXT_CHARACTERS)
    row = text.find("\n", end, end + _ROW_CHARACTERS)
    last = row if row >= 0 else end + _ROW_CHARACTERS
    until = {
        "stable-diffusion.cpp": end + _CALL_CHARACTERS,
        "first CUDA call": end + _CALL_CHARACTERS,
        "weights": end + _TRACEBACK_CHARACTERS,
        "growth in words": end + _CALL_CHARACTERS,
        "profile run": end + _TRACEBACK_CHARACTERS,
        "engine not built": end + _TRACEBACK_CHARACTERS,
    }
    names = tuple(
        name
        for name, signs in _SIGNS.items()
        if any(text.find(sign, begin, until.get(name, last)) >= 0 for sign in signs)
    )
    progress = [found["percent"] for found in _LOADING_PROGRESS.finditer(text, begin, start)]
    return (*names, LOADING) if progress and progress[-1] != "100" else names


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundMessage:
    """An out-of-memory message and its place in the log."""

    message: Message
    row: int
    """The line number of the message in the log, counted from 1."""
    rank: str | None = None
    """The rank label at the start of the message's line, such as "rank3", or None."""
    place: str | None = None
    """The innermost line of user code in the traceback, as file and line number."""
    statement: str | None = None
    """The source text of the innermost line of the user's code in the traceback."""
    frames: tuple[TextFrame, ...] = ()
    """The stack frames of the traceback above the message, the innermost first."""
    nearby: tuple[str, ...] = ()
    """The lines directly above the message, or above its traceback."""
    after: tuple[str, ...] = ()
    """The lines directly below the message, if it has no traceback above it."""
    context: tuple[str, ...] = ()
    """Names that say which program wrote the log and what it was doing. They are found in the lines before the
    message.
    """
    server: ServerMemory | None = None
    """The memory figures that a model server, such as vLLM, logged before this message."""


@dataclass(frozen=True, slots=True)
class Mention:
    """The first place where a text mentions memory or has a similar error. It is used if no known message is found."""

    row: int
    text: str
    """At most 160 characters of the line that mentions running out of memory."""
    advice: str = ""
    """The meaning of an error that is not an out-of-memory error, and what to do. Otherwise empty."""


Found = FoundMessage | PrintedGrowth | PrintedMemory | RunStart | Unread | Mention


def find_messages(text: str) -> list[FoundMessage]:
    """Return the out-of-memory messages of a text in order. At most a thousand of the same form are returned."""
    return [found for found in scan(pieces_of(text)) if isinstance(found, FoundMessage)]


def pieces_of(text: str) -> Iterator[str]:
    """Cut a text into pieces for `scan`."""
    return (text[at : at + _PIECE_CHARACTERS] for at in range(0, len(text), _PIECE_CHARACTERS))


def scan(pieces: Iterable[str]) -> Iterator[Found]:
    """Yield every message of a text that arrives in pieces, as `scan_once` does.

    A short text is also read without the prefixes of its lines, for each process alone, and with cut lines joined. The
    reading that shows the most is used.
    """
    source = iter(pieces)
    text = ""
    for piece in source:
        text += piece
        if len(text) > LONGEST_OF_SEVERAL:
            yield from scan_once(itertools.chain(pieces_of(text), source))
            return
    best = list(scan_once([text]))
    score = _score(best)
    for reading in readings_of("".join(_without_markup([text]))):
        other = [found for part in reading for found in _of_reading(part)]
        other = _without_repetition(sorted(other, key=lambda found: getattr(found, "row", 0)))
        if _score(other) > score:
            context = tuple(dict.fromkeys(name for found in best for name in getattr(found, "context", ())))
            best = [
                replace(found, context=tuple(dict.fromkeys((*found.context, *context))))
                if isinstance(found, FoundMessage)
                else found
                for found in other
            ]
            score = _score(other)
    yield from best


def _without_repetition(found: list[Found]) -> list[Found]:
    """Return what readings show, without the messages of a line that two readings have. The one with a rank is kept."""
    ranked = {each.row for each in found if isinstance(each, FoundMessage) and each.rank is not None}
    return [each for each in found if not (isinstance(each, FoundMessage) and each.rank is None and each.row in ranked)]


def _of_reading(reading: Reading) -> Iterator[Found]:
    """Yield what one reading shows, with the line numbers of the log."""
    for found in scan_once([reading.text], has_markup=False):
        if isinstance(found, FoundMessage):
            yield replace(found, row=reading.rows[found.row - 1], rank=reading.rank or found.rank)
        elif isinstance(found, PrintedGrowth):
            yield replace(found, row=reading.rows[found.row - 1], last_row=reading.rows[found.last_row - 1])
        elif isinstance(found, PrintedMemory | RunStart | Mention):
            yield replace(found, row=reading.rows[found.row - 1])
        else:
            yield found


def _score(found: list[Found]) -> tuple[int, ...]:
    """Return how much a reading of a log shows. A higher tuple shows more."""
    messages = [each for each in found if isinstance(each, FoundMessage)]
    if not messages:
        return (0, sum(isinstance(each, PrintedGrowth | PrintedMemory) for each in found))
    return (1, *max(_shown_by(message) for message in messages))


def _shown_by(found: FoundMessage) -> tuple[int, ...]:
    message = found.message
    figures = sum(
        getattr(message, field.name) is not None for field in fields(message) if field.name.endswith("_bytes")
    )
    is_known = message.wording not in ("unknown", "unknown_words", "check", "bare")
    shown = sum((frame.statement is not None) + (frame.function is not None) for frame in found.frames)
    # Lines of another process within a message make it longer, and their numbers look like its figures.
    is_whole = "reserved by PyTorch but unallocated" in message.text
    return (message.is_certain, is_known, figures + len(message.other_processes) + len(message.said), is_whole, shown)


def scan_once(pieces: Iterable[str], *, has_markup: bool = True) -> Iterator[Found]:
    """Yield every message of a text that arrives in pieces, which may end anywhere.

    The starts of further runs and the memory figures that programs print come in the order of the text too.

    Of each beginning of a message, the first thousand are read. The others are counted: an `Unread` holds the count up
    to the end of the searched text, and comes before the messages that follow. If the text has no message at all, a
    guessed message (`ullage.recorded.message.unknown_words`) or a `Mention` may come last.
    """
    counted, rest, starts = CountedMessages(), Unread(0, 0), RunStarts()
    kept, rows, done = "", 0, 0  # the lines before the kept text; the searched characters of it
    # The end of each rank's last message: the traceback of the next message comes after it.
    last: dict[str | None, int] = {}
    server, told = ServerLog(), 0  # second: characters of the kept text that were searched for a server's figures
    mention: Mention | None = None
    guess: FoundMessage | None = None
    other: Mention | None = None
    cut: FoundMessage | None = None
    is_any = is_certain = False
    growth = GrowthSearch()
    for piece, is_last in _with_last(_without_markup(pieces) if has_markup else pieces):
        kept += piece
        growth.add(piece)
        until = len(kept) if is_last else len(kept) - _CHARACTERS_AFTER
        if until <= done:
            continue
        at, row, begin = 0, rows, done
        hits = list(hits_of(kept, done, until, counted))
        if rest != (rest := counted.rest()):
            yield rest
        is_any = is_any or bool(hits)
        is_certain = is_certain or any(hit.message.is_certain for hit in hits)
        # Text that a terminal has cut was copied from the terminal, so it is short.
        if not is_certain and cut is None and rows == 0:
            cut = _in_cut_rows(kept, rows, server)
        if not is_any and mention is None:
            mention = _mention(kept, done, until, rows)
        if not is_any and other is None:
            other = _other_error(kept, done, until, rows)
        if not is_any and guess is None:
            guess = _guess(kept, done, until, rows, server)
        for place, thing in _in_order(kept, begin, until, hits, starts):
            row += kept.count("\n", at, place)
            at = place
            if isinstance(thing, PrintedMemory):
                yield replace(thing, row=row + 1)
                continue
            if isinstance(thing, bool):
                yield RunStart(row + 1, is_like_the_first=thing)
                continue
            done = thing.end
            told = _read_server(server, kept, told, place)
            yield _found(kept, read_again(kept, thing), row + 1, last, server)
        done = max(done, until)
        told = _read_server(server, kept, told, min(done, len(kept)))
        gone = max(0, min(done, len(kept)) - _CHARACTERS_BEFORE)
        rows += kept.count("\n", 0, gone)
        kept, done, told = kept[gone:], done - gone, max(0, told - gone)
        last = {rank: end - gone for rank, end in last.items() if end > gone}
    if (grown := growth.growth()) is not None:
        yield grown
    if cut is not None and not is_certain and (cut.message.is_certain or not is_any):
        yield cut
    elif not is_any and (guessed := guess or other or mention) is not None:
        yield guessed


def _in_order(
    text: str, begin: int, until: int, hits: list[Hit], starts: RunStarts
) -> list[tuple[int, Hit | PrintedMemory | bool]]:
    """Return the messages, the printed figures and the starts of runs between two positions, in order.

    The start of a run is True if its line is like the first line of the log.
    """
    things: list[tuple[int, Hit | PrintedMemory | bool]] = [(hit.start, hit) for hit in hits]
    things += [(place, alike) for place, alike in starts.starts_in(text, begin, until) if place > 0]
    things += printed_in(text, begin, until)
    return sorted(things, key=lambda entry: entry[0])


def _in_cut_rows(text: str, rows: int, server: ServerLog) -> FoundMessage | None:
    found = find_in_cut_rows(text)
    if found is None:
        return None
    hit, together, row = found
    return _found(together, hit, rows + row + 1, {}, server)


def _guess(text: str, begin: int, until: int, rows: int, server: ServerLog) -> FoundMessage | None:
    places = [at for head in HEADS for at in _places(text, head, begin, until)]
    for at in sorted(places):
        message = unknown_error(text, at)
        if message is not None:
            return _found(text, Hit(at, at + 1, message), rows + text.count("\n", 0, at) + 1, {}, server)
    for at in sorted(at for words in COMPARISONS for at in _places(text, words, begin, until)):
        message = refused_by_a_check(text, at)
        if message is not None:
            return _found(text, Hit(at, at + 1, message), rows + text.count("\n", 0, at) + 1, {}, server)
    return None


def _places(text: str, words: str, begin: int, until: int) -> Iterator[int]:
    at = text.find(words, begin, until)
    for _ in range(_MOST_GUESSES):
        if at < 0:
            break
        yield at
        at = text.find(words, at + 1, until)


def _mention(text: str, begin: int, until: int, rows: int) -> Mention | None:
    at = min((found for words in _MENTIONS if (found := text.find(words, begin, until)) >= 0), default=-1)
    if at < 0 and (short := _SHORT_MENTION.search(text, begin, until)) is not None:
        at = short.start()
    if at < 0:
        return None
    start = max(text.rfind("\n", 0, at) + 1, at - 80)
    end = text.find("\n", at, at + 80)
    row = text[start : end if end >= 0 else at + 80]
    return Mention(row=rows + text.count("\n", 0, at) + 1, text=" ".join(row.split()))


def _other_error(text: str, begin: int, until: int, rows: int) -> Mention | None:
    found = other_error(text, begin, until)
    if found is None:
        return None
    at, advice = found
    start = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at, at + 160)
    row = text[start : end if end >= 0 else at + 160]
    return Mention(row=rows + text.count("\n", 0, at) + 1, text=" ".join(row.split())[:160], advice=advice)


# If the end of a piece cuts markup in two, this markup is kept until the next piece arrives.
def _without_markup(pieces: Iterable[str]) -> Iterator[str]:
    rest = ""
    for piece in pieces:
        text = rest + piece
        part = _CUT_MARKUP.search(text, max(0, len(text) - _LONGEST_MARKUP))
        rest = part[0] if part is not None else ""
        yield _plain(text[: len(text) - len(rest)])
    yield _plain(rest)


def _plain(text: str) -> str:
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    if "<" in text:
        text = _TAG.sub("", text)
    if ";" in text and "&" in text:
        # An entity for the end of a line would change the numbers of the lines.
        text = _ENTITY.sub(lambda entity: " ".join(html.unescape(entity[0]).splitlines()) or " ", text)
    if "B**" in text or "B`" in text:
        text = _EMPHASIS.sub(r"\2", text)
    return text.replace("\xa0", " ")


def _with_last(pieces: Iterable[str]) -> Iterator[tuple[str, bool]]:
    for piece in pieces:
        yield piece, False
    yield "", True


def _read_server(server: ServerLog, text: str, begin: int, end: int) -> int:
    stop = text.rfind("\n", begin, end) + 1
    if stop <= begin:
        return begin
    server.read(text, begin, stop, lambda text, at: _rank_at(text, at))
    return stop


def _found(text: str, hit: Hit, row: int, last: dict[str | None, int], server: ServerLog) -> FoundMessage:
    begin = text.rfind("\n", max(0, hit.start - _LONGEST_ROW), hit.start) + 1
    rank = without_prefix(text[begin : hit.start])[0] if begin or hit.start <= _LONGEST_ROW else None
    floor = max(last.get(rank, 0), hit.start - _CHARACTERS_BEFORE, 0)
    above = tuple(frames_above(text, floor, begin, rank)) if begin else ()
    # The text beyond this position is not always read yet.
    ceiling = min(len(text), hit.start + _CHARACTERS_AFTER)
    frames = above or tuple(frames_below(text, hit.end, ceiling, rank))
    user = next((frame for frame in frames if not frame.is_library), None)
    last[rank] = hit.end
    return FoundMessage(
        message=hit.message,
        row=row,
        rank=rank,
        place=user.place if user is not None else None,
        statement=user.statement if user is not None else None,
        frames=frames,
        nearby=_rows_above(text, floor, _start_of_traceback(text, floor, begin) if above else begin, rank),
        after=() if above else _rows_below(text, hit.end, ceiling, rank),
        context=context_of(text, floor, hit.start, hit.end),
        server=server.of(rank),
    )


def _start_of_traceback(text: str, floor: int, begin: int) -> int:
    """Return the position of the line with which the traceback above a position begins; `floor` if it is cut."""
    head = text.rfind(TRACEBACK, floor, begin)
    return text.rfind("\n", floor, head) + 1 if head >= 0 else floor


def _rows_above(text: str, floor: int, begin: int, rank: str | None) -> tuple[str, ...]:
    rows = map(without_prefix, text[max(floor, begin - _NEARBY_CHARACTERS) : begin].splitlines())
    own = [row[:_LONGEST_NEARBY] for owner, row in rows if owner == rank]
    return tuple(own[-_ROWS_NEARBY:])


def _rows_below(text: str, end: int, ceiling: int, rank: str | None) -> tuple[str, ...]:
    begin = text.find("\n", end, ceiling) + 1
    rows = map(without_prefix, text[begin:ceiling].splitlines()[:_ROWS_BELOW] if begin else ())
    return tuple(row[:_LONGEST_NEARBY] for owner, row in rows if owner == rank)


def _rank_at(text: str, begin: int) -> str | None:
    return without_prefix(text[begin : begin + _LONGEST_PREFIX])[0]
