"""Other programs' words: a server's log is one bar that adds up, remedies' sums are right, each rank is judged."""

import io
import re

import pytest
from rich.console import Console

from ullage.base.errors import UsageError
from ullage.base.units import parse_bytes
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.text.describe import describe_text
from ullage.explaining.analysis.text.explain import TextExplanation, explain_text
from ullage.recorded.message.figure import bytes_of
from ullage.recorded.message.log import find_messages
from ullage.recorded.message.server_log import ServerMemory
from ullage.report.report import Meter, Table
from ullage.report.terminal import draw

GIB, MIB = 1 << 30, 1 << 20
NO_BLOCKS = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`."
TOO_LONG = (
    "ValueError: The model's max seq len (29000) is larger than the maximum number of tokens that can be stored in KV "
    "cache (23648). Try increasing `gpu_memory_utilization`."
)
LOGS = {
    "vLLM 0.6": (
        "INFO 11-20 model_runner.py:1072] Loading model weights took 14.9888 GB\n"
        "INFO 11-20 worker.py:232] Memory profiling results: total_gpu_memory=23.58GiB initial_memory_usage=15.34GiB "
        "peak_torch_memory=17.98GiB memory_usage_post_profile=15.35GiB non_torch_memory=0.35GiB kv_cache_size=2.89GiB "
        "gpu_memory_utilization=0.90\n",
        {"weights": 14.9888, "activation": 2.9912, "non_torch": 0.35, "kv_cache": 2.89, "total": 23.58},
    ),
    "vLLM 0.6, several lines": (
        "INFO worker.py:241] Memory profiling takes 4.96 seconds\n"
        "INFO worker.py:241] the current vLLM instance can use total_gpu_memory (44.53GiB) x gpu_memory_utilization "
        "(0.90) = 40.07GiB\n"
        "INFO worker.py:241] model weights take 20.64GiB; non_torch_memory takes 0.28GiB; PyTorch activation peak "
        "memory takes 1.52GiB; the rest of the memory reserved for KV Cache is 17.63GiB.\n",
        {"weights": 20.64, "activation": 1.52, "non_torch": 0.28, "kv_cache": 17.63, "total": 44.53},
    ),
    "vLLM 0.9": (
        "INFO 06-05 [gpu_model_runner.py:1549] Model loading took 4.1367 GiB and 15.398870 seconds\n"
        "INFO 06-05 [gpu_worker.py:227] Available KV cache memory: 8.11 GiB\n"
        "INFO 06-05 [gpu_model_runner.py:1933] Graph capturing finished in 22 secs, took 0.52 GiB\n",
        {"weights": 4.1367, "kv_cache": 8.11, "graphs": 0.52},
    ),
    "vLLM 0.11": (
        "INFO [gpu_worker.py:1] Free memory on device (78.70/79.11 GiB) on startup. Desired GPU memory utilization is "
        "(0.9, 71.2 GiB). Actual usage is 14.25 GiB for weight, 5.64 GiB for peak activation, 0.07 GiB for non-torch "
        "memory, and 0.55 GiB for CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory=1` "
        "to fit into requested memory. Current kv cache memory in use is 51.24 GiB.\n",
        {"weights": 14.25, "activation": 5.64, "non_torch": 0.07, "graphs": 0.55, "kv_cache": 51.24, "total": 79.11},
    ),
    "SGLang": (
        "[2025-07-02 07:41:58 TP0] Load weight end. type=Qwen, dtype=torch.bfloat16, avail mem=21.73 GB, "
        "mem usage=15.27 GB.\n"
        "[2025-07-02 07:41:59 TP0] KV Cache is allocated. #tokens: 20480, K size: 4.00 GB, V size: 4.00 GB\n"
        "[2025-07-02 07:42:20 TP0] Capture cuda graph end. Time elapsed: 5.00 s. mem usage=1.50 GB. "
        "avail mem=11.00 GB.\n",
        {"weights": 15.27, "kv_cache": 8.00, "graphs": 1.50},
    ),
}


def meters(told: TextExplanation) -> list[Meter]:
    return [section for section in describe_text(told).sections if isinstance(section, Meter)]


def server_of(text: str, at: int = 0) -> ServerMemory:
    server = find_messages(text)[at].server
    assert server is not None
    return server


@pytest.mark.parametrize("version", LOGS)
def test_the_log_of_a_server_is_one_bar_that_adds_up(version: str) -> None:
    log, figures = LOGS[version]
    mark = "[2025-07-02 07:43:00 TP0] " if version == "SGLang" else ""
    told = explain_text(f"{log}{mark}RuntimeError: CUDA error: out of memory\n")
    server = told.found.server
    assert server is not None
    for name, size in figures.items():
        assert abs(getattr(server, f"{name}_bytes") - size * GIB) < 2 * MIB, name
    (meter,) = meters(told)
    whole = sum(part.size_bytes for part in meter.parts)
    assert abs(whole - sum(size for name, size in figures.items() if name != "total") * GIB) < 8 * MIB
    assert meter.total_bytes == (server.total_bytes or whole)
    assert whole <= meter.total_bytes


def test_what_vllm_takes_and_its_cache_are_the_budget() -> None:
    """The four parts add up to gpu_memory_utilization x the card, as vLLM itself adds."""
    for version in ("vLLM 0.6", "vLLM 0.6, several lines"):
        server = server_of(LOGS[version][0] + NO_BLOCKS)
        assert server.taken_bytes is not None
        assert server.kv_cache_bytes is not None
        assert server.total_bytes is not None
        budget = (server.utilization or 0) * server.total_bytes
        assert abs(server.taken_bytes + server.kv_cache_bytes - budget) < 16 * MIB


def test_another_start_is_added_up_anew() -> None:
    first, second = LOGS["vLLM 0.6"][0], LOGS["vLLM 0.9"][0]
    server = server_of(f"{first}INFO Initializing a V1 LLM engine (v0.9.1) with config:\n{second}{NO_BLOCKS}")
    assert (server.total_bytes, server.non_torch_bytes) == (None, None)
    assert server.weights_bytes == bytes_of("4.1367 GiB")


def test_each_worker_has_its_own() -> None:
    text = (
        "(Worker pid=11) INFO Model loading took 4.00 GiB and 15 seconds\n"
        "(Worker pid=12) INFO Model loading took 6.00 GiB and 15 seconds\n"
        f"(Worker pid=12) ERROR {NO_BLOCKS}\n(Worker pid=11) ERROR {NO_BLOCKS}\n"
    )
    assert [server_of(text, at).weights_bytes for at in (0, 1)] == [6 * GIB, 4 * GIB]


def test_the_log_of_another_program_adds_nothing() -> None:
    assert find_messages(f"available memory 8.11 GiB\nweights 4 GiB\n{NO_BLOCKS}")[0].server is None


def test_the_share_that_is_advised_is_enough_and_no_more() -> None:
    """vLLM: what is advised of the card holds what its log adds up to."""
    log = LOGS["vLLM 0.6, several lines"][0].replace("(0.90) = 40.07GiB", "(0.50) = 22.27GiB").replace("17.63", "-0.17")
    told = explain_text(log + NO_BLOCKS)
    assert told.cause is Cause.LIMIT
    least = float(re.findall(r"utilization above ([\d.]+)", told.remedies[0].name)[0])
    taken, total = 22.44, 44.53
    assert taken <= least * total < taken + 0.01 * total


def test_what_the_cache_lacks_is_added_to_the_share() -> None:
    told = explain_text(LOGS["vLLM 0.6"][0] + TOO_LONG)
    lower, more = told.remedies
    assert lower.name == "max_model_len=23648"
    share = float(more.name.removeprefix("gpu_memory_utilization="))
    needed = 2.89 * 29000 / 23648
    assert share * 23.58 - (0.90 * 23.58 - 2.89) >= needed > (share - 0.01) * 23.58 - (0.90 * 23.58 - 2.89)


@pytest.mark.parametrize(("free", "total"), [("31.44", "47.38"), ("7.99", "8.00"), ("0.5", "79.32"), ("0.01", "79.32")])
def test_a_share_that_is_advised_was_free(free: str, total: str) -> None:
    told = explain_text(
        f"ValueError: Free memory on device ({free}/{total} GiB) on startup is less than desired GPU memory "
        "utilization (0.95, 100.0 GiB). Decrease GPU memory utilization."
    )
    names = [remedy.name for remedy in told.remedies]
    shares = [float(name.removeprefix("gpu_memory_utilization=")) for name in names if "utilization=" in name]
    assert all(share > 0 and share * float(total) <= float(free) for share in shares)
    assert bool(shares) == (float(free) / float(total) >= 0.01)


def test_a_length_that_is_advised_fits() -> None:
    told = explain_text(
        "ValueError: To serve at least one request with the models's max seq len (1048576), (24.00 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (9.97 GiB)."
    )
    length = int(told.remedies[0].name.removeprefix("max_model_len="))
    assert 9.90 < length * 24.00 / 1048576 <= 9.97


def test_sglangs_share_is_of_what_was_free_before_the_weights() -> None:
    told = explain_text(
        LOGS["SGLang"][0].split("\n")[0]
        + "\n[2025-07-02 07:41:59 TP0] RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n"
    )
    least = float(re.findall(r"static above ([\d.]+)", told.remedies[0].name)[0])
    assert least - 0.01 < 15.27 / (15.27 + 21.73) <= least


def failed(card: int, mark: str, allocated_gib: int = 22) -> str:
    """A request for 2 GiB where PyTorch has reserved 22 GiB: by what is allocated of that the card was full or not."""
    return (
        f"{mark}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU {card} has a total "
        "capacity of 24.00 GiB of which 0.50 GiB is free. Including non-PyTorch memory, this process has 23.50 GiB "
        f"memory in use. Of the allocated memory {allocated_gib}.00 GiB is allocated by PyTorch, and "
        f"{22 - allocated_gib}.00 GiB is reserved by PyTorch but unallocated.\n"
    )


def test_each_rank_is_judged_and_which_differ_is_said() -> None:
    text = "".join(failed(rank, f"[rank{rank}]: ") for rank in (0, 1, 3))
    text += failed(2, "[rank2]: ", 15)
    told = explain_text(text)
    assert [(rank.rank, rank.cause) for rank in told.ranks] == [
        *((f"rank{rank}", Cause.TRULY_FULL) for rank in (0, 1, 3)),
        ("rank2", Cause.FRAGMENTED),
    ]
    notes = told.notes
    assert any(
        note.startswith("4 ranks or workers ran out of memory (rank0, rank1, rank3 ...); this") for note in notes
    )
    assert any(note.startswith("rank2 differs: fragmentation. The free memory was fragmented") for note in notes)
    (table,) = (
        section for section in describe_text(told).sections if isinstance(section, Table) and "rank" in section.columns
    )
    assert [row.cells[0] for row in table.rows] == ["rank0", "rank1", "rank3", "rank2"]


def test_ranks_that_are_alike_are_said_to_be() -> None:
    told = explain_text(failed(0, "[rank0]: ") + failed(1, "[rank1]: "))
    assert any("all for the same reason" in note for note in told.notes)
    assert not any("messages of memory running out" in note for note in told.notes)


def test_without_marks_each_card_is_judged() -> None:
    told = explain_text(failed(0, "") + failed(1, "", 15))
    assert [(rank.rank, rank.cause.value) for rank in told.ranks] == [
        ("GPU 0", "truly_full"),
        ("GPU 1", "fragmented"),
    ]


def test_one_rank_alone_has_no_table() -> None:
    assert explain_text(failed(0, "[rank0]: ") * 2).ranks == ()


@pytest.mark.parametrize("allocated", ["8.10 GiB", "17.20 GiB", "28.16 GiB"])
@pytest.mark.parametrize("width", [80, 120])
def test_more_than_the_card_has_is_shared_memory_and_no_figure_is_negative(allocated: str, width: int) -> None:
    told = explain_text(
        f"CUDA out of memory. Tried to allocate 90.00 MiB (GPU 0; 8.00 GiB total capacity; {allocated} already "
        "allocated; 0 bytes free; 28.20 GiB reserved in total by PyTorch)"
    )
    stream = io.StringIO()
    draw(describe_text(told), Console(file=stream, width=width, highlight=False, force_terminal=False))
    assert re.search(r"(?<![\w.])-\d", stream.getvalue()) is None
    assert any("Windows and WSL" in note and "shared GPU memory" in note for note in told.notes)
    (meter,) = meters(told)
    assert sum(part.size_bytes for part in meter.parts) == meter.total_bytes
    assert {part.label: part.size_bytes for part in meter.parts}["on the GPU"] == 8 * GIB


def test_no_share_to_save_is_zero_or_less() -> None:
    """MPS rounds its figures so that the request seems to have fitted."""
    told = explain_text(
        "RuntimeError: MPS backend out of memory (MPS allocated: 9.00 GiB, other allocations: 9.00 GiB, max allowed: "
        "18.13 GiB). Tried to allocate 128.00 MiB on private pool."
    )
    assert "use at least 1 % less" in told.remedies[0].name
    assert "-" not in re.sub(r"[a-z]-[a-z]", "", told.remedies[0].remark)


def test_unknown_words_of_memory_are_quoted_and_not_judged() -> None:
    text = "loading\nfoo-engine: device heap: out of memory (pool 7)\n"
    with pytest.raises(UsageError, match=r"at line 2, in an error message .* not know: 'foo-engine: device heap"):
        explain_text(text)
    with pytest.raises(UsageError, match="contains no out-of-memory error"):
        explain_text("loading\nready\n")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8.00 GiB", 8 * GIB),
        ("98.000244MB", 102760704),
        ("21.95G", parse_bytes("21.95 GiB")),
        ("25,600,000 bytes", 25600000),
        ("7406166528", 7406166528),
        ("12B", 12),
        ("0.000000B", 0),
        ("64K", 65536),
        ("-1.28GiB", -parse_bytes("1.28 GiB")),
    ],
)
def test_sizes_as_programs_write_them(text: str, size: int) -> None:
    assert abs(bytes_of(text) - size) <= 1


def test_a_cache_below_zero_is_what_is_missing() -> None:
    told = explain_text(f"Available KV cache memory: -0.3 GiB\n{NO_BLOCKS}")
    assert "have taken all of it, and 307.2 MiB more." in told.sentence


NINES = "9" * 400
TOO_SMALL = (
    "ValueError: To serve at least one request with the models's max seq len ({}), ({} KV cache is needed, which is "
    "larger than the available KV cache memory ({})."
)
ON_A_NODE = (
    "Task was killed due to the node running low on memory. Memory on the node was {} / 16.00GB (0.95), which exceeds "
    "the memory usage threshold of {}."
)


@pytest.mark.parametrize(
    "text",
    [
        ON_A_NODE.format("15.00GB", "1.5.2"),
        ON_A_NODE.format("15.00GB", "...9"),
        ON_A_NODE.format("-15.00GB", "0.95"),
        f"INFO total_gpu_memory=14.6GiB gpu_memory_utilization=...\n{NO_BLOCKS}",
        f"INFO total_gpu_memory=14..6GiB gpu_memory_utilization=0.9.0\n{NO_BLOCKS}",
        "Free memory on device (../.. GiB) on startup is less than desired GPU memory utilization (.., 1 GiB)",
        TOO_SMALL.format(NINES, "8.00 GiB", "1.00 GiB"),
        TOO_SMALL.format(4096, "8.00 GiB", "-1.28 GiB") + f" the estimated maximum model length is {NINES}",
        "Error in memory profiling. Initial free memory -3.0 GiB, current free memory 4..5 GiB.",
        f"OOM when allocating tensor with shape[{NINES},{NINES}] and type float on /device:GPU:0 by allocator x",
        "Executor creation failed due to insufficient GPU memory: x could not be created: y "
        "Total GPU memory (GiB): .. Free GPU memory before component creation attempt (GiB): ..",
    ],
)
def test_figures_that_are_none_break_nothing(text: str) -> None:
    """Damaged logs have them: several points, no digit, hundreds of digits, a sign. What is told has no such figure."""
    told = explain_text(text)
    every = [told.sentence, *(f"{one.action} {one.remark}" for one in told.remedies), *told.notes]
    assert not re.search(r"(?<!\w)-\d|99999|\.\.\d", " ".join(every)), every


def test_a_budget_below_zero_leaves_nothing_for_a_request() -> None:
    """vLLM prints it so, where weights alone are more than its share: no length fits then."""
    told = explain_text(TOO_SMALL.format(4096, "8.00 GiB", "-1.28 GiB"))
    assert "the budget leaves 0 B." in told.sentence
    assert not any("max_model_len" in (one.action or "") for one in told.remedies)
    assert any("9.28 GiB" in f"{one.action} {one.remark}" for one in told.remedies)


@pytest.mark.parametrize(
    ("text", "headline"),
    [
        ("OOM when allocating tensor with shape[24,3] and type float on /device:CPU:0 by allocator cpu", True),
        ("java.lang.OutOfMemoryError: Java heap space", True),
        ("Out of memory: Killed process 7899 (python)", True),
        ("RuntimeError: CUDA error: out of memory", False),
    ],
)
def test_the_headline_says_where_it_was_not_the_card(text: str, *, headline: bool) -> None:
    assert (explain_text(text).headline == "HOST MEMORY RAN OUT") is headline


WEIGHTS = (
    "ValueError: Loaded weights leave no GPU memory for the KV cache under\n--mem-fraction-static={}. Raise "
    "--mem-fraction-static above {} (minimum viable = 1 - available/pre = {}). If using speculative decoding, draft "
    "weights are now counted."
)


def test_a_share_that_was_refused_is_not_advised() -> None:
    """SGLang's own advice is below the share that it has refused where it sets more aside than the weights."""
    refused = explain_text(WEIGHTS.format("0.95", "0.923", "0.9224"))
    assert refused.cause is Cause.LIMIT
    assert "SGLang reserves more" in refused.sentence
    assert not any("mem_fraction_static" in remedy.name for remedy in refused.remedies)
    higher = explain_text(WEIGHTS.format("0.3", "0.320", "0.3198"))
    assert higher.remedies[0].name == "mem_fraction_static above 0.32 (now 0.3)"


def test_which_of_sglangs_pools_is_full_is_told() -> None:
    text = (
        "Prefill out of memory. Try to lower your batch size.\nTry to allocate 8192 tokens.\nAvailable full tokens: "
        "899840 (full_available_size=11776 + full_evictable_size_=888064)\nAvailable swa: 3840 (available_size=3840)"
    )
    windows = explain_text(text)
    assert "sliding window is full: 8,192 tokens were requested, 3,840 were free in it, and 899,840" in windows.sentence
    assert windows.remedies[0].name == "a higher swa_full_tokens_ratio"
    newer = "Out of memory. Try to lower your batch size.\nTry to allocate 64 tokens.\nAvailable tokens: 3"
    assert "full: 64 tokens were requested, 3 were free." in explain_text(newer).sentence
    states = explain_text("AssertionError: Not enough space for mamba cache, try to increase --max-mamba-cache-size")
    assert "max_mamba_cache_size" in states.remedies[0].name


def test_a_kv_cache_that_was_set_by_hand_is_lowered_by_hand() -> None:
    log = (
        "(EngineCore pid=1) INFO [gpu_worker.py:492] Initial free memory 31.16 GiB, reserved 30.25 GiB memory for KV "
        "Cache as specified by kv_cache_memory_bytes config and skipped memory profiling.\n"
        "(EngineCore pid=1) ERROR torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a "
        "total capacity of 31.37 GiB of which 0.50 GiB is free. Of the allocated memory 30.30 GiB is allocated by "
        "PyTorch, and 0.10 GiB is reserved by PyTorch but unallocated.\n"
    )
    assert explain_text(log).remedies[0].name == "a lower kv_cache_memory_bytes"


def test_cudas_pool_under_jax_had_room_or_had_not() -> None:
    text = "cuMemAllocAsync failed to allocate {} bytes: RESOURCE_EXHAUSTED\nFree memory/Total memory: {}/85095874560"
    full = explain_text(text.format(20 * GIB, 10 * GIB))
    assert (full.cause, full.evidence["free_bytes"]) == (Cause.TRULY_FULL, 10 * GIB)
    assert explain_text(text.format(GIB, 10 * GIB)).cause is Cause.CANNOT_TELL
    assert explain_text("cuMemAllocAsync failed to allocate 512 bytes: x").cause is Cause.CANNOT_TELL


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)", Cause.DISGUISED),
        ("level_zero backend failed with error: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)", Cause.CANNOT_TELL),
        ("level_zero backend failed with error: 38 (UR_RESULT_ERROR_OUT_OF_HOST_MEMORY)", Cause.HOST_MEMORY),
    ],
)
def test_intels_driver_is_not_called_cuda(words: str, cause: Cause) -> None:
    explained = explain_text(f"RuntimeError: {words}")
    assert explained.cause is cause
    assert "CUDA" not in explained.sentence
    assert ("Host memory" in explained.sentence) == ("HOST" in words)


def test_an_error_that_is_logged_before_it_is_raised_has_the_traceback_of_its_repetition() -> None:
    error = "NPU out of memory. Tried to allocate 72.00 MiB (NPU 0; 61.27 GiB total capacity; 5.04 MiB free)"
    traceback = (
        'Traceback (most recent call last):\n  File "/opt/python/sglang/srt/managers/scheduler.py", line 4123, in run\n'
        '  File "/home/user/model.py", line 7, in forward\n    return x @ y\n'
    )
    explained = explain_text(f"[1] torch_npu.memory: [ERROR] [1] {error}\n{traceback}torch.OutOfMemoryError: {error}\n")
    assert explained.found.row == 1
    assert explained.failing_line == "user/model.py:7"
    assert any("mem_fraction_static" in remedy.name for remedy in explained.remedies)


@pytest.mark.parametrize("mark", ["TP0", "DP1 TP0", "TP0 EP0", "PP1 TP0", "DP0 PP1 TP0 EP3"])
def test_sglangs_ranks_are_told_by_their_marks(mark: str) -> None:
    line = f"[2026-07-01 09:31:38 {mark}] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. "
    assert explain_text(line).found.rank == mark
