"""A real card beside the emulated one: `make gpu` where there is a GPU.

    real_card.py measure [FILE.json] [--emulate CARD]   on a machine with a card; needs torch only, no network; without
                                                        FILE: benchmarks/real/CARD-TORCH.json; exit 1 if anything failed
    real_card.py compare FILE.json                      on any machine: the same emulated; exit 1 where allocated bytes
                                                        or what an operation asks for differ
    real_card.py profile FILE.json                      print the profile (emulator/profiles/*.toml) that it makes

The workloads are those of tests/truth, the nets those of benchmarks/cudnn: of these each convolution and attention is
called alone too, for what torch asks the allocator for meanwhile. Every one runs in a process of its own. Where cuDNN
is not installed on the machine that compares, its workspaces are not known; every difference is listed. `--emulate`
takes an emulated card in place of the real one, to try this file.
"""

import argparse
import ctypes
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src"), str(ROOT / "benchmarks/cudnn")]
STEPS = 3
MIB = 1 << 20
SHOWN = 5  # differences of a net
FORMS = (("fp32", "channels_first"), ("bf16", "channels_last"), ("fp16", "channels_first"))
NETS = {
    "torchvision": ("resnet18", "resnet50", "vgg16", "mobilenet_v2", "convnext_tiny", "densenet121", "vit_b_16"),
    "torch": ("unet", "unet_3d", "diffusion_block", "speech_stem"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["measure", "compare", "profile", "one", "net", "context"])
    parser.add_argument("name", nargs="?", default="")
    parser.add_argument("--emulate", default="")
    parser.add_argument("--total", type=int)
    parser.add_argument("--only", default="", help="workloads and nets that have this in their name")
    options = parser.parse_args()
    if options.what == "measure":
        sys.exit(measure(options.name, options.emulate, options.only))
    elif options.what == "compare":
        sys.exit(compare(read_record(options.name)))
    elif options.what == "profile":
        print(profile(read_record(options.name)), end="")
    else:
        if options.emulate:
            import ullage

            ullage.emulate(options.emulate, total_memory_bytes=options.total)
        answer = {"one": one, "net": net}[options.what](options.name) if options.name else context()
        print("@" + json.dumps(answer))


def child(*arguments: str) -> dict[str, Any]:
    """Run this file in a new process and return its answer; a failure is an answer too."""
    done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1:]}
    return json.loads(done.stdout.rsplit("@", 1)[1])


def read_record(name: str) -> dict[str, Any]:
    """Read what `measure` wrote; a record without a card ends the program."""
    try:
        record: dict[str, Any] = json.loads(Path(name).read_text())
        record["context"]["gpu"], record["workloads"], record["nets"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"error: {name or 'no file'} is no record of a card ({error!r}); make one with: real_card.py measure")
    return record


def measure(name: str, emulated: str, part: str) -> int:
    """Measure every workload and the context, and write the record; 1 where one of them failed."""
    emulate = ["--emulate", emulated] if emulated else []
    record: dict[str, Any] = {"emulated": emulated or None, "context": child("context", "", *emulate)}
    card = record["context"]
    if "error" in card:
        print(f"error: there is no card to measure: {card['error']}", file=sys.stderr)
        return 1
    path = Path(name or ROOT / "benchmarks/real" / f"{card['gpu']}-{card['torch']}.json".replace(" ", "-"))
    for kind, what, names in (("workloads", "one", workloads(part)), ("nets", "net", nets(part))):
        record[kind] = {}
        for name in names:
            record[kind][name] = child(what, name, *emulate)
            print(name, record[kind][name].get("error", "measured"), flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"wrote {path}")
    return int(any("error" in work for work in (*record["workloads"].values(), *record["nets"].values())))


def workloads(part: str) -> list[str]:
    """Return the recorded workloads that need no package beside torch, and have a part in their name."""
    from tests.truth.record import NEEDED_BY, load_records

    needing = {name for names in NEEDED_BY.values() for name in names}
    return sorted({record.name for record in load_records() if part in record.name} - needing)


def nets(part: str) -> list[str]:
    """Return the nets that can be made here, as "resnet50:fp32:channels_first", with a part in their name."""
    found = []
    for package, names in NETS.items():
        if importlib.util.find_spec(package):
            found += [f"{name}:{dtype}:{layout}" for name in names for dtype, layout in FORMS]
        else:
            print(f"left out, {package} is not installed: {', '.join(names)}")
    return [name for name in found if part in name]


def net(name: str) -> dict[str, Any]:
    """Train a net, and call its operations alone; on an emulated card say whose answer the workspaces are, too."""
    from asked import ask

    answer = ask(*name.split(":"))
    if "ullage" in sys.modules:
        from ullage.emulator import library

        plans = library.cudnn_plans()
        answer["sources"] = {source: figures.problems for source, figures in plans.by_source.items()}
    return answer


def one(name: str) -> dict[str, Any]:
    """Train one workload and say what PyTorch counted in each step, and the driver at the end."""
    import torch

    from tests.truth.workloads import build

    torch.manual_seed(0)
    before = used_bytes()
    trainer = build(name, "cuda")
    steps = []
    for number in range(STEPS):
        torch.cuda.reset_peak_memory_stats()
        trainer.step(number)
        stats = torch.cuda.memory_stats()
        names = ("allocated_bytes.all.peak", "reserved_bytes.all.peak", "requested_bytes.all.peak")
        steps.append({key.split(".")[0]: stats[key] for key in names})
    torch.cuda.synchronize()
    return {"steps": steps, "beside_allocator_bytes": used_bytes() - before - torch.cuda.memory_reserved()}


def context() -> dict[str, Any]:
    """Say what the driver counts beside PyTorch's allocator after each stage of a program's start."""
    before = used_bytes()
    import torch
    import torch.nn.functional as F

    stages: dict[str, int] = {}

    def stage(name: str) -> None:
        torch.cuda.synchronize()
        stages[name] = used_bytes() - before - torch.cuda.memory_reserved()

    torch.cuda.init()
    stage("init")
    x = torch.ones(1024, 1024, device="cuda")
    stage("first kernel")
    x @ x
    stage("cublas")
    x.bfloat16() @ x.bfloat16()
    stage("cublas bf16")
    F.conv2d(torch.ones(8, 16, 64, 64, device="cuda"), torch.ones(32, 16, 3, 3, device="cuda"))
    stage("cudnn")
    q = torch.ones(2, 8, 128, 64, device="cuda", dtype=torch.bfloat16)
    F.scaled_dot_product_attention(q, q, q)
    stage("attention")
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "total_memory_bytes": properties.total_memory,
        "compute_capability": [properties.major, properties.minor],
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "lazy_loading": os.environ.get("CUDA_MODULE_LOADING", "default"),
        "beside_allocator_bytes": stages,
    }


def used_bytes() -> int:
    """What the driver counts as used on the first card, by every process (NVML)."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    memory = (ctypes.c_ulonglong * 3)()  # nvmlMemory_t: total, free, used
    handle = ctypes.c_void_p()
    nvml.nvmlInit_v2()
    nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle))
    nvml.nvmlDeviceGetMemoryInfo(handle, memory)
    return int(memory[2])


def compare(record: dict[str, Any]) -> int:
    """Run the same on the emulated card and list every difference; 1 where allocated memory or an operation differs."""
    card = record["context"]
    emulate = ("--emulate", card["gpu"], "--total", str(card["total_memory_bytes"]))
    here = child("context", "", *emulate)
    for what in ("torch", "cudnn"):
        if here.get(what) != card[what]:
            print(f"{what} {card[what]} on the card, {here.get(what)} here: differences may come from that")
    worst = 0
    for kind, what in (("workloads", "one"), ("nets", "net")):
        for name, real in record[kind].items():
            ours = child(what, name, *emulate)
            if "error" in real or "error" in ours:
                print(f"?     {name}: {real.get('error') or ours.get('error')}")
                worst = max(worst, "error" in ours and "error" not in real)
                continue
            found = list(different_steps(real, ours) if kind == "workloads" else different_net(real, ours))
            counted = ", ".join(f"{count} {whose}" for whose, count in ours.get("sources", {}).items())
            source = f" (workspaces: {counted})" if counted else ""
            shown = found[:SHOWN] + ([f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else [])
            print(f"{'DIFF' if found else 'equal'} {name}{source}", *shown, sep="\n      ", flush=True)
            worst = max(worst, any("reserved" not in line for line in found))
    return int(worst)


def different_steps(real: dict[str, Any], ours: dict[str, Any]) -> Iterator[str]:
    """Say which counters of which steps differ."""
    for number, (there, here) in enumerate(zip(real["steps"], ours["steps"], strict=True)):
        for difference in different_bytes(there, here):
            yield f"step {number + 1} {difference}"


def different_bytes(real: dict[str, Any], ours: dict[str, Any]) -> Iterator[str]:
    """Say which counters differ."""
    for key, there in real.items():
        if key.endswith("_bytes") and ours[key] != there:
            yield f"{key}: {there} on the card, {ours[key]} here ({ours[key] - there:+})"


def different_net(real: dict[str, Any], ours: dict[str, Any]) -> Iterator[str]:
    """Say which peaks of a net differ, and which blocks that came and went within one of its operations."""
    yield from different_bytes(real, ours)
    for operation in sorted(real["operations"].keys() | ours["operations"].keys()):
        there, here = (run["operations"].get(operation) for run in (real, ours))
        if there is None or here is None:
            yield f"{operation}: not {'here' if there else 'on the card'}"
            continue
        for way in ("forward", "backward"):
            if there[way] != here[way]:
                yield f"{operation}, {way}: blocks of {there[way]} bytes on the card, {here[way]} here"


def profile(record: dict[str, Any]) -> str:
    """Make a profile: after cuBLAS is expected, after a first kernel the least, the most ever seen the most."""
    card, stages = record["context"], record["context"]["beside_allocator_bytes"]
    seen = [*stages.values(), *(work.get("beside_allocator_bytes", 0) for work in record["workloads"].values())]
    return (
        f"# Made by benchmarks/real_card.py from a measurement: {card['gpu']}, torch {card['torch']}.\n"
        f'cards = ["{card["gpu"]}"]\n'
        f'source = "measured, {card["gpu"]}, torch {card["torch"]}"\n\n'
        "[context]\n"
        f"expected_mib = {-(-stages['cublas'] // MIB)}\n"
        f"low_mib = {stages['first kernel'] // MIB}\n"
        f"high_mib = {-(-max(seen) // MIB)}\n"
    )


if __name__ == "__main__":
    main()
