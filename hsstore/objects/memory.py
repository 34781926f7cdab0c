"""Objects in fsspec's memory: of this process, for tests and trials."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fsspec.asyn import get_loop
from fsspec.implementations.memory import MemoryFileSystem
from typing_extensions import override

from hsstore.objects.answer import Answer, Backend, Request, missing, stale

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


class MemoryBackend(Backend):
    """Reads what any `fsspec.filesystem("memory")` of this process holds."""

    def __init__(self) -> None:
        self._fs: Any = MemoryFileSystem()

    @property
    def loop(self) -> AbstractEventLoop:
        """The event loop that requests run on."""
        loop: AbstractEventLoop = get_loop()
        return loop

    @override
    async def fetch(self, request: Request) -> Answer:
        file = self.file(request.url)
        if file is None:
            raise missing(request.url)
        version = version_of(file)
        if request.version not in {None, version}:
            raise stale(request.url)
        data = bytes(file.getbuffer()[request.start : request.stop])
        return Answer(data, file.size, version, file.created.timestamp())

    def file(self, url: str) -> Any:  # noqa: ANN401  # fsspec has no types
        """Return fsspec's own file, or None."""
        return self._fs.store.get(self._fs._strip_protocol(url))  # noqa: SLF001

    @override
    async def find(self, url: str, after: str) -> tuple[dict[str, int], str]:
        root = self._fs._strip_protocol(url).rstrip("/") + "/"  # noqa: SLF001
        return {
            name.removeprefix(root): file.size
            for name, file in sorted(self._fs.store.items())
            if name.startswith(root)
        }, ""

    @override
    def refusal(self, error: Exception) -> str | None:
        return f"{type(error).__name__}: {error}"


def version_of(file: Any) -> str:  # noqa: ANN401
    """Tell a file from what has its name later."""
    return f"{file.created.timestamp()} {file.size}"
