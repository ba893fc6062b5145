"""The module on a GPU, in PyTorch's streams and memory. Runs by pytest, or without it as a program."""

import subprocess
import sys
import threading
import warnings

import torch
from flash_ladder import attention
from layouts import EMPTY, LAYOUTS
from on_gpu import F16, MISSING, OF_TRITON, ONE, RUNGS, TRITON, behind_a_long_kernel, check, in_threads, main, normal
from on_gpu import pytest, refused, same, skip, tensors, truth

if pytest:
    pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))


def options_of(q_len=77, kv_len=133):
    bias = normal(2, 1, q_len, kv_len, seed=5)
    return {
        "plain": {},
        "causal": dict(causal=True),
        "scale": dict(scale=-0.3),
        "window": dict(window=(5, 2)),
        "causal window": dict(window=(50, 9), causal=True),
        "empty rows": dict(window=(0, 0)),
        "softcap": dict(softcap=0.7),
        "sinks": dict(sinks=normal(6, seed=2)),
        "alibi": dict(alibi_slopes=normal(6, seed=3).abs()),
        "alibi of each sequence": dict(alibi_slopes=normal(2, 6, seed=4).abs(), causal=True),
        "bias": dict(bias=bias.expand(2, 6, q_len, kv_len)),
        "everything": dict(
            causal=True,
            scale=0.2,
            window=(100, -1),
            softcap=2.0,
            sinks=normal(6, seed=2),
            alibi_slopes=normal(6, seed=3).abs(),
            bias=bias.masked_fill(normal(2, 1, q_len, kv_len, seed=6) > 1, -torch.inf),
        ),
    }


def test_options():
    for rung, dtype in RUNGS:
        for options in options_of().values():
            if rung == TRITON and not options.keys() <= OF_TRITON:
                refused("triton-fa2 does not support", *tensors(dtype=dtype), rung=rung, **options)
                continue
            check(*tensors(dtype=dtype), rung, **options)
            check(*tensors(dtype=dtype, d=128, d_v=128), rung, **options)


def test_options_change_the_result():
    q, k, v = tensors()
    for name, options in options_of().items():
        if name != "plain":
            assert truth(q, k, v, **options).error(attention(q, k, v, **ONE)) > 10, name


def test_lengths_and_channels():
    for rung, dtype in RUNGS:
        for q_len, kv_len in [(1, 1), (1, 700), (300, 1), (64, 300), (300, 64), (257, 257)]:
            for heads, kv_heads, d, d_v in [(6, 2, 64, 64), (4, 4, 128, 128), (3, 1, 80, 96), (2, 1, 200, 256)]:
                if rung in ("cuda-fa1", TRITON) and d > 128:
                    continue  # as many channels as shared memory or registers have room for
                for causal in (False, True):
                    shape = dict(heads=heads, kv_heads=kv_heads, q_len=q_len, kv_len=kv_len, d=d, d_v=d_v)
                    check(*tensors(dtype=dtype, **shape), rung, causal=causal)


def test_decoding_steps():
    for rung, dtype in RUNGS:
        for batch in (1, 5):
            step = dict(batch=batch, heads=32, kv_heads=8, q_len=1, kv_len=4096, d=128, d_v=128)
            check(*tensors(dtype=dtype, **step), rung)


def test_nothing_to_do():
    for batch, q_len, kv_len in EMPTY:
        o, lse = check(*tensors(batch=batch, q_len=q_len, kv_len=kv_len), **ONE)
        assert o.shape == (batch, 6, q_len, 40) and lse.shape == (batch, 6, q_len)
        assert (o == 0).all() and (lse == -torch.inf).all()


def test_strides():
    for rung, dtype in RUNGS:
        for name, layout in LAYOUTS.items():
            q, k, v = (layout(x) for x in tensors(dtype=dtype, d=64, d_v=64))
            if rung == "fa3" and name not in ("transposed lengths and heads", "expanded heads"):
                refused("q: ", q, k, v, causal=True, rung=rung)  # its copy engine cannot read them
                continue
            if rung == TRITON and name in ("channels outermost", "every second channel"):
                refused("q: stride of its channels", q, k, v, causal=True, rung=rung)
                continue
            o, _ = check(q, k, v, rung, causal=True)
            if rung == TRITON and name == "slice at an odd address":
                continue  # other tiles, for rows that begin at no multiple of 16 bytes
            assert same(o, attention(*(x.contiguous() for x in (q, k, v)), causal=True, rung=rung)), (rung, name)
    q, k, v = tensors()
    options = options_of()["everything"]
    strided = {name: torch.stack([x, x], -1)[..., 0] for name, x in options.items() if name in ("alibi_slopes", "bias")}
    assert same(attention(q, k, v, **options, **ONE), attention(q, k, v, **options | strided, **ONE))


def test_the_same_bits_every_time():
    for rung, dtype in RUNGS:
        q, k, v = tensors(q_len=300, kv_len=900, d=64, d_v=64, dtype=dtype)
        alone = attention(q, k, v, causal=True, rung=rung)
        for _ in range(5):
            o, lse = attention(q, k, v, causal=True, rung=rung, return_lse=True)
            assert same(alone, o), rung


def test_out_is_written_and_nothing_else():
    q, k, v = tensors()
    wanted, lse = attention(q, k, v, return_lse=True, **ONE)
    places = {
        "as it is": lambda room: room[1:3, 2:8, 3:80, 4:44],
        "lengths before heads": lambda room: room.view(4, 90, 9, 100).transpose(1, 2)[1:3, :6, 3:80, 4:44],
        "every second channel": lambda room: room[1:3, 2:8, 3:80, ::2][..., :40],
    }
    for name, place in places.items():
        room = torch.full((4, 9, 90, 100), 1234.0, device="cuda", dtype=q.dtype)
        out = place(room)
        o, out_lse = attention(q, k, v, out=out, return_lse=True, **ONE)
        assert o is out and same(out, wanted) and same(lse, out_lse), name
        out.fill_(1234.0)
        assert (room == 1234.0).all(), name


def test_a_call_waits_for_nothing_and_comes_in_its_place():
    inputs, (q, k, v) = tensors(seed=1), tensors()
    wanted = attention(*inputs, causal=True, **ONE)
    results = []

    def work():
        for x, new in zip((q, k, v), inputs):
            x.copy_(new)
        results.append(attention(q, k, v, causal=True, **ONE))
        # Now the numbers may go.
        for x in (q, k, v):
            x.zero_()

    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.cuda.stream(side):
            behind_a_long_kernel(work)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    side.synchronize()
    assert same(results[0], wanted)


def test_a_stream_that_is_named_waits_for_the_current_one():
    inputs, (q, k, v) = tensors(seed=1), tensors()
    wanted = attention(*inputs, **ONE)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    results = []

    def work():
        for x, new in zip((q, k, v), inputs):
            x.copy_(new)
        results.append(attention(q, k, v, stream=side.cuda_stream, **ONE))

    behind_a_long_kernel(work)
    side.synchronize()
    assert same(results[0], wanted)
    default = torch.cuda.default_stream().cuda_stream
    assert same(attention(q, k, v, stream=default, **ONE), attention(q, k, v, stream=1, **ONE), wanted)


def stream_of(x):
    """The stream to whose later work PyTorch gives the memory of a tensor, once it is freed."""
    segments = torch.cuda.memory_snapshot()
    (found,) = [s for s in segments if s["address"] <= x.data_ptr() < s["address"] + s["total_size"]]
    return found["stream"]


def test_the_default_stream_is_named_from_another():
    inputs, (q, k, v) = tensors(seed=1), tensors()
    wanted = attention(*inputs, **ONE)
    default, side = torch.cuda.default_stream().cuda_stream, torch.cuda.Stream()
    torch.cuda.synchronize()
    results = []

    def work():
        for x, new in zip((q, k, v), inputs):
            x.copy_(new)
        with torch.cuda.stream(side):
            for name in (default, 1):
                results.extend(attention(q, k, v, stream=name, return_lse=True, **ONE))

    behind_a_long_kernel(work)
    torch.cuda.synchronize()
    assert same(results[0], results[2], wanted) and same(results[1], results[3])
    assert [stream_of(x) for x in results] == [default] * 4


def test_memory_of_a_call_that_has_returned_is_used_in_order():
    # The workspace of one call is the next one's, whose kernels come later.
    problems = [tensors(heads=32, kv_heads=8, q_len=1, kv_len=3000, d=128, d_v=128, seed=seed) for seed in range(6)]
    wanted = [attention(*problem, **ONE) for problem in problems]
    results = []
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        behind_a_long_kernel(lambda: results.extend(attention(*problem, **ONE) for problem in problems))
    torch.cuda.synchronize()
    assert all(same(o, right) for o, right in zip(results, wanted))


def test_nothing_is_copied_or_kept():
    # 4 GiB of keys and values, if they were there: one row of each, broadcast.
    q = normal(1, 1, 1, 64, dtype=F16)
    k, v = (normal(1, 1, 1, 64, seed=seed, dtype=F16).expand(1, 1, 1 << 24, 64) for seed in (1, 2))
    attention(q, k, v, **ONE)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    o = attention(q, k, v, **ONE)
    torch.testing.assert_close(o, v[:, :, :1], rtol=1e-2, atol=1e-3)
    assert torch.cuda.max_memory_allocated() - before < 64 << 20
    del o
    assert torch.cuda.memory_allocated() == before


def test_a_graph_gives_the_bits_of_a_call():
    for rung, dtype in RUNGS:
        for shape in (dict(), dict(heads=32, kv_heads=8, q_len=1, kv_len=2000, d=128, d_v=128)):
            static = tensors(dtype=dtype, **shape)
            attention(*static, rung=rung)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                o, lse = attention(*static, rung=rung, return_lse=True)
                alone = attention(*static, rung=rung)
            for seed in (1, 2):
                inputs = tensors(dtype=dtype, seed=seed, **shape)
                for x, new in zip(static, inputs):
                    x.copy_(new)
                o.fill_(torch.nan)
                graph.replay()
                wanted, wanted_lse = attention(*inputs, rung=rung, return_lse=True)
                assert same(o, alone, wanted) and same(lse, wanted_lse), rung


FIRST_IN_A_CAPTURE = """
import torch, flash_ladder
q = torch.randn(1, 1, 9, 64, device="cuda", dtype=torch.float16)
call = lambda: flash_ladder.attention(q, q, q, rung={rung!r})
try:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        call()
except RuntimeError as error:
    assert "stream: found one that is captured, and" in str(error), error
else:
    raise AssertionError("captured")
call()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    o = call()
graph.replay()
assert torch.equal(o, call())
"""


def test_a_first_call_in_a_capture_is_refused():
    subprocess.run([sys.executable, "-c", FIRST_IN_A_CAPTURE.format(**ONE)], check=True)


def test_threads_on_streams_of_their_own():
    problems = [tensors(seed=seed, q_len=200 + seed, kv_len=300) for seed in range(4)]
    wanted = [attention(*problem, causal=True, **ONE) for problem in problems]
    torch.cuda.synchronize()
    call = lambda problem, right: lambda: same(attention(*problem, causal=True, **ONE), right)
    in_threads([call(*pair) for pair in zip(problems, wanted)])


def test_wrong_arguments():
    q, k, v = tensors()
    cpu, on_cpu = "found a tensor on the CPU, wanted one on CUDA device 0", lambda x: x.cpu()
    refused(f"k: {cpu}", q, on_cpu(k), v)
    refused(f"v: {cpu}", q, k, on_cpu(v).numpy())
    refused(f"sinks: {cpu}", q, k, v, sinks=torch.zeros(6))
    refused(f"out: {cpu}", q, k, v, out=torch.zeros(2, 6, 77, 40, dtype=F16))
    refused("k: found a tensor on CUDA device 0, wanted one on the CPU", on_cpu(q), k, v, rung="fa2")
    refused('found "fa2", whose tensors lie on the CPU', q, k, v, rung="fa2")
    refused("whose tensors lie on a GPU", *map(on_cpu, (q, k, v)))
    refused("k: found dtype BF16, wanted F16 as in q", q, k.bfloat16(), v)
    refused("q: found int32", q.int(), k, v)
    refused("does not support F64", *(x.double() for x in (q, k, v)))
    refused("k: found shape [2, 2, 133, 23]", q, k[..., 1:], v)
    refused("gradient", torch.nn.Parameter(q), k, v)
    refused("sinks: found float16, wanted float32", q, k, v, sinks=normal(6).half())
    refused("sinks: found stride 2, wanted 1", q, k, v, sinks=normal(12)[::2])
    refused("alibi_slopes: found shape", q, k, v, alibi_slopes=normal(3))
    refused("bias: found shape", q, k, v, bias=normal(1, 1, 1, 133))
    refused("out: found shape", q, k, v, out=torch.zeros_like(q))
    refused("out: found float32, wanted float16", q, k, v, out=normal(2, 6, 77, 40))
    refused("share no memory", q, k, v, out=normal(2, 6, 1, 40, dtype=F16).expand(2, 6, 77, 40))
    refused("out: found <class 'numpy.ndarray'>", q, k, v, out=on_cpu(q).numpy())
    refused("negative int", q, k, v, stream=-1, error=OverflowError)
    refused("stream: found 2, the default stream of each thread", q, k, v, stream=2)
    # And all is as it was.
    check(q, k, v, **ONE)


def test_a_tensor_of_another_library_is_taken_with_out():
    class Foreign:
        def __init__(self, x):
            self.x = x

        def __dlpack__(self, **kwargs):
            return self.x.__dlpack__(**kwargs)

        def __dlpack_device__(self):
            return self.x.__dlpack_device__()

    q, k, v = tensors()
    out = torch.empty(2, 6, 77, 40, device="cuda", dtype=F16)
    assert same(attention(*map(Foreign, (q, k, v)), out=out, **ONE), attention(q, k, v, **ONE))
    assert same(attention(q, Foreign(k), v, **ONE), out)
    refused("wanted a tensor of PyTorch on a GPU, or one as out", Foreign(q), k, v)


def test_the_current_device_stays():
    q, k, v = tensors()
    before = torch.cuda.current_device()
    wanted = attention(q, k, v, **ONE)
    found = []
    # A thread with no context.
    thread = threading.Thread(target=lambda: found.append(attention(q, k, v, **ONE)))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert same(wanted, found[0]) and torch.cuda.current_device() == before
    if torch.cuda.device_count() < 2:
        skip("one GPU alone: that another one stays current is not seen")
    with torch.cuda.device(1):
        there = [x.to("cuda:1") for x in (q, k, v)]
        assert same(attention(q, k, v, **ONE), wanted)
        assert torch.cuda.current_device() == 1 and torch.empty(1, device="cuda").device.index == 1
    o = attention(*there, **ONE)
    assert o.device.index == 1 and torch.cuda.current_device() == before
    assert same(o.cpu(), wanted.cpu())
    refused("k: found a tensor on CUDA device 1, wanted one on CUDA device 0", q, there[1], v)


if __name__ == "__main__":
    sys.exit(main(globals()))
