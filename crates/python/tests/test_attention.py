"""The module against float64 mathematics, and against tensors that lie oddly or are wrong."""

import gc
import resource
import sys
import threading
import time
import weakref
from pathlib import Path

import flash_ladder
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flash_ladder import attention
from layouts import EMPTY, LAYOUTS
from producer import Producer, ones
from reference import truth, weights_of

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def tensors(batch=2, heads=6, kv_heads=2, q_len=37, kv_len=53, d=24, d_v=40, dtype=torch.float32, seed=0):
    """q, k and v of normal numbers; 6 query heads on 2, so that a group is no power of two."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(heads, q_len, d), (kv_heads, kv_len, d), (kv_heads, kv_len, d_v)]
    return [torch.randn(batch, *shape, generator=generator).to(dtype) for shape in shapes]


def floats(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def check(q, k, v, **options):
    o, lse = attention(q, k, v, return_lse=True, **options)
    weights = weights_of(options.pop("rung", "fa2-simd"), q.dtype)
    assert (o.dtype, lse.dtype) == (q.dtype, torch.float32)
    error = truth(q, k, v, weights=weights, **options).error(o, lse)
    assert error <= 1, error
    return o, lse


OPTIONS = {
    "plain": {},
    "causal": dict(causal=True),
    "scale": dict(scale=-0.3),
    "window": dict(window=(5, 2)),
    "window to the left": dict(window=(-1, 2)),
    "causal window": dict(window=(5, 9), causal=True),
    "empty rows": dict(window=(0, 0)),
    "softcap": dict(softcap=0.7),
    "sinks": dict(sinks=floats(6)),
    "alibi": dict(alibi_slopes=floats(6).abs()),
    "alibi of each sequence": dict(alibi_slopes=floats(2, 6).abs(), causal=True),
    "bias": dict(bias=floats(1, 6, 37, 53)),
    "everything": dict(
        causal=True,
        scale=0.2,
        window=(20, -1),
        softcap=2.0,
        sinks=floats(6),
        alibi_slopes=floats(6).abs(),
        bias=floats(2, 1, 37, 53).masked_fill(floats(2, 1, 37, 53) > 1, -torch.inf),
    ),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_options(options, dtype):
    check(*tensors(dtype=dtype), **options)


@pytest.mark.parametrize("options", [o for name, o in OPTIONS.items() if name != "plain"], ids=list(OPTIONS)[1:])
def test_options_change_the_result(options):
    q, k, v = tensors()
    assert truth(q, k, v, **options).error(attention(q, k, v)) > 100


# Takes one kv head whose values are the first channels of its keys, and nothing else.
LATENTS = "mla-absorbed"


def test_rungs_by_device():
    assert flash_ladder.rungs() == flash_ladder.rungs("cpu") and "fa2-simd" in flash_ladder.rungs()
    on_cuda = flash_ladder.rungs("cuda")
    assert {"cuda-fa2-simt", "cuda-fa2", "triton-fa2", "fa3"} <= {*on_cuda}
    with pytest.raises(ValueError, match='device: found "tpu", wanted cpu or cuda'):
        flash_ladder.rungs("tpu")


@pytest.mark.parametrize("rung", [*(rung for rung in flash_ladder.rungs() if rung != LATENTS), "oracle"])
def test_rungs(rung):
    for dtype in DTYPES:
        check(*tensors(dtype=dtype), **OPTIONS["everything"], rung=rung)


def test_latents_are_a_view_of_the_keys():
    for dtype in DTYPES:
        q, k, _ = tensors(kv_heads=1, d=40, dtype=dtype)
        check(q, k, k[..., :24], **OPTIONS["everything"], rung=LATENTS)
    with pytest.raises(ValueError, match="mla-absorbed does not support values that are not the first channels"):
        attention(q, k, k[..., :24].clone(), rung=LATENTS)


def test_float64_goes_to_the_oracle():
    q, k, v = (x.double() for x in tensors())
    o = attention(q, k, v, causal=True, rung="oracle")
    assert o.dtype == torch.float64
    torch.testing.assert_close(o, truth(*tensors(), causal=True).o, rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match="fa2 does not support F64 tensors"):
        attention(q, k, v, rung="fa2")


@pytest.mark.parametrize("q_len, kv_len", [(1, 1), (1, 300), (300, 1), (64, 300), (300, 64), (257, 257)])
def test_causal_aligns_to_the_bottom_right(q_len, kv_len):
    for dtype in DTYPES:
        q, k, v = tensors(q_len=q_len, kv_len=kv_len, dtype=dtype)
        o, lse = check(q, k, v, causal=True)
        empty = max(0, q_len - kv_len)
        assert (o[:, :, :empty] == 0).all() and (lse[:, :, :empty] == -torch.inf).all()
        assert (lse[:, :, empty:] > -torch.inf).all()


def test_pytorchs_own_attention():
    q, k, v = (x.double() for x in tensors(q_len=48, kv_len=48))
    o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    assert_close = torch.testing.assert_close
    assert_close(truth(q.float(), k.float(), v.float(), causal=True).o, o, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("batch, q_len, kv_len", EMPTY)
def test_nothing_to_do(batch, q_len, kv_len):
    o, lse = check(*tensors(batch=batch, q_len=q_len, kv_len=kv_len))
    assert o.shape == (batch, 6, q_len, 40) and lse.shape == (batch, 6, q_len)
    assert (o == 0).all() and (lse == -torch.inf).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_strides(layout, dtype):
    q, k, v = (layout(x) for x in tensors(dtype=dtype))
    o, lse = check(q, k, v, causal=True)
    assert torch.equal(o, attention(q.contiguous(), k.contiguous(), v.contiguous(), causal=True))
    assert o.is_contiguous() and lse.is_contiguous()


def test_negative_strides():
    q, k, v = (x.numpy() for x in tensors())
    o = attention(q[:, ::-1, ::-1], k[..., ::-1], v[:, :, ::-1, ::-2])
    copies = (torch.from_numpy(x.copy()) for x in (q[:, ::-1, ::-1], k[..., ::-1], v[:, :, ::-1, ::-2]))
    assert truth(*copies).error(o) <= 1


@pytest.mark.parametrize("versioned", [True, False], ids=["versioned", "legacy"])
def test_capsules(versioned):
    q, k, v = (Producer(x.numpy(), versioned=versioned) for x in tensors())
    result = attention(q, k, v)
    # Nothing tells what library it should belong to.
    o = np.from_dlpack(result)
    assert truth(*tensors()).error(o) <= 1
    with pytest.raises(BufferError, match="only once"):
        np.from_dlpack(result)
    for producer in (q, k, v):
        assert producer.deleted == 1
        assert producer.capsule_name == (b"used_dltensor_versioned" if versioned else b"used_dltensor")


def test_byte_offset_and_strides_of_a_capsule():
    q, k, v = tensors()
    padded = np.pad(q.numpy(), ((0, 0), (0, 0), (0, 0), (3, 0)))
    strides = [stride // 4 for stride in padded.strides]
    offset = Producer(padded, byte_offset=12, shape=q.shape, strides=strides)
    assert truth(q, k, v).error(np.from_dlpack(attention(offset, k, v))) <= 1


def test_libraries_get_their_own_arrays():
    q, k, v = tensors()
    wanted = truth(q, k, v)
    for convert, kind in [(torch.Tensor.numpy, np.ndarray), (jnp.asarray, jax.Array), (lambda x: x, torch.Tensor)]:
        o, lse = attention(*(convert(x) for x in (q, k, v)), return_lse=True)
        assert isinstance(o, kind) and isinstance(lse, kind)
        assert wanted.error(np.asarray(o).copy(), np.asarray(lse).copy()) <= 1
    # q decides.
    assert isinstance(attention(q, k.numpy(), jnp.asarray(v)), torch.Tensor)

    class Subclass(torch.Tensor):
        pass

    assert isinstance(attention(q.as_subclass(Subclass), k, v), torch.Tensor)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.bfloat16], ids=lambda dtype: dtype.__name__)
def test_jax_types(dtype):
    q, k, v = (jnp.asarray(x, dtype) for x in tensors())
    o, lse = attention(q, k, v, causal=True, return_lse=True)
    assert (o.dtype, lse.dtype) == (dtype, jnp.float32)
    q, k, v = (torch.from_dlpack(x) for x in (q, k, v))
    wanted = truth(q, k, v, causal=True, weights=weights_of("fa2-simd", q.dtype))
    assert wanted.error(torch.from_dlpack(o), torch.from_dlpack(lse)) <= 1


def test_results_are_aligned_and_writable():
    for convert in (torch.Tensor.numpy, torch.Tensor.clone):
        o = attention(*(convert(x) for x in tensors()))
        pointer = o.ctypes.data if isinstance(o, np.ndarray) else o.data_ptr()
        assert pointer % 64 == 0
        o += 1


@pytest.mark.parametrize(
    "description, wanted",
    [
        (dict(device_type=4), "found a tensor on device type 4, wanted one on the CPU"),
        (dict(code=0, bits=64), "found int64, wanted float32, float16, bfloat16 or float64"),
        (dict(code=5, bits=64), "found complex64"),
        (dict(bits=8), "found float8"),
        (dict(lanes=4), "found float32 in 4 lanes"),
        (dict(code=17, bits=6), "found type 17 of 6 bits"),
        (dict(byte_offset=2), "found elements at address .*2, wanted a multiple of 4|found elements at address"),
        (dict(data=None), "found elements at address 0x0"),
        (dict(shape=(1, 2, -3, 4)), r"found lengths \[1, 2, -3, 4\], wanted elements that memory can hold"),
        (dict(shape=(1, 2, 1 << 62, 4)), "wanted elements that memory can hold"),
        (dict(strides=(0, 0, -1 << 63, 0)), "wanted elements that memory can hold"),
        (dict(ndim=-1), "found -1 dimensions"),
        (dict(ndim=1 << 30), "found 1073741824 dimensions"),
        (dict(shape=()), r"found shape \[\], wanted \[batch, heads, q_len, d\]"),
        (dict(shape=(2, 3, 4)), r"found shape \[2, 3, 4\], wanted \[batch, heads, q_len, d\]"),
        (dict(major=2), "found DLPack version 2, wanted version 1"),
        (dict(name=b"used_dltensor"), "found a capsule of another name"),
    ],
    ids=lambda x: str(x) if isinstance(x, dict) else "",
)
def test_wrong_tensors(description, wanted):
    q = ones(1, 2, 3, 4, **description)
    k = ones(1, 2, 3, 4)
    with pytest.raises(ValueError, match=f"^q: .*({wanted})"):
        attention(q, k, ones(1, 2, 3, 4))
    # What was taken is given back, once.
    assert q.deleted == (0 if "name" in description else 1)
    assert k.deleted == (0 if {"major", "name", "device_type"} & description.keys() else 1)


def test_wrong_arguments():
    q, k, v = tensors()
    heads = r"\[6\]"
    on_gpu = ones(2, 2, 53, 24, device_type=2)
    for error, words, args, options in [
        (TypeError, "q: found <class 'list'>, wanted an array with __dlpack__", ([1.0], k, v), {}),
        (TypeError, "v: found <class 'NoneType'>", (q, k, None), {}),
        (ValueError, "k: found dtype F16, wanted F32 as in q", (q, k.half(), v), {}),
        (ValueError, "v: found dtype F64, wanted F32 as in q", (q, k, v.numpy().astype("f8")), {}),
        (ValueError, "k: found int32, wanted float32, float16", (q, k.int(), v), {}),
        (ValueError, "q: found <class 'torch.Tensor'> that refuses", (q.to("meta"), k, v), {}),
        (
            ValueError,
            "q: found <class 'torch.nn.*Parameter'> that refuses .*gradient",
            (torch.nn.Parameter(q), k, v),
            {},
        ),
        (ValueError, r"k: found shape \[2, 2, 53, 23\]", (q, k[..., 1:], v), {}),
        (ValueError, r"v: found shape \[2, 2, 52, 40\]", (q, k, v[:, :, 1:]), {}),
        (ValueError, "k: found shape .* divides q's 5 heads", (q[:, 1:], k, v), {}),
        (ValueError, 'rung: found "fa9", wanted one of naive, ', (q, k, v), dict(rung="fa9")),
        (
            ValueError,
            'rung: found "cuda-fa2-simt", whose tensors lie on a GPU, wanted one of naive',
            (q, k, v),
            dict(rung="cuda-fa2-simt"),
        ),
        (ValueError, "k: found a tensor on CUDA device 0, wanted one on the CPU", (q, on_gpu, v), {}),
        (ValueError, "out: found one for tensors on the CPU, wanted None", (q, k, v), dict(out=q)),
        (ValueError, "stream: found one for tensors on the CPU, wanted None", (q, k, v), dict(stream=0)),
        (ValueError, 'rung: found "fa2", whose tensors lie on the CPU', (on_gpu, k, v), dict(rung="fa2")),
        (
            ValueError,
            "q: found <class 'producer.Producer'>, wanted a tensor of PyTorch on a GPU, or one as out",
            (on_gpu, k, v),
            dict(rung="cuda-fa2-simt"),
        ),
        (ValueError, "softcap: found -1, wanted 0 for off", (q, k, v), dict(softcap=-1.0)),
        (ValueError, "scale: found inf, wanted a finite f32", (q, k, v), dict(scale=float("inf"))),
        (ValueError, rf"sinks: found shape \[5\], wanted {heads}", (q, k, v), dict(sinks=floats(5))),
        (ValueError, "sinks: found 2 dimensions, wanted 1", (q, k, v), dict(sinks=floats(2, 6))),
        (ValueError, "sinks: found float16, wanted float32", (q, k, v), dict(sinks=floats(6).half())),
        (ValueError, "alibi_slopes: found shape", (q, k, v), dict(alibi_slopes=floats(3))),
        (ValueError, "alibi_slopes: found float64, wanted float32", (q, k, v), dict(alibi_slopes=floats(6).double())),
        (ValueError, "bias: found shape", (q, k, v), dict(bias=floats(1, 1, 1, 53))),
        (ValueError, "bias: found 2 dimensions, wanted 4", (q, k, v), dict(bias=floats(37, 53))),
        (TypeError, "window", (q, k, v), dict(window=3)),
    ]:
        with pytest.raises(error, match=words):
            attention(*args, **options)


def test_a_result_beyond_memory_is_refused():
    q = np.broadcast_to(np.float32(1), (1, 1, 1 << 40, 1))
    v = np.broadcast_to(np.float32(1), (1, 1, 1, 1 << 40))
    with pytest.raises(ValueError, match="o: found no memory for it"):
        attention(q, np.ones((1, 1, 1, 1), np.float32), v)


def test_ml_dtypes_in_numpy_are_refused():
    # JAX brings ml_dtypes along; NumPy's DLPack has no bfloat16.
    q = np.asarray(jnp.ones((1, 1, 2, 4), jnp.bfloat16))
    with pytest.raises(ValueError, match="q: found <class 'numpy.ndarray'> that refuses"):
        attention(q, q, q)


def test_interrupts_pass():
    class Interrupted:
        def __dlpack__(self, **kwargs):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attention(Interrupted(), *tensors()[1:])


def test_nothing_is_copied():
    # 8 GiB of keys and values, if they were there: one row of each, broadcast.
    row = np.arange(64, dtype=np.float32)
    q = np.ones((1, 1, 1, 64), np.float32)
    k = np.broadcast_to(row / 64, (1, 1, 1 << 24, 64))
    v = np.broadcast_to(row, (1, 1, 1 << 24, 64))
    peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    before = peak()
    o = attention(q, k, v)
    assert peak() - before < 256 << 20
    np.testing.assert_allclose(o[0, 0, 0], row, rtol=1e-5)


def test_inputs_are_released_and_results_freed():
    q, k, v = (x.numpy() for x in tensors(heads=8, kv_heads=8, q_len=512, kv_len=1, d=8, d_v=512))
    counts = [sys.getrefcount(x) for x in (q, k, v)]
    resident = lambda: int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    attention(q, k, v)
    before = resident()
    for _ in range(50):
        o = attention(q, k, v)
    assert o.nbytes == 16 << 20
    assert resident() - before < 128 << 20
    assert [sys.getrefcount(x) for x in (q, k, v)] == counts
    gone = weakref.ref(q)
    del q
    gc.collect()
    assert gone() is None and o.sum() != 0


def test_the_examples_of_the_readme():
    text, names = Path(__file__).parents[1].joinpath("README.md").read_text(), {}
    for example in text.split("```python\n")[1:]:
        exec(example.split("```")[0], names)


def test_other_threads_run_meanwhile():
    q, k, v = tensors(heads=2, kv_heads=2, q_len=1500, kv_len=1500, d=64)
    worker = threading.Thread(target=attention, args=(q, k, v), kwargs=dict(rung="oracle"))
    turns = 0
    worker.start()
    while worker.is_alive():
        turns += 1
        time.sleep(0.001)
    assert turns > 20


def test_calls_from_several_threads():
    problems = [tensors(seed=seed, q_len=200 + seed, kv_len=300) for seed in range(8)]
    errors = [None] * len(problems)

    def call(place):
        for _ in range(5):
            o, lse = attention(*problems[place], causal=True, return_lse=True)
        errors[place] = truth(*problems[place], causal=True).error(o, lse)

    threads = [threading.Thread(target=call, args=(place,)) for place in range(len(problems))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(errors) <= 1
