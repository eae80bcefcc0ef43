"""What the command's tests share: the command under test, and how to run it."""

import os
import random
import subprocess
import sys
import tempfile
import unittest

from files import read_npy, size_of, write_npy

COMMAND = ""
PARAMETERS = []  # further paths that a file of tests was given


def environment_with(variables):
    """Without our own variables, whatever the machine has them set to."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith("POLYHEAD_")}
    environment.update(variables)
    return environment


def run(*arguments, **variables):
    command = [COMMAND, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment_with(variables), timeout=120)


def nested(shape, values):
    if len(shape) == 1:
        return list(values)
    step = size_of(shape[1:])
    return [nested(shape[1:], values[i * step : (i + 1) * step]) for i in range(shape[0])]


def flat(tree):
    return [leaf for branch in tree for leaf in flat(branch)] if isinstance(tree, list) else [tree]


class CommandTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.random = random.Random(self.id())

    def path(self, name):
        return os.path.join(self.folder, name)

    def array(self, name, *shape, descr="<f4"):
        """Writes a random array; returns its file's path and its values as nested lists, rounded as the file holds them."""
        write_npy(self.path(name), shape, [self.random.gauss(0, 1) for _ in range(size_of(shape))], descr)
        return self.path(name), nested(shape, read_npy(self.path(name))[1])

    def succeed(self, *arguments, **variables):
        result = run(*arguments, **variables)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr, "")
        return result.stdout

    def refuse(self, status, *arguments, says="", **variables):
        result = run(*arguments, **variables)
        self.assertEqual(result.returncode, status, (arguments, result.stdout, result.stderr))
        self.assertRegex(result.stderr, r"\Apolyhead: [^\n]+\n\Z", "an error is one line")
        self.assertIn(says, result.stderr)
        return result

    def assert_close(self, path, expected, tolerance=2e-5):
        _, values = read_npy(path)
        expected = flat(expected)
        self.assertEqual(len(values), len(expected))
        for index, (got, wanted) in enumerate(zip(values, expected)):
            if got != wanted:  # equal infinities are right
                self.assertLessEqual(abs(got - wanted), tolerance, f"element {index}: {got}, expected {wanted}")


def main(usage, parameters=0):
    """Takes the command, and as many further paths, from the command line, into PARAMETERS, and runs the tests."""
    global COMMAND
    if len(sys.argv) < 2 + parameters:
        sys.exit(usage)
    COMMAND = os.path.abspath(sys.argv.pop(1))
    for _ in range(parameters):
        PARAMETERS.append(os.path.abspath(sys.argv.pop(1)))
    unittest.main(module="__main__")
