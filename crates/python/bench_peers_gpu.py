"""Who computes attention on a GPU: the rungs, PyTorch's two kernels, and our own in Triton."""

import importlib
import sys

import torch
from bench_results import ROOT
from reference import weights_of


class Contestant:
    """`calls` gives what to time on each set of q, k and v: functions of nothing, which return
    [batch, heads, q_len, d]."""

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
        return weights_of(self.name, dtype)

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


PEERS = {
    "torch-flash": lambda: Sdpa("FLASH_ATTENTION"),
    "torch-cudnn": lambda: Sdpa("CUDNN_ATTENTION"),
    "triton": Triton,
}


def contestants(rungs, peers):
    """Rungs and peers by their names, and why others are left out."""
    found, absent = {name: Rung(name) for name in rungs}, []
    for name in peers or PEERS:
        try:
            found[name] = PEERS[name]()
        except Exception as error:  # one that does not load
            absent.append(f"{name}: {type(error).__name__}: {error}")
    return found, absent
