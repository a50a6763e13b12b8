"""The schemes of URLs: those that obstore reads, and those of packages that declare an entry point `gpuload.stores`."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from gpuload.machine.plugins import plugins

GROUP = "gpuload.stores"
OWN = ("s3", "gs", "az", "https", "http", "hf")
_LISTED = ("s3", "gs", "az", "hf")
_WRITABLE = ("s3", "gs", "az")


class Scheme(ABC):
    """URLs of a kind of their own, such as buckets of a service that needs other credentials.

    It is made without arguments in each process that opens such a URL.

    Attributes:
        lists: Whether what lies below a URL can be listed.
        writes: Whether sets may be packed there: its stores then keep attributes of objects, and create one only where
            there is none, as those of S3, Google Cloud and Azure do.
        credentials: How to give them, for messages.
    """

    lists: ClassVar[bool] = True
    writes: ClassVar[bool] = False
    credentials: ClassVar[str] = "Check the credentials of the service"

    @abstractmethod
    def open(self, url: str) -> Any:
        """A store of obstore, such as `obstore.store.S3Store`, for what lies below a URL.

        Args:
            url: As it was given, without a slash at its end. Names of objects are relative to it.

        Raises:
            ValueError: The URL is none of this kind.
        """


def scheme_called(name: str) -> Scheme | None:
    """The scheme of another package that has this name; None if there is none.

    Raises:
        MissingPackageError: it cannot be imported.
    """
    plugin = plugins(GROUP).get(name)
    if plugin is None or name in OWN:
        return None
    scheme = plugin.load()()
    assert isinstance(scheme, Scheme), (
        f"{plugin.entry.value} is no gpuload.store.schemes.Scheme"
    )
    return scheme


def readable_schemes() -> list[str]:
    """The names of all schemes."""
    return [*OWN, *(name for name in plugins(GROUP) if name not in OWN)]


def lists(name: str) -> bool:
    """Whether what lies below URLs of a scheme can be listed."""
    scheme = scheme_called(name)
    return name in _LISTED if scheme is None else scheme.lists


def writes(name: str) -> bool:
    """Whether sets may be packed to URLs of a scheme."""
    scheme = scheme_called(name)
    return name in _WRITABLE if scheme is None else scheme.writes


def writable_schemes() -> list[str]:
    """The names of those to whose URLs sets may be packed."""
    return [name for name in readable_schemes() if writes(name)]
