"""The engine's errors as exceptions: one for each kind, all of them `cowslip.Error`, and each of Python's own family too."""


class Error(Exception):
    """What failed, why, and what to do about it."""

    errno: int | None = None
    """The kernel's error number, if the kernel refused."""
    advice: str | None = None
    """What to do about it, if that is known."""


class UsageError(Error, ValueError):
    """The request makes no sense."""


class UnsupportedError(Error, OSError):
    """This kernel cannot do it."""


class DeniedError(Error, PermissionError):
    """This process may not do it."""


class VanishedError(Error, ProcessLookupError):
    """What was asked about is gone."""


class OutOfMemoryError(Error, MemoryError):
    """There is not enough memory or address space."""


class BusyError(Error, TimeoutError):
    """What would have to change is still in use."""


class CorruptError(Error, ValueError):
    """What was read is not what it should be."""


class FileError(Error, OSError):
    """A file cannot be read or written."""


class MissingFileError(FileError, FileNotFoundError):
    """There is no such file."""


class KernelError(Error, OSError):
    """The kernel refused for another reason."""


for _each in [*Error.__subclasses__(), Error, MissingFileError]:
    # Where programs find them.
    _each.__module__ = "cowslip"
