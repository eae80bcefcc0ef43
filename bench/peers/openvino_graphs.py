"""Small OpenVINO graphs in float32 with inputs bound once."""


def compiled(graph, parameters, feeds, threads):
    """Returns a function to time, and one that gives the result as an array."""
    import openvino

    model = openvino.Core().compile_model(
        openvino.Model([graph], parameters),
        "CPU",
        {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": 1, "ENABLE_CPU_PINNING": False},
    )
    request = model.create_infer_request()
    for index, feed in enumerate(feeds):
        request.set_input_tensor(index, openvino.Tensor(feed.contiguous().numpy(), shared_memory=True))

    def result():
        request.infer()
        return request.get_output_tensor(0).data.copy()

    return request.infer, result
