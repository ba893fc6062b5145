"""What the benchmark on a GPU runs, whether it sees what is wrong, and what its files keep. No GPU is needed."""

import json
import sys

import bench_peers_cuda
import flash_ladder
import pytest
import torch
from bench_peers_gpu import PEERS, FlashAttention3, Fa4, Rung
from bench_results import Case, earlier, head, identity, row, write
from reference import truth

DENSE = Case("F16", 8, "causal", 4, 4, 9, 9, batch=3)
RAGGED = Case("F16", 8, "causal", 4, 2, 12, 12, lengths=(4, 1, 7))


def chosen(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["bench_peers.py", "--device", "cuda", *words])
    args = bench_peers_cuda.arguments()
    return args, bench_peers_cuda.groups(args)


def test_what_is_run(monkeypatch):
    args, (dense, decode) = chosen(monkeypatch)
    assert args.rungs == ["cuda-fa2"] and args.peers == ["torch-flash", "torch-cudnn", "triton"]
    # The sequence of 16384 with 16 heads of 128 channels is in both parts.
    assert len(dense.cases) == 2 * 2 * 2 * 5 + 2 * 6 - 2 and len(decode.cases) == 2 * 2 * 2
    args, (dense, ragged) = chosen(monkeypatch, "--only", *bench_peers_cuda.HOPPER)
    assert args.rungs == ["fa3"] and args.peers == [*PEERS] == dense.against
    assert len(dense.cases) == 3 * 2 * 6 + 6 and len(ragged.cases) == 2 * 2
    assert all(case.batch * case.heads * case.q_len * case.head_dim == 1 << 25 for case in dense.cases[:36])
    for case in ragged.cases:
        assert sum(case.lengths) == case.q_len and all(64 <= length <= 4096 for length in case.lengths[:-1])
    _, (part,) = chosen(monkeypatch, "--only", "hopper", "--d", "256", "--masks", "causal", "--n", "512", "2048")
    assert [str(case) for case in part.cases] == [
        "BF16 d 256 causal batch 32 heads 8 q 512 kv 512",
        "BF16 d 256 causal batch 8 heads 8 q 2048 kv 2048",
    ]


def test_flops_of_several_lengths():
    # Of 4, 1 and 7 queries: 10, 1 and 28 pairs.
    assert RAGGED.flops() == 4 * 8 * 4 * (10 + 1 + 28)


def tensors(case):
    """In memory [batch, length, heads, d]."""
    generator = torch.Generator().manual_seed(3)
    heads = (case.heads, case.kv_heads, case.kv_heads)
    x = [torch.randn(case.batch, case.q_len, count, case.head_dim, generator=generator) for count in heads]
    return [x.half().transpose(1, 2) for x in x]


def right(case, q, k, v):
    if not case.lengths:
        return truth(q, k, v, causal=case.causal).o.half()
    parts = ([x[:, :, rows] for x in (q, k, v)] for rows in case.places())
    return torch.cat([truth(*part, causal=case.causal).o.half() for part in parts], 2)


@pytest.mark.parametrize("case, looked_at", [(DENSE, [(0, 0), (2, 8)]), (RAGGED, [(0, 0), (0, 4), (0, 11)])])
def test_the_judge(case, looked_at):
    inputs = tensors(case)
    judge = bench_peers_cuda.Judge(case, *inputs)
    o = right(case, *inputs)
    assert judge.fault(o, torch.float16) is None and judge.fault(o) is None
    for wrong in (torch.nan, 3.0):
        for batch, at in looked_at:
            other = o.clone()
            other[batch, -1, at] = wrong
            assert "times its tolerance" in judge.fault(other, torch.float16)
            assert "relative error" in judge.fault(other)
    assert "wanted F16" in judge.fault(o.transpose(1, 2)) and "wanted F16" in judge.fault(o.float())


def test_the_judge_holds_all_else_against_the_first_that_was_right():
    inputs = tensors(DENSE)
    judge = bench_peers_cuda.Judge(DENSE, *inputs)
    o = right(DENSE, *inputs)
    for wrong in (torch.nan, 3.0):
        other = o.clone()
        assert judge.fault(o) is None
        other[1, 2, 3] = wrong
        assert "relative distance" in judge.fault(other) and "relative distance" in judge.fault(other, torch.float16)


class Library:
    """In place of those for Hopper: takes tensors and lengths in their way, and no other."""

    def fixed(self, q, k, v, causal):
        assert all(x.dim() == 4 and x.is_contiguous() for x in (q, k, v))
        return truth(*(x.transpose(1, 2) for x in (q, k, v)), causal=causal).o.half().transpose(1, 2)

    def varied(self, q, k, v, causal, starts, longest):
        assert all(x.dim() == 3 and x.is_contiguous() for x in (q, k, v)) and starts.dtype == torch.int32
        places = [slice(*ends) for ends in zip(starts.tolist(), starts.tolist()[1:])]
        assert longest == max(place.stop - place.start for place in places)
        return torch.cat([self.fixed(*(x[None, place] for x in (q, k, v)), causal)[0] for place in places])

    def operator(self, *, q, k, v, softmax_scale, is_causal, num_splits, cu_seqlens_q, max_seqlen_q, **of_keys):
        assert softmax_scale == q.shape[-1] ** -0.5 and num_splits == 1
        assert of_keys == dict(cu_seqlens_k=cu_seqlens_q, max_seqlen_k=max_seqlen_q)
        if cu_seqlens_q is None:
            return [self.fixed(q, k, v, is_causal)]
        return [self.varied(q, k, v, is_causal, cu_seqlens_q, max_seqlen_q)]

    def flash_attn_func(self, q, k, v, causal):
        return self.fixed(q, k, v, causal), None

    def flash_attn_varlen_func(self, q, k, v, causal, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k):
        assert cu_seqlens_k is cu_seqlens_q and max_seqlen_k == max_seqlen_q
        return self.varied(q, k, v, causal, cu_seqlens_q, max_seqlen_q), None


def builds():
    """FlashAttention-3 as two packages have it, and FlashAttention-4."""
    both, packs_alone, compiled = FlashAttention3(), FlashAttention3(), Fa4.__new__(Fa4)
    both.operator = packs_alone.operator = Library().operator
    packs_alone.packs, compiled.module = True, Library()
    return [both, packs_alone, compiled]


@pytest.mark.parametrize("case", [DENSE, RAGGED])
@pytest.mark.parametrize("memory", ["as it is", "heads before rows"])
def test_how_libraries_for_hopper_are_called(case, memory):
    inputs = tensors(case)
    if memory == "heads before rows":
        inputs = [x.contiguous() for x in inputs]
    for peer in builds():
        (call,) = peer.calls(case, [inputs])
        assert torch.equal(call(), right(case, *inputs))
        step = Case("F16", 8, "full", 4, 4, 1, 9)
        with pytest.raises(ValueError, match="found F16 d 8 full heads 4 q 1 kv 9, wanted prefill in F16 or BF16"):
            peer.calls(step, [inputs])


def test_how_a_rung_is_called():
    # On the CPU, in place of those on a GPU.
    rung = Rung.__new__(Rung)
    rung.attention, rung.name = flash_ladder.attention, "fa2"
    for case in (DENSE, RAGGED):
        inputs = tensors(case)
        (call,) = rung.calls(case, [inputs])
        assert bench_peers_cuda.Judge(case, *inputs).fault(call(), torch.float16) is None


def test_rows_stay_under_the_same_head_alone(tmp_path):
    path = tmp_path / "results.json"
    first = head({"gpu": "one"}, "so", "abc")
    assert earlier(path, first) == []
    rows = [row("fa3", DENSE, 2.0, 1.0), row("fa4", DENSE, 2.0, 1.0), row("fa3", RAGGED, 2.0, 1.0)]
    write(path, first, rows)
    assert earlier(path, first) == rows == json.loads(path.read_text())["rows"]
    assert len({identity(x) for x in rows}) == 3 and identity(row("fa3", RAGGED, 9.0, 9.0)) == identity(rows[2])
    for name, other in {"machine": {"gpu": "two"}, "method": "else", "commit": "abd"}.items():
        with pytest.raises(SystemExit, match=f"found {name} .*, wanted "):
            earlier(path, first | {name: other})
