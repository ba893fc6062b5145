"""Shapes of a benchmark, and the file of results that comes of it: what `cargo run --release -- compare` reads."""

import itertools
import json
import subprocess
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class Case:
    """One shape, in the words of a file of results. Sequences of several `lengths` lie one behind the other, and count
    there as one of their sum."""

    dtype: str
    head_dim: int
    mask: str
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    batch: int = 1
    lengths: tuple = ()

    def __str__(self):
        batch = f"batch {self.batch} " if self.batch > 1 else ""
        batch = f"{len(self.lengths)} sequences " if self.lengths else batch
        heads = f"{self.heads}" if self.heads == self.kv_heads else f"{self.heads}/{self.kv_heads}"
        return f"{self.dtype} d {self.head_dim} {self.mask} {batch}heads {heads} q {self.q_len} kv {self.kv_len}"

    @property
    def decode(self):
        return self.q_len == 1

    @property
    def causal(self):
        return self.mask == "causal"

    def places(self):
        """Where sequences of several lengths lie among all rows."""
        return [slice(end - length, end) for length, end in zip(self.lengths, itertools.accumulate(self.lengths))]

    def flops(self):
        """2(d + d_v) for each visible query-key pair."""
        sequences = [(n, n) for n in self.lengths] or [(self.q_len, self.kv_len)] * self.batch
        pairs = sum(n * (n + 1) / 2 if self.causal else n * keys for n, keys in sequences)
        return 4 * self.head_dim * self.heads * pairs

    def bytes(self):
        """q, k, v, o and lse once."""
        rows = self.batch * self.heads * self.q_len
        elements = 2 * self.head_dim * (rows + self.batch * self.kv_heads * self.kv_len)
        return elements * DTYPES[self.dtype].itemsize + 4 * rows

    def tensors(self, memory):
        """q, k and v in `memory`, one behind the other."""
        tensors, start = [], 0
        for heads, length in [(self.heads, self.q_len), (self.kv_heads, self.kv_len), (self.kv_heads, self.kv_len)]:
            size = self.batch * heads * length * self.head_dim * DTYPES[self.dtype].itemsize
            part = memory[start : start + size].view(DTYPES[self.dtype])
            tensors.append(part.view(self.batch, heads, length, self.head_dim))
            start += size
        return tensors


SHAPE = [field.name for field in fields(Case) if field.name != "lengths"]


def row(who, case, ms, ms_burst, **more):
    """The speed of one contestant on one shape; `more` is what a row holds besides."""
    digits = lambda x: float(f"{x:.4e}")
    shape = {name: getattr(case, name) for name in SHAPE}
    row = {"who": who, **shape, **more, "ms": digits(ms), "ms_burst": digits(ms_burst)}
    row |= {"tflops": digits(case.flops() / ms / 1e9), "tflops_burst": digits(case.flops() / ms_burst / 1e9)}
    return row | ({"gbps": digits(case.bytes() / ms / 1e6)} if case.decode else {})


def identity(row):
    """Who and on which shape: what a row is the only one of in its file."""
    return tuple(row[name] for name in ["who", *SHAPE])


def head(machine, method, commit=None):
    """What stands before the rows. git tells the commit, where it is not given."""
    describe = ["git", "-C", ROOT, "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
    try:
        commit = commit or subprocess.run(describe, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        pass  # a machine without git
    return {
        "machine": machine,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        **({"commit": commit} if commit else {}),
        "method": method,
    }


def earlier(path, head):
    """The rows that are in a file, if there is one. They go on under `head`, which must be true of them."""
    if not path.exists():
        return []
    found = json.loads(path.read_text())
    for name in ["machine", "commit", "method"]:
        if found.get(name) != head.get(name):
            raise SystemExit(f"{path}: found {name} {found.get(name)}, wanted {head.get(name)}")
    return found["rows"]


def write(path, head, rows):
    """Writes the file in one step, so that no one ever reads half of it."""
    lines = ",\n    ".join(json.dumps(row, separators=(",", ":")) for row in rows)
    text = json.dumps(head, indent=2).removesuffix("\n}") + f',\n  "rows": [\n    {lines}\n  ]\n}}\n'
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)
