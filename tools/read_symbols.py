"""Write which CUDA symbols there are: src/ullage/gpu/emulator/cuda/symbols/*.txt, out of NVIDIA's and PyTorch's wheels.

    pip install pyelftools
    pip download --no-deps -d wheels nvidia-cublas      # and so on: tools/symbols.sh does it for all of them
    python tools/read_symbols.py wheels/*.whl [site-packages/torch ...]

An argument is a wheel or an unpacked `torch` folder. Every library gets one file: the soname and symbol version for
each CUDA major version, then a symbol a line with the CUDA versions that have it. Existing lists are kept and added to,
so that wheels can be read one after the other, and deleted.

Of NVIDIA's wheels the exported functions are read; the driver and NVML have none, and their names stand in the headers
that other wheels ship (`cuda.h`, `nvml.h`). Of PyTorch's wheels it is read what they ask for, with what they look up by
name while they run. What NVIDIA's own libraries ask of each other by private names is not known.
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
from elftools.elf.gnuversions import GNUVerDefSection, GNUVerNeedSection

LISTS = Path(__file__).resolve().parent.parent / "src/ullage/gpu/emulator/cuda/symbols"
SONAME = re.compile(r"lib(cu|nccl|nv)\w*\.so")
BY_NAME = {
    "cuda": re.compile(
        rb"cu(?:Array|Context|Ctx|Dev|Device|Driver|Event|Func|Get|Graph|GreenCtx|Init|Ipc|Kernel|Launch|Library|Link|Logs|"
        rb"Mem|Module|Multicast|Occupancy|Pointer|Profiler|Stream|TensorMap|ThreadExchange)[A-Z0-9]?\w*"
    ),
    "nvidia-ml": re.compile(rb"nvml(?:Init|Shutdown|Device|System|ErrorString|Event|Unit)\w*"),
}
LONGEST_NAME = 64
BY_NAME_SONAME = {"cuda": "libcuda.so.1", "nvidia-ml": "libnvidia-ml.so.1"}
# The libraries of NVIDIA's wheels that are emulated, by the stem of their soname; their other libraries are their own
# (compilers' built-in code, the profiler's counters, network transports).
EMULATED = [
    "cublas",
    "cublasLt",
    "cudart",
    "cudnn",
    "cufft",
    "cufile",
    "cupti",
    "curand",
    "cusolver",
    "cusolverMg",
    "cusparse",
    "cusparseLt",
    "nccl",
    "nvJitLink",
    "nvrtc",
    "nvshmem_host",
    "nvToolsExt",
    "nvtx3interop",
]
HEADERS = {
    "cuda": re.compile(r"include/cuda(|EGL|GL|Profiler|VDPAU)\.h$"),
    "nvidia-ml": re.compile(r"include/nvml\.h$"),
}


def stem_of(soname: str) -> str:
    return soname.removeprefix("lib").split(".so")[0]


def shared_objects(source: Path) -> Iterator[Path]:
    """The shared objects of PyTorch's wheel (unpacked one at a time) or of its folder."""
    if source.is_dir():
        yield from sorted(source.glob("lib/*.so")) + sorted(source.glob("*.so"))
        return
    for _, path in members(source, re.compile(r"torch/(lib/)?[^/]+\.so$")):
        yield path


def members(wheel_path: Path, pattern: re.Pattern[str]) -> Iterator[tuple[str, Path]]:
    """The files of a wheel with such names, unpacked one at a time."""
    with zipfile.ZipFile(wheel_path) as wheel, tempfile.TemporaryDirectory() as folder:
        for name in wheel.namelist():
            if pattern.search(name):
                path = Path(wheel.extract(name, folder))
                yield name, path
                path.unlink()


def functions_of(elf: ELFFile) -> tuple[str, str, set[str]]:
    """Of a shared object: its soname, the version of its symbols ("-": none), and the C functions that it exports."""
    dynamic = elf.get_section_by_name(".dynamic")
    assert isinstance(dynamic, DynamicSection)
    soname = next((tag.soname for tag in dynamic.iter_tags("DT_SONAME")), "")
    versions = {}
    defined = elf.get_section_by_name(".gnu.version_d")
    if isinstance(defined, GNUVerDefSection):
        for definition, names in defined.iter_versions():
            if not definition["vd_flags"] & 1:  # VER_FLG_BASE names the file
                versions[definition["vd_ndx"]] = next(iter(names)).name
    marks = elf.get_section_by_name(".gnu.version")
    found: dict[str, str] = {}
    for index, symbol in enumerate(elf.get_section_by_name(".dynsym").iter_symbols()):
        is_function = symbol["st_info"]["type"] == "STT_FUNC" and symbol["st_shndx"] != "SHN_UNDEF"
        if is_function and not symbol.name.startswith("_Z") and symbol.name not in ("_init", "_fini"):
            mark = marks.get_symbol(index)["ndx"] if marks else None
            found[symbol.name] = versions.get(mark, "-")
    used = set(found.values())
    if len(used) > 1:
        sys.exit(f"{soname} gives its functions the versions {sorted(used)}: the lists have room for one")
    return soname, next(iter(used), "-"), set(found)


def names_in_header(text: str, prefix: str) -> set[str]:
    """The functions that a header declares, with the versioned and per-thread-stream names that its macros lead to."""
    names = set(re.findall(r"\b(?:CUDAAPI|DECLDIR)\s+(\w+)\s*\(", text))
    for pair in re.findall(rf"^#\s*define\s+({prefix}[A-Z]\w+)\s+({prefix}[A-Z]\w+)\s*$", text, re.MULTILINE):
        if names & set(pair):  # other macros name constants
            names |= set(pair)
    for macro, suffix in (("PTDS", "_ptds"), ("PTSZ", "_ptsz")):
        names |= {name + suffix for name in re.findall(rf"__CUDA_API_{macro}\(({prefix}\w+)\)", text)}
    return {name for name in names if re.match(rf"{prefix}[A-Z]", name)}


class Lists:
    """What there is of every library: `symbols[library][name]` = CUDA majors, `versions[library][major]`."""

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
            lines = [f"# The functions of {library}: made by tools/read_symbols.py."]
            lines += [f"soname {major} {soname} {version}" for major, (soname, version) in sorted(versions.items())]
            for name, majors in sorted(self.symbols[library].items()):
                lines.append(" ".join([name, *map(str, sorted(majors))]))
            (LISTS / f"{library}.txt").write_text("\n".join(lines) + "\n")

    def add(self, source: Path) -> int:
        """Add what a wheel has or asks for; returns its CUDA major version."""
        is_torch = source.is_dir() or source.name.startswith("torch-")
        return self.add_wanted(source) if is_torch else self.add_offered(source)

    def add_offered(self, wheel: Path) -> int:
        """Add what one of NVIDIA's wheels has."""
        major = 0
        for name, path in members(wheel, re.compile(r"/lib[^/]+\.so(\.\d+)*$|include/(cuda\w*|nvml)\.h$")):
            if found := re.search(r"_cu(\d+)-", wheel.name) or re.search(r"/cu(\d+)/", name):
                major = int(found[1])
            if name.endswith(".h"):
                for library, pattern in HEADERS.items():
                    if pattern.search(name):
                        prefix = "cu" if library == "cuda" else "nvml"
                        self.put(
                            library, major, BY_NAME_SONAME[library], "-", names_in_header(path.read_text(), prefix)
                        )
                continue
            with path.open("rb") as stream:
                soname, version, names = functions_of(ELFFile(stream))
            if stem_of(soname) in EMULATED and ".alt" not in soname:
                self.put(stem_of(soname), major, soname, version, names)
        return major

    def put(self, library: str, major: int, soname: str, version: str, names: set[str]) -> None:
        self.versions[library][major] = (soname, version)
        for name in names:
            self.symbols[library][name].add(major)

    def add_wanted(self, source: Path) -> int:
        """Add what one of PyTorch's builds asks for."""
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
                if len(name) > LONGEST_NAME:  # names that follow each other without a zero between them
                    continue
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
