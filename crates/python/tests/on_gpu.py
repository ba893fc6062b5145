"""What tests on a GPU share. They run by pytest, or without it as programs."""

import sys
import threading
from pathlib import Path

import flash_ladder
import torch
from flash_ladder import attention

if "pytest" in sys.modules:
    import pytest
else:
    pytest = None
    sys.path.insert(0, str(Path(__file__).parents[1]))

from reference import ON_TENSOR_CORES, truth, weights_of

MISSING = None if torch.cuda.is_available() else "PyTorch finds no GPU"

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
# Hopper's own is no rung of another GPU.
IS_HOPPER = MISSING is None and torch.cuda.get_device_capability() == (9, 0)
NAMES = [rung for rung in flash_ladder.rungs("cuda") if rung != "fa3" or IS_HOPPER]
TYPES = {rung: [F16, BF16] if rung in ON_TENSOR_CORES else [F32, F16] for rung in NAMES}
RUNGS = [(rung, dtype) for rung, dtypes in TYPES.items() for dtype in dtypes]
# One that takes everything, to try what is not the rung's own.
ONE = dict(rung="cuda-fa2")
# One that takes no other options than these, and 128 channels.
TRITON, OF_TRITON = "triton-fa2", {"causal", "scale"}


class Skipped(Exception):
    pass


def in_threads(calls):
    """Makes each call 50 times in a thread and on a stream of its own, all at once. A call says whether its result is right."""
    wrong = []

    def repeat(call):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                wrong.extend("other bits" for _ in range(50) if not call())
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=repeat, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]


def skip(reason):
    if pytest:
        pytest.skip(reason)
    raise Skipped(reason)


def normal(*shape, seed=0, dtype=F32):
    # Made on the CPU: the same everywhere.
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to("cuda", dtype)


def tensors(batch=2, heads=6, kv_heads=2, q_len=77, kv_len=133, d=24, d_v=40, dtype=F16, seed=0):
    """q, k and v of normal numbers; 6 query heads on 2, so that a group is no power of two."""
    shapes = [(heads, q_len, d), (kv_heads, kv_len, d), (kv_heads, kv_len, d_v)]
    return [normal(batch, *shape, seed=10 * seed + i, dtype=dtype) for i, shape in enumerate(shapes)]


def same(*results):
    """Whether tensors have the same bits."""
    first, *others = (x.contiguous().view(torch.uint8) for x in results)
    return all(torch.equal(first, other) for other in others)


def check(q, k, v, rung, **options):
    o, lse = attention(q, k, v, rung=rung, return_lse=True, **options)
    assert (o.dtype, lse.dtype, o.device, lse.device) == (q.dtype, F32, q.device, q.device)
    assert o.is_contiguous() and lse.is_contiguous()
    error = truth(q, k, v, weights=weights_of(rung, q.dtype), **options).error(o, lse)
    assert error <= 1, (rung, q.dtype, q.shape, k.shape, options.keys(), error)
    return o, lse


def behind_a_long_kernel(work):
    """What `work` puts into the current stream must wait for some tenths of a second, and the host must not."""
    done = torch.cuda.Event()
    torch.cuda._sleep(500_000_000)
    work()
    done.record()
    assert not done.query(), "the host has waited"


def refused(words, *args, error=ValueError, **options):
    try:
        attention(*args, **ONE | options)
    except error as found:
        assert words in str(found), found
    else:
        raise AssertionError(f"wanted a refusal: {words}")


def main(tests):
    """All tests of a module, by their names, without pytest."""
    if MISSING:
        return print(f"skipped: {MISSING}")
    failed = 0
    for name, test in [*tests.items()]:
        if name.startswith("test_"):
            try:
                test()
                print(f"{name}: passed", flush=True)
            except Skipped as why:
                print(f"{name}: skipped in part: {why}", flush=True)
            except Exception as error:
                failed += 1
                print(f"{name}: FAILED: {type(error).__name__}: {error}", flush=True)
    return failed
