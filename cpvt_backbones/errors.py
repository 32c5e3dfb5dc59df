"""Errors that a user can fix: a wrong argument, file or value; anything else is a bug."""


class InputError(ValueError):
    """Raised for a value or file that is not accepted.

    The message has the argument or file, its value and what is accepted. Commands print it without
    a traceback.

    Args:
        message: The message; with an ``argument``, it begins with its name.
        argument: Name of the wrong Python argument. Commands print the option instead.
    """

    def __init__(self, message: str, *, argument: str | None = None) -> None:
        super().__init__(message)
        self.argument = argument


class InputTypeError(InputError, TypeError):
    """Raised for an argument that does not exist, is missing, or has a wrong type."""
