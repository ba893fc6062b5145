"""Shapes of a benchmark, and the file of results that comes of it: what `cargo run --release -- compare` reads."""

import json
import subprocess
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class Case:
    """One shape, in the words of a file of results."""

    dtype: str
    head_dim: int
    mask: str
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    batch: int = 1

    def __str__(self):
        batch = f"batch {self.batch} " if self.batch > 1 else ""
        heads = f"{self.heads}/{self.kv_heads}" if self.decode else f"{self.heads}"
        return f"{self.dtype} d {self.head_dim} {self.mask} {batch}heads {heads} q {self.q_len} kv {self.kv_len}"

    @property
    def decode(self):
        return self.q_len == 1

    @property
    def causal(self):
        return self.mask == "causal"

    def flops(self):
        """2(d + d_v) for each visible query-key pair."""
        n = self.q_len
        pairs = n * (n + 1) / 2 if self.causal else n * self.kv_len
        return 4 * self.head_dim * self.batch * self.heads * pairs

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


def row(who, case, ms, ms_burst, **more):
    """The speed of one contestant on one shape; `more` is what a row holds besides."""
    digits = lambda x: float(f"{x:.4e}")
    row = {"who": who, **asdict(case), **more, "ms": digits(ms), "ms_burst": digits(ms_burst)}
    row |= {"tflops": digits(case.flops() / ms / 1e9), "tflops_burst": digits(case.flops() / ms_burst / 1e9)}
    return row | ({"gbps": digits(case.bytes() / ms / 1e6)} if case.decode else {})


def write(path, machine, method, rows, commit=None):
    """Writes the file in one step, so that no one ever reads half of it. git tells the commit, where it is not given."""
    describe = ["git", "-C", ROOT, "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
    try:
        commit = commit or subprocess.run(describe, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        pass  # a machine without git
    head = {
        "machine": machine,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        **({"commit": commit} if commit else {}),
        "method": method,
    }
    lines = ",\n    ".join(json.dumps(row, separators=(",", ":")) for row in rows)
    text = json.dumps(head, indent=2).removesuffix("\n}") + f',\n  "rows": [\n    {lines}\n  ]\n}}\n'
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)
