"""What attention, layer and encoder share: each engine's result is checked against float64, then all of them are timed in turn."""

import torch

import timing


def measure(problem, engines, threads, budget, left_out, at):
    """problem: part, name, flops, largest_error, engine(name, threads) -> {name: (function to time, function that gives the
    result)} or None when the engine has nothing to offer here, and error_of(result). Returns results; `left_out` hears of an
    engine that cannot do this problem or does it wrong, `at` of the one that is about to run."""
    calls, errors = {}, {}
    with torch.inference_mode():
        for engine in engines:
            at(engine)
            try:
                for name, (run, result) in (problem.engine(engine, threads) or {}).items():
                    errors[name] = problem.error_of(result())
                    if errors[name] <= problem.largest_error:
                        calls[name] = run
                    else:
                        left_out(engine, f"wrong result, error {errors[name]:.1e}")
            except Exception as trouble:  # an engine that is missing or cannot do this must not end the comparison
                first = (str(trouble).splitlines() or [""])[0]
                left_out(engine, f"{type(trouble).__name__}: {first}")
        times = timing.interleave(calls, budget, threads, at)
    return [
        timing.entry(problem.part, problem.name, name, threads, seconds, problem.flops, errors[name])
        for name, seconds in times.items()
    ]
