"""Runs the polyhead command: test_command_line.py PATH_TO_POLYHEAD [unittest's arguments]."""

import json
import math
import os
import subprocess
import unittest

import formula
import harness
from files import read_npy, write_npy, write_safetensors
from harness import CommandTest, flat


class UsageTest(CommandTest):
    def test_help_shows_examples(self):
        for command in ([], ["info"], ["run", "attention"], ["run", "layer"], ["bench"]):
            text = self.succeed(*command, "--help")
            self.assertIn("Examples:", text)
            self.assertIn("polyhead " + " ".join(command), text)

    def test_version(self):
        self.assertRegex(self.succeed("--version"), r"\Apolyhead \d+\.\d+\.\d+\n\Z")

    @unittest.skipUnless(os.path.exists("/dev/full"), "there is no /dev/full")
    def test_output_that_nobody_can_read_is_a_failure(self):
        for arguments in (["info"], ["--help"], ["--version"], ["bench", "--list"], ["bench", "tiny", "--min-time", "0.01", "--json", "-"]):
            with open("/dev/full", "w") as full:
                done = subprocess.run([harness.COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
            self.assertEqual(done.returncode, 1, arguments)
            self.assertRegex(done.stderr, r"\Apolyhead: [^\n]+\n\Z")

    def test_wrong_command_lines(self):
        for arguments in (
            [],
            ["walk"],
            ["run"],
            ["info", "--colour"],
            ["info", "--threads", "-1"],
            ["info", "--threads", "many"],
            ["run", "attention", "--query", "q.npy"],
            ["run", "layer", "--heads", "0"],
            ["bench"],
        ):
            self.refuse(2, *arguments, says="--help")

    def test_unknown_instruction_set(self):
        self.refuse(2, "info", "--isa", "mmx", says="avx2")


class InfoTest(CommandTest):
    def test_names_what_serves(self):
        text = self.succeed("info", "--threads", "1")
        for line in ("CPU", "caches", "threads   1", "available", "chosen"):
            self.assertIn(line, text)

    def test_json(self):
        info = json.loads(self.succeed("info", "--json"))
        self.assertIn(info["isa"]["chosen"], info["isa"]["available"])
        self.assertIn("reference", info["isa"]["available"])
        self.assertTrue(set(info["isa"]["available"]) <= set(info["isa"]["built"]))
        self.assertGreaterEqual(info["threads"], 1)
        kinds = {kernel["kind"] for kernel in info["kernels"] if kernel["isa"] == "reference"}
        self.assertTrue({"attention_f32", "attention_bf16", "decode_f16"} <= kinds)
        self.assertIn("gemm_f32", kinds)

    def test_instruction_set_can_be_forced(self):
        for isa in json.loads(self.succeed("info", "--json"))["isa"]["available"]:
            self.assertEqual(json.loads(self.succeed("info", "--json", "--isa", isa))["isa"]["chosen"], isa)
            self.assertEqual(json.loads(self.succeed("info", "--json", POLYHEAD_ISA=isa))["isa"]["chosen"], isa)

    def test_variable_with_an_unknown_name(self):
        self.refuse(1, "info", POLYHEAD_ISA="mmx", says="mmx")


class RunAttentionTest(CommandTest):
    def attention(self, shape, options=(), lse=False, isa=None, descr="<f4", **definition):
        b, h, g, t, s, d, e = shape
        query_path, query = self.array("q.npy", b, h, t, d, descr=descr)
        key_path, key = self.array("k.npy", b, g, s, d, descr=descr)
        value_path, value = self.array("v.npy", b, g, s, e, descr=descr)
        arguments = [
            "run",
            "attention",
            "--query",
            query_path,
            "--key",
            key_path,
            "--value",
            value_path,
            "--out",
            self.path("o.npy"),
            *options,
        ]
        if lse:
            arguments += ["--lse", self.path("l.npy")]
        if isa:
            arguments += ["--isa", isa]
        text = self.succeed(*arguments)
        half = descr == "<f2"
        self.assertIn(f"{'f16' if half else 'f32'}[{b}, {h}, {t}, {e}]", text)
        out, expected_lse = formula.attention(query, key, value, **definition)
        self.assertEqual(read_npy(self.path("o.npy"))[0], [b, h, t, e])
        self.assert_close(self.path("o.npy"), out, max(map(abs, flat(value))) * 2**-10 if half else 2e-5)
        if lse:
            self.assert_close(self.path("l.npy"), expected_lse)
        return out

    def test_plain(self):
        self.attention((2, 3, 3, 5, 7, 16, 16), lse=True)

    def test_float16(self):
        self.attention((2, 4, 2, 5, 7, 16, 12), lse=True, descr="<f2")
        self.array("k.npy", 2, 2, 7, 16)
        self.refuse(1, "run", "attention", *self.inputs(), says="key is f32[2, 2, 7, 16], expected f16[2, 2, any, 16]")

    def test_every_instruction_set(self):
        for isa in json.loads(self.succeed("info", "--json"))["isa"]["available"]:
            with self.subTest(isa=isa):
                self.attention((1, 2, 1, 19, 37, 20, 12), isa=isa)

    def test_causal_alignments(self):
        self.attention((1, 2, 2, 4, 9, 8, 8), ["--causal", "top-left"], allowed=lambda b, h, t, s: s <= t)
        self.attention((1, 4, 2, 4, 9, 8, 8), ["--causal", "bottom-right"], allowed=lambda b, h, t, s: s <= t + 5)

    def test_window(self):
        self.attention(
            (1, 2, 2, 9, 9, 8, 8), ["--causal", "top-left", "--window", "2,0"], allowed=lambda b, h, t, s: t - 2 <= s <= t
        )
        self.attention((1, 2, 2, 9, 9, 8, 8), ["--window", "-1,1"], allowed=lambda b, h, t, s: s <= t + 1)
        self.attention(
            (1, 2, 2, 9, 9, 8, 8),
            ["--causal", "top-left", "--window", "2,0,3"],
            allowed=lambda b, h, t, s: s <= t and (s < 3 or t - 2 <= s),
        )

    def test_key_lengths_and_a_row_without_keys(self):
        write_npy(self.path("n.npy"), [3], [6, 0, 2], "<i8")
        lengths = [6, 0, 2]
        out = self.attention(
            (3, 2, 2, 3, 6, 8, 8), ["--key-lengths", self.path("n.npy")], lse=True, allowed=lambda b, h, t, s: s < lengths[b]
        )
        self.assertEqual(set(flat(out[1])), {0.0})

    def test_sizes_of_zero(self):
        for b, t, s in ((0, 3, 4), (2, 0, 4), (2, 3, 0)):
            with self.subTest(batch=b, queries=t, keys=s):
                self.array("q.npy", b, 4, t, 8)
                self.array("k.npy", b, 2, s, 8)
                self.array("v.npy", b, 2, s, 6)
                text = self.succeed("run", "attention", *self.inputs(), "--causal", "bottom-right", "--lse", self.path("l.npy"))
                self.assertIn(f"f32[{b}, 4, {t}, 6]", text)
                self.assertEqual(read_npy(self.path("o.npy")), ([b, 4, t, 6], [0.0] * (b * 4 * t * 6)))
                self.assertEqual(read_npy(self.path("l.npy")), ([b, 4, t], [-math.inf] * (b * 4 * t)))

    def test_boolean_mask_and_bias(self):
        mask = [self.random.random() < 0.6 for _ in range(4 * 6)]
        write_npy(self.path("m.npy"), [4, 6], mask, "|b1")
        bias_path, bias = self.array("b.npy", 2, 1, 4, 6)
        self.attention(
            (2, 2, 2, 4, 6, 8, 8),
            ["--mask", self.path("m.npy"), "--bias", bias_path],
            allowed=lambda b, h, t, s: mask[t * 6 + s],
            bias=lambda b, h, t, s: bias[b][0][t][s],
        )

    def test_scale(self):
        self.attention((1, 1, 1, 3, 5, 8, 8), ["--scale", "-0.5"], scale=-0.5)

    def test_explain_tells_the_kernel(self):
        for name in "qkv":
            self.array(name + ".npy", 1, 1, 2, 8)
        text = self.succeed("run", "attention", "--explain", *self.inputs())
        self.assertIn("_f32_", text)
        self.assertIn("precision    strict", text)
        text = self.succeed("run", "attention", "--explain", "--precision", "fast", *self.inputs())
        self.assertIn("precision    fast", text)

    def inputs(self):
        return [
            "--query",
            self.path("q.npy"),
            "--key",
            self.path("k.npy"),
            "--value",
            self.path("v.npy"),
            "--out",
            self.path("o.npy"),
        ]

    def test_wrong_files(self):
        self.refuse(1, "run", "attention", *self.inputs(), says="q.npy")
        self.array("q.npy", 1, 2, 3, 8)
        self.array("v.npy", 1, 2, 4, 8)
        write_npy(self.path("k.npy"), [1, 2, 4, 8], [0.0] * 64, "<f8")
        self.refuse(1, "run", "attention", *self.inputs(), says="k.npy: holds f64[1, 2, 4, 8], expected f32 or f16")
        self.array("k.npy", 2, 4, 8)
        self.refuse(1, "run", "attention", *self.inputs(), says="4 dimensions")
        self.array("k.npy", 1, 2, 4, 6)
        self.refuse(1, "run", "attention", *self.inputs(), says="key")
        with open(self.path("k.npy"), "wb") as file:
            file.write(b"nonsense")
        self.refuse(1, "run", "attention", *self.inputs(), says="k.npy")
        self.array("k.npy", 1, 2, 4, 8)
        self.refuse(1, "run", "attention", *self.inputs()[:-1], self.path("missing/o.npy"), says="o.npy")

    def test_wrong_options(self):
        for name in "qkv":
            self.array(name + ".npy", 1, 2, 4, 8)
        self.refuse(2, "run", "attention", *self.inputs(), "--causal", "diagonal", says="top-left")
        self.refuse(2, "run", "attention", *self.inputs(), "--precision", "exact", says="strict nor fast")
        self.refuse(2, "run", "attention", *self.inputs(), "--window", "3", says="LEFT,RIGHT")
        for window in ("-2,0", "1,0,-1", "1,0,", "1,,0", "1,0,2,3", ",1", "1;0"):
            self.refuse(2, "run", "attention", *self.inputs(), "--window", window, says="'%s' is not LEFT,RIGHT" % window)
        self.refuse(2, "run", "attention", *self.inputs(), "--scale", "much")
        self.assertFalse(os.path.exists(self.path("o.npy")))


class RunLayerTest(CommandTest):
    def weights(self, width, heads, kv_heads, key_width=None):
        dim = width // heads
        key_width = key_width or width
        shapes = {
            "q": (width, width),
            "k": (kv_heads * dim, key_width),
            "v": (kv_heads * dim, key_width),
            "out": (width, width),
        }
        tensors = {}
        for name, shape in shapes.items():
            _, tensors[name] = self.array("weight.npy", *shape)
            _, tensors[name + "_bias"] = self.array("weight.npy", shape[0])
        return tensors

    def store(self, tensors):
        write_safetensors(self.path("w.safetensors"), {name: (self.shape(tree), flat(tree)) for name, tree in tensors.items()})
        return self.path("w.safetensors")

    def shape(self, tree):
        return [len(tree), *self.shape(tree[0])] if isinstance(tree, list) else []

    def expect(self, x, source, w, heads, kv_heads, **definition):
        """x, source: [B][L][width]."""
        query = [formula.split_heads(formula.affine(item, w["q"], w.get("q_bias")), heads) for item in x]
        key = [formula.split_heads(formula.affine(item, w["k"], w.get("k_bias")), kv_heads) for item in source]
        value = [formula.split_heads(formula.affine(item, w["v"], w.get("v_bias")), kv_heads) for item in source]
        context, _ = formula.attention(query, key, value, **definition)
        return [formula.affine(formula.join_heads(item), w["out"], w.get("out_bias")) for item in context]

    def test_stacked_projection(self):
        w = self.weights(16, 2, 2)
        file = self.store(
            {
                "attn.in_proj_weight": w["q"] + w["k"] + w["v"],
                "attn.in_proj_bias": w["q_bias"] + w["k_bias"] + w["v_bias"],
                "attn.out_proj.weight": w["out"],
                "attn.out_proj.bias": w["out_bias"],
            }
        )
        path, x = self.array("x.npy", 2, 5, 16)
        options = ["run", "layer", "--weights", file, "--heads", 2, "--input", path, "--out", self.path("y.npy")]
        self.succeed(*options, "--prefix", "attn.", "--causal", "top-left")
        self.assert_close(self.path("y.npy"), self.expect(x, x, w, 2, 2, allowed=lambda b, h, t, s: s <= t), 2e-4)
        self.refuse(1, *options, says="--prefix")

    def test_weight_types(self):
        # Every type holds 0 and one number besides.
        w = {name: [[(3 * i + j) % 4 // 3 / 4 for j in range(16)] for i in range(16)] for name in ("q", "k", "v", "out")}
        file = self.store({"in_proj_weight": w["q"] + w["k"] + w["v"], "out_proj.weight": w["out"]})
        path, x = self.array("x.npy", 1, 5, 16)
        options = ["run", "layer", "--weights", file, "--heads", 2, "--input", path, "--out", self.path("y.npy")]
        for kind in ("f32", "bf16", "f16", "int8", "int4"):
            self.succeed(*options, "--weight-type", kind)
            self.assert_close(self.path("y.npy"), self.expect(x, x, w, 2, 2), 2e-4)
        for kind in ("int8_dynamic", "bf16_dynamic"):  # rounded inputs besides
            self.succeed(*options, "--weight-type", kind)
            self.assert_close(self.path("y.npy"), self.expect(x, x, w, 2, 2), 0.1)
        self.refuse(2, *options, "--weight-type", "int9", says="none of f32, bf16, f16, int8, int4, int8_dynamic and bf16_dynamic")

    def test_separate_projections_of_grouped_heads_without_biases(self):
        w = {name: tree for name, tree in self.weights(16, 4, 2).items() if not name.endswith("bias")}
        file = self.store(
            {"q_proj.weight": w["q"], "k_proj.weight": w["k"], "v_proj.weight": w["v"], "o_proj.weight": w["out"]}
        )
        path, x = self.array("x.npy", 6, 16)
        self.succeed("run", "layer", "--weights", file, "--heads", 4, "--input", path, "--out", self.path("y.npy"))
        self.assertEqual(read_npy(self.path("y.npy"))[0], [6, 16])
        self.assert_close(self.path("y.npy"), self.expect([x], [x], w, 4, 2), 2e-4)

    def test_cross_attention_from_another_width(self):
        w = self.weights(16, 2, 2, key_width=10)
        file = self.store(
            {
                "q_proj_weight": w["q"],
                "k_proj_weight": w["k"],
                "v_proj_weight": w["v"],
                "out_proj.weight": w["out"],
                "in_proj_bias": w["q_bias"] + w["k_bias"] + w["v_bias"],
                "out_proj.bias": w["out_bias"],
            }
        )
        path, x = self.array("x.npy", 2, 3, 16)
        memory_path, memory = self.array("memory.npy", 2, 7, 10)
        write_npy(self.path("n.npy"), [2], [7, 4], "<i8")
        self.succeed(
            "run",
            "layer",
            "--weights",
            file,
            "--heads",
            2,
            "--input",
            path,
            "--key-input",
            memory_path,
            "--key-lengths",
            self.path("n.npy"),
            "--out",
            self.path("y.npy"),
        )
        self.assert_close(self.path("y.npy"), self.expect(x, memory, w, 2, 2, allowed=lambda b, h, t, s: s < [7, 4][b]), 2e-4)

    def test_wrong_files(self):
        w = self.weights(16, 2, 2)
        path, _ = self.array("x.npy", 1, 5, 16)
        options = ["--input", path, "--out", self.path("y.npy")]
        self.refuse(
            1, "run", "layer", "--weights", self.path("none.safetensors"), "--heads", 2, *options, says="none.safetensors"
        )
        file = self.store({"in_proj_weight": w["q"] + w["k"] + w["v"], "out_proj.weight": w["out"]})
        self.refuse(1, "run", "layer", "--weights", file, "--heads", 3, *options, says="heads")
        file = self.store({"in_proj_weight": w["q"] + w["k"] + w["v"]})
        self.refuse(1, "run", "layer", "--weights", file, "--heads", 2, *options, says="out_proj.weight")
        with open(file, "r+b") as stream:
            stream.truncate(40)
        self.refuse(1, "run", "layer", "--weights", file, "--heads", 2, *options, says="w.safetensors")


if __name__ == "__main__":
    harness.main(__doc__)
