"""Make the profiles of CUDA contexts, and the page about them, from readings that others published: `make contexts`.

    python tools/read_contexts.py [--write docs/contexts.md]
    python tools/read_contexts.py --texts FOLDER --cards NAME [NAME ...]

The facts are in `benchmarks/contexts/readings.jsonl`; `tools/contexts.py` says how they are put together. `--texts`
reads error texts of PyTorch from files, and prints the facts of them for somebody who knows where they come from.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from contexts import FEWEST, ROOT, Population, populations, readings, rule_of
from contexts_page import page
from stale_pages import write_page

from ullage.gpu.gpus import find_gpu
from ullage.recorded.message.log import find_messages
from ullage.recorded.message.message import Message

PROFILES = ROOT / "src" / "ullage" / "gpu" / "emulator" / "profiles"
HEADER = "# Written by tools/read_contexts.py from benchmarks/contexts/readings.jsonl.\n"


def facts_of(message: Message, cards: list[str], source: str) -> dict[str, Any] | None:
    """Take the figures out of a text; None where it has them not, or does not say which of several processes it is."""
    held, others = message.process_bytes, message.other_processes
    if held is None and len(others) == 1:  # in a container the driver has another number for the process itself
        held = others[0].used_bytes
    if held is None or message.allocated_bytes is None or message.unallocated_bytes is None:
        return None
    return {
        "source": source,
        "cards": cards,
        "told_by": "name",
        "torch": None,
        "total_bytes": message.total_bytes,
        "in_use_bytes": held,
        "allocated_bytes": message.allocated_bytes,
        "unallocated_bytes": message.unallocated_bytes,
        "left_out": "CUDA graphs" if message.private_pools_bytes else None,
    }


def profile_texts(known: list[Population]) -> dict[str, str]:
    """The profiles by the names of their files."""
    texts = {}
    for population in known:
        if len(population.kept) < FEWEST:
            continue
        architecture, sm_count = population.chip
        low, expected, high = population.interval_mib()
        texts[f"{architecture}_{sm_count}.toml"] = HEADER + (
            f'architecture = "{architecture}"\nsm_count = {sm_count}\n'
            f'source = "{len(population.kept)} published readings of this chip"\n\n'
            f"[context]\nexpected_mib = {expected}\nlow_mib = {low}\nhigh_mib = {high}\n"
        )
    rule = rule_of(known)
    texts["rule.toml"] = HEADER + (
        'source = "estimated from the chip\'s number of threads; too few readings of this chip were published"\n\n'
        f"[rule]\nbase_mib = {rule.base_mib:.1f}\nmib_by_1024_threads = {rule.mib_by_1024_threads:.4f}\n"
        f"around_mib = {rule.around_mib:.1f}\n"
    )
    return texts


def print_facts(folder: Path, names: list[str]) -> int:
    """Print the facts of every text in a folder."""
    cards = [find_gpu(name).name for name in names]
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        for found in find_messages(path.read_text(encoding="utf-8", errors="replace")):
            fact = facts_of(found.message, cards, path.name)
            if fact is not None:
                print(json.dumps(fact if found.rank is None else {**fact, "left_out": "several ranks"}))
    return 0


def main() -> int:
    """Write the profiles, and the page where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="the page to write")
    parser.add_argument("--texts", type=Path, help="read texts from the files of this folder, and print facts")
    parser.add_argument("--cards", nargs="+", default=[], help="the card that the texts are of, or those it may be")
    options = parser.parse_args()
    if options.texts is not None:
        return print_facts(options.texts, options.cards)
    found = list(readings())
    known = populations(found)
    for name, text in profile_texts(known).items():
        (PROFILES / name).write_text(text, encoding="utf-8")
    text = page(found, known)
    if options.write is not None:
        write_page(options.write, text)
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
