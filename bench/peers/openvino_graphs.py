"""Small OpenVINO graphs with float32 inputs bound once."""


def compiled(graph, parameters, feeds, threads, precision="f32"):
    """Computed in `precision`. Returns a function to time, and one that gives the result as an array."""
    import openvino

    model = openvino.Core().compile_model(
        openvino.Model([graph], parameters),
        "CPU",
        {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": precision,
            "NUM_STREAMS": 1,
            "ENABLE_CPU_PINNING": False,
        },
    )
    request = model.create_infer_request()
    arrays = [feed.contiguous().numpy() for feed in feeds]
    for index, array in enumerate(arrays):
        request.set_input_tensor(index, openvino.Tensor(array, shared_memory=True))

    def run():
        request.infer()

    run.inputs = arrays  # OpenVINO reads this memory and does not own it

    def result():
        run()
        return request.get_output_tensor(0).data.copy()

    return run, result
