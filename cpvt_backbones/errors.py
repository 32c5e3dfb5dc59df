"""Errors that a user can mend: a wrong argument, file or value. Anything else is a bug."""


class InputError(ValueError):
    """A value or file that is not accepted.

    The message names the argument or file, the value it got and what is accepted. Command lines
    print it without a traceback.

    Args:
        message: The message; with an ``argument``, it begins with its name.
        argument: The Python argument that is wrong. A command line prints its option instead.
    """

    def __init__(self, message: str, *, argument: str | None = None) -> None:
        super().__init__(message)
        self.argument = argument


class InputTypeError(InputError, TypeError):
    """An argument that does not exist, is missing, or has another type than is accepted."""
