"""The attention layer (projections, attention, output projection) and a short BERT, both with random weights in float32."""

import json
import os
import struct
import tempfile
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

import problem

BLOCKS = 2  # of the encoder: time grows in proportion to blocks
VOCABULARY = 1000
EPSILON = 1e-12
LARGEST_ERROR = 1e-4


@dataclass
class Case:
    name: str
    batch: int
    length: int
    d_model: int
    heads: int

    def layer_flops(self):
        return 2.0 * self.batch * self.length * self.d_model * (4 * self.d_model + 2 * self.length)

    def encoder_flops(self):
        return BLOCKS * 2.0 * self.batch * self.length * self.d_model * (12 * self.d_model + 2 * self.length)

    def split(self, x):
        return x.view(self.batch, self.length, self.heads, -1).transpose(1, 2)

    def join(self, x):
        return x.transpose(1, 2).reshape(self.batch, self.length, self.d_model)


def random_layer(width):
    matrix = lambda rows, columns: torch.randn(rows, columns) * columns**-0.5
    return {
        "q": matrix(width, width),
        "k": matrix(width, width),
        "v": matrix(width, width),
        "o": matrix(width, width),
        **{name + "_bias": torch.randn(width) * 0.1 for name in "qkvo"},
    }


def random_block(width):
    return {
        **random_layer(width),
        "in": torch.randn(4 * width, width) * width**-0.5,
        "in_bias": torch.randn(4 * width) * 0.1,
        "out": torch.randn(width, 4 * width) * (4 * width) ** -0.5,
        "out_bias": torch.randn(width) * 0.1,
        "norm1": 1 + 0.1 * torch.randn(width),
        "norm1_bias": 0.1 * torch.randn(width),
        "norm2": 1 + 0.1 * torch.randn(width),
        "norm2_bias": 0.1 * torch.randn(width),
    }


def stacked(w):
    return torch.cat([w["q"], w["k"], w["v"]]), torch.cat([w["q_bias"], w["k_bias"], w["v_bias"]])


def attention_layer(case, x, w):
    """By torch's functions, in the type of x: the reference in float64, the engine `torch-sdpa` in float32."""
    query, key, value = F.linear(x, w["qkv"], w["qkv_bias"]).chunk(3, -1)
    context = F.scaled_dot_product_attention(case.split(query), case.split(key), case.split(value))
    return F.linear(case.join(context), w["o"], w["o_bias"])


def encoder_block(case, x, w):
    size = (case.d_model,)
    x = F.layer_norm(x + attention_layer(case, x, w), size, w["norm1"], w["norm1_bias"], EPSILON)
    hidden = F.linear(F.gelu(F.linear(x, w["in"], w["in_bias"])), w["out"], w["out_bias"])
    return F.layer_norm(x + hidden, size, w["norm2"], w["norm2_bias"], EPSILON)


def with_stacked(w, dtype):
    weight, bias = stacked(w)
    return {name: tensor.to(dtype) for name, tensor in {**w, "qkv": weight, "qkv_bias": bias}.items()}


class Problem:
    largest_error = LARGEST_ERROR

    def engine(self, name, threads):
        make = getattr(self, name, None)
        made = make(threads) if make else {}
        return {name: functions if isinstance(functions, tuple) else (functions, functions) for name, functions in made.items()}

    def error_of(self, out):
        return (torch.as_tensor(out).double() - self.expected).abs().max().item()

    def measure(self, *arguments):
        return problem.measure(self, *arguments)


class LayerProblem(Problem):
    part = "layer"

    def __init__(self, workload):
        torch.manual_seed(0)
        case = Case(**workload)
        self.case, self.name, self.w = case, case.name, random_layer(case.d_model)
        self.x = torch.randn(case.batch, case.length, case.d_model)
        self.flops = case.layer_flops()
        self.expected = attention_layer(case, self.x.double(), with_stacked(self.w, torch.float64))

    def polyhead(self, threads):
        import polyhead

        polyhead.set_num_threads(threads)
        w, out = self.w, torch.empty_like(self.x)
        layer = polyhead.MultiHeadAttention(
            w["q"],
            w["k"],
            w["v"],
            w["o"],
            self.case.heads,
            query_bias=w["q_bias"],
            key_bias=w["k_bias"],
            value_bias=w["v_bias"],
            output_bias=w["o_bias"],
        )
        return {"polyhead": lambda: layer(self.x, out=out)}

    def torch(self, threads):
        w = with_stacked(self.w, torch.float32)
        module = torch.nn.MultiheadAttention(self.case.d_model, self.case.heads, batch_first=True).eval()
        module.load_state_dict(
            {"in_proj_weight": w["qkv"], "in_proj_bias": w["qkv_bias"], "out_proj.weight": w["o"], "out_proj.bias": w["o_bias"]}
        )
        return {
            "torch-module": lambda: module(self.x, self.x, self.x, need_weights=False)[0],
            "torch-sdpa": lambda: attention_layer(self.case, self.x, w),
        }

    def onnxruntime(self, threads):
        graph = OnnxEncoder(self.case)
        out = graph.attention("x", self.w, "")
        return {"onnxruntime": graph.session(out, {"x": self.x.numpy()}, threads)}

    def openvino(self, threads):
        from openvino import Type, opset13

        import openvino_graphs

        parameter = opset13.parameter(list(self.x.shape), Type.f32)
        run, result = openvino_graphs.compiled(openvino_attention(self.case, parameter, self.w), [parameter], [self.x], threads)
        return {"openvino": (run, result)}


class EncoderProblem(Problem):
    part = "encoder"

    def __init__(self, workload):
        torch.manual_seed(0)
        case = Case(**workload)
        width = case.d_model
        self.case, self.name = case, case.name
        self.blocks = [random_block(width) for _ in range(BLOCKS)]
        self.embeddings = {
            "word": torch.randn(VOCABULARY, width),
            "position": torch.randn(512, width),
            "type": torch.randn(2, width),
            "norm": 1 + 0.1 * torch.randn(width),
            "norm_bias": 0.1 * torch.randn(width),
        }
        self.ids = torch.randint(0, VOCABULARY, (case.batch, case.length))
        self.flops = case.encoder_flops()
        self.expected = self.forward(torch.float64)

    def embed(self, e):
        x = F.embedding(self.ids, e["word"]) + e["position"][: self.case.length] + e["type"][0]
        return F.layer_norm(x, (self.case.d_model,), e["norm"], e["norm_bias"], EPSILON)

    def forward(self, dtype, blocks=None, embeddings=None):
        x = self.embed(embeddings or {name: tensor.to(dtype) for name, tensor in self.embeddings.items()})
        for block in blocks or [with_stacked(w, dtype) for w in self.blocks]:
            x = encoder_block(self.case, x, block)
        return x

    def polyhead(self, threads):
        import polyhead

        polyhead.set_num_threads(threads)
        with tempfile.TemporaryDirectory() as folder:
            write_bert(folder, self)
            model = polyhead.BertEncoder.load(folder)
        out = torch.empty_like(self.expected, dtype=torch.float32)
        return {"polyhead": lambda: model.token_embeddings(self.ids, out=out)}

    def torch(self, threads):
        width = self.case.d_model
        blocks = [with_stacked(w, torch.float32) for w in self.blocks]
        modules = []
        for w in blocks:
            module = torch.nn.TransformerEncoderLayer(
                width, self.case.heads, 4 * width, 0.0, "gelu", EPSILON, batch_first=True
            ).eval()
            module.load_state_dict(
                {
                    "self_attn.in_proj_weight": w["qkv"],
                    "self_attn.in_proj_bias": w["qkv_bias"],
                    "self_attn.out_proj.weight": w["o"],
                    "self_attn.out_proj.bias": w["o_bias"],
                    "linear1.weight": w["in"],
                    "linear1.bias": w["in_bias"],
                    "linear2.weight": w["out"],
                    "linear2.bias": w["out_bias"],
                    "norm1.weight": w["norm1"],
                    "norm1.bias": w["norm1_bias"],
                    "norm2.weight": w["norm2"],
                    "norm2.bias": w["norm2_bias"],
                }
            )
            modules.append(module)

        def by_modules():
            x = self.embed(self.embeddings)
            for module in modules:
                x = module(x)
            return x

        return {"torch-module": by_modules, "torch-sdpa": lambda: self.forward(torch.float32, blocks, self.embeddings)}

    def onnxruntime(self, threads):
        graph = OnnxEncoder(self.case)
        x = graph.embed(self.embeddings, self.ids.shape)
        for index, w in enumerate(self.blocks):
            x = graph.block(x, w, f"{index}.")
        return {"onnxruntime": graph.session(x, {"ids": self.ids.numpy()}, threads)}

    def openvino(self, threads):
        from openvino import Type, opset13 as op

        import openvino_graphs

        e, ids = self.embeddings, op.parameter(list(self.ids.shape), Type.i64)
        x = op.gather(op.constant(e["word"].numpy()), ids, op.constant(np.int64(0)))
        x = openvino_norm(
            op.add(x, op.constant((e["position"][: self.case.length] + e["type"][0]).numpy())), e["norm"], e["norm_bias"]
        )
        for w in self.blocks:
            x = openvino_norm(op.add(x, openvino_attention(self.case, x, w)), w["norm1"], w["norm1_bias"])
            hidden = op.gelu(openvino_linear(x, w["in"], w["in_bias"]), "erf")
            x = openvino_norm(op.add(x, openvino_linear(hidden, w["out"], w["out_bias"])), w["norm2"], w["norm2_bias"])
        run, result = openvino_graphs.compiled(x, [ids], [self.ids], threads)
        return {"openvino": (run, result)}


class OnnxEncoder:
    """A graph of ONNX Runtime's own fused operators, the fastest form that its model optimiser makes of a BERT."""

    def __init__(self, case):
        self.case, self.nodes, self.initializers, self.inputs = case, [], [], []

    def constant(self, name, tensor):
        import onnx_graphs

        self.initializers.append(onnx_graphs.tensor(name, tensor.numpy()))
        return name

    def node(self, operator, inputs, output, **attributes):
        from onnx import helper

        self.nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    def linear(self, x, weight, bias, name):
        product = self.node("MatMul", [x, self.constant(name + "weight", weight.T)], name + "product")
        return self.node("Add", [product, self.constant(name + "bias", bias)], name + "sum")

    def attention(self, x, w, name):
        weight, bias = stacked(w)
        context = self.node(
            "Attention",
            [x, self.constant(name + "qkv", weight.T), self.constant(name + "qkv_bias", bias)],
            name + "context",
            domain="com.microsoft",
            num_heads=self.case.heads,
        )
        return self.linear(context, w["o"], w["o_bias"], name + "o.")

    def norm(self, x, skip, gamma, beta, name):
        return self.node(
            "SkipLayerNormalization",
            [x, skip, self.constant(name + "gamma", gamma), self.constant(name + "beta", beta)],
            name + "normal",
            domain="com.microsoft",
            epsilon=EPSILON,
        )

    def block(self, x, w, name):
        x = self.norm(x, self.attention(x, w, name), w["norm1"], w["norm1_bias"], name + "norm1.")
        product = self.node("MatMul", [x, self.constant(name + "in", w["in"].T)], name + "in.product")
        hidden = self.node(
            "BiasGelu", [product, self.constant(name + "in_bias", w["in_bias"])], name + "hidden", domain="com.microsoft"
        )
        return self.norm(
            x, self.linear(hidden, w["out"], w["out_bias"], name + "out."), w["norm2"], w["norm2_bias"], name + "norm2."
        )

    def embed(self, e, shape):
        from onnx import TensorProto, helper

        self.inputs.append(helper.make_tensor_value_info("ids", TensorProto.INT64, list(shape)))
        words = self.node("Gather", [self.constant("word", e["word"]), "ids"], "words")
        total = self.node("Add", [words, self.constant("position", e["position"][: shape[1]] + e["type"][0])], "embedded")
        return self.node(
            "LayerNormalization",
            [total, self.constant("gamma", e["norm"]), self.constant("beta", e["norm_bias"])],
            "embedding",
            epsilon=EPSILON,
        )

    def session(self, output, feeds, threads):
        from onnx import TensorProto, helper

        import onnx_graphs

        inputs = self.inputs or [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, list(x.shape)) for name, x in feeds.items()
        ]
        return onnx_graphs.session(self.nodes, inputs, [output], self.initializers, feeds, threads)


def openvino_linear(x, weight, bias):
    from openvino import opset13 as op

    return op.add(op.matmul(x, op.constant(weight.numpy()), False, True), op.constant(bias.numpy()))


def openvino_norm(x, gamma, beta):
    from openvino import opset13 as op

    normal = op.mvn(x, op.constant(np.array([-1], np.int64)), True, EPSILON, "inside_sqrt")
    return op.add(op.multiply(normal, op.constant(gamma.numpy())), op.constant(beta.numpy()))


def openvino_attention(case, x, w):
    from openvino import opset13 as op

    numbers = lambda *values: op.constant(np.array(values, np.int64))
    weight, bias = stacked(w)
    heads = op.reshape(
        openvino_linear(x, weight, bias), numbers(case.batch, case.length, 3, case.heads, case.d_model // case.heads), False
    )
    parts = op.split(op.transpose(heads, numbers(2, 0, 3, 1, 4)), op.constant(np.int64(0)), 3)
    query, key, value = (op.squeeze(part, numbers(0)) for part in parts.outputs())
    context = op.transpose(op.scaled_dot_product_attention(query, key, value, causal=False), numbers(0, 2, 1, 3))
    return openvino_linear(op.reshape(context, numbers(case.batch, case.length, case.d_model), False), w["o"], w["o_bias"])


def write_bert(folder, encoder):
    """A model folder with Hugging Face's names, as BertEncoder.load expects it."""
    case, e = encoder.case, encoder.embeddings
    tensors = {
        "embeddings.word_embeddings.weight": e["word"],
        "embeddings.position_embeddings.weight": e["position"],
        "embeddings.token_type_embeddings.weight": e["type"],
        "embeddings.LayerNorm.weight": e["norm"],
        "embeddings.LayerNorm.bias": e["norm_bias"],
    }
    names = {
        "q": "attention.self.query",
        "k": "attention.self.key",
        "v": "attention.self.value",
        "o": "attention.output.dense",
        "in": "intermediate.dense",
        "out": "output.dense",
        "norm1": "attention.output.LayerNorm",
        "norm2": "output.LayerNorm",
    }
    for index, w in enumerate(encoder.blocks):
        for short, name in names.items():
            tensors[f"encoder.layer.{index}.{name}.weight"] = w[short]
            tensors[f"encoder.layer.{index}.{name}.bias"] = w[short + "_bias"]
    header, offset = {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [offset, offset + tensor.numel() * 4]}
        offset += tensor.numel() * 4
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.contiguous().numpy().tobytes())
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(
            {
                "model_type": "bert",
                "hidden_size": case.d_model,
                "num_hidden_layers": BLOCKS,
                "num_attention_heads": case.heads,
                "intermediate_size": 4 * case.d_model,
                "vocab_size": VOCABULARY,
                "max_position_embeddings": 512,
                "type_vocab_size": 2,
                "hidden_act": "gelu",
                "layer_norm_eps": EPSILON,
            },
            file,
        )


PROBLEMS = {"layer": LayerProblem, "encoder": EncoderProblem}
