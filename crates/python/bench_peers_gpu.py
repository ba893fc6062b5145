"""Who computes attention on a GPU: the rungs, PyTorch's two, Triton's, and FlashAttention-3 where a folder has it."""

import importlib
import sys

import torch
from bench_results import ROOT

# Rungs that keep P in f32; the others round it to the type of v, as every peer does.
IN_F32 = {"cuda-naive", "cuda-fa1", "cuda-fa2-simt"}


class Contestant:
    """`calls` gives what to time on each set of q, k and v: functions of nothing, which return
    [batch, heads, q_len, d]. None says that it has nothing for the case."""

    is_rung = False
    version = None

    def weights(self, dtype):
        """The type to which a rung rounds P; None for a peer, which is not held to the error rule."""
        return None


class Rung(Contestant):
    is_rung = True

    def __init__(self, name):
        import flash_ladder

        found = flash_ladder.rungs("cuda")
        if name not in found:
            raise SystemExit(f"--rungs: found {name}, wanted some of {', '.join(found)}")
        self.attention, self.name = flash_ladder.attention, name

    def weights(self, dtype):
        return torch.float32 if self.name in IN_F32 else dtype

    def calls(self, case, sets):
        call = lambda q, k, v: lambda: self.attention(q, k, v, causal=case.causal, rung=self.name)
        return [call(*tensors) for tensors in sets]


class Sdpa(Contestant):
    """PyTorch's scaled_dot_product_attention with one back end. A decoding step can be asked for in two ways: with
    grouped heads, or with a group's queries as the rows of its kv head, which is the same where no mask applies. The
    faster one counts."""

    def __init__(self, backend):
        from torch.nn.attention import SDPBackend

        self.backend = getattr(SDPBackend, backend)

    def calls(self, case, sets):
        if not case.decode:
            return [self.call(*tensors, is_causal=case.causal) for tensors in sets]
        grouped = [self.call(*tensors, enable_gqa=True) for tensors in sets]
        rows = (case.batch, case.kv_heads, case.heads // case.kv_heads, case.head_dim)
        whole = (case.batch, case.heads, 1, case.head_dim)
        packed = [self.call(q.view(rows), k, v, shape=whole) for q, k, v in sets]
        return min([grouped, packed], key=self.seconds)

    def call(self, q, k, v, shape=None, **options):
        def run():
            with torch.nn.attention.sdpa_kernel(self.backend):
                o = torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)
            return o.reshape(shape) if shape else o

        return run

    @staticmethod
    def seconds(calls):
        """Of a graph of calls, so that the host does not count."""
        try:
            for call in calls[:2]:
                call()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for i in range(16):
                    calls[i % len(calls)]()
        except RuntimeError:
            return float("inf")  # this way is not there
        times = []
        for _ in range(5):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        return min(times[1:])


class Triton(Contestant):
    """kernels/triton/fa2.py, tuned."""

    def __init__(self):
        sys.path.insert(0, str(ROOT / "kernels/triton"))
        self.attention = importlib.import_module("fa2").attention
        self.version = f"Triton {importlib.import_module('triton').__version__}"

    def calls(self, case, sets):
        call = lambda q, k, v: lambda: self.attention(q, k, v, causal=case.causal)
        return [call(*tensors) for tensors in sets]


class Fa3(Contestant):
    """What FlashAttention-3's two builds share: [batch, length, heads, d], made before the clock runs."""

    def calls(self, case, sets):
        call = lambda tensors: lambda: self.forward(case, *tensors).transpose(1, 2)
        return [call([x.transpose(1, 2).contiguous() for x in tensors]) for tensors in sets]


class VllmFa3(Fa3):
    """As vLLM's wheel builds it: a prefill's lengths go in as lists of starts, a decoding step's as used keys."""

    version = "FlashAttention-3 of vLLM"

    def __init__(self, site):
        torch.ops.load_library(str(site / "fa3v/_vllm_fa3_C.abi3.so"))
        self.lengths = {}

    def forward(self, case, q, k, v):
        key = (case.batch, case.q_len, case.kv_len)
        if key not in self.lengths:
            steps = torch.arange(case.batch + 1, device="cuda", dtype=torch.int32)
            self.lengths = {key: (steps * case.q_len, steps * case.kv_len, torch.full_like(steps[1:], case.kv_len))}
        cu_q, cu_k, used = self.lengths[key]
        scale, shape, nothing = case.head_dim**-0.5, q.shape, [None] * 9
        if case.decode:
            cu_q, cu_k, q_len, k_len, splits = None, None, None, None, 0
        else:
            q, k, v = (x.flatten(0, 1) for x in (q, k, v))
            used, q_len, k_len, splits = None, case.q_len, case.kv_len, 1
        o = torch.ops._vllm_fa3_C.fwd(
            q, k, v, None, None, None, None, cu_q, cu_k, None, None, used, q_len, k_len, *nothing, scale, case.causal,
            -1, -1, 0.0, True, None, splits, None, 0, None, 1, 0, None
        )[0]  # fmt: skip
        return o.view(shape)


class Fa3Fwd(Fa3):
    """As the wheel fa3_fwd builds it: no float16."""

    version = "fa3_fwd"

    def __init__(self, site):
        if str(site) not in sys.path:
            sys.path.insert(0, str(site))
        importlib.import_module("fa3_fwd_interface")

    def calls(self, case, sets):
        return None if case.dtype == "F16" else super().calls(case, sets)

    def forward(self, case, q, k, v):
        splits, nothing = 0 if case.decode else 1, [None] * 20
        return torch.ops.fa3_fwd.fwd(
            q, k, v, *nothing, case.head_dim**-0.5, case.causal, -1, -1, 0, 0.0, True, None, splits, None, 0
        )[0]  # fmt: skip


PEERS = {
    "torch-flash": lambda site: Sdpa("FLASH_ATTENTION"),
    "torch-cudnn": lambda site: Sdpa("CUDNN_ATTENTION"),
    "triton": lambda site: Triton(),
    "vllm-fa3": VllmFa3,
    "fa3-fwd": Fa3Fwd,
}
NEED_A_SITE = {"vllm-fa3", "fa3-fwd"}


def contestants(rungs, peers, site):
    """Rungs and peers by their names, and why others are left out."""
    found, absent = {name: Rung(name) for name in rungs}, []
    for name in peers or PEERS:
        if site is None and name in NEED_A_SITE:
            absent.append(f"{name}: no --peer-site")
            continue
        try:
            found[name] = PEERS[name](site)
        except Exception as error:  # one that does not load
            absent.append(f"{name}: {type(error).__name__}: {error}")
    return found, absent
