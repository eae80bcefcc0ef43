#!/usr/bin/env python3
"""Tests the checkers themselves on trees and objects with planted faults: check_scripts_test.py COMPILER."""
import pathlib
import platform
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
COMPILER = "c++"


def run(script, *arguments):
    done = subprocess.run([sys.executable, str(SCRIPTS / script), *map(str, arguments)], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


class Folder(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.temporary.name)

    def tearDown(self):
        self.temporary.cleanup()

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def assert_fault(self, result, *parts):
        code, output = result
        self.assertEqual(code, 1, output)
        for part in parts:
            self.assertIn(part, output)

    def assert_clean(self, result):
        self.assertEqual(result[0], 0, result[1])


class Includes(Folder):
    def test_downward_is_clean(self):
        self.write("src/plan/a.cpp", '#include <vector>\n#include "graph/task_graph.hpp"\n#include "simd/contract/gemm.hpp"\n')
        self.write("src/graph/b.cpp", "#include <tbb/flow_graph.h>\n")
        self.write("simd/hwy/c.cc", '#include "simd/shared.hpp"\n#include "simd/contract/gemm.hpp"\n')
        self.assert_clean(run("check-includes", self.root))

    def test_wrong_direction(self):
        for name, include in (
            ("src/graph/a.cpp", '"plan/attention_work.hpp"'),
            ("src/plan/a.cpp", "<oneapi/tbb.h>"),
            ("simd/hwy/a.cc", '"polyhead/tensor.hpp"'),
            ("simd/reference/a.cc", "<hwy/highway.h>"),
            ("simd/contract/a.hpp", '"simd/hwy/compat.h"'),
            ("simd/a.hpp", '"simd/hwy/compat.h"'),
            ("src/plan/a.cpp", '"simd/shared.hpp"'),
            ("include/polyhead/a.hpp", '"dispatch/kernel_table.hpp"'),
            ("include/polyhead/b.hpp", "<nlohmann/json.hpp>"),
            ("src/api/a.cpp", '"../plan/x.hpp"'),
            ("examples/a.cpp", '"api/checks.hpp"'),
        ):
            with self.subTest(name=name, include=include):
                path = self.write(name, f"// first line\n#include {include}\n")
                self.assert_fault(run("check-includes", self.root), f"{name}:2:")
                path.unlink()

    def test_concrete_kernel(self):
        self.write("src/plan/a.cpp", "// N_AVX2::attention is fine in a comment\nauto* k = &simd::N_AVX2::attention_f32;\n")
        self.assert_fault(run("check-includes", self.root), "src/plan/a.cpp: plan names a concrete kernel (N_AVX2::)")

    def test_room_without_rule(self):
        self.write("src/attic/a.cpp", "\n")
        self.assert_fault(run("check-includes", self.root), "the room attic has no rule")

    def test_nothing_to_check(self):
        code, _ = run("check-includes", self.root)
        self.assertEqual(code, 1)


class Text(Folder):
    def test_clean(self):
        self.write("a.cpp", "int a;\n")
        self.assert_clean(run("check-text", self.root))

    def test_faults(self):
        for text, part in (
            ("// TO" + "DO later\n", "a.cpp:1: unfinished work"),
            ("int a; \n", "a.cpp:1: a trailing blank"),
            ("int a;\n// see /ho" + "me/someone\n", "a.cpp:2: a path of one machine"),
            ("int a;", "no end"),
            ("\n" * 1001, "at most 1000"),
        ):
            with self.subTest(part=part):
                self.write("a.cpp", text)
                self.assert_fault(run("check-text", self.root), part)


class Features(Folder):
    TEST = """
const std::vector<Feature>& features() {
  static const std::vector<Feature> all = {
      {"window", [](AttentionSpec& s) { s.mask = Mask::window(3, 9); }},
      {"T5", [](AttentionSpec& s) {}},
      {"T5, both directions", [](AttentionSpec& s) {}},
      {"Swin", [](AttentionSpec&) {}},
  };
  return all;
}

bool exclude_each_other(const Feature& a, const Feature& b) {
  return both({"T5", "T5, both directions"});
}

const char* refusal(const Feature& a, const Feature& b) {
  if (pair({"Swin"},
           {"window"}))
    return "is Swin's beside a window, expected "
           "one of them";
  if (pair({"Swin"}, {"T5", "T5, both directions"})) return "two biases";
  return nullptr;
}
"""
    DOCUMENT = """# What works

## Pairs

| | window | T5 | Swin | layers |
| --- | --- | --- | --- | --- |
| window | - | yes | no [1] | yes |
| T5 | | - | no [2] | no |
| Swin | | | - | no |

1. No order: "is Swin's beside a window,
   expected one of them".
2. "two biases", and no more.

## What else
"""

    def result(self, *changes):
        self.write("tests/property/attention_pairs_test.cpp", self.TEST)
        document = self.DOCUMENT
        for old, new in changes:
            self.assertIn(old, document)
            document = document.replace(old, new)
        self.write("docs/features.md", document)
        return run("check-features", self.root)

    def test_clean(self):
        self.assert_clean(self.result())

    def test_faults(self):
        for old, new, part in (
            ("yes | no [1]", "yes | yes", "window with Swin is 'yes', but the test expects window + Swin to be refused"),
            ("- | yes | no [1]", "- | no [1] | no [1]", "window with T5 is 'no [1]', but window + T5 works in the test"),
            ("no [1]", "no [2]", "its note does not quote what the test expects"),
            ("order: \"is", "order: \"was", "its note does not quote what the test expects"),
            ("| - | no [2]", "| yes | no [2]", "but the test has never both of T5 + T5, both directions"),
            ("- | yes | no [1]", "- | - | no [1]", "but the test does not exclude window + T5"),
            ("- | yes | no [1]", "- | | no [1]", "window with T5 has no cell"),
            ("| T5 | | -", "| T4 | | -", "'T4' is none of the features"),
            ("no [2] | no", "no [2]", "has 4 cells, expected 5"),
            ("2. \"two", "3. \"two", "note 3 is not referred to"),
            ("no [2] | no |", "no [2] | no [4] |", "note 4 is not there"),
            ("## Pairs", "## Twos", "no section Pairs"),
        ):
            with self.subTest(part=part):
                self.assert_fault(self.result((old, new)), part)

    def test_a_test_that_is_not_understood(self):
        self.result()
        for old, new, part in (
            ("if (pair({\"Swin\"}, {", "if (pair(swin, {", "refusal() has lines that are not understood"),
            ("both({\"T5\"", "both({\"T6\"", "'T6' is none of features()"),
            ("& features() {", "& all() {", "no function"),
        ):
            with self.subTest(part=part):
                self.assertIn(old, self.TEST)
                self.write("tests/property/attention_pairs_test.cpp", self.TEST.replace(old, new))
                self.assert_fault(run("check-features", self.root), part)


class TsanReports(Folder):
    RACE = ("WARNING: ThreadSanitizer: data race (pid=7)\n  Write of size 8 at 0x7f by main thread:\n    #0 kernel\n\n"
            "  Previous write of size 8 at 0x7f by thread T1:\n    {}\n\nSUMMARY: ThreadSanitizer: data race in kernel\n")
    LINE = "==================\n"

    def test_none(self):
        self.assert_clean(run("lib/judge-tsan-reports", self.root))

    def test_other_side_lost(self):
        self.write("report.7", self.LINE + self.RACE.format("[failed to restore the stack]") + self.LINE
                   + "ThreadSanitizer: reported 1 warnings\n")
        result = run("lib/judge-tsan-reports", self.root)
        self.assert_clean(result)
        self.assertIn("0 reports; 1 left out", result[1])

    def test_race(self):
        lost, known = self.RACE.format("[failed to restore the stack]"), self.RACE.format("#0 other")
        self.write("report.7", self.LINE + lost + self.LINE + self.LINE + known + self.LINE)
        self.write("report.8", self.LINE + known + self.LINE)
        self.assert_fault(run("lib/judge-tsan-reports", self.root), "#0 other", "2 reports; 1 left out")


@unittest.skipUnless(platform.machine() == "x86_64" and sys.platform == "linux", "plants x86 instructions")
class Symbols(Folder):
    def compile(self, text, *options):
        source = self.write("a.cpp", text)
        output = self.root / "a.o"
        subprocess.run([COMPILER, "-std=c++17", "-O1", "-fPIC", *options, "-c", str(source), "-o", str(output)], check=True)
        return output

    def library(self, text, *options):
        source = self.write("a.cpp", text)
        output = self.root / "libpolyhead.so"
        subprocess.run([COMPILER, "-std=c++17", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", *options, str(source), "-o",
                        str(output)], check=True)
        return output

    WIDE = '__attribute__((noinline, used)) void f() { __asm__ volatile("vxorps %%ymm0, %%ymm0, %%ymm0" ::: "memory"); }\n'
    WIDER = '__attribute__((noinline, used)) void f() { __asm__ volatile("vpxorq %%zmm0, %%zmm0, %%zmm0" ::: "memory"); }\n'

    TILES = '__attribute__((noinline, used)) void f() { __asm__ volatile("tilezero %%tmm3" ::: "memory"); }\n'

    def test_kernels_in_their_namespace(self):
        code = "namespace N_AVX2 { " + self.WIDE + " }"
        self.assert_clean(run("check-symbols", "kernels", "avx2", self.compile(code)))
        code = "namespace N_AVX3 { namespace amx { struct HardwareTiles { void f(); }; " + self.TILES.replace(
            "void f", "void HardwareTiles::f") + " } }"
        self.assert_clean(run("check-symbols", "kernels", "amx", self.compile(code)))

    PAIRS = '__attribute__((noinline, used)) void f() { __asm__ volatile("vdpbf16ps %%zmm1, %%zmm2, %%zmm3" ::: "memory"); }\n'

    def test_bf16_products(self):
        within = "namespace N_AVX3 { namespace avx512_bf16 { struct Avx512PairProducts { void f(); }; " + self.PAIRS.replace(
            "void f", "void Avx512PairProducts::f") + " } }"
        self.assert_clean(run("check-symbols", "kernels", "avx512_bf16", self.compile(within)))
        outside = "namespace N_AVX3 { namespace avx512_bf16 { " + self.PAIRS + " } }"
        self.assert_fault(run("check-symbols", "kernels", "avx512_bf16", self.compile(outside)), "of AVX512_BF16")

    def test_wide_outside(self):
        for code in (self.WIDE, "namespace N_SSE4 { " + self.WIDE + " }", "namespace N_AVX2 { " + self.WIDER + " }"):
            with self.subTest(code=code):
                self.assert_fault(run("check-symbols", "kernels", "avx2", self.compile(code)), "holds ")
        self.assert_fault(run("check-symbols", "kernels", "amx", self.compile("namespace amx { " + self.TILES + " }")), "holds an AMX")

    def test_shared_inline(self):
        code = ("template <class T> __attribute__((noinline)) T twice(T x) { return x + x; }\n"
                "namespace N_AVX2 { int f(int x) { return twice(x); } }\n")
        self.assert_fault(run("check-symbols", "kernels", "avx2", self.compile(code)), "outside N_AVX2", "weak")

    GOOD = ('extern "C" __attribute__((visibility("default"))) void polyhead_run() {}\n'
            'namespace polyhead { __attribute__((visibility("default"))) void run() {} }\n')

    def check_library(self, code, symbols="polyhead_run\n", options=("-Wl,-soname,libpolyhead.so.0.1",)):
        return run("check-symbols", "library", self.library(code, *options), self.write("symbols.txt", symbols))

    def test_library(self):
        self.assert_clean(self.check_library(self.GOOD))

    def test_library_faults(self):
        visible = '__attribute__((visibility("default")))'
        self.assert_fault(self.check_library(self.GOOD, "polyhead_run\npolyhead_gone\n"), "polyhead_gone is gone")
        self.assert_fault(self.check_library(self.GOOD, "# none\n"), "exports polyhead_run, which")
        self.assert_fault(self.check_library(self.GOOD + f"namespace other {{ {visible} void f() {{}} }}"), "_ZN5other1fEv")
        self.assert_fault(self.check_library(self.GOOD, options=()), "no versioned SONAME")
        self.assert_fault(self.check_library(self.GOOD + 'extern "C" void GOMP_barrier();\n'
                                             f"namespace polyhead {{ {visible} void g() {{ GOMP_barrier(); }} }}"), "uses OpenMP")
        tls = '__attribute__((tls_model("initial-exec"))) thread_local int t; int* h() { return &t; }'
        self.assert_fault(self.check_library(self.GOOD + visible + tls.replace(" int* h", f" {visible} int* polyhead_h")),
                          "initial-exec")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        COMPILER = sys.argv.pop(1)
    unittest.main(verbosity=1)
