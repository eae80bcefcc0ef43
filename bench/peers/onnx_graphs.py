"""Small ONNX graphs, run by ONNX Runtime with inputs bound once."""

import numpy as np


def tensor(name, values):
    from onnx import numpy_helper

    return numpy_helper.from_array(np.ascontiguousarray(values), name)


def session(nodes, inputs, outputs, initializers, feeds, threads):
    """Returns a function that runs the graph and gives its first output as an array."""
    import onnxruntime
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        nodes, "graph", inputs, [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs], initializers
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)])
    model.ir_version = 10
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Workers that spin after their work is done would be measured as slowness of whoever comes next.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0" if threads > 1 else "1")
    running = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    bound = {name: onnxruntime.OrtValue.ortvalue_from_numpy(x) for name, x in feeds.items()}
    return lambda: running.run_with_ort_values(outputs[:1], bound)[0].numpy()
