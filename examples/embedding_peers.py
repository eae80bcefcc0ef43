"""The same sentence encoder in PyTorch and in ONNX Runtime, from the same weights, for comparison.

Each maker takes a model folder and a number of threads and returns a function (ids [batch, length], lengths [batch]) ->
normalised mean embeddings [batch, hidden]. It raises ImportError when its engine is not installed.
"""

import json
import pathlib

import numpy as np


def make_torch(folder, threads):
    """transformers' BertModel with PyTorch's scaled_dot_product_attention, in inference mode."""
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(threads)
    model = transformers.BertModel.from_pretrained(folder, attn_implementation="sdpa", dtype=torch.float32).eval()

    def encode(ids, lengths):
        with torch.inference_mode():
            mask = torch.arange(ids.shape[1])[None, :] < torch.from_numpy(lengths)[:, None]
            hidden = model(input_ids=torch.from_numpy(ids), attention_mask=mask.long()).last_hidden_state
            total = (hidden * mask[..., None]).sum(1)
            return torch.nn.functional.normalize(total / mask.sum(1, keepdim=True)).numpy()

    return encode


def make_onnx_runtime(folder, threads):
    """A graph of ONNX Runtime's own fused operators (attention, layer norm with residual, bias with GELU)."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    folder = pathlib.Path(folder)
    config = json.loads((folder / "config.json").read_text())
    weights = _read_safetensors(folder / "model.safetensors")
    heads, epsilon = config["num_attention_heads"], config["layer_norm_eps"]
    nodes, initializers = [], {}

    def constant(name, array):
        initializers[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def node(kind, inputs, output, domain="", **attributes):
        nodes.append(helper.make_node(kind, inputs, [output], domain=domain, **attributes))
        return output

    def weight(name):
        return constant(name, weights[name])

    def matrix(name):  # stored [output, input]; ONNX multiplies from the right
        return constant(name + ".transposed", weights[name + ".weight"].T)

    def norm(residual, x, bias, name, output):
        inputs = [residual, x, weight(name + ".weight"), weight(name + ".bias"), weight(bias)]
        return node("SkipLayerNormalization", inputs, output, "com.microsoft", epsilon=epsilon)

    embeddings = "embeddings."
    words = node("Gather", [weight(embeddings + "word_embeddings.weight"), "ids"], "words")
    # One token type is ever used here: its row joins the positions'.
    places = weights[embeddings + "position_embeddings.weight"] + weights[embeddings + "token_type_embeddings.weight"][0]
    zero, one = constant("zero", np.array([0])), constant("one", np.array([1]))
    shape = node("Shape", ["ids"], "shape")
    length = node("Slice", [shape, one, constant("two", np.array([2])), zero], "length")
    rows = node("Slice", [constant("places", places), zero, length, zero], "rows")
    x = node("Add", [words, rows], "embedded")
    name = embeddings + "LayerNorm"
    x = node("LayerNormalization", [x, weight(name + ".weight"), weight(name + ".bias")], "layer0", epsilon=epsilon)
    for index in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{index}."
        projections = [layer + "attention.self." + part for part in ("query", "key", "value")]
        stacked = np.concatenate([weights[part + ".weight"].T for part in projections], 1)
        bias = np.concatenate([weights[part + ".bias"] for part in projections])
        inputs = [x, constant(layer + "qkv", stacked), constant(layer + "qkv_bias", bias), "lengths"]
        y = node("Attention", inputs, layer + "context", "com.microsoft", num_heads=heads)
        y = node("MatMul", [y, matrix(layer + "attention.output.dense")], layer + "attended")
        x = norm(x, y, layer + "attention.output.dense.bias", layer + "attention.output.LayerNorm", layer + "middle")
        y = node("MatMul", [x, matrix(layer + "intermediate.dense")], layer + "inner")
        y = node("BiasGelu", [y, weight(layer + "intermediate.dense.bias")], layer + "activated", "com.microsoft")
        y = node("MatMul", [y, matrix(layer + "output.dense")], layer + "outer")
        x = norm(x, y, layer + "output.dense.bias", layer + "output.LayerNorm", layer + "end")

    graph = helper.make_graph(
        nodes,
        "bert",
        [
            helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "length"]),
            helper.make_tensor_value_info("lengths", TensorProto.INT32, ["batch"]),
        ],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, ["batch", "length", config["hidden_size"]])],
        list(initializers.values()),
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def encode(ids, lengths):
        (hidden,) = session.run(None, {"ids": ids, "lengths": lengths})
        mask = np.arange(ids.shape[1])[None, :] < lengths[:, None]
        mean = (hidden * mask[..., None]).sum(1) / lengths[:, None]
        return mean / np.linalg.norm(mean, axis=1, keepdims=True)

    return encode


def _read_safetensors(path):
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:start]).items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            begin, end = entry["data_offsets"]
            tensors[name] = np.frombuffer(data, "<f4", (end - begin) // 4, start + begin).reshape(entry["shape"])
    return tensors


makers = {"PyTorch": make_torch, "ONNX Runtime": make_onnx_runtime}
