"""The error of the Raft simulation; apart, because mypyc compiles no class whose base is a builtin error."""


class Violation(AssertionError):
    """A promise of Raft was broken."""
