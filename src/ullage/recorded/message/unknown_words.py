"""Detects out-of-memory errors of unknown form, and tells them apart from text that only mentions memory.

A line counts as an error if it says that memory was lacking, has the form of an error, and gives no advice before that.
The result is a guess: `ullage.recorded.message.log` uses it only for a text without a known message.
"""

import re
from typing import Final

from ullage.recorded.message.figure import bytes_of
from ullage.recorded.message.message import Message
from ullage.recorded.message.wording import MessageKind

_LACKS: Final = re.compile(
    r"\b(?:(?:\w+)?OutOfMemory(?:Error)?\b"
    r"|(?:ran |run |runs )?out of (?:[\w-]+ ){0,3}(?:memory|vram)\b(?! (?:bounds|range))"
    r"|(?:not enough|insufficient|no more|no free|exhausted) (?:[\w-]+ ){0,4}(?:memory|vram)\b"
    r"|(?:failed|unable|could not|cannot|can't|couldn't|error|fail) (?:to )?(?:\w+ )?(?:in )?(?:re|m)?alloc(?:at\w+)?\b"
    r"(?! (?:port|socket|pty|tty|id|handle|address))"
    r"|(?:memory |buffer |tensor )alloc(?:ation)? (?:has )?(?:failed|failure|error)"
    r"|(?:mem)?alloc(?:ation)?\w* (?:of [^\n]{1,60} )?failed\b)",
    re.ASCII | re.IGNORECASE,
)
_OCCUPIED: Final = re.compile(
    r"\b(?:gpus?|devices?|vram|memory)\b[^\n]{0,60}\b(?:occupied|in use|busy|taken|held)\b(?: \w+){0,2}"
    r" (?:by|with) (?:an)?other",
    re.ASCII | re.IGNORECASE,
)
"""Pattern for a line that says that other processes use the GPU."""
_CARD: Final = re.compile(
    r"cuda|\b(?:w|web)?gpu|\bvram\b|video memory|device memory|\bon device\b|graphics memory|\bhip(?:Malloc|Error)|rocm"
    r"|vulkan|\bmetal\b|opencl|\b[tn]pu\b|\bxpu\b|\.cuh?\b|(?-i:\bcu[A-Z]\w+)|nvidia|d3d1|dxgi|\bVK_|\bhbm\b",
    re.ASCII | re.IGNORECASE,
)
_MACHINE: Final = re.compile(
    r"\b(?:RAM|host memory|system memory|physical memory|virtual memory|swap|page file|paging file|malloc|mmap|fork"
    r"|heap|memory cgroup|errno 12|ENOMEM)\b",
    re.ASCII | re.IGNORECASE,
)
_SURELY_MACHINE: Final = re.compile(
    r"host_mem|CPU buffer|backend=CPU|cudaHost|cudaMallocHost|\bpinned\b|\bptxas\b|\bcc1plus\b|\bCPU ?(?:Retry)?OOM"
    r"|\bCPU ?Out ?Of|\bhost memory\b",
    re.ASCII | re.IGNORECASE,
)
_CHIP: Final = re.compile(
    r"shared memory (?:available )?on the GPU|(?:per[- ]block|kernel).{0,40}shared memory", re.ASCII
)
# Matches names of the driver and its functions. An error with such a name means that the driver itself refused GPU
# memory.
_DRIVER: Final = re.compile(
    r"cuda ?(?:error|malloc)|(?:cuda|cu|hip|vk)[A-Z]\w{1,60} ?\(|error (?:code )?2\b|Gpu API|hipError"
    r"|cl(?:Create|Enqueue)\w+",
    re.ASCII,
)
_ERROR: Final = re.compile(
    r"error|exception|fail|fatal|abort|assert|terminat|panic|crash|\[E\]|\bE \b|unable|could not|cannot|can't|killed"
    r"|_OUT_OF_|\bERR\b|OOM:|skipping batch",
    re.ASCII | re.IGNORECASE,
)
_ADVICE: Final = re.compile(
    r"\b(?:if|may|might|can|should|try|consider|avoid|when|whenever|prevent\w*|because|why|how|handle\w*|detect\w*|fix\w*"
    r"|catch\w*|except|was|were|used to|would)\b",
    re.ASCII | re.IGNORECASE,
)
# Matches the words after "out of memory" in a sentence that only talks about such an error.
_ABOUT: Final = re.compile(
    r" (?:error|issue|problem|exception)s? (?:was|were|is|are|can|may|might|goes|when|if|should|in)\b",
    re.ASCII | re.IGNORECASE,
)
_MEMORY: Final = re.compile(
    r"memory|vram|\bbytes\b|\b[KMG]i?B\b|buffer|tensor|\bRAM\b|workspace|cache|array|device|\bOutOfMemory",
    re.ASCII | re.IGNORECASE,
)
_SIZE: Final = re.compile(
    r"(?:alloc\w{0,20}|request\w{0,20}|size|need\w{0,20}|require\w{0,20})\D{0,30}?"
    r"(\d[\d.,]{0,24} ?(?:bytes|[KMGT]i?B)\b)",
    re.ASCII | re.IGNORECASE,
)
# Matches the text that a log puts before the first words of a line. This is the name of a launcher or a container, or
# the bullet of a list.
_START: Final = re.compile(
    r"\s*(?:[\w.-]{1,40} +\|)?(?:\s?[\[(][^\])\n]{1,80}[\])]:?)?\s*(?:\d{4}-\d\d-\d\d[T ]\S*)?"
    r"[\s#>*`'\"|-]*(?:[A-Z]\w{1,10} )?",
    re.ASCII,
)
HEADS: Final = (
    *(
        "ut of memory",
        "ut of Memory",
        "ut Of Memory",
        "UT OF MEMORY",
        "ut of GPU",
        "ut of device",
        "ut of video",
        "ut of VRAM",
    ),
    *(
        "ut of vram",
        "ut of host",
        "ut of system",
        "ot enough",
        "nsufficient",
        "ailed to alloc",
        "ail to alloc",
        "nable to alloc",
        "ailed to malloc",
    ),
    *("ccupied by", "n use by ", "usy with ", "aken by ", "eld by "),
    *("ould not alloc", "annot alloc", "an't alloc", "llocation failed", "llocation failure", "lloc failed"),
    *("llocation error", "utOfMemory", "error in alloc", "rror alloc", "llocate failed"),
)
"""Words that occur in out-of-memory errors. Lines without any of them are skipped, which makes the search fast."""
# Matches two sizes in an error: the memory that is needed, and the memory that is available.
_NEED: Final = re.compile(
    r"\bneed\w*\W{1,3}(\d[\d.]{0,12} ?[KMGT]i?B).{1,30}?\bha(?:ve|s)\W{1,3}(\d[\d.]{0,12} ?[KMGT]i?B)",
    re.ASCII | re.IGNORECASE,
)
_UNIT: Final = r"\d[\d.,]{0,20} ?(?:[KMGT]i?B\b|bytes\b)"
# Matches a comparison of the memory that a program needs with the memory that it has or may use.
_COMPARED: Final = re.compile(
    r"\b(?:need|require|request|want|ask|demand|min|exceed|estimat|would|capacity)\w{0,20}[^\n]{0,60}?"
    rf"(?P<first>{_UNIT}|\d{{9,15}}\b)[^\n]{{1,80}}?\b(?P<relation>available|free|only|but|have|has|limit|allowed|exceed\w*"
    rf"|maximum|budget|total|below|larger|greater|more than|of)\b[^\n]{{0,60}}?(?P<second>{_UNIT}|\d{{9,15}}\b)",
    re.ASCII | re.IGNORECASE,
)
_EXCEEDS: Final = re.compile(
    rf"(?P<first>{_UNIT})[^\n]{{0,60}}\b(?:exceed\w*|(?:larger|greater|more) than)\b[^\n]{{0,60}}?(?P<second>{_UNIT})",
    re.ASCII | re.IGNORECASE,
)
# The same with the smaller figure first: a limit, or what is available, is smaller than what is needed.
_COMPARED_REVERSED: Final = re.compile(
    rf"\b(?:limit|available|free|budget|capacity|max\w*|only|has|have|allow\w*|total|size)\b[^\n]{{0,60}}?"
    rf"(?P<second>{_UNIT}|\d{{6,15}}\b)[^\n]{{0,80}}?\b(?:smaller|less|lower|below|insufficient|not enough|too small"
    rf"|cannot|can't|does not|doesn't)\b[^\n]{{0,60}}?(?P<first>{_UNIT}|\d{{6,15}}\b)",
    re.ASCII | re.IGNORECASE,
)
_COUNT: Final = r"\d{1,3}(?:,\d{3}){1,3}|\d{2,10}"
# Matches a comparison of numbers of tokens or cache blocks.
_COUNTED: Final = re.compile(
    rf"(?<![\d.,:-])(?P<first>{_COUNT})(?![\d.:-])[^\n]{{0,100}}?(?<![\d.,:-])(?P<second>{_COUNT})(?![\d:-])", re.ASCII
)
_IN_TOKENS: Final = re.compile(r"\b(?:tokens?|blocks|pages|slots)\b", re.IGNORECASE)
_OF_THE_CACHE: Final = re.compile(r"\bkv\b|kv[-_ ]?cache|cache|token[ _]pool|memory", re.IGNORECASE)
_NOT_ERROR: Final = re.compile(r"\bWARN|\bINFO\b|\bDEBUG\b|preempt|evict", re.IGNORECASE)
_LIMITS: Final = re.compile(r"\b(?:limit|budget|quota|cap|allowed|maximum|max)\b", re.IGNORECASE)
_SETTING: Final = re.compile(
    r"--[a-z][\w-]{3,60}|\b[A-Z][A-Z0-9]{0,30}(?:_[A-Z0-9]{1,30}){1,8}\b|\b[a-z][a-z0-9]{0,30}(?:_[a-z0-9]{1,30}){1,8}\b",
    re.ASCII,
)
_KV_CACHE: Final = re.compile(r"\bkv[-_ ]?(?:cache|pool|blocks?|pages?)\b", re.IGNORECASE)
_REFUSES: Final = re.compile(
    r"exceed|below|insufficient|not enough|too (?:large|small|big|long)|refus|cannot fit|can't fit|does(?: not|n't) fit"
    r"|exhausted|is full|no free|no available|out of kv|can (?:only )?hold|limit reached|only has"
    r"|but only|not sufficient|than is available"
    r"|(?:smaller|less|lower|larger|greater|more|longer) than",
    re.ASCII | re.IGNORECASE,
)
_NO_REFUSAL: Final = re.compile(r"\bINFO\b|\bDEBUG\b|\bI\d{4} |kill|is enough|more than enough|sufficient for")
_ROWS_BEFORE: Final = 4
_ROWS_OF_A_CHECK: Final = 2  # below the first line of a message
_ENDS_OPEN: Final = re.compile(r"(?:,|\d|bytes)\s*\Z")
_FAR_CHARACTERS: Final = 1500
_CHARACTERS: Final = 400


COMPARISONS: Final = (
    *(
        "xceed",
        "but only",
        "is below",
        "nsufficient",
        "larger than",
        "greater than",
        "ot enough",
        "refusing",
        "more than",
        "longer than",
    ),
    *(
        "can hold",
        "can only",
        "only has",
        "limit reached",
        "exhausted",
        "cache is full",
        "o free ",
        "o available ",
        "ut of KV",
    ),
    *("does not fit", "doesn't fit", "less than", "cannot fit", "smaller than", "lower than", "too small", "too long"),
)
"""Words in messages of programs that check their need of memory before they allocate it."""


def _row_at(text: str, at: int) -> tuple[int, str]:
    """Return the line around the position `at`, cut if it is long, and the position where it begins."""
    start = text.rfind("\n", max(0, at - _CHARACTERS), at) + 1 or max(0, at - _CHARACTERS)
    end = text.find("\n", at, at + _CHARACTERS)
    return start, text[start : end if end >= 0 else at + _CHARACTERS]


def refused_by_a_check(text: str, at: int) -> Message | None:
    """Return the message of a program that compares the memory it needs with the memory it has. Otherwise, None.

    Args:
        text: the text.
        at: a position in the line where one of `COMPARISONS` begins.
    """
    start, row = _row_at(text, at)
    if _sizes(row) is None and _ENDS_OPEN.search(row) is not None:  # the second figure is in one of the next lines
        rest = text[start + len(row) + 1 : start + len(row) + _CHARACTERS].split("\n")
        row = " ".join((row, *rest[:_ROWS_OF_A_CHECK]))
    if _MEMORY.search(row) is None or _REFUSES.search(row) is None or _ADVICE.search(row[:20]):
        return None
    if _NO_REFUSAL.search(row) is not None:
        return None
    sizes = _sizes(row)
    if sizes is None:
        return _refused_tokens(row)
    needed, has = sizes
    is_host = _SURELY_MACHINE.search(row) is not None or (
        _CARD.search(row) is None and _MACHINE.search(row) is not None
    )
    return Message(
        kind=MessageKind.PROGRAM,
        wording="check",
        text=" ".join(row.split()),
        is_certain=False,
        requested_bytes=needed,
        free_bytes=has,
        said={"memory": "machine" if is_host else "card"} | _limit_in(row),
    )


def _limit_in(row: str) -> dict[str, str]:
    """Return the name of the setting that limits memory, if a message names one. It is empty for an unnamed limit."""
    if _LIMITS.search(row.replace("_", " ")) is None:
        return {}
    setting = next((found[0] for found in _SETTING.finditer(row) if _LIMITS.search(found[0].replace("_", " "))), "")
    return {"limit": setting}


def _sizes(row: str) -> tuple[int, int] | None:
    """Return the bytes that a program needs and the smaller number of bytes that it has, or None."""
    for pattern in (_COMPARED, _EXCEEDS, _COMPARED_REVERSED):
        found = pattern.search(row)
        if found is None:
            continue
        needed, has = bytes_of(found["first"]), bytes_of(found["second"])
        if pattern is _COMPARED and found["relation"].lower() == "below":  # a capacity is below what is required
            needed, has = has, needed
        if 0 < has < needed < 1 << 63:
            return needed, has
    return None


def _refused_tokens(row: str) -> Message | None:
    """Return the message of a program whose cache holds fewer tokens or blocks than it needs. Otherwise, None."""
    is_about_cache = _KV_CACHE.search(row) is not None and _NOT_ERROR.search(row) is None
    if _ERROR.search(row) is None and not is_about_cache:
        return None
    found = _COUNTED.search(row)
    is_counted = found is not None and _IN_TOKENS.search(row) is not None and _OF_THE_CACHE.search(row) is not None
    counts = sorted(int(found[name].replace(",", "")) for name in ("first", "second")) if is_counted and found else []
    if not counts or counts[0] == counts[1]:
        return _full_cache(row)
    return _guessed(row, "check", {"memory": "tokens", "needed": str(counts[1]), "has": str(counts[0])})


def _guessed(row: str, wording: str, said: dict[str, str]) -> Message:
    text = " ".join(row.split())
    return Message(kind=MessageKind.PROGRAM, wording=wording, text=text, is_certain=False, said=said)


def _full_cache(row: str) -> Message | None:
    """Return the message of a program whose KV cache is full or too small, without figures. Otherwise, None."""
    if _KV_CACHE.search(row) is None:
        return None
    return _guessed(row, "check", {"memory": "tokens"})


def unknown_error(text: str, at: int) -> Message | None:
    """Return the out-of-memory error in the line at the position `at`. Return None if the line only mentions memory.

    Args:
        text: the text.
        at: a position in the line where one of `HEADS` begins.
    """
    start, row = _row_at(text, at)
    if (occupied := _OCCUPIED.search(row)) is not None and _ADVICE.search(row, 0, occupied.start()) is None:
        return _guessed(row, "unknown_words", {"memory": "others"})
    lacks = _LACKS.search(row)
    if lacks is None or _ADVICE.search(row, 0, lacks.start()) is not None or _MEMORY.search(row) is None:
        return None
    if _ABOUT.match(row, lacks.end()) is not None:
        return None
    above = "\n".join(text[max(0, start - _CHARACTERS) : start].split("\n")[-_ROWS_BEFORE:])
    below = text[start + len(row) : start + len(row) + _CHARACTERS]
    if _START.fullmatch(row, 0, lacks.start()) is None and _ERROR.search(row) is None:
        return None
    # The text of the line itself has precedence over the lines above it, and these over the lines below it.
    sure = ((_SURELY_MACHINE, "machine"), (_CHIP, "chip"), (_DRIVER, "driver"))
    memory = next((name for pattern, name in sure if pattern.search(row) is not None), "") or next(
        (
            name
            for where in (row, above, below, text[max(0, start - _FAR_CHARACTERS) : start + _FAR_CHARACTERS])
            for name, pattern in ((("machine", _SURELY_MACHINE)), ("card", _CARD), ("machine", _MACHINE))
            if pattern.search(where) is not None
        ),
        "",
    )
    if not memory and "OutOfMemoryError" in row and "java" not in row:
        memory = "card"
    size = _NEED.search(row) or _SIZE.search(row)
    return Message(
        kind=MessageKind.HOST if memory == "machine" else MessageKind.PROGRAM,
        wording="unknown_words",
        text=" ".join(row.split()),
        is_certain=False,
        requested_bytes=bytes_of(size[1]) if size is not None else None,
        free_bytes=bytes_of(size[2]) if size is not None and size.lastindex == 2 else None,
        said={"memory": memory} if memory else {},
    )
