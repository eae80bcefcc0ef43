"""Threads: ours, Python's, and the interpreter lock."""

import os
import subprocess
import sys
import threading
import time

import numpy as np
import polyhead
import pytest

sdpa = polyhead.scaled_dot_product_attention


@pytest.fixture
def restored_threads():
    before = polyhead.get_num_threads()
    yield
    polyhead.set_num_threads(before)


def test_same_bits_for_any_number_of_threads(generator, restored_threads):
    query, key, value = (generator.standard_normal((2, 4, 130, 64), np.float32) for _ in range(3))
    results = []
    for threads in (1, 2, 3, 8):
        polyhead.set_num_threads(threads)
        assert 1 <= polyhead.get_num_threads() == polyhead.info()["threads"] <= threads
        results.append(sdpa(query, key, value, is_causal=True).tobytes())
    assert len(set(results)) == 1


def test_eight_python_threads(generator):
    """Different shapes at once, with inputs that need conversion, each equal to its serial result."""
    calls = []
    for index in range(8):
        shape = (1 + index % 3, 4, 10 + 17 * index, 32)
        query, key, value = (generator.standard_normal(shape, np.float32) for _ in range(3))
        mask = generator.standard_normal((shape[2], shape[2]))  # float64
        calls.append((query.astype(">f4"), key, value, mask))
    expected = [sdpa(*call).tobytes() for call in calls]
    wrong = []

    def work(index):
        for _ in range(40):
            if sdpa(*(array.copy() for array in calls[index])).tobytes() != expected[index]:
                wrong.append(index)

    workers = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def entries(generator, length):
    """Calls of every function that computes, with arguments that are converted on the way in."""
    draw = lambda *shape: generator.standard_normal(shape, np.float32)
    query, key, value = draw(1, 4, length, 32), draw(1, 2, length, 32), draw(1, 2, length, 32)
    mask = generator.standard_normal((length, length))  # float64
    cache = polyhead.KvCache("paged", kv_heads=2, head_dim=32)
    cache.append(key, value)
    weights = [draw(64, 64) / 8 for _ in range(4)]
    operation = polyhead.MultiHeadAttention(*weights, heads=4)
    x = draw(1, length, 64)
    blhd = [np.ascontiguousarray(tensor.swapaxes(1, 2)) for tensor in (query, key, value)]
    ends = [0, length // 3, length]
    out, lse = sdpa(query, key, value, enable_gqa=True, return_lse=True)
    big = lambda array: array.astype(">f4")
    return {
        "sdpa": lambda: sdpa(big(query), key.copy(), big(value), mask.copy(), enable_gqa=True),
        "weights": lambda: polyhead.attention_weights(big(query), big(key), mask.copy()),
        "layer": lambda: operation(big(x), attn_mask=mask.copy()),
        "cache": lambda: cache.attention(big(query), attn_mask=mask.copy(), is_causal=False),
        "flash": lambda: polyhead.flash_attn_func(*map(big, blhd), causal=True),
        "varlen": lambda: polyhead.flash_attn_varlen_func(*(big(tensor[0]) for tensor in blhd), list(ends), list(ends), length, length),
        "merge": lambda: polyhead.merge(big(out), big(lse), big(out), big(lse))[0],
    }


def test_every_function_from_many_python_threads(generator):
    """Temporary arrays come and go in all threads at once; each result is the serial one."""
    calls = list(entries(generator, 40).values()) + list(entries(generator, 77).values())
    expected = [call().tobytes() for call in calls]
    wrong = []

    def work(first):
        for index in range(len(calls)):
            place = (first + index) % len(calls)
            for _ in range(5):
                if calls[place]().tobytes() != expected[place]:
                    wrong.append(place)

    workers = [threading.Thread(target=work, args=(first,)) for first in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_threads_change_while_others_compute(generator, restored_threads):
    query = generator.standard_normal((1, 4, 64, 32), np.float32)
    expected = sdpa(query, query, query).tobytes()
    stop = threading.Event()
    wrong = []

    def work():
        while not stop.is_set():
            if sdpa(query, query, query).tobytes() != expected:
                wrong.append(1)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for round_number in range(20):
        polyhead.set_num_threads(1 + round_number % 3)
        time.sleep(0.002)
    stop.set()
    for worker in workers:
        worker.join()
    assert not wrong


def long_call(name, generator):
    draw = lambda *shape: generator.standard_normal(shape, np.float32)
    if name == "sdpa":
        query = draw(1, 16, 2048, 64)
        return lambda: sdpa(query, query, query)
    if name == "weights":
        query = draw(1, 16, 1024, 64)
        return lambda: polyhead.attention_weights(query, query, received=True)
    if name == "layer":
        operation = polyhead.MultiHeadAttention(*(draw(512, 512) / 20 for _ in range(4)), heads=8)
        x = draw(2, 1024, 512)
        return lambda: operation(x)
    if name == "cache":
        cache = polyhead.KvCache("paged", kv_heads=16, head_dim=64)
        query = draw(1, 16, 1536, 64)
        cache.append(query, query)
        return lambda: cache.attention(query)
    query = draw(1, 2048, 16, 64)
    return lambda: polyhead.flash_attn_func(query, query, query)


@pytest.mark.parametrize("name", ["sdpa", "weights", "layer", "cache", "flash"])
def test_another_thread_makes_progress(generator, restored_threads, name):
    """During one long call a second Python thread counts on; holding the lock would stop it dead."""
    polyhead.set_num_threads(1)
    call = long_call(name, generator)
    ticks, running = [], threading.Event()

    def count():
        running.set()
        while running.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    counter = threading.Thread(target=count)
    counter.start()
    start = time.perf_counter()
    call()
    end = time.perf_counter()
    running.clear()
    counter.join()
    inside = [tick for tick in ticks if start + 0.1 * (end - start) < tick < end - 0.1 * (end - start)]
    assert end - start > 0.02, "the call is too short to show anything"
    assert len(inside) >= 3


def run_python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=60
    )


def test_number_of_threads_from_the_environment():
    code = "import polyhead; print(polyhead.get_num_threads())"
    for threads in range(1, 1 + len(os.sched_getaffinity(0))):
        assert run_python(code, POLYHEAD_NUM_THREADS=str(threads)).stdout == f"{threads}\n"
    for wrong in ("0", "many", "2x"):
        result = run_python(code, POLYHEAD_NUM_THREADS=wrong)
        assert result.returncode == 1 and "InvalidArgumentError: POLYHEAD_NUM_THREADS" in result.stderr


def test_default_threads_respect_the_affinity_mask():
    code = "import os, polyhead; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); print(polyhead.get_num_threads())"
    assert run_python(code, POLYHEAD_NUM_THREADS="").stdout == "1\n"


def test_a_forked_child_answers():
    """After a parallel call, a child process gives the same bits or a clear error; it does not hang."""
    code = """
import os, sys, numpy as np, polyhead
query = np.ones((4, 8, 256, 64), np.float32)
before = polyhead.scaled_dot_product_attention(query, query, query)
child = os.fork()
if child == 0:
    try:
        after = polyhead.scaled_dot_product_attention(query, query, query)
        os._exit(0 if after.tobytes() == before.tobytes() else 1)
    except polyhead.Error:
        os._exit(0)
    finally:
        os._exit(2)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    result = run_python(code)
    assert result.stdout == "0\n", result.stderr
