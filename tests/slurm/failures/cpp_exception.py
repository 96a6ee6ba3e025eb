"""Rank 1: compiled code throws an exception of C++ that nothing catches."""

import ctypes
import os
import time

import startup

time.sleep(1)
if os.environ["RANK"] == "1":
    cpp = ctypes.CDLL("libstdc++.so.6")
    cpp.__cxa_allocate_exception.restype = ctypes.c_void_p
    error = ctypes.c_void_p(cpp.__cxa_allocate_exception(16))
    kind = ctypes.byref(ctypes.c_char.in_dll(cpp, "_ZTISt13runtime_error"))
    cpp._ZNSt13runtime_errorC1EPKc(error, b"index file of shard 12 is truncated")
    cpp.__cxa_throw(error, kind, None)
time.sleep(600)
