"""Calls on GPUs that are not there. Run by test_streams.py, with the driver that writes down what it is told."""

import ctypes
import math

import flash_ladder
import torch
from torch import Tensor, asked

driver = ctypes.CDLL("libcuda.so.1")
driver.told.restype = ctypes.c_char_p
driver.get_current.restype = ctypes.c_void_p
driver.set_current.argtypes = [ctypes.c_void_p]
OWN = 0x5555


def attention(*args, **options):
    """What is returned, what the driver was told, and what PyTorch was asked. The context stays."""
    driver.forget()
    asked.clear()
    result = flash_ladder.attention(*args, **dict(rung="cuda-fa2-simt") | options)
    assert driver.get_current() == OWN
    return result, driver.told().decode().splitlines(), [*asked]


def launch(told):
    """Context, stream, address and strides of q, k, v, o and lse, of the one thing that the driver was told."""
    (line,) = told
    _, _, context, _, stream, *words = line.split()
    numbers = [int(word, 16) for word in words]
    numbers = [number - (number >> 63 << 64) for number in numbers]
    return context, stream, [numbers[i : i + 5] for i in range(0, 25, 5)]


def problem(**description):
    return [Tensor(2, 6, 37, 24, **description), *(Tensor(2, 2, 53, d, **description) for d in (24, 40))]


def refused(words, *args, error=ValueError, **options):
    try:
        attention(*args, **options)
    except error as found:
        assert words in str(found), found
    else:
        raise AssertionError(f"wanted a refusal: {words}")


driver.set_current(OWN)
q, k, v = problem()
o_shape, lse_bytes = (2, 6, 37, 40), 2 * 6 * 37 * 4

# A capture cannot load kernels; the first call does.
driver.capture(1)
refused("stream: found one that is captured, and cuda-fa2-simt not loaded", q, k, v, error=RuntimeError)
driver.capture(0)
_, told, _ = attention(q, k, v)
assert told[0] == "load in 0x1000" and len(told) == 2, told

# On the current stream nobody waits, and memory is that stream's.
o, told, words = attention(q, k, v)
context, stream, tensors = launch(told)
assert (context, stream) == ("0x1000", "0xabc0")
assert words == [-1, -1, -1, (*o_shape, "float32", 0, 0xABC0), (lse_bytes, "uint8", 0, 0xABC0)], words
assert tensors[0] == [q.address, 6 * 37 * 24, 37 * 24, 24, 1] and tensors[2] == [v.address, 2 * 53 * 40, 53 * 40, 40, 1]
assert tensors[3] == [o.address, 6 * 37 * 40, 37 * 40, 40, 1] and tensors[4][1:4] == [6 * 37, 37, 1]
(o, lse), told, words = attention(q, k, v, return_lse=True)
assert launch(told)[2][4][0] == lse.address and lse.shape == (2, 6, 37) and words[4][:4] == (2, 6, 37, "float32")

# Another stream waits for the current one, and memory is its own; the default stream has two names.
_, told, words = attention(q, k, v, stream=0xDEF0)
assert launch(told)[1] == "0xdef0" and words[:3] == [0xDEF0] * 3 and [word[-1] for word in words[3:]] == [0xDEF0] * 2
for name in (0, 1):
    _, told, words = attention(q, k, v, stream=name)
    assert launch(told)[1] == "(nil)" and words[:3] == [1, 1, 1], words
    assert [word[-1] for word in words[3:]] == [0, 0], words
torch.cuda.stream_now = 0
for options in ({}, dict(stream=0), dict(stream=1)):
    _, told, words = attention(q, k, v, **options)
    assert launch(told)[1] == "(nil)" and words[:3] == [-1, -1, -1]
torch.cuda.stream_now = 0xABC0
refused("stream: found 2, the default stream of each thread, wanted one that", q, k, v, stream=2)

# Another device is current, and stays so; one that comes later has kernels of its own.
torch.cuda.device_now = 1
assert launch(attention(q, k, v)[1])[0] == "0x1000" and torch.cuda.device_now == 1
torch.cuda.device_now = 0
there = problem(device=1)
_, told, words = attention(*there)
assert told[0] == "load in 0x1001" and launch(told[1:])[0] == "0x1001" and words[3][-2] == 1
driver.capture(1)
assert launch(attention(*there)[1])[0] == "0x1001"
driver.capture(0)

# A result in memory that is there.
for strides in [(1, 2, 1000, 24), (1, 2, 1000, -24)]:
    out = Tensor(*o_shape, strides=strides)
    o, told, words = attention(q, k, v, out=out)
    assert o is out and launch(told)[2][3] == [out.address, *strides] and words[:4] == [-1] * 4
for out, words in [
    (Tensor(2, 6, 37, 41), "out: found shape [2, 6, 37, 41], wanted [2, 6, 37, 40]"),
    (Tensor(*o_shape, dtype=torch.float16), "out: found float16, wanted float32 as in q"),
    (Tensor(*o_shape, strides=(0, 37 * 40, 40, 1)), "wanted elements that share no memory"),
    (Tensor(*o_shape, strides=(6 * 37 * 40, 37 * 40, 39, 1)), "wanted elements that share no memory"),
    (Tensor(*o_shape, device=1), "out: found a tensor on CUDA device 1, wanted one on CUDA device 0"),
    (q.producer, "out: found <class 'producer.Producer'>, wanted a tensor of PyTorch"),
]:
    refused(words, q, k, v, out=out)

# Nothing is launched for nothing.
for shape in [(2, 6, 0, 24), (0, 6, 37, 24)]:
    keys = [Tensor(shape[0], 2, 53, d) for d in (24, 40)]
    assert attention(Tensor(*shape), *keys)[1] == []

# The lengths of packed sequences go as an argument of a kernel, which comes first in the stream: nothing is copied.
# Their table lies in the workspace, 256 bytes before the lse that nobody asks for. The first call loads that kernel.
packed = [Tensor(6, 37, 24), Tensor(2, 53, 24), Tensor(2, 53, 40)]
lengths = dict(cu_seqlens_q=[0, 30, 30, 37], cu_seqlens_k=(0, 1, 50, 53))
table = "0 0 30 0 1 0 30 0 1 49 0 30 7 50 3"
driver.capture(1)
refused("found one that is captured, and put_table not loaded", *packed, **lengths, error=RuntimeError)
driver.capture(0)
assert attention(*packed, **lengths)[1][0] == "load in 0x1000"
for options, stream in [({}, 0xABC0), (dict(stream=0xDEF0), 0xDEF0)]:
    o, (put, told), words = attention(*packed, **lengths, **options)
    _, _, tensors = launch([told])
    scratch = tensors[4][0] - 256
    assert put == f"table in 0x1000 on {stream:#x} at {scratch:x} {table}", put
    assert told.startswith(f"launch in 0x1000 on {stream:#x} ") and told.endswith(f" {scratch:x}"), told
    assert words[3:] == [(6, 37, 40, "float32", 0, stream), (256 + 6 * 37 * 4, "uint8", 0, stream)], words
    assert tensors[0] == [packed[0].address, 0, 37 * 24, 24, 1] and tensors[3] == [o.address, 0, 37 * 40, 40, 1]
    assert tensors[4][1:] == [0, 37, 1, 1]
(o, lse), (_, told), _ = attention(*packed, **lengths, return_lse=True)
assert launch([told])[2][4] == [lse.address, 0, 37, 1, 1] and lse.shape == (6, 37)
out = Tensor(6, 37, 40, strides=(40, 240, 1))
assert launch(attention(*packed, **lengths, out=out)[1][1:])[2][3] == [out.address, 0, 40, 240, 1]

# Many come in pieces of 200.
many = dict(cu_seqlens_q=[min(i, 37) for i in range(402)], cu_seqlens_k=[0] * 402)
_, told, _ = attention(*packed, **many)
first = int(told[0].split()[6], 16)
assert [int(line.split()[6], 16) - first for line in told[:3]] == [0, 4000, 8000]
assert [len(line.split()) - 7 for line in told[:3]] == [1000, 1000, 5] and told[2].endswith(" 0 37 0 0 0")
assert len(told) == 4

# Rows behind the last sequence are filled in what is new, and in nothing else.
short = dict(cu_seqlens_q=[0, 30], cu_seqlens_k=[0, 53])
(o, lse), _, words = attention(*packed, **short, return_lse=True)
fills = [word for word in words if word != -1 and word[0] == "fill"]
assert fills == [("fill", o, (1, 30, 7), 0, 0xABC0), ("fill", lse, (1, 30, 7), -math.inf, 0xABC0)], fills
words = attention(*packed, **short, out=out)[2]
assert not [word for word in words if word != -1 and word[0] == "fill"]

# What would wait for a GPU is refused; so is a result that does not fit.
cu_seqlens = Tensor(4, dtype=torch.float32)
wanted = "a tensor on CUDA device 0, wanted integers in main memory: the call is planned there, and to read them would"
refused(f"cu_seqlens_q: found {wanted}", *packed, **lengths | dict(cu_seqlens_q=cu_seqlens))
refused(f"cu_seqlens_k: found {wanted}", *packed, **lengths | dict(cu_seqlens_k=[0, 1, cu_seqlens, 53]))
refused("out: found shape [6, 37, 41], wanted [6, 37, 40]", *packed, **lengths, out=Tensor(6, 37, 41))

# Nothing is launched for no sequence, nor for sequences without rows.
for offsets in [[0], [0, 0, 0]]:
    assert attention(*packed, cu_seqlens_q=offsets, cu_seqlens_k=offsets)[1] == []

# Triton's kernel reads a table in every call.
halves = problem(dtype=torch.float16)
attention(*halves, rung="triton-fa2")
_, (put, told), _ = attention(*halves, rung="triton-fa2")
place = put.split()[6]
assert put == f"table in 0x1000 on 0xabc0 at {place} 0 0 37 0 53 1 0 37 0 53"
assert told == f"triton in 0x1000 on 0xabc0, table at {place}"
refused("wanted one of cuda-naive, cuda-fa1, cuda-fa2-simt, cuda-fa2", q, k, v, rung="no such rung")

# The copy engine is told of q, k and v beforehand, and refuses what it cannot read.
maps = ["cuTensorMapEncodeTiled"] * 3
_, told, _ = attention(*halves, rung="fa3")
assert told[:4] == [*maps, "load in 0x1000"] and launch(told[4:])[0] == "0x1000", told
driver.capture(1)
assert attention(*halves, rung="fa3")[1][:3] == maps
driver.capture(0)
wanted = "wanted a multiple of 16 bytes above 0 and below 2^40, for the copy engine (TMA)"
crooked = lambda **place: Tensor(2, 2, 53, 24, dtype=torch.float16, **place)
for k_, words in [
    (crooked(strides=(2 * 53 * 25, 53 * 25, 25, 1)), f"k: stride of its batch: found 5300 bytes, {wanted}"),
    (crooked(strides=(2 * 53 * 24, 53 * 24, 0, 1)), f"k: stride of its rows: found 0 bytes, {wanted}"),
    (crooked(strides=(2 * 53 * 48, 53 * 48, 48, 2)), "k: stride of its channels: found 2, wanted 1"),
    (crooked(address=0x200002), "k: address: found 0x200002, wanted a multiple of 16, for the copy engine (TMA)"),
]:
    refused(words, halves[0], k_, halves[2], rung="fa3")
attention(halves[0], crooked(strides=(0, 0, 24, 1)), halves[2], rung="fa3")

refused("k: found a tensor on CUDA device 1, wanted one on CUDA device 0", q, there[1], v)
refused("sinks: found stride 2, wanted 1", q, k, v, sinks=Tensor(6, strides=(2,)))
refused("q: found elements at address 0x1001, wanted a multiple of 4", Tensor(2, 6, 37, 24, address=0x1001), k, v)
