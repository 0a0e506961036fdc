"""Read out of PyTorch's wheels which CUDA symbols they ask for: src/ullage/emulator/cuda/symbols/*.txt.

    pip install pyelftools
    pip download --no-deps -d wheels torch==2.11.0
    python tools/read_symbols.py wheels/*.whl [site-packages/torch ...]

An argument is a wheel or an unpacked `torch` folder. Every library gets one file: the soname and symbol version for
each CUDA major version, then a symbol a line with the CUDA versions that ask for it. Existing lists are kept and
added to, so that wheels can be read one after the other. Symbols that torch looks up by name while it runs (driver,
NVML) are found among its strings.
"""

from __future__ import annotations

import re
import sys
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

LISTS = Path(__file__).resolve().parent.parent / "src/ullage/emulator/cuda/symbols"
SONAME = re.compile(r"lib(cu|nccl|nv)\w*\.so")
BY_NAME = {
    "cuda": re.compile(
        rb"cu(?:Array|Context|Ctx|Dev|Device|Driver|Event|Func|Get|Graph|GreenCtx|Init|Ipc|Kernel|Launch|Library|Link|Logs|"
        rb"Mem|Module|Multicast|Occupancy|Pointer|Profiler|Stream|TensorMap|ThreadExchange)[A-Z0-9]?\w*"
    ),
    "nvidia-ml": re.compile(rb"nvml(?:Init|Shutdown|Device|System|ErrorString|Event|Unit)\w*"),
}
BY_NAME_SONAME = {"cuda": "libcuda.so.1", "nvidia-ml": "libnvidia-ml.so.1"}


def stem_of(soname: str) -> str:
    return soname.removeprefix("lib").split(".so")[0]


def shared_objects(source: Path) -> Iterator[Path]:
    """The shared objects of a wheel (unpacked one at a time) or of a folder."""
    if source.is_dir():
        yield from sorted(source.glob("lib/*.so")) + sorted(source.glob("*.so"))
        return
    with zipfile.ZipFile(source) as wheel, tempfile.TemporaryDirectory() as folder:
        for name in wheel.namelist():
            if re.match(r"torch/(lib/)?[^/]+\.so$", name):
                path = Path(wheel.extract(name, folder))
                yield path
                path.unlink()


class Lists:
    """What every library is asked for: `symbols[library][name]` = CUDA majors, `versions[library][major]`."""

    def __init__(self) -> None:
        self.symbols: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        self.versions: dict[str, dict[int, tuple[str, str]]] = defaultdict(dict)

    def load(self) -> None:
        for path in LISTS.glob("*.txt"):
            for line in path.read_text().splitlines():
                if line.startswith("#") or not line.strip():
                    continue
                first, *rest = line.split()
                if first == "soname":
                    self.versions[path.stem][int(rest[0])] = (rest[1], rest[2])
                else:
                    self.symbols[path.stem][first] |= {int(major) for major in rest}

    def save(self) -> None:
        LISTS.mkdir(parents=True, exist_ok=True)
        for library, versions in self.versions.items():
            lines = [f"# What PyTorch's CUDA builds ask of {library}: made by tools/read_symbols.py."]
            lines += [f"soname {major} {soname} {version}" for major, (soname, version) in sorted(versions.items())]
            for name, majors in sorted(self.symbols[library].items()):
                lines.append(" ".join([name, *map(str, sorted(majors))]))
            (LISTS / f"{library}.txt").write_text("\n".join(lines) + "\n")

    def add(self, source: Path) -> int:
        """Add what one build asks for; returns its CUDA major version."""
        wanted: list[tuple[str, str, str]] = []  # soname, symbol version, symbol
        unversioned: set[str] = set()
        sonames: set[str] = set()
        by_name: dict[str, set[str]] = defaultdict(set)
        major = 0
        for path in shared_objects(source):
            with path.open("rb") as stream:
                elf = ELFFile(stream)
                dynamic = elf.get_section_by_name(".dynamic")
                assert isinstance(dynamic, DynamicSection)
                needed = {tag.needed for tag in dynamic.iter_tags("DT_NEEDED")}
                sonames |= {name for name in needed if SONAME.match(name) and not name.startswith("libtorch")}
                for name in needed:
                    if found := re.match(r"libcudart\.so\.(\d+)", name):
                        major = int(found[1])
                versions = {}
                need = elf.get_section_by_name(".gnu.version_r")
                if isinstance(need, GNUVerNeedSection):
                    for file, entries in need.iter_versions():
                        for entry in entries:
                            versions[entry["vna_other"]] = (file.name, entry.name)
                symbols = elf.get_section_by_name(".dynsym")
                marks = elf.get_section_by_name(".gnu.version")
                for index, symbol in enumerate(symbols.iter_symbols()):
                    if symbol["st_shndx"] != "SHN_UNDEF" or not symbol.name:
                        continue
                    mark = marks.get_symbol(index)["ndx"] if marks else None
                    if mark in versions:
                        wanted.append((*versions[mark], symbol.name))
                    else:
                        unversioned.add(symbol.name)
                if strings := elf.get_section_by_name(".rodata"):
                    data = strings.data()
                    for library, pattern in BY_NAME.items():
                        found = re.findall(rb"(?<=\0)" + pattern.pattern + rb"(?=\0)", data)
                        by_name[library] |= {name.decode() for name in found}
        for soname in sonames:
            if soname != "libcuda.so.1":
                self.versions[stem_of(soname)].setdefault(major, (soname, "-"))
        for soname, version, name in wanted:
            if soname in sonames:
                library = stem_of(soname)
                self.versions[library][major] = (soname, version)
                self.symbols[library][name].add(major)
        prefixes = {"cuFile": "cufile", "cusparseLt": "cusparseLt", "nccl": "nccl", "nvshmem": "nvshmem_host"}
        for name in unversioned:
            for prefix, library in prefixes.items():
                if name.startswith(prefix):
                    self.symbols[library][name].add(major)
            if re.match(r"cu[A-Z]", name) and not name.startswith("cuFile"):
                self.symbols["cuda"][name].add(major)
        for library, names in by_name.items():
            self.versions[library][major] = (BY_NAME_SONAME[library], "-")
            for name in names:
                self.symbols[library][name].add(major)
        return major


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    lists = Lists()
    lists.load()
    for source in map(Path, sys.argv[1:]):
        print(f"{source.name}: CUDA {lists.add(source)}", flush=True)
    lists.save()


if __name__ == "__main__":
    main()
