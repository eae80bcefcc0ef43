"""What goes wrong in a way that the user can do something about."""


class PerfError(Exception):
    """Bad input, or a machine or program that can't give an answer. The message says what was found where, what was expected,
    and is printed as one line; the command ends with status 2."""
