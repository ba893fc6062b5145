"""As much of PyTorch as a call asks for, with tensors on GPUs that are not there. It writes down what it is asked."""

import ctypes
import itertools
import math
import sys
from contextlib import contextmanager
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

import numpy as np
import producer
from producer import Producer

asked = []
_next = 0x100000


class dtype:
    def __init__(self, name, code, bits):
        self.name, self.code, self.bits = name, code, bits


float32, float16, uint8 = dtype("float32", 2, 32), dtype("float16", 2, 16), dtype("uint8", 1, 8)


class Tensor:
    def __init__(self, *shape, dtype=float32, device=0, strides=None, address=None):
        global _next
        self.shape, self.dtype, self.device, self.address = shape, dtype, device, address or _next
        _next += (math.prod(shape) * dtype.bits // 8 + 1023) // 512 * 512
        place = dict(data=self.address, device_type=2, device_id=device, code=dtype.code, bits=dtype.bits)
        self.producer = Producer(np.ones(1, np.float32), shape=shape, strides=strides, **place)

    def data_ptr(self):
        return self.address

    def narrow(self, *part):
        return Part(self, part)

    def __dlpack__(self, *, stream, max_version):
        assert self.device == cuda.device_now, "PyTorch refuses tensors of another than the current device"
        asked.append(stream)
        return self.producer.__dlpack__(max_version=max_version)

    def __dlpack_device__(self):
        return 2, self.device


class Part:
    def __init__(self, tensor, part):
        self.tensor, self.part = tensor, part

    def fill_(self, value):
        asked.append(("fill", self.tensor, self.part, value, cuda.stream_now))


def empty(shape, *, dtype, device):
    asked.append((*shape, dtype.name, device, cuda.stream_now))
    return Tensor(*shape, dtype=dtype, device=device)


# The table of C functions, which a newer PyTorch has: it asks for no stream, and no current device.
class Table(ctypes.Structure):
    managed = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.c_void_p))
    tensor = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(producer.Tensor))
    _fields_ = [
        ("version", ctypes.c_uint32 * 2),
        ("previous", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("managed_of", managed),
        ("give", ctypes.c_void_p),
        ("tensor_of", tensor),
    ]


@Table.managed
def _managed(tensor, out):
    asked.append(-1)
    out[0] = ctypes.addressof(tensor.producer.managed)
    return 0


@Table.tensor
def _tensor(tensor, out):
    out[0] = tensor.producer.managed.tensor
    return 0


_table = Table((1, 3), None, None, _managed, None, _tensor)
if "newer" in sys.argv:
    Tensor.__dlpack_c_exchange_api__ = producer._new(ctypes.addressof(_table), b"dlpack_exchange_api", None)


class Stream:
    def __init__(self, handle):
        self.cuda_stream = handle


# Streams that PyTorch makes itself.
_pool = itertools.count(0x9000, 0x10)


class cuda:
    device_now, stream_now = 0, 0xABC0
    current_stream = staticmethod(lambda device: Stream(cuda.stream_now))
    current_device = staticmethod(lambda: cuda.device_now)
    default_stream = staticmethod(lambda device: Stream(0))
    # PyTorch takes 0 for no handle, and makes a new stream.
    ExternalStream = staticmethod(lambda handle, device: Stream(handle or next(_pool)))
    device = staticmethod(lambda device: _changed("device_now", device))
    stream = staticmethod(lambda stream: _changed("stream_now", stream.cuda_stream))


@contextmanager
def _changed(name, value):
    before = getattr(cuda, name)
    setattr(cuda, name, value)
    try:
        yield
    finally:
        setattr(cuda, name, before)
