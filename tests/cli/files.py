"""The two file formats the command reads and writes, as far as its tests need them, without NumPy."""

import array
import ast
import json
import math
import struct

CODES = {"<f2": "e", "<f4": "f", "<f8": "d", "<i8": "q", "|b1": "b"}


def size_of(shape):
    return math.prod(shape)


def write_npy(path, shape, values, descr="<f4"):
    header = repr({"descr": descr, "fortran_order": False, "shape": tuple(shape)}).encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
        file.write(struct.pack(f"<{size_of(shape)}{CODES[descr]}", *values))


def read_npy(path):
    with open(path, "rb") as file:
        data = file.read()
    assert data[:8] == b"\x93NUMPY\x01\x00", "not an .npy file of version 1"
    (length,) = struct.unpack("<H", data[8:10])
    header = ast.literal_eval(data[10 : 10 + length].decode())
    payload = data[10 + length :]
    values = struct.unpack(f"<{size_of(header['shape'])}{CODES[header['descr']]}", payload)
    return list(header["shape"]), list(values)


def write_safetensors(path, tensors):
    """tensors: name -> (shape, values), stored as F32."""
    header, payload = {}, b""
    for name, (shape, values) in tensors.items():
        data = array.array("f", values).tobytes()
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [len(payload), len(payload) + len(data)]}
        payload += data
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + payload)
