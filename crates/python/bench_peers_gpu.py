"""Who computes attention on a GPU: the rungs, PyTorch's two kernels, our own in Triton, and libraries for Hopper."""

import functools
import importlib
import itertools
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

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
        if case.lengths:
            return [self.ragged(case, *tensors) for tensors in sets]
        call = lambda q, k, v: lambda: self.attention(q, k, v, causal=case.causal, rung=self.name)
        return [call(*tensors) for tensors in sets]

    def ragged(self, case, *tensors):
        starts, (q, k, v) = [0, *itertools.accumulate(case.lengths)], [x[0] for x in tensors]
        lengths = dict(cu_seqlens_q=starts, cu_seqlens_k=starts)
        return lambda: self.attention(q, k, v, causal=case.causal, rung=self.name, **lengths)[None]


class Sdpa(Contestant):
    """PyTorch's scaled_dot_product_attention with one back end. A decoding step can be asked for in two ways: with
    grouped heads, or with a group's queries as the rows of its kv head, which is the same where no mask applies. The
    faster one counts."""

    def __init__(self, backend):
        from torch.nn.attention import SDPBackend

        self.backend = getattr(SDPBackend, backend)

    def calls(self, case, sets):
        if case.lengths:
            return [self.ragged(case, *tensors) for tensors in sets]
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

    def ragged(self, case, *tensors):
        if self.backend.name != "FLASH_ATTENTION":
            raise ValueError("found sequences of several lengths, wanted one length")
        (q, k, v), starts, longest = packed(case, *(rows_first(x) for x in tensors))
        flash = torch.ops.aten._flash_attention_forward
        lengths = (starts, starts, longest, longest)
        return lambda: flash(q, k, v, *lengths, 0.0, case.causal, False)[0].transpose(0, 1)[None]

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
        if case.lengths:
            raise ValueError("found sequences of several lengths, wanted one length")
        call = lambda q, k, v: lambda: self.attention(q, k, v, causal=case.causal)
        return [call(*tensors) for tensors in sets]


def rows_first(x):
    """[batch, length, heads, d], which is no copy where memory is like that."""
    return x.transpose(1, 2).contiguous()


def packed(case, *tensors):
    """The rows of all sequences, one behind the other; where each sequence starts, and the end; the longest."""
    lengths = case.lengths or [case.q_len] * case.batch
    starts = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=tensors[0].device)
    return [x.flatten(0, 1) for x in tensors], starts, max(lengths)


class OfHopper(Contestant):
    """`attend` takes [batch, length, heads, d], or if `packs` or lengths differ, rows of all sequences, and `packed`'s
    words about them."""

    dtypes = ("F16", "BF16")
    packs = False

    def calls(self, case, sets):
        if case.decode or case.dtype not in self.dtypes:
            raise ValueError(f"found {case}, wanted prefill in {' or '.join(self.dtypes)}")
        return [self.call(case, *(rows_first(x) for x in tensors)) for tensors in sets]

    def call(self, case, *tensors):
        if not (self.packs or case.lengths):
            return lambda: self.attend(*tensors, case.causal).transpose(1, 2)
        (q, k, v), *lengths = packed(case, *tensors)
        return lambda: self.attend(q, k, v, case.causal, *lengths).unflatten(0, (case.batch, -1)).transpose(1, 2)


class FlashAttention3(OfHopper):
    """FlashAttention-3, whose builds have one operator."""

    def attend(self, q, k, v, causal, starts=None, longest=None):
        lengths = dict(cu_seqlens_q=starts, cu_seqlens_k=starts, max_seqlen_q=longest, max_seqlen_k=longest)
        scale = q.shape[-1] ** -0.5
        return self.operator(q=q, k=k, v=v, softmax_scale=scale, is_causal=causal, num_splits=1, **lengths)[0]


class Fa3Fwd(FlashAttention3):
    """The package fa3_fwd."""

    dtypes = ("BF16",)

    def __init__(self):
        importlib.import_module("fa3_fwd._C")
        self.operator, self.version = torch.ops.fa3_fwd.fwd, named("fa3_fwd")


class VllmFa3(FlashAttention3):
    """The one that vLLM brings along, without vLLM: a file of its package, or the same in a folder `fa3v`."""

    packs = True

    def __init__(self):
        name = "_vllm_fa3_C.abi3.so"
        places = [Path(place, folder, name) for place in sys.path for folder in ("vllm/vllm_flash_attn", "fa3v")]
        found = next((place for place in places if place.exists()), None)
        if found is None:
            raise ImportError(f"found no {name}, wanted it in vllm/vllm_flash_attn or fa3v where Python looks")
        torch.ops.load_library(str(found))
        fwd, self.version = torch.ops._vllm_fa3_C.fwd, named("vllm")
        # Its arguments have no defaults.
        options = {x.name: None for x in fwd.default._schema.arguments if isinstance(x.type, torch.OptionalType)}
        options |= dict(window_size_left=-1, window_size_right=-1, softcap=0.0, is_rotary_interleaved=False)
        self.operator = functools.partial(fwd, **options, sm_margin=0, cp_world_size=1, cp_rank=0)


class Fa4(OfHopper):
    """FlashAttention-4, compiled by the first call of each kind."""

    def __init__(self):
        self.module, self.version = importlib.import_module("flash_attn.cute"), named("flash-attn-4")

    def attend(self, q, k, v, causal, starts=None, longest=None):
        if starts is None:
            return self.module.flash_attn_func(q, k, v, causal=causal)[0]
        lengths = dict(cu_seqlens_q=starts, cu_seqlens_k=starts, max_seqlen_q=longest, max_seqlen_k=longest)
        return self.module.flash_attn_varlen_func(q, k, v, causal=causal, **lengths)[0]


def named(package):
    """A package with its version, or without if its files alone were unpacked."""
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return package


OF_HOPPER = {"fa3-fwd": Fa3Fwd, "vllm-fa3": VllmFa3, "fa4": Fa4}
PEERS = {
    "torch-flash": lambda: Sdpa("FLASH_ATTENTION"),
    "torch-cudnn": lambda: Sdpa("CUDNN_ATTENTION"),
    "triton": Triton,
    **OF_HOPPER,
}


def contestants(rungs, peers):
    """Rungs and peers by their names, and why others are left out."""
    found, absent = {name: Rung(name) for name in rungs}, []
    for name in peers:
        try:
            found[name] = PEERS[name]()
        except Exception as error:  # one that does not load
            absent.append(f"{name}: {type(error).__name__}: {error}")
    return found, absent
