"""Packed batches on a GPU: whose lengths are known to the host alone. Runs by pytest, or without it as a program."""

import functools
import random
import subprocess
import sys
import warnings

import numpy as np
import torch
from flash_ladder import attention
from on_gpu import BF16, F16, MISSING, NAMES, ONE, RUNGS, TRITON, TYPES, behind_a_long_kernel, in_threads, main
from on_gpu import normal, pytest, refused, same, weights_of
from sequences import alone, error, starts

if pytest:
    pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

# Empty sequences of q, of k and of both, single rows and keys, and lengths about those of tiles.
LENGTHS = [129, 0, 1, 17, 0, 257, 64, 128, 3], [64, 9, 1, 0, 0, 300, 700, 127, 1000]
# The tiles that cuda-fa2 takes depend on the batch, but not with a soft cap and more than 16 rows.
LONG = [129, 0, 64, 257, 0, 17, 100], [64, 9, 700, 300, 0, 0, 1]


def packed(lengths, heads=6, kv_heads=2, d=64, d_v=64, dtype=F16, seed=0):
    """q, k and v, and the offsets of their sequences."""
    total_q, total_k = map(sum, lengths)
    shapes = [(heads, total_q, d), (kv_heads, total_k, d), (kv_heads, total_k, d_v)]
    return [normal(*shape, seed=10 * seed + i, dtype=dtype) for i, shape in enumerate(shapes)]


def offsets(lengths):
    return dict(zip(("cu_seqlens_q", "cu_seqlens_k"), map(starts, lengths)))


def in_one(q, k, v, lengths, rung, **options):
    return attention(q, k, v, **offsets(lengths), rung=rung, return_lse=True, **options)


def one_by_one(q, k, v, lengths, rung, **options):
    return alone(attention, q, k, v, *map(starts, lengths), rung=rung, **options)


def error_of(rung, lengths, tensors, **options):
    weights = weights_of(rung, tensors[0].dtype)
    results = in_one(*tensors, lengths, rung, **options)
    return error(*results, *tensors, *map(starts, lengths), weights=weights, **options)


def test_all_rungs_are_right():
    options = dict(causal=True, window=(100, -1), sinks=normal(6), alibi_slopes=normal(9, 6, seed=4).abs(), softcap=2.0)
    options |= dict(bias=normal(9, 1, 257, 1000, seed=5))
    for rung, dtype in RUNGS:
        for some in ({}, dict(causal=True), options):
            if rung == TRITON and some is options:
                continue
            found = error_of(rung, LENGTHS, packed(LENGTHS, dtype=dtype), **some)
            assert found <= 1, (rung, dtype, some.keys(), found)


def test_each_sequence_has_the_bits_that_it_has_alone():
    for rung, dtypes in TYPES.items():
        for dtype in dtypes:
            if rung == "cuda-fa2":
                cases = [(LONG, dict(softcap=3.0), 6)]
                # More tiles than multiprocessors, in one sequence and in all: the long ones.
                lengths = [700, 0, 1000, 641], [700, 5, 900, 64]
                cases += [(lengths, dict(causal=causal), 32) for causal in (False, True)]
            else:
                cases = [(LENGTHS, dict(causal=causal), 6) for causal in (False, True)]
            for lengths, options, heads in cases:
                tensors = packed(lengths, heads=heads, dtype=dtype)
                both = in_one(*tensors, lengths, rung, **options), one_by_one(*tensors, lengths, rung, **options)
                for found, wanted in zip(*both):
                    assert same(found, wanted), (rung, dtype, options)


def test_decoding_steps_of_several_lengths():
    lengths = [1] * 6, [4096, 1, 0, 777, 64, 2000]
    for rung, dtype in RUNGS:
        tensors = packed(lengths, heads=32, kv_heads=8, d=128, d_v=128, dtype=dtype)
        found = error_of(rung, lengths, tensors)
        assert found <= 1, (rung, dtype, found)


def many(seed, count=500):
    """More sequences than one argument has room for, in an order of their own."""
    lengths = random.Random(seed).choices([0, 1, 2, 17, 40], k=count)
    return lengths, lengths[::-1]


def test_many_sequences():
    lengths = many(1)
    for rung in NAMES:
        found = error_of(rung, lengths, packed(lengths, dtype=TYPES[rung][0]))
        assert found <= 1, (rung, found)


def test_sequences_without_rows_or_keys():
    for rung, dtype in RUNGS:
        for lengths in [([], []), ([0], [0]), ([0, 0], [5, 0]), ([5, 7], [0, 0])]:
            o, lse = in_one(*packed(lengths, dtype=dtype), lengths, rung)
            assert o.shape == (6, sum(lengths[0]), 64) and (o == 0).all() and (lse == -torch.inf).all(), (rung, lengths)


def test_rows_behind_the_last_sequence():
    for rung, dtype in RUNGS:
        tensors = packed(LENGTHS, dtype=dtype)
        wanted, wanted_lse = in_one(*tensors, LENGTHS, rung)
        longer = [torch.nn.functional.pad(x, (0, 0, 0, 200), value=torch.nan) for x in tensors]
        o, lse = in_one(*longer, LENGTHS, rung)
        end = sum(LENGTHS[0])
        assert same(o[:, :end], wanted) and same(lse[:, :end], wanted_lse), rung
        assert (o[:, end:] == 0).all() and (lse[:, end:] == -torch.inf).all(), rung
        # In memory that is there they stay as they are.
        out = torch.full_like(longer[0], 1234.0)
        o, lse = in_one(*longer, LENGTHS, rung, out=out)
        assert o is out and same(out[:, :end], wanted) and (out[:, end:] == 1234.0).all(), rung
        assert (lse[:, end:] == -torch.inf).all(), rung


def test_a_sequence_of_nan_stays_alone():
    place, keys = (slice(*starts(lengths)[5:7]) for lengths in LENGTHS)
    for rung, dtype in RUNGS:
        tensors = packed(LENGTHS, dtype=dtype)
        wanted, wanted_lse = in_one(*tensors, LENGTHS, rung)
        for x, rows in zip(tensors, (place, keys, keys)):
            x[:, rows] = torch.nan
        o, lse = in_one(*tensors, LENGTHS, rung)
        assert o[:, place].isnan().all() and lse[:, place].isnan().all(), rung
        for found, right in ((o, wanted), (lse, wanted_lse)):
            found[:, place] = right[:, place]
            assert same(found, right), rung


def test_rows_before_heads():
    # FlashAttention's layout, seen as this one; the result, too.
    for rung, dtype in RUNGS:
        tensors = packed(LENGTHS, dtype=dtype)
        wanted, _ = in_one(*tensors, LENGTHS, rung)
        rows_first = [x.transpose(0, 1).contiguous() for x in tensors]
        out = torch.full_like(rows_first[0], torch.nan)
        in_one(*(x.transpose(0, 1) for x in rows_first), LENGTHS, rung, out=out.transpose(0, 1))
        assert same(out.transpose(0, 1), wanted), rung


def test_calls_with_other_lengths_follow_each_other_and_wait_for_nothing():
    batches = [many(seed, count=250) for seed in range(4)] + [LENGTHS]
    sizes = [[max(sum(lengths[i]) for lengths in batches)] for i in (0, 1)]
    for rung in NAMES:
        tensors = packed(sizes, dtype=TYPES[rung][0])
        wanted = [in_one(*tensors, lengths, rung) for lengths in batches]
        found, side = [], torch.cuda.Stream()
        torch.cuda.synchronize()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the mode is a prototype
            torch.cuda.set_sync_debug_mode("error")
        try:
            with torch.cuda.stream(side):
                behind_a_long_kernel(functools.partial(in_turn, found, tensors, batches * 8, rung))
        finally:
            torch.cuda.set_sync_debug_mode("default")
        side.synchronize()
        assert len(found) == 8 * len(wanted)
        for results, right in zip(found, wanted * 8):
            assert all(same(*pair) for pair in zip(results, right)), rung


def in_turn(found, tensors, batches, rung):
    """The table of a call must be that call's, though the next one's is made before any kernel runs, of lists in the
    same memory of the host, and, as the workspace is freed, at the same place on the GPU."""
    memory = {name: np.zeros(251, np.int32) for name in ("cu_seqlens_q", "cu_seqlens_k")}
    for lengths in batches:
        for name, x in offsets(lengths).items():
            memory[name][: len(x)] = x
        lists = {name: x[: len(lengths[0]) + 1] for name, x in memory.items()}
        found.append(attention(*tensors, **lists, rung=rung, return_lse=True))
        for x in memory.values():
            x.fill(0)


def test_a_graph_keeps_the_lengths_that_were_captured():
    batches = [LENGTHS, many(3), LONG]
    whole = [[max(sum(lengths[i]) for lengths in batches)] for i in (0, 1)]
    for rung in NAMES:
        dtype = TYPES[rung][0]
        static = packed(whole, dtype=dtype)
        for lengths in batches:
            in_one(*static, lengths, rung)
        memory = {name: torch.tensor(x, dtype=torch.int32) for name, x in offsets(LENGTHS).items()}
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = [attention(*static, **memory, rung=rung, return_lse=True)]
            found += [in_one(*static, lengths, rung) for lengths in batches[1:]]
        for x in memory.values():
            x.fill_(0)
        for seed in (1, 2):
            inputs = packed(whole, dtype=dtype, seed=seed)
            for x, new in zip(static, inputs):
                x.copy_(new)
            for x in (x for results in found for x in results):
                x.fill_(torch.nan)
            graph.replay()
            for lengths, results in zip(batches, found):
                right = in_one(*inputs, lengths, rung)
                assert all(same(*pair) for pair in zip(results, right)), rung


FIRST_IN_A_CAPTURE = """
import torch, flash_ladder
q = torch.randn(1, 9, 64, device="cuda", dtype=torch.float16)
call = lambda: flash_ladder.attention(q, q, q, cu_seqlens_q=[0, 4, 9], cu_seqlens_k=[0, 4, 9], rung={rung!r})
flash_ladder.attention(q[None], q[None], q[None], rung={rung!r})
try:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        call()
except RuntimeError as error:
    assert "stream: found one that is captured, and" in str(error), error
else:
    raise AssertionError("captured")
wanted, graph = call(), torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    o = call()
graph.replay()
assert torch.equal(o, wanted)
"""


def test_a_first_packed_call_in_a_capture_is_refused():
    subprocess.run([sys.executable, "-c", FIRST_IN_A_CAPTURE.format(**ONE)], check=True)


def test_threads_with_lengths_of_their_own():
    rung = NAMES[-1]
    batches = [many(seed, count=300) for seed in range(4)]
    problems = [packed(lengths, dtype=F16, seed=seed) for seed, lengths in enumerate(batches)]
    wanted = [in_one(*problem, lengths, rung) for problem, lengths in zip(problems, batches)]
    torch.cuda.synchronize()

    def call(problem, lengths, right):
        return lambda: all(same(*pair) for pair in zip(in_one(*problem, lengths, rung), right))

    in_threads([call(*of) for of in zip(problems, batches, wanted)])


def test_wrong_arguments():
    q, k, v = packed(LENGTHS, dtype=BF16)
    lists = offsets(LENGTHS)
    on_gpu = torch.tensor(lists["cu_seqlens_q"], dtype=torch.int32, device="cuda")
    wanted = "found a tensor on CUDA device 0, wanted integers in main memory: the call is planned there"
    refused(f"cu_seqlens_q: {wanted}", q, k, v, **lists | dict(cu_seqlens_q=on_gpu))
    refused(f"cu_seqlens_k: {wanted}", q, k, v, **lists | dict(cu_seqlens_k=[*on_gpu]))
    refused("cu_seqlens_k: found None", q, k, v, cu_seqlens_q=lists["cu_seqlens_q"])
    refused("cu_seqlens_q: found 0 then 600, wanted", q, k, v, **lists | dict(cu_seqlens_q=[0, 600]))
    refused("cu_seqlens_k: found shape [2], wanted [10]", q, k, v, **lists | dict(cu_seqlens_k=[0, 5]))
    refused("q: found shape [1, 6, ", q[None], k, v, **lists)
    refused("out: found shape", q, k, v, out=q[:, 1:], **lists)
    # Pinned memory is main memory.
    pinned = {name: torch.tensor(x).pin_memory() for name, x in lists.items()}
    assert same(attention(q, k, v, **pinned, **ONE), attention(q, k, v, **lists, **ONE))


if __name__ == "__main__":
    sys.exit(main(globals()))
