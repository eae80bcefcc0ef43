"""Runs polyhead bench with plugins that misbehave: test_bench_plugins.py PATH_TO_POLYHEAD HOSTILE_PLUGIN MISSING_SYMBOL_PLUGIN
[unittest's arguments]."""

import json
import os
import shutil
import subprocess
import unittest

import harness
from harness import CommandTest, environment_with


class PluginTest(CommandTest):
    def setUp(self):
        super().setUp()
        self.plugin, self.missing_symbol = harness.PARAMETERS

    def bench(self, wish, *arguments, workloads=("tiny",), plugins=None):
        """Runs it with the hostile plugin; returns the process and, where there are some, the results by engine."""
        if plugins is None:
            plugins = [self.plugin]
        options = [option for plugin in plugins for option in ("--plugin", plugin)]
        path = self.path("r.json")
        result = harness.run("bench", *workloads, "--threads", 1, "--min-time", "0.02", "--json", path, *options, *arguments,
                             POLYHEAD_HOSTILE=wish)
        entries = {}
        if os.path.exists(path):
            with open(path) as file:
                document = json.load(file, parse_constant=lambda name: self.fail(f"{name} in JSON"))
            entries = {tuple(entry["name"].split("/")[1:3]): entry for entry in document["benchmarks"]}
            self.context = document["context"]
            os.remove(path)
        return result, entries

    def fails(self, wish, *says, **options):
        """The whole command fails with one line of error."""
        result, entries = self.bench(wish, **options)
        self.assertEqual(result.returncode, 1, (wish, result))
        self.assertRegex(result.stderr, r"\Apolyhead: [^\n]+\n\Z", wish)
        for text in says:
            self.assertIn(text, result.stderr, wish)
        return result, entries

    def is_wrong(self, wish, *says, **options):
        """The engine is reported as wrong and not timed; ours is timed all the same."""
        result, entries = self.bench(wish, **options)
        self.assertEqual(result.returncode, 1, (wish, result))
        self.assertEqual(result.stderr, "polyhead: wrong or failed: tiny by hostile\n", wish)
        entry = entries["tiny", "hostile"]
        self.assertTrue(entry["error_occurred"], wish)
        self.assertNotIn("real_time", entry)
        line = next(line for line in result.stdout.splitlines() if "hostile" in line and line.startswith("tiny"))
        self.assertIn("not timed: ", line)
        for text in says:
            self.assertIn(text, entry["error_message"], wish)
            self.assertIn(text, line)
        ours = [entry for (_, engine), entry in entries.items() if engine != "hostile"]
        self.assertEqual(len(ours), 1)
        self.assertGreater(ours[0]["real_time"], 0, wish)

    def test_a_right_engine_is_timed_beside_ours(self):
        for wish in ("", "run-alone"):
            shape = "b=2,h=6,g=2,t=33,s=65,d=24,e=40"
            result, entries = self.bench(wish, "--shape", shape)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            for workload in ("tiny", shape):
                theirs = entries[workload, "hostile"]
                (ours,) = [entry for (name, engine), entry in entries.items() if name == workload and engine != "hostile"]
                self.assertGreater(theirs["ratio"], 1.5, "float64 one by one is slower than vectors")
                by_times = theirs["real_time"] / ours["real_time"]
                self.assertTrue(by_times / 4 < theirs["ratio"] < by_times * 4, (by_times, theirs["ratio"]))
                self.assertTrue(theirs["ratio_low"] <= theirs["ratio"] <= theirs["ratio_high"], theirs)
                self.assertLess(theirs["error"], 1e-5)
                self.assertGreater(theirs["GFLOP/s"], 0)
            self.assertIn("ratio", result.stdout)
            self.assertIn(self.plugin, self.context["plugin hostile"])

    def test_in_the_current_folder(self):
        shutil.copy(self.plugin, self.path("libmine.so"))
        command = [harness.COMMAND, "bench", "tiny", "--threads", "1", "--min-time", "0.01", "--plugin", "libmine.so"]
        result = subprocess.run(command, cwd=self.folder, env=environment_with({}), capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("hostile", result.stdout)

    def test_layers_are_ours_alone(self):
        result, entries = self.bench("", workloads=["tiny", "layer/minilm-b1-l16"])
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(entries), 3)
        self.refuse(2, "bench", "layer/*", "--plugin", self.plugin, says="none of the workloads is attention")

    def test_libraries_that_are_no_plugins(self):
        self.fails("", "none.so", plugins=[self.path("none.so")])
        with open(self.path("text.so"), "w") as file:
            file.write("not a library")
        self.fails("", "text.so", "cannot be loaded", plugins=[self.path("text.so")])
        self.fails("", "cannot be loaded", plugins=[self.folder])
        self.fails("", "polyhead_bench_test_symbol_that_is_nowhere", plugins=[self.missing_symbol])
        self.fails("", "libm.so.6", "exports no function polyhead_bench_plugin", plugins=["libm.so.6"])

    def test_what_happens_while_it_is_loaded(self):
        self.fails("crash-on-load", self.plugin, "while it is loaded", "segmentation fault")
        self.fails("exit-on-load", self.plugin, "while it is loaded", "exit()")
        self.fails("throw-when-listed", self.plugin, "thrown while listing")
        self.fails("wild-pointer", self.plugin, "segmentation fault")

    def test_engines_that_do_not_fit(self):
        self.fails("no-engine", "has no engine")
        self.fails("newer-version", "version 2", "serves version 1")
        self.fails("small-structure", "struct_size 16")
        self.fails("no-name", "has no name")
        self.fails("name-with-blanks", "'a name of two lines'")
        self.fails("long-name", "1 to 40")
        self.fails("name-of-an-isa", "'avx2'")
        self.fails("no-run", "no function run")
        self.fails("same-name-twice", "'hostile' is there already")
        self.fails("", "'hostile' is there already", plugins=[self.plugin, self.plugin])
        self.fails("endless-engines", "64 engines")

    def test_crashes_name_the_engine(self):
        self.fails("crash-when-asked", self.plugin, "'hostile', asked whether", "segmentation fault")
        for wish, how in (
            ("crash", "segmentation fault"),
            ("crash-in-a-thread", "segmentation fault"),
            ("abort", "aborted"),
            ("overflow-the-stack", "segmentation fault"),
            ("throw-in-a-thread", "aborted"),
            ("exit", "exit()"),
        ):
            result, _ = self.bench(wish)
            self.assertEqual(result.returncode, 1, (wish, result))
            # The C++ library tells of the exception by itself.
            last = result.stderr.splitlines()[-1]
            self.assertRegex(last, r"\Apolyhead: plugin .*, engine 'hostile', running on ", wish)
            self.assertIn(how, last)

        # Here too.
        result, _ = self.bench("throw-on-load")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr.splitlines()[-1], r"\Apolyhead: plugin .*, while it is loaded: crashed \(aborted\)")

    def test_a_crash_leaves_earlier_results(self):
        path = self.path("r.json")
        result = harness.run("bench", "layer/minilm-b1-l16", "tiny", "--threads", 1, "--min-time", "0.01", "--json", path,
                             "--plugin", self.plugin, POLYHEAD_HOSTILE="crash")
        self.assertEqual(result.returncode, 1)
        with open(path) as file:
            self.assertEqual([entry["name"].split("/")[0] for entry in json.load(file)["benchmarks"]], ["layer"])
        self.assertIn("layer/minilm-b1-l16", result.stdout)

    def test_failures_of_an_engine(self):
        self.is_wrong("throw", "threw an exception: out of ideas")
        self.is_wrong("throw-an-int", "threw something")
        self.is_wrong("fail", "the moon is wrong")
        self.is_wrong("fail-without-reason", "gives no reason")
        self.is_wrong("fail-later", "tired")
        self.is_wrong("endless-message", "xxxx")
        self.is_wrong("fail-to-prepare", "preparing", "no licence")

    def test_wrong_results(self):
        self.is_wrong("wrong", "wrong result")
        self.is_wrong("wrong-in-one-element", "wrong result", "element 4097")
        self.is_wrong("nan", "wrong result")
        self.is_wrong("do-nothing", "wrong result")
        self.is_wrong("lazy", "after it was timed", "wrong result")
        self.is_wrong("compute-while-preparing", "wrong result")
        self.is_wrong("keep-the-first-result", "wrong result")

    def test_writing_where_it_should_not(self):
        self.is_wrong("write-before", "outside its output")
        self.is_wrong("write-behind", "outside its output")
        self.is_wrong("write-input", "writes to its inputs")
        self.is_wrong("write-input-while-preparing", "writes to its inputs")

    def test_what_is_not_served_is_no_failure(self):
        for wish, reason in (("refuse", "only on Tuesdays"), ("refuse-without-reason", "gives no reason")):
            result, entries = self.bench(wish)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertIn(f"not served: ", result.stdout)
            self.assertIn(reason, result.stdout)
            self.assertTrue(entries["tiny", "hostile"]["skipped"])
            self.assertIn(reason, entries["tiny", "hostile"]["skip_message"])
            self.assertEqual(len(entries), 2)

    def test_a_fault_at_the_end_costs_no_result(self):
        result, entries = self.bench("throw-at-the-end")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertGreater(entries["tiny", "hostile"]["real_time"], 0)

    def test_what_an_engine_changes_in_its_thread_is_brought_back(self):
        # The engine itself looks, and fails when it finds its change.
        for wish in ("change-modes", "pin-while-preparing"):
            result, entries = self.bench(wish)
            self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)
            self.assertGreater(entries["tiny", "hostile"]["real_time"], 0)


if __name__ == "__main__":
    harness.main(__doc__, parameters=2)
