"""A producer of DLPack capsules in which everything can be wrong, and which counts what becomes of them."""

import ctypes

import numpy as np


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Legacy(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_name = ctypes.pythonapi.PyCapsule_GetName
_name.restype, _name.argtypes = ctypes.c_char_p, [ctypes.py_object]


class Producer:
    """Hands out the float32 array it is given, with any field of its description replaced by a keyword."""

    def __init__(self, array, *, shape=None, strides=None, major=1, versioned=True, name=None, **fields):
        self.array = array
        self.versioned = versioned
        self.deleted = 0
        self.name = name or (b"dltensor_versioned" if versioned else b"dltensor")
        lengths = array.shape if shape is None else shape
        self.shape = (ctypes.c_int64 * len(lengths))(*lengths)
        self.strides = None if strides is None else (ctypes.c_int64 * len(strides))(*strides)
        self.managed = Versioned(major=major) if versioned else Legacy()
        self.managed.deleter = DELETER(self._delete)
        tensor = self.managed.tensor
        tensor.data = array.ctypes.data
        tensor.device_type, tensor.ndim = 1, len(lengths)
        tensor.code, tensor.bits, tensor.lanes = 2, 32, 1
        tensor.shape, tensor.strides = self.shape, self.strides
        for field, value in fields.items():
            setattr(tensor, field, value)

    def _delete(self, managed):
        assert managed == ctypes.addressof(self.managed)
        self.deleted += 1

    def __dlpack__(self, **kwargs):
        if kwargs and not self.versioned:
            raise TypeError("this producer knows no version")
        self.capsule = _new(ctypes.addressof(self.managed), self.name, None)
        return self.capsule

    def __dlpack_device__(self):
        return (self.managed.tensor.device_type, 0)

    @property
    def capsule_name(self):
        return _name(self.capsule)


def ones(*shape, **description):
    """A producer of ones."""
    return Producer(np.ones(shape, np.float32), **description)
