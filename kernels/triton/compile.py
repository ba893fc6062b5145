"""Compiles fa2.py beforehand, for the rung `triton-fa2`: the files prebuilt/triton_fa2.*.ptx. No GPU is needed.

    pip install triton==3.6.0
    python kernels/triton/compile.py            writes them
    python kernels/triton/compile.py --check    says which are not what Triton makes of the sources that are here

The first lines of a file carry the hash of this file and of fa2.py, what a launch must know, and the kernel's arguments
in their order. crates/cuda-fa2/src/triton.rs mirrors those, and its tests hold both sides together.
"""
import hashlib
import re
import sys
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fa2 import fa2

HERE = Path(__file__).parent
VERSION = "3.6.0"
# The oldest architecture with cp.async and bfloat16; drivers compile its PTX for every newer one. Version 8.0 of PTX is
# what drivers from 525 on take.
ARCH, PTX = 80, 80
TYPES = {"f16": "fp16", "bf16": "bf16"}
# Channels, and whether rows begin at multiples of 16 bytes and have multiples of 8 channels: rows and keys of a tile,
# warps, and tiles of keys on their way. Those at which ptxas keeps no register in memory, and not fewer rows than
# channels: then Triton splits P V by channels, and all warps that share a row write its lse to the same shared memory,
# in no order. The numbers are equal, which does no harm, but by PTX's memory model it is a race.
TILES = {
    (64, True): (128, 64, 8, 2),
    (64, False): (64, 32, 4, 1),
    (128, True): (128, 32, 8, 3),
    (128, False): (128, 16, 8, 1),
}


def name(element, d, aligned):
    return f"triton_fa2.{element}.d{d}{'' if aligned else '.unaligned'}.sm_{ARCH}.ptx"


def source_hash(file):
    """SHA-256 of names and texts of what it is made of, and of its name, each behind its length."""
    digest = hashlib.sha256()
    texts = [text for own in ("fa2.py", "compile.py") for text in (f"triton/{own}", (HERE / own).read_text())]
    for text in (text.encode() for text in [*texts, file]):
        digest.update(len(text).to_bytes(8, "little") + text)
    return digest.hexdigest()


def argument_type(argument, element):
    if argument in ("q", "k", "v", "o"):
        return "*" + TYPES[element]
    if argument.startswith(("q_", "k_", "v_", "o_", "lse_")):
        return "i64"
    return {"lse": "*fp32", "sequences": "*i32", "scale": "fp32"}.get(argument, "i32")


def compiled(element, d, aligned):
    """The text of one file."""
    rows, keys, warps, stages = TILES[d, aligned]
    constants = dict(q_len=None, k_len=None, size=None, D=d, ROWS=rows, KEYS=keys, SPLIT=aligned, DESCRIBED=False)
    signature, divisors = {}, {}
    for place, argument in enumerate(fa2.arg_names):
        kind = "constexpr" if argument in constants else argument_type(argument, element)
        signature[argument] = kind
        if aligned and (kind == "*" + TYPES[element] or argument in ("d", "d_v")):
            divisors[place,] = [["tt.divisibility", 16 if kind[0] == "*" else 8]]
        elif aligned and kind == "i64" and not argument.startswith("lse"):
            divisors[place,] = [["tt.divisibility", 8]]
    source = ASTSource(fa2, signature, constants, divisors)
    options = dict(num_warps=warps, num_stages=stages, ptx_version=PTX)
    kernel = triton.compile(source, target=GPUTarget("cuda", ARCH, 32), options=options)
    arguments = [f"{name}: {kind}" for name, kind in signature.items() if kind != "constexpr"]
    # Triton's own, for what this kernel has no use of: memory beyond the stack, and a profile.
    arguments += ["global_scratch: *i8", "profile_scratch: *i8"]
    file = name(element, d, aligned)
    return "\n".join([
        f"// {file}",
        f"// sources {source_hash(file)}",
        f"// Triton {triton.__version__}",
        f"// launch {32 * warps} threads, {kernel.metadata.shared} bytes of shared memory, {rows} rows, {keys} keys",
        f"// arguments {', '.join(arguments)}",
        *cut(kernel.asm["ptx"]),
    ]) + "\n"


def cut(ptx):
    """The lines of PTX that say what runs and where it comes from, with paths that are the same everywhere."""
    ptx = re.sub(r"\s*//.*", "", ptx)
    ptx = re.sub(r"\.section\s+\.debug_\w+\s*\{[^}]*\}", "", ptx)
    ptx = re.sub(r'(\.file\s+\d+) ".*/(\w+/\w+\.py)"', r'\1 "\2"', ptx)
    return [line for line in ptx.splitlines() if line.strip() and not re.fullmatch(r"\$L__(tmp|func)\w+:", line)]


def main():
    if triton.__version__ != VERSION:
        sys.exit(f"Triton: found {triton.__version__}, wanted {VERSION}")
    folder, check = HERE.parent / "prebuilt", "--check" in sys.argv[1:]
    files = {name(element, *tiles): compiled(element, *tiles) for element in TYPES for tiles in TILES}
    found = {file: (folder / file).read_text() if (folder / file).exists() else None for file in files}
    others = [file for file, text in files.items() if found[file] != text]
    if not check:
        for file in others:
            (folder / file).write_text(files[file])
    print(f"{len(files)} files, {len(others)} {'differ' if check else 'written'}", *others, sep="\n")
    return 1 if check and others else 0


if __name__ == "__main__":
    sys.exit(main())
