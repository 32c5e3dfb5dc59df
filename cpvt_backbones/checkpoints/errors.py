"""What goes wrong with checkpoints."""

from .report import ConversionReport


class CheckpointError(RuntimeError, ValueError):
    """A checkpoint that cannot be read, is not recognised, or would leave a part of the trunk random.

    Args:
        message: One line: what is wrong, and with which file or keys.
        report: The whole conversion, where it got that far.
    """

    def __init__(self, message: str, *, report: ConversionReport | None = None) -> None:
        super().__init__(message)
        self.report = report
